"""VerticalLR: logistic regression with a ridge, the binomial model of `VerticalGLM`.

===============  ===================================================================================
round            what travels
===============  ===================================================================================
prepare_moments, as of `VerticalGLM`: moments of the columns and the labels
seal_group_seed,
send_masked,
open_products
send_digits,     two rounds for each evaluation of the means and two more; mostly four evaluations
place_fits,
open_means
finish_moments   coefficients to the parties; the sum of terms of samples without a label
===============  ===================================================================================
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.results import Progress
from strategies.classifiers.labels import check_two_classes
from strategies.classifiers.linear import (
    COMMON,
    DEMO,
    NAMES,
    PARTIES,
    PREDICTIONS,
    UNITS,
    LinearClassifier,
    on_present_columns,
    two_classes_in,
)
from strategies.glm.means import check_federation, given_labels, maximum_likelihood
from strategies.least_squares.baseline import note
from strategies.linear.families import family_named
from strategies.linear.prediction.table import CLASSES


class VerticalLR(LinearClassifier):
    """Logistic regression over all parties' columns, with a ridge.

    Minimises ``sum of log(1 + exp(eta)) - y eta + l2 * sum of beta_j^2`` on the labelled samples
    that all parties hold, ``eta = intercept + sum over parties of x_k' beta_k``: the estimates are
    those of `sklearn.linear_model.LogisticRegression` with ``C = 1 / (2 l2)`` on the pooled table.

    Samples whose label is NaN are predicted: `Result.predictions` has ``prediction``,
    ``probability_0`` and ``probability_1``. Where a party lacks such a sample, its columns are
    expected given those of the others, and probabilities are means over what is left open.
    `Result.predict` predicts new rows.

    Notes
    -----
    Two parties or more, and sums ``masked`` or ``plain``. For penalties that select columns, and
    standard errors, see `VerticalGLM`, whose protocol and disclosure this is.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=600), "b": rng.normal(size=600)})
    >>> court = pd.DataFrame({"c": rng.normal(size=600)})
    >>> y = (bank["a"] - court["c"] + rng.normal(size=600) > 0).astype(float)
    >>> y[500:] = np.nan
    >>> result = simulate(VerticalLR(), {"bank": bank, "court": court}, y, progress=False)
    >>> list(result.predictions.columns)
    ['prediction', 'probability_0', 'probability_1']
    """

    name: ClassVar[str] = "lr"
    family: ClassVar[str] = "binomial"
    demo: ClassVar[Mapping[str, Any]] = DEMO
    disclosure = (
        NAMES,
        (
            "server",
            "over the labelled samples that all parties hold: sums of columns, of products of two "
            "columns, and of products of a column and the label",
        ),
        (
            "server",
            "for each evaluation, at coefficients of its choice, the sum of the means and of each "
            "column times them, and how far linear predictors reach, to a grid; at the maximum, "
            "also products of two columns weighted by the labels' variance, and the sum of the "
            "cumulants",
        ),
        UNITS,
        PREDICTIONS,
        PARTIES,
        *COMMON,
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open moments, find the maximum by masked means, and hand out coefficients."""
        check_two_classes(federation.labels, type(self).__name__)
        check_federation(self.family, federation)
        progress.total = 3
        opened = self._open(federation, alignment, result)
        progress.step("moments")
        y = given_labels(federation, opened.problem)[opened.groups.group >= 0]
        two_classes_in(y, type(self).__name__)
        rows = self._complete(opened, result, "VerticalGBDT uses them, too")
        maximum = maximum_likelihood(self, federation, opened, self.l2, cure="raise l2")
        progress.step("fit")
        beta = maximum.at.estimate[1:]
        intercept = float(maximum.at.estimate[0] - maximum.at.center @ beta) * self.intercept
        self._fill_in(opened, rows, intercept, beta, result)
        family = family_named(self.family)
        level = family.link(float(y.mean())) if self.intercept else 0.0
        null = float(family.deviance(y[:, None], np.full((len(y), 1), level))[0])
        result.metrics |= {
            "deviance": maximum.deviance,
            "deviance_explained": 1.0 - maximum.deviance / max(null, 1e-300),
            "log_likelihood": maximum.log_likelihood,
            "iterations": float(maximum.evaluations),
            "converged": float(maximum.converged),
        }
        for text in maximum.notes:
            note(result, text)
        if not maximum.converged:
            note(
                result,
                f"not converged after {maximum.evaluations} evaluations of the means; look for "
                "columns that have values far out",
            )
        noise = maximum.at.working_variance
        found = on_present_columns(opened, rows, intercept, beta, noise, CLASSES)
        self._predict(federation, alignment, opened, found, result)
        progress.step("keep")
