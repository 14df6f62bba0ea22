"""The arbiter half of FKNN: opens summed distances and lets only ranks leave."""

from typing import Any

import numpy as np

from flwr_vertical import Arbiter, step
from strategies.imputation.fknn.neighbours import nearest, relative_weights


class FKNNArbiter(Arbiter):
    """Ranks donors. In ``plain`` and ``masked`` mode the server takes this step itself."""

    @step
    def rank(
        self, sums: dict[str, Any], own: Any = None, width: int = 0, weighted: bool = False
    ) -> dict[str, Any]:
        """Return ranked donors (and relative weights), never distances.

        Parameters
        ----------
        sums : dict[str, numpy.ndarray]
            ``distance`` and ``weight`` of shape (n_rows, n_donors) and, for the block before,
            ``short`` of shape (n_done,).
        own : numpy.ndarray of shape (n_rows,)
            Column of each row itself among the donors, or -1.
        width : int
            How many donors to list.
        weighted : bool
            Whether weights are wanted.

        Returns
        -------
        dict[str, numpy.ndarray]
            ``neighbours`` of shape (n_rows, width), ``weights`` likewise, ``short``.
        """
        released: dict[str, Any] = {}
        if "short" in sums:
            released["short"] = (sums["short"] > 0).astype(np.uint8)
        if "distance" in sums:
            neighbours, distances = nearest(sums["distance"], sums["weight"], own, width)
            released["neighbours"] = neighbours
            if weighted:
                released["weights"] = relative_weights(distances)
        return released
