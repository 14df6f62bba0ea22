"""Cox: proportional hazards of columns at several parties, by sums over risk sets.

The moments of `VerticalGLM` are opened with vectors of the server in place of labels: who had an
event, how many were expected without columns, and when. With ``rows="all"`` the rounds of
`normal.labelled_server` come before. An evaluation of the partial likelihood takes two rounds, and
mostly there are four; the information takes one.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import scipy

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import vectors_of_products
from flwr_vertical.products import PrivateProducts
from flwr_vertical.products.row_groups import RowGroups
from strategies.cox.fit import CoxFit, PartialLikelihood, told_times
from strategies.cox.labels import read_labels
from strategies.cox.model import CoxModel, concordance, proportional_test
from strategies.cox.party import OPENED_ROWS, CoxParty
from strategies.cox.risk_sets import RiskSets, risk_sets
from strategies.cox.unseen import Completed
from strategies.glm.likelihoods import moments_of, usable_rows
from strategies.glm.party import TOLD_COMPLETING
from strategies.glm.unseen import copied, maps_of, moments_of_sets
from strategies.linear import settings as shared
from strategies.linear.coefficients import coefficient_table
from strategies.linear.masked_means.evaluate import MaskedMeans
from strategies.linear.moment_party import COLLUSION, RECOGNISED, WITHHELD, moments_protocol
from strategies.linear.moments.collect import OpenedMoments, open_moments
from strategies.linear.moments.groups import MinimumRows, complete_rows
from strategies.linear.prediction.conditional_regressions import conditional_regressions
from strategies.linear.prediction.regressions import HAZARD
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import Problem, need_key_stream, note, note_on_followers
from strategies.normal.labelled_server import LabelledCompletion

_EVALUATIONS, _COMPLETING = 6, 8
"""For so many the vectors that parties multiply with are to suffice; where rows are completed."""
_VECTORS = 3
"""Of the server besides: events, expected events, their ranks."""
_RESERVED = _VECTORS + 1
"""And the first fits that are placed."""
_MOST_NUMBERS, _LEAST_KNOTS = 1 << 18, 4
"""An evaluation sends some 250 bytes for each sample and knot to each party."""


class Cox(Strategy):
    """Proportional hazards (Cox, 1972) over all parties' columns.

    The hazard of a sample is a baseline of time times ``exp(sum over parties of x_k' beta_k)``.
    Estimates maximise the partial likelihood, with ties nearly as by Efron, on the labelled
    samples that all parties hold, or with `rows` on all labelled ones.

    Labels are times, negative where they were censored: `survival_labels` makes them of a time and
    an event.

    Notes
    -----
    With ``rows="all"`` each party is told the means of its columns in labelled samples that it
    lacks, given the others' columns. Coefficients and errors count that these are means, which is
    right where columns are near a joint normal model.

    The partial likelihood is exact where sums are opened for each event time: where these are few
    (months, say, with ``min-rows`` samples ending at each), or parties allow many ``vectors`` and
    few ``min-rows``. Else time is divided into intervals, in each of which at least ``min-rows``
    samples (100) end; the mean hazard of the samples at risk is then linear between knots in their
    middle. Metrics say how many ``knots`` there are, and whether the likelihood is ``exact``.

    `Result.coefficients` has log hazard ratios and ``hazard_ratio``; `Result.model` the baseline,
    `CoxModel.summary`, and the test of proportional hazards. `Result.predictions` has the samples
    without a label: ``linear_predictor``, and as ``prediction`` and ``hazard_ratio`` the hazard
    relative to that of a sample whose columns all have their mean. Compared with times
    (`test_labels`, `cross_validate`), they have Harrell's ``concordance``.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> from strategies.cox import survival_labels
    >>> rng = np.random.default_rng(0)
    >>> clinic = pd.DataFrame({"age": rng.normal(60, 9, size=900)})
    >>> laboratory = pd.DataFrame({"marker": rng.normal(size=900)})
    >>> hazard = np.exp(0.05 * (clinic["age"] - 60) + 0.7 * laboratory["marker"])
    >>> time, end = rng.exponential(size=900) / hazard, rng.exponential(2.0, size=900)
    >>> labels = survival_labels(np.minimum(time, end), time <= end)
    >>> tables = {"clinic": clinic, "laboratory": laboratory}
    >>> result = simulate(Cox(), tables, labels, progress=False)
    >>> result.coefficients["estimate"].round(1).to_list()
    [0.1, 0.7]
    """

    stratum_span: float | None = setting(
        None,
        "Strata with a baseline each: labels of stratum 0, 1, 2, ... are their times plus so many "
        "times this number, which no time reaches (`survival_labels` makes them).",
        above=0,
    )
    rows: str = setting(
        "complete",
        "Which labelled samples are fitted: those that all parties hold, or ``all``, with columns "
        "taken as jointly normal and blocks as missing independently of the times.",
        choices=("complete", "all"),
    )
    missing_labels: str = shared.missing_labels()

    name: ClassVar[str] = "cox"
    needs_labels = True
    needs_parties = 2
    demo = shared.demo(0.1, more={"cox.rows": "all"})
    party = CoxParty
    protocol = moments_protocol("True", opening=OPENED_ROWS)
    disclosure = (
        (
            "server",
            "names of the parties' columns, rows left out, and whether these differ from others",
        ),
        (
            "server",
            "over the labelled samples that all parties hold: sums of columns, of products of two "
            "columns, of columns over the samples with an event, the same by rank of time, and of "
            "columns times the events expected without columns; a rough unit and level of each "
            "column",
        ),
        (
            "server",
            "for each evaluation, at coefficients of its choice, by knots of time (between which "
            "at least as many samples end as a node states, or 100), the sum of hazards of the "
            "samples at risk, weighted by time, and of each column times them; how far linear "
            "predictors reach, to a grid. At the maximum products of two columns with hazards",
        ),
        (
            "server",
            "for each sample without a label, the sum of the parties' rounded terms; and how many "
            "bits a party's term tells",
        ),
        (
            "every party",
            "its own coefficients, of the fit and at each evaluation; how many intervals of time "
            "there are; which samples have a label, and which labelled samples the fit uses; of "
            "single times and events, random numbers only",
        ),
        *TOLD_COMPLETING,
        WITHHELD,
        *RECOGNISED,
        *COLLUSION,
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open sums, find the maximum, and hand out coefficients."""
        need_key_stream("cox", federation, alone="; of one party, fit by lifelines")
        progress.total = 3
        completing = _Completion() if self.rows == "all" else None
        survival = _Survival(federation, self.stratum_span, completing)
        opened = open_moments(
            federation, alignment, result, missing_labels=self.missing_labels, intercept=True,
            grouping=survival.rows, vectors=survival.vectors, completing=completing,
        )  # fmt: skip
        progress.step("moments")
        since, more = "some party lacks them", "rows='all' uses them, too"
        if completing is not None:
            since, more = "too few are held by the same parties", "rows='complete' leaves out more"
        rows = usable_rows(opened, result, intercept=True, penalised=True, since=since, more=more)
        fit = survival.fit(opened, result)
        progress.step("fit")
        risk, unit = survival.risk, opened.offered.unit
        beta, covariance = fit.beta / unit, fit.covariance / np.outer(unit, unit)
        result.metrics |= _metrics(fit, risk, survival.n_samples)
        if not fit.converged:
            note(
                result,
                f"not converged after {fit.evaluations} evaluations (30 at most; parties allow a "
                "vector for every ten rows, and each knot of time takes one); look for levels "
                "without events, and columns that nearly determine each other",
            )
        if survival.completed is not None:
            result.metrics["unseen_variance"] = survival.completed.variance(fit.beta)
        mean, spread = moments_of(rows, opened)
        if completing is not None:  # means in place of columns vary less than these
            spread = completing.model.covariance * np.outer(unit, unit)
        eta = float(np.sqrt(max(float(beta @ spread @ beta), 0.0)))
        result.metrics["concordance_probability"] = concordance(eta)
        result.model = _model(fit, risk, opened, beta, covariance, mean, result)
        turn = np.vstack([-mean, np.eye(len(beta))])  # the level at the mean is 0
        at = np.append(0, 1 + np.flatnonzero(beta))
        regressions = conditional_regressions(
            mean,
            spread,
            -float(mean @ beta),
            beta,
            (turn @ covariance @ turn.T)[np.ix_(at, at)],
            survival.n_samples / risk.n_events,
            opened.widths,
            HAZARD,
        )
        regressions = replace(regressions, stratum_span=self.stratum_span or 0.0)
        labels = result.labels
        keep_and_predict(federation, alignment, result, regressions, opened.problem)
        result.labels = labels  # a relative hazard is no time
        progress.step("keep")


class _Completion(LabelledCompletion):
    """Completes rows for a fit with three vectors of the server."""

    n_labels = 3


class _Survival:
    """Times and events, the rows of the fit, and the sums that are opened over them."""

    def __init__(
        self, federation: Federation, span: float | None, completing: _Completion | None
    ) -> None:
        self._federation, labels = federation, federation.labels
        self._completing = completing
        self._span, self._known = span, labels[np.isfinite(labels)]
        read_labels(self._known, span)

    def rows(self, mask: Flags, widths: Integers, minimum: MinimumRows) -> RowGroups:
        """Take the labelled samples that all parties hold, or that others complete."""
        self._fewest = minimum.of(0)
        if self._completing is None:
            found = complete_rows(mask, widths, minimum, _VECTORS)
            counted = self.n_samples = int((found.group >= 0).sum())
        else:
            found = self._completing.rows(mask, widths, minimum)
            self.n_samples, counted = int((found.group >= 0).sum()), self._completing.fewest
        self._allowed = minimum.vectors_for(counted)
        return found

    def vectors(self, problem: Problem, groups: RowGroups) -> Array:
        """Return what columns are multiplied with, (n_labelled, 2 or 3)."""
        inside = groups.group >= 0
        time, event, stratum = read_labels(self._known[inside], self._span)
        most = max(_MOST_NUMBERS // self.n_samples, _LEAST_KNOTS)
        of_products = vectors_of_products(sum(map(len, problem.columns.values())))
        for_means = self._allowed - _RESERVED - of_products
        evaluations = _EVALUATIONS if self._completing is None else _COMPLETING
        most = max(min(most, for_means // evaluations), 1)
        self.risk: RiskSets = risk_sets(time, event, stratum, most, self._fewest)
        n_knots = len(self.risk.exposure)
        if for_means // n_knots < 3:
            raise DataError(
                f"too few samples: the fit multiplies columns with {counted(n_knots, 'vector')} "
                "in each of "
                f"some {evaluations} evaluations, and {of_products} at least for the information; "
                f"parties allow {self._allowed} for "
                f"{self.n_samples:,} samples, a tenth of the smallest set where no node config "
                "states 'vectors'; align more, merge strata, or have every party raise 'vectors'"
            )
        self._with = self.risk.vectors(self._fewest)
        out = np.zeros((len(inside), self._with.shape[1]))
        out[inside] = self._with
        return out

    def fit(self, opened: OpenedMoments, result: Result) -> CoxFit:
        """Maximise the partial likelihood with the parties."""
        assert isinstance(opened.products, PrivateProducts)  # no ciphertexts, see `Cox.run`
        means = MaskedMeans(self._federation, opened.products.group_key)
        names = opened.names(range(opened.n_columns))
        offered, self.completed = opened.offered.moments, self._completed(opened)
        follows = None
        if self._completing is not None:
            follows = copied(opened, self._completing.model)
        found = PartialLikelihood(
            means, self.risk, offered, self._with, names, self.completed, follows
        )
        if found.follows.any():
            note(result, note_on_followers(opened.names(np.flatnonzero(found.follows))))
        if found.telling:
            note(result, told_times(found.telling))
        means.send(opened.groups.group)
        try:
            return found.maximise(self._allowed - _RESERVED)
        finally:
            means.close()

    def _completed(self, opened: OpenedMoments) -> Completed | None:
        """Return what is not known of completed columns."""
        if self._completing is None:
            return None
        model, inside = self._completing.model, opened.groups.group >= 0
        held, pattern = np.unique(~opened.problem.mask[inside], axis=0, return_inverse=True)
        maps, _ = maps_of(model, list(opened.parties.values()), held)
        moved, seen = moments_of_sets(self._completing, maps, held)
        mean = model.mean + moved - opened.offered.moments.sums[0] / inside.sum()
        unseen = model.covariance - maps @ model.covariance @ maps.transpose(0, 2, 1)
        return Completed(unseen, mean, seen, pattern.reshape(-1))


def _metrics(fit: CoxFit, risk: RiskSets, n_samples: int) -> dict[str, float]:
    ratio = 2.0 * (fit.log_likelihood - risk.null)
    freedom = int((np.diag(fit.covariance) > 0.0).sum())
    return {
        "n_samples": float(n_samples),
        "n_events": risk.n_events,
        "knots": float(len(risk.exposure)),
        "exact": float(risk.is_exact),
        "iterations": float(fit.evaluations),
        "converged": float(fit.converged),
        "log_likelihood": fit.log_likelihood,
        "lr_chi2": ratio,
        "lr_p_value": float(scipy.stats.chi2.sf(ratio, freedom)),
    }


def _model(
    fit: CoxFit,
    risk: RiskSets,
    opened: OpenedMoments,
    beta: Array,
    covariance: Array,
    mean: Array,
    result: Result,
) -> CoxModel:
    """Fill in the table of coefficients, and return the model."""
    varies = np.diag(covariance) > 0.0
    error = np.where(varies, np.sqrt(np.diag(covariance)), np.nan)
    estimate = np.where(varies, beta, np.nan)
    columns = opened.problem.columns
    frame = coefficient_table(columns, estimate, error)
    with np.errstate(over="ignore"):  # per unit of a column of tiny numbers
        frame["hazard_ratio"] = np.exp(frame["estimate"])
    result.coefficients = frame
    test = None
    if fit.residuals is not None:
        residuals = fit.residuals * opened.offered.unit
        test = proportional_test(residuals, covariance, risk.count, risk.ranks, frame.index)
    return CoxModel(
        frame,
        covariance,
        risk.baseline(fit.sums),
        pd.DataFrame({"mean": mean}, index=frame.index),
        fit.log_likelihood,
        risk.null,
        float(len(risk.event)),
        risk.n_events,
        {name: list(own) for name, own in columns.items()},
        test,
    )
