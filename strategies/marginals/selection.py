"""What a model is made of: tables as shares, corrected for missing rows, and which pairs to choose.

Tables of all pairs are told first, with much noise. MST takes the spanning tree of the pairs that
depend on each other most (McKenna, Miklau and Sheldon 2021, "Winning the NIST Contest", step 2);
AIM also adds those that the model so far gets most wrong (McKenna, Mullins, Sheldon and Miklau
2022, "AIM: An Adaptive and Iterative Mechanism", Algorithm 2, line 10) while its cliques stay small
enough. Both are functions of what was told with noise, so choosing costs no privacy. The papers
choose by the exponential mechanism on exact tables, which nobody has here.

A pair's rows are those that both parties hold. Where a party lacks rows at random given another's
column, its tables stand for other people than all: they are weighted by that column's distribution
over all rows, as far as it differs by more than noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lgamma, log

import numpy as np
import scipy

from flwr_vertical.arrays import Array, Flags
from strategies.marginals.graphical import Clique, Counted, GraphicalModel, average, model_cells

_CELLS = 100_000  # of all cliques, at most
_LIKELY, _SURE = 1.0, 2.0  # how surprising a pair is: of the forest, beyond
_SMOOTH = 1, 2, 4  # terms along each column that are tested alone
_PASSES = 8  # in which AIM adds pairs
_SHIFTED = 4.0  # deviations of noise by which rows must differ
_MOST_WEIGHT = 4.0
_LEAST = 1e-3  # share of a level, for its weight
_SCALED = 5  # times that rows and columns are scaled
_CLEAR = 2.0  # deviations of noise that a sum must be
_FITTED = 40  # steps while pairs are added


@dataclass(frozen=True)
class Opened:
    """What was told of all columns, as counts."""

    sizes: Sequence[int]  # Levels of each column, of all parties
    owner: Sequence[int]  # Number of each column's party
    held: Flags  # (n_samples, n_parties): who holds which rows
    columns: Mapping[int, tuple[Array, float]]  # Counts of levels, and their noise

    def shares(self, pair: Clique, counts: Array, sigma: float) -> Counted:
        """Turn counts of one or two columns into shares of the rows that their parties hold."""
        n_rows = self.n_rows(pair)
        return Counted(counts / n_rows, sigma / n_rows)

    def n_rows(self, pair: Clique) -> int:
        """Return how many rows the parties of one or two columns hold, 1 at least."""
        return max(int(self.held[:, [self.owner[v] for v in pair]].all(axis=1).sum()), 1)


def one_way(opened: Opened, pairs: Mapping[Clique, Counted]) -> dict[int, Counted]:
    """Return the distribution of each column over all rows, by all that was told.

    Its own counts stand for all rows where its party holds them all; else the pairs, `corrected`.
    """
    found = {}
    for v, owner in enumerate(opened.owner):
        told = [_sums(table, pair.index(v)) for pair, table in pairs.items() if v in pair]
        if opened.held[:, owner].all() or not told:
            told.append(opened.shares((v,), *opened.columns[v]))
        mean = average(told)
        found[v] = Counted(_positive(mean.shares), mean.sigma)
    return found


def corrected(opened: Opened, pairs: Mapping[Clique, Counted]) -> dict[Clique, Counted]:
    """Weigh tables of parties that lack rows so that they stand for all rows.

    A party's rows are as good as drawn at random if no column of another is distributed otherwise
    over the rows of both than over all of the other's, but for noise. Else the column that differs
    most gives the weights: of those whose own distribution stands for all rows, if there is one.
    """
    parties = range(opened.held.shape[1])
    rows = {(k, m): opened.held[:, k] & opened.held[:, m] for k in parties for m in parties}
    of = {t: rows[opened.owner[t[0]], opened.owner[t[1]]] for t in pairs}
    known = _over_own(opened, pairs, of, rows)
    shifts = {k: _shifts(opened, k, pairs, rows, known) for k in parties}
    pending = {k: found for k, found in shifts.items() if found}
    weighted: set[int] = set()
    while pending:
        tries = [
            (opened.owner[v] not in pending, sure, k, v)
            for k, found in pending.items()
            for v, (sure, _) in found.items()
        ]
        *_, k, v = max(tries)
        here = {t: c for t, c in pairs.items() if np.array_equal(of[t], rows[k, opened.owner[v]])}
        _, over = pending.pop(k)[v]
        own = [u for u, owner in enumerate(opened.owner) if owner == k]
        known |= {u: Counted(_over_all(here, u, v, known[v], over), known[u].sigma) for u in own}
        weighted |= set(own)
    goals = {v: _positive(column.shares) for v, column in known.items()}
    return {
        pair: _fitted_to(table, [goals[v] for v in pair]) if weighted & set(pair) else table
        for pair, table in pairs.items()
    }


def chosen_pairs(
    opened: Opened, pairs: Mapping[Clique, Counted], columns: Mapping[int, Counted], adaptive: bool
) -> list[Clique]:
    """Choose pairs of columns: a spanning forest, and, `adaptive`, what its model gets wrong.

    `columns`: as from `one_way`; pairs are added to the forest as AIM does.
    """
    outer = {p: np.outer(columns[p[0]].shares, columns[p[1]].shares) for p in pairs}
    n_rows = {p: opened.n_rows(p) for p in pairs}
    scores = {p: _surprise(table, outer[p], n_rows[p]) for p, table in pairs.items()}
    chosen, part = [], list(range(len(opened.sizes)))
    for pair in sorted(scores, key=lambda p: scores[p], reverse=True):
        here, there = part[pair[0]], part[pair[1]]
        if here != there and scores[pair] > _LIKELY:
            chosen.append(pair)
            part = [there if of == here else of for of in part]
    if not adaptive:
        return chosen
    singles: dict[Clique, Counted] = {(v,): column for v, column in columns.items()}
    model = GraphicalModel(opened.sizes, chosen)
    model.fit({**singles, **{p: pairs[p] for p in chosen}}, steps=_FITTED)
    for _ in range(_PASSES):
        fitted = model.pairs()
        wrong = {p: _surprise(pairs[p], fitted[p], n_rows[p]) for p in pairs if p not in chosen}
        added: list[Clique] = []
        touched: set[int] = set()
        for pair in sorted(wrong, key=lambda p: wrong[p], reverse=True):
            # What one pair explains, another of the same column may no longer get wrong.
            if touched & set(pair) or wrong[pair] <= _SURE:
                continue
            if model_cells(opened.sizes, [*chosen, *added, pair]) <= _CELLS:
                added.append(pair)
                touched |= set(pair)
            if len(added) * 4 >= len(opened.sizes):
                break
        if not added:
            break
        chosen += added
        before, model = model.theta, GraphicalModel(opened.sizes, chosen)
        model.fit({**singles, **{p: pairs[p] for p in chosen}}, before, steps=_FITTED)
    return chosen


def smoothed(table: Counted, ends: Sequence[Counted]) -> Counted:
    """Draw to nothing what a table tells beyond its columns, as far as noise explains it.

    Each group of terms of a cosine transform is drawn alone, as James and Stein (1961, "Estimation
    with quadratic loss") have it: most dependence is in the first ones, most noise in the others.

    Shapes: ends: of both columns, their distributions, (size,).
    """
    outer = np.outer(*(column.shares for column in ends))
    terms = scipy.fft.dctn(table.shares - outer, norm="ortho")
    terms[0], terms[:, 0] = 0.0, 0.0  # sums of rows and columns
    inner = terms[1:, 1:]
    groups = np.digitize(np.maximum(*np.indices(inner.shape)) + 1, _SMOOTH, right=True)
    for group in range(len(_SMOOTH) + 1):
        inside = groups == group
        inner[inside] *= _unexplained(inner[inside], max(inside.sum() - 2, 0) * table.sigma**2)
    return Counted(outer + scipy.fft.idctn(terms, norm="ortho"), table.sigma)


def _unexplained(values: Array, noise: float) -> float:
    """Return which share of the sum of squares of values noise of such a sum does not explain."""
    return max(0.0, 1.0 - noise / max(float(np.square(values).sum()), 1e-300))


def _surprise(table: Counted, fitted: Array, n_rows: int) -> float:
    """Return minus the log of the chance that a table is so far off by noise alone.

    Noise is that of the release and of so many rows. By the former alone a larger epsilon would
    favour tables of few levels, whose sums it tells best, however little these depend.

    Sums of rows and columns are left out: single columns are known better. Most dependence runs
    along the levels, so it is in the first terms of a cosine transform, and noise is in all: these
    are tested alone, too, and the least chance counts, times how many were tried.
    """
    noise = np.sqrt(table.sigma**2 + np.maximum(fitted, 0.0) / n_rows)
    terms = np.square(scipy.fft.dctn((table.shares - fitted) / noise, norm="ortho")[1:, 1:])
    parts = {terms[:m, :m].shape: terms[:m, :m] for m in (*_SMOOTH, max(terms.shape))}
    surprises = [_tail(float(part.sum()), part.size) for part in parts.values() if part.size]
    return max(surprises, default=0.0) - log(len(parts))


def _tail(value: float, n_terms: int) -> float:
    """Return minus the log of the chance of a larger sum of so many squared normal variables."""
    found = -float(scipy.stats.chi2.logsf(value, n_terms))
    if np.isfinite(found):
        return found
    half = n_terms / 2.0
    return value / 2.0 - (half - 1.0) * log(value / 2.0) + lgamma(half)


def _sums(table: Counted, axis: int) -> Counted:
    other = 1 - axis
    return Counted(table.shares.sum(axis=other), table.sigma * table.shares.shape[other] ** 0.5)


def _over_own(
    opened: Opened,
    pairs: Mapping[Clique, Counted],
    of: Mapping[Clique, Flags],
    rows: Mapping[tuple[int, int], Flags],
) -> dict[int, Counted]:
    """Return the distribution of each column over the rows of its party, by all tables of these."""
    found = {}
    for v, owner in enumerate(opened.owner):
        mine = [t for t in pairs if v in t and np.array_equal(of[t], rows[owner, owner])]
        told = [_sums(pairs[t], t.index(v)) for t in mine]
        found[v] = average([opened.shares((v,), *opened.columns[v]), *told])
    return found


def _shifts(
    opened: Opened,
    party: int,
    pairs: Mapping[Clique, Counted],
    rows: Mapping[tuple[int, int], Flags],
    known: Mapping[int, Counted],
) -> dict[int, tuple[float, Counted]]:
    """Return by how much others' columns differ over a party's rows, and their distribution there.

    Only those that differ by more than noise, and than rows that are missing whoever they are of.
    """
    found = {}
    for v, other in enumerate(opened.owner):
        with_own = [t for t in pairs if v in t and {opened.owner[u] for u in t} == {party, other}]
        if other == party or not with_own:
            continue
        over = average([_sums(pairs[t], t.index(v)) for t in with_own])
        n_both, n_other = rows[party, other].sum(), rows[other, other].sum()
        drawn = np.maximum(known[v].shares, 0.0) * (1.0 / max(n_both, 1) - 1.0 / max(n_other, 1))
        noise = over.sigma**2 + known[v].sigma ** 2 + drawn
        gap = float((np.square(over.shares - known[v].shares) / noise).sum())
        sure = (gap - opened.sizes[v]) / float(np.sqrt(2.0 * opened.sizes[v]))
        if sure > _SHIFTED:
            found[v] = sure, over
    return found


def _over_all(
    pairs: Mapping[Clique, Counted], u: int, v: int, whole: Counted, over: Counted
) -> Array:
    """Return the distribution of column u over all rows, if rows are missing by column v.

    What weighing by v changes is drawn to nothing as far as noise explains it.
    """
    held = average([_sums(table, pair.index(u)) for pair, table in pairs.items() if u in pair])
    table = pairs[min(u, v), max(u, v)]
    by_v = table.shares if v < u else table.shares.T
    weight = np.maximum(whole.shares, _LEAST) / np.maximum(over.shares, _LEAST)
    change = (np.clip(weight, 1 / _MOST_WEIGHT, _MOST_WEIGHT) - 1.0) @ by_v
    noise = float(np.square(weight - 1.0).sum()) * table.sigma**2 * len(change)
    return _positive(held.shares + _unexplained(change, noise) * change)


def _fitted_to(table: Counted, ends: Sequence[Array | None]) -> Counted:
    """Scale rows and columns of a table so that its positive part adds up as it should.

    As far as noise explains by how much it does not, that is left.
    """
    positive = np.maximum(table.shares, 0.0)
    factors = [np.ones(size) for size in table.shares.shape]
    for _ in range(_SCALED):
        for axis, goal in enumerate(ends):
            if goal is None:  # of a party that lacks rows, too
                continue
            told = _sums(table, axis)
            kept = _unexplained(goal - told.shares, len(goal) * told.sigma**2)
            sums = (positive * np.outer(*factors)).sum(axis=1 - axis) / factors[axis]
            # A row that is no more than noise tells nothing of its factor.
            sure = sums > _CLEAR * told.sigma
            found = np.where(sure, kept * (goal / np.maximum(sums, 1e-12) - 1.0), 0.0)
            factors[axis] = np.clip(1.0 + found, 1 / _MOST_WEIGHT, _MOST_WEIGHT)
    scale = np.outer(*factors)
    # The noise is scaled, too.
    return Counted(table.shares * scale, table.sigma * float(np.sqrt(np.mean(scale**2))))


def _positive(shares: Array) -> Array:
    found = np.maximum(shares, 1e-6)
    return np.asarray(found / found.sum())
