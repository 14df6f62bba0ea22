"""Gradient boosting over columns of several parties, with missing cells and missing blocks.

All classes of an iteration share the rounds of a level (`rounds`). Samples that are held out cost
no round: their sides travel with those of the others.
"""

from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pandas as pd

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.declaration import ARBITER as THE_ARBITER
from flwr_vertical.protocol.declaration import (
    BITS,
    FACTS,
    NOTHING,
    ONE,
    SOME,
    If,
    Maybe,
    Protocol,
    Repeat,
    Round,
)
from flwr_vertical.protocol.messages import ARBITER
from strategies.linear.problem import sample_index
from strategies.trees.arbiter import TreeArbiter
from strategies.trees.boosting import Boosting, Grower, SlotRows
from strategies.trees.contributions import contributions_table, path_contributions
from strategies.trees.masked_store import prepare
from strategies.trees.model import prediction_table
from strategies.trees.node_sums import Indices
from strategies.trees.objectives import OBJECTIVES, Objective, labels_of, no_split
from strategies.trees.party import COLUMN_NAMES, TreeParty
from strategies.trees.predict import TreesPredictions
from strategies.trees.rounds import LevelRounds
from strategies.trees.secret_shares import HIDING, HISTOGRAMS

DISCLOSURE = (
    (
        "server",
        "of each party: how many columns it has, how many bins each, whether these have an order, "
        "and whether any sample lacks the cell; in which of them predictions may only rise or only "
        "fall, if the node states so (trees.monotone.* of its node config); no names",
    ),
    (
        "server",
        "of each split: whose column, which bin (by numbers), which equal splits there were, "
        "where missing cells go, and which side each sample is on: over many trees most bits of a "
        "column that matters",
    ),
    (
        "every party",
        "in which node each labelled sample is, above the last split: from 100 trees a party "
        "guessed labels with AUC 0.70, and with 0.75 where it knew 50 of them; so which samples "
        "have a label, and which are on one side of a split of some other party's column; with l2, "
        "a power of two above l2 over the largest second derivative",
    ),
    (
        "every party",
        "how many columns each other one has, how many bins each, whether these have an order, and "
        "whether any sample lacks the cell; which of them an iteration may use",
    ),
    (
        "server",
        "with levels='sorted', the order of each nominal column's levels (by numbers) by their "
        "mean label, and which have the same, and every party the order of its own columns': of "
        "levels that have min_child labelled samples (and its min-rows), and leave as many; once a "
        "run",
    ),
    (
        "every party",
        "with dependence=true, the mean raw prediction for each bin of each of its columns, and "
        "so how labels depend on them, all others at their shares of rows",
    ),
    (
        "a party that owns a split",
        "which samples come to it, with and without a label, and that it was the best",
    ),
    (
        "arbiter",
        "of each node, ratios of gains of its legal splits, to 2^-18, without knowing which "
        "split is which or of whom; how many there are; the number of bins of all columns. Where "
        "nodes state directions of columns: how many splits are of such, and which of these go "
        "the other way. With levels='sorted', once: ratios of mean labels of the levels of all "
        "nominal columns, less their mean, up to a factor and a sign",
    ),
    (
        "server",
        "with histograms='open', which each node must allow: sums of gradients over the bins "
        "of each column and node. It knows the gradients, and can solve for the columns: with "
        "1,000 samples, least squares over 20 trees returned 96 % of a column's bins",
    ),
    (
        "server",
        "with importance='columns', which each node must allow: the name of each split's column",
    ),
    ("server and any one party together", "all columns, in bins"),
    ("a party and its helper together", "the gradients, and so the labels"),
    ("arbiter and server together", "sums of gradients over bins, as with open histograms"),
    (
        "nobody else",
        "a gradient, a label, or a value within a bin, but for what sides of splits tell",
    ),
    (
        "every party",
        "where blocks are missing, with patterns above 0: which parties hold the samples of "
        "each pattern that has trees of its own, and which labelled samples one of these holds",
    ),
)


_SENT = Repeat(
    Round("send_masked", "rows of its bins, under the group's key stream", again=True),
    at_most="n_samples",
)
_SHARE = Round(
    "share",
    "shares of sums of gradients over bins, under pads; open, the sums",
    tells=(NOTHING, BITS),
)


class VerticalGBDT(Strategy):
    """Boost trees whose splits are columns of any party.

    Every sample of the union takes part: a missing cell, and a block that a party lacks, is a code
    of its own, and each split learns on which side it goes. With `patterns` above 0 the most
    frequent patterns of missing blocks have trees of their own as well, which use the columns of
    the parties that hold such samples and are fitted to all samples that one of them holds; they
    predict the samples of that pattern. They grow in the same rounds.

    Neither the server nor a party sees a histogram. A node that knows the gradients and sees sums
    of them over bins can solve for the columns. So the server has one share of these sums and
    another party the other. An arbiter, who has no data, compares gains that are scaled, noised and
    shuffled candidate by candidate. ``histograms="open"`` needs no arbiter, takes two rounds a
    level in place of three, and tells the server these sums; each node must agree to the exchange
    ``histograms``.

    Samples whose label is NaN are predicted: `Result.predictions` has ``prediction`` and, of
    classes, ``probability_<class>``. `Result.predict` predicts new rows, whichever parties are
    there. ``Result.importance`` has gain, cover and number of splits by party, or by column where
    every node agrees to tell names (the exchange ``column-names``); ``Result.contributions``, how
    far each party moves the raw prediction of a sample, to the log-odds for two classes.

    Notes
    -----
    Trees grow level by level to `max_depth`. A split is the best by second-order gain, and the
    first of those that are equal to 2^-18: in the order of parties, columns, bins. A split of a
    nominal column sets one level against the others, or divides levels by a threshold in the order
    of their mean label. Sums are of whole numbers, so trees are those
    of a central booster to the split, but where two splits are closer than rounding: some 2^-15 of
    a gain, more of a gain that is next to nothing.

    A node may state that predictions shall only rise, or only fall, with a column of its own:
    ``trees.monotone.<column> = 1`` or ``-1`` in its node config (`simulate` has ``node_config``).
    Splits that go the other way are not made, and leaves keep within the means of the splits above;
    cells that are missing have no part in it. Not for several classes.

    A node's ``min-rows`` bounds the two sides of splits by its own columns, and the bins of its
    numbers.
    """

    objective: str = setting(
        "binary",
        "What is predicted: classes, expectations (squared error; counts, or amounts of which some "
        "are 0, with a log link), or a quantile.",
        choices=OBJECTIVES,
    )
    quantile: float = setting(0.5, "Which quantile 'quantile' predicts.", above=0, below=1)
    tweedie_power: float = setting(
        1.5, "Of 'tweedie': the power of the mean that the variance is.", above=1, below=2
    )
    class_weights: str = setting(
        "",
        "What samples of a class count for: 'balanced' (each class as much as others), or a number "
        "above 0 for each class, such as '1, 5'; by default all alike. Probabilities shift with "
        "them.",
    )
    n_trees: int = setting(
        400, "Iterations at most; of classes, each has a tree for each.", at_least=1
    )
    max_depth: int = setting(4, "Levels of splits.", at_least=1, at_most=12)
    learning_rate: float = setting(0.1, "What the values of leaves are multiplied by.", above=0)
    n_bins: int = setting(
        32, "Bins of a column at most, beside that of missing cells.", at_least=2, at_most=254
    )
    levels: str = setting(
        "sorted",
        "Splits of nominal columns: one level against the others; 'sorted': or a threshold in the "
        "order of their mean label (not of several classes).",
        choices=("sorted", "single"),
    )
    l2: float = setting(0.0, "Added to the second derivatives of a leaf.", at_least=0)
    min_child: int = setting(20, "The fewest samples of a leaf.", at_least=1)
    subsample: float = setting(
        1.0, "Share of the samples that each iteration's trees are fitted to.", above=0, at_most=1
    )
    colsample: float = setting(
        1.0, "Share of all columns that each iteration's trees may use.", above=0, at_most=1
    )
    validation_share: float | None = setting(
        None,
        "Share of the labelled samples that tell when to stop; by default a fifth, but 2,000 "
        "samples at most; 0: all are fitted, by `n_trees` trees.",
        at_least=0,
        below=1,
    )
    early_stopping: int = setting(
        20,
        "With validation: iterations without a better one after which boosting ends; the best "
        "number of iterations is kept.",
        at_least=1,
    )
    patterns: int = setting(
        0,
        "How many patterns of missing blocks, the most frequent ones, have trees of their own; 0: "
        "all samples share theirs.",
        at_least=0,
    )
    histograms: str = setting(
        "hidden",
        "Whether the server sees sums of gradients over bins, which each node must allow.",
        choices=("hidden", "open"),
    )
    importance: str = setting(
        "parties",
        "Whose importance `Result.importance` has: that of parties, or of columns by name, which "
        "each node must allow.",
        choices=("parties", "columns"),
    )

    dependence: bool = setting(
        False,
        "Whether parties are told, for their own pages, how predictions depend on their columns.",
    )

    name: ClassVar[str] = "gbdt"
    removed = MappingProxyType(
        {"products": "histograms='open', which tells the server the same sums by masked products"}
    )
    party = TreeParty
    protocol = Protocol(
        Round("prepare", "numbers of bins of its columns, without names; keys", tells=FACTS),
        Round("prepare", "its public key", tells=FACTS, ask=THE_ARBITER),
        Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
        _SENT,
        If(
            "levels == 'sorted'",
            Maybe(
                _SHARE,
                If(
                    "histograms != 'open'",
                    Round("rank", "in which order levels are", ask=THE_ARBITER),
                ),
                _SENT,
            ),
        ),
        Repeat(
            _SHARE,
            If(
                "histograms != 'open'",
                Round("compare", "which candidate of each node gains most", ask=THE_ARBITER),
            ),
            Maybe(Round("route", "on which side of a split rows are", tells=BITS, ask=SOME)),
            at_most="n_trees * max_depth",
        ),
        Round("finish", "by consent, names of the columns of splits", tells=FACTS),
        Round("finish", ask=THE_ARBITER),
    )
    arbiter = TreeArbiter
    predictions = TreesPredictions
    needs_labels: ClassVar[bool] = True
    needs_parties: ClassVar[int] = 2
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.missing-blocks": 0.3,
            "demo.missing-labels": 0.3,
            "gbdt.n-trees": 30,
            "gbdt.max-depth": 4,
        }
    )
    disclosure = DISCLOSURE

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        return HIDING if self.histograms == "hidden" else None

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """What every node must agree to."""
        named = (COLUMN_NAMES,) if self.importance == "columns" else ()
        return ((HISTOGRAMS,) if self.histograms == "open" else ()) + named

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Grow trees, have the parties keep their splits, and predict samples without a label."""
        labels = labels_of(federation, self.min_child)
        parameter = {"quantile": self.quantile, "tweedie": self.tweedie_power}
        objective = Objective.of(
            self.objective, labels[~np.isnan(labels)], parameter.get(self.objective, 0.0)
        )
        course = Boosting(self, objective, labels, federation.rng, ~alignment.mask)
        hidden, columns = self.histograms == "hidden", self.importance == "columns"
        names = list(federation.parties)
        if federation.checkpoint_every is None:
            # The parties' masked rows go into no journal: a run goes back to a snapshot.
            federation.checkpoint_every = 10  # iterations
        progress.total = course.n_steps
        n_sides = course.most_trees * self.max_depth + (self.levels == "sorted")
        slots, arguments, keys = prepare(federation, self.n_bins, n_sides, hidden, result)
        rounds = LevelRounds(federation, slots, hidden, keys)
        stating = [name for name in names if slots.monotone[name].any()]
        if stating and (objective.width > 1 or objective.name == "quantile"):
            raise ConfigError(
                f"parties {stating} state directions of columns (trees.monotone.* in their node "
                "configs), which neither probabilities of several classes, as they add up to one, "
                "nor quantiles, whose leaves are fitted anew, can all follow; take the keys out, "
                "or fit one class against the rest, or an expectation"
            )
        grower = Grower(rounds, self)

        def iterate(i: int) -> bool:
            rows.provide(course)
            ended = course.iterate(i, grower, result)
            progress.step(i + 1, course.n_steps)
            return ended

        # Each of several classes would have an order of its own.
        sorts = self.levels == "sorted" and objective.width == 1
        rows = SlotRows(federation, rounds, arguments, sorts)
        rows.send()
        federation.loop(course.n_steps, iterate, {"trees": course.state, "history": result.history})
        name = federation.random_bytes(16).hex()
        result.predictor = model = course.model(name, names)
        own = course.dependence(model, slots) if self.dependence else {}
        replies = federation.call(
            "finish",
            {"model": name, "columns": columns},
            per_party=own,
            parties=[*names, ARBITER] if hidden else names,
        )
        if not (model.party >= 0).any():
            result.notes.append(no_split(self.min_child))
        result.model = by_party = model.importance()
        result.importance = model.importance_by_column(replies) if columns else by_party
        leaves = course.leaves(model)
        raw = model.raw(leaves)
        result.metrics |= course.metrics(raw)

        def table_of(rows: Indices) -> pd.DataFrame:
            table = prediction_table(model.loss, raw[:, rows])
            return table.set_axis(sample_index(alignment, result.labels, rows))

        if len(free := np.flatnonzero(np.isnan(course.labels))):
            result.predictions = table_of(free)
            parts = path_contributions(model, leaves[:, free])
            result.contributions = contributions_table(model, parts, result.predictions.index)
        if len(kept := course.held_out):
            from flwr_vertical.results.evaluation import evaluate  # imports scikit-learn

            held_out = table_of(kept)
            result.evaluation = evaluate(
                held_out,
                pd.Series(course.labels[kept], held_out.index),
                known=pd.Series(np.delete(course.labels, kept)),
                what="held-out samples (validation_share)",
            )
