"""The arbiter of tree growing: it compares blinded gains and says which places win.

It shares a key with each party, so that the server, which relays, reads none of what parties send
it. It knows neither codes nor gradients, which party a candidate is of, nor whether a place is the
same split as in another node.
"""

from typing import Annotated, Any, TypeAlias, TypedDict, Unpack

import numpy as np

from flwr_vertical import Arbiter, Party, StepGroup, Uses, step
from flwr_vertical.arrays import Array, Bytes, Flags, Ring
from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.crypto.sealed_box import open_sealed
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.pair_keys import MODE, check_key, key_payload
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within
from flwr_vertical.protocol.messages import ARBITER
from strategies.trees.blinding import WIRE_BYTES, from_wire, opened
from strategies.trees.gain import TIE, best_of, signed

Wire: TypeAlias = Bytes
PADS = "pads of gains"

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
        """Make the key pair of this run; return ``parcel_*``: public half, who vouches for it."""
        private, public = generate_keypair()
        self.state[_PRIVATE], self.state[_PUBLIC] = private, public
        endorsed = pins.endorse(self.party.identity(MODE), key_payload(_SIGNED_FOR, public, nonce))
        return {f"parcel_{key}": v for key, v in {"public": public, **endorsed}.items()}

    def take_arbiter(
        self, nonce: bytes, public: bytes, identity: bytes = b"", signature: bytes = b""
    ) -> None:
        """Check the arbiter's key, and keep what the two share; nothing the second time."""
        if _SEED in self.state:
            return
        payload = key_payload(_SIGNED_FOR, public, nonce)
        node = self.party.identity(MODE)
        check_key(node, ARBITER, payload, identity, signature, sends=_SENDS, without=_WITHOUT)
        own = bytes(self.state[_PUBLIC])
        self.state[_SEED] = pair_seed(
            bytes(self.state[_PRIVATE]), self.name, ARBITER, own, public, nonce, _SIGNED_FOR
        )
        self.state.pop(_PRIVATE, None)

    @property
    def number(self) -> int:
        """Number of the message: it only grows, and is the same at all parties of a round."""
        number = self.party.services.sequence
        if number is None:
            raise ProtocolError("parcels are made in answer to a message")
        return int(number)

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


class PartyKeys(TypedDict):
    """What the arbiter is told of the parties' keys, see `parcel_keys`; lists are by party."""

    nonce: bytes
    names: Annotated[list[str], Within(1, 2**20), DISTINCT]
    publics: Annotated[list[bytes], Within("names", "names")]
    identities: Annotated[list[bytes], Within("names", "names")]
    signatures: Annotated[list[bytes], Within("names", "names")]


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
    def finish(self, dependence: Annotated[Any, OWN] = None, **_: Any) -> None:
        """Erase all keys of the run."""
        for key in [key for key in self.state if key.startswith("node.trees.")]:
            self.state.pop(key)

    @property
    def _identity(self) -> pins.NodeIdentity:
        return pins.NodeIdentity("arbiter", "arbiter", MODE, 0, self.party.services.node_config)

    def once(self, number: int, key: str, verb: str, done: str) -> None:
        """Refuse the parcels of a round that were taken before."""
        if number <= int(self.state.get(key, 0)):
            raise ProtocolError(
                f"the server asks the arbiter to {verb} round {number} again; parcels of a round "
                f"are {done} once"
            )
        self.state[key] = number

    def seeds(
        self,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
    ) -> dict[str, bytes]:
        """Return what the arbiter shares with each party; keys are checked the first time."""
        for name, public, *signed_by in zip(names, publics, identities, signatures, strict=True):
            key = f"{_SEED} {name}"
            if key in self.state:
                continue
            if _PRIVATE not in self.state:
                raise ProtocolError("the arbiter has no key of this run: 'prepare' comes first")
            payload = key_payload(_SIGNED_FOR, public, nonce)
            check_key(self._identity, name, payload, *signed_by, sends=_SENDS, without=_WITHOUT)
            self.state[key] = pair_seed(
                bytes(self.state[_PRIVATE]), ARBITER, name, bytes(self.state[_PUBLIC]), public,
                nonce, _SIGNED_FOR,
            )  # fmt: skip
        return {name: bytes(self.state[f"{_SEED} {name}"]) for name in names}


class CompareSteps(ArbiterKeySteps):
    """The arbiter's end: it compares gains for the server."""

    @step
    def compare(
        self,
        number: Annotated[int, Within(0, 2**60)],
        parcels: Annotated[list[bytes], Within("names", "names")],
        shares: Annotated[Wire, Shape(3, None, None, WIRE_BYTES)],
        signs: Bytes | None = None,
        **keys: Unpack[PartyKeys],
    ) -> dict[str, Any]:
        """Take the pads away, and say which places have the largest gain.

        Message: number: of the round in which the parcels were made; parcels: of each party, see
        `ShareSteps.share`; shares (3, n_nodes, n_candidates, 5): all of them added up, under pads,
        see `blinding`; signs: packed bits of shape (2, n_nodes, n_candidates): which may win where
        the first sum is 0 or above, and where it is below; see `monotone`; **keys: the parties',
        see `parcel_keys`; returns
        ``count`` of shape (n_nodes,), how many places of each node win (equal gains); ``place`` of
        shape (sum of counts,), which.
        """
        numerator, left, right, legal = self._opened(number, parcels, shares, keys)
        if signs is not None:
            may = np.unpackbits(np.asarray(signs), count=2 * legal.size).astype(bool)
            above, below = may.reshape(2, *legal.shape)
            legal &= np.where(numerator >= 0.0, above, below)
        wins = best_of(numerator, left, right, legal)
        return {
            "count": wins.sum(axis=1).astype(np.int32),
            "place": np.nonzero(wins)[1].astype(np.int32),
        }

    @step
    def rank(
        self,
        number: Annotated[int, Within(0, 2**60)],
        parcels: Annotated[list[bytes], Within("names", "names")],
        shares: Annotated[Wire, Shape(3, 1, None, WIRE_BYTES)],
        flips: Bytes,
        **keys: Unpack[PartyKeys],
    ) -> dict[str, Any]:
        """Take the pads away, and say in which order levels are by their mean gradient.

        Message: as of `compare`, but that both sums behind the first are the same one under two
        factors; flips: packed bits of shape (n_candidates,): of which candidates the first sum has
        the other sign than the rest; returns ``place``: of the legal candidates, ascending or
        descending; ``group``: a number of each, the same of means that are equal to 2^-18.
        """
        numerator, left, right, legal = self._opened(number, parcels, shares, keys)
        other = np.unpackbits(np.asarray(flips), count=legal.size).astype(bool)
        places = np.flatnonzero(legal[0])
        mean = np.where(other, -numerator[0], numerator[0])[places]
        mean /= np.sqrt(np.maximum(left[0] * right[0], 1.0))[places]
        order = np.argsort(mean, kind="stable")
        rises = np.diff(mean[order]) > TIE * np.abs(mean).max(initial=0.0)
        group = np.cumsum(np.append(False, rises))[: len(order)]
        return {"place": places[order].astype(np.int32), "group": group.astype(np.int32)}

    def _opened(
        self, number: int, parcels: list[bytes], shares: Wire, keys: PartyKeys
    ) -> tuple[Array, Array, Array, Flags]:
        """Return the blinded sums, and which candidates are legal; parcels are taken once."""
        self.once(number, _LAST, "compare", "compared")
        under = from_wire(np.asarray(shares))
        legal = np.zeros(under.shape[1:], dtype=bool)
        pads = set()
        for (name, seed), sealed in zip(self.seeds(**keys).items(), parcels, strict=True):
            content = open_sealed(seed, sealed, place_of(name, number), name)
            marks, words = unpack(content, list(legal.shape), SEED_BYTES // 8)
            legal ^= marks
            pads.add(words.tobytes())
        if len(pads) != 1:
            raise ProtocolError(
                f"the parties name {len(pads)} seeds of the pads of round {number}, and it has "
                "one: the server told them different things; who runs it?"
            )
        total = opened(under, stream(pads.pop(), PADS, under.shape))
        numerator, left, right = signed(total).astype(np.float64)
        return numerator, left, right, legal


class TreeArbiter(Arbiter):
    """Compares gains of splits."""

    compares = Uses(CompareSteps)


def parcel_keys(
    names: list[str], nonce: bytes, replies: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], list[bytes]]:
    """Return the parties' keys for the arbiter, and its public key with who vouches for it."""
    fields = ("public", "identity", "signature")
    whose = dict(zip(("publics", "identities", "signatures"), fields, strict=True))
    keys = {key: [replies[n].get(f"parcel_{f}", b"") for n in names] for key, f in whose.items()}
    box = [replies[ARBITER].get(field, b"") for field in fields]
    return {"nonce": nonce, "names": names, **keys}, box


def under_cancelling_bits(
    placed: Flags, seed: bytes, label: str, number: int, own: int, n_parties: int
) -> Flags:
    """Return a share of all parties' marks: the own ones, under bits that cancel in a ring."""
    for neighbour in (own, (own + 1) % n_parties):
        words = stream(seed, f"{label} {neighbour} {number}", (-(-placed.size // 64),))
        bits = np.unpackbits(words.view(np.uint8))[: placed.size].astype(bool)
        placed = placed ^ bits.reshape(placed.shape)
    return placed


def pack(marks: Flags, values: Ring | None) -> bytes:
    """Write a parcel: a share of marks, (n_nodes, n_candidates), and numbers of the party's."""
    head = np.packbits(marks).tobytes()
    return head if values is None else head + np.ascontiguousarray(values, dtype="<u8").tobytes()


def unpack(content: bytes, shape: list[int], *sizes: int) -> tuple[Flags, Ring]:
    """Read what `pack` wrote: marks of that shape, and one of these numbers of values."""
    count = int(np.prod(shape))
    head = (count + 7) // 8
    if len(content) - head not in [8 * size for size in sizes]:
        raise ProtocolError(
            f"a parcel for {count} candidates of {shape[0]} nodes has {len(content)} bytes; do all "
            "nodes run the same version of the strategy?"
        )
    bits = np.unpackbits(np.frombuffer(content[:head], dtype=np.uint8), count=count)
    values = np.frombuffer(content[head:], dtype="<u8").astype(np.uint64)
    return bits.astype(bool).reshape(shape), values


def place_of(name: str, number: int) -> bytes:
    """Return what a parcel is bound to."""
    return b"trees parcel " + number.to_bytes(8, "big") + name.encode()
