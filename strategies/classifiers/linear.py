"""What linear classifiers share: settings, moments, and how the result is filled in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from flwr_vertical.settings import setting
from strategies.classifiers.party import ClassifierParty
from strategies.glm.likelihoods import moments_of, usable_rows
from strategies.glm.predictions import conditional_regressions
from strategies.linear import coefficient_table
from strategies.linear import settings as shared
from strategies.linear.moment_party import MomentArbiter
from strategies.linear.moments import OpenedMoments, Pattern, complete_rows, open_moments
from strategies.linear.moments.collect import Grouping
from strategies.linear.moments.disclosure import COLLUSION, RECOGNISED, WITHHELD
from strategies.linear.prediction import Regressions, keep_and_predict

FLAT = 1e-9
"""A column whose variance is below this, in rough units, does not vary."""

DEMO: Mapping[str, Any] = MappingProxyType(
    {
        "labels": "demo",
        "demo.missing-cells": 0.0,
        "demo.missing-blocks": 0.2,
        "demo.missing-labels": 0.3,
    }
)
"""Of the demonstration: its default data have labels 0 and 1."""

NAMES = ("server", "names of the parties' columns, and rows left out")
UNITS = (
    "server",
    "a rough unit of each column (a power of two near its standard deviation) and a centre to a "
    "quarter of it",
)
PREDICTIONS = (
    "server",
    "for each sample without a label, the sum of the parties' rounded terms: log odds, or the "
    "decision value; and how many bits a party's term tells",
)
PARTIES = (
    "every party",
    "its own coefficients, of the fit and at each evaluation, and the function that is evaluated, "
    "from which the intercept follows; which samples have a label, and which labelled samples the "
    "fit uses; of single labels, random numbers only",
)
COMMON = (WITHHELD, *RECOGNISED, *COLLUSION)


class LinearClassifier(Strategy):
    """The settings that linear classifiers have in common, and their parties."""

    l2: float = setting(
        0.5,
        "What the sum of squared coefficients is multiplied by, beside the sum of losses: "
        "scikit-learn's ``1 / (2 C)``, or the ``alpha`` of its ridge.",
        at_least=0,
    )
    intercept: bool = setting(True, "Whether there is one. It has no penalty.")
    standardize: bool = setting(
        True,
        "Whether the penalty treats columns in units of their standard deviation. Results are in "
        "the units given.",
    )
    encoding: str = shared.encoding()
    missing_cells: str = shared.missing_cells()
    missing_labels: str = shared.missing_labels()

    needs_labels = True
    party = ClassifierParty
    arbiter = MomentArbiter

    def _open(
        self,
        federation: Federation,
        alignment: Alignment,
        result: Result,
        grouping: Grouping = complete_rows,
    ) -> OpenedMoments:
        """Open the moments of columns and labels."""
        return open_moments(
            federation,
            alignment,
            result,
            encoding=self.encoding,
            missing_cells=self.missing_cells,
            missing_labels=self.missing_labels,
            intercept=self.intercept,
            grouping=grouping,
        )

    def _complete(self, opened: OpenedMoments, result: Result, more: str) -> Pattern:
        """Return the moments of the complete rows, with zeros for columns that cannot be used."""
        rows = usable_rows(
            opened, result, intercept=self.intercept, penalised=self.l2 > 0.0, more=more
        )
        result.metrics["n_samples"] = rows.n_rows
        return rows

    def _fill_in(
        self, opened: OpenedMoments, rows: Pattern, intercept: float, beta: Array, result: Result
    ) -> None:
        """Fill in the table of coefficients, in the units of the columns.

        Columns that are withheld or constant in the rows of the fit have none.
        """
        absent = (beta == 0.0) & (np.diag(rows.products)[:-1] <= FLAT * rows.n_rows)
        estimates = np.where(absent, np.nan, beta)
        result.coefficients = coefficient_table(
            opened.problem.columns,
            {name: estimates[own] for name, own in opened.parties.items()},
            intercept=intercept if self.intercept else None,
        )

    def _predict(
        self,
        federation: Federation,
        alignment: Alignment,
        opened: OpenedMoments,
        regressions: Regressions,
        result: Result,
    ) -> None:
        """Have each party keep its coefficients, and predict samples without a label."""
        problem = opened.problem
        keep_and_predict(
            federation,
            alignment,
            result,
            regressions,
            problem.free,
            problem.free_mask,
            step="finish_moments",
        )


def on_present_columns(
    opened: OpenedMoments,
    rows: Pattern,
    intercept: float,
    beta: Array,
    noise: float,
    family: str,
) -> Regressions:
    """Return what predicts: absent parties' columns are expected given those of the others.

    Shapes: beta (n_columns,): in the units of the columns.
    """
    mean, covariance = moments_of(rows, opened)
    widths = [own.stop - own.start for own in opened.parties.values()]
    return conditional_regressions(mean, covariance, intercept, beta, None, noise, widths, family)


def two_classes_in(labels: Array, name: str) -> None:
    """Raise `DataError` if the samples of a fit are of one class."""
    if len(labels) and np.ptp(labels) == 0:
        raise DataError(
            f"{name}: the labels of all {len(labels):,} samples that all parties hold are "
            f"{labels[0]:g}; a classifier needs samples of both classes. Align more samples, or "
            "use a method that needs no complete rows (VerticalGBDT)"
        )
