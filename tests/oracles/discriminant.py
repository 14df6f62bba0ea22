"""Linear discriminant analysis row by row, with the two shrinkages; densities by scipy."""

import numpy as np
from scipy import stats


def fit(x, y):
    """Return classes, their shares and means, and the covariance within classes.

    x (n_rows, n_columns), complete; y (n_rows,).
    """
    classes, n, p = np.unique(y), len(x), x.shape[1]
    raw = np.array([x[y == c].mean(axis=0) for c in classes])
    residuals = x - raw[np.searchsorted(classes, y)]
    within = residuals.T @ residuals / n
    weight = p / (n + p)
    covariance = (1 - weight) * within + weight * np.diag(np.diag(within))
    counts = np.array([(y == c).sum() for c in classes])
    center, noise = x.mean(axis=0), np.diag(within)
    spread = np.average((raw - center) ** 2, axis=0, weights=counts)
    true = np.maximum(spread - (len(classes) - 1) * noise / n, 0)
    means = [
        center + (m - center) * true / (true + noise / k) for m, k in zip(raw, counts, strict=True)
    ]
    return classes, counts / n, np.array(means), covariance


def posterior(found, row):
    """Return the probability of each class, given the columns that a row has (NaN: it lacks it)."""
    _, prior, means, covariance = found
    o = np.flatnonzero(np.isfinite(row))
    logs = np.log(prior)
    if len(o):
        within = covariance[np.ix_(o, o)]
        logs = logs + [stats.multivariate_normal(m[o], within).logpdf(row[o]) for m in means]
    weights = np.exp(logs - np.max(logs))
    return weights / weights.sum()
