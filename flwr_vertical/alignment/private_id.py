"""`private-id` alignment: any number of parties, by commutative blinding on Curve25519.

Every party hashes its IDs to points of the curve and multiplies them by a secret of its own that
it draws for this run. The sets, in an order only their owners know, then pass round all other
parties, each of which multiplies by its own secret. Multiplications commute, so the same ID has
become the same point whoever had it, and the server joins these pseudonyms without knowing what
they stand for (Meadows, 1986; Huberman, Franklin and Hogg, 1999; for unions with a mask,
Buddhavarapu et al., 2020).

Rounds: as many as there are parties, all sets travelling at once; 32 bytes an ID and pass.
"""

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
)
from flwr_vertical.alignment.steps import POSITIONS, AlignmentSteps
from flwr_vertical.arrays import Bytes
from flwr_vertical.crypto import commutative
from flwr_vertical.node.steps import step
from flwr_vertical.protocol.arguments import OWN, Shape
from flwr_vertical.protocol.declaration import FACTS, IDS, Protocol, Repeat, Round
from flwr_vertical.server.federation import Federation
from flwr_vertical.tables.ids import id_type

Points = Bytes
OwnPoints = Annotated[Points, OWN, Shape(None, 32)]

_KEY = "align.key"


class PrivateIdSteps(AlignmentSteps):
    """A party blinds its own IDs, and the points of others."""

    alignment = "private-id"
    protocol = Protocol(
        Round("blind_ids", "its IDs as points under its key, shuffled", tells=(FACTS, IDS)),
        Repeat(
            Round("blind_for", "another party's points under its key as well", tells=IDS),
            at_most="n_parties - 1",
        ),
        hands_over=POSITIONS,
    )

    @step
    def blind_ids(
        self, nonce: bytes, normalise: list[str], labels: OwnPoints | None = None
    ) -> dict[str, Any]:
        """Hash, blind and shuffle the own IDs.

        Message: nonce: of this run, the same at all parties: hashes of different runs have nothing
        in common; normalise: normalisation steps; labels (n_labels, 32): the server's blinded
        label IDs, to be blinded once more; returns ``points`` of shape (n_own, 32), ``id_type``,
        and ``labels`` blinded.
        """
        self.state[_KEY] = commutative.generate_blinding_key()
        ids = self.shuffled_ids(normalise)
        answer = {
            "points": commutative.hash_and_blind(ids, nonce, self.state[_KEY], self.id_secret()),
            "id_type": id_type(self.party.own_ids, self.name),
        }
        if labels is not None:
            answer["labels"] = self._blind_foreign(labels, LABELS)
        return answer

    @step
    def blind_for(
        self,
        points: OwnPoints,
        sender: Annotated[str, OWN],
        labels: OwnPoints | None = None,
        labels_sender: Annotated[str, OWN] = "",
    ) -> dict[str, Any]:
        """Blind another party's points, and labels, once more; senders are named for errors."""
        answer = {"points": self._blind_foreign(points, sender)}
        if labels is not None:
            answer["labels"] = self._blind_foreign(labels, labels_sender)
        return answer

    def _blind_foreign(self, points: Any, sender: str) -> Any:
        self.admit_foreign(points, sender)
        return commutative.check_and_blind(points, sender, self.state[_KEY])


class PrivateIdAligner(Aligner):
    """Joins blinded IDs: the server learns set sizes and the mask, and no ID.

    The server blinds its own label IDs, which pass round all parties: it learns their rows alone.
    """

    disclosure = (
        *Aligner.disclosure,
        ("server", "the number of samples of each party; pseudonyms of this run, not IDs"),
        ("every party", "the number of samples of the parties (and labels) it blinds for"),
    )

    steps = PrivateIdSteps

    def align(
        self,
        federation: Federation,
        label_ids: "pd.Index[Any] | None" = None,
        label_holder: str | None = None,
    ) -> Alignment:
        """Align the samples of all parties by pseudonyms."""
        nonce = federation.random_bytes(32)
        labels = None
        if label_ids is not None:
            labels = _Labels(label_ids, self.normalise, nonce, federation.random_bytes)
        parties = federation.parties
        first = parties[0]
        replies = federation.call(
            "blind_ids",
            {"nonce": nonce, "normalise": self.normalise},
            per_party=None if labels is None else {first: {"labels": labels.points}},
        )
        types = {name: replies[name]["id_type"] for name in parties}
        if labels is not None:
            types[LABELS] = labels.id_type
            blinded = replies[first]["labels"]
            labels.points = checked_rows(blinded, labels.points.shape, first, "blind_ids")
        check_id_types(types)
        sets: dict[str, Points] = {name: replies[name]["points"] for name in parties}
        for shift in range(1, len(parties)):
            # Party k blinds the set that party k - shift owns and party k - 1 has just handed on;
            # the labels visit party `shift`. Who blinds a set checks its points before.
            owners = {name: parties[k - shift] for k, name in enumerate(parties)}
            arguments: dict[str, dict[str, Any]] = {
                name: {"points": sets[owners[name]], "sender": parties[k - 1]}
                for k, name in enumerate(parties)
            }
            if labels is not None:
                visited = arguments[parties[shift]]
                visited["labels"], visited["labels_sender"] = labels.points, parties[shift - 1]
            replies = federation.call("blind_for", per_party=arguments)
            sets |= {
                owner: checked_rows(replies[name]["points"], sets[owner].shape, name, "blind_for")
                for name, owner in owners.items()
            }
            if labels is not None:
                visited_by = parties[shift]
                blinded = replies[visited_by]["labels"]
                labels.points = checked_rows(blinded, labels.points.shape, visited_by, "blind_for")
        for k, owner in enumerate(parties):  # the last in the ring has nobody to check after it
            commutative.check_points(sets[owner], parties[k - 1])
        if labels is not None:
            commutative.check_points(labels.points, parties[-1])
            sets = {name: commutative.blind(points, labels.key) for name, points in sets.items()}
        own = None if labels is None else labels.own_order(labels.points)
        return self.finish_pseudonyms(federation, sets, own, label_holder)


class _Labels(ServerIds):
    """The server's own set, blinded like another party's."""

    def __init__(
        self,
        ids: "pd.Index[Any]",
        normalise: list[str],
        nonce: bytes,
        random: Callable[[int], bytes],
    ) -> None:
        self.key = commutative.generate_blinding_key(random)
        super().__init__(ids, normalise, random)
        self.points: Points = commutative.hash_and_blind(self.values, nonce, self.key)
