"""The squared hinge with its corner smoothed, so that a Fourier sum evaluates its derivative.

Of a margin m (the label, -1 or 1, times the decision value) the squared hinge is
``max(0, 1 - m)^2``. Here ``max(0, t)`` is the softplus ``w log(1 + exp(t / w))``, which is analytic
and differs from it by ``w log 2`` at most. The derivatives of both squares have the same integral,
so that a smooth density of margins about 1 hardly sees the difference.
"""

import numpy as np
from scipy.special import expit

from flwr_vertical.arrays import Array


def softplus(t: Array, width: float) -> Array:
    """Return a smooth ``max(0, t)``; shape as given."""
    return np.asarray(width * np.logaddexp(0.0, t / width))


def loss(margin: Array, width: float) -> Array:
    """Return the loss of margins; shape as given."""
    return np.asarray(softplus(1.0 - margin, width) ** 2)


def slope(margin: Array, width: float) -> Array:
    """Return the derivative of the loss in the margin; shape as given."""
    t = 1.0 - margin
    return np.asarray(-2.0 * softplus(t, width) * expit(t / width))


def curvature(margin: Array, width: float) -> Array:
    """Return the second derivative of the loss in the margin; shape as given."""
    t = 1.0 - margin
    rising = expit(t / width)
    falling = expit(-t / width)
    return np.asarray(2.0 * rising * (rising + softplus(t, width) * falling / width))
