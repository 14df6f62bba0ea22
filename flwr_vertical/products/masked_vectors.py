"""The server's vectors on their way to the parties: under masks, and recognised over runs."""

import hashlib
from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Any

import numpy as np

from flwr_vertical.arrays import Ring
from flwr_vertical.products.recognised import sketched
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, stream
from flwr_vertical.products.vector_products import helpers
from flwr_vertical.server import Federation

_ATTEMPT_BYTES = 16


class MaskedVectors:
    """Encoded vectors plus rho for owners of columns, and the seed of rho for their helpers.

    Shapes: encoded (n_samples, limbs * n_vectors).
    """

    def __init__(self, federation: Federation, encoded: Ring) -> None:
        self._encoded, self._helpers = encoded, helpers(federation.parties)
        self._seeds = {
            helper: federation.random_bytes(SEED_BYTES)
            for helper in dict.fromkeys(self._helpers.values())
        }
        self.rho = {
            helper: KeyStream(seed, "rho", encoded.shape) for helper, seed in self._seeds.items()
        }

    def helper(self, name: str) -> str:
        """Return who helps a party."""
        return self._helpers[name]

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Return, by party, ``masked_vectors``, ``helper``, ``helps`` and ``rho_seed``."""
        out: dict[str, dict[str, Any]] = {name: {} for name in self._helpers}
        for helper, seed in self._seeds.items():
            served = [name for name, other in self._helpers.items() if other == helper]
            out[helper] |= {"helps": served, "rho_seed": seed}
            masked = self._encoded + self.rho[helper].rows(0, len(self._encoded))
            for name in served:
                out[name] |= {"helper": helper, "masked_vectors": masked}
        return out


class BoundVectors:
    """Vectors that the parties' privacy ledgers are to recognise; see `recognised`.

    Shapes: encoded (n_samples, limbs * n_vectors).
    """

    def __init__(self, federation: Federation, encoded: Ring, remembering: Sequence[str]) -> None:
        self._federation, self.encoded = federation, encoded
        self._remembering = list(remembering)
        self.attempt = federation.random_bytes(_ATTEMPT_BYTES)
        self.masks = MaskedVectors(federation, encoded)
        self.sketched: dict[str, Ring] = {}

    @property
    def width(self) -> int:
        """Columns of the encoded vectors."""
        return int(self.encoded.shape[1])

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Return, by party, arguments of `LabelSketch.answer`."""
        asked = set(self._remembering)
        out = self.masks.arguments()
        for name, own in out.items():
            served = [other for other in own.pop("helps", []) if other in asked]
            if served:
                own["helps"] = served
            else:
                own.pop("rho_seed", None)
            if name not in asked:
                own.pop("masked_vectors"), own.pop("helper")
        return out

    def collect(self, replies: Mapping[str, Mapping[str, Any]]) -> None:
        """Work out what each party recognises the vectors by, from the answers of all.

        A resumed run has it from its journal, which holds no row secret, masked or not. Where the
        run broke off just before, the vectors count as new.
        """
        made = self._federation.keep("labels recognised", lambda: self._sketched(replies))
        self.sketched = {name: np.asarray(found) for name, found in made.items()}

    def _sketched(self, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, Ring]:
        out: dict[str, Ring] = {}
        order = np.lexsort(self.encoded.T)
        values = hashlib.sha256(np.ascontiguousarray(self.encoded[order]).tobytes()).digest()
        for name in self._remembering:
            if "sketch" not in replies[name]:
                continue
            helper = self.masks.helper(name)
            rho = self.masks.rho[helper].rows(0, len(self.encoded))
            found = sketched(replies[name], replies[helper], name, rho)
            # Uniform to the party, and the same for the same labels over the same of its rows.
            rows = bytes(replies[name]["sketch_rows"])
            key = self._federation.label_memory.mark(f"labels for {name}", rows, values)
            out[name] = found + stream(key or token_bytes(SEED_BYTES), "labels", found.shape)
        return out
