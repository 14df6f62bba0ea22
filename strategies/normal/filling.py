"""One party's missing cells: filled from its own columns and from what others' columns say.

Of a row with the own cells o and the missing ones m, e and C the mean and the covariance of all own
columns given what others tell (over the own table alone: mu and S),

    E[x_m | x_o] = e_m + B (x_o - e_o),  B = C_mo C_oo^-1,  Cov[x_m | x_o] = C_mm - B C_om.

What a party shows of a row is f = A (x - mu): the identity in its own cells, B in the others. Over
rows, ``T = mean of A`` and ``D = mean of (A - T) S (A - T)'``, so where cells are missing at random

    Cov[f] = T S T' + D,   Cov[f, x of others] = T Cov[x, x of others].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Table
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.tables.codes import fit_levels, to_codes
from strategies.normal.coding import Coding

_ROUNDS = 10
_RIDGE = 1e-3
"""Of a column's variance, in a covariance estimated from own rows."""

_LEAST_SHOWN = 0.25
"""Least singular value of T: its inverse multiplies the errors of covariances."""


def slopes(missing: Flags, covariance: Array) -> Iterator[tuple[Any, Any, Any, Array]]:
    """Yield, by pattern of missing cells, its rows, missing and observed columns, and B.

    Shapes: missing (n_rows, n_columns); covariance (n_columns, n_columns); B (n_missing,
    n_observed): by the inverse, since few cells of a row are missing.
    """
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(which.ravel(), minlength=len(patterns)))
    size = len(covariance)
    ridge = 1e-9 * np.trace(covariance) / max(size, 1) * np.eye(size)
    inverse = np.linalg.inv(covariance + ridge) if missing.any() and size else covariance
    for gone, rows in zip(patterns, np.split(order, ends[:-1]), strict=True):
        m, o = np.flatnonzero(gone), np.flatnonzero(~gone)
        if not len(m) or not len(o):
            yield rows, m, o, np.zeros((len(m), len(o)))
        else:
            slope = -np.linalg.solve(inverse[np.ix_(m, m)], inverse[np.ix_(m, o)])
            yield rows, m, o, np.asarray(slope, dtype=np.float64)


def complete_rows(given: Array, mean: Array, residual: Array) -> Array:
    """Fill rows from their own cells and from what the other parties' columns say.

    Shapes: given (n_rows, n_columns): NaN where a cell is missing; mean (n_rows, n_columns): given
    the others' columns; residual (n_columns, n_columns): covariance about it; returns (n_rows,
    n_columns).
    """
    filled = np.where(np.isnan(given), mean, given)
    for rows, m, o, slope in slopes(np.isnan(given), residual):
        filled[np.ix_(rows, m)] += (given[np.ix_(rows, o)] - mean[np.ix_(rows, o)]) @ slope.T
    return filled


def errors_of(missing: Flags, residual: Array) -> Array:
    """Return the standard error of each completed cell, 0 where a cell is there.

    Shapes: missing (n_rows, n_columns); residual (n_columns, n_columns): covariance about the mean
    that others told; returns (n_rows, n_columns).
    """
    found = np.zeros(missing.shape)
    for rows, m, o, slope in slopes(missing, residual):
        explained = np.einsum("ij,ji->i", slope, residual[np.ix_(o, m)])
        found[np.ix_(rows, m)] = np.sqrt(np.maximum(np.diag(residual)[m] - explained, 0.0))
    return found


def draw_rows(given: Array, mean: Array, residual: Array, noise: Array) -> Array:
    """Draw missing cells given own cells and others' columns (Matheron's rule).

    Noise of all own columns is drawn as if no cell were there; own cells then move it by what they
    differ from the draw. So the noise can be shared with parties that lack the same row.

    Shapes: as in `complete_rows`; noise (n_draws, n_rows, n_columns): of covariance `residual`;
    returns (n_draws, n_rows, n_columns).
    """
    drawn = np.where(np.isnan(given), mean + noise, given)
    for rows, m, o, slope in slopes(np.isnan(given), residual):
        apart = (given - mean)[np.ix_(rows, o)] - noise[:, rows[:, None], o]
        drawn[:, rows[:, None], m] += apart @ slope.T
    return drawn


@dataclass(frozen=True)
class OwnModel:
    """A normal model of one party's columns over its own rows, and what filling leaves of them."""

    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns): S, with a ridge
    shown: Array  # (n_columns, n_columns): T
    spread: Array  # (n_columns, n_columns): D

    def fill(self, values: Array) -> Array:
        """Fill missing cells from the own columns alone; shapes as of `own_columns`."""
        if not np.isnan(values).any():
            return values
        return complete_rows(values, np.broadcast_to(self.mean, values.shape), self.covariance)

    def over(self, missing: Flags) -> "OwnModel":
        """Return the same model with T and D over other rows, missing (n_rows, n_columns)."""
        return OwnModel(self.mean, self.covariance, *shown_of(missing, self.covariance))


def own_columns(values: Array) -> OwnModel:
    """Estimate mean and covariance of one party's columns from rows with missing cells.

    Ten steps of expectation and maximisation of a normal model (Little and Rubin, 2019, section
    11.2) with a ridge of a thousandth.

    Shapes: values (n_rows, n_columns): NaN where a cell is missing, some value in each column.
    """
    missing = np.isnan(values)
    mean, variance = np.nanmean(values, axis=0), np.nanvar(values, axis=0)
    ridge = np.diag(_RIDGE * variance + 1e-12)
    if not missing.any():
        covariance = np.atleast_2d(np.cov(values, rowvar=False, bias=True)) + ridge
    else:
        covariance = np.diag(variance) + ridge
        for _ in range(_ROUNDS):
            filled = np.where(missing, mean, values)
            more = np.zeros_like(covariance)
            for rows, m, o, slope in slopes(missing, covariance):
                filled[np.ix_(rows, m)] += (values[np.ix_(rows, o)] - mean[o]) @ slope.T
                left = covariance[np.ix_(m, m)] - slope @ covariance[np.ix_(o, m)]
                more[np.ix_(m, m)] += len(rows) / len(values) * left
            mean = filled.mean(axis=0)
            covariance = (filled - mean).T @ (filled - mean) / len(values) + more + ridge
    return OwnModel(mean, covariance, *shown_of(missing, covariance))


def made_again(table: Table, _: int | None) -> tuple[Array, tuple[frozenset[str], ...]]:
    """Return the filled columns of a table, standardised, and of which own columns they are."""
    levels = fit_levels([table])
    coding = Coding(list(table.kinds.values()), [len(levels.get(n, ())) for n in table.columns])
    values = coding.encode(to_codes(table, levels, ""))
    values = values - np.nanmean(values, axis=0)
    largest = np.nanmax(np.abs(values), axis=0)
    values = values / np.where(largest > 0, largest, 1.0)  # squares may overflow before
    spread = np.nanstd(values, axis=0)
    values = values / np.where(spread > 0, spread, 1.0)
    return own_columns(values).fill(values), coding.sources(table.columns)


def shown_of(missing: Flags, covariance: Array) -> tuple[Array, Array]:
    """Return T and D over rows with missing cells; T is brought towards the identity if need be.

    They are rounded to a quarter of ``n^-1/2``, below their errors: a party tells them, and exact
    ones of two tables that differ by a row would tell of that row.

    Shapes: missing (n_rows, n_columns); covariance (n_columns, n_columns).
    """
    size = len(covariance)
    maps: list[tuple[float, Array]] = []
    for rows, m, o, slope in slopes(missing, covariance):
        one = np.eye(size)
        one[m] = 0.0
        one[np.ix_(m, o)] = slope
        maps.append((len(rows) / max(1, len(missing)), one))
    if not maps or not size:
        return np.eye(size), np.zeros((size, size))
    mean = sum((share * one for share, one in maps), np.zeros((size, size)))
    spread = np.zeros((size, size))
    for share, one in maps:
        spread += share * (one - mean) @ covariance @ (one - mean).T
    while np.linalg.svd(mean, compute_uv=False).min() < _LEAST_SHOWN:
        mean = 0.9 * mean + 0.1 * np.eye(size)
    grid = 0.25 / np.sqrt(len(missing))
    mean = np.eye(size) + np.rint((mean - np.eye(size)) / grid) * grid
    return mean, np.rint(spread / grid) * grid
