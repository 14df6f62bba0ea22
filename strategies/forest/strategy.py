"""Random forests over columns of several parties: the trees of a batch grow in the same rounds."""

from types import MappingProxyType
from typing import ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.protocol.declaration import ARBITER as THE_ARBITER
from flwr_vertical.protocol.declaration import (
    BITS,
    FACTS,
    NOTHING,
    ONE,
    Maybe,
    Protocol,
    Repeat,
    Round,
)
from flwr_vertical.protocol.messages import ARBITER
from strategies.forest.arbiter import ForestArbiter, opened_votes
from strategies.forest.model import VotesModel, importance
from strategies.forest.party import ForestParty
from strategies.forest.predict import VOTES_AT_ARBITER, ForestPredictions
from strategies.forest.server import VoteRounds
from strategies.linear.problem import sample_index
from strategies.trees.model import prediction_table
from strategies.trees.objectives import Objective, labels_of, no_split

DISCLOSURE = (
    (
        "server",
        "of each party: how many columns it has, how many bins each, and whether these have an "
        "order; no names; in the end how many splits it has, and how many rows come to them in all",
    ),
    (
        "server",
        "of the trees of a batch together, how many nodes may be split on each level; of samples "
        "without a label, votes on a grid: prediction-bits of a node's policy (12) for a row, over "
        "all classes. It sends the seed of draws, and so knows them",
    ),
    (
        "every party",
        "which samples have a label; how often each tree has each sample, and in which node each "
        "sample is, labelled or not",
    ),
    (
        "every party",
        "of each split, whose column, which bin (by numbers), which equal splits there were, where "
        "missing cells go, and on which side each sample is that comes to it",
    ),
    (
        "every party",
        "how many columns each other one has, and how many bins each; which of them a batch may "
        "use; how many bits of a row each other one lets predictions tell",
    ),
    (
        "arbiter",
        "of each node, ratios of gains of its legal splits, to 2^-18, and whether none has any, "
        "without knowing which split is which or of whom; how many there are; the number of bins "
        "of all columns in use",
    ),
    VOTES_AT_ARBITER,
    ("server and any one party together", "all columns, in bins"),
    (
        "arbiter and any one party together",
        "sums of labels, and numbers of rows, over the bins of each column and node: what a "
        "column's owner holds can be solved from them",
    ),
    ("a party and its helper together", "the labels, and what each leaf predicts"),
    ("nobody else", "a label; a value within a bin; what a leaf predicts"),
)

_BEGUN = (
    Repeat(
        Round("send_masked", "rows of its bins, under a key stream", again=True),
        at_most="n_samples",
    ),
    Maybe(Round("take_shares")),
    Round("begin_batch", "bits that a prediction may tell", tells=FACTS),
)
_COMPARED = (
    Round("offer", "sealed for the arbiter, what gains are compared by"),
    Round("judge", "sealed for the parties, which candidates win", ask=THE_ARBITER),
)
_SPLIT = Round("split", "sealed for the parties, sides of rows", tells=(NOTHING, BITS))


class VerticalForest(Strategy):
    """Average trees that are each fitted to samples drawn anew (Breiman, 2001).

    Each tree is fitted by least squares to the labels, or to 0 and 1 for each class: its leaves are
    means, so the forest's predictions are means and shares of classes. For two classes that is the
    Gini index. Trees do not build on each other, so the `batch` trees of a batch share the rounds
    of a level: 100 trees of depth 8 take 240 rounds where 100 boosted ones would take 2,400.

    The server deals shares of labels once, and gets the sum of all trees' votes for samples without
    a label. It knows neither splits nor the sides of rows: the parties tell each other these, and
    the arbiter tells the parties which splits are best. Predictions are on a grid, of 12 bits where
    the nodes' ``prediction-bits`` say no other, and need the arbiter and the first two parties.

    `Result.predictions` and `Result.predict` are as of `VerticalGBDT`; ``Result.model`` has splits
    and cover by party.

    Notes
    -----
    A node whose samples have one label is split all the same: that it is not would tell the
    parties. Its leaves predict the same.

    Columns are drawn for a batch, not for each split: the parties do not see which columns another
    one's split could choose from.
    """

    objective: str = setting(
        "classes", "What labels are: classes, or numbers.", choices=("classes", "regression")
    )
    n_trees: int = setting(100, "Trees, for each class where there are several.", at_least=1)
    batch: int = setting(10, "Trees that grow in the same rounds.", at_least=1)
    max_depth: int = setting(8, "Levels of splits.", at_least=1, at_most=12)
    n_bins: int = setting(
        32, "Bins of a column at most, beside that of missing cells.", at_least=2, at_most=254
    )
    min_child: int = setting(5, "The fewest distinct samples of a leaf.", at_least=1)
    bootstrap: bool = setting(True, "Draw samples with replacement; else each tree has all.")
    colsample: float = setting(
        0.8, "Share of all columns that the trees of a batch may use.", above=0, at_most=1
    )
    name: ClassVar[str] = "forest"
    removed = MappingProxyType(
        {
            "routing": "nothing in its place: the parties alone know the sides of rows (the server "
            "learns them in 'gbdt')",
            "histograms": "'gbdt' with histograms='open'",
            "importance": "'gbdt' with importance='columns'",
        }
    )
    party = ForestParty
    protocol = Protocol(
        Round("prepare", "numbers of bins of its columns, without names; keys", tells=FACTS),
        Round("prepare", "its public key", tells=FACTS, ask=THE_ARBITER),
        Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
        Repeat(
            *_BEGUN,
            Repeat(*_BEGUN, at_most=2),
            *_COMPARED,
            Repeat(_SPLIT, *_COMPARED, at_most="max_depth - 1"),
            Maybe(_SPLIT),
            Round("end_batch"),
            at_most="1000 * ceil(n_trees / batch)",
        ),
        Maybe(
            Round("votes", "shares of votes of samples without a label", tells=(NOTHING, BITS)),
            Round("round_votes", "summed votes, rounded, under a pad", ask=THE_ARBITER),
        ),
        Round("finish_votes", "how many splits it has", tells=FACTS),
        Round("finish", ask=THE_ARBITER),
    )
    arbiter = ForestArbiter
    predictions = ForestPredictions
    needs_arbiter: ClassVar[str | None] = "a forest, whose splits it compares"
    needs_labels: ClassVar[bool] = True
    needs_parties: ClassVar[int] = 2
    demo = MappingProxyType(
        {"labels": "demo", "demo.missing-blocks": 0.3, "demo.missing-labels": 0.3}
    )
    disclosure = DISCLOSURE

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Grow trees, and predict samples without a label."""
        labels = labels_of(federation, self.min_child)
        objective = Objective.of_votes(self.objective == "classes", labels[~np.isnan(labels)])
        names = list(federation.parties)
        if federation.checkpoint_every is None:
            federation.checkpoint_every = 1  # batches
        rounds = VoteRounds(federation, self, labels, objective, result)
        total = rounds.n_batches * objective.width
        progress.total = total

        def iterate(i: int) -> None:
            rounds.grow(i)
            progress.step(i + 1, total)

        federation.loop(total, iterate, {"forest": rounds.state, "history": result.history})
        name, targets = federation.random_bytes(16).hex(), rounds.targets
        model = VotesModel(
            name, names, objective.name, objective.width, self.n_trees, self.max_depth,
            targets.low, targets.span,
        )  # fmt: skip
        free = np.flatnonzero(np.isnan(labels))
        raw = np.zeros((objective.width, 0))
        if len(free):
            bits = int(rounds.state["grid"]) // objective.width
            shares = federation.call("votes", {"model": name, "fit": rounds.fit, "bits": bits})
            raw = model.raw(opened_votes(federation, shares, rounds.keys, bits), bits)
        arguments = {"model": name, "names": names, "target_bits": targets.bits}
        splits = federation.call("finish_votes", arguments, parties=names)
        federation.call("finish", parties=[ARBITER])
        result.predictor = model
        result.model = importance(names, splits)
        if not result.model["splits"].any():
            result.notes.append(no_split(self.min_child))
        result.metrics["iterations"] = float(self.n_trees)
        if len(free):
            table = prediction_table(model.loss, raw)
            result.predictions = table.set_axis(sample_index(alignment, result.labels, free))
