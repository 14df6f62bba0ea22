"""Gaussian noise: how much an ``(epsilon, delta)`` needs, and whole numbers sampled exactly.

Noise in floating point has holes that can give the noiseless value away (Mironov 2012). Sums of
products in a ring are whole numbers, so their noise can be, too: the discrete Gaussian of Canonne,
Kamath and Steinke (2020), "The Discrete Gaussian for Differential Privacy". Its concentrated
privacy is that of the continuous Gaussian of the same sigma (their Theorem 4), and with sigma far
above 1, as here, so is its ``(epsilon, delta)`` (their Theorem 7 and Section 2.3).
"""

from fractions import Fraction

import numpy as np
from scipy.special import log_ndtr

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy.keystream import Keystream
from flwr_vertical.privacy.laplace import bernoulli_exp, laplace_integer

_LARGEST = 1e9
"""Epsilon above this counts as this: there is no protection left to lose."""


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return the least delta with which Gaussian noise is ``(epsilon, delta)`` private.

    Balle and Wang (2018), "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8.

    Parameters
    ----------
    ratio : float
        The l2-sensitivity over sigma, above 0.
    epsilon : float
        At least 0.
    """
    near = log_ndtr(ratio / 2.0 - epsilon / ratio)
    far = epsilon + log_ndtr(-ratio / 2.0 - epsilon / ratio)
    # exp(near) - exp(far), without losing digits where both are small
    return float(-np.exp(near) * np.expm1(min(far - near, 0.0)))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the standard deviation of noise for an l2-sensitivity of 1.

    The least one by `gaussian_delta`; the classical ``sqrt(2 log(1.25 / delta)) / epsilon`` is
    larger, and wrong for epsilon above 1.

    Parameters
    ----------
    epsilon : float
        Above 0.
    delta : float
        Above 0 and below 1.

    Raises
    ------
    ConfigError
        If one is out of range.
    """
    from scipy.optimize import brentq  # parties import this module with every message

    if not (epsilon > 0.0 and 0.0 < delta < 1.0):
        raise ConfigError(
            "Gaussian noise needs epsilon above 0 and delta above 0 and below 1, got "
            f"epsilon={epsilon!r}, delta={delta!r}"
        )
    epsilon = min(epsilon, _LARGEST)

    def excess(log_ratio: float) -> float:
        return gaussian_delta(float(np.exp(log_ratio)), epsilon) - delta

    low, high = -20.0, 0.5 * np.log(2.0 * epsilon) + 12.0
    ratio = float(np.exp(brentq(excess, low, high, xtol=1e-12)))
    # The root is one to rounding; a touch more noise keeps what is promised.
    return (1.0 + 1e-9) / ratio


def gaussian_integers(sigma: int, count: int, stream: Keystream) -> list[int]:
    """Draw integers with probability proportional to ``exp(-x^2 / (2 sigma^2))``.

    Canonne, Kamath and Steinke (2020), Algorithm 3, with integer arithmetic only.

    Parameters
    ----------
    sigma : int
        At least 1; for sigma of 10 and more it is the standard deviation to 1e-80.
    count : int
        How many.
    stream : Keystream
        Random bits.

    Returns
    -------
    list of int
        Of any size.
    """
    if sigma < 1:
        raise ConfigError(f"discrete Gaussian noise needs a sigma of at least 1, got {sigma!r}")
    return [_draw(sigma, stream) for _ in range(count)]


def _draw(sigma: int, stream: Keystream) -> int:
    scale = sigma + 1
    square = sigma * sigma
    while True:
        found = laplace_integer(scale, 1, stream)
        # (|y| - sigma^2 / t)^2 / (2 sigma^2), over a common denominator
        gap = abs(found) * scale - square
        if _bernoulli(Fraction(gap * gap, 2 * square * scale * scale), stream):
            return found


def _bernoulli(rate: Fraction, stream: Keystream) -> bool:
    """Draw True with probability exp(-rate), for any rate of at least 0."""
    whole, rest = divmod(rate.numerator, rate.denominator)
    for _ in range(whole):
        if not bernoulli_exp(1, 1, stream):
            return False
    return bernoulli_exp(rest, rate.denominator, stream)
