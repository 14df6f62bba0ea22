"""How good imputed values are, beside what a party could fill in alone.

A column's cells are compared with their true values, and so are the column's mean (of levels the
most frequent one) in these cells, and what the same method fills in where the party runs it alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.tables.codes import as_labels

_ENOUGH = 10  # cells from which a column is called worse than its mean
_MOST_NAMED = 5
_ROUNDING = 1e-9


class Imputed(NamedTuple):
    """One column of a party: what was given, what was filled in, and the truth where known."""

    party: str
    column: str
    observed: pd.Series
    filled: pd.Series
    truth: pd.Series | None
    numeric: bool
    intervals: pd.DataFrame | None = (
        None  # Where there are any: std_error, lower, upper of `filled`
    )

    def pairs(self) -> tuple[Array, Array]:
        """Return true and imputed values, as numbers, where both are finite."""
        assert self.truth is not None
        true = self.truth.to_numpy(dtype=float, na_value=np.nan)
        filled = self.filled.to_numpy(dtype=float, na_value=np.nan)
        finite = np.isfinite(true) & np.isfinite(filled)
        return true[finite], filled[finite]

    @property
    def name(self) -> str:
        """Party and column, on one line."""
        return f"{self.party} · {self.column}"


def imputed_columns(
    originals: Mapping[str, pd.DataFrame],
    tables: Mapping[str, pd.DataFrame],
    truth: Mapping[str, pd.DataFrame],
    intervals: Mapping[str, pd.DataFrame] | None = None,
) -> list[Imputed]:
    """Return the columns in which cells were filled in, the most imputed first."""
    found, names = [], ["std_error", "lower", "upper"]
    for party, given in originals.items():
        if party not in tables:
            continue
        after = tables[party]
        before = given.reindex(after.index)
        for column in (c for c in after.columns if c in given.columns):
            was_missing = before[column].isna() & after[column].notna()
            if not was_missing.any():
                continue
            filled = after.loc[was_missing, column]
            true = truth[party][column] if column in truth.get(party, ()) else None
            if true is not None:
                true = true.reindex(filled.index)
            observed = given[column].dropna()
            numeric = _is_numeric(observed, filled, true)
            of = (intervals or {}).get(party, filled.to_frame())
            of = of.filter([f"{column} {name}" for name in names]).reindex(filled.index)
            ends = of.set_axis(names, axis=1) if of.shape[1] else None
            item = Imputed(party, str(column), observed, filled, true, numeric, ends)
            if true is not None and (true.isna().all() or (numeric and not len(item.pairs()[0]))):
                item = item._replace(truth=None)
            found.append(item)
    return sorted(found, key=lambda item: -len(item.filled))


def imputation_quality(
    columns: Sequence[Imputed], alone: Mapping[str, pd.DataFrame] | None = None
) -> pd.DataFrame:
    """Compare imputed cells with their true values."""
    rows, keys = [], []
    for item in (item for item in columns if item.truth is not None):
        own = (alone or {}).get(item.party)
        by_alone = None
        if own is not None and item.column in own:
            by_alone = own[item.column].reindex(item.filled.index)
        row = _of_numbers(item, by_alone) if item.numeric else _of_levels(item, by_alone)
        if row:
            rows.append(row)
            keys.append((item.party, item.column))
    if not rows:
        return pd.DataFrame()
    index = pd.MultiIndex.from_tuples(keys, names=["party", "column"])
    return pd.DataFrame(rows, index=index)


def imputation_metrics(quality: pd.DataFrame) -> dict[str, float]:
    """Return figures of merit over all columns."""
    found = {}
    for name in ("skill", "skill_alone"):
        if name in quality and (known := quality[name].notna()).any():
            value = np.average(quality.loc[known, name], weights=quality.loc[known, "cells"])
            found[f"imputation_{name}"] = float(value)
    return found


def worse_than_mean(quality: pd.DataFrame) -> list[str]:
    """Return a note that names the columns which their own mean would have filled better."""
    if "skill" not in quality:
        return []
    bad = quality[(quality["skill"] < -_ROUNDING) & (quality["cells"] >= _ENOUGH)].sort_values(
        "skill"
    )
    if bad.empty:
        return []
    names = [f"{column!r} of {party!r}" for party, column in bad.index[:_MOST_NAMED]]
    more = f" and {len(bad) - len(names)} more" if len(bad) > len(names) else ""
    count = f"{len(bad)} of {len(quality)} columns are"
    return [
        f"{count} imputed worse than by the column's mean or most frequent level: "
        f"{', '.join(names)}{more}; leave them to `Mean`, or try other settings"
    ]


def _of_numbers(item: Imputed, by_alone: pd.Series | None) -> dict[str, float]:
    assert item.truth is not None
    true = item.truth.to_numpy(dtype=float, na_value=np.nan)
    filled = item.filled.to_numpy(dtype=float, na_value=np.nan)
    known = np.isfinite(true) & np.isfinite(filled)
    observed = item.observed.to_numpy(dtype=float, na_value=np.nan)
    if not known.any() or not np.isfinite(observed).any():
        return {}
    mean = rmse(true[known], np.nanmean(observed[np.isfinite(observed)]))
    row = {"cells": int(known.sum()), "rmse": rmse(true[known], filled[known]), "rmse_mean": mean}
    varies = mean > 1e-15 * np.abs(true[known]).max()  # else both errors are those of rounding
    if varies:
        row["skill"] = 1.0 - (row["rmse"] / mean) ** 2
    if by_alone is not None:
        own = by_alone.to_numpy(dtype=float, na_value=np.nan)[known]
        if np.isfinite(own).all():
            row["rmse_alone"] = rmse(true[known], own)
            if varies:
                row["skill_alone"] = 1.0 - (row["rmse_alone"] / mean) ** 2
    return row


def _of_levels(item: Imputed, by_alone: pd.Series | None) -> dict[str, float]:
    assert item.truth is not None
    known = item.truth.notna()
    common = as_labels(item.observed).mode()
    if not known.any() or common.empty:
        return {}
    true = as_labels(item.truth[known]).to_numpy()
    mode = float(np.mean(true == common.iloc[0]))
    row = {"cells": int(known.sum())}
    right = float(np.mean(as_labels(item.filled[known]).to_numpy() == true))
    found: dict[str, float] = {**row, "accuracy": right, "accuracy_mode": mode}
    if mode < 1.0:
        found["skill"] = 1.0 - (1.0 - right) / (1.0 - mode)
    if by_alone is not None and by_alone[known].notna().all():
        own = float(np.mean(as_labels(by_alone[known]).to_numpy() == true))
        found["accuracy_alone"] = own
        if mode < 1.0:
            found["skill_alone"] = 1.0 - (1.0 - own) / (1.0 - mode)
    return found


def rmse(true: Array, filled: Array | np.floating[Any]) -> float:
    """Return the root mean squared error."""
    with np.errstate(over="ignore"):  # a run that diverged has an infinite error
        return float(np.sqrt(np.mean((filled - true) ** 2)))


def share_right(item: Imputed) -> tuple[float, float]:
    """Return how often the imputed category is right, and how often the commonest one is."""
    assert item.truth is not None
    known = item.truth.notna()
    true = as_labels(item.truth[known]).to_numpy()
    common = as_labels(item.observed).mode()
    guess = float(np.mean(true == common.iloc[0])) if len(common) else 0.0
    return float(np.mean(true == as_labels(item.filled[known]).to_numpy())), guess


def _is_numeric(observed: pd.Series, filled: pd.Series, true: pd.Series | None) -> bool:
    parts = [part for part in (observed, filled, true) if part is not None and len(part)]
    for part in parts:
        if not pd.api.types.is_numeric_dtype(part) or pd.api.types.is_bool_dtype(part):
            return False
    # Two values only, and nothing between them: a binary column is better read as categories.
    return int(pd.concat([part.dropna() for part in parts]).nunique()) > 2
