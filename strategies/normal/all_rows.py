"""Means and covariances for all rows, where parties lack rows by what others observe.

Of two parties k and l the rows fall into those that both hold, and those that one holds alone. If
blocks are missing at random, the joint likelihood of these three sets has its maximum at what holds
for all of these rows, not for those that happen to be shared (Little and Rubin, 2019, chapter 7).
RowSums over own and over shared rows are all that it takes. With x_l of a row that l lacks,

    E[x_l | x_k] = mu_l + F (x_k - mu_k),  F = Sigma_lk Sigma_kk^-1,

added to the sums of l, and so in turn (expectation and maximisation). Of several other parties each
gives means and covariances of a party's columns: their mean is taken, weighted by how many rows
each one adds, times how far its columns differ there by chi-squared per degree of freedom. What a
third party's columns tell of who lacks rows is made up for only so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.pairs import PairMoments
from strategies.normal.shared import SharedMoments

_RIDGE = 1e-9
_ROUNDS = 200
_NEAR = 1e-4
"""Expectation and maximisation end with steps of so much of a standard error."""


@dataclass(frozen=True)
class RowSums:
    """Of a set of rows: how many there are, and sums of columns and of products of two."""

    n: float
    sums: Array  # (n_columns,)
    products: Array  # (n_columns, n_columns)

    def about(self, mean: Array) -> "RowSums":
        """Return the same of columns less `mean`."""
        across = np.outer(self.sums, mean)
        products = self.products - across - across.T + self.n * np.outer(mean, mean)
        return RowSums(self.n, self.sums - self.n * mean, products)

    def less(self, others: "RowSums") -> "RowSums":
        """Return those of the rows that are not among `others`."""
        return RowSums(self.n - others.n, self.sums - others.sums, self.products - others.products)

    def at(self, columns: Indices) -> "RowSums":
        """Return those of some columns."""
        return RowSums(self.n, self.sums[columns], self.products[np.ix_(columns, columns)])


def differ(first: RowSums, second: RowSums) -> tuple[float, int]:
    """Return chi-squared and degrees of freedom of the difference of two sets' means."""
    gap = first.sums / first.n - second.sums / second.n
    within = sum(part.about(part.sums / part.n).products for part in (first, second))
    within = np.asarray(within) / (first.n + second.n)
    size = np.sqrt(np.maximum(np.diag(within), 1e-300))
    values, vectors = np.linalg.eigh(within / np.outer(size, size))
    kept = values > _RIDGE * max(float(values.max(initial=0.0)), 1.0)
    along = (vectors[:, kept].T @ (gap / size)) ** 2 / values[kept]
    return float(along.sum() / (1.0 / first.n + 1.0 / second.n)), int(kept.sum())


def pair_maximum(both: RowSums, first: RowSums, second: RowSums) -> tuple[Array, Array]:
    """Return mean and covariance of two parties' columns, by maximum likelihood.

    Parameters
    ----------
    both
        Over the rows that both hold, of all columns.
    first, second
        Over the rows that one holds alone, of its columns.
    """
    p, n = len(first.sums), both.n + first.n + second.n
    here, there = slice(0, p), slice(p, len(both.sums))
    mean = both.sums / both.n
    covariance = both.about(mean).products / both.n
    for _ in range(_ROUNDS):
        total, products = both.about(mean).sums, both.about(mean).products
        for alone, own, other in ((first, here, there), (second, there, here)):
            if not alone.n:
                continue
            seen = covariance[own, own] + _RIDGE * np.diag(np.diag(covariance[own, own]))
            slope = np.linalg.solve(seen, covariance[own, other]).T
            part = alone.about(mean[own])
            left = covariance[other, other] - slope @ covariance[own, other]
            total[own] += part.sums
            total[other] += slope @ part.sums
            products[own, own] += part.products
            products[other, own] += slope @ part.products
            products[own, other] += part.products @ slope.T
            products[other, other] += slope @ part.products @ slope.T + alone.n * left
        step = total / n
        new = products / n - np.outer(step, step)
        size = np.sqrt(np.maximum(np.diag(new), 1e-300))
        moved = max(
            np.abs(step / size).max(), np.abs((new - covariance) / np.outer(size, size)).max()
        )
        mean, covariance = mean + step, new
        if moved * np.sqrt(n) < _NEAR:
            break
    return mean, covariance


@dataclass(frozen=True)
class LackedRows:
    """What is known of the columns over rows that some parties hold and others lack."""

    moments: PairMoments
    shared: SharedMoments
    slices: Sequence[slice]

    def of(self, held: Flags, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return mean and covariance over rows that the same parties hold, as far as it is known.

        Those of a party's columns are over the rows that each of the others lacks, on average;
        covariances of two parties' columns follow the standard deviations.

        Shapes: held (n_parties,); mean (n_columns,), covariance (n_columns, n_columns): over all
        rows, which stand where nothing is known; returns the same.
        """
        mean, known = mean.copy(), covariance.copy()
        change = np.ones(len(mean))
        for k in np.flatnonzero(held).tolist():
            own = self.slices[k]
            rows = [self._lacked(k, g) for g in np.flatnonzero(~held).tolist()]
            parts = [part for part in rows if part is not None]
            if not parts:
                continue
            means = [part.sums / part.n for part in parts]
            mean[own] = np.mean(means, axis=0)
            known[own, own] = np.mean(
                [p.about(m).products / p.n for p, m in zip(parts, means, strict=True)], axis=0
            )
            before = np.diag(covariance)[own]
            ratio = np.maximum(np.diag(known)[own], 0.0) / np.where(before > 0.0, before, 1.0)
            change[own] = np.sqrt(ratio)
        whole = covariance * np.outer(change, change)
        for own in self.slices:
            whole[own, own] = known[own, own]
        return mean, whole

    def _lacked(self, k: int, g: int) -> RowSums | None:
        """Return sums of k's columns over the rows that g lacks; None where they are not known."""
        own, moments = self.slices[k], self.moments
        n = float(moments.n_rows[k, k] - moments.n_rows[k, g])
        if not n or (moments.withheld[own] | moments.apart[own, g]).any():
            return None
        whole = RowSums(float(moments.n_rows[k, k]), moments.sums[own], moments.products[own, own])
        both = RowSums(
            float(moments.n_rows[k, g]), self.shared.sums[k, g], self.shared.products[k, g]
        )
        return whole.less(both)


class _Changes:
    """What others' columns change of one party's mean and covariance, in its own units."""

    def __init__(self, own: RowSums) -> None:
        self._n, self._mean = max(own.n, 1.0), own.sums / max(own.n, 1.0)
        covariance = own.about(self._mean).products / self._n
        self.varies: Flags = np.diag(covariance) > 0.0
        self._size = np.sqrt(np.where(self.varies, np.diag(covariance), 1.0))
        self._correlation = covariance / np.outer(self._size, self._size)
        n_columns = len(self._mean)
        self._changes = np.zeros(n_columns), np.zeros(n_columns), np.zeros((n_columns,) * 2)
        self._weights = np.zeros(n_columns), np.zeros(n_columns), np.zeros((n_columns,) * 2)

    def add(self, columns: Indices, mean: Array, covariance: Array, weight: float) -> None:
        """Count what a pair's maximum says of some of the columns."""
        own, square = self._size[columns], np.ix_(columns, columns)
        size = np.sqrt(np.diag(covariance))
        correlation = covariance / np.outer(size, size)
        found = (
            (mean - self._mean[columns]) / own,
            np.log(size / own),
            correlation - self._correlation[square],
        )
        places = columns, columns, square
        at: Any
        for total, over, part, at in zip(self._changes, self._weights, found, places, strict=True):
            total[at] += weight * part
            over[at] += weight

    def made(self) -> tuple[Array, Array, Array]:
        """Return mean, standard deviations and correlations, changes rounded to own errors."""
        grid = self._n**-0.5
        of_mean, of_size, of_correlation = (
            np.rint(total / np.where(over > 0.0, over, 1.0) / grid) * grid
            for total, over in zip(self._changes, self._weights, strict=True)
        )
        mean = self._mean + of_mean * self._size
        return mean, self._size * np.exp(of_size), self._correlation + of_correlation


def over_all_rows(
    moments: PairMoments, shared: SharedMoments, slices: Sequence[slice]
) -> tuple[Array, Array]:
    """Estimate means and covariances for all rows from sums over own and over shared rows.

    What changes of a party's own means and covariances, by what others' columns are in rows that
    it lacks, is rounded to the errors of its own: to the party exact changes would be equations of
    others' columns.

    Shapes: returns (n_columns,), and (n_columns, n_columns).
    """
    known = ~(moments.apart | moments.withheld[:, None])
    own = [
        RowSums(float(moments.n_rows[k, k]), moments.sums[at], moments.products[at, at])
        for k, at in enumerate(slices)
    ]
    changes = [_Changes(part) for part in own]
    correlation = np.zeros_like(moments.products)
    for pair in combinations(range(len(slices)), 2):
        columns = {
            k: np.flatnonzero(known[slices[k], j] & changes[k].varies)
            for k, j in (pair, pair[::-1])
        }
        if not all(map(len, columns.values())):
            continue
        at = [slices[k].start + columns[k] for k in pair]
        n, across = float(moments.n_rows[pair]), moments.products[np.ix_(*at)]
        inside = {
            k: RowSums(n, shared.sums[k, j], shared.products[k, j]).at(columns[k])
            for k, j in (pair, pair[::-1])
        }
        alone = {k: own[k].at(columns[k]).less(inside[k]) for k in pair}
        first, second = (inside[k] for k in pair)
        both = RowSums(
            n,
            np.concatenate([first.sums, second.sums]),
            np.block([[first.products, across], [across.T, second.products]]),
        )
        mean, covariance = pair_maximum(both, *alone.values())
        size, split = np.sqrt(np.diag(covariance)), len(at[0])
        correlation[np.ix_(*at)] = (covariance / np.outer(size, size))[:split, split:]
        places = dict(zip(pair, (slice(0, split), slice(split, None)), strict=True))
        for k, j in (pair, pair[::-1]):
            if alone[j].n:
                chi2, freedom = differ(inside[j], alone[j])
                weight, here = alone[j].n * chi2 / max(freedom, 1), places[k]
                changes[k].add(columns[k], mean[here], covariance[here, here], weight)
    correlation += correlation.T
    mean, size = np.zeros(len(known)), np.ones(len(known))
    for own_place, change in zip(slices, changes, strict=True):
        mean[own_place], size[own_place], correlation[own_place, own_place] = change.made()
    mean[moments.withheld] = 0.0
    return mean, correlation * np.outer(size, size)
