"""The arbiter half of FKNN: opens sums of blinded distances and lets only ranks leave."""

from typing import Any

import numpy as np

from flwr_vertical import Arbiter, step
from strategies.fknn.blinding import LOW_BITS
from strategies.fknn.ranking import Errors, rank_donors, relative_weights


class FKNNArbiter(Arbiter):
    """Ranks donors. In ``plain`` and ``masked`` mode the server takes this step itself."""

    @step
    def rank(
        self,
        sums: dict[str, Any],
        width: int = 0,
        errors: list[float] | None = None,
        weighted: bool = False,
    ) -> dict[str, Any]:
        """Return ranked donors (and relative weights), never distances.

        Parameters
        ----------
        sums : dict[str, numpy.ndarray]
            ``distance`` and ``weight`` of shape (n_rows, n_donors), or ``high`` and ``low`` in
            place of the first, and, for the block before, ``short`` of shape (n_done,).
        width : int
            How many donors to list, beside those as near as the last.
        errors : list of float
            See `Errors`.
        weighted : bool
            Whether weights are wanted.

        Returns
        -------
        dict[str, numpy.ndarray]
            ``neighbours``, ``ranks``, ``counts`` as of `Ranked`, ``weights`` of shape (n_listed,);
            ``short``.
        """
        released: dict[str, Any] = {}
        if "short" in sums:
            released["short"] = (sums["short"] > 0).astype(np.uint8)
        if "weight" in sums:
            distance = sums.get("distance")
            if distance is None:
                distance = np.rint(sums["high"]) * 2.0**LOW_BITS + np.rint(sums["low"])
            ranked = rank_donors(distance, sums["weight"], width, Errors(*(errors or [])))
            released["neighbours"] = ranked.neighbours
            released["ranks"] = ranked.ranks
            released["counts"] = ranked.counts
            if weighted:
                released["weights"] = relative_weights(ranked)
        return released
