"""The arbiter of a forest: it tells the parties alone who wins, and rounds votes for the server."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Arbiter, Uses, step
from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.protocol.arguments import Within
from strategies.forest.gain_messages import winners
from strategies.trees.arbiter import ArbiterKeySteps, PartyKeys, unpack

_LAST = "node.trees.judged"


class RoundingSteps(ArbiterKeySteps):
    """The arbiter's end of predictions: it rounds votes."""

    @step
    def round_votes(
        self,
        number: Annotated[int, Within(0, 2**60)],
        shift: Annotated[int, Within(0, 63)],
        parcels: Annotated[list[bytes], Within("names", "names")],
        **keys: Unpack[PartyKeys],
    ) -> dict[str, Any]:
        """Add the shares of votes up, and drop their last digits.

        Message: number: of the round in which the parcels were made; shift: how many bits are
        dropped; parcels: of the two parties that have shares, and of those that have none; **keys:
        see `parcel_keys`; returns ``votes``, uint64: under a pad that the server gets
        of a party.
        """
        total = np.zeros(0, dtype=np.uint64)
        for content in self._opened(number, parcels, self.seeds(**keys)):
            values = np.frombuffer(content, dtype="<u8").astype(np.uint64)
            total = total + values if len(total) else values
        return {"votes": total >> np.uint64(shift)}

    def _opened(
        self, number: int, parcels: list[bytes], seeds: Mapping[str, bytes]
    ) -> Iterator[bytes]:
        """Open the parcels of a round, each round's once."""
        self.once(number, _LAST, "open", "opened")
        for (name, seed), sealed in zip(seeds.items(), parcels, strict=True):
            yield open_sealed(seed, sealed, place(name, number), name)


class JudgeSteps(RoundingSteps):
    """The arbiter's end of growing trees: it tells the parties alone which splits win."""

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def judge(
        self,
        number: Annotated[int, Within(0, 2**60)],
        shape: Annotated[list[Annotated[int, Within(0, 2**31)]], Within(2, 2)],
        parcels: Annotated[list[bytes], Within("names", "names")],
        **keys: Unpack[PartyKeys],
    ) -> dict[str, Any]:
        """Add parcels up, and say which places have the largest gain.

        Message: number: of the round in which the parcels were made; each is compared once; shape:
        nodes, and candidates of each; parcels: of each party, see `unpack`; **keys: the parties',
        see `parcel_keys`; returns by party, sealed for it: see `pack_places`.
        """
        marks, total = np.zeros(shape, dtype=bool), np.zeros(0, dtype=np.uint64)
        seeds = self.seeds(**keys)
        for content in self._opened(number, parcels, seeds):
            own, values = unpack(content, shape, 4 * marks.size + len(marks))
            marks ^= own
            total = values + total if len(total) else values
        told = pack_places(winners(total, marks))
        return {name: seal(seed, told, place(name, number, True)) for name, seed in seeds.items()}


class ForestArbiter(Arbiter):
    """Compares gains of splits for the parties, and rounds votes for the server."""

    judges = Uses(JudgeSteps)


class VoteArbiter(Arbiter):
    """Rounds votes for the server."""

    rounds = Uses(RoundingSteps)


def place(name: str, number: int, back: bool = False) -> bytes:
    """Return what a sealed message is bound to: sender or recipient, round, and direction."""
    way = b"votes result " if back else b"votes parcel "
    return way + number.to_bytes(8, "big") + name.encode()


def pack_places(wins: Flags) -> bytes:
    """Write down how many places of each node win, and which."""
    count, places = wins.sum(axis=1), np.nonzero(wins)[1]
    return np.concatenate([count, places]).astype("<i4").tobytes()


def unpack_places(content: bytes, n_nodes: int) -> list[Integers]:
    """Return the winning places of each node."""
    words = np.frombuffer(content, dtype="<i4").astype(np.int64)
    return np.split(words[n_nodes:], np.cumsum(words[:n_nodes])[:-1])
