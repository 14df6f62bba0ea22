"""The design of the finite-sample parts: five parties, normal columns, known coefficients."""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.incomplete import mcar_blocks
from simulations.vfem.missing import logistic_mask, mar_scores
from simulations.vfem.sample import Sample, by_variable, make_frames, noise_deviation

MCAR, MAR = "MCAR", "MAR"


def column_names(design: dict[str, Any]) -> dict[str, list[str]]:
    """Columns ``x1``, ``x2``, ... of each party."""
    rows = zip(design["parties"], design["coefficients"], strict=True)
    return {party: [f"x{j + 1}" for j in range(len(values))] for party, values in rows}


def covariance(design: dict[str, Any], cross: float) -> Array:
    """Covariance of all columns: AR(1) within a party, and `cross` from a common factor."""
    sizes = [len(values) for values in design["coefficients"]]
    blocks = np.zeros((sum(sizes), sum(sizes)))
    start = 0
    for size in sizes:
        lag = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        blocks[start : start + size, start : start + size] = design["rho"] ** lag
        start += size
    return (1 - cross) * blocks + cross


def noise_variance(design: dict[str, Any], cross: float = 0.0) -> float:
    """Return the variance of the noise that the preset's R² asks for."""
    beta = np.concatenate([np.asarray(row, dtype=np.float64) for row in design["coefficients"]])
    return noise_deviation(beta, covariance(design, cross), design["r2"]) ** 2


def draw_design(
    design: dict[str, Any],
    *,
    rows: int,
    rates: list[float],
    mechanism: str = MCAR,
    cross: float = 0.0,
    held_out: int = 0,
    seed: int = 0,
) -> Sample:
    """Draw one data set."""
    rng = np.random.default_rng([seed, rows])
    n, names = rows + held_out, column_names(design)
    beta = np.concatenate([np.asarray(row, dtype=np.float64) for row in design["coefficients"]])
    root = np.linalg.cholesky(covariance(design, cross))
    X = design["mean"] + rng.standard_normal((n, len(beta))) @ root.T
    noise = np.sqrt(noise_variance(design, cross)) * rng.standard_normal(n)
    index = pd.RangeIndex(n)
    labels = pd.Series(design["intercept"] + X @ beta + noise, index=index, name="y")
    frames = make_frames(X, names, index)
    if mechanism == MCAR:
        mask = mcar_blocks(n, rates, seed=seed)
    else:
        first = frames[design["parties"][0]]
        scores = mar_scores(labels, first, design["label_weight"], design["first_weight"])
        mask = logistic_mask(scores, rates, rng)
    scale = by_variable(np.ones(len(beta)), names)
    return Sample(frames, labels, by_variable(beta, names), scale, mask, np.arange(n) >= rows)
