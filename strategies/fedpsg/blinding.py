"""Numbers of samples that pass the server under key streams of the group, to be added up there."""

import numpy as np

from flwr_vertical import StepGroup, Summands
from flwr_vertical.arrays import Array, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.streams import stream

FRACTION_BITS = 24


class BlindingSteps(StepGroup):
    """Adds key streams that the server lacks to what a party sends, and takes them off a sum.

    Every party adds a stream of its own: whatever the server says, none goes without. Streams
    follow from the number of the message, so each covers one content.
    """

    party: Party

    def blinded(self, values: dict[str, Array]) -> Summands:
        """Return arrays as whole numbers under streams; publicly their ``number``."""
        number = self.party.services.sequence
        if number is None:
            raise ProtocolError("values are blinded by the number of a message")
        found = {}
        for name, array in values.items():
            sent = np.rint(array.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)
            found[name] = sent.view(np.uint64) + self._stream(name, number, self.name, sent.shape)
        return Summands(found, {"number": number}, modular=tuple(found))

    def unblinded(self, name: str, total: Ring, number: int, owners: list[str]) -> Array:
        """Return the sum over parties that `blinded` hid."""
        total = np.asarray(total, dtype=np.uint64)
        plain = total.copy()
        for owner in owners:
            plain -= self._stream(name, number, owner, total.shape)
        return np.asarray(plain.view(np.int64).astype(np.float64) * 2.0**-FRACTION_BITS)

    def _stream(self, name: str, number: int, owner: str, shape: tuple[int, ...]) -> Ring:
        purpose = f"fedpsg {name} {number} of {owner!r}"
        return stream(self.other(GroupKeySteps).seed, purpose, shape)
