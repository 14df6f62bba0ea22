"""From the chosen fit to what people read: coefficients, standard errors, predictions, metrics."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array
from flwr_vertical.products import PairKeys, products_of_rotated
from flwr_vertical.results import Progress
from flwr_vertical.server import Total
from strategies.glm.inference import assemble_information, covariance_of
from strategies.glm.model import GLMModel
from strategies.glm.sums.central import null_level
from strategies.glm.sums.fit import FederatedFit
from strategies.glm.sums.fits import CONVERGED, EXHAUSTED, SEPARATED
from strategies.least_squares.baseline import note
from strategies.linear import Problem, coefficient_table
from strategies.linear.problem import sample_index

if TYPE_CHECKING:
    from strategies.glm.strategy import VerticalGLM


LEVEL = 0.95


def fill_result(
    settings: "VerticalGLM",
    federation: Federation,
    alignment: Alignment,
    problem: Problem,
    fit: FederatedFit,
    y: Array,
    result: Result,
    progress: Progress,
) -> None:
    """Collect what is left to be told and fill in the result."""
    n_rounds = len(fit.fits.history)
    metrics = {
        "converged": float(fit.outcome == CONVERGED),
        "iterations": float(n_rounds),
        "n_samples": float(len(y)),
    }
    result.metrics.update(metrics)
    if fit.outcome == SEPARATED:
        note(
            result,
            "separated: the columns tell the labels 0 and 1 apart without error, so that estimates "
            "have no finite value; use penalty='lasso', or leave out columns that give the label "
            "away",
        )
        result.model = GLMModel(SEPARATED, settings.family)
        return
    if fit.outcome == EXHAUSTED and settings.dp == "none":
        note(
            result,
            f"not converged after {n_rounds} rounds; raise max_iter, or look for columns of "
            "different parties that nearly determine each other",
        )
    whole_path = isinstance(settings.lambdas, str) and "," in settings.lambdas
    progress.step("finish")
    total = federation.sum("finish", {"chosen": fit.chosen, "whole_path": whole_path})
    told, names, unit = total.public, federation.parties, fit.unit
    beta = {name: unit * np.asarray(told[name]["beta"]) for name in names}
    offset = sum(float(told[name]["offset"]) for name in names)
    intercept = float(unit * (fit.fits.level[fit.chosen] - offset)) if settings.intercept else None
    eta = unit * (fit.fits.fit[:, fit.chosen] + fit.fits.level[fit.chosen])
    n_selected = sum(int(np.count_nonzero(values)) for values in beta.values())
    freedom = max(len(y) - n_selected - settings.intercept, 1)
    deviance = float(fit.family.deviance(y[:, None], eta[:, None])[0])
    dispersion = deviance / freedom if fit.family.has_dispersion else 1.0
    errors, level_error, covariance = None, None, None
    if settings.standard_errors == "gram" and settings.dp == "none":
        progress.step("standard errors")
        covariance = _covariance(settings, federation, fit, eta, dispersion)
        errors, level_error = _std_errors(covariance, beta)
        if covariance is None:
            note(
                result,
                "no standard errors: the information about the selected coefficients is singular, "
                "since columns determine each other",
            )
    estimates = {
        name: np.where(np.isin(problem.columns[name], problem.collinear[name]), np.nan, own)
        for name, own in beta.items()
    }
    result.coefficients = coefficient_table(
        problem.columns, estimates, errors, intercept, level_error, LEVEL
    )
    null = np.full((len(y), 1), null_level(fit.family, y, settings.intercept))
    explained = 1.0 - deviance / max(float(fit.family.deviance(y[:, None], null)[0]), 1e-300)
    result.metrics = {
        "deviance_explained": explained,
        "deviance": deviance,
        "log_likelihood": fit.family.log_likelihood(y, eta),
        "lambda": float(fit.lambdas[fit.chosen]),
        "n_selected": float(n_selected),
        "dispersion": dispersion,
        **result.metrics,
    }
    if np.isfinite(fit.fits.violation[fit.chosen]):
        result.metrics["kkt_violation"] = float(fit.fits.violation[fit.chosen])
    result.party_metrics = {
        name: {"selected": float(np.count_nonzero(values))} for name, values in beta.items()
    }
    index = pd.MultiIndex.from_tuples(
        [(name, column) for name in names for column in problem.columns[name]],
        names=["party", "variable"],
    )
    result.model = GLMModel(
        fit.outcome,
        settings.family,
        intercept or 0.0,
        {n: dict(zip(problem.columns[n], map(float, beta[n]), strict=True)) for n in names},
        dispersion,
        _path_table(settings, fit, told, whole_path),
        _path_coefficients(told, index, fit) if whole_path else None,
        covariance,
    )
    if problem.has_free:
        _predict(federation, alignment, problem, fit, total, result)


def _covariance(
    settings: "VerticalGLM",
    federation: Federation,
    fit: FederatedFit,
    eta: Array,
    dispersion: float,
) -> Array | None:
    """Work out the covariance of intercept and selected coefficients; up to two rounds."""
    weight = fit.family.variance(eta)
    names = federation.parties
    keys = PairKeys(federation).arguments() if len(names) > 1 else {}
    told = federation.call("rotate_selected", {"weight": weight, **keys})
    information = assemble_information(
        float(weight.sum()),
        [told[name]["sums"] for name in names],
        [told[name]["gram"] for name in names],
        products_of_rotated(told, names),
    )
    return covariance_of(information, dispersion, settings.intercept)


def _std_errors(
    covariance: Array | None, beta: dict[str, Array]
) -> tuple[dict[str, Array], float | None]:
    """Return standard errors by party, NaN where a coefficient is 0, and the intercept's."""
    errors = {name: np.full(len(values), np.nan) for name, values in beta.items()}
    if covariance is None:
        return errors, None
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    start = 1
    for name, values in beta.items():
        chosen = np.flatnonzero(values)
        errors[name][chosen] = spread[start : start + len(chosen)]
        start += len(chosen)
    return errors, float(spread[0])


def _path_table(
    settings: "VerticalGLM", fit: FederatedFit, told: dict[str, dict[str, Any]], whole: bool
) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "bic": fit.bic,
            "selected": fit.selected,
            "rounds": fit.fits.rounds,
            "tolerated": fit.fits.tolerated,
            "outcome": fit.fits.outcomes,
        },
        index=pd.Index(fit.lambdas, name="lambda"),
    )
    if whole and settings.intercept:
        offsets = np.sum([values["offsets"] for values in told.values()], axis=0)
        table["intercept"] = fit.unit * (fit.fits.level - offsets)
    return table


def _path_coefficients(
    told: dict[str, dict[str, Any]], index: pd.MultiIndex, fit: FederatedFit
) -> pd.DataFrame:
    values = fit.unit * np.concatenate([told[name]["path"] for name in told])
    return pd.DataFrame(values, index=index, columns=pd.Index(fit.lambdas, name="lambda"))


def _predict(
    federation: Federation,
    alignment: Alignment,
    problem: Problem,
    fit: FederatedFit,
    total: Total,
    result: Result,
) -> None:
    """Predict the samples without a label that all parties hold."""
    whole = ~problem.free_mask.any(axis=1)
    eta = fit.unit * (total["fit"] + fit.fits.level[fit.chosen])[whole]
    if not whole.all():
        note(
            result,
            f"{int((~whole).sum()):,} samples without a label are not predicted, since some party "
            "lacks them",
        )
    result.predictions = pd.DataFrame(
        {"prediction": fit.family.mean(eta), "linear_predictor": eta},
        index=sample_index(alignment, result.labels, problem.free[whole]),
    )
