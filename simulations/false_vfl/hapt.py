"""HAPT, human activities and postural transitions, from the files that UCI has.

``hapt/Train/X_train.txt`` and ``y_train.txt``, ``hapt/Test/X_test.txt`` and ``y_test.txt``, as the
archive "HAPT Data Set" has them: 561 numbers a line, separated by blanks, and a class from 1 to 12.
Test samples are the data set's own, of nine volunteers that no training sample is of. Eight parties
get 70 columns each; the one dropped is the last.
"""

import numpy as np
import pandas as pd

from flwr_vertical.errors import DataError
from simulations.data import Sources
from simulations.false_vfl.data import N_PARTIES, Labels, Split, standardised

N_COLUMNS, N_CLASSES, COLUMNS_EACH = 561, 12, 70


def load_hapt(sources: Sources) -> Split:
    """Load HAPT."""
    (train, train_labels), (test, test_labels) = (_part(sources, n) for n in ("Train", "Test"))
    kept = [f"f{i}" for i in range(1, N_PARTIES * COLUMNS_EACH + 1)]
    return standardised(train[kept], test[kept], train_labels, test_labels, N_CLASSES)


def _part(sources: Sources, name: str) -> tuple[pd.DataFrame, Labels]:
    path = sources.path(f"hapt/{name}/X_{name.lower()}.txt")
    try:
        frame = pd.read_csv(path, sep=r"\s+", header=None, dtype=float)
    except ValueError as error:
        raise DataError(f"{path} is not a file of numbers: {error}") from error
    if frame.shape[1] != N_COLUMNS or bool(frame.isna().to_numpy().any()):
        raise DataError(
            f"{path} has lines of {frame.shape[1]} numbers, some perhaps shorter; expected UCI's "
            f"file with {N_COLUMNS} a line"
        )
    frame.columns = pd.Index([f"f{i}" for i in range(1, N_COLUMNS + 1)])
    where = sources.path(f"hapt/{name}/y_{name.lower()}.txt")
    classes = pd.read_csv(where, header=None)[0].to_numpy()
    if len(classes) != len(frame) or not np.isin(classes, range(1, N_CLASSES + 1)).all():
        raise DataError(
            f"{where} has {len(classes)} labels from {classes.min()} to {classes.max()}; expected "
            f"one from 1 to {N_CLASSES} for each of the {len(frame)} lines of {path.name}"
        )
    return frame, classes.astype(np.int64) - 1
