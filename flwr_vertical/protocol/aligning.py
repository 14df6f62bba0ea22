"""The party half of alignment: hand over, blind or tag the own IDs; learn the own positions.

The server half and the protocols are in `flwr_vertical.alignment`.
"""

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_vertical.crypto import blind_rsa, commutative, rsa_key
from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.node import Node, step
from flwr_vertical.tables.ids import id_type, normal_ids

if TYPE_CHECKING:
    import pandas as pd

_ORDER = "align.order"
_KEY = "align.key"
_BLINDING = "align.blinding"
_RSA_PUBLIC = "align.rsa-public"
_HASHES = "align.hashes"
_RSA_KEY = "align.rsa-key"


class AligningNode(Node):
    """A party's steps of all alignment protocols."""

    @property
    def own_ids(self) -> "pd.Index[Any]":
        """IDs of the rows that take part in alignment, array of shape (n_own,)."""
        raise ProtocolError(f"{type(self).__name__} has no sample IDs")

    @property
    def n_samples(self) -> int:
        """Number of aligned samples over all parties."""
        return int(self._aligned("n_samples"))

    @property
    def positions(self) -> Any:
        """Aligned row number of each own row, -1 if it is left out; array of shape (n_own,)."""
        positions = self._aligned("positions")
        if _ORDER not in self.state:
            return positions
        # Private protocols see the rows in a secret order; only this party can undo it.
        if "positions" not in self.cache:
            own = np.empty(len(positions), dtype=np.int64)
            own[self.state[_ORDER]] = positions
            self.cache["positions"] = own
        return self.cache["positions"]

    def _aligned(self, key: str) -> Any:
        if key not in self.state:
            raise ProtocolError(
                f"party {self.name!r} has no {key!r} yet: samples are aligned before other steps"
            )
        return self.state[key]

    # -- plain -----------------------------------------------------------------------------

    @step
    def share_ids(self, normalise: list[str]) -> dict[str, Any]:
        """Hand over the sample IDs (they are public in this mode)."""
        return {"ids": normal_ids(self.own_ids, normalise, self.name)}

    # -- private-id ------------------------------------------------------------------------

    @step
    def blind_ids(self, nonce: bytes, normalise: list[str], labels: Any = None) -> dict[str, Any]:
        """Hash, blind and shuffle the own IDs.

        Parameters
        ----------
        nonce : bytes
            Of this run, the same at all parties: hashes of different runs have nothing in common.
        normalise : list of str
            Normalisation steps.
        labels : numpy.ndarray of shape (n_labels, 32), uint8, optional
            The server's blinded label IDs, to be blinded once more.

        Returns
        -------
        dict[str, Any]
            ``points`` of shape (n_own, 32), ``id_type``, and ``labels`` blinded.
        """
        self.state[_KEY] = commutative.generate_blinding_key()
        ids = self._shuffled_ids(normalise)
        answer = {
            "points": commutative.hash_and_blind(ids, nonce, self.state[_KEY], self._secret()),
            "id_type": id_type(self.own_ids, self.name),
        }
        if labels is not None:
            answer["labels"] = self._blind_foreign(labels, "server (labels)")
        return answer

    @step
    def blind_for(
        self, points: Any, sender: str, labels: Any = None, labels_sender: str = ""
    ) -> dict[str, Any]:
        """Blind another party's points (and the server's labels) once more, in their order.

        ``sender`` and ``labels_sender`` name who blinded them last, for errors.
        """
        answer = {"points": self._blind_foreign(points, sender)}
        if labels is not None:
            answer["labels"] = self._blind_foreign(labels, labels_sender)
        return answer

    def _blind_foreign(self, points: Any, sender: str) -> Any:
        return commutative.check_and_blind(points, sender, self.state[_KEY])

    # -- blind-rsa -------------------------------------------------------------------------

    @step
    def rsa_open(self, nonce: bytes, normalise: list[str], bits: int) -> dict[str, Any]:
        """Make the RSA key of this run and tag the own IDs with it."""
        key = rsa_key.RsaKey.generate(bits)
        self.state[_RSA_KEY] = key.to_bytes()
        ids = self._shuffled_ids(normalise)
        hashes = blind_rsa.fdh(ids, key.n, nonce, self._secret())
        tags = blind_rsa.tags(blind_rsa.sign_own(hashes, key))
        endorsement = pins.endorse(self._as_pinned, _rsa_payload(key.public, nonce))
        return {
            "public": key.public,
            "tags": tags,
            "id_type": id_type(self.own_ids, self.name),
            **endorsement,
        }

    @step
    def rsa_blind(
        self,
        public: bytes,
        nonce: bytes,
        normalise: list[str],
        holder: str,
        identity: bytes = b"",
        signature: bytes = b"",
    ) -> dict[str, Any]:
        """Blind the own hashed IDs for the key holder to sign.

        Where the holder's identity is pinned here, its signature of the key must be valid: whoever
        swaps the key could make tags of guessed IDs.
        """
        node = self._as_pinned
        pins.check_endorsement(
            node,
            pins.read_pins(node, None),
            holder,
            _rsa_payload(public, nonce),
            identity,
            signature,
        )
        key = rsa_key.load_public(public, holder)
        hashes = blind_rsa.fdh(self._shuffled_ids(normalise), key.n, nonce, self._secret())
        blinded, blinding = blind_rsa.blind(hashes, key)
        self.state[_RSA_PUBLIC] = public
        self.state[_HASHES] = hashes
        self.state[_BLINDING] = blinding
        return {"blinded": blinded, "id_type": id_type(self.own_ids, self.name)}

    @step
    def rsa_sign(self, senders: list[str], **blinded: Any) -> dict[str, Any]:
        """Sign the other parties' blinded hashes; ``blinded["k"]`` came from ``senders[k]``."""
        key = rsa_key.RsaKey.from_bytes(self.state[_RSA_KEY])
        return {
            str(k): blind_rsa.sign(blinded[str(k)], key, sender) for k, sender in enumerate(senders)
        }

    @step
    def rsa_tags(self, signed: Any, holder: str) -> dict[str, Any]:
        """Unblind the signatures, check them, and turn them into tags."""
        key = rsa_key.load_public(self.state[_RSA_PUBLIC], holder)
        signatures = blind_rsa.unblind(
            signed, self.state[_BLINDING], self.state[_HASHES], key, holder
        )
        return {"tags": blind_rsa.tags(signatures)}

    # -- shared ----------------------------------------------------------------------------

    @property
    def _as_pinned(self) -> pins.Node:
        """Say who this party is, as far as identities go; the nonce stands for the run."""
        return pins.Node(self.name, "party", "blind-rsa", 0, self.host.node_config)

    def _shuffled_ids(self, normalise: list[str]) -> list[bytes]:
        """Own IDs as bytes in a fresh secret order, which is kept to undo it."""
        order = secret_order(len(self.own_ids))
        self.state[_ORDER] = order
        return [
            str(value).encode() for value in normal_ids(self.own_ids, normalise, self.name)[order]
        ]

    def _secret(self) -> bytes | None:
        """Return the secret that the parties share against guessing of IDs, if the node has one."""
        path = self.host.node_config.get("id-secret")
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


def _rsa_payload(public: bytes, nonce: bytes) -> dict[str, bytes]:
    return {"purpose": b"blind-rsa", "key": hashlib.sha256(public).digest(), "run": nonce}


def secret_order(count: int, random: Callable[[int], bytes] = secrets.token_bytes) -> Any:
    """Draw a permutation by the system's generator, array of shape (count,), int64."""
    keys = np.frombuffer(random(16 * count), dtype=np.uint64).reshape(count, 2)
    return np.lexsort((keys[:, 1], keys[:, 0])).astype(np.int64)
