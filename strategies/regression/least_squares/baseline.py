"""What the baselines have in common: settings, and how the result is filled in."""

import logging
from types import MappingProxyType
from typing import Any

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.settings import setting
from strategies.regression import (
    Problem,
    open_problem,
)
from strategies.regression import settings as shared
from strategies.regression.least_squares.inference import (
    Array,
    coefficients,
    predictions,
)
from strategies.regression.least_squares.moments import Moments
from strategies.regression.prediction.labels import completed_labels
from strategies.regression.problem import sample_index

logger = logging.getLogger("flwr_vertical")


class Baseline(Strategy):
    """What the three have in common: settings, and how the result is filled in."""

    encoding: str = shared.encoding()
    missing_cells: str = shared.missing_cells()
    missing_labels: str = shared.missing_labels()
    standardize: bool = setting(
        True,
        "Compute in units of each column's standard deviation; results are in the units given.",
    )
    intercept: bool = setting(True, "Whether the model has one.")
    standard_errors: bool = setting(True, "Whether there are any.")

    needs_labels = True
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.dataset": "diabetes",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.3,
        }
    )

    def _open(
        self, federation: Federation, alignment: Alignment, result: Result, **extra: Any
    ) -> Problem:
        return open_problem(
            federation,
            alignment,
            result,
            encoding=self.encoding,
            missing_cells=self.missing_cells,
            missing_labels=self.missing_labels,
            standardize=self.standardize,
            intercept=self.intercept,
            extra=extra,
        )

    def _fill_in(
        self,
        result: Result,
        problem: Problem,
        moments: Moments,
        told: dict[str, dict[str, Any]],
        iterations: int,
        converged: bool,
    ) -> None:
        result.coefficients = coefficients(problem, moments, told, self.standard_errors)
        result.metrics.update(
            moments.metrics(problem.y_scale)
            | {"iterations": float(iterations), "converged": float(converged)}
        )
        for name, values in told.items():
            fresh = [c for c in values["dependent"] if c not in problem.collinear[name]]
            if fresh:
                note(
                    result,
                    f"party {name!r}: over the samples of the fit, columns {fresh} are constant or "
                    "follow from others of its columns; their coefficients mean nothing by "
                    "themselves",
                )

    def _predict(
        self,
        federation: Federation,
        alignment: Alignment,
        result: Result,
        problem: Problem,
        moments: Moments,
        fit: Array,
        leverage: Array | None,
        unseen: Array,
    ) -> None:
        """Fill in predictions of the samples without a label, and complete the labels."""
        if not problem.has_free:
            return
        index = sample_index(alignment, result.labels, problem.free)
        result.predictions = predictions(problem, moments, index, fit, leverage, unseen)
        result.labels = completed_labels(
            alignment, result.labels, federation.labels, result.predictions, problem.free
        )


def note(result: Result, text: str) -> None:
    """Log a warning and keep it in the result."""
    logger.warning("%s", text)
    result.notes.append(text)
