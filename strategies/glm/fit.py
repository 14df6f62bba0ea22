"""The server half on moments: sums of columns and labels, and no iteration with the parties."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products.row_groups import RowGroups
from flwr_vertical.results import Progress
from strategies.glm.approximation import Approximation, Selection, select
from strategies.glm.inference_table import fill_selected
from strategies.glm.lambda_path import grid, parse_lambdas, stated
from strategies.glm.likelihoods import moments_of, of_all_rows, of_complete_rows, usable_rows
from strategies.glm.means import (
    MaximumLikelihood,
    check_federation,
    given_labels,
    maximum_likelihood,
)
from strategies.glm.penalties import check_penalty
from strategies.glm.predictions import conditional_regressions
from strategies.glm.samples import names_by_party
from strategies.least_squares.baseline import note
from strategies.linear import Problem
from strategies.linear.families import family_named
from strategies.linear.moments import (
    OpenedMoments,
    Pattern,
    by_pattern,
    complete_rows,
    noisy_least_squares,
    open_moments,
)
from strategies.linear.moments.dp_moments import moved_by
from strategies.linear.moments.dp_statement import state_privacy
from strategies.linear.moments.groups import Minimum
from strategies.linear.prediction import keep_and_predict

if TYPE_CHECKING:
    from strategies.glm.strategy import VerticalGLM


_CHOICES = 4
"""How often BIC may choose another value of lambda; of two alike it would go on for ever."""


def fit_on_moments(
    settings: "VerticalGLM",
    federation: Federation,
    alignment: Alignment,
    result: Result,
    progress: Progress,
) -> None:
    """Open sums, select at the server, and have the parties keep their coefficients.

    Five rounds with gaussian labels, whatever the number of lambdas; with others, two more for each
    evaluation of the means, and two; with a penalty, three more for each time that the likelihood
    is expanded about the chosen fit.
    """
    _check(settings, federation)
    progress.total = 2
    whole = settings.rows == "complete"
    opened = open_moments(
        federation,
        alignment,
        result,
        encoding=settings.encoding,
        missing_cells=settings.missing_cells,
        missing_labels=settings.missing_labels,
        intercept=settings.intercept,
        grouping=partial(_complete_rows, settings) if whole else by_pattern,
        budget=settings.budget,
    )
    progress.step("moments")
    problem = opened.problem
    penalised = penalised_columns(str(settings.unpenalized), problem)
    path = _Path(settings, penalised)
    maximum: MaximumLikelihood | None = None
    unknown: Flags | None = None
    if whole:
        rows = usable_rows(
            opened,
            result,
            intercept=settings.intercept,
            penalised=settings.penalty != "none" or settings.family != "gaussian",
            noisy=settings.budget is not None,
            more=_of_incomplete(settings),
        )
        if settings.budget is not None:
            noisy = noisy_least_squares(rows, (opened.noise or [])[:1], settings.intercept)
            rows = noisy.rows
            state_privacy(result, settings.budget, opened, noisy)
        mean, covariance = moments_of(rows, opened)
        if settings.family == "gaussian":
            at = of_complete_rows(settings, opened, rows)
        else:
            if path.lambdas is None:
                path.lambdas = _grid(settings, opened, rows, penalised)
            maximum = maximum_likelihood(
                settings,
                federation,
                opened,
                choose=path.choose if path.penalty != "none" else None,
            )
            at = maximum.at
    else:
        at, mean, covariance, unknown = of_all_rows(settings, opened, result)
    found = path.found if maximum is not None and path.found is not None else path.select(at)
    with_errors = settings.standard_errors == "gram"
    beta, level = found.beta[:, found.chosen], float(found.intercepts[found.chosen])
    added = noise_covariance(opened, rows, beta, level, settings.intercept) if whole else None
    ridged = maximum.bounded if maximum is not None else np.zeros(len(beta), dtype=bool)
    if unknown is None:
        unknown = np.zeros(1 + len(beta), dtype=bool)
    chosen = fill_selected(
        settings.family, problem, at, found, with_errors, result, added, unknown, ridged
    )
    if not whole:
        result.metrics["n_samples"] = opened.n_used
    if maximum is None:
        _fill_normal(at, chosen.beta, whole, result)
    else:
        y = given_labels(federation, problem)[opened.groups.group >= 0]
        _fill_means(maximum, found, settings, y, result)
    free = problem.free if settings.budget is None else problem.free[:0]
    keep_and_predict(
        federation,
        alignment,
        result,
        conditional_regressions(
            mean,
            covariance,
            chosen.intercept,
            chosen.beta,
            chosen.covariance,
            at.working_variance if maximum else chosen.dispersion,
            [len(problem.columns[name]) for name in federation.parties],
            settings.family,
        ),
        free,
        problem.free_mask[: len(free)],
        step="finish_moments",
    )
    progress.step("keep")


def _of_incomplete(settings: "VerticalGLM") -> str:
    """Say what uses the rows that some party lacks."""
    if (settings.family, settings.dp) == ("gaussian", "none") and settings.intercept:
        return "rows='all' uses them, too"
    return "VerticalGBDT uses them, too, or FKNN imputes them first"


def _complete_rows(
    settings: "VerticalGLM", mask: Flags, widths: npt.NDArray[np.int64], minimum: Minimum
) -> RowGroups:
    """Take the rows that all parties have; see `complete_rows`."""
    try:
        return complete_rows(mask, widths, minimum)
    except DataError as error:
        some = mask.any(axis=1) & ~mask.all(axis=1)
        text = str(error)
        if some.any():
            text += f". {some.sum():,} more samples lack some party: {_of_incomplete(settings)}"
        if settings.penalty != "none" and settings.dp == "none":
            text += ". exchange='sums' fits few rows with a penalty, if every node agrees to it"
        raise DataError(text) from error


class _Path:
    """The path of penalties on one quadratic after the other."""

    def __init__(self, settings: "VerticalGLM", penalised: Flags) -> None:
        self._settings, self._penalised, self._times = settings, penalised, 0
        self.penalty, self._shape = check_penalty(settings.penalty, settings.penalty_shape)
        self.lambdas = stated(parse_lambdas(settings.lambdas))
        self.found: Selection | None = None

    def select(self, at: Approximation) -> Selection:
        """Fit all values of lambda and choose one; after a few times that of the last time."""
        last = self.found if self._times >= _CHOICES else None
        self._times += 1
        self.found = select(
            at,
            self.penalty,
            self._shape,
            self.lambdas,
            self._penalised,
            self._settings.n_lambdas,
            self._settings.lambda_ratio,
            last,
        )
        return self.found

    def choose(self, at: Approximation) -> Array:
        """Return the coefficients of the chosen value."""
        found = self.select(at)
        return found.beta[:, found.chosen]


def _grid(settings: "VerticalGLM", opened: OpenedMoments, rows: Pattern, penalised: Flags) -> Array:
    """Return values of lambda from that which selects no column down, from the score at none."""
    n, problem, unit = rows.n_rows, opened.problem, opened.unit
    mean = rows.sums / n
    second = rows.about(mean)[1] / n
    spread = np.sqrt(np.maximum(np.diag(second)[:-1], 0.0))
    score = second[:-1, -1] * problem.y_scale
    if not settings.intercept:
        at_none = float(family_named(settings.family).mean(np.zeros(1))[0])
        of_labels = problem.y_center + problem.y_scale * mean[-1] - at_none
        score = score + (opened.center / unit + mean[:-1]) * of_labels
    per = 1.0 / np.where(spread > 0.0, spread, np.inf) if settings.standardize else unit
    largest = float(np.abs(score * per)[penalised].max(initial=0.0))
    return grid(max(largest, 1e-300), settings.n_lambdas, settings.lambda_ratio)


def noise_covariance(
    opened: OpenedMoments, rows: Pattern, beta: Array, level: float, intercept: bool
) -> Array | None:
    """Return what noise on the moments adds to the covariance of intercept and coefficients.

    Shapes: beta (n_columns,): the coefficients; only those that are not 0 were estimated; returns
    (1 + n_selected, 1 + n_selected): in the units of columns and labels; None without noise.
    """
    if opened.noise is None:
        return None
    problem, unit = opened.problem, opened.unit
    center = opened.center * intercept
    origin = np.append((center - opened.center) / unit, 0.0)
    about = Pattern(rows.observed, rows.n_rows, *rows.about(origin))
    slopes = beta * unit / problem.y_scale
    start = (level - problem.y_center + float(center @ beta)) / problem.y_scale
    vector = np.concatenate([[-start], -slopes, [1.0]])
    chosen = np.flatnonzero(beta)
    kept = np.concatenate([[0], 1 + chosen]) if intercept else 1 + chosen
    moments = np.block([[about.n_rows, about.sums], [about.sums[:, None], about.products]])
    score = sum(part.of_products(vector) for part in moved_by(opened.noise[:1], origin))
    inverse = np.linalg.pinv(moments[np.ix_(kept, kept)], hermitian=True)
    added = np.zeros((1 + len(chosen), 1 + len(chosen)))
    own = slice(0 if intercept else 1, None)
    added[own, own] = inverse @ np.asarray(score)[np.ix_(kept, kept)] @ inverse
    change = np.diag(np.append(1.0, 1.0 / unit[chosen]))
    change[0, 1:] = -center[chosen] / unit[chosen]
    return np.asarray(problem.y_scale**2 * change @ added @ change.T)


def _check(settings: "VerticalGLM", federation: Federation) -> None:
    """Refuse before the first round what cannot be fitted."""
    if settings.family != "gaussian":
        check_federation(settings.family, federation)
    if federation.labels is not None:
        family_named(settings.family).check(federation.labels[np.isfinite(federation.labels)])


def penalised_columns(unpenalised: str, problem: Problem) -> Flags:
    """Tell which columns are penalised, shape (n_columns,)."""
    free = names_by_party(unpenalised, list(problem.columns))
    for party, names in free.items():
        if unknown := sorted(set(names) - set(problem.columns[party])):
            raise ConfigError(
                f"party {party!r} has no columns {unknown} to leave unpenalised; it has "
                f"{problem.columns[party]}"
            )
    return np.concatenate([~np.isin(own, free[party]) for party, own in problem.columns.items()])


def _fill_normal(at: Approximation, beta: Array, whole: bool, result: Result) -> None:
    """Fill in how well the chosen coefficients fit normal labels."""
    left, without = at.noise_of(beta), at.noise_of(np.zeros_like(beta))
    result.metrics["deviance_explained"] = 1.0 - left / max(without, 1e-300)
    if whole:  # with blocks missing, the labels' likelihood given the columns is not one number
        result.metrics["deviance"] = at.n_rows * left
        result.metrics["log_likelihood"] = float(
            -0.5 * at.n_rows * (np.log(2.0 * np.pi * max(left, 1e-300)) + 1.0)
        )


def _fill_means(
    maximum: MaximumLikelihood,
    found: Selection,
    settings: "VerticalGLM",
    y: Array,
    result: Result,
) -> None:
    """Fill in how well the chosen coefficients fit labels of other families.

    Shapes: y (n_used,): labels of the fit.
    """
    family = family_named(settings.family)
    level = family.link(float(y.mean())) if settings.intercept else 0.0
    null = float(family.deviance(y[:, None], np.full((len(y), 1), level))[0])
    lost = float(found.lost[found.chosen])
    value = maximum.log_likelihood_of(found.beta[:, found.chosen], lost)
    deviance = maximum.deviance + 2.0 * (maximum.log_likelihood - value)
    result.metrics |= {
        "deviance": deviance,
        "deviance_explained": 1.0 - deviance / max(null, 1e-300),
        "log_likelihood": value,
        "iterations": float(maximum.evaluations),
        "converged": float(maximum.converged),
    }
    for text in maximum.notes:
        note(result, text)
    if not maximum.converged:
        note(
            result,
            f"not converged after {maximum.evaluations} evaluations of the means (30 at most; "
            "parties allow one for every ten rows, a step of a penalised fit takes three); "
            "look for columns that nearly determine each other, or have values far out",
        )
