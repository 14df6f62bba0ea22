"""Rank donors by blinded distances (Du et al., 2024, Eq. 12): at the server, or the arbiter.

The arbiter half of FKNN: opens sums of blinded distances and lets only ranks leave.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Arbiter, step
from flwr_vertical.arrays import AnyArray, Array, Integers32
from flwr_vertical.errors import ProtocolError
from strategies.fknn.blinding import LOW_BITS

_NOISE = 2.0**-44
"""Distances come from inner products, with errors of some 2^-48 of a row's mean distance."""

_MOST = 2.0**63 - 1024
"""The largest float64 below what a sum of 64 bits can hold; above all distances, too."""

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

    neighbours: Integers32  # (n_listed,): columns of the donors
    # (n_listed,): 0 for a row's nearest, the same for donors at the same distance
    ranks: Integers32
    counts: Integers32  # (n_rows,): how many are listed of each row
    distances: Array  # (n_listed,): as blinded; the same for the same rank


def rank_donors(distance: AnyArray, weight: AnyArray, width: int, errors: Errors) -> Ranked:
    """List the nearest donors of each row, and all that are as near as the last of them.

    (The paper's text says descending; nearest means ascending.)

    Shapes: distance (n_rows, n_donors), weight (n_rows, 1 + n_others): sums over the parties; the
    first weight is that of all donors but the last `n_others`. The ratio is the distance, undefined
    where weight is 0.
    """
    width = min(width, distance.shape[1])
    counts = np.zeros(len(distance), dtype=np.int32)
    found: list[tuple[AnyArray, Array, Array]] = []
    for i in range(len(distance) if width else 0):
        columns, nearness, error = _nearest(distance[i], weight[i], width, errors)
        order = np.argsort(nearness, kind="stable")
        counts[i] = len(order)
        found.append((columns[order], nearness[order], error[order]))
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


def _nearest(
    distance: AnyArray, weight: AnyArray, width: int, errors: Errors
) -> tuple[AnyArray, Array, Array]:
    """Return a row's nearest donors, their distances, and by how much these may be off.

    Shapes: distance (n_donors,), weight (1 + n_others,); returns three times (n_listed,).
    """
    weights = weight.astype(np.float64)
    defined = weights >= errors.least / 2
    n_same = len(distance) - len(weight) + 1
    same, others = distance[: n_same if defined[0] else 0], distance[n_same:]
    apart = np.full(len(others), np.inf)
    np.divide(others, weights[1:], out=apart, where=defined[1:])
    # Donors come in a random order: a few of the first tell which distances are small at all.
    head = same[: -(-len(same) // _SHARE)]
    typical = max(float(head.mean()) / weights[0] if len(head) else 0.0, 0.0)
    if defined[1:].any():
        typical = max(typical, float(apart[defined[1:]].mean()))
    off, few = typical * _NOISE, 2 * (width // _SHARE + 8)
    bounds = [np.partition(head, few)[few] / weights[0]] if few < len(head) else []
    for bound in (*bounds, _MOST):
        # Whole numbers are compared with one: the floor, or what no sum exceeds.
        near = np.flatnonzero(same <= int(min(bound * weights[0], _MOST)))
        columns = np.concatenate([near, n_same + np.flatnonzero(apart <= bound)])
        divisor = weights[np.maximum(columns - n_same + 1, 0)]
        nearness = np.maximum(distance[columns] / divisor, 0.0)
        cut = np.inf
        if width <= len(columns):
            last = np.partition(nearness, width - 1)[width - 1]
            beyond = (errors.distance + last * errors.weight) * 2 / errors.least
            cut = last + off + 2 * errors.ratio + beyond
        if cut < bound * (1 - 2.0**-40):
            break
    error = off / 2 + errors.ratio + (errors.distance + nearness * errors.weight) / divisor
    kept = nearness <= cut
    return columns[kept], nearness[kept], error[kept]


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
    return np.asarray(np.ldexp(np.rint(fraction * 2.0**23) * 2.0**-23, exponent))


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

        Message: sums: ``distance`` of shape (n_rows, n_donors), or ``high`` and ``low`` in its
        place, ``weight`` of shape (n_rows, 1 + n_others), see `rank_donors`, and, for the block
        before, ``short`` of shape (n_done,);
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
