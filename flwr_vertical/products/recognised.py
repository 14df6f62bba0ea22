"""Labels that were multiplied before are recognised over runs, and nobody shows them.

A party's privacy ledger counts the different vectors v of the server that its rows were multiplied
with. It must not see v, and need not believe the server. So it draws from its ledger's secret a
number ``r_i`` for each own row, the same in every run, and has ``r'v`` worked out as its other
products are (`vector_products`), with a secret z of its own:

    A = r'(v + rho) - s - z,    B = R'rho + s,    A + B - (r + R)'rho = r'v - z    modulo 2^64.

The server sees uniform numbers. It adds e, which follows from its own secret and the labels
(`LabelMemory`), and hands ``r'v - z + e`` back; the party adds z. What it has, ``r'v + e``, is the
same for the same labels over the same own rows; e is uniform to it and another one for other
labels, so that it can test no guess. A server that sends other vectors under the e of earlier ones
has to meet ``r'(v1 - v2)``, r being unknown to it: for a difference whose lowest b bits are not all
zero it does with chance 2^-b at most, and each try counts as a vector.

The vectors are bound: products open with the very numbers ``v + rho`` that r was multiplied with,
and with the same helper, who keeps to the same rho.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_vertical.arrays import Indices, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.ring import product
from flwr_vertical.products.streams import KeyStream, stream

_KEPT = "node.products.recognised "
_Z, _BOUND, _HELPER = _KEPT + "z", _KEPT + "vectors", _KEPT + "helper"
_ATTEMPT_BYTES = 16
_HELPED, _RHO = _KEPT + "helped", _KEPT + "rho"


class LabelSketch:
    """A party's half."""

    def __init__(self, party: Party) -> None:
        self._party, self._name, self._state = party, party.name, party.state

    def answer(
        self,
        seed: bytes,
        attempt: bytes,
        n_vectors: int,
        held: HeldColumns,
        at: Indices,
        helper: str = "",
        masked_vectors: Ring | None = None,
        helps: list[str] | None = None,
        rho_seed: bytes = b"",
    ) -> dict[str, Any]:
        """Multiply the row secrets, and help others.

        Shapes: at (n_held,): which of its own rows these are.
        """
        told: dict[str, Any] = {}
        shape = held.n_samples, n_vectors
        self._check(attempt, masked_vectors, shape)
        if helps:
            rho = KeyStream(rho_seed, "rho", shape).rows(0, shape[0])
            self._once(f"{attempt.hex()} helper", rho_seed)
            self._state[_HELPED], self._state[_RHO] = list(helps), _digest(rho_seed)
            for name in helps:
                theirs = stream(seed, _label(name), (shape[0], 1))
                told[f"sketch_helper:{name}"] = product(theirs, rho)[0] + stream(
                    seed, _pad(name, self._name, attempt), (n_vectors,)
                )
        ledger = self._party.privacy_ledger
        if masked_vectors is None or ledger is None:
            return told
        rows = self._party.rows_in_ledger(ledger)
        own, rows_id = ledger.row_secrets(rows, at)
        secret = np.zeros((shape[0], 1), dtype=np.uint64)
        secret[held.rows, 0] = own
        self._note(ledger, seed, attempt, secret, masked_vectors)
        hidden = stream(self._party.secret_bytes("labels"), "labels", (n_vectors,))
        share = product(secret, np.asarray(masked_vectors))[0]
        self._state[_Z], self._state[_HELPER] = hidden, helper
        self._state[_BOUND] = _digest(np.asarray(masked_vectors).tobytes())
        told |= {
            "sketch": (secret + stream(seed, _label(self._name), (shape[0], 1)))[:, 0],
            "sketch_owner": share
            - stream(seed, _pad(self._name, helper, attempt), (n_vectors,))
            - hidden,
            "sketch_rows": rows_id,
        }
        return told

    def commitment(self, sketched: Ring | None, masked_vectors: Ring | None, helper: str) -> bytes:
        """Return what tells the vectors from others in the ledger, over runs.

        Empty for vectors that were not bound to a sketch: they count as new.
        """
        bound = _Z in self._state and masked_vectors is not None and sketched is not None
        if not bound:
            return b""
        if (
            _digest(np.asarray(masked_vectors).tobytes()) != self._state[_BOUND]
            or helper != self._state[_HELPER]
        ):
            raise ProtocolError(
                f"party {self._name!r}: the vectors (labels) that it is to multiply with are not "
                "those that its privacy ledger was to recognise; start the run again"
            )
        found = np.asarray(sketched, dtype=np.uint64) + np.asarray(self._state[_Z])
        return b"labels " + _digest(found.tobytes())

    def check_help(self, helps: list[str], rho_seed: bytes) -> None:
        """Refuse to help with another rho than that of the sketch."""
        if set(helps) & set(self._state.get(_HELPED, [])) and _digest(rho_seed) != bytes(
            self._state[_RHO]
        ):
            raise ProtocolError(
                f"party {self._name!r} is to help with a mask of the vectors (labels) that differs "
                "from that by which they were to be recognised; start the run again"
            )

    def _check(self, attempt: bytes, masked: Ring | None, shape: tuple[int, int]) -> None:
        """Refuse vectors of another shape: two columns under one pad would show a difference."""
        if len(attempt) < _ATTEMPT_BYTES:
            raise ProtocolError(
                f"party {self._name!r}: pads of labels are named by at least {_ATTEMPT_BYTES} "
                f"random bytes, got {len(attempt)}"
            )
        if masked is None:
            return
        if np.shape(masked) != shape or np.asarray(masked).dtype != np.uint64:
            raise ProtocolError(
                f"party {self._name!r}: masked vectors have shape {np.shape(masked)} and dtype "
                f"{np.asarray(masked).dtype}; expected {shape} and uint64"
            )

    def _note(
        self, ledger: RunLedger, seed: bytes, attempt: bytes, secret: Ring, masked: Ring
    ) -> None:
        """Write down what key stream and pad hide: one content each."""
        content = _digest(secret.tobytes())
        more = _digest(np.asarray(masked).tobytes())
        ledger.note_streams(
            {
                f"labels of rows {_digest(seed).hex()}": content,
                f"pad of labels {attempt.hex()}": content + more,
            }
        )

    def _once(self, name: str, content: bytes) -> None:
        key = f"{_KEPT}{name}"
        if bytes(self._state.setdefault(key, _digest(content))) != _digest(content):
            raise ProtocolError(
                f"party {self._name!r}: a pad hides one content only, and the server asks for "
                "another one; start the run again"
            )


def sketched(told: Mapping[str, Any], helper: Mapping[str, Any], name: str, rho: Ring) -> Ring:
    """Return ``r'v - z`` of a party; the server's part.

    Shapes: rho (n_samples, n_vectors).
    """
    masked = np.asarray(told["sketch"])[:, None]
    shares: Ring = np.asarray(told["sketch_owner"]) + np.asarray(helper[f"sketch_helper:{name}"])
    found: Ring = shares - product(masked, rho)[0]
    return found


def _label(owner: str) -> str:
    return f"labels of rows of {owner}"


def _pad(owner: str, helper: str, attempt: bytes) -> str:
    return f"pad of labels {owner!r} {helper!r} {attempt.hex()}"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
