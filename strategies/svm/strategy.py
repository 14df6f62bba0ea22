"""VerticalSVM: a linear support vector machine, with the squared hinge or by least squares.

Moments as of `VerticalGLM` determine the fit by least squares. The squared hinge takes two rounds
more for each evaluation of its derivative, some five, and up to 40 where columns almost tell the
classes apart.
"""

from typing import ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, Uses, setting
from flwr_vertical.arrays import AnyArray, Array, Flags
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import PrivateProducts, PrivateProductSteps
from flwr_vertical.tables.codes import level_text
from strategies.glm.likelihoods import moments_of, usable_rows, with_followers
from strategies.glm.means import given_labels, shifted, with_labels
from strategies.linear import settings as shared
from strategies.linear.coefficients import coefficient_table
from strategies.linear.moment_party import (
    COLLUSION,
    RECOGNISED,
    ROUGH_UNITS,
    WITHHELD,
    MeanParty,
    MomentArbiter,
    moments_protocol,
)
from strategies.linear.moments.collect import OpenedMoments, open_moments
from strategies.linear.moments.groups import by_pattern, complete_rows
from strategies.linear.moments.identifiable import unobserved
from strategies.linear.moments.patterns import Pattern
from strategies.linear.prediction.conditional_regressions import conditional_regressions
from strategies.linear.prediction.regressions import MARGIN, Regressions
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import need_key_stream, note, note_on_followers
from strategies.svm.margin_fit import fit_margins
from strategies.svm.margin_solver import LabelledMoments, least_squares

LOSSES = ("squared_hinge", "squared")
ROWS = ("complete", "mean")

FLAT = 1e-9
"""A column whose variance is below this, in rough units, does not vary."""
_CONVERGED = 1e-2
"""Of decision values: what the last step may change them by, after which it ends."""


_Fit = tuple[float, Array, Flags, dict[str, float]]
"""Intercept and coefficients in the units of the columns; what the result says of how they came."""


class SVMParty(MeanParty):
    """Keeps its columns and, of a fitted machine, its own coefficients."""

    products = Uses(PrivateProductSteps, purpose="classifier")


class VerticalSVM(Strategy):
    """A linear support vector machine over all parties' columns.

    Minimises ``sum of L(s eta) + l2 * sum of beta_j^2`` with ``s = 2 y - 1`` and
    ``eta = intercept + sum over parties of x_k' beta_k``. With ``loss="squared_hinge"`` L is
    ``max(0, 1 - m)^2``, its corner smoothed over a width of `corner`: estimates are those of
    `sklearn.svm.LinearSVC` with ``C = 1 / (2 l2)`` (and an intercept that is not penalised), but
    for what the corner moves, on the labelled samples that all parties hold. With
    ``loss="squared"`` it is ``(1 - m)^2``, the least squares machine of Suykens and Vandewalle
    (1999): `sklearn.linear_model.RidgeClassifier` with ``alpha = l2``, in six rounds.

    Samples whose label is NaN are predicted: `Result.predictions` has ``prediction`` and the
    ``decision`` value. Where a party lacks such a sample, its columns are expected given those of
    the others, or with ``rows="mean"`` at their mean. `Result.predict` predicts new rows.

    Notes
    -----
    The squared hinge needs two parties or more and sums ``masked`` or ``plain``; an evaluation
    sends each party some ``16 * H`` bytes for each sample, H being up to 96 Fourier terms: more of
    them for a smaller `corner`, and for decision values that reach farther.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=600), "b": rng.normal(size=600)})
    >>> court = pd.DataFrame({"c": rng.normal(size=600)})
    >>> y = (bank["a"] - court["c"] + rng.normal(size=600) > 0).astype(float)
    >>> y[500:] = np.nan
    >>> machine = VerticalSVM(loss="squared")
    >>> result = simulate(machine, {"bank": bank, "court": court}, y, progress=False)
    >>> list(result.predictions.columns)
    ['prediction', 'decision']
    """

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
    missing_labels: str = shared.missing_labels()
    loss: str = setting("squared_hinge", "Of a sample's margin.", choices=LOSSES)
    corner: float = setting(
        0.03,
        "Width over which the corner of the squared hinge is smoothed, in units of the margin; "
        "more where decision values reach so far that it cannot be evaluated (a note says so).",
        above=0,
        at_most=1,
    )
    rows: str = setting(
        "complete",
        "Labelled samples that all parties hold; or with ``loss='squared'`` also ``mean``: all "
        "labelled samples, a missing block being its party's mean.",
        choices=ROWS,
    )

    name: ClassVar[str] = "svm"
    demo = shared.demo(0.2, 0.3, "breast-cancer")
    needs_labels = True
    party = SVMParty
    protocol = moments_protocol("loss == 'squared_hinge'")
    arbiter = MomentArbiter
    disclosure = (
        (
            "server",
            "names of the parties' columns, rows left out, and whether these differ from others",
        ),
        (
            "server",
            "over the labelled samples that all parties hold (with rows='mean', for each "
            "missingness pattern, over no fewer rows than the parties' minimum): sums of columns, "
            "of products of two columns, and of products of a column and the label",
        ),
        (
            "server, with loss='squared_hinge'",
            "for each evaluation, at coefficients of its choice, the sum over the samples of the "
            "loss's derivative and of each column times it, and how far decision values reach, to "
            "a grid",
        ),
        ROUGH_UNITS,
        (
            "server",
            "for each sample without a label, the sum of the parties' rounded terms, the decision "
            "value; and how many bits a party's term tells",
        ),
        (
            "every party",
            "its own coefficients, of the fit and at each evaluation, and the function that is "
            "evaluated, from which the intercept follows; which samples have a label, and which "
            "labelled samples the fit uses; of single labels, random numbers only",
        ),
        WITHHELD,
        *RECOGNISED,
        *COLLUSION,
    )

    @property
    def needs_parties(self) -> int:  # type: ignore[override]
        """The fewest parties that it can work with: the squared hinge takes two."""
        return 2 if self.loss == "squared_hinge" else 1

    def check(self) -> None:
        """Raise if settings do not go together."""
        if self.rows == "mean" and self.loss != "squared":
            raise ConfigError(
                f"rows='mean' goes with loss='squared' only, and loss is {self.loss!r}; set "
                "rows='complete', or loss='squared'"
            )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open moments, find the minimum, and hand out coefficients."""
        check_two_classes(federation.labels, type(self).__name__)
        by_hinge = self.loss == "squared_hinge"
        if by_hinge:
            need_key_stream(
                "loss='squared_hinge'", federation,
                alone="; use loss='squared'", encrypted="; or use loss='squared'",
            )  # fmt: skip
        progress.total = 3
        whole = self.rows == "complete"
        opened = open_moments(
            federation, alignment, result,
            missing_labels=self.missing_labels, intercept=self.intercept,
            grouping=complete_rows if whole else by_pattern,
        )  # fmt: skip
        progress.step("moments")
        y = given_labels(federation, opened.problem)
        two_classes_in(y[opened.groups.group >= 0], type(self).__name__)
        if whole:
            rows = usable_rows(
                opened,
                result,
                intercept=self.intercept or by_hinge,
                penalised=self.l2 > 0.0 or by_hinge,
                more="rows='mean' or VerticalGBDT uses them, too",
            )
        else:
            rows = opened.patterns.total()
        result.metrics["n_samples"] = rows.n_rows
        fit = self._by_hinges(federation, opened, y) if by_hinge else self._by_squares(opened, rows)
        intercept, beta, follows, metrics = fit
        progress.step("fit")
        result.metrics |= metrics
        if metrics.get("corner", self.corner) > self.corner:
            note(
                result,
                f"decision values reach too far for a corner of {self.corner:g}; that of this fit "
                f"is {metrics['corner']:g}. A larger l2 keeps them nearer",
            )
        if follows.any():
            note(result, note_on_followers(opened.names(np.flatnonzero(follows))))
        if metrics.get("converged") == 0.0:
            note(
                result,
                f"not converged after {metrics['iterations']:.0f} evaluations of the hinge's "
                "derivative; raise l2, and look for columns that have values far out",
            )
        # Columns that are withheld or constant in the rows of the fit have no coefficient.
        absent = (beta == 0.0) & (np.diag(rows.products)[:-1] <= FLAT * rows.n_rows)
        estimates = np.where(absent | follows, np.nan, beta)
        flat = np.flatnonzero(absent & ~unobserved(opened.patterns)[:-1])
        if len(flat) and not whole:  # else `usable_rows` has said so
            text = f"columns {opened.names(flat)} do not vary over the samples of the fit"
            note(result, f"{text}; they are left out and have no coefficient")
        result.coefficients = coefficient_table(
            opened.problem.columns, estimates, intercept=intercept if self.intercept else None
        )
        if whole:
            mean, covariance = moments_of(with_followers(rows, opened), opened)
            regressions = conditional_regressions(
                mean, covariance, intercept, beta, None, 1.0, opened.widths, MARGIN
            )
        else:
            regressions = _with_means(opened, rows, intercept, beta)
        keep_and_predict(federation, alignment, result, regressions, opened.problem)
        progress.step("keep")

    def _by_squares(self, opened: OpenedMoments, rows: Pattern) -> _Fit:
        """Solve the least squares machine from moments."""
        problem, n = opened.problem, rows.n_rows
        center = np.append(opened.center / opened.unit, 0.0) * (not self.intercept)
        if center.any():  # columns in their own units, not less their mean
            used = np.append(np.diag(rows.products)[:-1] > 0.0, True)
            rows = rows.less(-center * used)
        mean = rows.sums[:-1] / n * self.intercept
        # Labels of the moments are standardised.
        slope, shift = 2.0 * problem.y_scale, 2.0 * problem.y_center - 1.0
        labels = slope * rows.sums[-1] + shift * n
        with_labels = slope * rows.products[:-1, -1] + shift * rows.sums[:-1] - mean * labels
        second = rows.products[:-1, :-1] / n - np.outer(mean, mean)
        about_mean = rows.sums[:-1] / n
        variance = np.diag(rows.products)[:-1] / n - about_mean**2
        flat = (variance <= FLAT) & self.intercept  # without one, it is a column like others
        second[flat], second[:, flat], with_labels[flat] = 0.0, 0.0, 0.0
        unit = np.sqrt(np.maximum(variance, 0.0)) if self.standardize else 1.0 / opened.unit
        sums = rows.sums[:-1] - n * mean
        moments = LabelledMoments(n, labels, second, sums, with_labels, self.intercept)
        level, slopes = least_squares(moments, self.l2 * unit**2)
        beta = slopes / opened.unit
        intercept = level - float((opened.center / opened.unit + mean) @ slopes)
        return intercept * self.intercept, beta, np.zeros(len(beta), dtype=bool), {}

    def _by_hinges(self, federation: Federation, opened: OpenedMoments, y: Array) -> _Fit:
        """Minimise the sum of smooth squared hinges with the parties."""
        problem, offered = opened.problem, opened.offered
        assert isinstance(opened.products, PrivateProducts)  # see `need_key_stream`
        moments = with_labels(offered.moments, problem, 2.0, -1.0)
        unit = offered.unit
        if not self.intercept:
            # Decision values are 0 where the columns are, not where the offered ones are.
            signs = 2.0 * y[opened.groups.group >= 0] - 1.0
            moments = shifted(moments, offered.center / unit, float(len(signs)), float(signs.sum()))
        fit = fit_margins(
            federation,
            opened.products,
            y > 0.5,
            opened.groups.group,
            problem.columns,
            moments,
            ridge=self.l2,
            width=self.corner,
            intercept=self.intercept,
            units=None if self.standardize else 1.0 / unit,
            allowed=opened.allowed,
        )
        beta = fit.beta / unit
        intercept = (fit.intercept - float(offered.center @ beta)) * self.intercept
        metrics = {
            "iterations": float(fit.evaluations),
            "converged": float(fit.distance < _CONVERGED),
            "corner": fit.width,
        }
        return intercept, beta, fit.follows, metrics


def _with_means(opened: OpenedMoments, rows: Pattern, intercept: float, beta: Array) -> Regressions:
    """Return what predicts where absent parties count with the mean of their columns."""
    parties = list(opened.parties.values())
    unit = opened.unit
    mean = rows.sums[:-1] / rows.n_rows
    covariance = rows.products[:-1, :-1] / rows.n_rows - np.outer(mean, mean)
    slopes = beta * unit
    fits = np.array([float((opened.center + unit * mean)[s] @ beta[s]) for s in parties])
    spread = np.array([float(slopes[s] @ covariance[s, s] @ slopes[s]) for s in parties])
    return Regressions.additive(
        opened.widths, intercept, beta, fits, np.maximum(spread, 0.0), 1.0, family=MARGIN
    )


def check_two_classes(labels: "AnyArray", name: str) -> None:
    """Raise unless labels, NaN where there is none, are 0 and 1, and both occur."""
    found = np.unique(labels[~np.isnan(labels)])
    if not len(found):
        raise DataError(f"{name} needs samples with a label; all are NaN")
    names = [level_text(value) for value in found[:5]]
    shown = ", ".join(names) + (", ..." if len(found) > 5 else "")
    if len(found) > 2:
        raise DataError(
            f"{name} tells two classes apart; expected labels 0 and 1, got {len(found)} different "
            f"({shown}). For more classes use VerticalGBDT(objective='multiclass') or FinalNet, "
            "which want them coded as 0, 1, 2, ..."
        )
    if not np.isin(found, (0.0, 1.0)).all():
        code = f": {names[0]} as 0 and {names[1]} as 1" if len(found) == 2 else ""
        raise DataError(
            f"{name} needs labels 0 and 1, got {shown}; code the classes as 0 and 1{code}"
        )
    if len(found) == 1:
        raise DataError(
            f"{name}: all labels are {found[0]:g}; a classifier needs samples of both classes"
        )


def two_classes_in(labels: Array, name: str) -> None:
    """Raise `DataError` if the samples of a fit are of one class."""
    if len(labels) and np.ptp(labels) == 0:
        raise DataError(
            f"{name}: the labels of all {len(labels):,} samples that all parties hold are "
            f"{labels[0]:g}; a classifier needs samples of both classes. Align more samples, or "
            "use a method that needs no complete rows (VerticalGBDT)"
        )
