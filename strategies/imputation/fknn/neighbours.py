"""Rank donors by summed distances, and impute from ranked donors (Du et al., 2024, Eqs. 12-13)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.tables import Kind, is_numeric

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def nearest(
    distance: Array, weight: npt.NDArray[Any], own: Indices, width: int
) -> tuple[npt.NDArray[np.int32], Array]:
    """Return the nearest donors of each row, in ascending order of distance, then of rows.

    (The paper's text says descending; nearest means ascending.)

    Parameters
    ----------
    distance, weight : numpy.ndarray of shape (n_rows, n_donors)
        Sums over the parties; their ratio is the squared distance, undefined where weight is 0.
    own : numpy.ndarray of shape (n_rows,)
        Column of the row itself among the donors, -1 if it is none; a row is no donor to itself.
    width : int
        How many donors to return.

    Returns
    -------
    neighbours : numpy.ndarray of shape (n_rows, width), int32
        Columns of the donors; -1 behind the last one with a defined distance.
    distances : numpy.ndarray of shape (n_rows, width)
        Their (unsquared) distances, infinite behind the last.
    """
    defined = weight > 0
    ratio = np.divide(distance, weight, out=np.full(distance.shape, np.inf), where=defined)
    _even_out(ratio)
    inside = np.flatnonzero(own >= 0)
    ratio[inside, own[inside]] = np.inf
    width = min(width, ratio.shape[1])
    if width < ratio.shape[1]:
        found = _smallest(ratio, width)
    else:
        found = np.broadcast_to(np.arange(width), ratio.shape)
    squared = np.take_along_axis(ratio, found, axis=1)
    order = np.argsort(squared, axis=1, kind="stable")
    neighbours = np.take_along_axis(found, order, axis=1).astype(np.int32)
    squared = np.take_along_axis(squared, order, axis=1)
    neighbours[np.isinf(squared)] = -1
    return neighbours, np.sqrt(squared)


def _even_out(ratio: Array) -> None:
    """Make distances equal that differ by rounding errors alone: 33 bits count (1e-10); in place.

    Columns of levels give many equal distances. Which of these donors come first must not depend
    on the order in which the parties' terms were added, nor on the mode of the private sum.
    """
    np.maximum(ratio, 0.0, out=ratio)  # CKKS noise can leave a tiny negative number
    bits = ratio.view(np.int64)
    bits += 1 << 19  # infinity stays what it is
    bits &= -(1 << 20)


def _smallest(ratio: Array, width: int) -> Indices:
    """Columns of the smallest values of each row, in order; of equal values the first ones."""
    last = np.partition(ratio, width - 1, axis=1)[:, width - 1 : width]
    taken, equal = ratio < last, ratio == last
    room = width - taken.sum(axis=1, keepdims=True)
    crowded = np.flatnonzero(equal.sum(axis=1, keepdims=True) > room)
    equal[crowded] &= np.cumsum(equal[crowded], axis=1) <= room[crowded]
    taken |= equal
    columns: Indices = np.nonzero(taken)[1].reshape(-1, width)
    return columns


def relative_weights(distances: Array) -> Array:
    """Inverse distances relative to the farthest listed donor: they show no distance itself.

    Returns
    -------
    numpy.ndarray of shape (n_rows, width)
        1 for the farthest donor, infinite for a donor at distance 0, 0 behind the last.
    """
    listed = np.isfinite(distances)
    farthest = np.max(np.where(listed, distances, 0.0), axis=1, keepdims=True)
    weights = np.zeros(distances.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.divide(np.where(farthest > 0, farthest, 1.0), distances, out=weights, where=listed)
    return weights


def impute_column(
    column: Array,
    kind: Kind,
    neighbours: npt.NDArray[np.int32],
    weights: Array | None,
    n_neighbors: int,
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Impute one column of some rows from their ranked donors.

    Parameters
    ----------
    column : numpy.ndarray of shape (n_samples,)
        Values or level numbers, NaN = missing.
    kind : Kind
        Numeric columns get the (weighted) mean of the nearest donors that have a value (Eq. 13),
        ordinal ones the lower weighted median, others the level of most weight (ties: the first).
    neighbours : numpy.ndarray of shape (n_rows, width), int32
        Donors' sample numbers in ascending order of distance, -1 behind the last.
    weights : numpy.ndarray of shape (n_rows, width) or None
        Weights of the donors; None for equal ones.
    n_neighbors : int
        How many donors to use.

    Returns
    -------
    values : numpy.ndarray of shape (n_rows,)
        NaN where no listed donor has a value.
    used : numpy.ndarray of shape (n_rows,)
        How many donors were used.
    """
    donated = column[neighbours]  # (n_rows, width); -1 reads the last row and is ruled out next
    usable = ~np.isnan(donated) & (neighbours >= 0)
    usable &= np.cumsum(usable, axis=1) <= n_neighbors
    used = usable.sum(axis=1)
    w = np.where(usable, 1.0 if weights is None else weights, 0.0)
    # Donors at distance 0 take all the weight, as in scikit-learn.
    exact = np.isinf(w)
    w = np.where(exact.any(axis=1, keepdims=True), exact.astype(float), w)
    donated = np.where(usable, donated, 0.0)
    with np.errstate(invalid="ignore"):
        if is_numeric(kind):
            values = (w * donated).sum(axis=1) / w.sum(axis=1)
        elif kind is Kind.ORDINAL:
            values = _weighted_median(donated, w)
        else:
            values = _weighted_mode(donated, w)
    return np.where(used > 0, values, np.nan), used


def _weighted_mode(levels: Array, weights: Array) -> Array:
    count = int(levels.max(initial=0.0)) + 1
    votes = np.zeros((len(levels), count))
    np.add.at(votes, (np.arange(len(levels))[:, None], levels.astype(np.int64)), weights)
    # Weights that differ by rounding alone must not decide.
    top = votes.max(axis=1, keepdims=True)
    winner: Array = np.argmax(votes >= top * (1 - 1e-9), axis=1).astype(np.float64)
    return winner


def _weighted_median(levels: Array, weights: Array) -> Array:
    order = np.argsort(levels, axis=1, kind="stable")
    ranked = np.take_along_axis(levels, order, axis=1)
    total = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    half = total[:, -1:] / 2 * (1 - 1e-9)
    # Padding has weight 0, so a position reached by weight alone is never padding.
    first = np.argmax((total >= half) & (total > 0), axis=1)
    median: Array = np.take_along_axis(ranked, first[:, None], axis=1)[:, 0]
    return median
