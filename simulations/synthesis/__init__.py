"""Synthetic tables on real columns: margins and quality, with nothing stated about the columns."""
