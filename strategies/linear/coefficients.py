"""Coefficients of the columns of several parties, as people read them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array

_LEVEL = 0.95
INTERCEPT = {"server": ["intercept"]}


def variables(columns: Mapping[str, Sequence[str]]) -> pd.MultiIndex:
    """Return an index of all columns, party by party."""
    pairs = [(party, name) for party, names in columns.items() for name in names]
    return pd.MultiIndex.from_tuples(pairs, names=["party", "variable"])


def by_name(columns: Mapping[str, Sequence[str]], values: Array) -> dict[str, dict[str, float]]:
    """Return values of all columns, (n_columns,), by party and variable."""
    each = iter(np.asarray(values, dtype=np.float64).tolist())
    return {party: {name: next(each) for name in names} for party, names in columns.items()}


def coefficient_table(
    columns: Mapping[str, Sequence[str]],
    estimates: Array,
    std_errors: Array | None = None,
    intercept: float | None = None,
    intercept_std_error: float | None = None,
) -> pd.DataFrame:
    """Make the table of coefficients, in label units; NaN where one cannot be told.

    Shapes: estimates, std_errors (n_columns,): of all columns, party by party.
    """
    frame = pd.DataFrame({"estimate": estimates}, index=variables(columns))
    if std_errors is not None:
        frame["std_error"] = std_errors
    if intercept is not None:
        error = np.nan if intercept_std_error is None else intercept_std_error
        first = pd.DataFrame({"estimate": [intercept], "std_error": [error]}, variables(INTERCEPT))
        frame = pd.concat([first[list(frame)], frame])
    if std_errors is None:
        return frame
    frame["z"] = frame["estimate"] / frame["std_error"].where(frame["std_error"] > 0)
    frame["p_value"] = 2.0 * ndtr(-frame["z"].abs())
    half = ndtri(0.5 + _LEVEL / 2) * frame["std_error"]
    frame["ci_low"], frame["ci_high"] = frame["estimate"] - half, frame["estimate"] + half
    return frame
