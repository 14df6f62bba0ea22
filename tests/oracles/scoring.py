"""Fisher scoring of a joint normal model row by row, with its information as one matrix."""

import numpy as np


def step(rows, mean, covariance):
    """Mean and covariance after one step; rows with NaN where a cell is missing."""
    d = len(mean)
    by_mean, by_covariance = np.zeros(d), np.zeros((d, d))
    on_mean, on_covariance = np.zeros((d, d)), np.zeros((d * d, d * d))
    for row in rows:
        o = np.flatnonzero(~np.isnan(row))
        if not len(o):
            continue
        inverse = np.zeros((d, d))
        inverse[np.ix_(o, o)] = np.linalg.inv(covariance[np.ix_(o, o)])
        gap = np.where(np.isnan(row), 0.0, row - mean)
        by_mean += inverse @ gap
        by_covariance += np.outer(inverse @ gap, inverse @ gap) / 2 - inverse / 2
        on_mean += inverse
        on_covariance += np.kron(inverse, inverse) / 2
    change = np.linalg.solve(on_covariance, by_covariance.reshape(-1)).reshape(d, d)
    return mean + np.linalg.solve(on_mean, by_mean), covariance + change


def completed(rows, mean, covariance):
    """Rows less the mean, each completed by its conditional mean."""
    found = rows - mean
    for row in found:
        o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        row[m] = covariance[np.ix_(m, o)] @ np.linalg.solve(covariance[np.ix_(o, o)], row[o])
    return found
