"""Have the networks fill what rules did not: the server's course through the second stage."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Floats32
from flwr_vertical.errors import DataError
from flwr_vertical.results import Progress

if TYPE_CHECKING:
    from strategies.fedpsg.gan.halves import Shape


MOST_CLASSES = 50


def class_columns(federation: Federation) -> Floats32:
    """Return what CGAIN is given of the labels: a column for each class."""
    from strategies.fedpsg.gan.training import one_hot

    if federation.labels is None or np.isnan(federation.labels).all():
        raise DataError("imputer 'cgain' needs labels, and none are given; take 'gain'")
    columns = one_hot(federation.labels)
    if columns.shape[1] > MOST_CLASSES:
        raise DataError(
            f"imputer 'cgain' is given labels of {columns.shape[1]} different values, and takes at "
            f"most {MOST_CLASSES} classes; group the labels, or take 'gain'"
        )
    return columns


def train_and_impute(
    federation: Federation,
    shape: "Shape",
    labels: Floats32 | None,
    steps: tuple[int, int],
    common: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    history: list[dict[str, Any]],
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Train the networks, and have them fill what rules did not.

    Shapes: labels (n_samples, n_labels): for CGAIN.
    """
    from strategies.fedpsg.gan.training import Training

    told = federation.call("receive", {**common, **asdict(shape)}, per_party=targets)
    widths = {name: np.asarray(of["widths"], dtype=np.int64) for name, of in told.items()}
    missing = {name: np.asarray(of["missing"], dtype=np.uint8) for name, of in told.items()}
    if labels is None:
        labels = np.zeros((len(next(iter(missing.values()))), 0), dtype=np.float32)
    iterations, batch = steps
    progress.total = (progress.total or 0) + iterations
    training = Training(federation, shape, widths, missing, labels)
    training.run(iterations, batch, history, progress)
    training.impute()
    return federation.call("finish")
