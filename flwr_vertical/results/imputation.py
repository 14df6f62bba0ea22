"""How good imputed values are, beside what a party could fill in alone.

A column's cells are compared with their true values, and so are the column's mean (of levels the
most frequent one) in these cells, and what the same method fills in where the party runs it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from flwr_vertical.results.imputed import Imputed, as_labels

_ENOUGH = 10  # cells from which a column is called worse than its mean
_MOST_NAMED = 5
_ROUNDING = 1e-9


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
        f"{', '.join(names)}{more}; leave them to `Mean`, or try more neighbours"
    ]


def _of_numbers(item: Imputed, by_alone: pd.Series | None) -> dict[str, float]:
    assert item.truth is not None
    true = item.truth.to_numpy(dtype=float, na_value=np.nan)
    filled = item.filled.to_numpy(dtype=float, na_value=np.nan)
    known = np.isfinite(true) & np.isfinite(filled)
    observed = item.observed.to_numpy(dtype=float, na_value=np.nan)
    if not known.any() or not np.isfinite(observed).any():
        return {}
    mean = _rms(true[known] - np.nanmean(observed[np.isfinite(observed)]))
    row = {"cells": int(known.sum()), "rmse": _rms((filled - true)[known]), "rmse_mean": mean}
    if mean > 0:
        row["skill"] = 1.0 - (row["rmse"] / mean) ** 2
    if by_alone is not None:
        own = by_alone.to_numpy(dtype=float, na_value=np.nan)[known]
        if np.isfinite(own).all():
            row["rmse_alone"] = _rms(own - true[known])
            if mean > 0:
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


def _rms(errors: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    with np.errstate(over="ignore"):  # a run that diverged has an infinite error
        return float(np.sqrt(np.mean(errors**2)))
