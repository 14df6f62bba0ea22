"""Boosted trees over columns of two parties, beside a central booster and with missing blocks."""
