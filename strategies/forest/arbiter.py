"""The arbiter of a forest: it tells the parties alone who wins, and rounds votes for the server."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, Uses, step
from flwr_vertical.arrays import Flags, Ring
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from strategies.forest.gain_messages import winners
from strategies.trees.arbiter import ArbiterKeySteps

_LAST = "node.trees.judged"


class VoteSteps(ArbiterKeySteps):
    """The arbiter's end of predictions: it rounds votes."""

    @step
    def round_votes(
        self, number: int, shift: int, parcels: list[bytes], **keys: Any
    ) -> dict[str, Any]:
        """Add the shares of votes up, and drop their last digits.

        Message: number: of the round in which the parcels were made; shift: how many bits are
        dropped; parcels: of the two parties that have shares, and of those that have none; **keys:
        as in `CompareSteps.compare`; returns ``votes``, uint64: under a pad that the server gets
        of a party.
        """
        self._once(number)
        total = np.zeros(0, dtype=np.uint64)
        seeds = self._seeds(**keys)
        for (name, seed), sealed in zip(seeds.items(), parcels, strict=True):
            content = open_sealed(seed, sealed, place(name, number), name)
            values = np.frombuffer(content, dtype="<u8").astype(np.uint64)
            total = total + values if len(total) else values
        return {"votes": total >> np.uint64(shift)}

    def _once(self, number: int) -> None:
        if number <= int(self.state.get(_LAST, 0)):
            raise ProtocolError(
                f"the server asks the arbiter to open round {number} again; parcels of a round are "
                "opened once"
            )
        self.state[_LAST] = number

    def _seeds(
        self,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
    ) -> dict[str, bytes]:
        given = zip(names, publics, identities, signatures, strict=True)
        return {
            name: self._seed_of(nonce, name, public, *endorsed) for name, public, *endorsed in given
        }


class JudgeSteps(VoteSteps):
    """The arbiter's end of growing trees: it tells the parties alone which splits win."""

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def judge(
        self, number: int, shape: list[int], parcels: list[bytes], **keys: Any
    ) -> dict[str, Any]:
        """Add parcels up, and say which places have the largest gain.

        Message: number: of the round in which the parcels were made; each is compared once; shape:
        nodes, and candidates of each; parcels: of each party, see `pack`; **keys: as in
        `CompareSteps.compare`; returns by party, sealed for it: see `pack_places`.
        """
        self._once(number)
        marks, total = np.zeros(shape, dtype=bool), np.zeros(0, dtype=np.uint64)
        seeds = self._seeds(**keys)
        for (name, seed), sealed in zip(seeds.items(), parcels, strict=True):
            own, values = unpack(open_sealed(seed, sealed, place(name, number), name), shape)
            marks ^= own
            total = values + total if len(total) else values
        told = pack_places(winners(total, marks))
        return {name: seal(seed, told, place(name, number, True)) for name, seed in seeds.items()}


class ForestArbiter(Arbiter):
    """Compares gains of splits for the parties, and rounds votes for the server."""

    judges = Uses(JudgeSteps)


class VoteArbiter(Arbiter):
    """Rounds votes for the server."""

    rounds = Uses(VoteSteps)


def place(name: str, number: int, back: bool = False) -> bytes:
    """Return what a sealed message is bound to: sender or recipient, round, and direction."""
    way = b"votes result " if back else b"votes parcel "
    return way + number.to_bytes(8, "big") + name.encode()


def pack(marks: Flags, values: Ring) -> bytes:
    """Write a parcel: a share of the marks, and what `gain_messages.parcel` returns."""
    return np.packbits(marks).tobytes() + np.ascontiguousarray(values, dtype="<u8").tobytes()


def unpack(content: bytes, shape: list[int]) -> tuple[Flags, Ring]:
    """Read what `pack` wrote for so many nodes and candidates."""
    count = int(np.prod(shape))
    head, rest = (count + 7) // 8, 8 * (4 * count + shape[0])
    if len(content) != head + rest:
        raise ProtocolError(
            f"a parcel for {count} candidates of {shape[0]} nodes has {len(content)} bytes, "
            f"expected {head + rest}; do all nodes run the same version of the strategy?"
        )
    bits = np.unpackbits(np.frombuffer(content[:head], dtype=np.uint8), count=count)
    values = np.frombuffer(content[head:], dtype="<u8").astype(np.uint64)
    return bits.astype(bool).reshape(shape), values


def pack_places(wins: Flags) -> bytes:
    """Write down how many places of each node win, and which."""
    count, places = wins.sum(axis=1), np.nonzero(wins)[1]
    return np.concatenate([count, places]).astype("<i4").tobytes()


def unpack_places(content: bytes, n_nodes: int) -> list[npt.NDArray[np.int64]]:
    """Return the winning places of each node."""
    words = np.frombuffer(content, dtype="<i4").astype(np.int64)
    return np.split(words[n_nodes:], np.cumsum(words[:n_nodes])[:-1])
