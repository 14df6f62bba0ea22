"""A user's own table: `VerticalGBDT` beside LightGBM and scikit-learn's booster on all columns.

Each library has its own default settings, `VerticalGBDT` with early stopping, the others with 100
trees. "LightGBM, tuned" has the best of some settings, each stopped early by a fifth of the rows,
and is then fitted to all. The others get the pooled table as it is, in bins of their own (255),
text as categories.
"""

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

from flwr_vertical import simulate
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.incomplete import blank_cells, mcar_blocks, mcar_cells
from flwr_vertical.incomplete.splits import split_columns
from flwr_vertical.log import logger
from simulations.data import fingerprint
from simulations.page import verdict
from simulations.replications import Job, Metrics
from simulations.study import Study
from strategies.trees import VerticalGBDT

Tables = dict[str, pd.DataFrame]

MECHANISMS = ("cells", "blocks")
_MOST_CATEGORIES = 254  # of a column, as scikit-learn takes them
OURS, _LIGHTGBM, TUNED = "flwr-vertical", "LightGBM", "LightGBM, tuned"
METHODS = (OURS, _LIGHTGBM, TUNED, "HistGradientBoosting")
_TUNING = {
    "num_leaves": (7, 15, 31), "min_child_samples": (20, 60), "colsample_bytree": (0.6, 1.0)
}  # fmt: skip


class OwnStudy(Study):
    """The file that the command line names."""

    name = "trees"
    page_file = "own.toml"
    shared: tuple[Tables, "pd.Series[float]"]

    def prepare(self) -> tuple[Tables, "pd.Series[float]"]:
        """Read the file."""
        options = self.options
        given = {name: value for name, value in options.own.items() if value is not None}
        self._settings = _checked({**self.preset["own"], **given})
        others = [name for name, chosen in options.chosen.items() if chosen and name != "methods"]
        if others or options.write is not None:
            raise ConfigError(
                f"--{others[0] if others else 'write'} is of the study's own data sets, and "
                "--file names another; leave one of them out"
            )
        self._methods = options.choice("methods", installed())
        return load(self._settings)

    @property
    def context(self) -> str:
        """What replications depend on beside their settings."""
        tables, labels = self.shared
        data = fingerprint([*tables.values(), labels.to_frame()])
        return f"own {self.preset.version} {data}"

    def jobs(self) -> list[Job]:
        """Return a job for each seed and method."""
        settings = self._settings
        chosen = {name: settings[name] for name in ("missing", "mechanism", "test")}
        columns = [list(map(str, own)) for own in self.shared[0].values()]
        label = {"label": settings["label"], "columns": columns}
        return [
            Job("own", {"method": method, "seed": seed, **chosen, **label})
            for seed in range(settings["runs"])
            for method in self._methods
        ]

    @staticmethod
    def replicate(job: Job, data: tuple[Tables, "pd.Series[float]"]) -> Metrics:
        """Fit one method and judge it by the samples that were held out."""
        settings, (tables, labels) = job.settings, data
        held, test = drawn(tables, settings)
        y = labels[test].to_numpy()
        if min(labels[test].nunique(), labels[~test].nunique()) < 2:
            raise DataError(
                f"seed {settings['seed']}: the {test.sum():,} held-out samples or the other "
                f"{(~test).sum():,} have one class only; give more rows, or change own.test"
            )
        started = time.process_time()
        p = predicted(settings["method"], held, labels, test)
        seconds = time.process_time() - started
        return {
            "AUC": float(roc_auc_score(y, p)),
            "log loss": float(log_loss(y, np.clip(p, 1e-15, 1 - 1e-15))),
            "CPU seconds": seconds,
        }

    def tables(self, frame: pd.DataFrame) -> Tables:
        """Return means by method, and all numbers by seed."""
        wide = frame.pivot_table("value", ["method", "seed"], "metric", sort=False)
        return {"own": summary(wide, self.preset["targets"]["within"]), "own_by_seed": wide}

    def notes(self, words: Mapping[str, Any]) -> list[str]:
        """Return what was compared."""
        settings, tables = self._settings, self.shared[0]
        blocks = " of each party but the first" if settings["mechanism"] == "blocks" else ""
        return [
            f"{Path(settings['file']).name}, {len(self.shared[1]):,} rows with a label; label "
            f"{settings['label']}; a share of {settings['test']:g} of them is held out.",
            f"Missing: a share of {settings['missing']:g} of all {settings['mechanism']}{blocks}.",
            "All have their defaults, 'tuned' the best of several settings.",
            *(f"{name}: {', '.join(map(str, own))}" for name, own in tables.items()),
        ]


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; ConfigError where one cannot be."""
    if not settings["label"]:
        raise ConfigError("--file needs the name of the column to predict: --label NAME")
    for name in ("missing", "test"):
        if not 0.0 <= settings[name] < 1.0:
            raise ConfigError(f"{name} must be at least 0 and below 1, got {settings[name]!r}")
    if settings["mechanism"] not in MECHANISMS:
        raise ConfigError(
            f"--mechanism {settings['mechanism']!r} is unknown; there are {', '.join(MECHANISMS)}"
        )
    return settings


def load(settings: Mapping[str, Any]) -> tuple[Tables, "pd.Series[float]"]:
    """Read the file, split its columns, and code its label as 0 and 1."""
    path = Path(settings["file"])
    try:
        frame = pd.read_csv(path, skipinitialspace=True)
    except FileNotFoundError:
        raise DataError(f"--file: there is no file {path.absolute()}") from None
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise DataError(f"--file: {path} cannot be read as CSV: {error}") from error
    named = [settings["label"], *settings["drop"]]
    if absent := [name for name in named if name not in frame]:
        raise DataError(
            f"{path} has no column {absent[0]!r}; it has {', '.join(map(str, frame))} (expected "
            "names in the first line, and commas between columns)"
        )
    frame = frame[frame[settings["label"]].notna()].reset_index(drop=True)
    labels = _binary(frame[settings["label"]], settings["positive"])
    frame = frame.drop(columns=named)
    if empty := [str(name) for name in frame if frame[name].isna().all()]:
        raise DataError(f"{path}: column {empty[0]!r} has no value; leave it out by --drop")
    return _split(frame, settings["parties"]), labels


def _binary(column: "pd.Series[Any]", positive: str) -> "pd.Series[float]":
    """Return 1 where a label is the positive one, 0 elsewhere."""
    counts = column.astype(str).value_counts()
    seen = ", ".join(f"{value!r} ({count:,} rows)" for value, count in counts.head(8).items())
    seen += f" and {len(counts) - 8:,} others" if len(counts) > 8 else ""
    if len(counts) < 2:
        raise DataError(f"label {column.name!r}: expected two classes, got {seen or 'no value'}")
    if not positive and len(counts) > 2:
        raise DataError(
            f"label {column.name!r}: expected two classes, got {seen}; name the one to tell from "
            "all others by --positive"
        )
    one = positive or max(counts.index)
    if one not in counts:
        raise DataError(f"--positive {one!r}: label {column.name!r} has {seen}")
    return column.astype(str).eq(one).astype(float).rename("label")


def _split(frame: pd.DataFrame, parties: list[str]) -> Tables:
    """Split columns: a number of parties, each a run of columns, or a list of names of each."""
    if len(parties) == 1 and parties[0].isdecimal():
        return split_columns(frame, int(parties[0]), shuffle=False)
    named = {f"party-{k}": own.split(",") for k, own in enumerate(parties)}
    found = split_columns(frame, named)
    if len(found) < 2:
        raise ConfigError(
            f"--parties {parties[0]!r}: expected a number of parties, or the columns of each, with "
            "commas: two parties or more"
        )
    if left := [str(name) for name in frame if not any(name in own for own in found.values())]:
        logger.info("no party has the columns %s: left out", ", ".join(left))
    return found


def installed() -> list[str]:
    """Return what is compared; LightGBM where it is installed."""
    try:
        import lightgbm  # noqa: F401
    except ImportError:
        logger.warning("LightGBM is not installed (pip install lightgbm): left out")
        return [name for name in METHODS if _LIGHTGBM not in name]
    return list(METHODS)


def drawn(tables: Tables, settings: Mapping[str, Any]) -> tuple[Tables, Flags]:
    """Return the tables with what is missing, and which samples are held out."""
    seed, share = settings["seed"], settings["missing"]
    first, *others = tables
    n = len(tables[first])
    test = np.random.default_rng(seed).random(n) < settings["test"]
    if settings["mechanism"] == "cells":
        masks = mcar_cells(tables, share, seed=seed)
        return {name: blank_cells(own, masks[name]) for name, own in tables.items()}, test
    lacks = mcar_blocks(n, [0.0, *[share] * len(others)], seed=seed)
    return {name: own[~lacks[:, k]] for k, (name, own) in enumerate(tables.items())}, test


def predicted(method: str, tables: Tables, labels: "pd.Series[float]", test: Flags) -> Array:
    """Return probabilities of the held-out samples."""
    if method == OURS:
        # The trees of hidden histograms, without the arbiter's computing.
        strategy = VerticalGBDT(histograms="open")
        result = simulate(strategy, tables, labels.mask(test), progress=False)
        assert result.predictions is not None
        return result.predictions["probability_1"].loc[labels.index[test]].to_numpy()
    model: Any = HistGradientBoostingClassifier(
        early_stopping=False, categorical_features="from_dtype"
    )
    if method == _LIGHTGBM:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_jobs=1, verbose=-1)
    x = pd.concat([own.reindex(labels.index) for own in tables.values()], axis=1)
    x.columns = pd.RangeIndex(x.shape[1]).astype(str)  # LightGBM refuses some names
    for name in x:
        if not pd.api.types.is_numeric_dtype(x[name]):
            levels = x[name].astype("category")
            few = len(levels.cat.categories) <= _MOST_CATEGORIES
            x[name] = levels if few else levels.cat.codes.where(levels.notna())
    if method == TUNED:
        model = _tuned(x[~test], labels[~test])
    model.fit(x[~test], labels[~test])
    return np.asarray(model.predict_proba(x[test])[:, 1])


def _tuned(x: pd.DataFrame, y: "pd.Series[float]") -> Any:
    """Return LightGBM with the best of some settings and as many trees, not fitted yet."""
    from lightgbm import LGBMClassifier, early_stopping

    fit, valid, fit_y, valid_y = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    found: list[tuple[float, dict[str, Any]]] = []
    for values in itertools.product(*_TUNING.values()):
        own: dict[str, Any] = {"learning_rate": 0.05, **dict(zip(_TUNING, values, strict=True))}
        model = LGBMClassifier(n_estimators=1500, n_jobs=1, verbose=-1, **own)
        stop = early_stopping(50, verbose=False)
        model.fit(fit, fit_y, eval_X=valid, eval_y=valid_y, callbacks=[stop])
        loss = float(model.best_score_["valid_0"]["binary_logloss"])
        found.append((loss, own | {"n_estimators": model.best_iteration_}))
    best = min(found, key=lambda item: item[0])[1]
    return LGBMClassifier(n_jobs=1, verbose=-1, **best)


def summary(wide: pd.DataFrame, within: float) -> pd.DataFrame:
    """Return the means by method, and whether the federated AUC is near that of others."""
    auc = wide["AUC"].unstack("method")
    rows: dict[str, dict[str, str]] = {}
    for method in wide.index.get_level_values("method").unique():
        own = wide.loc[method]
        row = {
            name: f"{own[name].mean():.4f}" + (f" ({own[name].std():.4f})" if len(own) > 1 else "")
            for name in ("AUC", "log loss")
        }
        row["CPU seconds"] = f"{own['CPU seconds'].mean():.1f}"
        row["seeds"] = str(len(own))
        if OURS in auc and method != OURS:
            gap = (auc[OURS] - auc[method]).mean()
            row[f"{OURS} less it, within {within:g}"] = verdict(gap >= -within, f"{gap:+.4f}")
        rows[method] = row
    return pd.DataFrame.from_dict(rows, orient="index").fillna("–").rename_axis("method")
