"""`blind-rsa` alignment: the blind-signature PSI of De Cristofaro and Tsudik (2010), Figure 3.

One party, the key holder (the first by name), signs the others' blinded hashes without seeing
them; the tag of an ID is a hash of its RSA signature, which nobody but the holder can make alone.
FedPSG-AR (Liu et al.) uses it between two parties. With more parties the holder serves each of the
others, two at a time, all in the same four rounds: open, blind, sign, tags. The tags go to the
server, which joins them into the union with its mask; in the paper they go to the client.

Compared with `private-id`: the work falls on the key holder, messages are 384 bytes an ID (at 3,072
bits), and the holder could make the tag of any ID it guesses (but sees nobody's tags).
"""

import hashlib
import io
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pandas as pd

from flwr_vertical.alignment.base import Aligner, Alignment, check_id_types, to_tokens
from flwr_vertical.alignment.steps import POSITIONS, AlignmentSteps
from flwr_vertical.arrays import Bytes
from flwr_vertical.crypto import blind_rsa, rsa_key
from flwr_vertical.crypto.permutation import secret_order
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.node.steps import step
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.arguments import OWN
from flwr_vertical.protocol.declaration import FACTS, IDS, ONE, SOME, Either, Protocol, Round
from flwr_vertical.server.federation import Federation
from flwr_vertical.tables.ids import bytes_of, id_type, normal_ids

LABELS = "server (labels)"

_BLINDING = "align.blinding"
_RSA_PUBLIC = "align.rsa-public"
_HASHES = "align.hashes"
_RSA_KEY = "align.rsa-key"


class BlindRsaSteps(AlignmentSteps):
    """A party signs blinded IDs of others, or has its own signed."""

    alignment = "blind-rsa"
    protocol = Protocol(
        Either(
            Protocol(
                Round("rsa_open", "its public key, and tags of its IDs", tells=FACTS, ask=ONE),
                Round("rsa_sign", "others' blinded IDs, signed", tells=IDS, ask=ONE),
            ),
            Protocol(
                Round("rsa_blind", "its IDs, blinded", tells=FACTS, ask=SOME),
                Round("rsa_tags", "tags of its IDs", tells=FACTS, ask=SOME),
            ),
        ),
        hands_over=POSITIONS,
    )

    @step
    def rsa_open(self, nonce: bytes, normalise: list[str], bits: int) -> dict[str, Any]:
        """Make the RSA key of this run and tag the own IDs with it."""
        key = rsa_key.RsaKey.generate(bits)
        self.state[_RSA_KEY] = key.to_bytes()
        ids = self.shuffled_ids(normalise)
        hashes = blind_rsa.fdh(ids, key.n, nonce, self.id_secret())
        tags = blind_rsa.tags(blind_rsa.sign(hashes, key))
        endorsement = pins.endorse(
            self.party.identity("blind-rsa"), _rsa_payload(key.public, nonce)
        )
        return {
            "public": key.public,
            "tags": tags,
            "id_type": id_type(self.party.own_ids, self.name),
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
        """Blind the own hashed IDs for the key holder, whose signature of its key pins check."""
        node = self.party.identity("blind-rsa")
        pins.check_endorsement(
            node,
            pins.read_pins(node, None),
            holder,
            _rsa_payload(public, nonce),
            identity,
            signature,
        )
        key = rsa_key.load_public(public, holder)
        hashes = blind_rsa.fdh(self.shuffled_ids(normalise), key.n, nonce, self.id_secret())
        blinded, blinding = blind_rsa.blind(hashes, key)
        self.state[_RSA_PUBLIC] = public
        self.state[_HASHES] = hashes
        self.state[_BLINDING] = blinding
        return {"blinded": blinded, "id_type": id_type(self.party.own_ids, self.name)}

    @step
    def rsa_sign(self, senders: list[str], **blinded: Any) -> dict[str, Any]:
        """Sign the other parties' blinded hashes; ``blinded["k"]`` came from ``senders[k]``."""
        key = rsa_key.RsaKey.from_bytes(self.state[_RSA_KEY])
        for k, sender in enumerate(senders):
            self.admit_foreign(blinded[str(k)], sender)
        return {
            str(k): blind_rsa.sign(blinded[str(k)], key, sender) for k, sender in enumerate(senders)
        }

    @step
    def rsa_tags(self, signed: Annotated[Bytes, OWN], holder: str) -> dict[str, Any]:
        """Unblind the signatures, check them, and turn them into tags."""
        key = rsa_key.load_public(self.state[_RSA_PUBLIC], holder)
        signatures = blind_rsa.unblind(
            signed, self.state[_BLINDING], self.state[_HASHES], key, holder
        )
        return {"tags": blind_rsa.tags(signatures)}


def _rsa_payload(public: bytes, nonce: bytes) -> dict[str, bytes]:
    return {"purpose": b"blind-rsa", "key": hashlib.sha256(public).digest(), "run": nonce}


class BlindRsaAligner(Aligner):
    """Joins RSA tags of IDs: the server learns set sizes and the mask, and no ID.

    Beside what every `Aligner` takes, `bits` is the length of the RSA modulus.
    """

    disclosure = (
        *Aligner.disclosure,
        ("server", "the number of samples of each party; RSA tags of this run, not IDs"),
        ("the first party by name (key holder)", "the number of samples of every other party"),
    )

    steps = BlindRsaSteps

    def __init__(self, rows: str = "union", normalise: Any = (), bits: int = 3072) -> None:
        super().__init__(rows, normalise)
        self.bits = bits

    def align(
        self,
        federation: Federation,
        label_ids: "pd.Index[Any] | None" = None,
        label_holder: str | None = None,
    ) -> Alignment:
        """Align the samples of all parties by RSA tags."""
        holder, others = federation.parties[0], federation.parties[1:]
        if not others and label_ids is None:
            raise ConfigError("blind-rsa aligns at least two parties; use 'private-id' or 'plain'")
        nonce = federation.random_bytes(32)
        common: dict[str, Any] = {"nonce": nonce, "normalise": self.normalise}
        opened = federation.call("rsa_open", {**common, "bits": self.bits}, parties=[holder])[
            holder
        ]
        public = opened["public"]
        endorsement: dict[str, Any] = {
            key: opened[key] for key in ("identity", "signature") if key in opened
        }
        replies = (
            federation.call(
                "rsa_blind",
                {**common, "public": public, "holder": holder, **endorsement},
                parties=others,
            )
            if others
            else {}
        )
        types = {holder: opened["id_type"]} | {name: replies[name]["id_type"] for name in others}
        blinded = {name: replies[name]["blinded"] for name in others}
        labels = None
        if label_ids is not None:
            labels = _Labels(
                label_ids, self.normalise, nonce, public, holder, federation.random_bytes
            )
            types[LABELS] = id_type(label_ids, LABELS)
            blinded[LABELS] = labels.blinded
        check_id_types(types)
        signed = federation.call(
            "rsa_sign", {"senders": list(blinded), **_numbered(blinded)}, parties=[holder]
        )[holder]
        results = {name: signed[str(k)] for k, name in enumerate(blinded)}
        for name, values in results.items():
            if values.shape != blinded[name].shape:
                raise PartyError(
                    holder,
                    "rsa_sign",
                    f"returned {values.shape} for a set of {blinded[name].shape}",
                )
        tags = (
            federation.call(
                "rsa_tags",
                {"holder": holder},
                per_party={name: {"signed": results[name]} for name in others},
                parties=others,
            )
            if others
            else {}
        )
        sets = [_checked(opened["tags"], holder)] + [
            _checked(tags[name]["tags"], name, len(blinded[name])) for name in others
        ]
        if labels is not None:
            sets.append(labels.tags(results[LABELS]))
        tokens = to_tokens(sets)
        label_tokens = tokens.pop() if labels is not None else None
        named = dict(zip(federation.parties, tokens, strict=True))
        return self.finish(federation, named, label_tokens, label_holder)[0]


class _Labels:
    """The server's own set, signed like another party's."""

    def __init__(
        self,
        ids: "pd.Index[Any]",
        normalise: list[str],
        nonce: bytes,
        public: bytes,
        holder: str,
        random: Callable[[int], bytes],
    ) -> None:
        self._public, self._holder = rsa_key.load_public(public, holder), holder
        self._order = secret_order(len(ids), random)
        values = bytes_of(normal_ids(ids, normalise, LABELS)[self._order])
        self._hashes = blind_rsa.fdh(values, self._public.n, nonce)
        drawn = io.BytesIO(random(len(ids) * blind_rsa.blinding_bytes(self._public)))
        self.blinded, self._blinding = blind_rsa.blind(self._hashes, self._public, drawn.read)

    def tags(self, signed: Any) -> Bytes:
        """Unblind, and return tags in the order of the labels."""
        signatures = blind_rsa.unblind(
            signed, self._blinding, self._hashes, self._public, self._holder
        )
        shuffled = blind_rsa.tags(signatures)
        own = np.empty_like(shuffled)
        own[self._order] = shuffled
        return own


def _numbered(sets: dict[str, Any]) -> dict[str, Any]:
    return {str(k): values for k, values in enumerate(sets.values())}


def _checked(tags: Any, party: str, count: int | None = None) -> Bytes:
    if tags.ndim != 2 or tags.shape[1] != 32 or tags.dtype != np.uint8:
        raise PartyError(party, "rsa_tags", f"returned tags of shape {tags.shape} and {tags.dtype}")
    if count is not None and len(tags) != count:
        raise PartyError(party, "rsa_tags", f"returned {len(tags)} tags for {count} samples")
    return np.asarray(tags)
