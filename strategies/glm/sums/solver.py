"""The server half of sharing ADMM: all values of lambda side by side, one round an iteration.

Tang, Feng, Li and Wang, Algorithm 4 (VFL-GLM-VS). With ``S = sum of X_k beta_k``, the parties step
from the common ``gamma + phi (S - eta)`` (4.4), the server solves for ``eta`` and the intercept
(4.5) and moves the multiplier (4.6). What differs from the paper, and why:

* *Curvature.* In (4.4) as printed every party corrects the whole common residual by itself, so
  that K correlated parties overshoot it K-fold. Here the quadratic around the last coefficients
  weighs ``tau phi``, where ``tau`` bounds the largest eigenvalue of the sum of the projections on
  the parties' columns: K at first (Boyd et al., 2011, Section 7.3), later what a Lanczos iteration
  finds, whose vectors ride with the first rounds (proximal Jacobian ADMM: Deng et al., 2017).
* *Balance.* ``phi`` follows primal and dual residuals, for each fit on its own (Boyd et al.,
  Section 3.4.1), and steps are over-relaxed.
* *Stopping.* The paper's tolerances hold early where ``phi`` is badly chosen. A fit that meets
  them must also meet the optimality (KKT) conditions; the test rides with its next step.
* *Combination.* Every few rounds a fit goes on from the best combination of its last iterates
  (`acceleration`).
* *LLA.* Weights are made again, by the parties alone, whenever a fit has met the tolerances.

A fit is one value of lambda. A fit that has ended is no longer sent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.glm.lambda_path import information_criterion
from strategies.glm.penalties import CONCAVE
from strategies.glm.sums.acceleration import RECENT, Accelerator, best_combination
from strategies.glm.sums.block import Request
from strategies.glm.sums.fits import CONVERGED, EXHAUSTED, PASSED_OVER, SEPARATED, Fits, Settings
from strategies.glm.sums.proximal import proximal_step
from strategies.glm.sums.spectrum import Lanczos
from strategies.linear.families import Binomial, Family

Exchange = Callable[[Request], dict[str, Array]]

_RELAXATION = 1.6
_BALANCED_EVERY, _BALANCED_UNTIL = 3, 90
_IMBALANCE = 2.0
_PROBES = 8
_EARLY = 10.0  # tangents need not be drawn at exact estimates
_HOPELESS = 2.0  # a fit this many logarithms of n behind the best in BIC is given up
_EXTREME = 30.0  # a linear predictor of 30 is a probability of 1 - 1e-13


class Solver:
    """Iterates all fits until each is optimal.

    Shapes: y (n_samples,): labels; gaussian ones standardised.
    """

    def __init__(
        self,
        family: Family,
        y: Array,
        n_lambdas: int,
        n_parties: int,
        n_columns: int,
        settings: Settings,
        exchange: Exchange,
        seed: int = 0,
        notify: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.family, self.settings, self.exchange = family, settings, exchange
        self.y = y[:, None]
        self.n_columns = n_columns
        self.notify = notify
        n, start = len(y), np.zeros(n_lambdas)
        if settings.intercept:
            start += family.link(float(y.mean()))
        self.eta = np.tile(start, (n, 1))
        self.gamma = family.mean(self.eta) - self.y
        spread = float(family.variance(self.eta[:, :1]).mean())
        self.phi = np.full(n_lambdas, spread)
        self.scale = float(np.sqrt(np.mean(self.gamma[:, 0] ** 2))) or 1.0
        self.fits = Fits(
            np.zeros((n, n_lambdas)), start, np.full(n_lambdas, -1), np.full(n_lambdas, np.inf),
            np.zeros(n_lambdas, dtype=np.int64), np.zeros(n_lambdas, dtype=np.int64),
            [EXHAUSTED] * n_lambdas,
        )  # fmt: skip
        stages = settings.lla_steps if settings.penalty in CONCAVE else 0
        self.stages = np.full(n_lambdas, stages)
        self.tightness = np.ones(n_lambdas)
        self.tau = float(n_parties)
        self.accelerator = Accelerator(n_lambdas)
        self.bic = np.full(n_lambdas, np.nan)
        self._last = np.zeros(0, dtype=np.int64)
        probing = n_parties > 1 and not settings.fixed
        self.lanczos = Lanczos(n, seed) if probing else None

    @property
    def gradient(self) -> Array:
        """The residual ``psi'(eta) - y`` at the start, shape (n_samples,)."""
        return np.asarray(self.gamma[:, 0])

    def run(self) -> Fits:
        """Iterate."""
        fits, active = self.fits, np.arange(self.fits.fit.shape[1])
        reweighted = checked = np.zeros(0, dtype=np.int64)
        for number in range(1, self.settings.max_iter + 1):
            combined, how = self._combine(np.setdiff1d(active, [*reweighted, *checked]))
            sums = self._round(active, reweighted, checked, combined, how)
            passed = self._judge(checked, sums)
            met = self._move(active, sums["fit"], number)
            fits.rounds[passed] = number
            hopeless = self._hopeless(active)
            for fit in hopeless:
                fits.outcomes[fit], fits.rounds[fit] = PASSED_OVER, number
            lost = self._separated(active)
            for fit in lost:
                fits.outcomes[fit], fits.rounds[fit] = SEPARATED, number
            self._note(number, active, checked)
            active = active[fits.rounds[active] == 0]
            if not len(active):
                break
            waiting = self._due(active, number) if self.settings.fixed else met
            waiting = waiting[fits.rounds[waiting] == 0]
            reweighted = waiting[self.stages[waiting] > 0]
            self.stages[reweighted] -= 1
            if not self.settings.fixed:
                checked = np.setdiff1d(waiting, reweighted)
            if number % _BALANCED_EVERY == 0 and number <= _BALANCED_UNTIL:
                self._balance(active)
        if self.settings.intercept:
            fits.level = self.family.level(self.y, fits.fit, fits.level)
        return fits

    def _due(self, active: Indices, number: int) -> Indices:
        """Return fits to be reweighted when rounds are fixed: all, at even distances."""
        distance = max(self.settings.max_iter // (self.settings.lla_steps + 1), 1)
        return active if number % distance == 0 else active[:0]

    # -- one round ----

    def _combine(self, waiting: Indices) -> tuple[Indices, Array]:
        """Replace fits by the best combination of their last iterates, where that pays."""
        found, weights = [], []
        if not self.settings.fixed and self._last.size:
            at = np.searchsorted(self._last, waiting)
            sizes = self.primal / np.maximum(self.primal_scale, 1e-300)
            sizes = sizes + self.dual / np.maximum(self.dual_scale, 1e-300)
            for fit in self.accelerator.due(waiting, sizes[at]):
                fits, penalties = self.accelerator.iterates(fit)
                level = float(self.fits.level[fit])
                best = best_combination(
                    self.family, self.y[:, 0], fits, penalties, level, self.settings.intercept
                )
                if best is None:
                    continue
                found.append(fit)
                weights.append(best[0])
                self.fits.fit[:, fit], self.fits.level[fit] = fits @ best[0], best[1]
                self.eta[:, fit] = self.fits.fit[:, fit] + best[1]
                self.gamma[:, fit] = self.family.mean(self.eta[:, fit]) - self.y[:, 0]
        combined = np.array(found, dtype=np.int64)
        self.accelerator.combined(combined)
        return combined, np.array(weights).reshape(-1, RECENT).T

    def _round(
        self,
        active: Indices,
        reweighted: Indices,
        checked: Indices,
        combined: Indices,
        combination: Array,
    ) -> dict[str, Array]:
        fits, phi = self.fits, self.phi[active]
        gap = fits.fit[:, active] + fits.level[active] - self.eta[:, active]
        residual = np.zeros((0, 0))
        if len(checked):
            level = fits.level[checked]
            if self.settings.intercept:
                level = self.family.level(self.y, fits.fit[:, checked], level)
            residual = self.family.mean(fits.fit[:, checked] + level) - self.y
        probing = self.lanczos is not None and self.lanczos.steps < _PROBES
        request = Request(
            active,
            self.gamma[:, active] + phi * gap,
            self.tau * phi,
            reweighted,
            checked,
            residual,
            self.lanczos.probe if probing and self.lanczos is not None else np.zeros(0),
            self.settings.kkt_tol * self.scale,
            combined,
            combination,
        )
        sums = self.exchange(request)
        self.accelerator.forget(reweighted)
        if not self.settings.fixed:
            self.accelerator.keep(sums["fit"], sums["penalty"], active)
        if probing and self.lanczos is not None:
            self.lanczos.add(sums["projection"])
            if self.lanczos.steps == _PROBES:
                self.tau = min(self.tau, self.lanczos.bound)
        return sums

    def _judge(self, checked: Indices, sums: dict[str, Array]) -> Indices:
        """Return the fits that are optimal."""
        if not len(checked):
            return checked
        off = np.sqrt(np.maximum(sums["violation"], 0.0)) * self.settings.kkt_tol
        self.fits.violation[checked] = off
        self.fits.selected[checked] = sums["selected"]
        eta = self.fits.fit[:, checked] + self.fits.level[checked]
        self.bic[checked] = information_criterion(
            self.family, self.y[:, 0], eta, self.fits.selected[checked]
        )
        good = off <= self.settings.kkt_tol
        # The violation falls about in proportion to the residuals.
        share = self.settings.kkt_tol / np.maximum(off[~good], 1e-300)
        self.tightness[checked[~good]] *= np.clip(share, 0.1, 0.7)
        for fit in checked[good]:
            self.fits.outcomes[fit] = CONVERGED
        return checked[good]

    def _move(self, active: Indices, total: Array, number: int) -> Indices:
        """Take the steps (4.5) and (4.6); return the fits that meet the tolerances."""
        fits, phi = self.fits, self.phi[active]
        old_eta, old_level = self.eta[:, active], fits.level[active]
        relaxed = _RELAXATION * total + (1.0 - _RELAXATION) * (old_eta - old_level)
        multiplier = self.gamma[:, active]
        eta, level = proximal_step(
            self.family,
            self.y,
            relaxed + multiplier / phi,
            phi,
            old_eta,
            old_level,
            self.settings.intercept,
        )
        fits.fit[:, active], fits.level[active] = total, level
        self.eta[:, active] = eta
        multiplier = multiplier + phi * (relaxed + level - eta)
        self.gamma[:, active] = multiplier
        self.primal = np.linalg.norm(total + level - eta, axis=0)
        self.dual = phi * np.linalg.norm((eta - level) - (old_eta - old_level), axis=0)
        self.primal_scale = np.maximum(
            np.linalg.norm(total + level, axis=0), np.linalg.norm(eta, axis=0)
        )
        self.dual_scale = np.linalg.norm(multiplier, axis=0)
        # The dual residual and the multiplier are n_samples times the paper's.
        n, tol = len(eta), self.settings.tol * self.tightness[active]
        early = self.stages[active] > 0
        tol = np.where(early, _EARLY * tol, tol)
        met = (self.primal <= tol * (np.sqrt(n) + self.primal_scale)) & (
            self.dual <= tol * (np.sqrt(self.n_columns) + self.dual_scale)
        )
        found: Indices = active[met]
        first = found[(fits.tolerated[found] == 0) & (self.stages[found] == 0)]
        fits.tolerated[first] = number
        return found

    def _balance(self, active: Indices) -> None:
        """Move ``phi`` so that relative primal and dual residuals come alike."""
        kept = np.isin(self._last, active)
        primal = self.primal[kept] / np.maximum(self.primal_scale[kept], 1e-300)
        dual = self.dual[kept] / np.maximum(self.dual_scale[kept], 1e-300)
        ratio = np.maximum(primal, 1e-300) / np.maximum(dual, 1e-300)
        off = (ratio > _IMBALANCE) | (ratio < 1.0 / _IMBALANCE)
        self.phi[active] *= np.where(off, np.clip(np.sqrt(ratio), 0.5, 2.0), 1.0)

    def _hopeless(self, active: Indices) -> Indices:
        """Return fits that have met the tolerances, but whose BIC is far from the smallest."""
        done = np.array([outcome == CONVERGED for outcome in self.fits.outcomes])
        if not self.settings.by_bic or not done.any():
            return active[:0]
        limit = self.bic[done].min() + _HOPELESS * np.log(len(self.y))
        behind: Indices = active[(self.bic[active] > limit) & (self.fits.rounds[active] == 0)]
        return behind

    def _separated(self, active: Indices) -> Indices:
        """Return fits that tell all labels apart and grow, since nothing bounds them."""
        if not isinstance(self.family, Binomial) or self.settings.penalty == "lasso":
            return active[:0]
        predictor = self.fits.fit[:, active] + self.fits.level[active]
        apart = (np.where(self.y > 0, predictor, -predictor) > 0).all(axis=0)
        lost: Indices = active[apart & (np.abs(predictor).max(axis=0) > _EXTREME)]
        return lost

    def _note(self, number: int, active: Indices, checked: Indices) -> None:
        self._last = active
        entry = {
            "iteration": number,
            "active": len(active),
            "primal_residual": float((self.primal / np.maximum(self.primal_scale, 1e-12)).max()),
            "dual_residual": float((self.dual / np.maximum(self.dual_scale, 1e-12)).max()),
        }
        if len(checked):
            entry["kkt_violation"] = float(self.fits.violation[checked].max())
        self.fits.history.append(entry)
        if self.notify is not None:
            self.notify(entry)
