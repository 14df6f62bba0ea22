"""Settings that several regressions have: their fields, stated once."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flwr_vertical.privacy import MOST_DELTA, read_bounds
from flwr_vertical.settings import setting
from strategies.linear.problem import LABEL_POLICIES


def missing_labels() -> Any:
    """Return the field of what becomes of samples without a label."""
    return setting(
        "drop",
        "Samples without a label are not used but predicted, or refused.",
        choices=LABEL_POLICIES,
    )


def epsilon() -> Any:
    """Return the field of the privacy budget of a fit."""
    return setting(
        None,
        "Differential privacy of the values of a row, over all parties and its label: noise on all "
        "that is opened, coefficients by AdaSSP (Wang, 2018). Needs `bounds`; none by default.",
        above=0,
    )


def delta() -> Any:
    """Return the field of delta."""
    return setting(
        1e-6,
        "With `epsilon`; to be well below one over the number of rows.",
        above=0,
        at_most=MOST_DELTA,
    )


def bounds() -> Any:
    """Return the field of public ranges of columns and label, which go with a setting."""
    return setting(
        "",
        "With `epsilon`: public ranges of all columns and of the label, a mapping of column name "
        "to (low, high), or the same as JSON text; the label's is named as the labels are, or "
        "``label``. Values beyond count as the end. Noise grows with the square of the ranges.",
        parse=read_bounds,
    )


def row_norm() -> Any:
    """Return the field of the largest norm of a row, which goes with a setting."""
    return setting(
        1.0,
        "With `epsilon`: largest root mean square of a party's values of a row, each in half "
        "ranges from the middle of its bounds; larger rows are shrunk to it, which biases. Noise "
        "grows with its square: where bounds are four standard deviations wide each way, 0.4 "
        "touches few rows and takes a sixth of the noise.",
        above=0,
        at_most=1,
    )


def demo(
    missing_blocks: float,
    missing_labels: float = 0.0,
    dataset: str = "blood-pressure",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Return the run config of a demonstration with missing blocks, and settings of its own."""
    data = {"dataset": dataset, "missing-cells": 0.0, "missing-blocks": missing_blocks}
    if missing_labels:
        data["missing-labels"] = missing_labels
    named = {f"demo.{key}": value for key, value in data.items()}
    return MappingProxyType({"labels": "demo", **named, **more})
