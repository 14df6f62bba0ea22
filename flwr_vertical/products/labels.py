"""The server's vectors (labels): committed to, sent under masks, recognised over runs.

A party's privacy ledger counts the different vectors v of the server that its rows were multiplied
with. It must not see v, and need not believe the server. So it draws from its ledger's secret a
number ``r_i`` for each own row, the same in every run, and has ``r'v`` worked out as its other
products are (`arithmetic`), with a secret z of its own:

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
from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.products.arithmetic import Layout, helpers, limb_shares, product
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, stream
from flwr_vertical.server import Federation

_NONCE_BYTES = 32


class Commitment:
    """SHA-256 of the server's vectors with a nonce; one set of vectors in a run.

    The parties keep the digest and refuse products with vectors under another one. Whether it is
    that of the true labels an auditor can check, to whom the server gives nonce and labels.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.digest = self.nonce = b""
        self.bound: BoundVectors | None = None  # what parties recognise the vectors by

    def of(self, vectors: Array) -> bytes:
        """Commit to vectors (n_samples, n_vectors), or check that they are those committed to."""
        if not self.nonce:
            # One for the run: the same vectors in a later stage of a pipeline count once.
            memory = self._federation.label_memory
            memory.nonce = memory.nonce or self._federation.random_bytes(_NONCE_BYTES)
            self.nonce = memory.nonce
        digest = digest_of(self.nonce, vectors)
        if self.digest and digest != self.digest:
            raise DataError(
                "the labels (vectors) differ from those that the server committed to in this run; "
                "the parties multiply with these alone. Start another run for other labels"
            )
        self.digest = digest
        return digest


def digest_of(nonce: bytes, vectors: Array) -> bytes:
    """Return the digest that commits to vectors: for an auditor who has nonce and vectors."""
    content = np.ascontiguousarray(vectors, dtype="<f8")
    return hashlib.sha256(nonce + repr(content.shape).encode() + content.tobytes()).digest()


def checked_vectors(vectors: Array, n_samples: int) -> Array:
    """Return vectors of the server as floats, if they have the right shape and are finite."""
    vectors = np.asarray(vectors, dtype=float)
    if vectors.ndim != 2 or len(vectors) != n_samples:
        raise DataError(f"vectors have shape {vectors.shape}, expected ({n_samples}, n_vectors)")
    if not np.isfinite(vectors).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(vectors))[0])
        raise DataError(
            f"vector {column} is {vectors[row, column]} in row {row}; products need finite values: "
            "put 0 where a label is missing, and the row into no group"
        )
    return vectors


_KEPT = "node.products.recognised "
_Z, _BOUND, _HELPER = _KEPT + "z", _KEPT + "vectors", _KEPT + "helper"
ATTEMPT_BYTES = 16
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
        """Multiply the row secrets, and help others; at (n_held,): which own rows these are."""
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
        if masked_vectors is None or not self._party.remembers:
            return told
        ledger, rows = self._party.privacy_ledger, self._party.rows_in_ledger()
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
        """Return what tells vectors from others over runs; empty: they count as new."""
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
        if len(attempt) < ATTEMPT_BYTES:
            raise ProtocolError(
                f"party {self._name!r}: pads of labels are named by at least {ATTEMPT_BYTES} "
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
    """Return ``r'v - z`` of a party, by rho (n_samples, n_vectors); the server's part."""
    masked = np.asarray(told["sketch"])[:, None]
    shares: Ring = np.asarray(told["sketch_owner"]) + np.asarray(helper[f"sketch_helper:{name}"])
    return np.asarray(shares - product(masked, rho)[0])


def _label(owner: str) -> str:
    return f"labels of rows of {owner}"


def _pad(owner: str, helper: str, attempt: bytes) -> str:
    return f"pad of labels {owner!r} {helper!r} {attempt.hex()}"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class VectorShares:
    """A party's shares of products with the server's vectors: of its columns, and as a helper.

    Shapes: masked_vectors (n_samples, limbs * n_vectors): ``v + rho`` for the own columns.
    """

    def __init__(
        self,
        name: str,
        seed: bytes,
        layout: Layout,
        n_groups: int,
        n_vectors: int,
        attempt: bytes,
        helper: str = "",
        masked_vectors: Ring | None = None,
        helps: Sequence[str] = (),
        rho: KeyStream | None = None,
    ) -> None:
        def pad(owner: str, other: str) -> Ring:
            shape = n_groups, layout.limbs, layout.widths[owner], n_vectors
            return stream(seed, f"pad {owner!r} {other!r} {attempt.hex()}", shape)

        self._limbs, self._rho, self._vectors = layout.limbs, rho, masked_vectors
        self._helped = {other: pad(other, name) for other in helps}
        self._own: Ring | None = None
        if helper and masked_vectors is not None:
            self._own = np.uint64(0) - pad(name, helper)

    def add(
        self, start: int, stop: int, own: Ring, masks: Mapping[str, Ring], groups: list[Indices]
    ) -> None:
        """Add some rows.

        Shapes: own (n_rows, limbs * n_own): the own columns; masks (n_rows, limbs * n_columns): by
        party, the key stream of its columns.
        """
        rho = None if self._rho is None else self._rho.rows(start, stop)
        for g, rows in enumerate(groups):
            if self._own is not None:
                vectors = np.asarray(self._vectors)[start:stop]
                self._own[g] += limb_shares(own[rows], vectors[rows], self._limbs)
            if rho is not None:
                for name, share in self._helped.items():
                    share[g] += limb_shares(masks[name][rows], rho[rows], self._limbs)

    def told(self, withheld: Flags, noise: Ring | None) -> dict[str, Ring]:
        """Return ``owner``, with noise if there is any, and ``helper:<name>`` of those helped."""
        found = {f"helper:{name}": share for name, share in self._helped.items()}
        if self._own is not None:
            if noise is not None:
                self._own[:, 0] += noise
            found["owner"] = self._own * ~withheld[:, None, :, None]
        return found


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
    """Vectors that the parties' privacy ledgers are to recognise.

    Shapes: encoded (n_samples, limbs * n_vectors).
    """

    def __init__(self, federation: Federation, encoded: Ring, remembering: Sequence[str]) -> None:
        self._federation, self.encoded = federation, encoded
        self._remembering = list(remembering)
        self.attempt = federation.random_bytes(ATTEMPT_BYTES)
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
