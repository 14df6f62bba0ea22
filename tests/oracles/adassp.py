"""Regression on noisy moments of one pooled table: AdaSSP with given noise, written out in full."""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def half_ranges(values, bounds, intercept=True):
    """Values in half ranges from the middle (without an intercept from 0), brought into them."""
    low, high = np.asarray(bounds, dtype=float).T
    middle = (low + high) / 2 if intercept else np.zeros(len(low))
    half = np.maximum(high - middle, middle - low)
    return (np.clip(values, low, high) - middle) / half, middle, half


def shrunk(x, row_norm):
    """Rows whose root mean square is above the norm, shrunk to it."""
    size = np.sqrt(np.mean(x**2, axis=1))
    return x * np.where(size > row_norm, row_norm / np.maximum(size, 1e-300), 1.0)[:, None]


def sigma_for(epsilon, delta, sensitivity):
    """Standard deviation of the Gaussian mechanism (Balle and Wang, 2018, Theorem 8)."""

    def excess(sigma):
        a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
        return norm.cdf(a - b) - np.exp(epsilon) * norm.cdf(-a - b) - delta

    return brentq(excess, 1e-3 * sensitivity, 1e5 * sensitivity, xtol=1e-12 * sensitivity)


def scales(n_columns, epsilon, delta, row_norm):
    """Standard deviations of noise: (x'1, x_j^2, x_j x_k, x'y, y'1, y'y)."""
    c2 = a2 = n_columns * row_norm**2 / 2
    sigma = sigma_for(epsilon, delta, np.sqrt(2) * (n_columns * row_norm**2 + c2 + a2))
    beside = sigma / np.sqrt(2)
    return (
        beside / np.sqrt(c2), sigma, beside, beside / np.sqrt(a2),
        beside / np.sqrt(c2 * a2), sigma / a2,
    )  # fmt: skip


def about_means(x, y, noise, intercept=True):
    """Noisy moments of ``[1, x, y]``, columns about their noisy means if there is an intercept."""
    z = np.column_stack([np.ones(len(x)), x, y])
    moments = z.T @ z + noise
    if intercept:
        mean = moments[0, 1:-1] / moments[0, 0]
        turn = np.eye(len(moments))
        turn[1:-1, 0] = -mean
        moments = turn @ moments @ turn.T
    else:
        mean, turn = np.zeros(x.shape[1]), np.eye(len(moments))
    return moments, mean, turn


def fit(x, y, noise, limit, intercept=True):
    """Coefficients and ridge, all in half ranges, given a bound on the norm of the noise."""
    moments, mean, _ = about_means(x, y, noise, intercept)
    keep = slice(0 if intercept else 1, -1)
    inner = moments[keep, keep]
    least = np.linalg.eigvalsh(inner)[0]
    ridge = max(limit - max(least - limit, 0), 0.1 * limit - least, 0)
    penalty = ridge * np.eye(len(inner))
    if intercept:
        penalty[0, 0] = 0
    theta = np.linalg.solve(inner + penalty, moments[keep, -1])
    if not intercept:
        return 0.0, theta, ridge
    return theta[0] - mean @ theta[1:], theta[1:], ridge
