"""Runs of VerticalGLM on small generated tables."""

from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.special import expit

from flwr_vertical import simulate
from strategies.glm import VerticalGLM


def pooled(family, n=300, sizes=(3, 2, 3), seed=0, strength=1.0, noise=1.0, intercept=0.3):
    """Correlated columns, every other coefficient zero, labels of a family."""
    rng = np.random.default_rng(seed)
    p = sum(sizes)
    X = rng.standard_normal((n, p)) @ (np.eye(p) + 0.2 * rng.standard_normal((p, p)))
    X = X * rng.uniform(0.5, 2, p) + rng.normal(size=p)
    beta = np.where(np.arange(p) % 2, 0.0, strength * rng.choice([-1, 1], p) / X.std(axis=0))
    eta = intercept + (X - X.mean(axis=0)) @ beta
    if family == "gaussian":
        y = eta + noise * rng.standard_normal(n)
    elif family == "binomial":
        y = (rng.random(n) < expit(eta)).astype(float)
    else:
        y = rng.poisson(np.exp(0.4 * eta)).astype(float)
    return X, y, beta


def split(X, y, sizes=(3, 2, 3)):
    """Each party's table and the labels."""
    ids = [f"s{i:04}" for i in range(len(y))]
    starts = np.cumsum([0, *sizes])
    tables = {
        f"p{k}": pd.DataFrame(
            X[:, a:b], columns=[f"x{j}" for j in range(int(a), int(b))], index=ids
        )
        for k, (a, b) in enumerate(pairwise(starts))
    }
    return tables, pd.Series(y, index=ids, name="y")


def run(X, y, mode="plain", sizes=(3, 2, 3), policy=None, **settings):
    tables, labels = split(X, y, sizes)
    strategy = VerticalGLM(**settings)
    return simulate(strategy, tables, labels, aggregation=mode, policy=policy)


def estimates(result):
    """Intercept and coefficients in the order of the columns."""
    return result.coefficients["estimate"].to_numpy()
