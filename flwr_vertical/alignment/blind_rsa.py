"""`blind-rsa` alignment: the blind-signature PSI of De Cristofaro and Tsudik (2010), Figure 3.

One party, the key holder (the first by name), signs the others' blinded hashes without seeing
them; the tag of an ID is a hash of its RSA signature, which nobody but the holder can make alone.
FedPSG-AR (Liu et al.) uses it between two parties. With more parties the holder serves each of the
others, two at a time, all in the same four rounds: open, blind, sign, tags. The tags go to the
server, which joins them into the union with its mask; in the paper they go to the client.

Compared with `private-id`: the work falls on the key holder, messages are 384 bytes an ID (at 3,072
bits), and the holder could make the tag of any ID it guesses (but sees nobody's tags).
"""

import io
from collections.abc import Callable
from typing import Annotated, Any

import pandas as pd

from flwr_vertical.alignment.base import (
    LABELS,
    Aligner,
    Alignment,
    ServerIds,
    check_id_types,
    checked_rows,
    handed_on,
)
from flwr_vertical.alignment.steps import POSITIONS, AlignmentSteps
from flwr_vertical.arrays import Bytes
from flwr_vertical.crypto import blind_rsa, rsa_key
from flwr_vertical.errors import ConfigError
from flwr_vertical.node.steps import step
from flwr_vertical.products.pair_keys import key_payload
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.arguments import OWN
from flwr_vertical.protocol.declaration import FACTS, IDS, ONE, SOME, Either, Protocol, Round
from flwr_vertical.server.federation import Federation
from flwr_vertical.tables.ids import id_type

_BLINDING = "align.blinding"
_RSA_PUBLIC = "align.rsa-public"
_HASHES = "align.hashes"
_RSA_KEY = "align.rsa-key"
_MODE = "blind-rsa"


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
        payload = key_payload(_MODE, key.public, nonce)
        return {
            "public": key.public,
            "tags": tags,
            "id_type": id_type(self.party.own_ids, self.name),
            **pins.endorse(self.party.identity(_MODE), payload),
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
        node, payload = self.party.identity(_MODE), key_payload(_MODE, public, nonce)
        pinned = pins.read_pins(node, None)
        pins.check_endorsement(node, pinned, holder, payload, identity, signature)
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
        common |= {"holder": holder, **handed_on(opened, "public")}
        replies = federation.call("rsa_blind", common, parties=others) if others else {}
        types = {holder: opened["id_type"]} | {name: replies[name]["id_type"] for name in others}
        blinded = {name: replies[name]["blinded"] for name in others}
        labels = None
        if label_ids is not None:
            key = rsa_key.load_public(opened["public"], holder)
            labels = _Labels(label_ids, self.normalise, nonce, key, federation.random_bytes)
            types[LABELS] = labels.id_type
            blinded[LABELS] = labels.blinded
        check_id_types(types)
        numbered = {str(k): values for k, values in enumerate(blinded.values())}
        signed = federation.call(
            "rsa_sign", {"senders": list(blinded), **numbered}, parties=[holder]
        )[holder]
        results = {
            name: checked_rows(signed[str(k)], values.shape, holder, "rsa_sign")
            for k, (name, values) in enumerate(blinded.items())
        }
        sets = {
            holder: checked_rows(opened["tags"], (None, blind_rsa.TAG_BYTES), holder, "rsa_open")
        }
        if others:
            own = {name: {"signed": results[name]} for name in others}
            tags = federation.call("rsa_tags", {"holder": holder}, per_party=own, parties=others)
            for name in others:
                count = len(blinded[name]), blind_rsa.TAG_BYTES
                sets[name] = checked_rows(tags[name]["tags"], count, name, "rsa_tags")
        label_tags = None if labels is None else labels.tags(results[LABELS], holder)
        return self.finish_pseudonyms(federation, sets, label_tags, label_holder)


class _Labels(ServerIds):
    """The server's own set, signed like another party's."""

    def __init__(
        self,
        ids: "pd.Index[Any]",
        normalise: list[str],
        nonce: bytes,
        key: rsa_key.RsaPublic,
        random: Callable[[int], bytes],
    ) -> None:
        super().__init__(ids, normalise, random)
        self._key = key
        self._hashes = blind_rsa.fdh(self.values, key.n, nonce)
        drawn = io.BytesIO(random(len(ids) * blind_rsa.blinding_bytes(key)))
        self.blinded, self._blinding = blind_rsa.blind(self._hashes, key, drawn.read)

    def tags(self, signed: Bytes, holder: str) -> Bytes:
        """Unblind, and return tags in the order of the labels."""
        signatures = blind_rsa.unblind(signed, self._blinding, self._hashes, self._key, holder)
        return self.own_order(blind_rsa.tags(signatures))
