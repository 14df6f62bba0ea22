"""EM for the joint normal model, and standard errors that need no information on the covariance.

Newton's method (`fit`) inverts the information on all elements of the covariance, which has a
row for each two columns. Of many columns that fits no usual computer's memory. EM (Dempster, Laird
and Rubin, 1977) needs the covariance alone.
"""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.linear.moments.covariances import CovarianceModel, NoisePrior
from strategies.linear.moments.patterns import Patterns


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
