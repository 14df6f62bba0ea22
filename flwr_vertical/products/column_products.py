"""Private products of different parties' columns, by groups of rows: the arithmetic.

Each party k sends ``U_k = X_k + R_k`` once, ``R_k`` being the key stream of the group seed, which
the server does not have. Every party knows every ``R_l``; so party k can compute ``X_k'R_l`` and
one of them ``R_k'R_l``, and a private sum of these small matrices gives the server

    C_kl = X_k'R_l + (X_l'R_k)' + R_k'R_l,    X_k'X_l = U_k'U_l - C_kl    modulo 2^64.

``U`` is uniform, and ``C`` is a function of ``U`` and of the product that is opened: the server
learns that product and nothing else, for as many groups of rows as are asked for.

All functions work on some rows at a time; their results are added over blocks of rows, so that
neither streams nor encoded columns are ever held whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Indices, Ring
from flwr_vertical.products.ring import limbs_of, product_of_limbs

BLOCK_ROWS = 8192
"""Rows at a time: of 50 columns, 3 MB."""


@dataclass(frozen=True)
class Layout:
    """Where each party's columns stand in the matrix of all columns."""

    widths: Mapping[str, int]  # By party, in the order of the matrix, its number of columns
    limbs: int = 1  # See `ring`

    @property
    def total(self) -> int:
        """Number of columns of all parties."""
        return sum(self.widths.values())

    @property
    def slices(self) -> dict[str, slice]:
        """Columns of each party."""
        ends = accumulate(self.widths.values())
        return {
            name: slice(end - width, end)
            for (name, width), end in zip(self.widths.items(), ends, strict=True)
        }

    def slice(self, party: str) -> slice:
        """Columns of a party."""
        return self.slices[party]

    def zeros(self, n_groups: int) -> Ring:
        """Return zeros of the shape of the corrections of so many groups."""
        return np.zeros((n_groups, self.limbs, self.total, self.total), dtype=np.uint64)

    def together(self, parts: Mapping[str, Ring]) -> list[Ring]:
        """Put the encoded columns of all parties together, each limb transposed by itself."""
        n_rows = len(next(iter(parts.values())))
        out = [np.empty((self.total, n_rows), dtype=np.uint64) for _ in range(self.limbs)]
        for name, here in self.slices.items():
            width = self.widths[name]
            for i, limb in enumerate(out):
                limb[here] = parts[name][:, i * width : (i + 1) * width].T
        return out


def rows_by_group(group: npt.NDArray[np.int64], n_groups: int) -> list[Indices]:
    """Return the rows of each group, ascending; rows with group -1 are in none.

    Shapes: group (n_rows,): number of each row's group.
    """
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(n_groups + 1))
    return [order[starts[g] : starts[g + 1]] for g in range(n_groups)]


def blocks_by_group(
    group: npt.NDArray[np.int64], n_groups: int
) -> Iterator[tuple[int, int, list[Indices]]]:
    """Go through the rows in blocks."""
    for start in range(0, len(group), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(group))
        yield start, stop, rows_by_group(group[start:stop], n_groups)


def corrections(
    party: str,
    own: Ring,
    streams: Mapping[str, Ring],
    layout: Layout,
    groups: Sequence[Indices],
    first: bool,
) -> Ring:
    """Return a party's term of the corrections, for every group of rows.

    Shapes: own (n_rows, limbs * n_own): its encoded columns, 0 in rows that it lacks; streams
    (n_rows, limbs * n_columns): by party, the key stream of its columns; returns (n_groups, limbs,
    n_columns, n_columns): of each pair of parties, the block in the rows of the later one; the
    rest is zero.
    """
    masks = layout.together(streams)
    mine, here = limbs_of(own, layout.limbs), layout.slices[party]
    out = layout.zeros(len(groups))
    for found, rows in zip(out, groups, strict=True):
        if not len(rows):
            continue
        theirs, own_rows = _rows(masks, rows), _rows(mine, rows)
        before = [limb[: here.start] for limb in theirs]
        after = [limb[here.stop :] for limb in theirs]
        found[:, here, : here.start] += product_of_limbs(own_rows, before)
        found[:, here.stop :, here] += product_of_limbs(after, own_rows)
        if first:
            _add_products(found, theirs, layout)
    return out


def products_of_masked(
    masked: Mapping[str, Ring], layout: Layout, groups: Sequence[Indices]
) -> Ring:
    """Return ``U_k'U_l`` of different parties; less all corrections, it is ``X_k'X_l``.

    Shapes: masked (n_rows, limbs * n_columns): what each party sent, ``U_k``; returns (n_groups,
    limbs, n_columns, n_columns): in the places of `corrections`.
    """
    everything = layout.together(masked)
    out = layout.zeros(len(groups))
    for found, rows in zip(out, groups, strict=True):
        if len(rows):
            _add_products(found, _rows(everything, rows), layout)
    return out


def _add_products(found: Ring, columns: Sequence[Ring], layout: Layout) -> None:
    """Add the products of every party's columns with those of the parties before it."""
    for here in layout.slices.values():
        if here.start:
            of_party = [limb[here] for limb in columns]
            before = [limb[: here.start] for limb in columns]
            found[:, here, : here.start] += product_of_limbs(of_party, before)


def _rows(limbs: Sequence[Ring], rows: Indices) -> list[Ring]:
    if len(rows) == limbs[0].shape[1]:  # all of them, in order: no copy is needed
        return list(limbs)
    return [np.take(limb, rows, axis=1) for limb in limbs]
