"""LDA: linear discriminant analysis over parties that lack rows, in closed form.

Labelled rows that a party lacks are completed by a joint normal model of all columns
(`strategies.normal`), each for the eyes of the party that lacks it. Then all parties have all
labelled rows, and sums of products of columns, and of columns by class, determine the discriminants
(`discriminant`). Samples without a label are classified by the parties that have them.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Model, Progress, Result, Strategy, Uses
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products.row_groups import RowGroups
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.tables.codes import level_text
from strategies.lda.discriminant import Discriminant, fit_discriminant, log_odds, telling
from strategies.linear import settings as shared
from strategies.linear.coefficients import INTERCEPT, variables
from strategies.linear.moment_party import (
    PAIRS_OF_COLUMNS,
    RECOGNISED,
    SEED_OF_COLUMNS,
    WITHHELD,
    moments_protocol,
)
from strategies.linear.moments.collect import OpenedMoments, open_moments, told_by
from strategies.linear.moments.groups import MinimumRows
from strategies.linear.prediction.regressions import CLASSES, Regressions, pattern_list
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.prediction.steps import MOST_OUTPUTS, KeptCoefficients
from strategies.linear.problem import Problem, need_key_stream, note
from strategies.normal.labelled_party import CompletingParty, LabelledProductSteps
from strategies.normal.labelled_server import COMPLETING, LabelledCompletion

ALL_SETS = 9
"""Up to so many parties every set of parties has its discriminants."""

MOST_CLASSES = 100
"""More different labels are hardly classes."""


@dataclass
class DiscriminantModel(Model):
    """What the server knows of a fitted model, in the units of the tables."""

    strategy = "lda"

    classes: list[float]  # Labels of the classes
    prior: Array  # (n_classes,): share of each class
    # By class, the means of the columns over completed rows, shrunk towards the mean of all rows:
    # nearer to it than the classes are where rows are missing; index (party, variable)
    means: pd.DataFrame
    # Log odds of each class against the first, per unit of the columns, where all parties have the
    # row; index (party, variable), and ``server``, ``intercept``
    coefficients: pd.DataFrame
    covariance: Any  # (n_columns, n_columns): within classes
    shrinkage: float  # Weight of its diagonal
    columns: dict[str, list[str]] = field(default_factory=dict)  # By party


class DiscriminantParty(CompletingParty):
    """Completes labelled rows, and keeps its own coefficients of the discriminants."""

    products = Uses(LabelledProductSteps, purpose="lda")
    prediction = Uses(KeptCoefficients, most_outputs=MOST_OUTPUTS)


class LDA(Strategy):
    """Tell classes apart by linear discriminants, whichever parties lack a sample.

    Columns are taken as normal in each class with one covariance. The class of a sample follows
    from the columns of the parties that have it.

    Notes
    -----
    Labels are numbers, one for each class. `Result.predictions` has the samples without a label:
    ``prediction`` and the probability of each class. With K classes a prediction has K - 1 scores,
    and each node's policy bounds what they tell of a row, all together (``predictions``, 24 bits);
    from six classes on the owners have to allow more, six bits a score.

    The sums of a class are over its labelled samples: as many as the nodes' ``min-rows`` (100).
    The covariance within classes is shrunk towards its diagonal, the more the fewer labels there
    are for each column; means of classes are shrunk towards each other.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> kind = pd.Series(rng.integers(3, size=900).astype(float), name="kind")
    >>> bank = pd.DataFrame({"a": kind + rng.normal(size=900)})
    >>> court = pd.DataFrame({"b": 9 * (kind == 2) + rng.normal(size=900)})
    >>> known = kind.where(kind.index < 600)
    >>> result = simulate(LDA(), {"bank": bank[:700], "court": court[100:]}, known, progress=False)
    >>> found = result.predictions["prediction"].to_numpy()
    >>> bool(np.mean(found[-200:] == kind.to_numpy()[-200:]) > 0.6)
    True
    """

    missing_labels: str = shared.missing_labels()

    name: ClassVar[str] = "lda"
    needs_labels = True
    needs_parties = 2
    demo = shared.demo(0.2, 0.1, "breast-cancer")
    party = DiscriminantParty
    protocol = moments_protocol(opening=Protocol(*COMPLETING))
    disclosure = (
        (
            "server",
            "names of the parties' columns, which rows a party leaves out for missing cells, and "
            "whether these differ from others; a rough unit and level of each "
            "column; how many numbers a party tells of a row where it "
            "alone helps",
        ),
        PAIRS_OF_COLUMNS,
        (
            "server",
            "over the labelled rows, own and completed: sums of columns, of products of two "
            "columns, and of columns by class",
        ),
        (
            "server",
            "for each sample without a label, for each class but the first the sum of the parties' "
            "terms, rounded to a grid: at most ``bits_per_row`` bits; of each party, how many of "
            "these lie out of its bounds",
        ),
        WITHHELD,
        *RECOGNISED,
        (
            "every party",
            "which samples have a label, and which parties hold each; which labelled rows each "
            "other one lacks; its own coefficients, for each set of parties",
        ),
        (
            "every party",
            "of each labelled row that it lacks, the mean of its columns given the others' "
            "columns, to a quarter of what is left of their standard deviation; where one other "
            "party alone holds the row, at most half as many numbers as that has columns which do "
            "not follow from its others. Nothing of the labels",
        ),
        SEED_OF_COLUMNS,
        (
            "a party and its helper together",
            "the labels: one has the classes' flags under a mask, the other the seed of the mask",
        ),
        ("nobody alone", "a value of another party's columns; of the parties, a label"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Complete labelled rows, open their sums, and have the parties keep discriminants."""
        need_key_stream("lda", federation)
        progress.total = 2
        labelled = ClassSums(federation)
        opened = open_moments(
            federation, alignment, result, missing_labels=self.missing_labels, intercept=True,
            grouping=labelled.rows, completing=labelled, vectors=labelled.flags,
        )  # fmt: skip
        progress.step("moments")
        sums, counts = opened.offered.moments, labelled.counts
        of_classes = sums.sums[0], sums.products[0], sums.with_vectors[0], counts
        fit = fit_discriminant(*of_classes)
        if len(found := np.flatnonzero(telling(*of_classes))):
            note(result, told_by(opened.names(found)))
        regressions = _regressions(fit, opened, labelled.classes)
        keep_and_predict(federation, alignment, result, regressions, opened.problem)
        progress.step("finish")
        result.model = _model(fit, opened, labelled.classes, regressions)
        result.metrics["n_samples"] = float(counts.sum())
        result.metrics["n_classes"] = float(len(counts))
        result.metrics["shrinkage"] = fit.shrinkage
        held = (~opened.problem.mask).sum(axis=0)
        result.party_metrics = {
            name: {"rows_held": float(rows)}
            for name, rows in zip(opened.parties, held, strict=True)
        }


class ClassSums(LabelledCompletion):
    """Completion of the labelled rows, and flags of their classes to be multiplied with."""

    def __init__(self, federation: Federation) -> None:
        labels = federation.labels
        if not np.isfinite(labels).any():
            raise DataError("lda needs samples with a label; all are NaN")
        self._labels = labels
        self.classes = [float(value) for value in np.unique(labels[np.isfinite(labels)])]
        self.n_labels = self.n_vectors = len(self.classes)
        if not 2 <= len(self.classes) <= MOST_CLASSES:
            raise DataError(
                f"the labels have {counted(len(self.classes), 'different value')}; lda tells 2 to "
                f"{MOST_CLASSES} "
                "classes apart. For labels that are numbers use `vfem` or `glm`"
            )

    def rows(self, mask: Flags, widths: Integers, minimum: MinimumRows) -> RowGroups:
        """Take the rows as `LabelledCompletion` does, enough for a vector of each class."""
        allowed, n_classes = minimum.vectors, len(self.classes)
        if allowed is not None and allowed < n_classes:
            raise ConfigError(
                f"lda multiplies columns with a vector of each of {n_classes} classes, and a "
                f"party's policy allows 'vectors' = {allowed}; merge classes, or have every party "
                "allow as many vectors as there are classes"
            )
        self._of_class = minimum.of(0)
        return super().rows(mask, widths, minimum)

    def flags(self, problem: Problem, groups: RowGroups) -> Array:
        """Return flags of the classes, (n_labelled, n_classes); refuse classes of few rows."""
        own = self._labels[problem.labelled]
        found = (own[:, None] == np.array(self.classes)) & (groups.group >= 0)[:, None]
        self.counts = found.sum(axis=0)
        few = np.flatnonzero(self.counts < self._of_class)
        if len(few):
            shown = ", ".join(f"{level_text(self.classes[c])} ({self.counts[c]})" for c in few[:8])
            raise DataError(
                f"classes with fewer than {self._of_class} labelled samples in the fit: {shown}"
                f"{', ...' if len(few) > 8 else ''}; sums over fewer are not opened. Merge "
                "classes, align more samples, or have every party lower 'min-rows' in its node "
                "config (simulate(min_rows=...))"
            )
        return np.asarray(found.astype(np.float64))


def _regressions(fit: Discriminant, opened: OpenedMoments, classes: list[float]) -> Regressions:
    """Return log odds for each set of parties, in the units of the tables."""
    widths, k, problem = opened.widths, len(opened.parties), opened.problem
    if k <= ALL_SETS:
        present = np.array(list(product((True, False), repeat=k)), dtype=bool)
    else:
        present = pattern_list(k, ~np.vstack([problem.mask, problem.free_mask]))
    slopes, level = log_odds(fit, widths, present)
    lines = slopes.reshape(-1, slopes.shape[-1])
    by_party = opened.owner[:, None] == np.arange(k)
    offered = opened.offered
    found = Regressions(
        present,
        level.ravel(),
        lines,
        (lines * fit.mean) @ by_party,
        (~present @ np.array(widths)).astype(np.float64),
        np.zeros(len(present)),
        1.0,
        tuple(widths),
        CLASSES,
        tuple(classes),
    )
    return found.of_columns(offered.center, offered.unit)


def _model(
    fit: Discriminant, opened: OpenedMoments, classes: list[float], found: Regressions
) -> DiscriminantModel:
    columns, offered = opened.problem.columns, opened.offered
    index = variables(columns)
    means = offered.center + offered.unit * (fit.mean + fit.shift)
    n = len(classes) - 1
    at_zero = pd.DataFrame(
        [found.level[:n] - found.offsets[:n].sum(axis=1)], index=variables(INTERCEPT)
    )
    slopes = pd.DataFrame(found.coefficients[:n].T, index=index)
    return DiscriminantModel(
        classes,
        fit.prior,
        pd.DataFrame(means.T, index=index, columns=classes),
        pd.concat([at_zero, slopes]).set_axis(classes[1:], axis=1),
        fit.covariance * np.outer(offered.unit, offered.unit),
        fit.shrinkage,
        {name: list(own) for name, own in columns.items()},
    )
