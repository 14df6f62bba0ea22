"""The table of coefficients that people read."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array

SERVER = "server"
INTERCEPT = "intercept"


def coefficient_table(
    columns: Mapping[str, Sequence[str]],
    estimates: Mapping[str, Array],
    std_errors: Mapping[str, Array] | None = None,
    intercept: float | None = None,
    intercept_std_error: float | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """Make the table of coefficients, in label units; NaN where one cannot be told."""
    index: list[tuple[str, str]] = []
    values: list[float] = []
    errors: list[float] = []
    if intercept is not None:
        index.append((SERVER, INTERCEPT))
        values.append(float(intercept))
        errors.append(np.nan if intercept_std_error is None else float(intercept_std_error))
    for party, names in columns.items():
        index += [(party, name) for name in names]
        values += list(map(float, estimates[party]))
        if std_errors is not None:
            errors += list(map(float, std_errors[party]))
    frame = pd.DataFrame(
        {"estimate": values}, index=pd.MultiIndex.from_tuples(index, names=["party", "variable"])
    )
    if std_errors is None:
        return frame
    frame["std_error"] = errors
    frame["z"] = frame["estimate"] / frame["std_error"].where(frame["std_error"] > 0)
    frame["p_value"] = 2.0 * ndtr(-frame["z"].abs())
    half = ndtri(0.5 + level / 2) * frame["std_error"]
    frame["ci_low"], frame["ci_high"] = frame["estimate"] - half, frame["estimate"] + half
    return frame
