"""Others' columns roughly: how much of their variance numbers of single samples explain.

The attacks of `suite` count cells that are found to a thousandth. What networks make of columns
tells these less exactly, and is no less dangerous for it. Here the attacker knows half of the
samples, and learns what the vectors of a view say of the columns of the others.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from simulations.attacks.labels import Telling, received_by, told_by
from simulations.attacks.views import View


def columns_from(view: View, truth: Mapping[str, pd.DataFrame]) -> Telling:
    """Predict others' columns from what a node has of its own, and from this with its messages."""
    own = np.zeros((view.n_samples, 0)) if view.own is None else view.own.to_numpy(dtype=float)
    received = received_by(view)
    reduced: dict[tuple[int, bytes], Array] = {}
    found = [
        told_by(
            received,
            frame[name].to_numpy(dtype=float),
            own,
            folds=2,
            classes=False,
            reduced=reduced,
        )
        for party, frame in truth.items()
        if party != view.who
        for name in frame
    ]
    return Telling(*(float(np.mean([getattr(t, name) for t in found])) for name in ("own", "all")))
