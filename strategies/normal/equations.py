"""The joint normal model: covariance from pairwise moments, and conditional means of any columns.

Columns of all parties are ``x ~ N(mu, Sigma)``. Of a row that holds the columns o, the others m are

    E[x_m | x_o] = mu_m + F (x_o - mu_o),  F = Sigma_mo Sigma_oo^-1,
    Cov[x_m | x_o] = C = Sigma_mm - F Sigma_om

(Anderson, 2003, section 2.5). With ``P = Sigma^-1``, ``F = -P_mm^-1 P_mo`` and ``C = P_mm^-1``:
where few parties lack a row, m is short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.products.pairs import PairMoments
from strategies.linear.moments.covariances import FullCovariance

_FLOOR = 1e-3
"""Least eigenvalue of a correlation matrix, at least: those of pairs may be negative."""

STEPS = 4
"""A mean is told to a unit of a quarter of what is left of its column's standard deviation."""

_RANGE = 8.0
"""A unit is a quarter of an eighth of the column's standard deviation at least."""


@dataclass(frozen=True)
class JointModel:
    """A normal distribution of all parties' columns."""

    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns): positive definite
    shrinkage: float  # Weight of the diagonal in it


def fit_model(moments: PairMoments, slices: Sequence[slice]) -> JointModel:
    """Estimate the model from sums over own rows and over shared rows.

    Covariances of two parties are over the rows that both hold, about the means of each one's own
    rows. Correlations of different parties are rounded to ``n^-1/2`` of the rows they are over, the
    size of their errors: exact ones, which coefficients tell, would be equations of another party's
    columns for whoever knows its own. Where nothing is told of a pair, its element of the inverse
    is zero (Dempster, 1972). Eigenvalues of the correlation matrix are brought up to what rounding
    adds, ``(p / 12 n)^1/2``; then it is shrunk towards the identity with the weight of Chen,
    Wiesel, Eldar and Hero (2010, Eq. 23).
    """
    party = np.repeat(np.arange(len(slices)), [s.stop - s.start for s in slices])
    n_own = np.maximum(np.diag(moments.n_rows), 1)[party]
    n_both = moments.n_rows[np.ix_(party, party)]
    mean = np.where(moments.withheld, 0.0, moments.sums / n_own)
    covariance = moments.products / np.maximum(n_both, 1) - np.outer(mean, mean)
    unknown = moments.apart[np.ix_(party, party)] | moments.withheld | moments.withheld[:, None]
    unknown &= ~np.eye(len(mean), dtype=bool)
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
    weight = shrinkage_weight(correlation, n_rows)
    correlation = (1.0 - weight) * correlation + weight * np.eye(len(mean))
    if unknown.any():
        free = FullCovariance(~unknown)
        correlation = free.covariance(free.nearest(correlation))
    return JointModel(mean, correlation * np.outer(size, size), weight)


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
    residual: Array  # (n_recipient, n_recipient): covariance given the others' columns


def conditionals(
    model: JointModel,
    precision: Array,
    slices: Sequence[slice],
    helpers: Sequence[int],
    recipients: Sequence[int],
) -> dict[int, Conditionals]:
    """Return what gives some parties' columns from those of the parties that help.

    A party that helps alone is not asked for more numbers than half of its columns, since as many
    numbers as columns would tell them. Then coefficients are those of the directions that tell
    most of the recipient's columns: the largest singular values of ``F`` in units of what is told.

    Shapes: precision (n_columns, n_columns): inverse of the covariance; helpers, recipients:
    numbers of parties, of which none is both.
    """
    given, wanted = _columns(helpers, slices), _columns(recipients, slices)
    covariance = model.covariance
    if 2 * len(given) <= len(covariance):
        across = covariance[np.ix_(given, wanted)]
        matrix = np.linalg.solve(covariance[np.ix_(given, given)], across).T
        residual = covariance[np.ix_(wanted, wanted)] - matrix @ across
    else:
        missing = np.setdiff1d(np.arange(len(covariance)), given)
        at = np.searchsorted(missing, wanted)
        inverse = np.linalg.inv(precision[np.ix_(missing, missing)])
        matrix = -inverse[at] @ precision[np.ix_(missing, given)]
        residual = np.asarray(inverse[np.ix_(at, at)], dtype=np.float64)
    size = np.sqrt(np.diag(covariance))
    starts = np.cumsum([0, *(slices[k].stop - slices[k].start for k in helpers)]).tolist()
    found = {}
    for k in recipients:
        here = slices[k]
        own = np.searchsorted(wanted, np.arange(here.start, here.stop))
        slope = np.asarray(matrix[own], dtype=np.float64)
        left = residual[np.ix_(own, own)]
        if len(helpers) == 1:
            slope, lost = _of_low_rank(slope, covariance[np.ix_(given, given)], len(given) // 2)
            left = left + lost
        spread = np.sqrt(np.maximum(np.diag(left), 0.0))
        unit = np.maximum(spread, size[here] / _RANGE) / STEPS
        parts = {
            helper: slope[:, a:b].T
            for helper, a, b in zip(helpers, starts[:-1], starts[1:], strict=True)
        }
        offset = model.mean[here] - slope @ model.mean[given]
        found[k] = Conditionals(parts, offset, np.where(unit > 0, unit, 1.0), left)
    return found


def _of_low_rank(matrix: Array, covariance: Array, rank: int) -> tuple[Array, Array]:
    """Keep the directions of most explained variance; return the covariance of what is lost, too.

    Shapes: matrix (n_recipient, n_given); covariance (n_given, n_given): of the given columns.
    """
    root = np.linalg.cholesky(covariance)
    left, values, right = np.linalg.svd(matrix @ root, full_matrices=False)
    if rank >= len(values):
        return matrix, np.zeros((len(matrix), len(matrix)))
    kept = (left[:, :rank] * values[:rank]) @ right[:rank]
    lost = (left[:, rank:] * values[rank:] ** 2) @ left[:, rank:].T
    return np.linalg.solve(root.T, kept.T).T, lost


def _columns(parties: Sequence[int], slices: Sequence[slice]) -> Indices:
    found = [np.arange(slices[k].start, slices[k].stop) for k in sorted(parties)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def complete_rows(given: Array, mean: Array, residual: Array) -> Array:
    """Fill rows from their own cells and from what the other parties' columns say.

    Shapes: given (n_rows, n_columns): NaN where a cell is missing; mean (n_rows, n_columns): given
    the others' columns; residual (n_columns, n_columns): covariance about it; returns (n_rows,
    n_columns).
    """
    filled = np.where(np.isnan(given), mean, given)
    patterns, which = np.unique(np.isnan(given), axis=0, return_inverse=True)
    for number, missing in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == number)
        m, o = np.flatnonzero(missing), np.flatnonzero(~missing)
        if len(m) and len(o):
            ridge = 1e-9 * np.trace(residual) / len(residual) * np.eye(len(o))
            slope = np.linalg.solve(residual[np.ix_(o, o)] + ridge, residual[np.ix_(o, m)])
            filled[np.ix_(rows, m)] += (given[np.ix_(rows, o)] - mean[np.ix_(rows, o)]) @ slope
    return filled


_ROUNDS = 10


def fill_own_cells(values: Array) -> Array:
    """Fill the missing cells of one party's columns by its own columns alone.

    Ten steps of expectation and maximisation of a normal model (Little and Rubin, 2019, section
    11.2) with a ridge of a thousandth; then conditional means.

    Shapes: values (n_rows, n_columns): NaN where a cell is missing, some value in each column;
    returns (n_rows, n_columns).
    """
    missing = np.isnan(values)
    if not missing.any():
        return values
    mean = np.nanmean(values, axis=0)
    variance = np.nanvar(values, axis=0)
    covariance = np.diag(variance)
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    counts = np.bincount(which.ravel(), minlength=len(patterns))
    filled = values
    for _ in range(_ROUNDS):
        ridged = covariance + np.diag(1e-3 * variance + 1e-12)
        filled = complete_rows(values, np.broadcast_to(mean, values.shape), ridged)
        mean = filled.mean(axis=0)
        covariance = (filled - mean).T @ (filled - mean) / len(values)
        for gone, count in zip(patterns, counts, strict=True):
            m, o = np.flatnonzero(gone), np.flatnonzero(~gone)
            left = ridged[np.ix_(m, m)]
            if len(m) and len(o):
                explained = np.linalg.solve(ridged[np.ix_(o, o)], ridged[np.ix_(o, m)])
                left = left - ridged[np.ix_(m, o)] @ explained
            covariance[np.ix_(m, m)] += count / len(values) * left
    return filled
