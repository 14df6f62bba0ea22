"""Fisher scoring for the joint normal model from completed rows; pure numerics.

Of a row the columns o are observed. With mean mu, covariance S and ``W_o = S_oo^-1``, the completed
row is ``z = mu + S_.o W_o (x_o - mu_o)``. Write ``L_o = S_.o W_o`` for its coefficients and A_o for
the sums of products of ``x_o - mu_o`` over the n_o rows of a pattern. The score on S is

    G = 1/2 sum_o E_o' W_o (A_o - n_o S_oo) W_o E_o
      = 1/2 S^-1 [sum_i (z_i - mu)(z_i - mu)' - sum_o n_o L_o S_oo L_o'] S^-1,

so it needs the completed rows' products over *all* rows, and how many rows each pattern has. A step
of Fisher scoring adds ``I^-1 G``, with the expected information ``I(U) = 1/2 sum_o n_o E_o' W_o
U_oo W_o E_o`` (Jennrich and Schluchter, 1986). I is solved by conjugate gradients: it is never
formed as a matrix over pairs of columns, but where columns are few.

The step solves ``sum_o E_o' W_o (A_o - n_o T_oo) W_o E_o = 0`` in T: generalised least squares of
the patterns' products, with weights from S. So T is consistent where blocks are missing completely
at random, whatever S is, and its covariance is ``I^-1 K I^-1`` with ``K(U) = 1/2 sum_o n_o E_o' W_o
T_oo W_o U_oo W_o T_oo W_o E_o``. At ``S = T`` this is the inverse of the information.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags

_FEW_COLUMNS = 72
"""Up to so many, the information fits a matrix of 200 MB, which pays where patterns are many."""

_MOST_STEPS = 500


@dataclass(frozen=True)
class PatternCounts:
    """Which columns the rows hold, without any number of them."""

    observed: Flags  # (n_patterns, n_columns): the label last
    n_rows: Array  # (n_patterns,)

    @property
    def joint_rows(self) -> Array:
        """Rows in which two columns are observed, shape (n_columns, n_columns)."""
        held = self.observed.astype(np.float64)
        return np.asarray(held.T @ (held * self.n_rows[:, None]))

    def inverses(self, covariance: Array) -> Array:
        """Return ``E_o' W_o E_o`` of each pattern, (n_patterns, n_columns, n_columns)."""
        both = self.observed[:, :, None] & self.observed[:, None, :]
        own = np.where(both, covariance, 0.0)
        at = np.arange(len(covariance))
        own[:, at, at] += ~self.observed
        return np.where(both, np.linalg.inv(own), 0.0)


def summed(left: Array, n_rows: Array, inner: Array) -> Array:
    """Return ``sum_o n_o B_o U B_o'``.

    Shapes: left (n_patterns, n_columns, n_columns): B_o; inner (..., n_columns, n_columns): U, one
    or several; returns the shape of `inner`.
    """
    n_patterns, d, _ = left.shape
    weighted = (left * n_rows[:, None, None]).transpose(0, 2, 1).reshape(n_patterns * d, d)
    stacked = left.reshape(n_patterns * d, d)
    found = np.empty_like(inner)
    for at in np.ndindex(inner.shape[:-2]):
        part = (stacked @ inner[at]).reshape(n_patterns, d, d)
        found[at] = part.transpose(1, 0, 2).reshape(d, n_patterns * d) @ weighted
    return found


def information_times(inverses: Array, n_rows: Array) -> Callable[[Array], Array]:
    """Return what multiplies directions with the expected information on the covariance."""
    n_patterns, d, _ = inverses.shape
    if d > min(_FEW_COLUMNS, 2 * n_patterns):
        return lambda directions: 0.5 * summed(inverses, n_rows, directions)
    flat = inverses.reshape(n_patterns, d * d)
    every = (flat.T @ (flat * n_rows[:, None])).reshape(d, d, d, d)
    matrix = 0.5 * every.transpose(0, 3, 1, 2).reshape(d * d, d * d)

    def times(directions: Array) -> Array:
        flattened = directions.reshape(-1, d * d)
        return np.asarray((flattened @ matrix.T).reshape(directions.shape))

    return times


def conjugate_gradients(
    times: Callable[[Array], Array],
    right: Array,
    nearly: Callable[[Array], Array],
    tolerance: float = 1e-9,
) -> Array:
    """Solve ``I(U) = right`` for several right sides.

    Shapes: right (n_sides, ...): returns the same. `nearly` multiplies with what is nearly the
    inverse.
    """
    axes = tuple(range(1, right.ndim))

    def dot(a: Array, b: Array) -> Array:
        return np.asarray(np.sum(a * b, axis=axes).reshape(-1, *(1,) * len(axes)))

    found, rest = np.zeros_like(right), right.copy()
    towards = nearly(rest)
    direction = towards.copy()
    size = dot(rest, towards)
    enough = tolerance**2 * size
    for _ in range(_MOST_STEPS):
        if (size <= enough).all():
            break
        moved = times(direction)
        along = size / np.maximum(dot(direction, moved), 1e-300)
        found += along * direction
        rest -= along * moved
        towards = nearly(rest)
        new = dot(rest, towards)
        direction = towards + new / np.maximum(size, 1e-300) * direction
        size = new
    return found


def solve_information(inverses: Array, n_rows: Array, covariance: Array, right: Array) -> Array:
    """Return ``I^-1`` times right sides.

    Shapes: right (n_sides, n_columns, n_columns): symmetric; returns the same.
    """
    total = float(n_rows.sum())
    return conjugate_gradients(
        information_times(inverses, n_rows),
        right,
        lambda sides: 2.0 / total * (covariance @ sides @ covariance),
    )


def scoring_step(
    counts: PatternCounts,
    mean: Array,
    covariance: Array,
    lifts: Array,
    sums: Array,
    products: Array,
) -> tuple[Array, Array]:
    """Return mean and covariance after a step.

    Shapes: mean (n_columns,), covariance (n_columns, n_columns): by which rows were completed;
    lifts (n_patterns, n_columns, n_columns): coefficients of completed rows, 0 for columns that
    are not observed, rounded as they were used; sums (n_columns,), products (n_columns,
    n_columns): of completed rows less the mean, over all rows. With rounded coefficients the
    step's equation still holds on average.
    """
    inverses = counts.inverses(covariance)
    on_mean = np.tensordot(counts.n_rows, inverses, axes=1)
    gap = np.linalg.solve(on_mean, np.linalg.solve(covariance, sums))
    expected = summed(lifts, counts.n_rows, covariance + np.outer(gap, gap))
    inverse = np.linalg.inv(covariance)
    score = 0.5 * inverse @ (products - expected) @ inverse
    score = (score + score.T) / 2.0
    change = solve_information(inverses, counts.n_rows, covariance, score[None])[0]
    return mean + gap, covariance + (change + change.T) / 2.0


def slope_directions(mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Return derivatives of (intercept, beta) by mean and covariance.

    Shapes: returns (n_columns, n_columns); returns (n_columns, n_columns, n_columns): symmetric.
    """
    d = len(mean)
    inverse = np.linalg.inv(covariance[:-1, :-1])
    beta = inverse @ covariance[:-1, -1]
    by_mean, by_covariance = np.zeros((d, d)), np.zeros((d, d, d))
    by_covariance[1:, :-1, -1] = inverse
    by_covariance[1:, :-1, :-1] = -inverse[:, :, None] * beta
    by_covariance = (by_covariance + by_covariance.transpose(0, 2, 1)) / 2.0
    by_mean[0, :-1], by_mean[0, -1] = -beta, 1.0
    by_covariance[0] = -np.tensordot(mean[:-1], by_covariance[1:], axes=1)
    return by_mean, by_covariance


def covariance_of_slopes(
    counts: PatternCounts, used: Array, mean: Array, covariance: Array, noise: Array
) -> tuple[Array, Array]:
    """Return the covariance of (intercept, beta) after a step: of sampling, and of noise.

    Shapes: used (n_columns, n_columns): by which rows were completed; mean (n_columns,), covariance
    (n_columns, n_columns): the step's result; noise (n_columns,): standard deviation of what was
    added to each completed sum, and for two columns to their product; returns two of (n_columns,
    n_columns).
    """
    inverses = counts.inverses(used)
    by_mean, by_covariance = slope_directions(mean, covariance)
    on_mean = np.tensordot(counts.n_rows, inverses, axes=1)
    spread = inverses @ covariance @ inverses
    inverse, added = np.linalg.inv(used), noise**2
    lead = np.linalg.solve(on_mean, by_mean.T)
    weights = solve_information(inverses, counts.n_rows, used, by_covariance)
    sampling = lead.T @ np.tensordot(counts.n_rows, spread, axes=1) @ lead
    varied = 0.5 * summed(spread, counts.n_rows, weights)
    sampling += np.einsum("aij,bij->ab", weights, varied)
    # <G, U> = tr(N B) / 2, where B = S^-1 U S^-1 and N is symmetric noise.
    around = inverse @ weights @ inverse
    weighed = around * (2.0 - np.eye(len(mean))) * np.outer(added, added)
    of_noise = lead.T @ (inverse * added) @ inverse @ lead
    of_noise += 0.25 * np.einsum("aij,bij->ab", around, weighed)
    return np.asarray(sampling), np.asarray(of_noise)
