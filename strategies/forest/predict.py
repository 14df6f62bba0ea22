"""Predictions by a forest: the server gets summed votes.

=============  =====================================================================================
round          what travels
=============  =====================================================================================
open_forest    up: public keys; of the arbiter, too
(group seed)   see `GroupKey`; one round
enter          down: what opens the group seed
descend        once a level: sealed for the other parties, the sides of all rows
tally          up: shares of votes, sealed for the arbiter
round_votes    the arbiter's: rounded votes, under a pad
=============  =====================================================================================
"""

from typing import Any, ClassVar

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.predictions import Predictions
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.protocol.declaration import ARBITER as THE_ARBITER
from flwr_vertical.protocol.declaration import (
    BITS,
    FACTS,
    NOTHING,
    ONE,
    Protocol,
    Repeat,
    Round,
)
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Progress
from strategies.forest.model import VotesModel
from strategies.forest.predict_party import VotesPredictParty
from strategies.forest.vote_release import check_bits_of, opened_votes
from strategies.linear.problem import sample_index
from strategies.trees.arbiter import parcel_keys
from strategies.trees.model import figures, prediction_table

VOTES_AT_ARBITER = (
    "arbiter",
    "of votes, the digits below the grid, from which those of few trees can be worked out, "
    "without knowing what samples they are of",
)

DISCLOSURE = (
    (
        "server",
        "votes of each sample on a grid: prediction-bits of a node's policy (12) for a row, over "
        "all classes; on how many levels there are splits",
    ),
    (
        "every party",
        "in which node of each tree each sample is, and on which side of the splits that it comes "
        "to; how many bits of a row each other one lets predictions tell",
    ),
    VOTES_AT_ARBITER,
    ("server and any one party together", "in which node of each tree each sample is"),
    (
        "a party and another together, the first two of the fit",
        "what each leaf predicts, and so all votes",
    ),
    ("nobody", "a value within a bin"),
)


class ForestPredictions(Predictions):
    """Predict with a forest that `VerticalForest` grew, and open summed votes alone.

    Which side of a split a row is on goes from its owner to the other parties. The two parties that
    hold the halves of the leaves, the first two of the fit by name, must take part, and an arbiter.
    A sample that another party lacks, or whose party has left, takes at its splits the side that
    was learned for missing cells.
    """

    party = VotesPredictParty
    protocol: ClassVar[Protocol] = Protocol(
        Round("open_forest", "bits that a prediction may tell; keys", tells=FACTS),
        Round("prepare", "its public key", tells=FACTS, ask=THE_ARBITER),
        Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
        Round("enter"),
        Repeat(
            Round("descend", "sealed for the parties, sides of rows", tells=(NOTHING, BITS)),
            at_most=255,
        ),
        Round("tally", "shares of votes", tells=(NOTHING, BITS)),
        Round("round_votes", "summed votes, rounded, under a pad", ask=THE_ARBITER),
        Round("finish_predictions"),
        Round("finish", ask=THE_ARBITER),
    )
    needs_arbiter: ClassVar[str | None] = "votes that are rounded"
    disclosure = DISCLOSURE

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have the parties send all samples down all trees, and open the votes."""
        model: VotesModel = self.model
        names = list(federation.parties)
        if gone := [name for name in model.parties[:2] if name not in names]:
            raise ConfigError(
                f"party {gone[0]!r} takes no part, and holds one half of what the leaves say; "
                f"parties {model.parties[:2]} are needed"
            )
        keys, grid = self._enter(federation, model, names)
        check_bits_of(grid, model.n_classes)
        common: dict[str, Any] = {"model": model.name, "names": names}
        sides: dict[str, list[bytes]] = {}
        level = 0
        for level in range(model.depth):
            told = federation.call("descend", {**common, "level": level, **sides})
            sides = {}
            if not told[names[0]]["open"]:
                break
            sides = {"sides": [told[name]["sides"] for name in names]}
            progress.step("level")
        if sides:
            level += 1
        bits = grid // model.n_classes
        asked = {**common, "level": level, "bits": bits, **sides}
        replies = federation.call("tally", asked)
        raw = model.raw(opened_votes(federation, replies, keys, bits), bits)
        federation.call("finish_predictions", parties=names)
        federation.call("finish", parties=[ARBITER])
        found = prediction_table(model.loss, raw)
        rows = np.arange(alignment.n_samples)
        result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))
        if federation.labels is not None:
            labels = np.asarray(federation.labels, dtype=float)
            guessed = found["prediction"].to_numpy()
            result.metrics |= figures(model.loss, labels, raw, guessed)

    def _enter(
        self, federation: Federation, model: VotesModel, names: list[str]
    ) -> tuple[dict[str, Any], int]:
        """Exchange keys; return those of the parties, and the bits that a row may tell."""
        pairs = PairKeys(federation)
        asked = {"model": model.name, "nonce": pairs.nonce}
        told = federation.call("open_forest", asked, parties=names)
        told |= federation.call("prepare", {"nonce": pairs.nonce}, parties=[ARBITER])
        pairs.collect({name: told[name] for name in names})
        arguments = GroupKey(federation, pairs).arguments()
        keys, box = parcel_keys(names, pairs.nonce, told)
        federation.call("enter", {"model": model.name, "arbiter": box}, per_party=arguments)
        return keys, min(int(told[name]["grid"]) for name in names)
