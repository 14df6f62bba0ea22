"""`plain` alignment: the sample IDs are public, the server joins them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.alignment.base import LABELS, Aligner, Alignment, check_id_types
from flwr_vertical.alignment.steps import POSITIONS, AlignmentSteps
from flwr_vertical.errors import PartyError
from flwr_vertical.node.steps import step
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round
from flwr_vertical.server.federation import Federation
from flwr_vertical.tables.ids import id_type, index_of, normal_ids

_TYPES = {"i": "integer", "S": "text"}


class PlainSteps(AlignmentSteps):
    """A party hands over its IDs."""

    alignment = "plain"
    protocol = Protocol(
        Round("share_ids", "the IDs of its samples", tells=FACTS), hands_over=(*POSITIONS, "ids")
    )

    @step
    def share_ids(self, normalise: list[str]) -> dict[str, Any]:
        """Hand over the sample IDs (they are public in this mode)."""
        return {"ids": normal_ids(self.party.own_ids, normalise, self.name)}


class PlainAligner(Aligner):
    """Joins the IDs on the server, in order of first appearance over the parties.

    One round. The server learns every party's sample IDs; a party learns the positions of its
    own rows and, if it lacks some samples, the IDs of all.
    """

    disclosure = (
        *Aligner.disclosure,
        ("server", "every party's sample IDs"),
        ("a party that lacks samples", "the IDs of all samples"),
    )
    steps = PlainSteps
    _random_rows = False  # the IDs are public

    def align(
        self,
        federation: Federation,
        label_ids: "pd.Index[Any] | None" = None,
        label_holder: str | None = None,
    ) -> Alignment:
        """Align the samples of all parties by their IDs."""
        replies = federation.call("share_ids", {"normalise": self.normalise})
        ids = {name: replies[name]["ids"] for name in federation.parties}
        types = {name: _type_of(array, name) for name, array in ids.items()}
        labels = None
        if label_ids is not None:
            labels = normal_ids(label_ids, self.normalise, LABELS)
            types[LABELS] = id_type(label_ids, LABELS)
        check_id_types(types)
        alignment, union = self.finish(federation, ids, labels, label_holder)
        index = index_of(union)
        for k, name in enumerate(alignment.parties):
            if alignment.mask[:, k].any():  # it may complete samples it lacks; IDs are public here
                federation.update(name, {"ids": union})
        return replace(alignment, ids=index)


def _type_of(ids: Any, party: str) -> str:
    """Return the type of IDs that came from a party, as `id_type` names it."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and (found := _TYPES.get(ids.dtype.kind)):
        return found
    raise PartyError(
        party, "share_ids", "sent sample IDs that are neither whole numbers nor UTF-8 text"
    )
