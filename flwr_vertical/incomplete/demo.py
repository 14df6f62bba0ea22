"""Data for a first run, split over parties, with gaps.

The Wisconsin breast cancer data (569 tumours, 30 measurements), the diabetes and the wine data ship
inside scikit-learn. The blood pressure data are generated: 2,000 people, 12 measurements, enough
for sums over each pattern of missing rows. The columns are dealt to the parties, then cells and
whole rows are removed at random, so that every party knows the truth about its own gaps and can
tell how well they were filled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete import (
    blank_cells,
    drop_blocks,
    mcar_blocks,
    mcar_cells,
    split_columns,
)


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
    missing_cells: float | None = None,
    missing_blocks: float = 0.05,
    missing_labels: float = 0.0,
    seed: int = 0,
) -> Demo:
    """Return a data set, split over parties, with cells and rows removed at random (MCAR).

    Parameters
    ----------
    dataset : {"breast-cancer", "diabetes", "wine", "blood-pressure"}
        Labels are classes 0 and 1, numbers, classes 0 to 2, numbers. The last is generated, the
        others are inside scikit-learn.
    n_parties : int
        Number of parties.
    missing_cells : float in [0, 1), optional
        Share of cells to remove: a tenth by default, and none where labels are numbers, as
        regressions need whole rows.
    missing_blocks, missing_labels : float in [0, 1)
        Share of a party's rows, and of the labels, to remove.
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
    if missing_cells is None:
        missing_cells = 0.0 if dataset in _NUMBERS else 0.1
    parties, complete = demo_tables(dataset, n_parties, missing_cells, missing_blocks, seed)
    return Demo(parties, demo_labels(dataset, missing_labels, seed), complete)


_NUMBERS = ("diabetes", "blood-pressure")
_NAMES = ("clinic", "laboratory", "imaging", "registry")


def _load(name: str) -> tuple[pd.DataFrame, "pd.Series[Any]"]:
    from sklearn import datasets

    if name == "blood-pressure":
        return _blood_pressure()
    loaders: dict[str, Callable[..., Any]] = {
        "breast-cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "wine": datasets.load_wine,
    }
    if name not in loaders:
        raise ConfigError(
            f"unknown demo data set {name!r}; expected one of "
            f"{sorted([*loaders, 'blood-pressure'])}"
        )
    bunch = loaders[name](as_frame=True)
    index = _ids(len(bunch.data))
    return bunch.data.set_index(index), bunch.target.set_axis(index).rename("label")


def _ids(n: int) -> "pd.Index[Any]":
    return pd.Index([f"sample-{i:04d}" for i in range(n)], name="id")


def _blood_pressure(n: int = 2000) -> tuple[pd.DataFrame, "pd.Series[Any]"]:
    """Generate measurements that go together as they do in people, and systolic pressure."""
    rng = np.random.default_rng(2024)
    build, habits, kidneys = rng.normal(size=(3, n))

    def made(level: float, spread: float, decimals: int, **shares: float) -> Any:
        known = {"age": years, "build": build, "habits": habits, "kidneys": kidneys}
        own = np.sqrt(1.0 - sum(share**2 for share in shares.values()))
        parts = sum(share * known[name] for name, share in shares.items())
        return np.round(level + spread * (parts + own * rng.normal(size=n)), decimals)

    years = np.clip(rng.normal(size=n), -2.4, 2.4)
    columns = {
        "age": np.round(52.0 + 13.0 * years),
        "bmi": made(27.0, 4.5, 1, build=0.9, habits=0.2),
        "waist": made(94.0, 13.0, 0, build=0.85, age=0.2),
        "smoking": made(9.0, 4.0, 1, habits=0.6, age=0.2),
        "alcohol": made(14.0, 6.0, 1, habits=0.5),
        "salt": made(9.0, 2.5, 1, habits=0.4, build=0.3),
        "exercise": made(4.0, 1.8, 1, habits=-0.5, build=-0.3, age=-0.2),
        "pulse": made(71.0, 9.0, 0, habits=0.3, build=0.2),
        "cholesterol": made(205.0, 36.0, 0, build=0.3, habits=0.3, age=0.3),
        "glucose": made(98.0, 14.0, 0, build=0.5, age=0.3),
        "creatinine": made(0.95, 0.2, 2, kidneys=0.8, age=0.3),
        "potassium": made(4.2, 0.35, 2, kidneys=0.5),
    }
    frame = pd.DataFrame(columns, index=_ids(n))
    effects = {"age": 6.0, "bmi": 4.0, "salt": 3.0, "exercise": -2.0, "smoking": 1.5, "pulse": 1.5,
               "creatinine": 3.0, "potassium": -1.5, "glucose": 1.0}  # fmt: skip
    standard = (frame - frame.mean()) / frame.std()
    pressure = 132.0 + standard[list(effects)] @ pd.Series(effects)
    return frame, (pressure + 9.0 * rng.normal(size=n)).round().rename("label")


def demo_names(n_parties: int) -> list[str]:
    """Names of the parties of a demonstration."""
    return [_NAMES[k] if k < len(_NAMES) else f"party-{k}" for k in range(n_parties)]


def demo_labels(
    dataset: str = "breast-cancer", missing_labels: float = 0.0, seed: int = 0
) -> "pd.Series[Any]":
    """Labels of a demonstration data set, indexed by sample ID; NaN where they were removed."""
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
    """Split a data set over parties and remove cells and blocks at random (MCAR)."""
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
