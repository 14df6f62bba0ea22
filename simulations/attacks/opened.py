"""Attacks on opened sums over groups of rows: projections, subset sums, atoms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Indices
from simulations.attacks.recording import PRODUCTS
from simulations.attacks.score import Guess
from simulations.attacks.vectors import row_sets
from simulations.attacks.views import View

_RARE = 3  # as many ones are searched for by trying all sets of rows
_SMALL = 34  # rows of a group of which all subsets are searched, in two halves
_CLEARLY = 1e-2
_EXACT = 1e-8  # of the labels' length: as exact as products are opened


@dataclass(frozen=True)
class Opened:
    """Moments of groups of rows, and which rows these are."""

    group: Indices  # (n_samples,): number of each row's group, -1 for none
    vectors: Array  # (n_samples, n_vectors): the server's own
    sums: Array  # (n_groups, n_columns): of the columns
    products: Array  # (n_groups, n_columns, n_columns): of two columns
    with_vectors: Array  # (n_groups, n_columns, n_vectors): of columns and vectors


def opened_of(view: View) -> list[Opened]:
    """Return what private products opened in a run, of the server's view or of the outputs."""
    items = [item for item in view.items if item.step == PRODUCTS]
    found = []
    for at in dict.fromkeys(item.at for item in items):
        values = {item.name: np.asarray(item.value) for item in items if item.at == at}
        found.append(Opened(**values | _over_all_samples(view, values)))
    return found


def _over_all_samples(view: View, values: dict[str, Any]) -> dict[str, Any]:
    """Return groups and vectors by sample: products may be of the labelled samples only."""
    group, vectors = values["group"], values["vectors"]
    if len(group) == view.n_samples:
        return {}
    sets = [np.flatnonzero(view.labelled), *map(np.sort, row_sets(view))]
    rows = next((rows for rows in sets if len(rows) == len(group)), None)
    if rows is None:
        raise ValueError(f"products of {len(group)} rows, and nothing tells which these are")
    all_groups = np.full(view.n_samples, -1, dtype=np.int64)
    all_groups[rows] = group
    all_vectors = np.zeros((view.n_samples, vectors.shape[1]))
    all_vectors[rows] = vectors
    return {"group": all_groups, "vectors": all_vectors}


def projections(view: View) -> Iterator[Guess]:
    """Project columns on the vectors and 1 of each group: all that X'V says of many rows."""
    for opened, g, rows in _groups(view):
        design = np.column_stack([np.ones(len(rows)), opened.vectors[rows]])
        with_design = np.column_stack([opened.sums[g], opened.with_vectors[g]])
        weights = np.linalg.lstsq(design.T @ design, with_design.T, rcond=1e-10)[0]
        yield from (Guess(rows, column) for column in (design @ weights).T)


def subset_sums(view: View) -> Iterator[Guess]:
    """Find which rows have the rarer of two values, from the labels' sum over them.

    Sum and sum of squares say what two values a column has, given how often the rarer occurs; so
    each count is tried. Rare values are found by trying all sets, those of small groups by
    matching sums of two halves (Horowitz and Sahni, 1974). Sets that fit equally well are no find.
    """
    for opened, g, rows in _groups(view):
        vectors, m = opened.vectors[rows], len(rows)
        if not vectors.shape[1]:
            continue
        rarer = range(1, (m // 2 if m <= _SMALL else min(_RARE, m // 2)) + 1)
        for j in range(opened.sums.shape[1]):
            mean = opened.sums[g, j] / m
            variance = opened.products[g, j, j] / m - mean**2
            if variance <= 1e-9 * (mean**2 + 1e-12):
                continue
            for count, sign in product(rarer, (1.0, -1.0)):
                share = count / m
                step = sign * np.sqrt(variance / (share * (1 - share)))
                base = mean - share * step
                sums = (opened.with_vectors[g, j] - base * vectors.sum(axis=0)) / step
                chosen = find_subset(vectors, sums, count)
                if chosen is not None:
                    flag = np.zeros(m)
                    flag[chosen] = 1.0
                    yield Guess(rows, flag)


def find_subset(vectors: Array, sums: Array, count: int) -> Indices | None:
    """Return the only set of ``count`` rows over which vectors have given sums, or None.

    Shapes: vectors (n_rows, n_vectors): the labels; sums (n_vectors,): of the rows looked for.
    """
    n_rows = len(vectors)
    tolerance = _EXACT * np.sqrt((vectors**2).sum(axis=0)) + 1e-12
    # The vector with most different values leaves the fewest sets.
    k = max(range(vectors.shape[1]), key=lambda j: len(np.unique(vectors[:, j])))
    if count <= _RARE:
        sets = _rare_sets(vectors[:, k], sums[k], count, tolerance[k])
    elif n_rows <= _SMALL:
        sets = _halves(vectors[:, k], sums[k], count, tolerance[k])
    else:
        return None
    off = [float((np.abs(vectors[s].sum(axis=0) - sums) / tolerance).max()) for s in sets]
    nearest = np.sort(off)
    # More than one set may be as near as products are exact; one that is far nearer is the one.
    if not off or nearest[0] > 1.0 or (len(off) > 1 and nearest[0] >= _CLEARLY * nearest[1]):
        return None
    return sets[int(np.argmin(off))]


def isolated(groups: Sequence[Indices]) -> list[tuple[Indices, Array]]:
    """Return the sets of rows that sums over groups can be combined to, small ones first.

    Shapes: groups (n_samples,): of every opening, numbers of groups, -1 for none; returns (rows,
    weights): weights, over all groups of all openings in order, whose combination is the sum over
    these rows: those that are in the same opened sets as each other and no others.
    """
    sets = [group == g for group in groups for g in range(int(group.max()) + 1)]
    if not sets:
        return []
    member = np.array(sets, dtype=float)
    kinds, atom = np.unique(member, axis=1, return_inverse=True)
    atom = np.asarray(atom).reshape(-1)
    weights = np.linalg.pinv(kinds)  # row a: the best combination for atom a
    exact = np.abs(weights @ kinds - np.eye(kinds.shape[1])).max(axis=1) < 1e-9
    found = [
        (np.flatnonzero(atom == a), weights[a])
        for a in range(kinds.shape[1])
        if exact[a] and kinds[:, a].any()
    ]
    return sorted(found, key=lambda pair: len(pair[0]))


def atoms(views: Sequence[View], names: Sequence[tuple[str, str]] = ()) -> Iterator[Guess]:
    """Read off rows that opened sets isolate, by sums and differences (A+B, A+i, B).

    Shapes: names (party, column): the columns of the moments in order, where they are known.
    """
    openings = [opened for view in views for opened in opened_of(view)]
    if not openings or len({o.sums.shape[1] for o in openings}) > 1:
        return
    sums = np.vstack([opened.sums for opened in openings])
    for rows, weights in isolated([opened.group for opened in openings]):
        if len(rows) == 1:
            for j, cell in enumerate(weights @ sums):
                target = names[j] if len(names) == sums.shape[1] else None
                yield Guess(rows, np.array([cell]), target, affine=False)


def smallest_set(views: Sequence[View]) -> int | None:
    """Return how many rows the smallest set has whose sums can be had; None if none was opened."""
    found = isolated([opened.group for view in views for opened in opened_of(view)])
    return len(found[0][0]) if found else None


def _groups(view: View) -> Iterator[tuple[Opened, int, Indices]]:
    """Iterate over what was opened, by group, with the group's rows."""
    for opened in opened_of(view):
        for g in range(len(opened.sums)):
            rows = np.flatnonzero(opened.group == g)
            if len(rows):
                yield opened, g, rows


def _rare_sets(values: Array, total: float, count: int, tolerance: float) -> list[Indices]:
    """Return sets of one to three rows whose values add up to a total."""
    order = np.argsort(values)
    ranked = values[order]
    if count == 1:
        firsts, sums = np.zeros((1, 0), dtype=np.int64), np.zeros(1)
    elif count == 2:
        firsts, sums = np.arange(len(values))[:, None], values
    else:
        pairs = np.triu_indices(len(values), 1)
        firsts, sums = np.column_stack(pairs), values[pairs[0]] + values[pairs[1]]
    low = np.searchsorted(ranked, total - sums - tolerance)
    high = np.searchsorted(ranked, total - sums + tolerance)
    found = []
    for at in np.flatnonzero(high > low):
        few = firsts[at]
        later = (last for last in order[low[at] : high[at]] if not len(few) or last > few[-1])
        found += [np.array([*few, last]) for last in later]
    return found


def _halves(values: Array, total: float, count: int, tolerance: float) -> list[Indices]:
    half = len(values) // 2
    left, right = _all_sums(values[:half]), _all_sums(values[half:])
    order = np.argsort(right[0])
    ranked, found = right[0][order], []
    low = np.searchsorted(ranked, total - left[0] - tolerance)
    high = np.searchsorted(ranked, total - left[0] + tolerance)
    for a in np.flatnonzero(high > low):
        for b in order[low[a] : high[a]]:
            if left[1][a] + right[1][b] == count:
                picked = [i for i in range(half) if a >> i & 1]
                picked += [half + i for i in range(len(values) - half) if b >> i & 1]
                found.append(np.array(picked))
    return found


def _all_sums(values: Array) -> tuple[Array, Indices]:
    """Return sums and sizes of all subsets, the bits of whose number say who is in."""
    sums, sizes = np.zeros(1), np.zeros(1, dtype=np.int64)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    return sums, sizes
