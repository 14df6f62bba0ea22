"""Keys that every two parties share and the server does not have, and how they are handed out.

What travels to the server under such a seed (sketches, rotated columns) hides rows from it, but not
from the other owner of the seed. The public keys pass through the server: where identities are
pinned, a key comes with its owner's signature, and a party that pins others uses none of a node
that it does not pin.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypedDict

from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.arguments import DISTINCT, Within
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation

MODE = "products"
"""What a node's identity has as its mode where keys of products are signed and checked."""


NONCE_BYTES = 32
Nonce: TypeAlias = Annotated[bytes, Within(NONCE_BYTES, NONCE_BYTES)]
"""Of a run."""
Names: TypeAlias = Annotated[list[str], Within("n_parties", "n_parties"), DISTINCT]
"""Of all parties."""
Widths: TypeAlias = Annotated[list[Annotated[int, Within(0, 2**31)]], Within("names", "names")]
"""By party, its number of columns."""
_ByParty: TypeAlias = Annotated[list[bytes], Within("names", "names")]


class PairKeyFields(TypedDict):
    """What `PairKeySteps.keep_pair_keys` takes: every party's key, and who vouches for it."""

    nonce: Nonce
    names: Names
    publics: _ByParty
    identities: _ByParty
    signatures: _ByParty


def key_payload(purpose: str, key: bytes, nonce: bytes) -> dict[str, bytes]:
    """Return what the owner of a key signs."""
    return {"purpose": purpose.encode(), "key": hashlib.sha256(key).digest(), "run": nonce}


def check_key(
    node: pins.NodeIdentity,
    owner: str,
    payload: dict[str, bytes],
    identity: bytes,
    signature: bytes,
    *,
    sends: str,
    without: str,
) -> None:
    """Check on behalf of a party that a key is that of the node in whose name it came."""
    pinned = pins.read_pins(node, None)
    if pinned and owner not in pinned.keys:
        who = "the arbiter" if owner == ARBITER else f"party {owner!r}"
        pin = "pin.arbiter" if owner == ARBITER else f"pin.{owner}"
        raise ProtocolError(
            f"{node} pins others, but not {who}, under whose key it was to send "
            f"{sends}: whoever runs the server could have put in a key of its own. Get the "
            f"public identity key of {who} from its people and add {pin!r}, or use {without}"
        )
    pins.check_endorsement(node, pinned, owner, payload, identity, signature)


# Under a prefix that the server may not write to (`pins.check_updates`).
_PRIVATE, _PUBLIC = "node.pairs.private-key", "node.pairs.public-key"
_NAMES, _PUBLICS = "node.pairs.names", "node.pairs.publics"
_SIGNED_FOR = "pair key"


class PairKeySteps(StepGroup):
    """A party's key pair of this run, with which it shares a seed with every other party.

    For errors: `sends` is what it sends to the server under the seeds, `without` which settings of
    the strategy do without.
    """

    party: Party

    def __init__(
        self,
        party: Party,
        sends: str = "hidden columns",
        without: str = "settings that need no other party's key",
    ) -> None:
        super().__init__(party)
        self._sends, self._without = sends, without

    @step
    def pair_key(self, nonce: Nonce) -> dict[str, Any]:
        """Make a key pair of this run; tell its public half, and who vouches for it."""
        private, public = generate_keypair()
        self.state[_PRIVATE], self.state[_PUBLIC] = private, public
        payload = key_payload(_SIGNED_FOR, public, nonce)
        told = {"public": public, **pins.endorse(self.party.identity(MODE), payload)}
        return {**told, "remembers": True} if self.party.remembers else told

    @step
    def keep_pair_keys(
        self,
        nonce: Nonce,
        names: Names,
        publics: _ByParty,
        identities: _ByParty,
        signatures: _ByParty,
    ) -> None:
        """Check the other parties' keys, and who vouches for them, and keep them.

        A step that is given the keys with its own arguments calls this before it uses them.
        Message: nonce: of this run; names, publics, identities, signatures: every party's name,
        public key, and who vouches for it. `ProtocolError` if a key is not signed as the party's
        pins demand.
        """
        node = self.party.identity(MODE)
        for name, public, *endorsement in zip(names, publics, identities, signatures, strict=True):
            if name != self.name:
                payload = key_payload(_SIGNED_FOR, public, nonce)
                check_key(
                    node, name, payload, *endorsement, sends=self._sends, without=self._without
                )
        self.state[_NAMES], self.state[_PUBLICS] = names, publics

    def seeds(self, nonce: bytes, purpose: str) -> dict[str, bytes]:
        """Return the seeds shared with every other party, by its name.

        Another purpose gives others. What two matrices are hidden by must differ, so each use has a
        purpose of its own. `ProtocolError` if keys have not been exchanged.
        """
        if _PRIVATE not in self.state or _NAMES not in self.state:
            raise ProtocolError(
                f"party {self.name!r} shares no seeds with other parties yet: the steps 'pair_key' "
                "and 'keep_pair_keys' come first"
            )
        return {
            name: pair_seed(
                self.state[_PRIVATE], self.name, name, self.state[_PUBLIC], public, nonce, purpose
            )
            for name, public in zip(self.state[_NAMES], self.state[_PUBLICS], strict=True)
            if name != self.name
        }

    def forget(self) -> None:
        """Erase the private key: nobody can work out the seeds of this run any more."""
        self.state.pop(_PRIVATE, None)


@dataclass
class PairKeys:
    """The server half: collects the public keys of a run, and hands them out.

    `nonce` is that of the run, drawn if left out. `handed_out` says whether the parties keep each
    other's keys already, `remembering` which ones keep a privacy ledger, once the keys are
    collected.
    """

    federation: Federation
    nonce: bytes = b""
    handed_out: bool = False
    remembering: list[str] = field(default_factory=list)
    _keys: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.nonce = self.nonce or self.federation.random_bytes(NONCE_BYTES)

    def arguments(self) -> dict[str, Any]:
        """Return every party's key for `keep_pair_keys`; one round when called first."""
        if self._keys is None:
            self.collect(self.federation.call("pair_key", {"nonce": self.nonce}))
        assert self._keys is not None
        return {"nonce": self.nonce, **self._keys}

    def collect(self, replies: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the public keys that the parties told in another step's round."""
        names = self.federation.parties
        self.remembering = [name for name in names if replies[name].get("remembers")]
        self._keys = {
            "names": names,
            "publics": [replies[name]["public"] for name in names],
            "identities": [replies[name].get("identity", b"") for name in names],
            "signatures": [replies[name].get("signature", b"") for name in names],
        }

    def hand_out(self) -> None:
        """Have the parties keep each other's keys, unless they do; up to two rounds."""
        arguments = self.arguments()
        if not self.handed_out:
            self.federation.call("keep_pair_keys", arguments)
            self.handed_out = True
