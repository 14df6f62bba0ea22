"""Data for a first run: a real data set from scikit-learn, split over parties, with gaps.

The Wisconsin breast cancer data (569 tumours, 30 measurements), the diabetes and the wine data ship
inside scikit-learn. The columns are dealt to the parties, then cells and whole rows are removed at
random, so that every party knows the truth about its own gaps and can tell how well they were
filled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.tables import blank_cells, drop_blocks, mcar_blocks, mcar_cells, split_columns


@dataclass(frozen=True)
class Demo:
    """A data set, split over parties, with gaps.

    Parameters
    ----------
    parties : dict[str, pandas.DataFrame]
        Tables by party, indexed by sample ID. NaN is a missing cell, no row a missing block.
    labels : pandas.Series
        Of all samples, by sample ID; NaN where they were removed.
    complete : dict[str, pandas.DataFrame]
        The tables before anything was removed.
    """

    parties: dict[str, pd.DataFrame]
    labels: "pd.Series[Any]"
    complete: dict[str, pd.DataFrame]


def load_demo(
    dataset: str = "breast-cancer",
    *,
    n_parties: int = 2,
    missing_cells: float = 0.1,
    missing_blocks: float = 0.05,
    missing_labels: float = 0.0,
    seed: int = 0,
) -> Demo:
    """Return a real data set, split over parties, with cells and rows removed at random (MCAR).

    Parameters
    ----------
    dataset : {"breast-cancer", "diabetes", "wine"}
        A data set inside scikit-learn: classes 0 and 1, numbers, classes 0 to 2.
    n_parties : int
        Number of parties.
    missing_cells, missing_blocks, missing_labels : float in [0, 1)
        Share of cells, of a party's rows, and of the labels, to remove.
    seed : int
        Of the split and of what is removed.

    Returns
    -------
    Demo

    Examples
    --------
    >>> demo = load_demo("wine", n_parties=3)
    >>> {name: table.shape for name, table in demo.parties.items()}
    {'clinic': (169, 5), 'laboratory': (169, 4), 'imaging': (169, 4)}
    """
    parties, complete = demo_tables(dataset, n_parties, missing_cells, missing_blocks, seed)
    return Demo(parties, demo_labels(dataset, missing_labels, seed), complete)


_NAMES = ("clinic", "laboratory", "imaging", "registry")


def _load(name: str) -> tuple[pd.DataFrame, "pd.Series[Any]"]:
    from sklearn import datasets

    loaders: dict[str, Callable[..., Any]] = {
        "breast-cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "wine": datasets.load_wine,
    }
    if name not in loaders:
        raise ConfigError(f"unknown demo data set {name!r}; expected one of {sorted(loaders)}")
    bunch = loaders[name](as_frame=True)
    index = pd.Index([f"sample-{i:04d}" for i in range(len(bunch.data))], name="id")
    return bunch.data.set_index(index), bunch.target.set_axis(index).rename("label")


def demo_names(n_parties: int) -> list[str]:
    """Names of the parties of a demonstration."""
    return [_NAMES[k] if k < len(_NAMES) else f"party-{k}" for k in range(n_parties)]


def demo_labels(
    dataset: str = "breast-cancer", missing_labels: float = 0.0, seed: int = 0
) -> "pd.Series[Any]":
    """Labels of a demonstration data set, indexed by sample ID; NaN where they were removed.

    Parameters
    ----------
    dataset : {"breast-cancer", "diabetes", "wine"}
        A data set inside scikit-learn.
    missing_labels : float in [0, 1)
        Share of labels to remove, at random.
    seed : int
        Of what is removed.
    """
    labels = _load(dataset)[1].astype(float)
    removed = round(missing_labels * len(labels))
    return labels.mask(np.random.default_rng(seed).permutation(len(labels)) < removed)


def demo_tables(
    dataset: str = "breast-cancer",
    n_parties: int = 2,
    missing_cells: float = 0.1,
    missing_blocks: float = 0.05,
    seed: int = 0,
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Split a data set over parties and remove cells and blocks at random (MCAR).

    Parameters
    ----------
    dataset : {"breast-cancer", "diabetes", "wine"}
        A data set inside scikit-learn.
    n_parties : int
        Number of parties.
    missing_cells, missing_blocks : float in [0, 1)
        Share of cells, and of a party's rows, to remove.
    seed : int
        Of the split and of what is removed.

    Returns
    -------
    incomplete, complete : dict[str, pandas.DataFrame]
        Tables by party, indexed by sample ID.
    """
    frame, _ = _load(dataset)
    if not 1 <= n_parties <= frame.shape[1]:
        raise ConfigError(
            f"the data set {dataset!r} has {frame.shape[1]} columns, which {n_parties} parties "
            "cannot share; set fewer SuperNodes"
        )
    complete = split_columns(frame, demo_names(n_parties), seed=seed)
    rates = [missing_blocks if n_parties > 1 else 0.0] * n_parties
    mask = mcar_blocks(len(frame), rates, seed=seed + 1)
    incomplete = drop_blocks(complete, mask)
    for k, (name, table) in enumerate(incomplete.items()):
        incomplete[name] = blank_cells(table, mcar_cells(table, missing_cells, seed=seed + 2 + k))
    return incomplete, complete
