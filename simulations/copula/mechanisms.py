"""Which blocks are missing (Section 5.2), at the shares of complete rows that the paper prints.

The paper states missing probabilities of 0.95, 0.90, 0.85, 0.80 and 0.75 for the five clients and
prints 77.32, 44.38 and 23.79 % of fully observed rows over its Tables 6 and 7, where the stated
probabilities would leave 0.02 %. The printed shares are 0.95^5, 0.85^5 and 0.75^5 to within half a
point. The shares are kept: under MCAR every party misses the same share, under MAR the constant 1
of the paper's log-odds is replaced by the one that leaves the printed share.
"""

from typing import Any

import numpy as np
from scipy.optimize import brentq

from flwr_vertical.arrays import Flags
from flwr_vertical.incomplete import mar_complex, mar_simple, mcar_blocks
from simulations.copula.design import CopulaSample

MCAR, MAR_SIMPLE, MAR_COMPLEX = "MCAR", "MAR Simple", "MAR Complicated"
MECHANISMS = (MCAR, MAR_SIMPLE, MAR_COMPLEX)

_REACH = 60.0


def draw_mask(sample: CopulaSample, mechanism: str, share: float, seed: int) -> Flags:
    """Draw which blocks are missing, shape (n_samples, n_parties)."""
    n_parties = len(sample.tables)
    if mechanism == MCAR:
        rate = 1.0 - share ** (1.0 / n_parties)
        return mcar_blocks(len(sample.labels), [rate] * n_parties, seed=seed)
    may_miss = may_be_missing(n_parties, seed)

    def draw(level: float) -> Flags:
        settings: dict[str, Any] = {"may_miss": may_miss, "seed": seed, "level": level}
        if mechanism == MAR_SIMPLE:
            return mar_simple(sample.tables, **settings)
        return mar_complex(sample.tables, sample.labels, **settings)

    def excess(level: float) -> float:
        return float((~draw(level).any(axis=1)).mean()) - share

    return draw(brentq(excess, -_REACH, _REACH, xtol=1e-4))


def may_be_missing(n_parties: int, seed: int) -> list[bool]:
    """Draw which parties may have missing blocks, each with probability 1/2, at least one."""
    rng = np.random.default_rng([seed, n_parties])
    while True:
        drawn = rng.random(n_parties) < 0.5
        if drawn.any():
            return [bool(value) for value in drawn]
