"""Data like the paper's of small and medium-sized enterprises, which are not public.

What the paper says is kept: rows, institutions, variables, missing rates, number of complete cases,
correlation within and between institutions, R2; its CC-VFEM estimates are taken as the truth. What
it does not say is chosen: normal columns; one factor per institution; scales from the printed
standard errors of the complete-case regression, which are inversely proportional to them.
"""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from simulations.vfem.missing import calibrate_shared, factor_mask, standardised
from simulations.vfem.sample import Sample, by_variable, make_frames, noise_deviation


def scales(sme: dict[str, Any]) -> Array:
    """Return the columns' standard deviations: inverse printed standard errors, their median 1."""
    inverse = 1 / np.concatenate([party["cc_std_errors"] for party in sme["parties"].values()])
    return np.asarray(inverse / np.median(inverse))


def correlation(sme: dict[str, Any]) -> Array:
    """Return the correlation of the columns: a drawn factor in each party, nothing between them."""
    rng = np.random.default_rng(sme["structure_seed"])
    sizes = [len(party["variables"]) for party in sme["parties"].values()]
    loadings = rng.uniform(0.35, 0.7, sum(sizes)) * rng.choice([-1.0, 1.0], sum(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    pairs = np.triu(np.equal.outer(owner, owner), 1)
    loadings *= np.sqrt(sme["within"] / np.abs(np.outer(loadings, loadings)[pairs]).mean())
    matrix = np.where(np.equal.outer(owner, owner), np.outer(loadings, loadings), 0.0)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def draw_sme(
    sme: dict[str, Any],
    *,
    rows: int,
    seed: int = 0,
    shape: float = 0.0,
    by_label: bool = False,
    test_share: float = 0.0,
    split: int = 0,
) -> Sample:
    """Draw one data set."""
    parties = sme["parties"]
    names = {party: list(values["variables"]) for party, values in parties.items()}
    beta = np.concatenate([values["coefficients"] for values in parties.values()])
    scale, matrix = scales(sme), correlation(sme)
    rng = np.random.default_rng([seed, rows])
    Z = rng.standard_normal((rows, len(beta))) @ np.linalg.cholesky(matrix).T
    if shape:
        Z, matrix = _log_normal(Z, matrix, shape)
    means = np.random.default_rng(sme["structure_seed"] + 1).uniform(-1, 1, len(beta))
    X = (means + Z) * scale
    y = X @ beta + noise_deviation(beta * scale, matrix, sme["r2"]) * rng.standard_normal(rows)
    index = pd.RangeIndex(rows)
    rates = [float(values["missing"]) for values in parties.values()]
    shared = calibrate_shared(rates, sme["complete_cases"] / rows)
    common = standardised(y) if by_label else rng.standard_normal(rows)
    mask = factor_mask(common, rates, shared, rng)
    complete = np.flatnonzero(~mask.any(axis=1))
    held_out = np.zeros(rows, dtype=np.bool_)
    chosen = np.random.default_rng([seed, split]).permutation(complete)
    held_out[chosen[: round(test_share * len(complete))]] = True
    return Sample(
        make_frames(X, names, index),
        pd.Series(y, index=index, name="NPGR"),
        by_variable(beta, names),
        by_variable(scale, names),
        mask,
        held_out,
    )


def _log_normal(Z: Array, matrix: Array, shape: float) -> tuple[Array, Array]:
    """Return log-normal columns of mean 0 and variance 1, and their correlation."""
    spread = np.expm1(shape**2)
    skewed = (np.exp(shape * Z - shape**2 / 2) - 1) / np.sqrt(spread)
    return skewed, np.expm1(shape**2 * matrix) / spread
