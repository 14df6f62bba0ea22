"""What the baselines have in common: settings, rounds, and how the result is filled in."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from strategies.linear import settings as shared
from strategies.linear.coefficients import coefficient_table
from strategies.linear.moment_party import MOMENTS, MomentArbiter, MomentParty
from strategies.linear.moments.collect import Grouping, OpenedMoments, open_moments
from strategies.linear.moments.dp_moments import noisy_least_squares, state_privacy
from strategies.linear.moments.dp_opening import FitBudget, GroupNoise, check_budget
from strategies.linear.moments.linear import LinearFit, least_squares
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import note

LEVEL = 0.95
_LEAST_NOISE = 1e-12  # of the labels' variance: terms are rounded to a share of the noise


class Baseline(Strategy):
    """Least squares from moments: which rows are used tells the methods apart."""

    missing_labels: str = shared.missing_labels()
    intercept: bool = setting(True, "Whether the model has one.")
    standard_errors: bool = setting(True, "Whether there are any.")
    epsilon: float | None = shared.epsilon()
    delta: float = shared.delta()
    bounds: str | Mapping[str, Sequence[float]] | None = shared.bounds()
    row_norm: float = shared.row_norm()

    needs_labels = True
    demo = shared.demo(0.3)
    party = MomentParty
    protocol = MOMENTS
    arbiter = MomentArbiter

    def check(self) -> None:
        """Raise if settings do not go together."""
        check_budget(self)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open moments, solve, and hand each party its coefficients."""
        grouping, columns_of = self._grouping(federation, result)
        budget = FitBudget.of(self)
        progress.total = 2
        opened = open_moments(
            federation, alignment, result,
            missing_labels=self.missing_labels, intercept=self.intercept,
            grouping=grouping, columns_of=columns_of, budget=budget,
        )  # fmt: skip
        progress.step("moments")
        rows = self._rows(opened)
        needed = opened.n_columns + 1 + self.intercept
        if rows.n_rows < needed:
            raise DataError(
                f"the fit has {int(rows.n_rows)} samples, but {opened.n_columns} columns need at "
                f"least {needed}; leave out columns, align more samples, or use vfem or "
                "mean-impute, which need no rows that all parties hold"
            )
        origin = np.zeros(opened.n_columns + 1)
        if not self.intercept:  # columns in their own units, not less their mean
            origin[:-1] = -opened.center / opened.unit
            rows = Pattern(rows.observed, rows.n_rows, *rows.about(origin))
        if self.epsilon is None:
            fit = least_squares(rows, self.intercept)
        else:
            found = noisy_least_squares(rows, self._noise(opened) or [], self.intercept)
            fit = found.fit
            result.metrics["ridge"] = found.ridge
        _fill_in(result, opened, fit, self.standard_errors)
        problem = opened.problem
        free = problem.free
        if budget is not None:
            state_privacy(result, budget, opened, found)
            free = free[:0]
        found_rows = free, problem.free_mask[: len(free)]
        regressions = self._regressions(opened, fit)
        keep_and_predict(
            federation, alignment, result, regressions, *found_rows, step="finish_moments"
        )
        progress.step("finish")

    @abstractmethod
    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        """Return which rows' sums are opened together, and of which party alone; empty for all."""

    def _rows(self, opened: OpenedMoments) -> Pattern:
        """Return the sums over the rows of the fit; columns that nothing was told of are zero."""
        return Patterns(opened.n_columns + 1, opened.held[:1]).total()

    def _noise(self, opened: OpenedMoments) -> list[GroupNoise] | None:
        """Return the noise on the sums of the fit, by group."""
        return None if opened.noise is None else opened.noise[:1]

    def _regressions(self, opened: OpenedMoments, fit: LinearFit) -> Regressions:
        """Return what predicts: absent parties at their mean, the variance of their fit added."""
        mean, variance, lost = party_fits(opened, fit)
        found = Regressions.additive(
            [own.stop - own.start for own in opened.parties.values()],
            fit.intercept,
            fit.beta,
            mean,
            variance,
            max(fit.noise, _LEAST_NOISE * fit.tss / fit.n_rows),
            leverage=fit.noise * fit.n_parameters / fit.n_rows,
            absent_leverage=lost,
        )
        center = opened.center if self.intercept else np.zeros(opened.n_columns)
        problem = opened.problem
        return found.in_units(problem.y_center, problem.y_scale).of_columns(center, opened.unit)


def party_fits(opened: OpenedMoments, fit: LinearFit) -> tuple[Array, Array, Array]:
    """Return of each party mean and variance of its fit, and its share of the leverage.

    Shapes: returns (n_parties,): in standardised units; the last is how much smaller the variance
    of a fit through the estimates is, on average, for rows of which the party's block is at its
    mean.
    """
    own = list(opened.parties.values())
    about_mean = fit.covariance
    if not fit.has_intercept:
        about_mean = fit.covariance - np.outer(fit.means, fit.means)
    mean = np.array([fit.means[s] @ fit.beta[s] for s in own])
    variance = np.array([fit.beta[s] @ about_mean[s, s] @ fit.beta[s] for s in own])
    whole = float(np.sum(fit.inverse * about_mean))
    lost = []
    for s in own:
        rest = np.ones(len(fit.beta), dtype=bool)
        rest[s] = False
        here = np.ix_(rest, rest)
        lost.append(fit.noise * max(whole - float(np.sum(fit.inverse[here] * about_mean[here])), 0))
    return mean, np.maximum(variance, 0.0), np.array(lost)


def _fill_in(result: Result, opened: OpenedMoments, fit: LinearFit, std_errors: bool) -> None:
    problem, unit = opened.problem, opened.problem.y_scale
    scale = unit / opened.unit
    beta = scale * fit.beta
    center = opened.center if fit.has_intercept else np.zeros(opened.n_columns)
    intercept = spread = errors = None
    if fit.has_intercept:
        intercept = problem.y_center + unit * fit.intercept - float(center @ beta)
    if std_errors:
        own = np.sqrt(np.maximum(np.diag(fit.vcov)[1:], 0.0)) * scale
        own[fit.dependent] = np.nan
        errors = {name: own[s] for name, s in opened.parties.items()}
        away = np.append(1.0, -center / opened.unit)
        spread = unit * float(np.sqrt(max(away @ fit.vcov @ away, 0.0)))
    fitted = {name: s for name, s in opened.parties.items() if s.stop > s.start}
    result.coefficients = coefficient_table(
        {name: problem.columns[name] for name in fitted},
        {name: np.where(fit.dependent, np.nan, beta)[s] for name, s in fitted.items()},
        errors,
        intercept,
        spread if fit.has_intercept else None,
        LEVEL,
    )
    n, k = fit.n_rows, fit.n_parameters
    ratio = (n - fit.has_intercept) / max(n - k, 1.0)
    result.metrics = {
        "r2": 1.0 - fit.rss / fit.tss,
        "adjusted_r2": 1.0 - ratio * fit.rss / fit.tss,
        "sigma2": fit.noise * unit**2,
        "n_samples": n,
        **result.metrics,
    }
    told = np.zeros(opened.n_columns + 1, dtype=bool)  # of the others another note says why
    told[[j for pattern in opened.held for j in pattern.observed]] = True
    for name, s in fitted.items():
        columns = np.array(problem.columns[name], dtype=object)[fit.dependent[s] & told[s]]
        fresh = [str(c) for c in columns if c not in problem.collinear[name]]
        if fresh:
            note(
                result,
                f"party {name!r}: over the samples of the fit, columns {fresh} are constant or "
                "follow from other columns; they are left out and have no coefficient",
            )
