"""Keys that every two parties share and the server does not have, and how they are handed out.

What travels to the server under such a seed (sketches, rotated columns) hides rows from it, but not
from the other owner of the seed. The public keys pass through the server; where identities are
pinned, they come with their owner's signature.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr_vertical import Federation, step
from flwr_vertical.crypto import generate_keypair
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.opening import ARBITER
from strategies.regression.party import RegressionParty

# Under a prefix that the server may not write to (`pins.check_updates`).
_PRIVATE, _PUBLIC = "node.pairs.private-key", "node.pairs.public-key"
_NAMES, _PUBLICS = "node.pairs.names", "node.pairs.publics"


class PairKeyParty(RegressionParty):
    """A party that shares a seed with every other one.

    Attributes
    ----------
    without_pairs : str
        Which settings do without, for errors.
    """

    without_pairs: ClassVar[str] = "settings that need no other party's key"

    @step
    def pair_key(self, nonce: bytes) -> dict[str, Any]:
        """Make a key pair of this run, with which every other party shares a seed."""
        private, public = generate_keypair()
        self.state[_PRIVATE], self.state[_PUBLIC] = private, public
        endorsement = pins.endorse(self._as_pinned, key_payload("sketch", public, nonce))
        return {"public": public, **endorsement}

    @step
    def keep_pair_keys(
        self,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
    ) -> None:
        """Check and keep the other parties' keys, where no step with them came before."""
        self.keep_keys(nonce, names, publics, identities, signatures)

    def keep_keys(
        self,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
    ) -> None:
        """Check the other parties' keys, and who vouches for them, before they are used."""
        node = self._as_pinned
        pinned = pins.read_pins(node, None)
        for name, public, identity, signature in zip(
            names, publics, identities, signatures, strict=True
        ):
            if name != self.name:
                self.refuse_unpinned(pinned, name, "a sketch")
                payload = key_payload("sketch", public, nonce)
                pins.check_endorsement(node, pinned, name, payload, identity, signature)
        self.state[_NAMES], self.state[_PUBLICS] = names, publics

    def pair_seeds(self, nonce: bytes, purpose: str) -> dict[str, bytes]:
        """Return the seeds shared with every other party, by its name.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        purpose : str
            What the seeds are for; another purpose gives others.
        """
        return {
            name: pair_seed(
                self.state[_PRIVATE], self.name, name, self.state[_PUBLIC], public, nonce, purpose
            )
            for name, public in zip(self.state[_NAMES], self.state[_PUBLICS], strict=True)
            if name != self.name
        }

    def refuse_unpinned(self, pinned: pins.Pins, name: str, what: str) -> None:
        """Each of these hides from the server only as long as that one key is not its own."""
        if pinned and name not in pinned.keys:
            who = "the arbiter" if name == ARBITER else f"party {name!r}"
            pin = "pin.arbiter" if name == ARBITER else f"pin.{name}"
            raise ProtocolError(
                f"party {self.name!r} pins others, but not {who}, under whose key it was to send "
                f"{what}: whoever runs the server could have put in a key of its own. Get the "
                f"public identity key of {who} from its people and add {pin!r}, or use "
                f"{self.without_pairs}"
            )


@dataclass
class PairKeys:
    """Public keys with which every two parties share a seed.

    Parameters
    ----------
    federation : Federation
    nonce : bytes, optional
        Of this run; drawn if left out.
    """

    federation: Federation
    nonce: bytes = b""
    handed_out: bool = False
    _keys: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.nonce = self.nonce or self.federation.random_bytes(32)

    def arguments(self) -> dict[str, Any]:
        """Return every party's key, as `PairKeyParty.keep_keys` takes them."""
        if self._keys is None:
            replies = self.federation.call("pair_key", {"nonce": self.nonce})
            names = self.federation.parties
            self._keys = {
                "names": names,
                "publics": [replies[name]["public"] for name in names],
                "identities": [replies[name].get("identity", b"") for name in names],
                "signatures": [replies[name].get("signature", b"") for name in names],
            }
        return {"nonce": self.nonce, **self._keys}


def key_payload(purpose: str, key: bytes, nonce: bytes) -> dict[str, bytes]:
    """Return what the owner of a key signs."""
    return {
        "purpose": f"vfem {purpose}".encode(),
        "key": hashlib.sha256(key).digest(),
        "run": nonce,
    }
