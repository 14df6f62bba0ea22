"""Maximum likelihood of many columns: no matrix over pairs of columns is ever formed.

Newton's method (`fit`) inverts the information on all elements of the covariance, which has a row
for each two columns. Of many columns that fits no usual computer's memory. EM (Dempster, Laird and
Rubin, 1977) needs the covariance alone; its standard errors take mean and covariance as known.

Where all of the covariance is free, Fisher scoring (`scoring`) goes to the maximum, and standard
errors come from the observed information, which conjugate gradients multiply with directions (u, U)
of mean and covariance:

    by u:  sum_o n_o E_o' (W u_o + W U_oo W r)
    by U:  1/2 sum_o n_o E_o' (W u_o r' W + W r u_o' W + W U_oo V + V U_oo W - W U_oo W) E_o

with ``W = S_oo^-1``, r the mean of the rows less mu, and ``V = W A_o W / n_o``.
"""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.linear.moments.covariances import CovarianceModel, NoisePrior
from strategies.linear.moments.patterns import Patterns
from strategies.linear.moments.scoring import (
    PatternCounts,
    conjugate_gradients,
    scoring_step,
    slope_directions,
)

_HALVINGS = 20
_ENOUGH = 1e-7


def em_step(
    patterns: Patterns,
    model: CovarianceModel,
    mean: Array,
    parameters: Array,
    prior: NoisePrior | None = None,
) -> tuple[Array, Array]:
    """Complete the moments by their expectation, and maximise (Little and Rubin, 2019, 11.2)."""
    covariance = model.covariance(parameters)
    d = len(mean)
    n_rows, total, products = 0.0, np.zeros(d), np.zeros((d, d))
    for p in patterns.patterns:
        rest, centred = p.about(mean)
        lift, absent, left = _lifted(covariance, p.observed)
        total += lift @ rest
        products += lift @ centred @ lift.T
        products[np.ix_(absent, absent)] += p.n_rows * left
        n_rows += p.n_rows
    gap = total / n_rows
    moments = products / n_rows - np.outer(gap, gap)
    found = model.nearest((moments + moments.T) / 2.0)
    if prior is not None:
        found[-1] = prior.maximise(float(found[-1]), n_rows)
    return mean + gap, found


def covariance_given_columns(
    patterns: Patterns, mean: Array, covariance: Array, prior: NoisePrior | None = None
) -> Array:
    """Return the covariance of (intercept, beta), mean and covariance of the columns being known.

    Given the columns that a row has, the label is normal. Its mean depends on beta through the
    conditional mean of all columns, its variance d through the conditional covariance C of the
    missing ones: ``d = noise + beta' C beta``. What is left out, that mean and covariance of the
    columns are estimated, matters only where rows are missing.

    Shapes: mean (n_columns,); covariance (n_columns, n_columns): the label last; returns
    (n_columns, n_columns).
    """
    inner = covariance[:-1, :-1]
    beta = np.linalg.solve(inner, covariance[:-1, -1])
    noise = float(covariance[-1, -1] - beta @ covariance[:-1, -1])
    p, label = len(beta), len(mean) - 1
    information = np.zeros((p + 2, p + 2))  # on the level at the columns' means, beta, noise
    for pattern in patterns.patterns:
        if label not in pattern.observed:
            continue
        rest, centred = (values[..., :-1] for values in pattern.about(mean))
        lift, absent, left = _lifted(inner, pattern.observed[:-1])
        pull = left @ beta[absent]
        d = noise + float(beta[absent] @ pull)
        information[0, 0] += pattern.n_rows / d
        information[0, 1:-1] += lift @ rest / d
        information[1:-1, 1:-1] += lift @ centred[:-1] @ lift.T / d
        move = np.zeros(p + 2)
        move[1 + absent], move[-1] = 2.0 * pull, 1.0
        information += pattern.n_rows / (2.0 * d**2) * np.outer(move, move)
    information[1:-1, 0] = information[0, 1:-1]
    if prior is not None:
        information[-1, -1] += prior.information(noise)
    back = np.eye(p + 1)
    back[0, 1:] = -mean[:-1]
    return np.asarray(back @ np.linalg.inv(information)[:-1, :-1] @ back.T)


def _lifted(covariance: Array, observed: Indices) -> tuple[Array, Indices, Array]:
    """Return what completes rows about the mean: coefficients, absent columns, their covariance.

    Shapes: returns (n_columns, n_observed): 1 for an observed column itself; (n_absent,);
    (n_absent, n_absent): given the observed columns.
    """
    absent = np.setdiff1d(np.arange(len(covariance)), observed)
    lift = np.zeros((len(covariance), len(observed)))
    lift[observed] = np.eye(len(observed))
    across = covariance[np.ix_(observed, absent)]
    lift[absent] = np.linalg.solve(covariance[np.ix_(observed, observed)], across).T
    return lift, absent, covariance[np.ix_(absent, absent)] - lift[absent] @ across


def counts_of(patterns: Patterns) -> PatternCounts:
    """Return which columns the rows hold."""
    every = np.arange(patterns.n_columns)
    observed = np.array([np.isin(every, p.observed) for p in patterns.patterns])
    return PatternCounts(observed, np.array([p.n_rows for p in patterns.patterns]))


def maximum(
    patterns: Patterns, mean: Array, covariance: Array, tol: float, max_iter: int
) -> tuple[Array, Array, int, bool]:
    """Go from a start to the maximum of the likelihood.

    Returns mean and covariance, how many steps it took, and whether the last one changed the log
    likelihood of a row by less than `tol`.
    """
    counts, steps = counts_of(patterns), 0
    value = patterns.log_likelihood(mean, covariance)
    while steps < max_iter:
        steps += 1
        lifts = covariance @ counts.inverses(covariance)
        sums, products = np.zeros_like(mean), np.zeros_like(covariance)
        for p, lift in zip(patterns.patterns, lifts, strict=True):
            rest, centred = p.about(mean)
            sums += lift[:, p.observed] @ rest
            products += lift[:, p.observed] @ centred @ lift[:, p.observed].T
        towards = scoring_step(counts, mean, covariance, lifts, sums, products)
        length = 1.0
        for _ in range(_HALVINGS):
            trial = mean + length * (towards[0] - mean)
            matrix = covariance + length * (towards[1] - covariance)
            found = patterns.log_likelihood(trial, matrix)
            if found >= value - 1e-12 * abs(value):
                break
            length /= 2.0
        else:
            return mean, covariance, steps, False
        gain, mean, covariance, value = found - value, trial, matrix, max(found, value)
        if gain < tol * counts.n_rows.sum():
            return mean, covariance, steps, True
    return mean, covariance, steps, False


def covariance_by_observed(patterns: Patterns, mean: Array, covariance: Array) -> Array:
    """Return the covariance of (intercept, beta) by the observed information.

    Shapes: mean (n_columns,); covariance (n_columns, n_columns): the label last; returns
    (n_columns, n_columns).
    """
    by_mean, by_covariance = slope_directions(mean, covariance)
    # A direction's first row is that of the mean, the others are that of the covariance.
    right = np.concatenate([by_mean[:, None, :], by_covariance], axis=1)
    parts = []
    for p in patterns.patterns:
        o = p.observed
        inverse = np.linalg.inv(covariance[np.ix_(o, o)])
        rest, centred = p.about(mean)
        parts.append((o, p.n_rows, inverse, inverse @ rest, inverse @ centred @ inverse))

    def times(directions: Array) -> Array:
        found = np.zeros_like(directions)
        every = np.arange(len(directions))
        for o, n_rows, inverse, pull, spread in parts:
            along = directions[:, 0][:, o] @ inverse
            turned = inverse @ directions[np.ix_(every, 1 + o, o)]
            found[:, 0, o] += n_rows * along + turned @ pull
            sided = along[:, :, None] * pull + turned @ (spread - n_rows / 2.0 * inverse)
            found[np.ix_(every, 1 + o, o)] += (sided + sided.transpose(0, 2, 1)) / 2.0
        return found

    n_rows = sum(p.n_rows for p in patterns.patterns)

    def nearly(sides: Array) -> Array:
        found = np.empty_like(sides)
        found[:, 0] = sides[:, 0] @ covariance / n_rows
        found[:, 1:] = 2.0 / n_rows * (covariance @ sides[:, 1:] @ covariance)
        return found

    solved = conjugate_gradients(times, right, nearly, _ENOUGH)
    return np.asarray(np.einsum("aij,bij->ab", right, solved))
