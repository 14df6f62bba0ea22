"""Times and events in one column of labels: a time, negative where it was censored.

One column, since labels are one column wherever they lie: at the server, in a file, at the party
that holds them. The sign is the convention of XGBoost's ``survival:cox``.
"""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.results.survival import read_times
from flwr_vertical.tables import label_index


def survival_labels(
    time: "pd.Series[Any]",
    event: "pd.Series[Any]",
    strata: "pd.Series[Any] | None" = None,
    stratum_span: float | None = None,
) -> "pd.Series[float]":
    """Return times as labels, negative where they were censored.

    Parameters
    ----------
    time : pandas.Series
        Until the event or the end of observation, above 0, by sample ID; NaN = unknown.
    event : pandas.Series
        Whether the event was observed (0 or 1), by the same sample IDs.
    strata : pandas.Series, optional
        Stratum of each sample, whole numbers from 0, by the same sample IDs.
    stratum_span : float, optional
        With strata: a number that no time reaches, of which each stratum adds one more to its
        times; `Cox` has the setting of this name.

    Returns
    -------
    pandas.Series

    Raises
    ------
    DataError
        If sample IDs differ, a time is not above 0 or reaches the span, or what is no number.
    """
    index = time.index
    beside = {"event": event} if strata is None else {"event": event, "strata": strata}
    for name, other in {"time": time, **beside}.items():
        label_index(other, name)
        if not other.index.equals(index):
            raise DataError(f"{name} must have the sample IDs of time, in the same order")
    values, happened = time.to_numpy(dtype=float), event.to_numpy(dtype=float)
    known = ~np.isnan(values)
    if not np.isin(happened[known], (0.0, 1.0)).all():
        raise DataError("event must be 1 where it was observed, else 0, wherever there is a time")
    if not ((values[known] > 0.0) & np.isfinite(values[known])).all():
        raise DataError(
            f"times must be above 0, got {values[known].min():g} to {values[known].max():g}, and "
            "finite; add half of the unit of time"
        )
    if strata is not None:
        if stratum_span is None or values[known].max(initial=0.0) >= stratum_span:
            raise DataError(
                "strata need stratum_span, a number that no time reaches; the longest time is "
                f"{values[known].max(initial=0.0):g}, and stratum_span {stratum_span}"
            )
        number = strata.to_numpy(dtype=float)
        if not ((number[known] >= 0.0) & (number[known] % 1.0 == 0.0)).all():
            raise DataError("strata must be whole numbers from 0 wherever there is a time")
        values = values + stratum_span * number
    signed = np.where(happened == 1.0, values, -values)
    return pd.Series(signed, index=index, name=time.name, dtype=float)


def read_labels(labels: Array, span: float | None) -> tuple[Array, Flags, Indices]:
    """Return times, events and strata of labels that are known, all of shape (n,)."""
    time, event, stratum = read_times(labels, span)
    if not event.any():
        raise DataError(
            f"none of {len(labels):,} labels is above 0: no event was observed. Labels are times, "
            "negative where they were censored"
        )
    return time, event, stratum
