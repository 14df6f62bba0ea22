"""Private products of different parties' columns, by groups of rows: the arithmetic.

Each party k sends ``U_k = X_k + R_k`` once, ``R_k`` being the key stream of the group seed, which
the server does not have. Every party knows every ``R_l``; so party k can compute ``X_k'R_l`` and
one of them ``R_k'R_l``, and a private sum of these small matrices gives the server

    C_kl = X_k'R_l + (X_l'R_k)' + R_k'R_l,    X_k'X_l = U_k'U_l - C_kl    modulo 2^64.

``U`` is uniform, and ``C`` is a function of ``U`` and of the product that is opened: the server
learns that product and nothing else, for as many groups of rows as are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.products.ring import Ring, product

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where each party's columns stand in the matrix of all columns.

    Parameters
    ----------
    widths : Mapping[str, int]
        By party, in the order of the matrix, its number of encoded columns (limbs included).
    """

    widths: Mapping[str, int]

    @property
    def total(self) -> int:
        """Number of columns of all parties."""
        return sum(self.widths.values())

    def slice(self, party: str) -> slice:
        """Columns of a party."""
        start = 0
        for name, width in self.widths.items():
            if name == party:
                return slice(start, start + width)
            start += width
        raise KeyError(party)


def rows_by_group(group: npt.NDArray[np.int64], n_groups: int) -> list[Indices]:
    """Return the rows of each group, ascending; rows with group -1 are in none.

    Parameters
    ----------
    group : numpy.ndarray of shape (n_rows,)
        Number of each row's group.
    n_groups : int
        How many groups there are.
    """
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(n_groups + 1))
    return [order[starts[g] : starts[g + 1]] for g in range(n_groups)]


def corrections(
    party: str,
    own: Ring,
    streams: Mapping[str, Ring],
    layout: Layout,
    groups: Sequence[Indices],
    first: bool,
) -> Ring:
    """Return a party's term of the corrections, for every group of rows.

    Parameters
    ----------
    party : str
        Its name.
    own : numpy.ndarray of shape (n_rows, n_own), uint64
        Its encoded columns, 0 in rows that it lacks.
    streams : Mapping[str, numpy.ndarray of shape (n_rows, n_columns)]
        By party, the key stream of its columns.
    layout : Layout
        Where the columns stand.
    groups : sequence of numpy.ndarray
        Rows of each group.
    first : bool
        Whether this party adds the products of the streams of different parties.

    Returns
    -------
    numpy.ndarray of shape (n_groups, n_columns, n_columns), uint64
        Blocks of a party with itself are zero: they are not sent, since its own moments are
        local numbers.
    """
    everything = np.concatenate([streams[name] for name in layout.widths], axis=1)
    mine = layout.slice(party)
    out = np.zeros((len(groups), layout.total, layout.total), dtype=np.uint64)
    for found, rows in zip(out, groups, strict=True):
        masks = everything[rows]
        block = product(own[rows], masks)
        found[mine] += block
        found[:, mine] += block.T
        if first:
            found += product(masks, masks)
        for name in layout.widths:
            own_block = layout.slice(name)
            found[own_block, own_block] = 0
    return out


def open_products(
    masked: Mapping[str, Ring], total: Ring, layout: Layout, groups: Sequence[Indices]
) -> Ring:
    """Return the products of different parties' columns; the server's part.

    Parameters
    ----------
    masked : Mapping[str, numpy.ndarray of shape (n_rows, n_columns)]
        What each party sent, ``U_k``.
    total : numpy.ndarray of shape (n_groups, n_columns, n_columns), uint64
        Sum of the parties' `corrections`.
    layout, groups
        As there.

    Returns
    -------
    numpy.ndarray of shape (n_groups, n_columns, n_columns), uint64
        Encoded products (`ring.decode`); blocks of a party with itself are zero.
    """
    everything = np.concatenate([masked[name] for name in layout.widths], axis=1)
    out = np.empty_like(total)
    for g, rows in enumerate(groups):
        part = everything[rows]
        out[g] = product(part, part) - total[g]
        for name in layout.widths:
            own_block = layout.slice(name)
            out[g][own_block, own_block] = 0
    return out
