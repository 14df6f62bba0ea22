"""The joint normal likelihood, its maximum by a generic optimiser, and by plain EM."""

import numpy as np
from scipy.optimize import minimize


def log_likelihood(rows, mean, covariance):
    """Log likelihood of rows with NaN where a cell is missing."""
    return _of_patterns(rows)(mean, covariance)


def _of_patterns(rows):
    """The same as a function of mean and covariance, the rows of a pattern at a time (fast)."""
    missing = np.isnan(rows)
    groups = []
    for kind in np.unique(missing, axis=0):
        o = np.flatnonzero(~kind)
        groups.append((o, rows[(missing == kind).all(axis=1)][:, o]))

    def value(mean, covariance):
        total = 0.0
        for o, seen in groups:
            gap, own = seen - mean[o], covariance[np.ix_(o, o)]
            total -= np.sum(gap * np.linalg.solve(own, gap.T).T) / 2
            total -= len(seen) * (np.linalg.slogdet(own)[1] + len(o) * np.log(2 * np.pi)) / 2
        return total

    return value


def maximum(rows, free, start_mean, start_covariance):
    """Maximise over mean and precision matrix, which is zero where `free` is False.

    From numerical gradients.
    """
    d, likelihood = len(start_mean), _of_patterns(rows)
    i, j = np.nonzero(np.tril(free | np.eye(d, dtype=bool)))

    def split(theta):
        precision = np.zeros((d, d))
        precision[i, j] = precision[j, i] = theta[d:]
        return theta[:d], precision

    def loss(theta):
        mean, precision = split(theta)
        if np.linalg.eigvalsh(precision)[0] < 1e-6:
            return 1e6
        return -likelihood(mean, np.linalg.inv(precision)) / len(rows)

    start = np.concatenate([start_mean, np.linalg.inv(start_covariance)[i, j]])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-6})
    mean, precision = split(found.x)
    covariance = np.linalg.inv(precision)
    return mean, covariance, log_likelihood(rows, mean, covariance)


def em(rows, owner=None, steps=400, tol=1e-8):
    """EM (Dempster, Laird and Rubin, 1977), imputing a row at a time of each pattern.

    With `owner`, the party of each column but the last: columns of different parties are
    uncorrelated, and the last is a regression on all of them.
    """
    n, d = rows.shape
    mean, covariance = np.nanmean(rows, axis=0), np.diag(np.nanvar(rows, axis=0))
    for _ in range(steps):
        filled, left = rows.copy(), np.zeros((d, d))
        for kind in np.unique(np.isnan(rows), axis=0):
            here = (np.isnan(rows) == kind).all(axis=1)
            slope = np.linalg.solve(covariance[np.ix_(~kind, ~kind)], covariance[~kind][:, kind])
            filled[np.ix_(here, kind)] = mean[kind] + (rows[here][:, ~kind] - mean[~kind]) @ slope
            rest = covariance[np.ix_(kind, kind)] - covariance[np.ix_(kind, ~kind)] @ slope
            left[np.ix_(kind, kind)] += here.sum() * rest
        before, mean = mean, filled.mean(axis=0)
        new = np.cov(filled.T, bias=True) + left / n
        if owner is not None:
            beta = np.linalg.solve(new[:-1, :-1], new[:-1, -1])
            noise = new[-1, -1] - beta @ new[:-1, -1]
            new[:-1, :-1] *= owner[:, None] == owner[None, :]
            new[:-1, -1] = new[-1, :-1] = new[:-1, :-1] @ beta
            new[-1, -1] = beta @ new[:-1, :-1] @ beta + noise
        moved = max(np.abs(new - covariance).max(), np.abs(mean - before).max())
        covariance = new
        if moved < tol:
            break
    return mean, covariance
