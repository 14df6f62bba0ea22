"""What the party halves of alignment protocols share."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flwr_vertical.arrays import Bytes
from flwr_vertical.crypto.permutation import secret_order
from flwr_vertical.errors import ConfigError, PolicyError
from flwr_vertical.node.party import ORDER, Party
from flwr_vertical.node.steps import StepGroup
from flwr_vertical.policy.record import allows, key_of, text_of
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.tables.ids import bytes_of, normal_ids

POSITIONS = ("positions", "n_samples")
"""What a party is told of the alignment, with the message after it."""


class AlignmentSteps(StepGroup):
    """The party half of an alignment protocol: its steps work on the party's ``own_ids``.

    Attributes
    ----------
    alignment : str
        Name of the protocol, which the node's policy must allow whatever the run calls it; a class
        of somebody else's without one is allowed by its module.
    protocol : Protocol, optional
        What it exchanges; it hands over `POSITIONS`. Without one, all steps of the run may be asked
        for in any order.

    Raises
    ------
    PolicyError
        If the policy does not allow the protocol.
    """

    party: Party
    alignment: ClassVar[str] = ""
    protocol: ClassVar[Protocol | None] = None

    def __init__(self, party: Any) -> None:
        super().__init__(party)
        allowed = self.party.policy.alignments
        if self.alignment and not allows(allowed, self.alignment):
            raise PolicyError(
                f"party {self.name!r}",
                key_of("alignments"),
                f"alignment {self.alignment!r}",
                text_of(allowed),
                "align by a protocol that this party allows",
            )

    def shuffled_ids(self, normalise: list[str]) -> list[bytes]:
        """Own IDs as bytes in a fresh secret order, which is kept to undo it."""
        order = secret_order(len(self.party.own_ids))
        self.state[ORDER] = order.astype(np.min_scalar_type(len(order)))
        return bytes_of(normal_ids(self.party.own_ids, normalise, self.name)[order])

    def admit_foreign(self, points: "Bytes", sender: str) -> None:
        """Refuse to blind more IDs of others than ``policy.foreign-ids`` allows in a run.

        Who lists guessed IDs among its own learns which of them the others have, so their number is
        bounded by that of the own rows.

        Shapes: points (n, n_bytes), uint8: what is to be blinded or signed, of `sender` as the
        server says. The same ones again in a run count once.
        """
        values = np.ascontiguousarray(points)
        content = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        ledger, n_own = self.party.privacy_ledger, len(self.party.own_ids)
        ledger.note_foreign_ids(len(values), n_own, sender, content)

    def id_secret(self) -> bytes | None:
        """Return the secret that the parties share against guessing of IDs, if the node has one."""
        path = self.party.services.node_config.get("id-secret")
        if not path:
            return None
        try:
            secret = Path(str(path)).read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"party {self.name!r}: cannot read the file {str(path)!r} named as 'id-secret' in "
                f"the node config ({error.strerror})"
            ) from error
        if len(secret) < 16:
            raise ConfigError(
                f"party {self.name!r}: the secret in {str(path)!r} has {len(secret)} bytes; use at "
                "least 16 random ones, the same at every party"
            )
        return secret
