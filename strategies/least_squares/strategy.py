"""CompleteCase, MeanImpute and Single: least squares where blocks of columns are missing.

The three preliminary methods of Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using
Multiple Data Sources with Missing Values through Vertical Federated Learning", Section 2.2. The
server opens the sums of products of columns and labels over the rows of the fit, five rounds in
all (`moments.collect`), and solves the normal equations: estimates and standard errors are exactly
those of least squares on the pooled table.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products.row_groups import RowGroups
from strategies.linear import settings as shared
from strategies.linear.coefficients import coefficient_table
from strategies.linear.moment_party import (
    BY_PATTERN,
    COLLUSION,
    MOMENTS,
    NAMES_OF_COLUMNS,
    PRIVATE,
    RECOGNISED,
    ROUGH_UNITS,
    WITHHELD,
    MomentArbiter,
    MomentParty,
)
from strategies.linear.moments.collect import Grouping, OpenedMoments, open_moments
from strategies.linear.moments.dp_moments import noisy_least_squares, state_privacy
from strategies.linear.moments.dp_opening import FitBudget, GroupNoise, check_budget
from strategies.linear.moments.groups import MinimumRows, by_pattern, complete_rows
from strategies.linear.moments.linear import LinearFit, least_squares
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import note

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
            rows = rows.less(origin)
        if self.epsilon is None:
            fit = least_squares(rows, self.intercept)
        else:
            found = noisy_least_squares(rows, self._noise(opened) or [], self.intercept)
            fit = found.fit
            result.metrics["ridge"] = found.ridge
        _fill_in(result, opened, fit, self.standard_errors)
        if budget is not None:
            state_privacy(result, budget, opened, found)
        regressions, predicts = self._regressions(opened, fit), budget is None
        keep_and_predict(
            federation, alignment, result, regressions, opened.problem, predicts=predicts
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
            opened.widths,
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
        errors = np.sqrt(np.maximum(np.diag(fit.vcov)[1:], 0.0)) * scale
        errors[fit.dependent] = np.nan
        away = np.append(1.0, -center / opened.unit)
        spread = unit * float(np.sqrt(max(away @ fit.vcov @ away, 0.0)))
    estimates = np.where(fit.dependent, np.nan, beta)
    result.coefficients = coefficient_table(problem.columns, estimates, errors, intercept, spread)
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
    for name, s in opened.parties.items():
        columns = np.array(problem.columns[name], dtype=object)[fit.dependent[s] & told[s]]
        fresh = [str(c) for c in columns if c not in problem.collinear[name]]
        if fresh:
            note(
                result,
                f"party {name!r}: over the samples of the fit, columns {fresh} are constant or "
                "follow from other columns; they are left out and have no coefficient",
            )


_PREDICTIONS = (
    "server",
    "for each sample without a label, the sum of the parties' rounded terms: the prediction; and "
    "how many bits a party's term tells",
)
_PARTIES = (
    "every party",
    "its own coefficients, and what these tell of labels; which samples have a label, and which "
    "labelled samples the fit uses",
)


class CompleteCase(Baseline):
    """Least squares over all parties' columns, on the labelled samples that every party holds.

    Notes
    -----
    Standard errors are those of ordinary least squares. Of a sample without a label that a party
    lacks, the party's mean is taken, and the variance of its fit is added to the noise.

    With ``epsilon`` all that leaves a party is differentially private (`Result.privacy` says what
    that means). Then bounds of all columns and of the label are public, estimates are those of
    AdaSSP (`dp_moments`), and standard errors include the noise, not the bias of a ridge.
    """

    name = "complete-case"
    disclosure = (
        NAMES_OF_COLUMNS,
        (
            "server",
            "over the labelled samples that all parties hold: sums of columns, of products of two "
            "columns, and of products of a column and the label",
        ),
        ROUGH_UNITS,
        _PREDICTIONS,
        _PARTIES,
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        return complete_rows, ""


class MeanImpute(Baseline):
    """Least squares over all parties' columns, a missing row being its party's mean.

    Notes
    -----
    Standard errors are those of least squares on the imputed table; they know nothing of the
    imputation. Rows whose blocks few other rows have count with fewer blocks, so that nothing is
    told of few rows; ``metrics["rows_merged"]`` says how many.
    """

    name = "mean-impute"
    disclosure = (
        NAMES_OF_COLUMNS,
        BY_PATTERN,
        ROUGH_UNITS,
        _PREDICTIONS,
        _PARTIES,
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        return by_pattern, ""

    def _noise(self, opened: OpenedMoments) -> list[GroupNoise] | None:
        rest = len(opened.patterns.patterns) > len(opened.held)
        return opened.noise if rest or opened.noise is None else opened.noise[: len(opened.held)]

    def _rows(self, opened: OpenedMoments) -> Pattern:
        """Return the sums of the imputed table: columns are zero, their mean, where missing."""
        return Patterns(opened.n_columns + 1, opened.held).total()

    def _regressions(self, opened: OpenedMoments, fit: LinearFit) -> Regressions:
        # Rows with imputed blocks are among those that the noise was measured on.
        found = super()._regressions(opened, fit)
        return replace(found, absent_variance=np.zeros(len(opened.parties)))


class _OneParty(Strategy):
    """The setting that comes first, before those of `Baseline`."""

    party_name: str = setting("", "The party; empty for the first in the order of names.")


class Single(Baseline, _OneParty):
    """Least squares on the columns of one party, and the labelled samples that it holds.

    Notes
    -----
    Standard errors are those of ordinary least squares. Another party helps, so that the one that
    is fitted learns no labels. A sample without a label that the party lacks is predicted by the
    party's mean, and the variance of its fit is added to the noise.
    """

    name = "single"
    disclosure = (
        (
            "server",
            "the names of the party's columns, which are collinear, rows left out, and whether "
            "these differ from others",
        ),
        (
            "server",
            "over the labelled samples that the party holds: sums of its columns, of their "
            "products, and of products with the label",
        ),
        ROUGH_UNITS,
        _PREDICTIONS,
        (
            "every party",
            "which samples have a label, and which labelled samples the fit uses; the party that "
            "is fitted its coefficients, and what these tell of labels",
        ),
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        name = self.party_name or federation.parties[0]
        if name not in federation.parties:
            raise ConfigError(
                f"no party {name!r} in this run to be fitted; its parties are {federation.parties}"
            )
        if not self.party_name and len(federation.parties) > 1:
            note(result, f"party_name is not set: the first party, {name!r}, was fitted")
        k = federation.parties.index(name)

        def rows_of_one(mask: Flags, widths: Indices, minimum: MinimumRows) -> RowGroups:
            found = complete_rows(mask[:, [k]], widths[[k]], minimum)
            return replace(found, mask=np.zeros((1, mask.shape[1]), dtype=bool))

        return rows_of_one, name
