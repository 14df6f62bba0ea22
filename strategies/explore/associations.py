"""From opened sums to how variables go together, and to what they tell of labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.pairs import PairMoments
from strategies.binning.label_sums import PartyBins
from strategies.binning.woe import information_value, stability_index, weight_of_evidence
from strategies.explore.columns import Variables

_Z = float(ndtri(0.975))
_EPSILON = 1e-12


@dataclass(frozen=True)
class PartyVariables:
    """One party's variables among all offered columns."""

    party: str
    variables: Variables
    start: int  # Of its columns among those of all parties
    # (n_parties, n_own + 1): over the rows that each party holds, too, of the own party over all
    # rows; the last is 0
    sums: Array
    squares: Array

    def columns(self, role: str) -> Indices:
        """Return the own number of a column of each variable, -1 where there is none."""
        return np.array(getattr(self.variables, role), dtype=np.int64)


@dataclass(frozen=True)
class Pooled:
    """What was opened, as sums over the rows in which two variables are observed."""

    parts: Sequence[PartyVariables]
    moments: PairMoments

    def overlap(self, a: int, b: int) -> Array:
        """Count rows in which variables of two parties are both observed; shape (n_a, n_b)."""
        of_a, of_b = (self.parts[k].columns("observed") for k in (a, b))
        here, there = self._where(a, of_a), self._where(b, of_b)
        both = self.moments.products[np.ix_(here, there)]
        left = np.where(of_a < 0, self.moments.n_rows[a, b], self.parts[a].sums[b, of_a])
        right = np.broadcast_to(self.parts[b].sums[a, of_b], both.shape)
        counts = np.where(of_b < 0, left[:, None], np.where(of_a[:, None] < 0, right, both))
        return np.asarray(np.rint(counts))

    def sums(self, a: int, b: int, role: str, squares: str) -> tuple[Array, Array]:
        """Return sums of a column of each variable of `a`, and of its squares.

        Over the rows in which a variable of `b` is observed, too; shapes (n_a, n_b). `role` and
        `squares` name the columns.
        """
        part, of_b = self.parts[a], self.parts[b].columns("observed")
        column, square, there = part.columns(role), part.columns(squares), self._where(b, of_b)
        products = self.moments.products
        total = np.where(
            of_b < 0, part.sums[b, column][:, None], products[np.ix_(self._where(a, column), there)]
        )
        of_squares = np.where(
            of_b < 0,
            part.squares[b, column][:, None],
            products[np.ix_(self._where(a, square), there)],
        )
        return total, of_squares

    def products(self, a: int, b: int, columns: Indices, others: Indices) -> Array:
        """Return sums of products of columns of two parties, by their own numbers."""
        return self.moments.products[np.ix_(self._where(a, columns), self._where(b, others))]

    def told(self, a: int, columns: Indices, b: int) -> Flags:
        """Return which columns of `a` there are and are told of with those of `b`."""
        here = self._where(a, columns)
        hidden = self.moments.withheld[here] | self.moments.apart[here, b]
        return np.asarray((columns >= 0) & ~hidden)

    def values_told(self, a: int, role: str, b: int) -> Flags:
        """Return of which variables a column is told of, and in which rows it is observed."""
        column, observed = (self.parts[a].columns(name) for name in (role, "observed"))
        return self.told(a, column, b) & ((observed < 0) | self.told(a, observed, b))

    def squares_told(self, a: int, role: str, b: int) -> Flags:
        """Return where squares of a's variables are told of in the rows of b's, (n_a, n_b)."""
        told = self.told(a, self.parts[a].columns(role), b)
        return np.asarray(told[:, None] | (self.parts[b].columns("observed") < 0))

    def levels(self, a: int, i: int, b: int) -> Indices:
        """Return the own numbers of the columns of levels that are told of."""
        here = self.parts[a].variables.levels_of(i)
        columns = np.arange(here.start, here.stop)
        observed = self.parts[a].columns("observed")[[i]]
        whole = observed[0] < 0 or self.told(a, observed, b)[0]
        return np.asarray(columns[self.told(a, columns, b) & whole])

    def over(self, a: int, columns: Indices, b: int, j: int) -> Array:
        """Return sums of columns over the rows in which variable j of `b` is observed."""
        observed = self.parts[b].columns("observed")[[j]]
        if observed[0] < 0:
            return np.asarray(self.parts[a].sums[b, columns])
        return np.asarray(self.products(a, b, columns, observed)[:, 0])

    def _where(self, a: int, columns: Indices) -> Indices:
        return np.asarray(self.parts[a].start + columns)


def correlations(pooled: Pooled, a: int, b: int, role: str) -> tuple[Array, Array]:
    """Return correlations of variables of two parties, and the numbers of rows behind them.

    Over the rows in which both are observed, as pandas has them; NaN where one is not told of.
    Shapes: role: ``value``, or ``rank`` (of the party's own rows); returns (n_a, n_b).
    """
    squares = {"value": "square", "rank": "rank_square"}[role]
    column, other = pooled.parts[a].columns(role), pooled.parts[b].columns(role)
    n = pooled.overlap(a, b)
    left, left_squares = pooled.sums(a, b, role, squares)
    right, right_squares = (found.T for found in pooled.sums(b, a, role, squares))
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (left_squares - left**2 / n) * (right_squares - right**2 / n)
        size = left_squares * right_squares
        across = pooled.products(a, b, column, other) - left * right / n
        found = np.where(spread > _EPSILON**2 * size, across / np.sqrt(spread), np.nan)
    told = pooled.values_told(a, role, b)[:, None] & pooled.values_told(b, role, a)
    told &= pooled.squares_told(a, squares, b) & pooled.squares_told(b, squares, a).T
    if a == b:
        np.fill_diagonal(found, 1.0)
    return np.where(told & (n > 2), np.clip(found, -1.0, 1.0), np.nan), n


def interval(r: Array, n: Array, ranks: bool) -> tuple[Array, Array]:
    """Return 95 % intervals of correlations.

    By Fisher's transformation (1921); of rank correlations with the variance of Bonett and Wright
    (2000).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        half = _Z * np.sqrt((1.0 + r**2 / 2.0 * ranks) / (n - 3.0))
        middle = np.arctanh(r)
        return np.tanh(middle - half), np.tanh(middle + half)


def cramers_v(counts: Array) -> float:
    """Return Cramér's V (1946, Section 21.9) of a table of counts; NaN with one row or column."""
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return float("nan")
    n = counts.sum()
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi2 / (n * (min(counts.shape) - 1))))


def correlation_ratio(counts: Array, sums: Array, squares: float) -> float:
    """Return eta, the root of the share of a variance that levels explain (Fisher, 1925).

    Shapes: counts, sums (n_levels,): rows of each level, and the variable's sum over them;
    squares: the sum of its squares over all.
    """
    kept = counts > 0.5
    counts, sums = counts[kept], sums[kept]
    if len(counts) < 2:
        return float("nan")
    mean = sums.sum() ** 2 / counts.sum()
    within = squares - mean
    if within <= _EPSILON * squares:
        return float("nan")
    between = (sums**2 / counts).sum() - mean
    return float(np.sqrt(np.clip(between / within, 0.0, 1.0)))


def pairs(pooled: Pooled) -> pd.DataFrame:
    """Return how every two variables go together, one measure a line, the strongest first."""
    lines: list[tuple[object, ...]] = []
    for a in range(len(pooled.parts)):
        for b in range(a, len(pooled.parts)):
            lines += _numbers(pooled, a, b)
            lines += _levels(pooled, a, b)
            lines += _gaps(pooled, a, b)
    names = ["party", "variable", "other_party", "other_variable", "measure"]
    frame = pd.DataFrame(lines, columns=[*names, "value", "low", "high", "n"])
    frame = frame[frame["value"].notna()].sort_values("value", key=abs, ascending=False)
    return frame.astype({"n": np.int64}).reset_index(drop=True)


_Line = tuple[object, ...]


def _numbers(pooled: Pooled, a: int, b: int) -> Iterator[_Line]:
    for role, measure in (("value", "correlation"), ("rank", "rank correlation")):
        r, n = correlations(pooled, a, b, role)
        low, high = interval(r, n, role == "rank")
        for i, j in np.argwhere(np.isfinite(r)).tolist():
            if a < b or i < j:
                yield *_pair(pooled, a, i, b, j), measure, r[i, j], low[i, j], high[i, j], n[i, j]


def _levels(pooled: Pooled, a: int, b: int) -> Iterator[_Line]:
    """Return Cramér's V of two variables of levels, and eta of one of levels and one of numbers.

    Two levels count as a number, which has correlations with others.
    """
    here, there = pooled.parts[a].variables, pooled.parts[b].variables
    if max([*here.n_levels, *there.n_levels], default=0) <= 2:
        return
    n = pooled.overlap(a, b)
    left = np.stack(pooled.sums(a, b, "value", "square"))
    right = np.stack([found.T for found in pooled.sums(b, a, "value", "square")])
    for i, count in enumerate(here.n_levels):
        for j, other in enumerate(there.n_levels):
            if (a == b and i >= j) or max(count, other) <= 2:
                continue
            if count and other:
                measure, value = "cramers v", _association(pooled, a, i, b, j, n[i, j])
            elif other:
                measure, value = "eta", _ratio(pooled, a, i, b, j, (*left[:, i, j],), n[i, j])
            else:
                measure, value = "eta", _ratio(pooled, b, j, a, i, (*right[:, i, j],), n[i, j])
            yield *_pair(pooled, a, i, b, j), measure, value, np.nan, np.nan, n[i, j]


def _association(pooled: Pooled, a: int, i: int, b: int, j: int, n: float) -> float:
    rows, columns = pooled.levels(a, i, b), pooled.levels(b, j, a)
    if not (len(rows) and len(columns)):
        return float("nan")
    table = np.zeros((len(rows) + 1, len(columns) + 1))
    table[:-1, :-1] = pooled.products(a, b, rows, columns)
    # Levels that are not told of are what is left, together.
    table[:-1, -1] = pooled.over(a, rows, b, j) - table[:-1, :-1].sum(axis=1)
    table[-1, :-1] = pooled.over(b, columns, a, i) - table[:-1, :-1].sum(axis=0)
    table[-1, -1] = n - table.sum()
    return cramers_v(np.rint(table))


def _ratio(
    pooled: Pooled, a: int, i: int, b: int, j: int, total: tuple[float, float], n: float
) -> float:
    """Return eta of variable i of numbers, whose sum and squares are given, by levels of j."""
    part, levels = pooled.parts[a], pooled.levels(b, j, a)
    value = part.columns("value")[[i]]
    told = pooled.values_told(a, "value", b)[i] and pooled.squares_told(a, "square", b)[i, j]
    if not (len(levels) and told):
        return float("nan")
    sums, counts = pooled.products(a, b, value, levels)[0], pooled.over(b, levels, a, i)
    counts = np.append(counts, n - counts.sum())
    return correlation_ratio(np.rint(counts), np.append(sums, total[0] - sums.sum()), total[1])


def _gaps(pooled: Pooled, a: int, b: int) -> Iterator[_Line]:
    """Return correlations of which cells are missing, over the rows that both parties hold."""
    of_a, of_b = pooled.parts[a].columns("observed"), pooled.parts[b].columns("observed")
    if (of_a < 0).all() or (of_b < 0).all():
        return
    n = float(pooled.moments.n_rows[a, b])
    both = pooled.products(a, b, of_a, of_b)
    left, right = pooled.parts[a].sums[b, of_a] / n, pooled.parts[b].sums[a, of_b] / n
    told = pooled.told(a, of_a, b)[:, None] & pooled.told(b, of_b, a)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt(np.outer(left * (1.0 - left), right * (1.0 - right)))
        r = np.where(told, (both / n - np.outer(left, right)) / spread, np.nan)
    low, high = interval(r, np.array(n), False)
    for i, j in np.argwhere(np.isfinite(r)).tolist():
        if a < b or i < j:
            yield *_pair(pooled, a, i, b, j), "gaps", r[i, j], low[i, j], high[i, j], n


def _pair(pooled: Pooled, a: int, i: int, b: int, j: int) -> _Line:
    here, there = pooled.parts[a], pooled.parts[b]
    return here.party, here.variables.names[i], there.party, there.variables.names[j]


def summaries(pooled: Pooled) -> pd.DataFrame:
    """Return what is told of each variable: kind, rows, share missing, mean, standard deviation."""
    lines = []
    for a, part in enumerate(pooled.parts):
        made, n_rows = part.variables, float(pooled.moments.n_rows[a, a])
        value, observed = part.columns("value"), part.columns("observed")
        told = pooled.values_told(a, "value", a)
        for i, name in enumerate(made.names):
            whole = observed[i] < 0 or not pooled.told(a, observed[[i]], a)[0]
            n = n_rows if whole else round(float(part.sums[a, observed[i]]))
            mean = spread = np.nan
            if told[i] and n > 1:
                sums, squares = part.sums[a, value[i]], part.squares[a, value[i]]
                mean = made.center[i] + made.unit[i] * sums / n
                spread = made.unit[i] * np.sqrt(max(squares - sums**2 / n, 0.0) / (n - 1))
            missing = np.nan if made.filled[i] else 1.0 - n / n_rows
            n_told = len(pooled.levels(a, i, a))  # The rest of them count as one
            levels = n_told + (n_told < made.n_levels[i]) if made.n_levels[i] else np.nan
            lines.append((part.party, name, made.kinds[i], int(n), missing, levels, mean, spread))
    names = ["party", "variable", "kind", "n", "missing", "levels", "mean", "std"]
    frame = pd.DataFrame(lines, columns=names).astype({"levels": "Int64"})
    return frame.set_index(["party", "variable"])


def inflation(pooled: Pooled) -> dict[tuple[str, str], float]:
    """Return variance inflation factors of numbers and flags, by party and variable.

    The diagonal of the inverse of their correlations (Belsley, Kuh and Welsch, 1980, Section 3.2).
    Infinite where a variable follows from the others. Of correlations that are not known, or do not
    fit together as those of different rows may not, there are none.
    """
    names = [(part.party, name) for part in pooled.parts for name in part.variables.names]
    k = len(pooled.parts)
    r = np.block([[correlations(pooled, a, b, "value")[0] for b in range(k)] for a in range(k)])
    used = np.isfinite(np.diag(r)) & (np.isfinite(r).sum(axis=0) > 1)
    used &= np.isfinite(r[:, used]).all(axis=1)
    if used.sum() < 2:
        return {}
    r = r[np.ix_(used, used)]
    values, vectors = np.linalg.eigh(r)
    if values.min() < -1e-9 * len(r):
        return {}
    kept = values > 1e-10 * len(r)
    factors = (vectors[:, kept] ** 2 / values[kept]).sum(axis=1)
    factors[(vectors[:, ~kept] ** 2).sum(axis=1) > 1e-6] = np.inf
    return dict(zip((names[i] for i in np.flatnonzero(used)), factors.tolist(), strict=True))


BANDS = ((0.02, "none"), (0.1, "weak"), (0.3, "medium"), (0.5, "strong"), (np.inf, "suspicious"))
"""How Siddiqi (2006, chapter 6) reads information values: each is below the bound."""


def band(value: float) -> str:
    """Return the word for an information value, "" where there is none."""
    return "" if np.isnan(value) else next(word for bound, word in BANDS if value < bound)


def by_bin(opened: Mapping[str, PartyBins], labels: Array, middle: float) -> pd.DataFrame:
    """Return what was opened of each bin; index (party, variable, bin).

    With labels of two values, of which the larger one is the event: ``events``, ``rate``, ``woe``
    and ``iv``; with others the ``mean`` label. `labels` are finite;
    sums were opened of labels less `middle`.
    """
    low, high = float(labels.min()), float(labels.max())
    two = len(np.unique(labels)) == 2
    frames = {}
    for party, found in opened.items():
        frame = found.frame.rename_axis(["variable", "bin"])
        if two:
            frame["events"] = ((frame["sum"] - low * frame["n"]) / (high - low)).round()
            frame["rate"] = frame["events"] / frame["n"]
            for name, part in (("woe", weight_of_evidence), ("iv", information_value)):
                values = [
                    part(own["n"].to_numpy(), own["events"].to_numpy())
                    for _, own in frame.groupby(level="variable", sort=False)
                ]
                frame[name] = np.concatenate(values) if values else []
            frame.loc[frame["n"].isna(), ["woe", "iv"]] = np.nan
        else:
            frame["sum"] += middle * frame["n"]
            frame["mean"] = frame["sum"] / frame["n"]
        frames[party] = frame
    out = pd.concat(frames, names=["party"])
    first = ["n", "events", "rate", "woe", "iv"] if two else ["n", "sum", "mean"]
    return out[[*first, "unlabelled"]]


def by_variable(bins: pd.DataFrame, squares: Mapping[str, float], middle: float) -> pd.DataFrame:
    """Return information value (or eta of the labels by bin) and drift; index (party, variable).

    ``psi`` is the population stability index of the rows without a label against those with one.
    `squares`: by party, the sum of squares of labels less `middle` over its rows.
    """
    lines = {}
    for (party, name), own in bins.groupby(level=["party", "variable"], sort=False):
        n, free = own["n"].to_numpy(dtype=float), own["unlabelled"].to_numpy(dtype=float)
        known = np.isfinite(n).all()
        line: dict[str, object] = {"bins": len(own)}
        if "iv" in own:
            value = float(own["iv"].sum()) if known else float("nan")
            line |= {"iv": value, "band": band(value)}
        else:
            sums = n * (own["mean"].to_numpy(dtype=float) - middle)
            line["eta"] = correlation_ratio(n, sums, squares[str(party)]) if known else np.nan
        drift = known and np.isfinite(free).all() and free.sum() > 0
        line["psi"] = stability_index(n, free) if drift else np.nan
        lines[party, name] = line
    index = pd.MultiIndex.from_tuples(list(lines), names=["party", "variable"])
    frame = pd.DataFrame(list(lines.values()), index=index)
    by = "iv" if "iv" in frame else "eta"
    return frame.sort_values(by, ascending=False, kind="stable")
