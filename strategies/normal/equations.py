"""The joint normal model: covariance from pairwise moments, and conditional means of any columns.

Columns of all parties are ``x ~ N(mu, Sigma)``. Of a row that holds the columns o, the others m are

    E[x_m | x_o] = mu_m + F (x_o - mu_o),  F = Sigma_mo Sigma_oo^-1,
    Cov[x_m | x_o] = C = Sigma_mm - F Sigma_om

(Anderson, 2003, section 2.5). Parties that help may lack cells of the row, and show f in place of
x_o (`filling`). So F and C are of x_m given f, on average over the rows with the same parties:

    F = Sigma_mo T' (T Sigma_oo T' + D)^-1,   C = Sigma_mm - F T Sigma_om

With Q the inverse of ``T Sigma T' + D`` over all columns, ``(...)^-1 = Q_oo - Q_om Q_mm^-1 Q_mo``:
where few parties lack a row, m is short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.linalg import block_diag

from flwr_vertical.arrays import Array, Flags, Floats32, Indices
from flwr_vertical.products.pairs import PairMoments, unknown_products
from strategies.linear.moments.covariances import FullCovariance
from strategies.normal.all_rows import over_all_rows
from strategies.normal.shared import SharedMoments

_FLOOR = 1e-3
"""Least eigenvalue of a correlation matrix, at least: those of pairs may be negative."""

STEPS = 4
"""A mean is told to a unit of a quarter of what is left of its column's standard deviation."""

_SURE = 0.04
"""Intervals are given where unknown covariances change the variance by so much of it at most."""

_RANGE = 8.0
"""A unit is a quarter of an eighth of the column's standard deviation at least."""


@dataclass(frozen=True)
class JointModel:
    """A normal distribution of all parties' columns."""

    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns): positive definite
    shrinkage: float  # Weight of the diagonal in it
    n_rows: float  # Of how many rows a covariance is, on (harmonic) average
    n_own: float  # Rows of a column, on average
    apart: Flags  # (n_columns, n_parties): whose covariance with a party's columns is not known
    withheld: Flags  # (n_columns,): columns of which nothing is known
    # (n_columns, n_parties): which columns do not complete a party's rows; None: all do
    unshown: Flags | None = None
    # How many numbers of a row each party tells where it alone helps; None: half of its columns
    n_alone: Sequence[int] | None = None


@dataclass(frozen=True)
class Shown:
    """What parties show of their columns where cells are missing: T and D, block-diagonal."""

    shown: Array  # (n_columns, n_columns)
    spread: Array  # (n_columns, n_columns)

    @classmethod
    def of(cls, parts: Sequence[tuple[Array, Array]]) -> "Shown":
        """Join the parties' matrices."""
        shown, spread = (block_diag(*(part[i] for part in parts)) for i in (0, 1))
        return cls(shown, spread)

    def covariance(self, covariance: Array) -> Array:
        """Return the covariance of what is shown, of that of the columns."""
        return np.asarray(self.shown @ covariance @ self.shown.T + self.spread)

    def undone(self, covariance: Array) -> Array:
        """Return the covariance of the columns, of that of what is shown."""
        inverse = np.linalg.inv(self.shown)
        return np.asarray(inverse @ (covariance - self.spread) @ inverse.T)


def fit_model(
    moments: PairMoments,
    slices: Sequence[slice],
    shown: Shown | None = None,
    shared: SharedMoments | None = None,
) -> JointModel:
    """Estimate the model from sums over own rows and over shared rows.

    Sums are of columns whose missing cells their party filled, which weakens correlations; that is
    undone first (`Shown.undone`).

    Means and covariances are for all rows (`all_rows`); without `shared`, covariances of two
    parties are over the rows that both hold, about the means of each one's own rows. Correlations
    of different parties are rounded to ``n^-1/2`` of the rows they are over, the size of their
    errors: exact ones, which coefficients tell, would be equations of another party's columns for
    whoever knows its own. Where nothing is told of a pair, its element of the inverse is zero
    (Dempster, 1972). Eigenvalues of the correlation matrix are brought up to what rounding adds,
    ``(p / 12 n)^1/2``; then it is shrunk towards the identity with the weight of Chen, Wiesel,
    Eldar and Hero (2010, Eq. 23).
    """
    party = np.repeat(np.arange(len(slices)), [s.stop - s.start for s in slices])
    n_own = np.maximum(np.diag(moments.n_rows), 1)[party]
    n_both = moments.n_rows[np.ix_(party, party)]
    mean = np.where(moments.withheld, 0.0, moments.sums / n_own)
    covariance = moments.products / np.maximum(n_both, 1) - np.outer(mean, mean)
    if shared is not None:
        mean, covariance = over_all_rows(moments, shared, slices)
    unknown = unknown_products(party, moments.apart)
    unknown |= moments.withheld | moments.withheld[:, None]
    unknown &= ~np.eye(len(mean), dtype=bool)
    if shown is not None:
        covariance = shown.undone(covariance)
    covariance[unknown] = 0.0
    variance = np.diag(covariance)
    usable = (variance > 0) & ~moments.withheld
    size = np.sqrt(np.where(usable, variance, 1.0))
    correlation = covariance / np.outer(size, size)
    correlation[~usable], correlation[:, ~usable] = 0.0, 0.0
    np.fill_diagonal(correlation, 1.0)
    grid = 1.0 / np.sqrt(np.maximum(n_both, 1))
    rounded = np.rint(correlation / grid) * grid
    correlation = np.where(party[:, None] == party, correlation, rounded)
    values, vectors = np.linalg.eigh(correlation)
    floor = max(_FLOOR, float(np.sqrt(len(mean) / (12.0 * np.maximum(n_both, 1).mean()))))
    correlation = (vectors * np.maximum(values, floor)) @ vectors.T
    scale = np.sqrt(np.diag(correlation))
    correlation /= np.outer(scale, scale)
    known = n_both[~unknown & ~np.eye(len(mean), dtype=bool)]
    n_rows = float(1.0 / np.mean(1.0 / np.maximum(known, 1)) if known.size else n_own.mean())
    told = correlation[np.ix_(usable, usable)]
    weight = shrinkage_weight(told, n_rows) if len(told) else 1.0
    correlation = (1.0 - weight) * correlation + weight * np.eye(len(mean))
    if unknown.any():
        free = FullCovariance(~unknown)
        correlation = free.covariance(free.nearest(correlation))
    covariance = correlation * np.outer(size, size)
    counts = n_rows, float(n_own.mean())
    return JointModel(mean, covariance, weight, *counts, moments.apart, moments.withheld)


def shrinkage_weight(correlation: Array, n_rows: float) -> float:
    """Return the weight of the identity that approximates the best (Chen et al., 2010, Eq. 23)."""
    p = len(correlation)
    of_square, square = float((correlation**2).sum()), float(p**2)  # tr(S^2), tr(S)^2
    above = (1.0 - 2.0 / p) * of_square + square
    below = (n_rows + 1.0 - 2.0 / p) * (of_square - square / p)
    return float(min(1.0, above / below)) if below > 0.0 else 1.0


@dataclass(frozen=True)
class Conditionals:
    """Of rows of one pattern: the mean of a party's columns given the others', and what is left."""

    # By helping party, (n_helper, n_recipient): what its columns are multiplied with
    coefficients: Mapping[int, Array]
    offset: Array  # (n_recipient,): what is added
    unit: Array  # (n_recipient,): to which means are told
    # (n_recipient, n_recipient): covariance about the mean that is told, rounding included
    residual: Array
    # (n_recipient, n_wanted): of noise that all recipients of a row share; times its transpose, the
    # residual. None if no draws are wanted
    factor: Floats32 | None
    columns: Indices  # (n_wanted,): which columns of all parties these are, in their order
    sure: Flags  # (n_recipient,): whether the residual follows from what is known


class Conditioner:
    """Gives some parties' columns from those of the parties that help, with noise if it is wanted.

    By default these show all of their columns in the rows that are completed.
    """

    def __init__(
        self,
        model: JointModel,
        slices: Sequence[slice],
        shown: Shown | None = None,
        draws: bool = False,
    ) -> None:
        self._model, self._slices, self._draws = model, slices, draws
        none = np.zeros_like(model.apart)
        self._unshown: Flags = none if model.unshown is None else model.unshown
        if shown is None:
            size = len(model.mean)
            shown = Shown(np.eye(size), np.zeros((size, size)))
        self._across = np.asarray(shown.shown @ model.covariance)
        self._seen = shown.covariance(model.covariance)
        self._inverse = np.asarray(np.linalg.inv(self._seen), dtype=np.float64)
        self._size = np.sqrt(np.diag(model.covariance))

    def given(self, helpers: Sequence[int], recipients: Sequence[int]) -> dict[int, Conditionals]:
        """Return, by recipient, the mean and what is left.

        A party that helps alone is not asked for more numbers than `JointModel.n_alone`. Then
        coefficients are those of the directions that tell most of the recipient's columns, in
        standard deviations: the largest singular values of ``F``.

        Shapes: helpers, recipients: numbers of parties, of which none is both.
        """
        model, slices = self._model, self._slices
        given, wanted = _columns(helpers, slices), _columns(recipients, slices)
        across = self._across[np.ix_(given, wanted)]
        seen = self._seen[np.ix_(given, given)]
        matrix, places = self._matrix(given, across), _places(recipients, slices)
        for k, own in places.items():
            if self._unshown[given, k].any():
                shown = np.flatnonzero(~self._unshown[given, k])
                matrix[own] = 0.0
                matrix[own, shown] = self._matrix(given[shown], across[shown, own])

        def error(matrix: Array) -> Array:
            """Return the covariance about means by other coefficients than F, too."""
            twice = matrix @ across
            whole = model.covariance[np.ix_(wanted, wanted)] + matrix @ seen @ matrix.T
            return np.asarray(whole - twice - twice.T)

        residual = error(matrix)
        # Errors of F: twice, since what fits own rows best leaves too little of them, too. Where
        # covariances are over different rows, their errors do not cancel in what F explains.
        errors = 2.0 * (1.0 - model.shrinkage) ** 2 * len(given) / model.n_rows
        differ = 2.0 * max(0.0, 1.0 - model.n_rows / model.n_own)
        residual = residual + errors * (residual + differ * (matrix @ across))
        starts = np.cumsum([0, *(slices[k].stop - slices[k].start for k in helpers)]).tolist()
        if len(helpers) == 1:
            whole = matrix.copy()
            most = len(given) // 2 if model.n_alone is None else model.n_alone[helpers[0]]
            for k, own in places.items():
                shown = np.flatnonzero(~self._unshown[given, k])
                size = self._size[slices[k]][:, None]  # else directions go by the columns' units
                of_shown = matrix[own, shown] / size, seen[np.ix_(shown, shown)]
                matrix[own, shown] = size * _of_low_rank(*of_shown, most)
            residual += error(matrix) - error(whole)
        spread = np.sqrt(np.maximum(np.diag(residual), 0.0))
        unit = np.maximum(spread, self._size[wanted] / _RANGE) / STEPS
        unit = np.where(unit > 0, unit, 1.0)
        # Each helper rounds its term to a whole unit.
        rounding = len(helpers) * unit**2 / 12.0
        residual = (residual + residual.T) / 2.0 + np.diag(rounding)
        root = _root(residual).astype(np.float32) if self._draws else None
        found = {}
        for k, own in places.items():
            terms = {
                helper: matrix[own, a:b].T
                for helper, a, b in zip(helpers, starts[:-1], starts[1:], strict=True)
            }
            offset = model.mean[slices[k]] - matrix[own] @ model.mean[given]
            left = residual[own, own]
            sure = self._sure(k, terms, np.diag(left))
            factor = None if root is None else root[own]
            found[k] = Conditionals(terms, offset, unit[own], left, factor, wanted, sure)
        return found

    def _matrix(self, given: Indices, across: Array) -> Array:
        """Return F, (n_wanted, n_given)."""
        inverse, n_columns = self._inverse, len(self._inverse)
        if 2 * len(given) <= n_columns:
            seen = self._seen[np.ix_(given, given)]
            return np.asarray(np.linalg.solve(seen, across).T, dtype=np.float64)
        other = np.setdiff1d(np.arange(n_columns), given)
        beside = inverse[np.ix_(given, other)]
        middle = np.linalg.solve(inverse[np.ix_(other, other)], beside.T)
        direct = across.T @ inverse[np.ix_(given, given)]
        return np.asarray(direct - (across.T @ beside) @ middle, dtype=np.float64)

    def _sure(self, recipient: int, terms: Mapping[int, Array], left: Array) -> Flags:
        """Whether covariances that are not known could hardly change what is left.

        The variance of ``x_k - sum of F_l f_l`` has twice the covariance of each two terms, which
        is at most the product of their standard deviations.
        """
        model, slices = self._model, self._slices

        def size(k: int, part: Flags) -> Array:
            """Return the standard deviation of what some columns have in a term."""
            own = slices[k]
            if k == recipient:
                return np.asarray(self._size[own] * part)
            term = terms[k] * part[:, None]
            return np.asarray(np.sqrt((term * (self._seen[own, own] @ term)).sum(axis=0)))

        most = np.zeros(len(left))
        for a, b in combinations([recipient, *terms], 2):
            of_a, of_b = model.apart[slices[a], b], model.apart[slices[b], a]
            if of_a.any():
                most += 2.0 * size(a, of_a) * size(b, np.ones_like(of_b))
            if of_b.any():
                most += 2.0 * size(a, ~of_a) * size(b, of_b)
        return (most <= _SURE * left) & ~model.withheld[slices[recipient]]


def _root(covariance: Array) -> Array:
    """Return the Cholesky factor; where rounding has made an eigenvalue negative, of one near."""
    try:
        return np.asarray(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        near = (vectors * np.maximum(values, 1e-9 * values.max())) @ vectors.T
        return np.asarray(np.linalg.cholesky(near))


def _of_low_rank(matrix: Array, covariance: Array, rank: int) -> Array:
    """Keep the directions of most explained variance.

    Shapes: matrix (n_recipient, n_given); covariance (n_given, n_given): of the given columns.
    """
    root = np.linalg.cholesky(covariance)
    left, values, right = np.linalg.svd(matrix @ root, full_matrices=False)
    if rank >= len(values):
        return matrix
    kept = (left[:, :rank] * values[:rank]) @ right[:rank]
    return np.asarray(np.linalg.solve(root.T, kept.T).T, dtype=np.float64)


def _places(parties: Sequence[int], slices: Sequence[slice]) -> dict[int, slice]:
    """Return where the columns of each party stand among those of all of `parties`."""
    found, start = {}, 0
    for k in sorted(parties):
        stop = start + slices[k].stop - slices[k].start
        found[k], start = slice(start, stop), stop
    return found


def _columns(parties: Sequence[int], slices: Sequence[slice]) -> Indices:
    found = [np.arange(slices[k].start, slices[k].stop) for k in sorted(parties)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
