"""Columns in bins by their owners, and sums of the server's labels by bin."""
