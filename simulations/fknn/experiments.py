"""One replication of each part of the study: from a rate and a seed to numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.impute import KNNImputer

from flwr_vertical import simulate
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.incomplete import blank_cells, mcar_cells
from simulations.data import VerticalData
from simulations.fknn.local import local_imputations
from simulations.fknn.oracle import distances, impute
from simulations.fknn.regression import compared, replicate_regression
from simulations.replications import Job, Metrics
from strategies.fknn import FKNN

# Other settings of the method, beside the preset's; the last is no setting but a formula.
VARIANTS: dict[str, dict[str, Any]] = {
    "K = 1": {"n_neighbors": 1},
    "K = 3": {"n_neighbors": 3},
    "K = 10": {"n_neighbors": 10},
    "distance weights": {"weights": "distance"},
    "exact": {"weighting": "exact"},
    "exact, distance weights": {"weighting": "exact", "weights": "distance"},
}
ROOTS = "sum of roots"


def replicate(job: Job, data: VerticalData) -> Metrics:
    """Run one replication; see `simulations.replications.run_all`."""
    return PARTS[job.part](job.settings, data)


def rmse(values: pd.DataFrame | Array, truth: pd.DataFrame, mask: Flags) -> float:
    """Root mean squared error over the removed cells."""
    difference = (np.asarray(values, dtype=float) - truth.to_numpy())[mask]
    return float(np.sqrt(np.mean(difference**2)))


def removed_cells(settings: dict[str, Any], data: VerticalData) -> Flags:
    """Draw the guest's missing cells of one replication, cell by cell as in Section 4.3.1."""
    return mcar_cells(data.parties["guest"], settings["rate"], seed=settings["seed"])


def removed_rows(settings: dict[str, Any], data: VerticalData) -> Flags:
    """Draw whole rows of the guest that are missing."""
    guest = data.parties["guest"]
    chosen = np.random.default_rng(settings["seed"]).permutation(len(guest))
    mask = np.zeros(guest.shape, dtype=np.bool_)
    mask[chosen[: round(settings["rate"] * len(guest))]] = True
    return mask


def impute_guest(
    data: VerticalData, mask: Flags, strategy: Any, aggregation: str = "masked", seed: int = 0
) -> pd.DataFrame:
    """Return the guest's table after a federated run on its incomplete form."""
    guest = blank_cells(data.parties["guest"], mask)
    parties = {"guest": guest, "host": data.parties["host"]}
    result = simulate(strategy, parties, aggregation=aggregation, seed=seed, progress=False)
    return result.tables["guest"]


def _table3(settings: dict[str, Any], data: VerticalData) -> Metrics:
    mask, guest = removed_cells(settings, data), data.parties["guest"]
    return {
        name: rmse(impute_guest(data, mask, strategy, seed=settings["seed"]), guest, mask)
        for name, strategy in compared(settings["fknn"]).items()
    }


def _against_local(settings: dict[str, Any], data: VerticalData, mask: Flags) -> Metrics:
    metrics, incomplete = _alone(settings, data, mask), blank_cells(data.parties["guest"], mask)
    how = {"n_neighbors": settings["fknn"]["n_neighbors"], **settings["local"]}
    for name, values in local_imputations(incomplete, data.labels, seed=settings["seed"], **how):
        metrics[name] = rmse(values, data.parties["guest"], mask)
    return metrics


def _alone(settings: dict[str, Any], data: VerticalData, mask: Flags) -> Metrics:
    imputed = impute_guest(data, mask, FKNN(**settings["fknn"]), seed=settings["seed"])
    return {"FKNN": rmse(imputed, data.parties["guest"], mask)}


def _settings(settings: dict[str, Any], data: VerticalData) -> Metrics:
    mask, guest = removed_cells(settings, data), data.parties["guest"]
    metrics = {}
    for name, changed in {"preset": {}, **VARIANTS}.items():
        imputed = impute_guest(data, mask, FKNN(**{**settings["fknn"], **changed}))
        metrics[name] = rmse(imputed, guest, mask)
    incomplete = blank_cells(guest, mask).to_numpy()
    roots = distances([incomplete, data.parties["host"].to_numpy()], "roots")
    metrics[ROOTS] = rmse(impute(incomplete, roots, settings["fknn"]["n_neighbors"]), guest, mask)
    return metrics


def _lossless(settings: dict[str, Any], data: VerticalData) -> Metrics:
    mask, guest = removed_cells(settings, data), data.parties["guest"]
    incomplete, host = blank_cells(guest, mask).to_numpy(), data.parties["host"].to_numpy()
    k, seed = settings["fknn"]["n_neighbors"], settings["seed"]
    same = impute(incomplete, distances([incomplete, host], "party-mean"), k)
    pooled = KNNImputer(n_neighbors=k).fit_transform(np.hstack([incomplete, host]))
    pooled = pooled[:, : guest.shape[1]]
    metrics = {
        "centralised": rmse(same, guest, mask),
        "pooled": rmse(pooled, guest, mask),
        "cells": float(mask.sum()),
    }
    runs = {
        "masked": ("party-mean", "masked", same),
        "ckks": ("party-mean", "ckks", same),
        "exact": ("exact", "masked", pooled),
    }
    for name, (weighting, aggregation, reference) in runs.items():
        strategy = FKNN(n_neighbors=k, weighting=weighting, standardize=False)
        values = impute_guest(data, mask, strategy, aggregation, seed)
        difference = np.abs(values.to_numpy() - reference)[mask]
        metrics[name] = rmse(values, guest, mask)
        metrics[f"{name}/largest"] = float(difference.max())
        # Means are rounded; donors that differ change a value by far more.
        metrics[f"{name}/changed"] = float((difference > 1e-9).sum())
    return metrics


PARTS: dict[str, Callable[[dict[str, Any], VerticalData], Metrics]] = {
    "table3": _table3,
    "table4": lambda of, data: _against_local(of, data, removed_cells(of, data)),
    "stability": lambda of, data: _alone(of, data, removed_cells(of, data)),
    "rows": lambda of, data: _against_local(of, data, removed_rows(of, data)),
    "settings": _settings, "lossless": _lossless, "regression": replicate_regression,
}  # fmt: skip
