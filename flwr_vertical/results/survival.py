"""Times until an event, some of them censored, beside predicted hazards."""

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError


def read_times(labels: Array, span: float | None = None) -> tuple[Array, Flags, Indices]:
    """Return times, whether there was an event, and strata, all of shape (n_samples,).

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Times, negative where they were censored.
    span : float, optional
        So many times its stratum has been added to a time.

    Raises
    ------
    DataError
        If a time is 0.
    """
    if (labels == 0.0).any():
        raise DataError(
            "a time of 0 has no sign to say whether it was censored; labels of times are above 0 "
            "for events and below 0 for censored times (strategies.cox.survival_labels makes them)"
        )
    time, event = np.abs(labels), labels > 0.0
    stratum = np.zeros(len(labels), dtype=np.int64)
    if span:
        stratum = np.floor(time / span).astype(np.int64)
        time = time - span * stratum
    return time, event, stratum


def concordance_index(time: Array, event: Flags, stratum: Indices, risk: Array) -> float:
    """Return in which share of pairs the sample of larger risk ends first.

    Pairs are those of a stratum of which it is known which one ends first; equal risks count half
    (Harrell, Lee and Mark, 1996).

    Parameters
    ----------
    time, event, stratum : arrays of shape (n_samples,)
        As of `read_times`.
    risk : array of shape (n_samples,)
        The larger, the sooner the event is expected.

    Returns
    -------
    float
        From 0 to 1, 0.5 by chance; NaN if there is no such pair.
    """
    rank = np.unique(risk, return_inverse=True)[1]
    pairs = right = equal = 0
    for own in (np.flatnonzero(stratum == s) for s in np.unique(stratum)):
        # Who is censored at the time of an event ends after it.
        own = own[np.lexsort((rank[own], ~event[own], time[own]))]
        found, same = _pairs_after(rank[own], event[own])
        ended = own[event[own]]
        pairs += int((len(own) - 1 - np.flatnonzero(event[own])).sum())
        # Of events at the same time none is the first; sorted by rank, they count as no hit.
        pairs -= _within(time[ended])
        right += found
        equal += same - _within(np.column_stack([time[ended], rank[ended]]))
    return (right + equal / 2.0) / pairs if pairs else float("nan")


def _pairs_after(rank: Indices, counted: Flags) -> tuple[int, int]:
    """Return how many later ranks are below the counted ones, and how many are equal to them."""
    n, place, size, below, equal = len(rank), np.arange(len(rank)), 1, 0, 0
    width = int(rank.max(initial=0)) + 1
    while size < n:
        # Of two neighbouring blocks the ranks of the second one, block by block.
        block = place // (2 * size) * width
        first = place // size % 2 == 0
        later, own = np.sort((block + rank)[~first]), first & counted
        begin = np.searchsorted(later, block[own])
        low = np.searchsorted(later, (block + rank)[own])
        high = np.searchsorted(later, (block + rank)[own], side="right")
        below, equal = below + int((low - begin).sum()), equal + int((high - low).sum())
        size *= 2
    return below, equal


def _within(values: Array) -> int:
    """Return how many pairs of rows are equal."""
    count = np.unique(values, axis=0, return_counts=True)[1]
    return int((count * (count - 1) // 2).sum())


def survival_curve(time: Array, event: Flags) -> tuple[Array, Array]:
    """Return times of events, and which share survives them (Kaplan and Meier, 1958)."""
    at = np.unique(time[event])
    risk = len(time) - np.searchsorted(np.sort(time), at)
    ends = np.sort(time[event])
    died = np.searchsorted(ends, at, side="right") - np.searchsorted(ends, at)
    return at, np.asarray(np.cumprod(1.0 - died / risk))
