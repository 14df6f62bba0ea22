"""Sums over rows with the same columns observed, and the normal likelihood that they determine.

With mean mu and covariance Sigma of all columns, a pattern of n rows with sum s and matrix of
second moments S over its observed columns o contributes, with W = inverse of Sigma_oo and
A = S - s mu' - mu s' + n mu mu' (Little and Rubin, 2019, section 11.2),

    l = -(n log|Sigma_oo| + tr(W A) + n |o| log 2 pi) / 2.

So the sums are sufficient: whoever has them needs no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import DataError


@dataclass(frozen=True)
class Pattern:
    """Moments of the rows of one pattern."""

    observed: Indices  # (n_observed,): numbers of the observed columns, ascending
    n_rows: float  # Number of rows
    sums: Array  # (n_observed,): sum of each observed column
    products: Array  # (n_observed, n_observed): sums of products of two of them

    def about(self, mean: Array) -> tuple[Array, Array]:
        """Return sums and products of the rows less a mean of all columns."""
        own = mean[self.observed]
        shift = np.outer(self.sums, own)
        centred = self.products - shift - shift.T + self.n_rows * np.outer(own, own)
        return self.sums - self.n_rows * own, centred

    def less(self, mean: Array) -> "Pattern":
        """Return the moments of the rows less a mean of all columns."""
        return Pattern(self.observed, self.n_rows, *self.about(mean))


@dataclass(frozen=True)
class Patterns:
    """The moments of all patterns of a table."""

    n_columns: int  # Columns of all parties and the label
    patterns: Sequence[Pattern]  # Each with at least one row and one column

    @classmethod
    def of(cls, rows: Array) -> "Patterns":
        """Return the moments of a table, array of shape (n_rows, n_columns) with NaN = missing."""
        seen = ~np.isnan(rows)
        kinds, member = np.unique(seen, axis=0, return_inverse=True)
        found = []
        for k, kind in enumerate(kinds):
            observed = np.flatnonzero(kind)
            if len(observed):
                own = rows[member.reshape(-1) == k][:, observed]
                found.append(Pattern(observed, float(len(own)), own.sum(axis=0), own.T @ own))
        return cls(rows.shape[1], found)

    def standardised(self, mean: Array, unit: Array) -> "Patterns":
        """Return the moments of the columns less a mean, in other units.

        Shapes: mean, unit (n_columns,).
        """
        found = []
        for p in self.patterns:
            sums, products = p.about(mean)
            own = unit[p.observed]
            scaled = products / np.outer(own, own)
            found.append(Pattern(p.observed, p.n_rows, sums / own, scaled))
        return Patterns(self.n_columns, found)

    def total(self) -> "Pattern":
        """Return the sums over all patterns, a column counting as zero where it is not observed."""
        d, n = self.n_columns, 0.0
        sums, products = np.zeros(d), np.zeros((d, d))
        for p in self.patterns:
            n += p.n_rows
            sums[p.observed] += p.sums
            products[np.ix_(p.observed, p.observed)] += p.products
        return Pattern(np.arange(d), n, sums, products)

    def joint_rows(self) -> Array:
        """Count the rows in which two columns are observed, shape (n_columns, n_columns)."""
        counts = np.zeros((self.n_columns, self.n_columns))
        for p in self.patterns:
            counts[np.ix_(p.observed, p.observed)] += p.n_rows
        return counts

    def available(self) -> tuple[Array, Array]:
        """Return mean and covariance of the available rows of each column and pair; a start."""
        counts = self.joint_rows()
        sums, products = np.zeros(self.n_columns), np.zeros_like(counts)
        for p in self.patterns:
            sums[p.observed] += p.sums
        mean = sums / np.maximum(np.diag(counts), 1.0)
        for p in self.patterns:
            products[np.ix_(p.observed, p.observed)] += p.about(mean)[1]
        return mean, products / np.maximum(counts, 1.0)

    def log_likelihood(self, mean: Array, covariance: Array) -> float:
        """Return the log likelihood; minus infinity where the covariance is not positive."""
        total = 0.0
        for p in self.patterns:
            own = covariance[np.ix_(p.observed, p.observed)]
            try:
                root = np.linalg.cholesky(own)
            except np.linalg.LinAlgError:
                return -np.inf
            half = np.linalg.solve(root, p.about(mean)[1])
            trace = np.trace(np.linalg.solve(root, half.T))
            total -= p.n_rows * np.log(np.diag(root)).sum() + trace / 2.0
            total -= p.n_rows * len(p.observed) * np.log(2.0 * np.pi) / 2.0
        return float(total)

    def score(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return the gradient of the log likelihood.

        Shapes: returns (n_columns,): with respect to the mean; returns (n_columns, n_columns): G,
        symmetric: a change D of the covariance changes the likelihood by tr(G D).
        """
        by_mean, by_covariance = np.zeros_like(mean), np.zeros_like(covariance)
        for p in self.patterns:
            inverse = _inverse(covariance[np.ix_(p.observed, p.observed)])
            rest, centred = p.about(mean)
            by_mean[p.observed] += inverse @ rest
            gap = inverse @ centred @ inverse - p.n_rows * inverse
            by_covariance[np.ix_(p.observed, p.observed)] += gap / 2.0
        return by_mean, by_covariance

    def information(
        self, mean: Array, covariance: Array, observed: bool
    ) -> tuple[Array, Array, Array]:
        """Return the information on mean and covariance (elements of its full matrix).

        Shapes: mean (n_columns,); covariance (n_columns, n_columns); returns (n_columns,
        n_columns): on the mean; returns (n_columns, n_columns ** 2): between mean and covariance;
        zero if not `observed`; returns (n_columns ** 2, n_columns ** 2): on the covariance.
        """
        d = self.n_columns
        on_mean, cross = np.zeros((d, d)), np.zeros((d, d, d))
        on_covariance = np.zeros((d, d, d, d))
        for p in self.patterns:
            o = p.observed
            inverse = _inverse(covariance[np.ix_(o, o)])
            on_mean[np.ix_(o, o)] += p.n_rows * inverse
            weight = p.n_rows * inverse / 2.0
            if observed:
                rest, centred = p.about(mean)
                spread = inverse @ centred @ inverse
                weight = spread - weight
                pull = inverse @ rest
                cross[np.ix_(o, o, o)] += inverse[:, :, None] * pull[None, None, :]
            # tr(W E weight F), for E and F at elements (i, j) and (k, l).
            block = inverse[:, None, :, None] * weight[None, :, None, :]
            on_covariance[np.ix_(o, o, o, o)] += (block + block.transpose(1, 0, 3, 2)) / 2.0
        cross = (cross + cross.transpose(0, 2, 1)) / 2.0
        flat = on_covariance.reshape(d * d, d * d)
        return on_mean, cross.reshape(d, d * d), (flat + flat.T) / 2.0


def _inverse(matrix: Array) -> Array:
    try:
        found = np.linalg.inv(matrix)
    except np.linalg.LinAlgError as error:
        raise DataError(
            "columns that are observed together are linear functions of each other, or the label "
            "is one of the columns, without any noise: the likelihood has no maximum. Leave out "
            "such columns"
        ) from error
    return np.asarray((found + found.T) / 2.0, dtype=np.float64)
