"""The joint normal likelihood row by row, and its maximum by a generic optimiser."""

import numpy as np
from scipy.optimize import minimize


def log_likelihood(rows, mean, covariance):
    """Log likelihood of rows with NaN where a cell is missing, one row at a time."""
    total = 0.0
    for row in rows:
        o = np.flatnonzero(~np.isnan(row))
        if len(o):
            gap, own = row[o] - mean[o], covariance[np.ix_(o, o)]
            total -= gap @ np.linalg.solve(own, gap) / 2 + np.linalg.slogdet(own)[1] / 2
            total -= len(o) * np.log(2 * np.pi) / 2
    return total


def maximum(rows, start_mean, start_covariance):
    """Maximise over mean and Cholesky factor, from numerical gradients."""
    d = len(start_mean)
    tril = np.tril_indices(d)

    def split(theta):
        root = np.zeros((d, d))
        root[tril] = theta[d:]
        return theta[:d], root @ root.T

    start = np.concatenate([start_mean, np.linalg.cholesky(start_covariance)[tril]])
    found = minimize(
        lambda theta: -log_likelihood(rows, *split(theta)) / len(rows),
        start,
        method="BFGS",
        options={"gtol": 1e-7},
    )
    return *split(found.x), -found.fun * len(rows)


def maximum_with_zero_partials(rows, free, start_mean, start_covariance):
    """Maximise over mean and precision matrix, which is zero where `free` is False."""
    d = len(start_mean)
    i, j = np.nonzero(np.tril(free | np.eye(d, dtype=bool)))

    def split(theta):
        precision = np.zeros((d, d))
        precision[i, j] = precision[j, i] = theta[d:]
        return theta[:d], precision

    def loss(theta):
        mean, precision = split(theta)
        if np.linalg.eigvalsh(precision)[0] < 1e-6:
            return 1e6
        return -log_likelihood(rows, mean, np.linalg.inv(precision)) / len(rows)

    start = np.concatenate([start_mean, np.linalg.inv(start_covariance)[i, j]])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-6})
    mean, precision = split(found.x)
    return mean, np.linalg.inv(precision), -found.fun * len(rows)


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
