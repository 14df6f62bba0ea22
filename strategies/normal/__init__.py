"""A joint normal model of all parties' columns, fitted from pairwise moments; completion by it."""

from strategies.normal.strategy import JointNormal

__all__ = ["JointNormal"]
