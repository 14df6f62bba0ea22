"""What the paper measures of a fit (Section 5.1): RMSE, G-means, false discovery rate."""

import numpy as np

from flwr_vertical.arrays import Array

MEASURES = ("rmse", "g_means", "fdr")


def selection_criteria(estimate: Array, truth: Array) -> dict[str, float]:
    """Return RMSE of all coefficients, shape (n_columns,), G-means and FDR of the selection."""
    chosen, real = estimate != 0, truth != 0
    sensitivity = float((chosen & real).sum() / real.sum())
    specificity = float((~chosen & ~real).sum() / (~real).sum())
    return {
        "rmse": float(np.sqrt(np.mean((estimate - truth) ** 2))),
        "g_means": float(np.sqrt(sensitivity * specificity)),
        "fdr": float((chosen & ~real).sum() / max(chosen.sum(), 1)),
        "selected": float(chosen.sum()),
    }


def least_rmse(g_means: float, fdr: float, n_real: int, n_columns: int, effect: float) -> float:
    """Return the RMSE that missed columns alone make, by their whole effect, at G-means and FDR."""
    n_null = n_columns - n_real
    # fdr = n_null (1 - spe) / (n_null (1 - spe) + n_real sen) and spe = g^2 / sen: spe falls with
    # sen, so that one of them meets both.
    low, high = g_means**2, 1.0
    for _ in range(60):
        sensitivity = (low + high) / 2
        false = n_null * (1.0 - min(g_means**2 / sensitivity, 1.0))
        if false / (false + n_real * sensitivity) > fdr:
            high = sensitivity
        else:
            low = sensitivity
    return float(effect * np.sqrt((1.0 - low) * n_real / n_columns))
