"""The party half of predictions by a forest: rows go down all trees, and votes leave in halves."""

import hashlib
from typing import Annotated, Any, TypeAlias, Unpack

import numpy as np

from flwr_vertical import Party, Uses, step
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products import GroupKeySteps, PairKeySteps
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Within, check_fits
from strategies.forest.batch import LEFT, MISSING_LEFT, NUMBER, PARTY, RIGHT, TREE, Comers, Lines
from strategies.forest.model import VotesPart, coefficients_of
from strategies.forest.vote_release import ReleaseSteps
from strategies.trees.arbiter import ParcelSteps
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
        VotesPart.of_fit(self, model).codes(self)
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
        part = VotesPart.of_fit(self, model)
        roots = np.flatnonzero(part.table[:, NUMBER] == 0).astype(np.int32)
        self.live.put(_AT, {"at": np.tile(roots[:, None], (1, self.n_samples))})

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def descend(
        self,
        model: ForestName,
        names: TakingPart,
        level: Level,
        sides: Sides = None,
    ) -> dict[str, Any]:
        """Follow the splits of the level above, and tell the sides of own ones.

        Message: model: name of the model; names: parties that take part; rows pass the splits of
        others as if they lacked the cell; sides: what each party sealed, of the level above;
        returns ``open``: whether rows have come to splits; ``sides``, sealed for the other
        parties: a bit for each row and tree.
        """
        part = VotesPart.of_fit(self, model)
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
        part = VotesPart.of_fit(self, model)
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
