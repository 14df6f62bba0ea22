"""What the baselines have in common: settings, and how the result is filled in."""

import logging
from typing import Any

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from strategies.least_squares.inference import (
    Array,
    coefficients,
    completed_labels,
    predictions,
)
from strategies.least_squares.moments import Moments
from strategies.regression import (
    LABEL_POLICIES,
    Problem,
    check_design_settings,
    open_problem,
)
from strategies.regression.problem import sample_index

logger = logging.getLogger("flwr_vertical")


class Baseline(Strategy):
    """What the three have in common: settings, and how the result is filled in."""

    def __init__(
        self,
        encoding: str = "none",
        missing_cells: str = "error",
        missing_labels: str = "drop",
        standardize: bool = True,
        intercept: bool = True,
        standard_errors: bool = True,
    ) -> None:
        check_design_settings(encoding, missing_cells)
        if missing_labels not in LABEL_POLICIES:
            raise ConfigError(
                f"missing_labels must be one of {list(LABEL_POLICIES)}, got {missing_labels!r}"
            )
        for name, flag in (
            ("standardize", standardize),
            ("intercept", intercept),
            ("standard_errors", standard_errors),
        ):
            if not isinstance(flag, bool):  # bool("false") is True
                raise ConfigError(f"{name} must be true or false, got {flag!r}")
        self.encoding = encoding
        self.missing_cells = missing_cells
        self.missing_labels = missing_labels
        self.standardize = standardize
        self.intercept = intercept
        self.standard_errors = standard_errors

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
