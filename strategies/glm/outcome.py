"""From a selection at the server to what people read: coefficients, standard errors, model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Model, Result
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.page import Section
from strategies.glm.approximation import Approximation
from strategies.glm.selection import Selection
from strategies.glm.summary import text_of
from strategies.glm.unseen import Unseen
from strategies.linear.coefficients import by_name, coefficient_table, variables
from strategies.linear.problem import Problem, note

CONVERGED, NOT_CONVERGED = "converged", "not converged"


@dataclass
class GLMModel(Model):
    """What the server knows of a fitted model.

    Parameters
    ----------
    outcome : str
        ``converged`` or ``not converged``; of the iterations of `glm-admm` ``max iterations``.
    family : str
    intercept : float
        0 if there is none.
    coefficients : dict of str to dict of str to float
        By party and variable.
    dispersion : float
        Variance of the noise of a gaussian fit (of a sample of weight 1); else 1, or Pearson's
        chi-squared over the degrees of freedom.
    path : pandas.DataFrame
        By lambda: ``bic``, ``selected``, ``intercept``; of iterations also ``outcome`` and
        ``rounds``, and no ``intercept``.
    path_coefficients : pandas.DataFrame, optional
        Index (party, variable), a column for each lambda; not of iterations.
    covariance : numpy.ndarray, optional
        Of intercept and selected coefficients, in the table's order.
    ridged : list of str
        Columns, as ``party:variable``, whose coefficients have a ridge since they would grow
        without end; their standard errors are NaN.
    errors : str
        How standard errors were made.
    statistics : dict of str to float
        What `summary` prints above the coefficients.
    table : pandas.DataFrame, optional
        `Result.coefficients`, with variance inflation factors (``vif``).
    """

    strategy = "glm"

    outcome: str
    family: str = ""
    intercept: float = 0.0
    coefficients: dict[str, dict[str, float]] = field(default_factory=dict)
    dispersion: float = 1.0
    path: pd.DataFrame | None = None
    path_coefficients: pd.DataFrame | None = None
    covariance: Any = None
    ridged: list[str] = field(default_factory=list)
    errors: str = ""
    statistics: dict[str, float] = field(default_factory=dict)
    table: pd.DataFrame | None = None

    def summary(self, stars: bool = False) -> str:
        """Return the table that statistical packages print, as text.

        Parameters
        ----------
        stars : bool
            Whether small p values are marked.
        """
        if self.table is None:
            raise ConfigError("a model of iterations, or of an older version, has no summary")
        title = f"Generalised linear model, columns of {', '.join(self.coefficients)}"
        text = text_of(title, self.family, self.errors, self.statistics, self.table, stars)
        if self.outcome == NOT_CONVERGED:
            text += "\nNot converged: coefficients and errors are those of the last step."
        return text

    def sections(self) -> Iterator[Section]:
        """Return the report's own section: the summary."""
        if self.table is not None:
            yield Section("Summary", f"<pre>{escape(self.summary())}</pre>")


@dataclass(frozen=True)
class Reported:
    """What the server works out of the chosen fit."""

    beta: Array  # (n_columns,): of all parties' columns, in their order
    intercept: float  # 0 if there is none
    dispersion: float  # Noise variance with the selected coefficients counted, or 1
    # (1 + n_selected, 1 + n_selected): of intercept and selected coefficients
    covariance: Array | None


def fill_selected(
    family: str,
    problem: Problem,
    at: Approximation,
    found: Selection,
    with_errors: bool,
    result: Result,
    added: Array | None,
    unknown: Flags | None,
    ridged: Flags | None,
    unseen: Unseen | None,
    dispersion: float | None,
) -> Reported:
    """Fill coefficients, metrics and model of the chosen fit into the result.

    Shapes: added (1 + n_selected, 1 + n_selected): what noise on the moments adds to the
    covariance of intercept and selected coefficients; unknown (1 + n_columns,): intercept and
    coefficients that the data do not tell: these have no standard errors; ridged (n_columns,):
    coefficients that only a ridge keeps finite: nor have these.
    `dispersion`: that which was estimated of labels that have none; `unseen`: what corrects
    coefficients and errors for means in place of columns.
    """
    beta, intercept = found.beta[:, found.chosen], float(found.intercepts[found.chosen])
    chosen = np.flatnonzero(beta)
    noise = at.noise_of(beta)
    freedom = max(at.n_rows - len(chosen) - at.intercept, 1.0)
    if dispersion is None:
        dispersion = 1.0 if at.noise is None else noise * at.n_rows / freedom
    covariance = at.covariance(chosen, dispersion) if with_errors else None
    if covariance is not None and added is not None:
        covariance = covariance + added
    if unseen is not None and unseen.any:
        beta, intercept, covariance = _corrected(unseen, beta, intercept, covariance, result)
    elif with_errors and covariance is None:
        note(
            result,
            "no standard errors: the information about the selected coefficients is singular, "
            "since columns determine each other",
        )
    # Columns without a unit are in no fit: they have no coefficient, not one that is zero.
    estimates = np.where(at.scale > 0.0, beta, np.nan)
    errors: Array | None = None
    level_error: float | None = None
    if with_errors:
        spread = np.full(1 + len(beta), np.nan)
        if covariance is not None:
            kept = np.concatenate([[0], 1 + chosen])
            spread[kept] = np.sqrt(np.maximum(np.diag(covariance), 0.0))
            if unknown is not None:
                spread[unknown] = np.nan
            if ridged is not None:
                spread[1:][ridged] = np.nan
            level_error = float(spread[0])
        errors = spread[1:]
    result.coefficients = coefficient_table(
        problem.columns, estimates, errors, intercept if at.intercept else None, level_error
    )
    result.metrics.update(
        {
            "lambda": float(found.lambdas[found.chosen]),
            "n_selected": float(len(chosen)),
            "dispersion": dispersion * at.mean_weight,
            "converged": 1.0,
            "n_samples": at.n_rows,
            "kkt_violation": found.violation,
        }
    )
    result.party_metrics = {
        name: {"selected": float(sum(value != 0.0 for value in own.values()))}
        for name, own in by_name(problem.columns, beta).items()
    }
    lambdas = pd.Index(found.lambdas, name="lambda")
    result.model = GLMModel(
        CONVERGED,
        family,
        intercept,
        by_name(problem.columns, estimates),
        dispersion * at.mean_weight,
        pd.DataFrame(
            {"bic": found.bic, "selected": found.selected, "intercept": found.intercepts},
            index=lambdas,
        ),
        pd.DataFrame(found.beta, index=variables(problem.columns), columns=lambdas),
        covariance,
        [":".join(pair) for pair in variables(problem.columns)[ridged]]
        if ridged is not None
        else [],
    )
    return Reported(beta, intercept, dispersion, covariance)


def _corrected(
    unseen: Unseen, beta: Array, intercept: float, covariance: Array | None, result: Result
) -> tuple[Array, float, Array | None]:
    """Return coefficients and errors without the error of means in place of columns."""
    found = None if covariance is None else unseen.corrected(intercept, beta, covariance)
    if found is None:
        note(
            result,
            "no standard errors, and coefficients are those of means in place of missing columns, "
            "uncorrected: the equations of the correction have no solution, or columns determine "
            "each other",
        )
        return beta, intercept, None
    return found
