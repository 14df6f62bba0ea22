"""Rank donors by blinded distances (Du et al., 2024, Eq. 12): at the server, or the arbiter.

The arbiter half of FKNN: opens sums of blinded distances and lets only ranks leave.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, step
from flwr_vertical.arrays import AnyArray, Array
from flwr_vertical.errors import ProtocolError
from strategies.fknn.blinding import LOW_BITS

_NOISE = 2.0**-44
"""Distances come from inner products, with errors of some 2^-48 of a row's mean distance."""

_PASS = 1 << 16
"""Pairs a pass: what is looked at stays in the cache."""

_SHARE = 16
"""One of so many donors is looked at first."""


@dataclass(frozen=True)
class Errors:
    """By how much a total may be off, in its own units, and what the least weight is."""

    distance: float  # Of the totals
    weight: float  # Of the totals
    least: float  # The least blinded weight of a pair that is comparable
    # By how much the ratio of exact totals may be off: what a float64 does not hold
    ratio: float = 0.0


@dataclass(frozen=True)
class Ranked:
    """The nearest donors of some rows, row after row."""

    neighbours: npt.NDArray[np.int32]  # (n_listed,): columns of the donors
    # (n_listed,): 0 for a row's nearest, the same for donors at the same distance
    ranks: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]  # (n_rows,): how many are listed of each row
    distances: Array  # (n_listed,): as blinded; the same for the same rank


def rank_donors(distance: AnyArray, weight: AnyArray, width: int, errors: Errors) -> Ranked:
    """List the nearest donors of each row, and all that are as near as the last of them.

    (The paper's text says descending; nearest means ascending.)

    Shapes: distance, weight (n_rows, n_donors): sums over the parties; their ratio is the
    distance, undefined where weight is 0.
    """
    n_rows, n_donors = distance.shape
    width = min(width, n_donors)
    counts = np.zeros(n_rows, dtype=np.int32)
    found: list[tuple[AnyArray, Array, Array]] = []
    step = max(1, _PASS // max(n_donors, 1))
    for start in range(0, n_rows if width else 0, step):
        part = slice(start, start + step)
        ratio, off = _ratio(distance[part], weight[part], errors)
        last = _nth(ratio, width)
        finite = np.where(np.isinf(last), 0.0, last)
        cut = (
            last
            + off
            + 2 * errors.ratio
            + (errors.distance + finite * errors.weight) * 2 / errors.least
        )
        listed = np.flatnonzero((ratio <= cut) & (ratio < np.inf))
        row, column = np.divmod(listed, n_donors)
        counts[part] = np.bincount(row, minlength=len(ratio))
        nearness = ratio.reshape(-1)[listed]
        error = (
            off[row, 0] / 2
            + errors.ratio
            + (errors.distance + nearness * errors.weight)
            / np.asarray(weight[part].reshape(-1)[listed], dtype=np.float64)
        )
        order = np.lexsort((nearness, row))
        found.append((column[order], nearness[order], error[order]))
    neighbours, nearness, error = (
        np.concatenate(parts) if found else np.zeros(0) for parts in zip(*found, strict=True)
    )
    first = np.cumsum(counts) - counts
    opens = np.ones(len(nearness), dtype=bool)
    opens[1:] = np.diff(nearness) > error[1:] + error[:-1]
    opens[first[counts > 0]] = True
    ranks = np.cumsum(opens) - 1
    equal = nearness[np.flatnonzero(opens)][ranks] if len(ranks) else nearness
    ranks -= np.repeat(ranks[first[counts > 0]], counts[counts > 0])
    return Ranked(neighbours.astype(np.int32), ranks.astype(np.int32), counts, equal)


def _nth(ratio: Array, width: int) -> Array:
    """Return each row's `width`-th smallest value, array of shape (n_rows, 1)."""
    n_rows, n_donors = ratio.shape
    sample = n_donors // _SHARE
    if sample < 2 * width:
        return np.partition(ratio, width - 1, axis=1)[:, width - 1 : width]
    # Donors come in a random order. A few values of the first tell which values are small at all.
    few = width // _SHARE + 8
    bound = np.partition(ratio[:, :sample], 2 * few, axis=1)[:, 2 * few]
    last = np.empty((n_rows, 1))
    for i, row in enumerate(ratio):
        small = row[row <= bound[i]]
        if len(small) < width:
            small = row
        last[i] = np.partition(small, width - 1)[width - 1]
    return last


def _ratio(distance: AnyArray, weight: AnyArray, errors: Errors) -> tuple[Array, Array]:
    """Return distances, infinite where undefined, and the rounding errors of each row."""
    weights = weight.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = distance / weights
    undefined = np.flatnonzero(weights < errors.least / 2)
    ratio.reshape(-1)[undefined] = 0.0
    np.maximum(ratio, 0.0, out=ratio)
    n_undefined = np.bincount(undefined // ratio.shape[1], minlength=len(ratio))
    n_defined = np.maximum(ratio.shape[1] - n_undefined, 1)
    off = (ratio.sum(axis=1) * (_NOISE / n_defined))[:, None]
    ratio.reshape(-1)[undefined] = np.inf
    return ratio, off


def relative_weights(ranked: Ranked) -> Array:
    """Inverse distances relative to the farthest listed donor, to seven digits.

    More digits would hold the rounding of blinded distances, which is another in each run.

    Shapes: returns (n_listed,): 1 for the farthest donor, infinite for a donor at distance 0.
    """
    counts = ranked.counts[ranked.counts > 0]
    last = np.cumsum(counts) - 1
    farthest = np.repeat(np.sqrt(ranked.distances[last]), counts)
    with np.errstate(divide="ignore"):
        weights = np.where(farthest > 0, farthest, 1.0) / np.sqrt(ranked.distances)
    fraction, exponent = np.frexp(weights)
    rounded: Array = np.ldexp(np.rint(fraction * 2.0**23) * 2.0**-23, exponent)
    return rounded


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

        Message: sums: ``distance`` and ``weight`` of shape (n_rows, n_donors), or ``high`` and
        ``low`` in place of the first, and, for the block before, ``short`` of shape (n_done,);
        width: how many donors to list, beside those as near as the last; errors: see `Errors`;
        weighted: whether weights are wanted; returns ``neighbours``, ``ranks``, ``counts`` as of
        `Ranked`, ``weights`` of shape (n_listed,); ``short``.
        """
        released: dict[str, Any] = {}
        if "short" in sums:
            released["short"] = (sums["short"] > 0).astype(np.uint8)
        if "weight" in sums:
            if not width or len(errors or []) < 3:
                raise ProtocolError(
                    "arbiter: distances came without how many donors to rank, or how exact they "
                    f"are; got width {width} and errors {errors}"
                )
            distance = sums.get("distance")
            if distance is None:
                distance = np.rint(sums["high"]) * 2.0**LOW_BITS + np.rint(sums["low"])
            ranked = rank_donors(distance, sums["weight"], width, Errors(*(errors or [])))
            released |= {name: getattr(ranked, name) for name in ("neighbours", "ranks", "counts")}
            if weighted:
                released["weights"] = relative_weights(ranked)
        return released
