"""The group seed: a secret that all parties of a run share and the server does not have.

One party, the first by name, draws it and seals it for each other one under the seed that the two
share (`pair_keys`); the server hands the sealed copies on. Every party refuses keys that are not
their owners' where identities are pinned. The seed is erased when the products are done.

Whoever has it, and sees what the server sees, reads all parties' columns: so server and any one
party together can, as with a masked sum all other parties together can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from flwr_vertical.crypto.pair_seeds import framed
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.products.pair_keys import PairKeyFields, PairKeys, PairKeySteps
from flwr_vertical.products.streams import SEED_BYTES
from flwr_vertical.server import Federation

# Under a prefix that the server may not write to (`pins.check_updates`).
_SEED = "node.group.seed"
_PURPOSE = "group seed"


class GroupKeySteps(StepGroup):
    """Draws the group seed for the others, or opens the one that was sealed for this party."""

    party: Party

    @step
    def seal_group_seed(self, **keys: Unpack[PairKeyFields]) -> dict[str, Any]:
        """Draw the seed; returns it sealed, by party. Message: as of `keep_pair_keys`."""
        pairs = self.other(PairKeySteps)
        pairs.keep_pair_keys(**keys)
        seed = self.party.secret_bytes(_PURPOSE, SEED_BYTES)
        self.state[_SEED] = seed
        shared = pairs.seeds(keys["nonce"], _PURPOSE)
        return {
            name: seal(pair, seed, _place(self.name, name, keys["nonce"]))
            for name, pair in shared.items()
        }

    def take(self, owner: str, sealed: bytes, keys: Mapping[str, Any]) -> None:
        """Open the seed that `owner` sealed for this party, unless it has one or is the owner.

        `keys`: see `PairKeySteps.keep_pair_keys`. `ProtocolError` if it was not sealed by the owner
        for this party and run.
        """
        if _SEED in self.state:
            return
        pairs = self.other(PairKeySteps)
        pairs.keep_pair_keys(**keys)
        shared = pairs.seeds(keys["nonce"], _PURPOSE)
        if owner not in shared:
            raise ProtocolError(f"party {self.name!r} shares no key with {owner!r}")
        place = _place(owner, self.name, keys["nonce"])
        self.state[_SEED] = open_sealed(shared[owner], sealed, place, owner)

    @property
    def seed(self) -> bytes:
        """The group seed, bytes of length 32."""
        if _SEED not in self.state:
            raise ProtocolError(
                f"party {self.name!r} has no group seed: it comes with the first step of the "
                "products, and is erased after their last"
            )
        return bytes(self.state[_SEED])

    @step
    def erase_group_seed(self) -> None:
        """Forget the seed, and the key it was sealed under: nobody can read what it hid any more.

        A step in which a strategy ends may call this instead, without a round of its own; but not
        the one that products are opened from: a run that is resumed may have to take it again.
        """
        self.state.pop(_SEED, None)
        self.other(PairKeySteps).forget()


@dataclass
class GroupKey:
    """The server half: hands sealed seeds on; `pairs`: public keys that another step collected."""

    federation: Federation
    pairs: PairKeys | None = None
    _sealed: dict[str, bytes] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Who draws the seed."""
        return self.federation.parties[0]

    def close(self) -> None:
        """Have every party erase the seed; one round."""
        self.federation.call("erase_group_seed")

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Return, by party, what opens the seed there; two rounds when called first."""
        if self.pairs is None:
            self.pairs = PairKeys(self.federation)
        keys = self.pairs.arguments()
        if not self._sealed:
            replies = self.federation.call("seal_group_seed", keys, parties=[self.owner])
            self._sealed = replies[self.owner]
        common = {"owner": self.owner, **keys}
        return {
            name: {**common, "sealed": self._sealed.get(name, b"")}
            for name in self.federation.parties
        }


def _place(owner: str, recipient: str, nonce: bytes) -> bytes:
    return framed(b"group seed", owner.encode(), recipient.encode(), nonce)
