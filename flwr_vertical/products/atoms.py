"""Atoms: the finest sets of rows that opened sums can be combined to."""

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def refine(atoms: Indices, own: Indices, n_groups: int) -> Indices:
    """Split atoms by the groups that are told of now.

    Parameters
    ----------
    atoms : numpy.ndarray of shape (n_rows,)
        Number of each row's atom, from 1; 0 for rows that nothing was told of.
    own : numpy.ndarray of shape (n_rows,)
        Number of each row's group; -1 for rows that are not told of now.
    n_groups : int
        How many groups there are.

    Returns
    -------
    numpy.ndarray of shape (n_rows,)
        The same afterwards. What was told of before and is split now is told of in both parts, as
        one follows from the other by subtraction.
    """
    told = (atoms > 0) | (own >= 0)
    out = np.zeros(len(atoms), dtype=np.int64)
    out[told] = np.unique((atoms * (n_groups + 1) + own + 1)[told], return_inverse=True)[1] + 1
    return out
