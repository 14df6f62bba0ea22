"""Votes leave rounded: the server gets them on a grid, and nobody gets them exactly.

Two parties have the shares of the votes V. The arbiter gets ``V + u 2^s`` with a pad u unknown to
it, drops the last s bits, and the server takes u away. So the server has V on the grid of 2^s, and
the arbiter the digits below it, of rows that it does not know. A party's own digits could be
dropped without the arbiter, but the sum of two rounded shares is off by one step at random.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, StepGroup
from flwr_vertical.arrays import Integers
from flwr_vertical.crypto.sealed_box import seal
from flwr_vertical.errors import ConfigError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.messages import ARBITER
from strategies.forest.arbiter import place
from strategies.forest.model import VOTE_BITS
from strategies.trees.arbiter import ParcelSteps
from strategies.trees.node_sums import Ring

_LEAST = 2  # bits of a vote


class ReleaseSteps(StepGroup):
    """A party's end."""

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
