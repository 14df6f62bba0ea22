"""Predictions by a forest: the server gets summed votes."""

import hashlib
from typing import Annotated, Any, ClassVar, TypeAlias, Unpack

import numpy as np

from flwr_vertical import Alignment, Federation, Party, Progress, Result, Uses, step
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.node.kept import part_of_fit
from flwr_vertical.predictions import Predictions
from flwr_vertical.products import GroupKey, GroupKeySteps, PairKeys, PairKeySteps
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Within, check_fits
from flwr_vertical.protocol.declaration import ARBITER as THE_ARBITER
from flwr_vertical.protocol.declaration import BITS, FACTS, NOTHING, ONE, Protocol, Repeat, Round
from flwr_vertical.protocol.messages import ARBITER
from strategies.forest.arbiter import ReleaseSteps, check_bits_of, opened_votes
from strategies.forest.batch import LEFT, MISSING_LEFT, NUMBER, PARTY, RIGHT, TREE, Comers, Lines
from strategies.forest.model import VotesModel, VotesPart, coefficients_of
from strategies.linear.problem import sample_index
from strategies.trees.arbiter import ParcelSteps, parcel_keys
from strategies.trees.model import figures, prediction_table
from strategies.trees.routing import count_sides

ForestName: TypeAlias = Annotated[str, Within(1, 200)]
TakingPart: TypeAlias = Annotated[list[str], Within(1, "n_parties"), DISTINCT]
Level: TypeAlias = Annotated[int, Within(0, 2**20)]
Sides: TypeAlias = Annotated[list[bytes] | None, Within("names", "names")]

_AT = "votes.descent"  # live: at which line of each tree rows are, (n_trees, n_samples)


class VotesPredictParty(Party):
    """Has its part of the forest from the run named ``fitted``; no step takes any."""

    pair_keys = Uses(PairKeySteps, sends="sides of splits")
    group_key = Uses(GroupKeySteps)
    parcels = Uses(ParcelSteps)
    releasing = Uses(ReleaseSteps)

    @step(repeatable=False)  # key pairs are drawn
    def open_forest(self, model: ForestName, nonce: bytes) -> dict[str, Any]:
        """Look for what this party kept, and make the key pairs of this run.

        Message: returns ``grid``: how many bits of a row a prediction may tell; keys as in
        `TreeParty.prepare`.
        """
        part_of_fit(self, VotesPart, model).codes(self)
        return {
            "grid": self.policy.grid,
            **self.pair_keys.pair_key(nonce),
            **self.parcels.new_key(nonce),
        }

    @step
    def enter(
        self,
        model: ForestName,
        owner: str,
        sealed: Annotated[bytes, OWN],
        arbiter: Annotated[list[bytes], Within(3, 3)],
        **keys: Unpack[PairKeyFields],
    ) -> None:
        """Take the group seed, and put all rows at the roots.

        Message: model: name of the model; owner, sealed, **keys: see `GroupKeySteps.take`;
        arbiter: public key, identity and signature of the arbiter.
        """
        self.group_key.take(owner, sealed, keys)
        self.parcels.take_arbiter(keys["nonce"], *arbiter)
        part = part_of_fit(self, VotesPart, model)
        roots = np.flatnonzero(part.table[:, NUMBER] == 0).astype(np.int32)
        self.live.put(_AT, {"at": np.tile(roots[:, None], (1, self.n_samples))})

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def descend(
        self, model: ForestName, names: TakingPart, level: Level, sides: Sides = None
    ) -> dict[str, Any]:
        """Follow the splits of the level above, and tell the sides of own ones.

        Message: model: name of the model; names: parties that take part; rows pass the splits of
        others as if they lacked the cell; sides: what each party sealed, of the level above;
        returns ``open``: whether rows have come to splits; ``sides``, sealed for the other
        parties: a bit for each row and tree.
        """
        part = part_of_fit(self, VotesPart, model)
        at = self._followed(part, names, level, sides)
        if not (part.table[at, PARTY] >= 0).any():
            return {"open": False}
        layout, codes, own = part.bins.layout, part.codes(self), part.parties.index(self.name)
        comes = part.table[at, PARTY] == own
        trees, rows = np.nonzero(comes)
        column, place = part.splits.T
        comers = Comers.of(layout, codes, rows, at[trees, rows], column, place)
        left = np.zeros(at.shape, dtype=bool)
        left[trees, rows] = comers.sides(part.table[:, MISSING_LEFT] > 0)
        told = np.packbits(left).tobytes()
        content = hashlib.blake2b(np.packbits(comes).tobytes() + told, digest_size=16).digest()
        count_sides(self, comes.sum(axis=0), layout, content, receiver="other parties")
        return {"open": True, "sides": seal(self._key, told, _place(self.name, level))}

    @step
    def tally(
        self,
        model: ForestName,
        names: TakingPart,
        level: Level,
        bits: Annotated[int, Within(1, 30)],
        sides: Sides = None,
    ) -> dict[str, Any]:
        """Seal the own share of the votes for the arbiter, and erase all keys.

        Message: model, names, level, sides: as in `descend`; bits: of each class.
        """
        part = part_of_fit(self, VotesPart, model)
        at = self._followed(part, names, level, sides)
        n_trees = len(at) // part.n_classes
        votes = np.zeros((part.n_classes, self.n_samples), dtype=np.uint64)
        values = part.leaf * coefficients_of(part.table, n_trees, part.target_bits)
        for lines in at:
            votes[int(part.table[lines[0], TREE]) % part.n_classes] += values[lines]
        content = hashlib.blake2b(model.encode() + np.ascontiguousarray(at).tobytes()).digest()
        rows = np.arange(self.n_samples)
        told = self.releasing.release(
            part.parties.index(self.name), votes, rows, int(bits), content
        )
        self.live.drop(_AT)
        return told

    @step
    def finish_predictions(self) -> None:
        """Erase all keys of the run."""
        self.group_key.erase_group_seed()
        self.parcels.forget()

    def _followed(
        self, part: VotesPart, names: list[str], level: int, sides: list[bytes] | None
    ) -> Lines:
        """Send rows down the splits that were told, and past those of parties that are absent."""
        descent: dict[str, Lines] = self.live.get(_AT, dict)
        at, table = np.asarray(descent["at"]), part.table
        if sides is not None:
            check_fits(self.name, "level", level, Within(1, level))
            owner, left = table[at, PARTY], np.zeros(at.shape, dtype=bool)
            for name, sealed in zip(names, sides, strict=True):
                told = open_sealed(self._key, sealed, _place(name, level - 1), name)
                if len(told) != (at.size + 7) // 8:
                    raise ProtocolError(
                        f"party {name!r} told the sides of another number of rows or trees than "
                        f"party {self.name!r} has; are their models of the same fit?"
                    )
                bits = np.unpackbits(np.frombuffer(told, dtype=np.uint8), count=at.size)
                left |= bits.astype(bool).reshape(at.shape) & (owner == part.parties.index(name))
            at = np.where(owner >= 0, np.where(left, table[at, LEFT], table[at, RIGHT]), at)
        absent = [k for k, name in enumerate(part.parties) if name not in names]
        while (passes := np.isin(table[at, PARTY], absent)).any():
            side = np.where(table[at, MISSING_LEFT] > 0, table[at, LEFT], table[at, RIGHT])
            at = np.where(passes, side, at)
        descent["at"] = at.astype(np.int32)
        return descent["at"]

    @property
    def _key(self) -> bytes:
        return stream(self.group_key.seed, "votes sides", (4,)).tobytes()


def _place(name: str, level: int) -> bytes:
    return b"votes level " + level.to_bytes(4, "big") + name.encode()


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
