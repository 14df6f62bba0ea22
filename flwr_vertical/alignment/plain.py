"""`plain` alignment: the sample IDs are public, the server joins them."""

import numpy as np
import pandas as pd

from flwr_vertical.alignment.base import Aligner, Alignment, check_overlap, register_aligner
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.federation import Federation
from flwr_vertical.protocol.party import ids_to_array


class PlainAligner(Aligner):
    """Joins the IDs on the server: the union of all samples, in order of first appearance.

    One round. The server learns every party's sample IDs; a party learns the positions of its
    own rows and, if it lacks some samples, the IDs of all.
    """

    disclosure = (
        *Aligner.disclosure,
        ("server", "every party's sample IDs"),
        ("a party that lacks samples", "the IDs of all samples"),
    )

    def align(self, federation: Federation) -> Alignment:
        """Align the samples of all parties by their IDs."""
        replies = federation.call("share_ids")
        ids = {name: replies[name]["ids"] for name in federation.parties}
        kinds = {name: _id_kind(array) for name, array in ids.items()}
        if len(set(kinds.values())) > 1:
            raise DataError(
                f"the parties' sample IDs are of different types: {kinds}; store them all as text "
                "or all as integers"
            )
        union = pd.Index(pd.unique(np.concatenate(list(ids.values()))))
        mask = np.ones((len(union), len(ids)), dtype=bool)
        for k, (name, own) in enumerate(ids.items()):
            positions = union.get_indexer(pd.Index(own))
            mask[positions, k] = False
            federation.update(name, {"positions": positions, "n_samples": len(union)})
            if mask[:, k].any():  # it may complete samples it lacks; their IDs are public here
                federation.update(name, {"ids": ids_to_array(union, name)})
        check_overlap(list(ids), mask)
        return Alignment(list(ids), mask, union)


def _id_kind(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> str:
    return "integer" if array.dtype.kind in "iu" else "text"


register_aligner("plain", PlainAligner)
