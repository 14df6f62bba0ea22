"""Risk sets by knots of time: with what rows count in the sums that are opened.

With ``H0`` the cumulative baseline hazard, the log likelihood of times t and events d is, with
``eta = x' beta``,

    sum over i of d_i (eta_i + log h0(t_i)) - H0(t_i) exp(eta_i).

Breslow's ``H0`` jumps at event times s. Where it is free at each, the maximum over it is Cox's
partial likelihood (Breslow, 1974). Here the jumps are those of the estimate without columns
(Nelson, 1972; Aalen, 1978), ``c_s / m_s`` of c_s events and m_s samples at risk, times a function
of time that is linear between K knots: ``sum over k of lambda_k phi_k(s)``, with phi_k the hat
function of knot k. Then ``H0(t) = sum over k of lambda_k E_k(t)`` with ``E_k(t)`` the sum of
``phi_k(s) c_s / m_s`` over s up to t, and K sums over samples,

    S_k = sum over i of E_k(t_i) exp(eta_i),

determine the lambda_k: they maximise ``sum over s of c_s log(sum over k of lambda_k phi_k(s)) - sum
over k of lambda_k S_k``. With a knot at each event time this is Cox's likelihood, and lambda_k is
``c_k / S_k``; with few knots, the mean of exp(eta) over the risk set is taken as smooth in time.

Of c_s events at one time each comes before some others (Efron, 1977): samples that have theirs at s
count there by ``(c_s + 1) / (2 c_s)``, the mean share of them at risk, in m_s and in E_k.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError

_STEPS = 100
_EXACT = 1e-12
"""Of the number of events: how much of the likelihood over lambda may be left."""


@dataclass(frozen=True)
class RiskSets:
    """What the label holder knows of times, events and strata."""

    exposure: Array  # (n_knots, n): E_k of each sample
    event: Flags  # (n,)
    rank: Array  # (n,): of each event's time, less the mean of all events; 0 without an event
    hats: Array  # (n_times, n_knots): phi_k at each event time, by stratum
    count: Array  # (n_times,): c_s
    time: Array  # (n_times,): s
    jump: Array  # (n_times,): ``c_s / m_s``
    ranks: Array  # (n_times,): rank of s, less the mean of all events
    stratum: Indices  # (n_times,)
    last: Indices  # (n,): of each sample, the last of these times up to its own; -1 before all
    null: float  # Log partial likelihood without columns

    @property
    def is_exact(self) -> bool:
        """Whether each event time is a knot, so that the likelihood is Cox's."""
        return len(self.time) == len(self.exposure)

    @property
    def n_events(self) -> float:
        """How many there are."""
        return float(self.count.sum())

    def vectors(self, fewest: int) -> Array:
        """Return what columns are multiplied with, (n, 2 or 3).

        Events; the events expected without columns; events by rank of their time, unless nearly all
        are at one time.
        """
        found = [self.event, self.exposure.sum(axis=0)]
        if len(self.count) > 1 and self.n_events - self.count.max() >= fewest:
            found.append(self.rank / np.abs(self.rank).max())
        return np.stack(found, axis=1).astype(np.float64)

    def levels(self, sums: Array) -> Array:
        """Return the lambda_k, given the S_k, both of shape (n_knots,), by damped Newton steps."""
        levels = (self.count @ self.hats) / sums
        for _ in range(0 if self.is_exact else _STEPS):
            share = self.hats / (self.hats @ levels)[:, None]
            gradient = self.count @ share - sums
            curvature = (share.T * self.count) @ share
            step = np.linalg.solve(curvature, gradient)
            decrement = float(np.sqrt(max(float(gradient @ step), 0.0)))
            if decrement**2 < _EXACT * self.n_events:
                break
            # With counts of 1 or more the function is self-concordant: so far is safe.
            levels = levels + step / (1.0 + decrement)
        return np.asarray(levels)

    def log_likelihood(self, events_fit: float, sums: Array) -> float:
        """Return the log partial likelihood, given the sum of eta over events, and the S_k."""
        levels = self.levels(sums)
        jumps = float(self.count @ np.log(self.hats @ levels))
        return self.null + events_fit + jumps - float(levels @ sums) + self.n_events

    def taken_by(self, levels: Array, columns: Array) -> Array:
        """Return what not knowing the lambda_k takes from the information.

        Shapes: columns (n_knots, n_columns): sums of ``E_k exp(eta) x``.
        """
        if self.is_exact:  # no matrix of all times is needed
            return np.asarray((columns.T * levels**2 / self.count) @ columns)
        share = self.hats / (self.hats @ levels)[:, None]
        curvature = (share.T * self.count) @ share
        return np.asarray(columns.T @ np.linalg.solve(curvature, columns))

    def baseline(self, sums: Array) -> pd.DataFrame:
        """Return the baseline by stratum and event time, of eta = 0."""
        jumps = self.hats @ self.levels(sums) * self.jump
        frame = pd.DataFrame({"stratum": self.stratum, "time": self.time, "hazard": jumps})
        frame["cumulative_hazard"] = frame.groupby("stratum")["hazard"].cumsum()
        frame["survival"] = np.exp(-frame["cumulative_hazard"])
        return frame.drop(columns="hazard")


def risk_sets(time: Array, event: Flags, stratum: Indices, most: int, fewest: int) -> RiskSets:
    """Choose at most about `most` knots, one at least for each stratum.

    Time is divided into intervals with a knot in the middle of each, in which at least `fewest`
    samples end. A combination of sums counts a sample by what it adds up to before the sample ends,
    a function that is not 0, but at single times, between two knots of it and never in one interval
    alone. So it is over all that end in some interval at least.

    Shapes: time, event, stratum (n,).
    """
    n, n_events = len(time), int(event.sum())
    if n_events < fewest:
        raise DataError(
            f"{n_events} events among the {n:,} samples of the fit; sums over fewer than {fewest} "
            "are not opened. Align more samples, or have every party lower 'min-rows' in its node "
            "config (simulate(min_rows=...))"
        )
    n_times = len(np.unique(np.stack([stratum, time])[:, event], axis=1).T)
    wanted = 0.0 if n_times <= most else n_events / most
    exposure, hats, null = [], [], 0.0
    last_of, n_before = np.full(n, -1, dtype=np.int64), 0
    columns: list[list[Array]] = []
    for h in np.unique(stratum).tolist():
        own = np.flatnonzero(stratum == h)
        times, count = np.unique(time[own][event[own]], return_counts=True)
        if not len(times):
            continue
        last = np.searchsorted(times, time[own], side="right") - 1
        last_of[own] = np.where(last >= 0, n_before + last, -1)
        n_before += len(times)
        at_risk = len(own) - np.searchsorted(np.sort(time[own]), times, side="left")
        at_risk = at_risk - (count - 1.0) / 2.0
        ending = np.bincount(last[last >= 0], minlength=len(times))
        hat = _hats(count, _cut(count, ending, wanted, fewest, h))
        jump = count / at_risk
        null -= float(count @ np.log(at_risk))
        upto = np.vstack([np.zeros(hat.shape[1]), np.cumsum(jump[:, None] * hat, axis=0)])
        exposure.append(np.zeros((hat.shape[1], n)))
        exposure[-1][:, own] = upto[last + 1].T
        ended = event[own]
        absent = ((count - 1.0) / (2.0 * count) * jump)[:, None] * hat
        exposure[-1][:, own[ended]] -= absent[last[ended]].T
        hats.append(hat)
        columns.append([count.astype(np.float64), times, jump, np.full(len(times), float(h))])
    counts, times, jumps, strata = (np.concatenate(one) for one in zip(*columns, strict=True))
    ranks = scipy.stats.rankdata(time[event])
    rank = np.zeros(n)
    rank[event] = ranks - ranks.mean()
    of_time = np.interp(times, np.sort(time[event]), np.sort(ranks)) - ranks.mean()
    at = np.cumsum([0, *(hat.shape[1] for hat in hats)])
    joined = np.zeros((len(counts), at[-1]))
    start = 0
    for k, hat in enumerate(hats):
        joined[start : start + len(hat), at[k] : at[k + 1]] = hat
        start += len(hat)
    return RiskSets(
        np.concatenate(exposure), event, rank, joined, counts, times, jumps, of_time,
        strata.astype(np.int64), last_of, null,
    )  # fmt: skip


def _cut(count: Indices, ending: Indices, events: float, fewest: int, stratum: int) -> Indices:
    """Return the interval of each event time of a stratum, of about so many events each.

    Shapes: count, ending (n_times,): events at each time, and samples that end there or before the
    next.
    """
    of_time, start = np.zeros(len(count), dtype=np.int64), 0
    for j in range(len(count)):
        here, rest = slice(start, j + 1), ending[j + 1 :].sum()
        if count[here].sum() >= events and ending[here].sum() >= fewest and rest >= fewest:
            of_time[j + 1 :] += 1
            start = j + 1
    if ending.sum() < fewest:
        raise DataError(
            f"stratum {stratum} has {int(ending.sum())} samples that end at an event or later; "
            f"sums over fewer than {fewest} are not opened. Merge strata, or have every party "
            "lower 'min-rows' in its node config (simulate(min_rows=...))"
        )
    return of_time


def _hats(count: Indices, of_time: Indices) -> Array:
    """Return hat functions of knots in the middle of intervals, by events; (n_times, n_knots)."""
    place = np.cumsum(count) - count / 2.0
    n_knots = int(of_time[-1]) + 1
    knots = np.bincount(of_time, place * count) / np.bincount(of_time, count)
    return np.stack([np.interp(place, knots, one) for one in np.eye(n_knots)], axis=1)
