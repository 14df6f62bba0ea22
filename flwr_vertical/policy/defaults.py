"""How many rows and vectors suffice, where the owner of a table states no number."""


def min_rows(n_columns: int, n_vectors: int) -> int:
    """Return the fewest rows of a set whose sums may be opened."""
    return max(100, 3 * (n_columns + n_vectors))


def max_vectors(n_rows: int) -> int:
    """Return with how many vectors of the server a set of rows may be multiplied in all.

    One at least: sets of fewer than ten rows are told of only where a party lowers its minimum.
    """
    return max(n_rows // 10, 1)


def vectors_of_products(n_columns: int) -> int:
    """Return as how many vectors all products of two columns under weights of the rows count.

    They are ``n_columns (n_columns + 1) / 2`` sums, and those with a vector one for each column.
    Products under two weightings of as many rows as there are columns determine these rows: the
    eigenvectors of one relative to the other (Leurgans, Ross and Abel, 1993).
    """
    return n_columns // 2 + 1
