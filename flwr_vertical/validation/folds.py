"""Folds of samples; pure numerics."""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import DataError

MOST_CLASSES = 50
"""Whole numbers of more different values are not taken for classes."""


def are_classes(labels: Array) -> bool:
    """Tell whether labels look like classes: few different whole numbers from 0 on.

    Shapes: labels (n_labelled,).
    """
    found = np.unique(labels)
    return bool(
        len(found) <= min(MOST_CLASSES, max(2, len(labels) // 5))
        and (found == np.round(found)).all()
        and (found >= 0).all()
    )


def make_folds(labels: Array, n_folds: int, seed: int, stratify: bool) -> Indices:
    """Assign each sample to a fold.

    Shapes: labels (n_labelled,); returns (n_labelled,): numbers of the folds, from 0.
    """
    # Parties import this package with every message; scikit-learn costs them a second.
    from sklearn.model_selection import KFold, StratifiedKFold

    if len(labels) < n_folds:
        raise DataError(f"{len(labels)} samples have a label; {n_folds} folds need as many or more")
    if stratify:
        values, counts = np.unique(labels, return_counts=True)
        rarest = int(counts.argmin())
        if counts[rarest] < n_folds:
            raise DataError(
                f"label {values[rarest]:g} has {counts[rarest]} samples, and {n_folds} folds are "
                "to have one each at least; take fewer folds, merge classes, or set stratify=False"
            )
    kind = StratifiedKFold if stratify else KFold
    splitter = kind(n_folds, shuffle=True, random_state=seed)
    out = np.empty(len(labels), dtype=np.int64)
    for fold, (_, test) in enumerate(splitter.split(labels[:, None], labels)):
        out[test] = fold
    return out
