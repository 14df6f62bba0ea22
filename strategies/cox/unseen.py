"""What is not seen of completed samples: hazards of those that are still at risk.

Of a sample that a party lacks, the columns are means ``x^`` given those of the others, about which
``x' beta`` varies as ``u ~ N(0, v)`` under a joint normal model. With ``H0`` the cumulative
baseline hazard and ``eta = x^' beta`` its probability to be event-free, and its hazard, are

    P(T > t) = E exp(-H0(t) exp(eta + u)) = exp(-m(eta + log H0(t))),
    h(t) = h0(t) exp(eta) g(eta + log H0(t)),   g(y) = m'(y) exp(-y),

so ``E[d - m | x^] = 0`` (Prentice, 1982, with the whole hazard in place of its start, where g is
``exp(v / 2)``). Parties evaluate sums of ``exp(eta)`` times the mean of g over the samples at risk.
What sums of ``exp(eta) g`` differ from these by follows from the times and events, which the server
knows, and the distribution of ``x^``: the difference is taken at its expectation given time and
event, eta being normal among the samples that the same parties hold. Where nothing is missing it is
0; where the model does not hold, it is off by a share of a difference.

Times are put into cells, so that all of this takes as long for a million samples as for a thousand.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.cox.risk_sets import RiskSets

_CELLS = 100
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_GRID = np.linspace(-30.0, 12.0, 2500)
_LARGEST = 6.0  # of the logarithm of a hazard: nobody is at risk beyond
_LEAST = 0.1
"""Of the sums of the samples at risk: what the difference leaves."""
_SMALL = 1e-9
"""Of the largest level: others are no smaller, nor below 0, as between knots they may be."""
_ROUNDS, _NEAR = 100, 1e-6
_REACHES = 0.3, 10.0
_STEP = 1e-2  # of derivatives, in standard deviations of a column


@dataclass(frozen=True)
class Completed:
    """What is known of the columns of completed samples, less their means over the fit.

    Units are those of the columns as offered.
    """

    unseen: Array  # (n_patterns, n_columns, n_columns): covariance about the means, by who holds
    mean: Array  # (n_patterns, n_columns): of the columns as completed, by who holds
    seen: Array  # (n_patterns, n_columns, n_columns): their covariance
    pattern: Indices  # (n,): of each sample of the fit

    def variance(self, beta: Array) -> float:
        """Return the largest one about a linear predictor."""
        return float(np.einsum("pij,i,j->p", self.unseen, beta, beta).max())


@dataclass(frozen=True)
class AtRisk:
    """Levels of the baseline and sums over knots, of the hazards of samples still at risk."""

    levels: Array  # (n_knots,)
    sums: Array  # (n_knots,)
    columns: Array  # (n_knots, n_columns)
    gained: float  # Sum of log g over events


@dataclass(frozen=True)
class _Spread:
    """The linear predictors of the samples that the same parties hold, at some coefficients."""

    variance: float  # v
    eta: Array  # (n_nodes,)
    moved: Array  # (n_nodes,): eta less its mean
    mean: Array  # (n_columns,)
    along: Array  # (n_columns,): what columns rise by with eta
    rest: Array  # (n_columns, n_columns): their covariance given eta
    survived: Array  # (n_grid,): m
    slope: Array  # (n_grid,): m'

    @classmethod
    def of(cls, beta: Array, unseen: Array, mean: Array, seen: Array) -> "_Spread":
        """Return that of one pattern; arguments as the fields of `Completed`."""
        variance, spread = float(beta @ unseen @ beta), max(float(beta @ seen @ beta), 1e-300)
        along = seen @ beta / spread
        hazard = np.exp(np.minimum(_GRID[:, None] + np.sqrt(variance) * _NODES, _LARGEST))
        left = np.exp(-hazard)
        total = np.maximum(left @ _WEIGHTS, 1e-300)
        eta = float(mean @ beta) + np.sqrt(spread) * _NODES
        slope = (hazard * left) @ _WEIGHTS / total
        rest = seen - np.outer(along, along) * spread
        return cls(
            variance, eta, eta - float(mean @ beta), mean, along, rest, -np.log(total),
            np.maximum(slope, 1e-300),
        )  # fmt: skip

    def of_ends(self, cumulative: Array) -> tuple[Array, Array]:
        """Return m, and m', of samples that end; shape (n_cells, n_nodes)."""
        y = np.log(cumulative)[:, None] + self.eta
        return np.interp(y, _GRID, self.survived), np.interp(y, _GRID, self.slope)

    def columns(self, values: Array) -> Array:
        """Return sums of columns times values; values (n, n_nodes), returns (n, n_columns)."""
        return np.outer(values.sum(axis=1), self.mean) + np.outer(values @ self.moved, self.along)

    def products(self, values: Array) -> Array:
        """Return sums of products of two columns times values (n_nodes,)."""
        columns = self.mean + np.outer(self.moved, self.along)
        return np.asarray(values.sum() * self.rest + columns.T @ (values[:, None] * columns))


class UnseenHazards:
    """Corrects sums over samples at risk for what is not seen of some."""

    def __init__(self, completed: Completed, risk: RiskSets) -> None:
        self._completed, self._risk = completed, risk
        self._cell = cell = _cells(risk.stratum, _CELLS)
        n_cells = int(cell[-1]) + 1
        self._jumps = np.zeros((n_cells, risk.hats.shape[1]))  # of E_k in each cell
        np.add.at(self._jumps, cell, risk.hats * risk.jump[:, None])
        stratum = np.zeros(n_cells, dtype=np.int64)
        stratum[cell] = risk.stratum
        # Samples that end in a cell have been at risk in half of it, and all before.
        self._before = np.tril(stratum[:, None] == stratum) - 0.5 * np.eye(n_cells)
        n_patterns, own = len(completed.unseen), risk.last >= 0
        self._ending = np.zeros((n_patterns, 2, n_cells))  # samples, by whether they have an event
        at = completed.pattern[own], risk.event[own].astype(np.int64), cell[risk.last[own]]
        np.add.at(self._ending, at, 1.0)
        lacking = np.einsum("pii->p", completed.unseen) > 0.0
        self._patterns = np.flatnonzero(lacking & (self._ending.sum(axis=(1, 2)) > 0.0)).tolist()

    def exposure(self, beta: Array, levels: Array) -> tuple[Array, Array]:
        """Return what each sample counts in sums over knots, and rates that it was made with.

        Rates are the mean of g over samples at risk, so that little is left to expectations.

        Shapes: levels (n_knots,); returns (n_knots, n) and (n_patterns, n_cells).
        """
        cumulative = self._cumulative(levels)
        out, rates = self._risk.exposure.copy(), np.ones(self._ending.shape[::2])
        for p in self._patterns:
            spread = self._spread(p, beta)
            survived, slope = spread.of_ends(cumulative)
            ends = (
                n[:, None] * _given(survived, slope, bool(e)) for e, n in enumerate(self._ending[p])
            )
            at_risk = self._before.T @ np.sum(list(ends), axis=0)
            hazards = (at_risk * slope).sum(axis=1) / cumulative
            rates[p] = hazards / np.maximum(at_risk @ np.exp(spread.eta), 1e-300)
            rows = (self._completed.pattern == p) & (self._risk.last >= 0)
            upto = self._before @ (self._jumps * rates[p][:, None])
            out[:, rows] = upto[self._cell[self._risk.last[rows]]].T
        return out, rates

    def of(
        self, beta: Array, sums: Array, columns: Array, rates: Array, levels: Array | None = None
    ) -> AtRisk:
        """Return what was evaluated with some rates, with the hazards of samples at risk.

        Shapes: sums (n_knots,); columns (n_knots, n_columns); rates: of `exposure`; levels
        (n_knots,): from which to start.
        """
        spreads = {p: self._spread(p, beta) for p in self._patterns}
        levels = self._risk.levels(sums) if levels is None else levels
        levels = np.maximum(levels, _SMALL * levels.max())
        last, reach = np.zeros_like(sums), 1.0
        for _ in range(_ROUNDS):
            changes, less, gained = self._changes(spreads, levels, rates)
            at_risk = np.maximum(sums + less, _LEAST * sums)
            new = self._risk.levels(at_risk)
            step = np.log(np.maximum(new, _SMALL * new.max()) / levels)
            turn = step - last
            if last.any() and turn.any():  # Aitken's, of vectors
                reach = float(np.clip(-reach * (last @ turn) / (turn @ turn), *_REACHES))
            last, levels = step, levels * np.exp(reach * step)
            if np.abs(step).max() < _NEAR:
                break
        more = np.zeros_like(columns)
        for p, change in changes.items():
            more += self._jumps.T @ spreads[p].columns(change)
        return AtRisk(levels, at_risk, columns + more, gained)

    def _changes(
        self, spreads: dict[int, _Spread], levels: Array, rates: Array
    ) -> tuple[dict[int, Array], Array, float]:
        """Return what hazards change by, by pattern, (n_cells, n_nodes); sums; and log g."""
        cumulative = self._cumulative(levels)
        changes, less, gained = {}, np.zeros(len(levels)), 0.0
        for p, spread in spreads.items():
            survived, slope = spread.of_ends(cumulative)
            ends = [_given(survived, slope, event) for event in (False, True)]
            given = sum(n[:, None] * own for n, own in zip(self._ending[p], ends, strict=True))
            hazard = slope / cumulative[:, None]  # exp(eta) g
            evaluated = rates[p][:, None] * np.exp(spread.eta)
            changes[p] = (self._before.T @ given) * (hazard - evaluated)
            less += self._jumps.T @ changes[p].sum(axis=1)
            log_g = np.log(hazard) - spread.eta
            gained += float(self._ending[p, 1] @ (ends[1] * log_g).sum(axis=1))
        return changes, less, gained

    def curvature(
        self, beta: Array, sums: Array, columns: Array, products: Array, levels: Array, rates: Array
    ) -> Array:
        """Return what scores fall by with coefficients; (n_columns, n_columns).

        Shapes: sums, columns: as evaluated; products (n_columns, n_columns): of columns, weighted
        by hazards, as evaluated; levels (n_knots,): of the baseline; rates: of `exposure`.
        """
        out = products.copy()
        for j, size in enumerate(self._steps()):
            if not size:
                continue
            step = np.zeros(len(beta))
            step[j] = size
            fitted = []
            for sign in (1.0, -1.0):
                near = beta + sign * step
                moved = sums + sign * columns @ step
                found = self.of(near, moved, columns, rates, levels)
                fitted.append(found.levels @ found.columns)
            out[:, j] += (fitted[0] - fitted[1]) / (2.0 * size)
        return out

    def spread(self, beta: Array, levels: Array, rates: Array) -> Array:
        """Return what scores vary by, beyond products as evaluated; (n_columns, n_columns).

        The score of such a sample is ``x^ (d - e)``, e being what was evaluated, less what
        ``x^ (m - e)`` is expected to be.
        """
        out = np.zeros((len(beta), len(beta)))
        cumulative = self._cumulative(levels)
        for p in self._patterns:
            spread = self._spread(p, beta)
            survived, slope = spread.of_ends(cumulative)
            evaluated = np.outer(
                self._before @ (self._jumps @ levels * rates[p]), np.exp(spread.eta)
            )
            for event, n in enumerate(self._ending[p]):
                given = _given(survived, slope, bool(event))
                score = spread.columns(given * (event - evaluated))
                change = spread.columns(given * (survived - evaluated))
                square = (event - evaluated) ** 2 - evaluated
                across = score.T @ (n[:, None] * change)
                out += spread.products(n @ (given * square))
                out += change.T @ (n[:, None] * change) - across - across.T
        return out

    def _spread(self, pattern: int, beta: Array) -> _Spread:
        own = self._completed
        return _Spread.of(beta, own.unseen[pattern], own.mean[pattern], own.seen[pattern])

    def _cumulative(self, levels: Array) -> Array:
        """Return the baseline where samples end, (n_cells,)."""
        return np.asarray(self._before @ (self._jumps @ levels))

    def _steps(self) -> list[float]:
        whole = (self._completed.seen + self._completed.unseen).mean(axis=0)
        size = np.sqrt(np.maximum(np.diag(whole), 0.0))
        return [_STEP / float(one) if one > 0.0 else 0.0 for one in size]


def _given(survived: Array, slope: Array, event: bool) -> Array:
    """Return the distribution of eta given when samples end, and whether by an event."""
    likelihood = (np.log(slope) if event else 0.0) - survived
    weight = _WEIGHTS * np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def _cells(stratum: Indices, most: int) -> Indices:
    """Return the cell of each event time; times are in order within strata, (n_times,)."""
    width = max(-(-len(stratum) // most), 1)
    cell = np.zeros(len(stratum), dtype=np.int64)
    start = 0
    for h in dict.fromkeys(stratum.tolist()):
        own = np.flatnonzero(stratum == h)
        cell[own] = start + np.arange(len(own)) // width
        start = int(cell[own[-1]]) + 1
    return cell
