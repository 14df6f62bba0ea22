"""Numbers of samples that pass the server under key streams of the group, to be added up there."""

import hashlib

import numpy as np

from flwr_vertical import Party, StepGroup, Summands
from flwr_vertical.arrays import Array, Integers, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.streams import stream
from flwr_vertical.server import Total
from strategies.fedpsg.messages import PAD_BYTES

FRACTION_BITS = 24


class BlindingSteps(StepGroup):
    """Adds key streams that the server lacks to what a party sends, and takes them off a sum.

    Every party adds one of its own. Streams follow from the number of the message and from all that
    was asked for: each covers one content, and those of parties that were asked otherwise stay.
    """

    party: Party

    def blinded(self, values: dict[str, Array]) -> Summands:
        """Return arrays as whole numbers under streams; publicly the name of these, ``pad``."""
        number = self.party.services.sequence
        if number is None:
            raise ProtocolError("values are blinded by the number of a message")
        asked = number.to_bytes(8, "big") + self.party.services.binding()
        pad = hashlib.blake2b(asked, digest_size=PAD_BYTES, person=b"fedpsg pad").digest()
        found = {}
        for name, array in values.items():
            scaled = np.rint(array.astype(np.float64) * 2.0**FRACTION_BITS)
            if not (np.abs(scaled) < 2.0**62).all():
                # Who sends the weights must not read a cell here.
                raise ProtocolError(
                    f"party {self.name!r}: {name!r} has values that are not finite, or too large "
                    "to be added up in whole numbers; weights that the server sent are too large, "
                    "or networks diverge (lower 'learning-rate')"
                )
            sent = scaled.astype(np.int64)
            found[name] = sent.view(np.uint64) + self._stream(name, pad, self.name, sent.shape)
        return Summands(found, {"pad": pad}, modular=tuple(found))

    def unblinded(self, name: str, total: Integers, pad: bytes, owners: list[str]) -> Array:
        """Return the sum over parties that `blinded` hid."""
        total = np.asarray(total, dtype=np.uint64)
        plain = total.copy()
        for owner in owners:
            plain -= self._stream(name, pad, owner, total.shape)
        return np.asarray(plain.view(np.int64).astype(np.float64) * 2.0**-FRACTION_BITS)

    def _stream(self, name: str, pad: bytes, owner: str, shape: tuple[int, ...]) -> Ring:
        purpose = f"fedpsg {name} {pad.hex()} of {owner!r}"
        return stream(self.other(GroupKeySteps).seed, purpose, shape)


def pad_of(total: Total) -> bytes:
    """Return the name of the streams that all parties blinded by."""
    pads = {bytes(told["pad"]) for told in total.public.values()}
    if len(pads) != 1:
        raise ProtocolError("the parties blinded by different streams: were they asked the same?")
    return pads.pop()
