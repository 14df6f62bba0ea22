"""Sums of fits, by sharing ADMM: the paper's own iterations, for nodes that agree to them."""

EXCHANGE = "sums"
"""What a node config names to agree."""
