"""Alignment: which rows the parties share, and who has which."""
