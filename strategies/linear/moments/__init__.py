"""Regression from moments: sums over groups of rows, and what is fitted to them."""
