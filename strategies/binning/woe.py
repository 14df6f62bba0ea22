"""Weight of evidence and information value by bin, merged bins, and stability of a population.

    WoE_b = ln((n_b - e_b) / (N - E)) - ln(e_b / E)        (Siddiqi, 2006, chapter 6)
    IV = sum_b ((n_b - e_b) / (N - E) - e_b / E) WoE_b
    PSI = sum_b (p_b - q_b) ln(p_b / q_b)

``n_b`` rows of a bin have ``e_b`` events, of N and E in all: WoE is positive where events are rarer
than on average. Where one of two numbers that are compared is 0, and there alone, it gets 0.5, and
the other as much more as makes 0 of a bin without rows: half of the ratio of all. So few rows
without an event are never evidence of events, however rare these are.
"""

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices


def weight_of_evidence(n: Array, events: Array) -> Array:
    """Return the weight of evidence of each bin.

    Shapes: n, events (n_bins,): rows, and those of them with the event; returns (n_bins,): 0 of a
    bin without rows, and where there are no two kinds of labels.
    """
    return _log_ratio(n - events, events, n > 0)


def information_value(n: Array, events: Array) -> Array:
    """Return each bin's part of the information value; shapes as of `weight_of_evidence`."""
    return _shares(n - events, events) * weight_of_evidence(n, events)


def stability_index(n: Array, others: Array) -> float:
    """Return the population stability index of two sets of rows.

    Shapes: n, others (n_bins,): rows of each set by bin.
    """
    return float((_shares(n, others) * _log_ratio(n, others, n + others > 0)).sum())


def _shares(first: Array, second: Array) -> Array:
    """Return by how much the share of the first set in each bin is larger than the second's."""
    first_all, second_all = float(np.sum(first)), float(np.sum(second))
    if not first_all or not second_all:
        return np.zeros(len(first))
    return np.asarray(first / first_all - second / second_all)


def _log_ratio(first: Array, second: Array, present: Flags) -> Array:
    """Return logs of ratios of shares, 0 where no row is."""
    first_all, second_all = float(np.sum(first)), float(np.sum(second))
    if not first_all or not second_all:
        return np.zeros(len(first))
    # Shares of half a row, of the set that has none there.
    more = np.where(first == 0, 0.5 / first_all, np.where(second == 0, 0.5 / second_all, 0.0))
    a, b = (
        np.where(present, part / whole + more, 1.0)
        for part, whole in ((first, first_all), (second, second_all))
    )
    ratio = np.log(a) - np.log(b)
    return np.asarray(np.where(present, ratio, 0.0))


def merge_bins(
    n: Array, events: Array, n_proper: int, nominal: bool, share: float, least_events: int = 1
) -> Indices:
    """Merge bins until weights of evidence are monotone and bins are large enough.

    Neighbours that violate the order are pooled (Ayer et al., 1955), for rates that rise and for
    rates that fall; the one of larger information value stays. Nominal bins have no order; they are
    merged in that of their events' rate. Of bins that are too small, below the `share` of all rows
    or with fewer than `least_events` rows with the event or without it, the smallest one joins the
    neighbour whose rate is nearer.

    Shapes: n, events (n_bins,): rows, and those of them with the event; the first `n_proper` bins
    are ranges of numbers, or levels, and others (missing cells, special values) stay by themselves;
    returns (n_bins,): number of each merged bin.
    """
    order = np.arange(n_proper)
    if nominal:
        rate = events[:n_proper] / np.maximum(n[:n_proper], 1)
        order = np.argsort(rate, kind="stable")
    needed = share * float(np.sum(n))
    best: list[list[int]] = []
    value = -1.0
    for sign in (1.0, -1.0):
        blocks = _large_enough(_monotone(n, events, order, sign), n, events, needed, least_events)
        rest = [[b] for b in range(n_proper, len(n))]
        sums = [np.array([part[own].sum() for own in blocks + rest]) for part in (n, events)]
        found = float(information_value(*sums).sum())
        if found > value + 1e-12:
            best, value = blocks + rest, found
    merged = np.empty(len(n), dtype=np.int64)
    for number, own in enumerate(best):
        merged[own] = number
    return merged


def _monotone(n: Array, events: Array, order: Indices, sign: float) -> list[list[int]]:
    """Pool adjacent violators; `sign` 1 for rates that rise, -1 for rates that fall."""
    blocks: list[list[int]] = []
    for b in order.tolist():
        blocks.append([b])
        while len(blocks) > 1 and sign * _rate(n, events, blocks[-2]) >= sign * _rate(
            n, events, blocks[-1]
        ):
            last = blocks.pop()
            blocks[-1] += last
    return blocks


def _large_enough(
    blocks: list[list[int]], n: Array, events: Array, needed: float, least: int
) -> list[list[int]]:
    while len(blocks) > 1:
        few = [
            (n[own].sum(), i)
            for i, own in enumerate(blocks)
            if n[own].sum() < needed
            or min(events[own].sum(), n[own].sum() - events[own].sum()) < least
        ]
        if not few:
            break
        i = min(few)[1]
        rate = _rate(n, events, blocks[i])
        near = [j for j in (i - 1, i + 1) if 0 <= j < len(blocks)]
        j = min(near, key=lambda j: abs(_rate(n, events, blocks[j]) - rate))
        first, second = min(i, j), max(i, j)
        blocks[first : second + 1] = [blocks[first] + blocks[second]]
    return blocks


def _rate(n: Array, events: Array, own: list[int]) -> float:
    return float(events[own].sum() / max(n[own].sum(), 1.0))
