"""One run of `VerticalGLM`: sums are opened, the server selects, parties keep coefficients."""

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products.row_groups import RowGroups
from strategies.glm.approximation import Approximation
from strategies.glm.fit import (
    fill_means,
    fill_normal,
    grid_of,
    noise_covariance,
    penalised_columns,
    rows_in_common,
)
from strategies.glm.likelihoods import (
    moments_of,
    of_all_rows,
    of_complete_rows,
    unseen_of,
    usable_rows,
    with_followers,
)
from strategies.glm.means import (
    MaximumLikelihood,
    check_federation,
    given_labels,
    maximum_likelihood,
)
from strategies.glm.outcome import GLMModel, Reported, fill_selected
from strategies.glm.penalties import GCV, SELECTING, stated
from strategies.glm.selection import Path
from strategies.glm.summary import EXTRA, inflation, statistics_of
from strategies.glm.unseen import Unseen, copied
from strategies.glm.weighted import NormalResiduals
from strategies.linear.families import family_named
from strategies.linear.formula import formulas_of
from strategies.linear.masked_means.problem import Beside, null_deviance
from strategies.linear.moments.collect import Grouping, OpenedMoments, open_moments
from strategies.linear.moments.dp_moments import noisy_least_squares, state_privacy
from strategies.linear.moments.dp_opening import FitBudget
from strategies.linear.moments.groups import by_pattern
from strategies.linear.moments.patterns import Pattern
from strategies.linear.prediction.conditional_regressions import conditional_regressions
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import Problem, note
from strategies.normal.labelled_server import LabelledCompletion


def _takes_all_rows(settings: Any) -> bool:
    """Whether rows="all" goes with the other settings."""
    try:
        replace(settings, rows="all")
    except ConfigError:
        return False
    return True


class Fitting:
    """The state of one run; `settings` are those of the strategy."""

    opened: OpenedMoments
    path: Path
    ridge: Array  # (n_columns,): what the square of each coefficient is multiplied by
    at: Approximation
    mean: Array  # (n_columns,): of the columns, in their units
    covariance: Array  # (n_columns, n_columns)
    y: Array  # (n,): labels of the rows of the fit, without an offset if they are gaussian
    rows: Pattern | None = None  # Moments of complete rows
    unknown: Flags | None = None  # Of all rows: intercept and coefficients that data do not tell
    maximum: MaximumLikelihood | None = None
    unseen: Unseen | None = None

    def __init__(
        self, settings: Any, federation: Federation, alignment: Alignment, result: Result
    ) -> None:
        self.settings, self.federation = settings, federation
        self.budget = FitBudget.of(settings)
        self.alignment, self.result = alignment, result
        self.family, self.penalty = family_named(settings.family), str(settings.penalty)
        self.normal = settings.family == "gaussian"
        self.whole = settings.rows == "complete" or not self.normal
        self.robust = settings.standard_errors == "robust"
        self.completing = LabelledCompletion() if self.whole and settings.rows == "all" else None
        self.beside: Beside | None = None  # Of the rows of the fit
        self.labels = federation.labels
        self._mean_weight = 1.0  # What weights of gaussian labels were divided by
        self._vector_unit = 1.0  # Of the labels times weights that columns were multiplied with

    def run(self, progress: Progress) -> None:
        """Open sums, select at the server, and have the parties keep their coefficients."""
        self._check()
        progress.total = 2
        self._open()
        progress.step("moments")
        self._prepare()
        if not self.whole:
            self.at, self.mean, self.covariance, self.unknown = of_all_rows(
                self.opened, self.result, self.settings.standardize
            )
        else:
            self._fit_complete_rows()
        self._report()
        progress.step("keep")

    def _check(self) -> None:
        """Refuse what cannot be fitted, before anything is opened."""
        federation, beside = self.federation, self.federation.beside
        settings = self.settings
        if not self.normal:
            check_federation(f"family {settings.family!r}", federation)
        elif self.robust:
            check_federation("standard_errors='robust'", federation)
        elif "weights" in beside:
            check_federation("a fit with weights", federation)
        if beside and (settings.rows != "complete" or settings.epsilon is not None):
            raise ConfigError(f"{' and '.join(beside)}: these need rows='complete' and no epsilon")
        if unknown := sorted(set(formulas_of(settings.formula)) - set(federation.parties)):
            raise ConfigError(
                f"formula names the parties {unknown}; the parties are {list(federation.parties)}"
            )
        if federation.labels is not None:
            known = federation.labels[np.isfinite(federation.labels)]
            self.family.check(known)
            if self.normal and np.array_equal(np.unique(known), (0.0, 1.0)):
                text = "labels are 0 and 1, and family='gaussian' fits a line to them"
                note(self.result, f"{text}; family='binomial' is logistic regression")
        if beside:
            self._take_beside()

    def _take_beside(self) -> None:
        """Check weights, and take an offset from labels whose expectation it is added to."""
        beside, memory = self.federation.beside, self.federation.label_memory
        self.result.settings |= dict.fromkeys(beside, True)
        known = np.isfinite(self.labels)
        weights = beside.get("weights", np.ones(len(known)))[known]
        if not (weights > 0.0).all():
            raise DataError(
                f"weights: {int((weights <= 0.0).sum()):,} are not above 0; leave these samples out"
            )
        if self.normal and "offset" in beside:
            self.federation.labels = self.labels - beside["offset"]
        find, extra = memory.find_labels, [v[known].tobytes() for v in beside.values()]
        # Parties count vectors by what they follow from.
        memory.find_labels = lambda: hashlib.sha256(b"".join([find(), *extra])).digest()

    def _open(self) -> None:
        settings, budget = self.settings, self.budget
        advice, few = "rows='all' uses them, too", ""
        if self.federation.beside or not _takes_all_rows(settings):
            advice = "VerticalGBDT uses them, too, or FKNN imputes them first"
        if self.penalty in SELECTING and budget is None:
            few = ". Strategy 'glm-admm' fits few rows with a penalty, if every node agrees to it"
        grouping = cast(Grouping, by_pattern)
        self.since = "some party lacks them"
        if self.completing is not None:
            self.since = "too few are held by the same parties"
            grouping, advice = self.completing.rows, "rows='complete' leaves out more"
        elif self.whole:
            n_vectors = 1 + len(self.federation.beside)
            grouping = partial(rows_in_common, n_vectors=n_vectors, advice=advice, few=few)
        self.advice = advice
        self.opened = open_moments(
            self.federation, self.alignment, self.result, missing_labels=settings.missing_labels,
            intercept=settings.intercept, grouping=grouping, budget=budget,
            formula=settings.formula,
            completing=self.completing,
            vectors=self._weighted_labels if self.federation.beside else None,
        )  # fmt: skip

    def _weighted_labels(self, problem: Problem, groups: RowGroups) -> Array:
        """Return what columns are multiplied with: labels times weights, of mean square 1.

        Weights that differ are a vector, too, and an offset: products of columns with these, and
        with means at the offset alone, follow from later sums. So parties are to count that the
        server knows them.
        """
        inside = np.flatnonzero(groups.group >= 0)
        at, beside = problem.labelled[inside], self.federation.beside
        weights = beside["weights"][at] if "weights" in beside else np.ones(len(at))
        offset = beside.get("offset", np.zeros(len(self.labels)))[at]
        if self.normal:
            self._mean_weight, offset = float(weights.mean()), np.zeros(len(at))
            weights = weights / self._mean_weight
        self.beside = Beside(weights, offset, bool((weights != 1.0).any()))
        y = problem.y if self.normal else given_labels(self.federation, problem)
        own = weights * y[inside]
        self._vector_unit = float(np.sqrt(np.mean(own**2)))
        known = [own / self._vector_unit]
        known += [v / np.sqrt(np.mean(v**2)) for v in self.beside.known]
        vectors = np.zeros((len(problem.y), len(known)))
        vectors[inside] = np.column_stack(known)
        return vectors

    def _prepare(self) -> None:
        settings, opened = self.settings, self.opened
        given = given_labels(self.federation, opened.problem)
        self.y = given[opened.groups.group >= 0] if self.whole else np.empty(0)
        penalised = penalised_columns(str(settings.unpenalized), opened.problem)
        chosen_ridge = self.penalty == "ridge" and settings.l2 == GCV
        self.path = Path(self.penalty, stated(settings.lambdas), penalised, chosen_ridge)
        strength = float(settings.l2) if self.penalty == "ridge" and not chosen_ridge else 0.0
        self.ridge = np.asarray(strength * penalised, dtype=np.float64)

    def _fit_complete_rows(self) -> None:
        settings, opened, budget = self.settings, self.opened, self.budget
        rows = usable_rows(
            opened,
            self.result,
            intercept=settings.intercept or not self.normal,
            penalised=self.penalty != "none" or not self.normal,
            noisy=budget is not None,
            more=self.advice,
            since=self.since,
        )
        if budget is not None:
            noisy = noisy_least_squares(rows, (opened.noise or [])[:1], settings.intercept)
            rows = noisy.rows
            state_privacy(self.result, budget, opened, noisy)
        residuals = None
        if self.normal and (self.robust or (self.beside is not None and self.beside.weighted)):
            residuals = NormalResiduals(self.federation, opened, self.beside, self.robust)
            rows = residuals.weighted(rows, self._vector_unit)
        self.rows = rows
        as_opened = budget is None and (self.beside is None or not self.beside.weighted)
        told = with_followers(rows, opened) if as_opened else rows
        self.mean, self.covariance = moments_of(told, opened)
        if self.completing is not None:  # means in place of columns vary less than these
            self.unseen = unseen_of(opened, self.completing, self.family)
            self.mean, self.covariance = self.unseen.mean, self.unseen.covariance
        if not self.normal:
            self._maximise(rows)
            return
        self.at = replace(
            of_complete_rows(opened, rows, settings.standardize, settings.intercept),
            mean_weight=self._mean_weight,
        )
        if residuals is not None:
            if self.robust:
                self._select()
                found = self.found
                self.at = residuals.with_middle(
                    self.at, found.beta[:, found.chosen], float(found.intercepts[found.chosen])
                )
            residuals.close()

    def _maximise(self, rows: Pattern) -> None:
        """Find the maximum of a likelihood that moments do not tell."""
        settings, opened, path = self.settings, self.opened, self.path
        how = {"intercept": settings.intercept, "standardize": settings.standardize}
        selects = self.penalty in SELECTING
        if selects and path.lambdas is None and self.beside is None:
            path.lambdas = grid_of(opened, rows, self.family, path.penalised, **how)
        more: list[str] = ["middle"] if self.robust else []
        if settings.dispersion == "pearson":
            more.append("pearson")
            if settings.family == "poisson" and (self.beside is None or not self.beside.weighted):
                more += ["squares", "squared means"]
        self.maximum = maximum_likelihood(
            self.federation, opened, settings.family, **how, ridge=self.ridge,
            choose=path.choose if selects or path.ridge else None,
            cure="raise l2" if self.ridge.any() else "set a penalty",
            fewest=None if self.completing is None else self.completing.fewest,
            beside=self.beside, vector_unit=self._vector_unit,
            more=more if more or self.beside is not None else None,
            follows=None
            if self.completing is None
            else copied(opened, self.completing.model),
        )  # fmt: skip
        self.at = self.maximum.at

    def _select(self) -> None:
        if self.ridge.any() and self.maximum is None and self.path.found is None:
            self.at = self.at.with_ridge(self.ridge)
        self.found = self.path.found or self.path.select(self.at)

    def _report(self) -> None:
        """Fill in the result, and have the parties keep their part; one round."""
        self._select()
        settings, opened, result, at = self.settings, self.opened, self.result, self.at
        found, maximum, problem = self.found, self.maximum, opened.problem
        beta, level = found.beta[:, found.chosen], float(found.intercepts[found.chosen])
        with_errors = self.penalty != "ridge"
        added = None
        if self.rows is not None:
            added = noise_covariance(opened, self.rows, beta, level, settings.intercept)
        freedom = max(at.n_rows - np.count_nonzero(beta) - at.intercept, 1.0)
        dispersion = None
        if maximum is not None and "pearson" in maximum.sums:
            dispersion = float(maximum.sums["pearson"] / freedom)
        chosen = fill_selected(
            settings.family, problem, at, found, with_errors, result, added, self.unknown,
            None if maximum is None else maximum.bounded,
            self.unseen if with_errors else None, dispersion,
        )  # fmt: skip
        if not self.whole:
            result.metrics["n_samples"] = opened.n_used
        beside = self.beside or Beside.nothing(len(self.y))
        null = None
        if maximum is None:
            fill_normal(at, chosen.beta, self.whole, result, beside.weights)
        else:
            null = null_deviance(self.family, self.y, beside, settings.intercept)
            fill_means(maximum, found, null, result)
        self._summarise(chosen, null, with_errors)
        self._keep(chosen)

    def _summarise(self, chosen: Reported, null: float | None, with_errors: bool) -> None:
        """Fill in what `GLMModel.summary` prints."""
        result, model, table = self.result, self.result.model, self.result.coefficients
        assert isinstance(model, GLMModel)
        assert table is not None
        model.errors = "none, coefficients are shrunk"
        if with_errors:
            model.errors = "robust (HC0)" if self.robust else "model-based"
            factors = inflation(self.covariance, chosen.beta)
            first = np.full(len(table) - len(factors), np.nan)  # of the intercept
            model.table = table.assign(vif=np.append(first, factors))
        else:
            model.table = table
        n_selected = int(np.count_nonzero(chosen.beta))
        model.statistics = {"n_samples": result.metrics["n_samples"]}
        if self.whole and with_errors and self.budget is None:
            found = statistics_of(result, self.at, n_selected, self.maximum, null or 0.0)
            model.statistics = {name: float(value) for name, value in found.items()}
            told = ("aic", "bic", "lr_statistic", "lr_p_value", *EXTRA)
            result.metrics |= {k: v for k, v in model.statistics.items() if k in told}

    def _keep(self, chosen: Reported) -> None:
        """Have the parties keep their coefficients, and predict samples without a label."""
        problem, federation, at = self.opened.problem, self.federation, self.at
        regressions = conditional_regressions(
            self.mean,
            self.covariance,
            chosen.intercept,
            chosen.beta,
            chosen.covariance,
            at.working_variance if self.maximum else chosen.dispersion,
            self.opened.widths,
            self.settings.family,
        )
        federation.labels = self.labels
        weights: Array | float = 1.0
        if "weights" in federation.beside and self.normal:
            known = federation.beside["weights"][problem.free]
            weights = np.where(known > 0.0, known / at.mean_weight, 1.0)
        shift: Array | float = 0.0
        if "offset" in federation.beside and problem.has_free:
            known = federation.beside["offset"][problem.free]
            if n := int(np.isnan(known).sum()):
                note(
                    self.result,
                    f"{counted(n, 'sample')} without a label predicted without an offset",
                )
            shift = np.nan_to_num(known)
        keep_and_predict(
            federation, self.alignment, self.result, regressions, problem,
            predicts=self.budget is None, shift=shift, weights=weights,
        )  # fmt: skip
