"""How many rows and vectors suffice, where the owner of a table states no number."""


def min_rows(n_columns: int, n_vectors: int) -> int:
    """Return the fewest rows of a set whose sums may be opened."""
    return max(100, 3 * (n_columns + n_vectors))


def max_vectors(n_rows: int) -> int:
    """Return with how many vectors of the server a set of rows may be multiplied in all.

    One at least: sets of fewer than ten rows are told of only where a party lowers its minimum.
    """
    return max(n_rows // 10, 1)
