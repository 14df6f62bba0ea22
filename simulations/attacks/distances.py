"""Attacks on distances between samples: double centring, one party's own distances, and lists.

``python -m simulations.attacks.distances`` prints what lists of donors tell a party of FKNN.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from flwr_vertical import simulate
from flwr_vertical.arrays import Array, Indices, Integers, Integers32
from simulations.attacks.score import Guess
from simulations.attacks.span import two_valued
from simulations.attacks.vectors import Family, least_rows, row_sets
from simulations.attacks.views import SENT, View
from strategies.fknn import FKNN
from strategies.fknn.party import FKNNParty

_TIED = 1e-6  # logarithms of equal distances
_RANK = 0.3  # distances of few columns have a rank below this share of their number


def matrices(view: View) -> Iterator[tuple[str, Array]]:
    """Iterate over matrices of two sets of samples, blocks of rows put together.

    As they are, and as ratios: a sum of distances over a sum of weights, of which the first may be
    that of all samples that have none of their own.
    """
    blocks: dict[tuple[str, str, int], list[Array]] = {}
    least = least_rows(view.n_samples)
    for item in view.items:
        value = item.value
        if item.ring or item.way == SENT or not isinstance(value, np.ndarray) or value.ndim != 2:
            continue
        if value.dtype.kind in "fiu":
            key = (item.step, item.name, value.shape[1])
            blocks.setdefault(key, []).append(value.astype(float))
    found = {key: np.vstack(dedupe(parts)) for key, parts in blocks.items()}
    for key, matrix in found.items():
        if min(matrix.shape) < least:
            continue
        yield f"{key[0]}.{key[1]}", matrix
        for other, weight in found.items():
            n_same = matrix.shape[1] - weight.shape[1] + 1
            if other == key or len(weight) != len(matrix) or n_same < 0:
                continue
            if n_same != 1:
                weight = np.hstack([np.repeat(weight[:, :1], n_same, axis=1), weight[:, 1:]])
            if (weight > 0).mean() > 0.5:
                with np.errstate(all="ignore"):
                    ratio = matrix / weight
                yield f"{key[0]}.{key[1]} / {other[1]}", ratio


def dedupe(parts: list[Array]) -> list[Array]:
    """Return the blocks that are not repeated."""
    return [p for i, p in enumerate(parts) if not any(np.array_equal(p, q) for q in parts[:i])]


def factors(view: View) -> list[Family]:
    """Return what double centring makes of distances: a basis of the columns' span.

    Rows may be scaled and shifted, each by a number of its own: a distance is
    ``r_i + s_j - 2 x_i'x_j``, so what is left of a row less its mean lies in the span of s and the
    columns of x over the donors.
    """
    found = []
    for name, matrix in matrices(view):
        columns = np.isfinite(matrix).all(axis=0)
        usable = matrix[:, columns]
        if min(usable.shape) < least_rows(view.n_samples):
            continue
        span = _row_space(usable)
        if span is None:
            continue
        for rows in row_sets(view):
            if len(rows) == matrix.shape[1]:
                order = np.argsort(rows[columns])
                found.append(Family(f"factors of {name}", rows[columns][order], span[order]))
    return found


def lone_distances(view: View) -> Iterator[Guess]:
    """Take roots of distances for differences of one column: of a party that has no other."""
    for _, matrix in matrices(view):
        for rows in row_sets(view):
            if len(rows) != matrix.shape[1]:
                continue
            with np.errstate(all="ignore"):
                roots = np.sqrt(matrix[: min(len(matrix), 20)])
            for first in roots:
                finite = np.isfinite(first)
                if finite.sum() > 3:
                    yield Guess(rows[finite], first[finite])
            yield from _on_a_line(rows, matrix)


def anonymous(view: View, truth: Mapping[str, pd.DataFrame]) -> Iterator[Guess]:
    """Attack distances to donors whose order is secret, with the order given.

    A basis of the span tells how far out each donor lies (its leverage), and so does the true
    table: the order is taken from there, which no attacker could. So a find means that the table
    itself is open, in an unknown order of its rows.
    """
    table = pd.concat(dict(truth), axis=1).dropna(axis=1, how="all")
    for _, matrix in matrices(view):
        usable = matrix[:, np.isfinite(matrix).all(axis=0)]
        if min(usable.shape) < least_rows(view.n_samples):
            continue
        span = _row_space(usable)
        complete = np.flatnonzero(table.notna().all(axis=1).to_numpy())
        if span is None or len(span) != len(complete):
            continue
        values = table.iloc[complete].to_numpy(dtype=float)
        values = (values - values.mean(axis=0)) / values.std(axis=0)
        for design in (values, np.column_stack([values, (values**2).sum(axis=1)])):
            centred = design - design.mean(axis=0)
            true = (np.linalg.svd(centred, full_matrices=False)[0] ** 2).sum(axis=1)
            order = np.empty(len(complete), dtype=np.int64)
            order[np.argsort((span**2).sum(axis=1))] = np.argsort(true)
            rows = complete[order]
            yield from (Guess(rows, flag) for flag in two_valued(span))
            for party, frame in truth.items():
                for name, column in frame.items():
                    weights = np.linalg.lstsq(span, column.to_numpy()[rows], rcond=None)[0]
                    yield Guess(rows, span @ weights, (party, str(name)))


def scale_candidates(rows: Array) -> Array:
    """Return what the ratio of two rows' scales may be, if three rows of distances meet.

    Rows i, j, k of distances, each scaled and in an order of its own, have D_ij, D_ik and D_jk in
    common; so ``c_i/c_j * c_j/c_k = c_i/c_k`` for the ratios of the right entries.

    Shapes: rows (3, n_donors): positive.
    """
    first, second, third = np.log(rows)
    found = []
    for a, one in enumerate(first):
        # Equal distances meet whatever the scales: an entry's equals stand for itself.
        others = first[np.abs(first - one) > _TIED]
        both = np.sort((others[:, None] - third[None]).ravel())
        for b, middle in enumerate(second):
            rest = second[np.abs(second - middle) > _TIED]
            sums = (one - middle) + (rest[:, None] - third[None]).ravel()
            if (np.searchsorted(both, sums - 1e-9) < np.searchsorted(both, sums + 1e-9)).any():
                found.append(first[a] - second[b])
    return np.unique(np.round(found, 7))


def _row_space(matrix: Array) -> Array | None:
    """Return a basis of rows less their means, (n_donors, rank), if there are few directions."""
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1))
    centred = centred[length > 0] / length[length > 0, None]
    if not len(centred):
        return None
    _, size, right = np.linalg.svd(centred, full_matrices=False)
    rank = int((size > 1e-6 * size[0]).sum())
    return right[:rank].T if rank <= _RANK * min(centred.shape) else None


def _on_a_line(rows: Indices, matrix: Array) -> Iterator[Guess]:
    """Place donors on a line by their distances to two of the rows (in one column)."""
    start = matrix[0]
    for other in matrix[1:20]:
        usable = np.isfinite(start) & np.isfinite(other)
        if usable.sum() > 3:
            # |x - a|^2 - |x - b|^2 is linear in x.
            yield Guess(rows[usable], (start - other)[usable])


_NEAREST = 5


def lists_of(tables: Mapping[str, pd.DataFrame]) -> list[Integers]:
    """Run `FKNN`; return the longest list of donors that `curious` got of each aligned row.

    Shapes: one array of sample numbers a row, nearest first; empty where it got none.
    """
    n_samples = len(next(iter(tables.values())))
    lists: list[Integers] = [np.zeros(0, dtype=np.int64)] * n_samples

    fill = FKNNParty._fill

    def watch(self: FKNNParty, rows: Indices, neighbours: Integers32, *rest: Any) -> Any:
        if self.name == "curious":
            held = self.positions >= 0
            own = np.full(self.n_samples, -1)
            own[self.positions[held]] = np.flatnonzero(held)
            for row, listed in zip(own[rows].tolist(), neighbours, strict=True):
                if (listed >= 0).sum() > len(lists[row]):
                    lists[row] = own[listed[listed >= 0]]
        return fill(self, rows, neighbours, *rest)

    with patch.object(FKNNParty, "_fill", watch):
        simulate(FKNN(n_neighbors=_NEAREST), dict(tables), progress=False)
    return lists


def r_squared_of_lists(lists: Sequence[Integers], columns: Array) -> float:
    """Place samples by who is near to whom; return how much of others' columns that explains.

    Shapes: columns (n_samples, n_columns): standardised. A hundred rows, which the attacker
    knows, turn the map; the others are scored.
    """
    n_samples, n_columns = columns.shape
    apart = np.full((n_samples, n_samples), np.nan)
    for row, listed in enumerate(lists):
        if len(listed):
            apart[row] = (len(listed) + n_samples) / 2
            apart[row, listed] = np.arange(1, len(listed) + 1)
    with warnings.catch_warnings(action="ignore"):
        apart = np.nanmean(np.stack([apart, apart.T]), axis=0)
    apart = np.nan_to_num(apart, nan=n_samples / 2)
    np.fill_diagonal(apart, 0.0)
    centre = np.eye(n_samples) - 1 / n_samples
    values, vectors = np.linalg.eigh(-centre @ apart @ centre)
    scales = np.sqrt(np.abs(values[-n_columns:]))
    places = np.c_[vectors[:, -n_columns:] * scales, np.ones(n_samples)]
    order = np.random.default_rng(0).permutation(n_samples)
    known, others = order[:100], order[100:]
    turn = np.linalg.lstsq(places[known], columns[known], rcond=None)[0]
    left = columns[others] - places[others] @ turn
    return float(1 - left.var(axis=0).sum() / columns[others].var(axis=0).sum())


def list_tables(n_asked: int) -> dict[str, pd.DataFrame]:
    """Return a victim's columns, and one column of another party that lacks `n_asked` cells."""
    rng, n_samples = np.random.default_rng(0), 400
    ids = [f"i{k}" for k in range(n_samples)]
    victim = pd.DataFrame(rng.normal(size=(n_samples, 4)), index=ids).add_prefix("v")
    own = pd.DataFrame({"a": rng.normal(size=n_samples)}, index=ids)
    own.iloc[rng.choice(n_samples, n_asked, replace=False)] = np.nan
    return {"curious": own, "victim": victim}


def nearest_holders(tables: Mapping[str, pd.DataFrame]) -> list[Integers]:
    """Return the donors from which `curious` imputes its column: what imputed numbers can tell."""
    own, others = tables["curious"]["a"].to_numpy(), tables["victim"].to_numpy()
    apart = ((others[:, None] - others[None]) ** 2).sum(axis=2)
    apart[:, np.isnan(own)] = np.inf
    nearest = np.argsort(apart, axis=1)[:, :_NEAREST]
    return [
        found if np.isnan(value) else found[:0] for value, found in zip(own, nearest, strict=True)
    ]


def main() -> None:
    """Print what lists of donors tell a party, by how many of 400 cells of its column it lacks."""
    for n_asked in (390, 320, 200, 80, 40):
        tables = list_tables(n_asked)
        columns = tables["victim"].to_numpy()
        lists, used = lists_of(tables), nearest_holders(tables)
        lengths = [len(listed) for listed in lists if len(listed)]
        told, output = (r_squared_of_lists(found, columns) for found in (lists, used))
        print(
            f"| {n_asked} | {np.median(lengths):.0f} | {max(lengths)} | {told:.2f} | {output:.2f} |"
        )


if __name__ == "__main__":
    main()
