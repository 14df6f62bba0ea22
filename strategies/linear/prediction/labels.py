"""Labels completed with predictions."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array
from strategies.linear.problem import sample_index


def completed_labels(
    alignment: Alignment,
    labels: "pd.Series[Any] | None",
    known: Array,
    predicted: pd.DataFrame | None,
    free: npt.NDArray[np.int64],
) -> "pd.Series[Any] | None":
    """Complete the server's labels with predictions.

    Shapes: known (n_samples,): labels in aligned order, NaN where there is none; predicted
    (n_unlabelled, 4): of the samples without a label; free (n_unlabelled,): their aligned row
    numbers.
    """
    if predicted is None:
        return labels
    values = known.copy()
    values[free] = predicted["prediction"].to_numpy()
    if labels is None or alignment.label_rows is None:
        names = sample_index(alignment, None, np.arange(alignment.n_samples))
        return pd.Series(values, index=names, name="label")
    rows = alignment.label_rows
    given = labels.astype(float)
    completed = pd.Series(
        np.where(rows >= 0, values[rows], given.to_numpy()), index=labels.index, name=labels.name
    )
    new = ~np.isin(free, rows)
    if not new.any() or isinstance(labels.index, pd.MultiIndex):
        return completed
    index = labels.index.append(predicted.index[new]).rename(labels.index.name)
    both = np.concatenate([completed.to_numpy(), values[free[new]]])
    return pd.Series(both, index=index, name=labels.name)
