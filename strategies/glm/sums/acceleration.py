"""Fewer rounds: the best affine combination of a fit's last iterates.

While no coefficient changes its sign, the penalty is linear in the coefficients, so that the
objective of a combination ``sum of c_i beta_i`` with ``sum of c_i = 1`` is the loss at ``sum of c_i
S_i`` plus ``sum of c_i P_i``: the server knows the fits ``S_i``, the parties tell the penalties
``P_i`` (one private sum), and a few Newton steps in as many dimensions as there are iterates find
the best one. The parties combine their coefficients in the same way, and ADMM goes on from there
with the multiplier of that point. It is what conjugate gradients are to gradient steps, restarted.

Where signs do change the combination may be worse than promised. A fit whose residuals have not
halved between two combinations therefore waits twice as long for the next: plain ADMM has the last
word.
"""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.linear.families import Family

RECENT = 4
"""How many iterates are combined, and kept by the parties."""

_STEPS = 12
_LARGEST = 1e3
_HALVED = 0.5


def best_combination(
    family: Family, y: Array, fits: Array, penalties: Array, level: float, intercept: bool
) -> tuple[Array, float] | None:
    """Return the best combination of iterates and its intercept, None if there is no better.

    Shapes: y (n_samples,); fits (n_samples, n_iterates): without intercept, the latest last;
    penalties (n_iterates,); returns (n_iterates,): with sum 1.
    """
    moves = fits[:, :-1] - fits[:, -1:]
    slopes = penalties[:-1] - penalties[-1]
    if intercept:
        moves = np.column_stack([moves, np.ones(len(y))])
        slopes = np.append(slopes, 0.0)
    units = np.maximum(np.sqrt(np.mean(moves**2, axis=0)), 1e-300)
    moves, slopes = moves / units, slopes / units
    start = fits[:, -1] + level
    shares = np.zeros(moves.shape[1])
    for _ in range(_STEPS):
        mean, curvature = family.moments(start + moves @ shares)
        gradient = moves.T @ (mean - y) / len(y) + slopes
        hessian = moves.T @ (moves * curvature[:, None]) / len(y)
        values, vectors = np.linalg.eigh(hessian)
        kept = values > 1e-10 * max(values[-1], 1e-300)
        step = vectors[:, kept] @ ((vectors[:, kept].T @ gradient) / values[kept])
        shares = shares - step
        if not np.isfinite(shares).all():
            return None
        if np.abs(step).max(initial=0.0) <= 1e-8 * (1.0 + np.abs(shares).max(initial=0.0)):
            break
    eta = start + moves @ shares
    here = float(np.mean(family.cumulant(start) - y * start))
    there = float(np.mean(family.cumulant(eta) - y * eta)) + float(slopes @ shares)
    shares = shares / units
    weights = np.append(shares[: fits.shape[1] - 1], 1.0 - shares[: fits.shape[1] - 1].sum())
    if there >= here or np.abs(weights).max() > _LARGEST:
        return None
    return weights, level + float(shares[-1]) * intercept


class Accelerator:
    """Keeps the last iterates of every fit, and says when and how they are combined."""

    def __init__(self, n_lambdas: int) -> None:
        self._fits: list[Array] = []
        self._penalties: list[Array] = []
        self._age = np.zeros(n_lambdas, dtype=np.int64)
        self._wait = np.full(n_lambdas, RECENT)
        self._last = np.full(n_lambdas, np.inf)

    def keep(self, fits: Array, penalties: Array, active: Indices) -> None:
        """Keep an iterate.

        Shapes: fits (n_samples, n_active); penalties (n_active,); active (n_active,).
        """
        whole = np.zeros((len(fits), len(self._age)))
        whole[:, active] = fits
        level = np.zeros(len(self._age))
        level[active] = penalties
        self._fits = [*self._fits[1 - RECENT :], whole]
        self._penalties = [*self._penalties[1 - RECENT :], level]
        self._age[active] += 1

    def forget(self, fits: Indices) -> None:
        """Begin anew with fits whose objective has changed."""
        self._age[fits] = 0
        self._last[fits] = np.inf

    def due(self, fits: Indices, residuals: Array) -> Indices:
        """Return the fits whose iterates may be combined.

        Shapes: fits (n_fits,); residuals (n_fits,): relative, in one number.
        """
        ready = self._age[fits] >= self._wait[fits]
        slow = ready & (residuals > _HALVED * self._last[fits])
        self._wait[fits[slow]] *= 2
        self._last[fits[ready]] = residuals[ready]
        chosen: Indices = fits[ready & ~slow]
        return chosen

    def iterates(self, fit: int) -> tuple[Array, Array]:
        """Return the last iterates of a fit and their penalties."""
        return (
            np.column_stack([values[:, fit] for values in self._fits]),
            np.array([values[fit] for values in self._penalties]),
        )

    def combined(self, fits: Indices) -> None:
        """Note that the iterates of these fits have been combined."""
        self._age[fits] = 0
