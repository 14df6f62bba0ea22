"""The server half of the iterations: which step next, and when to stop.

Every round, the parties move and the server sees the observed-data likelihood of where they are
now. A step that lowers it is mended before the next one is taken.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array
from flwr_vertical.results import Progress
from flwr_vertical.server import Total
from strategies.linear import Problem
from strategies.vfem.block import Movable
from strategies.vfem.expectation import EStep, NoisePrior, Patterns, couplings, profile

logger = logging.getLogger("flwr_vertical")


CONVERGED, EXHAUSTED, DIVERGED, STALLED = "converged", "max iterations", "diverged", "stalled"
_SHORTEST = 2.0**-10
_EXPLODED = 1e4
_FAST = 0.6
_PATIENCE = 10
SIGMA2_FLOOR = 1e-6
_NO_COUPLING = Movable(0.0, 0.0, 0.0)


@dataclass
class Settings:
    """How to iterate; see `VFEM`."""

    step: str
    learning_rate: float
    accelerate: bool
    intercept: bool
    max_iter: int
    tol: float
    noise_prior: float = 0.0


@dataclass
class Solver:
    """Iterates until it converges; afterwards the parties hold the estimates."""

    federation: Federation
    problem: Problem
    settings: Settings
    progress: Progress
    history: list[dict[str, Any]]  # Gets one entry for each round
    outcome: str = EXHAUSTED
    estep: EStep = field(init=False)
    _movable: list[Movable] = field(init=False)
    _restore: bool = False
    _groups_sent: bool = False
    _limit: float = 4.0
    _share: float = 1.0
    _taken: float = 1.0
    _successes: int = 0

    def __post_init__(self) -> None:
        self.patterns = Patterns.of(self.problem.mask)
        self._movable = [_NO_COUPLING] * len(self.federation.parties)

    # -- starting --------------------------------------------------------------------------

    def start_from_zero(self) -> None:
        """Set out from zero coefficients: what the parties would send is known, so no round."""
        parties = len(self.federation.parties)
        self._begin(0.0, np.zeros(parties), float(self.problem.total["margin"]))

    def start_from_least_squares(self, intercept: float) -> None:
        """Set out from coefficients that the parties hold; one round."""
        total = self.federation.sum("begin", {"from_least_squares": True}, shapes=self._shapes)
        self._begin(total["fit"], _explained(total, self.federation), float(total["margin"]))
        if self.settings.step == "gradient" and self.settings.intercept:
            e = self.estep
            shift = intercept - e.intercept
            self.estep = EStep(
                e.patterns, e.gap - shift, e.explained, intercept, e.sigma2, e.margin, e.prior
            )

    def _begin(self, fit: Any, explained: Array, margin: float) -> None:
        y = self.problem.y
        gap = y - fit
        center = float(y.mean()) if self.settings.intercept else 0.0
        if self.settings.step == "gradient":
            # The paper's initial values, whatever the coefficients.
            sigma2 = float(np.mean((y - y.mean()) ** 2))
            self.estep = EStep(
                self.patterns, gap - center, explained, center, sigma2, margin * len(y), self.prior
            )
        else:
            start = max(float(np.var(gap)) - float(explained.sum()), 0.1 * float(np.var(gap)))
            self.estep = self._profiled(gap, explained, margin, start)

    # -- iterating -------------------------------------------------------------------------

    def run(self) -> str:
        """Iterate; returns the outcome's name."""
        self.progress.total = None
        previous_step = False
        while self._rounds_left > 0:
            before = self.estep
            gained, lengths, full = self._improve()
            if self.outcome in (DIVERGED, STALLED):
                break
            if self._is_converged(before, lengths):
                self.outcome = CONVERGED
                break
            if self.settings.accelerate and previous_step and full:
                previous_step = not self._extrapolate(lengths)
            else:
                previous_step = full and gained
        return self.outcome

    def _improve(self) -> tuple[bool, Array, bool]:
        """Take one step, mended if it is no improvement.

        Shapes: returns (3,): lengths of the step before, of this one, of their difference.
        """
        estep = self.estep
        total = self._take(estep, self._movable, self._share)
        trial = self._evaluate(total, estep, self._share)
        self._log("step", trial, total)
        if self.settings.step == "gradient" and not self.settings.accelerate:
            # The paper's iteration, which takes every step as it comes.
            self._watch(trial)
            self.estep = trial
            return True, total["lengths"], True
        share, before = self._share, self._taken
        if not self._rises(trial, estep) and self._rounds_left > 1:
            # Half of it, and coupled by what the parties have just told of this step itself.
            share /= 2
            total = self._take(estep, self._movable, share, again=True)
            trial = self._evaluate(total, estep, share)
            self._log("taken again", trial, total)
        while not self._rises(trial, estep):
            share /= 2
            if share < _SHORTEST or self._rounds_left <= 1:
                self._give_up(estep, share)
                return False, total["lengths"], False
            total = self.federation.sum("shorten", {"share": 0.5}, shapes=self._shapes)
            trial = self._evaluate(total, estep, share)
            self._log("shortened", trial, total)
        self.estep = trial
        self._adapt(share)
        return True, total["lengths"] / share, share == before

    def _adapt(self, share: float) -> None:
        """Keep to a share that works: where parties are correlated, whole steps overshoot."""
        self._taken = share
        if share < self._share:
            self._share, self._successes = share, 0
            return
        self._successes += 1
        if self._successes >= _PATIENCE and share < 1.0:
            self._share, self._successes = min(1.0, 2.0 * share), 0

    def _extrapolate(self, lengths: Array) -> bool:
        """Try SQUAREM's extrapolation where it promises something; returns whether it was kept."""
        first, last, difference = lengths
        # Where steps shrink fast by themselves, an extrapolation costs a round and gains none.
        slow = last > _FAST * first and difference > 0
        # An extrapolation that is not kept is taken back with the next step: one must be left.
        if not slow or self._rounds_left < 2:
            return False
        length = float(first / difference)
        bound = length > self._limit
        length = min(length, self._limit)
        total = self.federation.sum("extrapolate", {"length": length}, shapes=self._shapes)
        trial = self._evaluate(total, self.estep)
        self._log("extrapolated", trial, total)
        if self._rises(trial, self.estep):
            self.estep = trial
            self._limit *= 4.0 if bound else 1.0
            return True
        self._limit = max(4.0, self._limit / 4.0)
        self._restore = True  # rides with the next step
        return False

    def _take(
        self, estep: EStep, movable: list[Movable], share: float, again: bool = False
    ) -> Total:
        """Send the E-step; the parties take their M-step and send their new fits. One round."""
        settings, names = self.settings, self.federation.parties
        r, sums = estep.r, estep.missing_sums()
        per_party: dict[str, dict[str, Any]] = {}
        for k, name in enumerate(names):
            s = sums[k]
            per_party[name] = {
                "r": r[~self.problem.mask[:, k]],
                "missing": np.array([s.r, s.r_squared, s.weight, s.weight_squared]),
            }
        arguments: dict[str, Any] = {"restore": self._restore, "share": share, "again": again}
        self._restore = False
        if settings.step == "gradient":
            arguments |= {"sigma2": estep.sigma2, "learning_rate": settings.learning_rate}
            return self.federation.sum(
                "gradient", arguments, per_party=per_party, shapes=self._shapes
            )
        moves = estep.sigma2 > self.floor
        for k, coupling in enumerate(couplings(estep, movable, settings.intercept, moves)):
            own = per_party[names[k]]
            own["coupling"] = np.array([coupling.mean_pull, coupling.variance_pull])
            if not self._groups_sent:
                own["group"] = self.patterns.group[~self.problem.mask[:, k]]
        self._groups_sent = True
        arguments["weight"] = 1.0 / estep.variance
        return self.federation.sum("scoring", arguments, per_party=per_party, shapes=self._shapes)

    def _evaluate(self, total: Total, before: EStep, share: float = 1.0) -> EStep:
        """Make the E-step where the parties are now; the server moves its own parameters, too."""
        explained = _explained(total, self.federation)
        if "mean_gap" in total.public[self.federation.parties[0]]:
            self._movable = [
                Movable(told["mean_gap"], told["variance_gap"], told["variance_gain"])
                for told in (total.public[name] for name in self.federation.parties)
            ]
        gap, margin = self.problem.y - total["fit"], float(total["margin"])
        if self.settings.step != "gradient":
            return self._profiled(gap, explained, margin, before.sigma2)
        intercept = before.intercept
        if self.settings.intercept:
            rate = self.settings.learning_rate
            intercept += share * rate * before.sigma2 * float(before.r.mean())
        sigma2 = before.sigma2 + share * (before.em_sigma2() - before.sigma2)
        return EStep(
            self.patterns,
            gap - intercept,
            explained,
            intercept,
            sigma2,
            margin * len(gap),
            self.prior,
        )

    def _profiled(self, gap: Array, explained: Array, margin: float, start: float) -> EStep:
        return profile(
            self.patterns,
            gap,
            explained,
            margin * len(gap),
            start=start,
            floor=self.floor,
            intercept=self.settings.intercept,
            prior=self.prior,
        )

    @property
    def prior(self) -> NoisePrior:
        """Prior of the noise variance."""
        spread = float(np.mean((self.problem.y - self.problem.y.mean()) ** 2))
        return NoisePrior(self.settings.noise_prior * self.problem.n_columns, 0.5 * spread)

    @property
    def floor(self) -> float:
        """Least noise variance: where hardly a sample is complete, the likelihood may want 0."""
        return SIGMA2_FLOOR * float(np.mean(self.problem.y**2))

    # -- judging ---------------------------------------------------------------------------

    @property
    def _rounds_left(self) -> int:
        return self.settings.max_iter - len(self.history)

    @property
    def resolution(self) -> float:
        """What the sums' resolution leaves uncertain of the log likelihood of a sample."""
        parties = len(self.federation.parties)
        digits = {"plain": 2.0**-50, "ckks": 2.0**-22}
        unit = digits.get(self.federation.aggregation, 2.0**-self.federation.fraction_bits)
        return 4.0 * unit * parties

    def _rises(self, trial: EStep, before: EStep) -> bool:
        n = self.patterns.n_samples
        change = (trial.objective - before.objective) / n
        return bool(change >= -self.resolution)

    def _is_converged(self, before: EStep, lengths: Array) -> bool:
        n = self.patterns.n_samples
        change = (self.estep.objective - before.objective) / n
        own = abs(self.estep.sigma2 - before.sigma2) / before.sigma2
        moved = float(lengths[1]) + own
        tol = self.settings.tol
        # A likelihood is flat at its top: a step of relative length tol changes it by tol^2.
        return bool(
            tol > 0 and moved <= tol + 8.0 * self.resolution and change <= tol + self.resolution
        )

    def _watch(self, trial: EStep) -> None:
        """Notice that the gradient iteration runs away, before its numbers overflow a sum."""
        level = float(np.mean(trial.gap**2)) / max(float(np.mean(self.problem.y**2)), 1e-300)
        if not np.isfinite(trial.log_likelihood) or level > _EXPLODED:
            self.outcome = DIVERGED

    def _give_up(self, estep: EStep, share: float) -> None:
        if share < _SHORTEST:
            self.outcome = STALLED
        self._back_to_base()
        self.estep = estep

    def _back_to_base(self) -> None:
        self.federation.sum("shorten", {"share": 0.0}, shapes=self._shapes)
        self._log("back", self.estep, None)

    def _log(self, kind: str, trial: EStep, total: Total | None) -> None:
        entry: dict[str, Any] = {
            "iteration": len(self.history) + 1,
            "kind": kind,
            "log_likelihood": trial.log_likelihood + self.constant,
            "sigma2": trial.sigma2 * self.problem.y_scale**2,
        }
        if total is not None:
            entry["change"] = float(total["lengths"][1])
        self.history.append(entry)
        self.progress.step(kind, log_likelihood=entry["log_likelihood"])

    @property
    def constant(self) -> float:
        """What the log likelihood lacks of that of the labels as given: 2 pi and their scale."""
        n, held = self.patterns.n_samples, self.patterns.n_observed
        sizes = np.array([len(self.problem.columns[name]) for name in self.federation.parties])
        values = n + float(held @ sizes)
        return float(-0.5 * values * np.log(2 * np.pi) - n * np.log(self.problem.y_scale))

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"fit": (self.patterns.n_samples,), "margin": (), "lengths": (3,)}


def _explained(total: Total, federation: Federation) -> Array:
    return np.array([float(total.public[name]["explained"]) for name in federation.parties])
