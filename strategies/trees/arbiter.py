"""The arbiter of tree growing: it compares blinded gains and says which places win.

It shares a key with each party, so that the server, which relays, reads none of what parties send
it. It knows neither codes nor gradients, which party a candidate is of, nor whether a place is the
same split as in another node.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, Party, StepGroup, Uses, step
from flwr_vertical.arrays import Ring
from flwr_vertical.crypto import generate_keypair
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.pair_keys import MODE, check_key, key_payload
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.messages import ARBITER
from strategies.trees.gain import best_of, signed

# Under a prefix that the server may not write to.
_PRIVATE, _PUBLIC, _SEED = "node.trees.private", "node.trees.public", "node.trees.seed"
_LAST = "node.trees.compared"
_SIGNED_FOR = "trees key"
_SENDS = "shares of gains"
_WITHOUT = "histograms='open', if this node agrees to it"


class ParcelSteps(StepGroup):
    """A party's end: it seals what only the arbiter may read."""

    party: Party

    def new_key(self, nonce: bytes) -> dict[str, bytes]:
        """Make the key pair of this run; return its public half, and who vouches for it."""
        private, public = generate_keypair()
        self.state[_PRIVATE], self.state[_PUBLIC] = private, public
        endorsed = pins.endorse(self.party.identity(MODE), key_payload(_SIGNED_FOR, public, nonce))
        return {"public": public, **endorsed}

    @property
    def has_key(self) -> bool:
        """Whether this party shares a key with the arbiter."""
        return _SEED in self.state

    def take_arbiter(
        self, nonce: bytes, public: bytes, identity: bytes = b"", signature: bytes = b""
    ) -> None:
        """Check the arbiter's key, and keep what the two share."""
        payload = key_payload(_SIGNED_FOR, public, nonce)
        node = self.party.identity(MODE)
        check_key(node, ARBITER, payload, identity, signature, sends=_SENDS, without=_WITHOUT)
        own = bytes(self.state[_PUBLIC])
        self.state[_SEED] = pair_seed(
            bytes(self.state[_PRIVATE]), self.name, ARBITER, own, public, nonce, _SIGNED_FOR
        )
        self.state.pop(_PRIVATE, None)

    def seal(self, content: bytes, number: int) -> bytes:
        """Seal the parcel of a round."""
        return seal(self.shared, content, _place(self.name, number))

    @property
    def shared(self) -> bytes:
        """The seed that this party shares with the arbiter, bytes of length 32."""
        if _SEED not in self.state:
            raise ProtocolError(f"party {self.name!r} has no key of the arbiter yet")
        return bytes(self.state[_SEED])

    def forget(self) -> None:
        """Erase the keys."""
        for key in (_PRIVATE, _PUBLIC, _SEED):
            self.state.pop(key, None)


class ArbiterKeySteps(StepGroup):
    """The arbiter's end: its keys, by which parties seal for it."""

    @step(repeatable=False)  # a key pair is drawn
    def prepare(self, nonce: bytes, **_: Any) -> dict[str, Any]:
        """Make the key pair of this run; return its public half, and who vouches for it."""
        private, public = generate_keypair()
        self.state[_PRIVATE], self.state[_PUBLIC] = private, public
        payload = key_payload(_SIGNED_FOR, public, nonce)
        return {"public": public, **pins.endorse(self._identity, payload)}

    @step
    def finish(self, **_: Any) -> None:
        """Erase all keys of the run."""
        for key in [key for key in self.state if key.startswith("node.trees.")]:
            self.state.pop(key)

    @property
    def _identity(self) -> pins.NodeIdentity:
        return pins.NodeIdentity("arbiter", "arbiter", MODE, 0, self.party.services.node_config)

    def _seed_of(
        self, nonce: bytes, name: str, public: bytes, identity: bytes, signature: bytes
    ) -> bytes:
        """Return what the arbiter shares with a party; its key is checked the first time."""
        key = f"{_SEED} {name}"
        if key not in self.state:
            if _PRIVATE not in self.state:
                raise ProtocolError("the arbiter has no key of this run: 'prepare' comes first")
            payload = key_payload(_SIGNED_FOR, public, nonce)
            check_key(
                self._identity, name, payload, identity, signature, sends=_SENDS, without=_WITHOUT
            )
            self.state[key] = pair_seed(
                bytes(self.state[_PRIVATE]), ARBITER, name, bytes(self.state[_PUBLIC]), public,
                nonce, _SIGNED_FOR,
            )  # fmt: skip
        return bytes(self.state[key])


class CompareSteps(ArbiterKeySteps):
    """The arbiter's end: it compares gains for the server."""

    @step
    def compare(
        self,
        number: int,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
        parcels: list[bytes],
        shares: Ring,
        signs: npt.NDArray[np.uint8] | None = None,
    ) -> dict[str, Any]:
        """Add the shares up, and say which places have the largest gain.

        Message: number: of the round in which the parcels were made; nonce, names, publics,
        identities, signatures: the parties' keys; parcels: of each party, see `unpack`; shares (3,
        n_nodes, n_candidates): the server's, see `blinding`; signs: packed bits of shape (2,
        n_nodes, n_candidates): which may win where the first sum is 0 or above, and where it is
        below; see `monotone`; returns ``count`` of shape (n_nodes,), how many places of each node
        win (equal gains); ``place`` of shape (sum of counts,), which.
        """
        if number <= int(self.state.get(_LAST, 0)):
            raise ProtocolError(
                f"the server asks the arbiter to compare round {number} again; parcels of a round "
                "are compared once"
            )
        self.state[_LAST] = number
        keys = zip(names, publics, identities, signatures, strict=True)
        total = np.array(shares, dtype=np.uint64)
        legal = np.zeros(total.shape[1:], dtype=bool)
        for (name, public, *endorsed), parcel in zip(keys, parcels, strict=True):
            seed = self._seed_of(nonce, name, public, *endorsed)
            content = open_sealed(seed, parcel, _place(name, number), name)
            marks, theirs = unpack(content, total.shape)
            legal ^= marks
            if theirs is not None:
                total += theirs
        numerator, left, right = signed(total).astype(np.float64)
        if signs is not None:
            may = np.unpackbits(np.asarray(signs), count=2 * legal.size).astype(bool)
            above, below = may.reshape(2, *legal.shape)
            legal &= np.where(numerator >= 0.0, above, below)
        wins = best_of(numerator, left, right, legal)
        return {
            "count": wins.sum(axis=1).astype(np.int32),
            "place": np.nonzero(wins)[1].astype(np.int32),
        }


class TreeArbiter(Arbiter):
    """Compares gains of splits."""

    compares = Uses(CompareSteps)


def pack(marks: npt.NDArray[np.bool_], shares: Ring | None) -> bytes:
    """Write a parcel.

    Shapes: marks (n_nodes, n_candidates): A party's share of which candidates are legal: all
    parties' add up modulo 2; shares (3, n_nodes, n_candidates): A helper's shares of the blinded
    sums.
    """
    head = np.packbits(marks).tobytes()
    return head if shares is None else head + np.ascontiguousarray(shares, dtype="<u8").tobytes()


def unpack(content: bytes, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.bool_], Ring | None]:
    """Read what `pack` wrote; `shape` is that of the shares."""
    count = int(np.prod(shape[1:]))
    head = (count + 7) // 8
    if len(content) not in (head, head + 8 * 3 * count):
        raise ProtocolError(
            f"a parcel for {count} candidates has {len(content)} bytes; do all nodes run the same "
            "version of the strategy?"
        )
    bits = np.unpackbits(np.frombuffer(content[:head], dtype=np.uint8), count=count)
    marks = bits.astype(bool).reshape(shape[1:])
    if len(content) == head:
        return marks, None
    return marks, np.frombuffer(content[head:], dtype="<u8").reshape(shape).astype(np.uint64)


def _place(name: str, number: int) -> bytes:
    return b"trees parcel " + number.to_bytes(8, "big") + name.encode()
