"""Centralised sparse GLMs, written down from the formulas: slow, with no trick of the library.

A weighted lasso by proximal gradient with backtracking on the pooled table, and local linear
approximation around it (Zou and Li, 2008).
"""

import numpy as np
from scipy.special import expit


def mean_of(family, eta):
    return {"gaussian": lambda e: e, "binomial": expit, "poisson": np.exp}[family](eta)


def loss_of(family, y, eta):
    psi = {
        "gaussian": lambda e: e**2 / 2,
        "binomial": lambda e: np.logaddexp(0, e),
        "poisson": np.exp,
    }[family](eta)
    return np.mean(psi - y * eta)


def weighted_lasso(X, y, family, penalty, beta, intercept=True, steps=100_000, tol=1e-13):
    """Minimise the mean loss plus ``sum of penalty_j |beta_j|``; accelerated proximal gradient."""
    A = np.column_stack([np.ones(len(y)), X]) if intercept else X
    full = np.concatenate([[0.0], penalty]) if intercept else penalty
    x = z = beta.copy()
    t, length = 1.0, len(y) / np.linalg.norm(A, 2) ** 2
    for _ in range(steps):
        eta = A @ z
        g = A.T @ (mean_of(family, eta) - y) / len(y)
        at = loss_of(family, y, eta)
        while True:
            new = z - length * g
            new = np.sign(new) * np.maximum(np.abs(new) - length * full, 0)
            step = new - z
            bound = at + g @ step + step @ step / (2 * length)
            if loss_of(family, y, A @ new) <= bound + 1e-14:
                break
            length /= 2
        if (z - new) @ (new - x) > 0:  # momentum that points uphill starts anew
            t = 1.0
        following = (1 + np.sqrt(1 + 4 * t * t)) / 2
        moved = np.abs(new - x).max()
        z, x, t = new + (t - 1) / following * (new - x), new, following
        if moved < tol:
            break
    return x


def tangent(beta, strength, penalty, a):
    """``P'(|beta|)`` as printed: SCAD (Fan and Li, 2001), MCP (Zhang, 2010)."""
    size = np.abs(beta)
    if penalty == "mcp":
        return np.maximum(a * strength - size, 0) / a
    inside = size <= strength
    return strength * (inside + np.maximum(a * strength - size, 0) / ((a - 1) * strength) * ~inside)


def lla(X, y, family, penalty, strength, a, steps, intercept=True):
    """A lasso and `steps` tangents; returns intercept and coefficients."""
    beta = np.zeros(X.shape[1] + intercept)
    beta = weighted_lasso(X, y, family, np.full(X.shape[1], strength), beta, intercept)
    for _ in range(steps):
        slopes = tangent(beta[int(intercept) :], strength, penalty, a)
        beta = weighted_lasso(X, y, family, slopes, beta, intercept)
    return beta
