"""Scorecard: points for each bin of each column, whichever parties lack a sample.

Bins are opened first, as `explore` does, then moments of weights of evidence over all labelled
rows; the rest is the fit of `glm` to labels 0 and 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import AnyArray, Array, Flags
from flwr_vertical.products.labels import Commitment
from flwr_vertical.products.masked import OPENING
from flwr_vertical.protocol.declaration import Protocol
from strategies.binning.steps import BINS_OPENING, MOST_BINS, TOLD_BINS
from strategies.glm.fit import fill_means, grid_of
from strategies.glm.likelihoods import usable_rows
from strategies.glm.means import check_federation, given_labels, maximum_likelihood
from strategies.glm.outcome import fill_selected
from strategies.glm.penalties import SELECTING
from strategies.glm.selection import Path
from strategies.linear import settings as shared
from strategies.linear.families import family_named
from strategies.linear.masked_means.problem import Beside, null_deviance
from strategies.linear.moment_party import (
    EVALUATED,
    RECOGNISED,
    SEED_OF_COLUMNS,
    TERMS_TO_A_GRID,
    moments_protocol,
)
from strategies.linear.moments.collect import OpenedMoments, open_moments
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.regressions import Regressions, pattern_list
from strategies.linear.prediction.server import Predictor, keep_and_predict
from strategies.predict.linear import LinearPredictions, PredictParty
from strategies.scorecard.card import HELD, LEAST_EVENTS, PointScale
from strategies.scorecard.opening import BinnedColumns
from strategies.scorecard.part import ScorecardPart
from strategies.scorecard.party import ScorecardParty


@dataclass
class ScorecardPredictor(Predictor):
    """What the server needs to turn sums of terms into scores."""

    strategy = "scorecard"
    version = 1

    base_score: float  # See `PointScale`
    base_odds: float
    points_to_double: float

    @classmethod
    def of(cls, predictor: Predictor, scale: PointScale) -> "ScorecardPredictor":
        """Add the scale of points."""
        return cls(**vars(predictor), **vars(scale))

    def table(
        self, held: Flags, term: AnyArray, shift: Array | float = 0.0, weights: Array | float = 1.0
    ) -> pd.DataFrame:
        """Turn sums of terms into probabilities of the event, and scores; see `Predictor`."""
        found = super().table(held, term, shift, weights)
        scale = PointScale(self.base_score, self.base_odds, self.points_to_double)
        score = scale.score(found["linear_predictor"].to_numpy(dtype=np.float64))
        return pd.DataFrame({"prediction": found["prediction"], "score": score})


class ScorecardPredictParty(PredictParty):
    """Has its bins and coefficients from the run named ``fitted``."""

    kept: ClassVar[type[LinearPart]] = ScorecardPart


class ScorecardPredictions(LinearPredictions):
    """As with linear models, of weights of evidence."""

    party = ScorecardPredictParty


FAMILY = "binomial"
_LEAST = 1e-12
"""What absent columns count as unseen: that of two regressions the one on more parties is taken."""


class Scorecard(Strategy):
    """Score samples by bins of columns, whichever parties lack them: weight of evidence, points.

    Each party bins its own columns: ranges of numbers, levels, missing cells and special values.
    The server merges bins until the rate of events is monotone. A logistic regression on weights of
    evidence gives each bin its points. Rows that a party lacks are a bin of their own, so all
    labelled samples are in the fit and all samples are scored.

    Notes
    -----
    Labels are 0 and 1; 1 is the event (default, say). Weight of evidence is that of no event:
    ``ln((n_b - e_b) / (N - E)) - ln(e_b / E)``, and a higher score means fewer events. In rows that
    a party lacks its columns have evidence 0, and a column ``rows held`` has the evidence of the
    party's rows and of those that it lacks.

    `Result.scorecard` has, by party, column and merged bin, rows, events, evidence, information
    value, coefficient and points; a sample's score is the sum of its points and of ``model base``.
    `Result.stability` has information value and population stability index (samples with a label
    and without) of each column. Ranges have numbers there. On its node a party gets two
    files: the points of its own samples, with the columns that cost these most as reasons
    (``<party>.points.parquet``), and its bins with their limits (``<party>.bins.parquet``).

    `Result.predictions` has the samples without a label, the probability of the event and the
    score. How good a card is on samples that it was not fitted to `cross_validate` says; a Gini
    coefficient is ``2 AUC - 1``.

    BIC selects columns. The fit takes sets of rows held by the same parties, of 160 rows and five
    for each column, or what the nodes demand; smaller ones are left out.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> income, cases = rng.normal(size=2000), rng.poisson(1.0, 2000)
    >>> odds = np.exp(-1 - income + cases)
    >>> default = pd.Series((rng.random(2000) < odds / (1 + odds)).astype(float))
    >>> bank = pd.DataFrame({"income": income})
    >>> court = pd.DataFrame({"cases": cases}).iloc[500:]
    >>> result = simulate(Scorecard(), {"bank": bank, "court": court}, default, progress=False)
    >>> bool(result.scorecard.loc[("court", "cases"), "points"].is_monotonic_decreasing)
    True
    """

    bins: int = setting(
        20,
        "Ranges and levels of a column before they are merged; fewer where a party has few rows "
        "for all its bins.",
        at_least=2,
        at_most=MOST_BINS,
    )
    special: tuple[float, ...] = setting(
        (),
        "Numbers that are no amounts, such as -999 for no account: bins of their own, where "
        "enough rows have them.",
    )
    least_share: float = setting(
        0.05, "Of a party's labelled rows, the smallest share of a merged bin.", at_least=0, below=1
    )
    penalty: str = setting(
        "lasso", "What selects columns, by BIC, as of `glm`.", choices=(*SELECTING, "none")
    )
    base_score: float = setting(600.0, "Score at `base_odds`.")
    base_odds: float = setting(50.0, "Odds of no event at `base_score`.", above=0)
    points_to_double: float = setting(20.0, "Points that double the odds of no event.", above=0)
    missing_labels: str = shared.missing_labels()

    name: ClassVar[str] = "scorecard"
    needs_labels = True
    needs_parties = 2
    demo = shared.demo(0.2, 0.1, "breast-cancer")
    party = ScorecardParty
    predictions = ScorecardPredictions
    protocol = moments_protocol(
        opening=Protocol(OPENING.parts[0], BINS_OPENING, *OPENING.parts[1:], *EVALUATED)
    )
    disclosure = (
        TOLD_BINS,
        (
            "server",
            "over the labelled rows, those that a party lacks with its evidence of them: sums of "
            "columns of weights of evidence, of products of two, of columns and labels; for each "
            "evaluation, at coefficients of the server's choice, sums of the means and of each "
            "column times them, and how far linear predictors reach, to a grid; at some of them "
            "also products weighted by the labels' variance. Evidence is of numbers that the "
            "server chose, one for each bin",
        ),
        TERMS_TO_A_GRID,
        *RECOGNISED,
        (
            "every party",
            "which samples have a label; which parties hold each labelled one; weights of evidence "
            "of its own bins and coefficients of its own columns, from which rates of events in "
            "its own bins follow, and that among rows that it lacks",
        ),
        SEED_OF_COLUMNS,
        (
            "a party and its helper together",
            "the labels and their expectations: one has these under a mask, the other the seed of "
            "the mask",
        ),
        (
            "nobody alone",
            "a value of another party's columns, or a limit of its ranges; of the parties, a label",
        ),
    )

    @property
    def scale(self) -> PointScale:
        """How log odds become points."""
        return PointScale(self.base_score, self.base_odds, self.points_to_double)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open bins, fit on their evidence, and have the parties keep their points."""
        check_federation(FAMILY, federation)
        family, labels = family_named(FAMILY), federation.labels
        family.check(labels[np.isfinite(labels)])
        progress.total = 3
        commitment = Commitment(federation)
        binned = BinnedColumns(
            commitment, self.bins, self.special, self.least_share, self.points_to_double
        )
        opened = open_moments(
            federation, alignment, result,
            missing_labels=self.missing_labels, intercept=True, grouping=binned.rows,
            completing=binned, commitment=commitment,
        )  # fmt: skip
        progress.step("bins")
        rows = usable_rows(
            opened, result, intercept=True, penalised=True,
            more="too few are held by the same parties",
        )  # fmt: skip
        penalised = np.ones(opened.n_columns, dtype=bool)
        path = Path(self.penalty, None, penalised)
        selects = self.penalty in SELECTING
        if selects:
            path.lambdas = grid_of(
                opened, rows, family, penalised, intercept=True, standardize=True
            )
        maximum = maximum_likelihood(
            federation, opened, FAMILY, intercept=True, standardize=True,
            choose=path.choose if selects else None, fewest=binned.fewest,
        )  # fmt: skip
        at = maximum.at
        found = path.found or path.select(at)
        chosen = fill_selected(
            FAMILY, opened.problem, at, found, True, result, None, None, maximum.bounded, None, None
        )
        y = given_labels(federation, opened.problem)[opened.groups.group >= 0]
        null = null_deviance(family, y, Beside.nothing(len(y)), True)
        fill_means(maximum, found, null, result)
        progress.step("fit")
        self._report(binned, opened, chosen.beta, chosen.intercept, result)
        regressions = self._regressions(
            binned, opened, chosen.beta, chosen.intercept, at.working_variance
        )
        keep_and_predict(federation, alignment, result, regressions, opened.problem)
        result.predictor = ScorecardPredictor.of(result.predictor, self.scale)
        if result.predictions is not None:
            score = self.scale.score(result.predictions["linear_predictor"].to_numpy())
            result.predictions = result.predictions[["prediction"]].assign(score=score)
        progress.step("points")

    def _report(
        self,
        binned: BinnedColumns,
        opened: OpenedMoments,
        beta: Array,
        intercept: float,
        result: Result,
    ) -> None:
        """Fill in the card, and what is wrong with it."""
        tables, stable, factor = {}, {}, self.scale.factor
        for name, own in opened.parties.items():
            tables[name] = binned.columns[name].table(beta[own], factor)
            stable[name] = binned.columns[name].stability()
        base = pd.DataFrame(
            {"points": [self.scale.base(intercept)]},
            index=pd.MultiIndex.from_tuples([("base", "")], names=["column", "bin"]),
        )
        result.frames["scorecard"] = pd.concat({"model": base, **tables}, names=["party"])[
            list(next(iter(tables.values())))
        ]
        result.frames["stability"] = pd.concat(stable, names=["party"])
        merged = [own.start + binned.columns[n].of_one_bin for n, own in opened.parties.items()]
        if names := opened.names(np.concatenate(merged)):
            result.notes.append(
                f"columns {names} have one bin, and no part in the score: of their ranges or "
                f"levels, one at most has enough rows, {LEAST_EVENTS} of them with the event and "
                f"{LEAST_EVENTS} without. A column that tells the labels exactly is such a one"
            )
        card = result.frames["scorecard"]
        pure = (card["events"] == 0) | (card["events"] == card["n"])
        if names := [
            f"{party}.{column}: {label}"
            for party, column, label in card.index[pure & (card["n"] > 0) & (card["points"] != 0)]
        ]:
            result.notes.append(
                f"bins {names} have the event in no row, or in all: their points are those of half "
                "an event, or of half a row without it. Look whether such cells are missing for a "
                "reason that is not there when samples are scored"
            )
        names = opened.names(np.flatnonzero(beta > 0))
        if wrong := [name for name in names if not name.endswith(HELD)]:
            result.notes.append(
                f"columns {wrong} have a positive coefficient: given the others, their bins of "
                "more events get more points; consider to leave them out"
            )

    def _regressions(
        self,
        binned: BinnedColumns,
        opened: OpenedMoments,
        beta: Array,
        intercept: float,
        noise: float,
    ) -> Regressions:
        """Return the linear predictor for each set of parties that may hold a row."""
        problem, k = opened.problem, len(opened.parties)
        widths = np.array(opened.widths)
        present = pattern_list(k, ~np.vstack([problem.mask, problem.free_mask]))
        absent = np.zeros(k)
        for number, (name, own) in enumerate(opened.parties.items()):
            if binned.columns[name].has_block:
                absent[number] = beta[own][-1] * binned.columns[name].block[1]
        return Regressions(
            present,
            intercept + ~present @ absent,
            np.repeat(present, widths, axis=1) * beta,
            np.zeros(present.shape),
            _LEAST * (~present @ widths),
            np.zeros(len(present)),
            noise,
            tuple(int(width) for width in widths),
            FAMILY,
        )
