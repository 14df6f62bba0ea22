"""The server's own step of sharing ADMM: the common predictor and the intercept.

The step (4.5) of Tang, Feng, Li and Wang is one equation for each sample,

    ``psi'(eta_i) - y_i + phi (eta_i - level - centre_i) = 0``,

and the intercept adds ``sum of (psi'(eta_i) - y_i) = 0``. All are solved together by Newton's
method, whose matrix is an arrow. Then the multiplier (4.6) is ``psi'(eta) - y`` itself.
"""

import numpy as np

from flwr_vertical.arrays import Array
from strategies.linear.families import Family, Gaussian

_STEPS = 60
_LONGEST = 4.0
_PRECISION = 1e-9


def proximal_step(
    family: Family,
    y: Array,
    centre: Array,
    strength: Array,
    eta: Array,
    level: Array,
    intercept: bool,
) -> tuple[Array, Array]:
    """Minimise ``sum of psi(eta) - y eta + strength / 2 (eta - level - centre)^2``.

    Shapes: y (n_samples, 1); centre (n_samples, n_fits); strength (n_fits,): ``phi``, over ``1 /
    n_samples``; eta (n_samples, n_fits): first guess; level (n_fits,): intercepts: the first
    guess, or as they are; returns (n_samples, n_fits); returns (n_fits,).
    """
    if isinstance(family, Gaussian):
        if intercept:
            level = (y - centre).mean(axis=0)
        return (y + strength * (centre + level)) / (1.0 + strength), level
    level = level.copy()
    for _ in range(_STEPS):
        mean, curvature = family.moments(eta)
        slope = mean - y + strength * (eta - level - centre)
        weight = 1.0 / (curvature + strength)
        shift = np.zeros_like(level)
        if intercept:
            # Eliminating the steps of eta leaves one equation for the intercept.
            pulled = (mean - y - curvature * weight * slope).sum(axis=0)
            shift = -pulled / np.maximum(strength * (curvature * weight).sum(axis=0), 1e-300)
            shift = np.clip(shift, -_LONGEST, _LONGEST)
        step = (strength * shift - slope) * weight
        np.clip(step, -_LONGEST, _LONGEST, out=step)
        eta = eta + step
        level += shift
        if max(_largest(step), _largest(shift)) < _PRECISION:
            break
    return eta, level


def _largest(values: Array) -> float:
    return float(max(values.max(initial=0.0), -values.min(initial=0.0)))
