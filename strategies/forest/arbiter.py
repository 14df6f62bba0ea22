"""What goes through the arbiter of a forest: splits that win, for the parties alone, and votes.

Votes leave rounded: the server gets them on a grid, and nobody gets them exactly. Two parties have
the shares of the votes V. The arbiter gets ``V + u 2^s`` with a pad u unknown to it, drops the last
s bits, and the server takes u away. So the server has V on the grid of 2^s, and the arbiter the
digits below it, of rows that it does not know. A party's own digits could be dropped without the
arbiter, but the sum of two rounded shares is off by one step at random.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Unpack

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, Federation, StepGroup, Uses, step
from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ConfigError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.arguments import Within
from flwr_vertical.protocol.messages import ARBITER
from strategies.forest.gain_messages import winners
from strategies.forest.model import VOTE_BITS
from strategies.trees.arbiter import ArbiterKeySteps, ParcelSteps, PartyKeys, unpack
from strategies.trees.node_sums import Ring

_LEAST = 2  # bits of a vote
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


class ReleaseSteps(StepGroup):
    """A party's end of predictions."""

    party: Any

    def release(
        self, own: int, votes: Ring, rows: npt.NDArray[np.intp], bits: int, content: bytes
    ) -> dict[str, Any]:
        """Seal the own share of votes, (n_classes, n_rows), once the rows are written down."""
        chosen = np.isin(self.party.positions, rows)
        digest = hashlib.blake2b(content + np.asarray(rows).tobytes(), digest_size=16).digest()
        self.party.open_bits(
            chosen,
            float(bits * len(votes)),
            content=digest + bytes([bits]),
            predictions=True,
            what="votes of a forest",
        )
        number = self.other(ParcelSteps).number
        told: dict[str, Any] = {"number": number}
        if own > 1:
            return told
        seed, shift = self.other(GroupKeySteps).seed, np.uint64(VOTE_BITS - bits)
        pad = stream(seed, f"votes hidden {number}", votes.shape)
        if own == 1:
            upper = stream(seed, f"votes rounded {number}", votes.shape) >> shift
            half = np.uint64(1) << (shift - np.uint64(1))
            votes, told["pad"] = votes + half + (upper << shift) + pad, upper
        else:
            votes = votes - pad
        content = np.ascontiguousarray(votes, dtype="<u8").tobytes()
        sealed = seal(self.other(ParcelSteps).shared, content, place(self.name, number))
        return told | {"votes": sealed}


def check_bits_of(grid: int, n_classes: int) -> None:
    """Raise if the nodes allow too few bits of a row for votes of so many classes."""
    if grid < _LEAST * n_classes:
        raise ConfigError(
            f"votes for {n_classes} classes take {_LEAST} bits each at least, "
            f"{_LEAST * n_classes} of a row, and the nodes allow {grid}: each would have to state "
            f"prediction-bits={_LEAST * n_classes} (30 at most)"
        )


def opened_votes(
    federation: Federation, replies: dict[str, dict[str, Any]], keys: dict[str, Any], bits: int
) -> Integers:
    """Have the arbiter round votes, and return them, shape (n_classes, n_rows); one round."""
    first, second = keys["names"][:2]
    two = {name: value if name == "nonce" else value[:2] for name, value in keys.items()}
    shift = VOTE_BITS - bits
    told = federation.call(
        "round_votes",
        {
            **two,
            "number": int(replies[second]["number"]),
            "shift": shift,
            "parcels": [replies[name]["votes"] for name in (first, second)],
        },
        parties=[ARBITER],
    )[ARBITER]
    pad = np.asarray(replies[second]["pad"])
    left = np.asarray(told["votes"]).reshape(pad.shape) - pad
    return np.asarray((left & np.uint64(2 ** (64 - shift) - 1)).astype(np.int64))
