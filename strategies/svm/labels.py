"""Labels of two classes, checked before the first round."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError


def check_two_classes(labels: "npt.NDArray[Any]", name: str) -> None:
    """Raise unless labels, NaN where there is none, are 0 and 1, and both occur."""
    found = np.unique(labels[~np.isnan(labels)])
    if not len(found):
        raise DataError(f"{name} needs samples with a label; all are NaN")
    shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if len(found) > 5 else "")
    if len(found) > 2:
        raise DataError(
            f"{name} tells two classes apart; expected labels 0 and 1, got {len(found)} different "
            f"({shown}). For more classes use VerticalGBDT(objective='multiclass') or FinalNet, "
            "which want them coded as 0, 1, 2, ..."
        )
    if not np.isin(found, (0.0, 1.0)).all():
        code = f": {found[0]:g} as 0 and {found[1]:g} as 1" if len(found) == 2 else ""
        raise DataError(
            f"{name} needs labels 0 and 1, got {shown}; code the classes as 0 and 1{code}"
        )
    if len(found) == 1:
        raise DataError(
            f"{name}: all labels are {found[0]:g}; a classifier needs samples of both classes"
        )


def two_classes_in(labels: Array, name: str) -> None:
    """Raise `DataError` if the samples of a fit are of one class."""
    if len(labels) and np.ptp(labels) == 0:
        raise DataError(
            f"{name}: the labels of all {len(labels):,} samples that all parties hold are "
            f"{labels[0]:g}; a classifier needs samples of both classes. Align more samples, or "
            "use a method that needs no complete rows (VerticalGBDT)"
        )
