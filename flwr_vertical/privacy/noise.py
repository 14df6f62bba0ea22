"""Integer Laplace and Gaussian noise, sampled exactly, and how much of it epsilon and delta need.

Noise in floating point has holes that can give the noiseless value away (Mironov 2012, "On
Significance of the Least Significant Bits for Differential Privacy"). Counts are integers, and so
are sums of products in a ring, so their noise can be, too: Canonne, Kamath and Steinke (2020), "The
Discrete Gaussian for Differential Privacy", Algorithms 2 and 3, with integer arithmetic only. The
concentrated privacy of the discrete Gaussian is that of the continuous one of the same sigma (their
Theorem 4), and with sigma far above 1, as here, so is its ``(epsilon, delta)`` (their Theorem 7 and
Section 2.3).
"""

from fractions import Fraction

import numpy as np

from flwr_vertical.arrays import Integers
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy.keystream import Keystream

MOST_DELTA = 1e-3
"""Of a release: with a delta near 1 hardly any noise is needed, whatever epsilon is."""

_PARTS = 2**20


def rational(epsilon: float) -> Fraction:
    """Return an epsilon as a fraction of 2^20, rounded down: never less private than asked for."""
    found = Fraction(int(min(epsilon, 2.0**40) * _PARTS), _PARTS)
    if found <= 0:
        raise ConfigError(f"epsilon must be at least {1 / _PARTS:.1e}, got {epsilon!r}")
    return found


def laplace_integers(scale: Fraction, count: int, stream: Keystream) -> Integers:
    """Draw integers with probability proportional to ``exp(-abs(x) / scale)``; shape (count,).

    Adding them to integers of l1-sensitivity D is (D / scale)-differentially private. The variance
    is ``2 a / (1 - a)^2`` with ``a = exp(-1 / scale)``, about ``2 scale^2``.
    """
    return np.array(
        [laplace_integer(scale.numerator, scale.denominator, stream) for _ in range(count)],
        dtype=np.int64,
    )


def laplace_integer(t: int, s: int, stream: Keystream) -> int:
    """One draw of scale t / s."""
    while True:
        u = stream.below(t)
        if not bernoulli_exp(u, t, stream):
            continue
        v = 0
        while bernoulli_exp(1, 1, stream):
            v += 1
        value = (u + t * v) // s
        negative = stream.below(2)
        if not (negative and value == 0):
            return -value if negative else value


def bernoulli_exp(numerator: int, denominator: int, stream: Keystream) -> bool:
    """Draw True with probability exp(-numerator / denominator), for a fraction in [0, 1]."""
    k = 1
    while stream.below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


_LARGEST = 1e9
"""Epsilon above this counts as this: there is no protection left to lose."""


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return the least delta with which Gaussian noise is ``(epsilon, delta)`` private.

    Balle and Wang (2018), "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8.
    `ratio` is the l2-sensitivity over sigma, above 0; epsilon is at least 0.
    """
    from scipy.special import log_ndtr  # parties import this module with every message

    near = log_ndtr(ratio / 2.0 - epsilon / ratio)
    far = epsilon + log_ndtr(-ratio / 2.0 - epsilon / ratio)
    # exp(near) - exp(far), without losing digits where both are small
    return float(-np.exp(near) * np.expm1(min(far - near, 0.0)))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the standard deviation of noise for an l2-sensitivity of 1.

    The least one by `gaussian_delta`; the classical ``sqrt(2 log(1.25 / delta)) / epsilon`` is
    larger, and wrong for epsilon above 1. `ConfigError` if epsilon is not above 0, or delta not
    between 0 and 1.
    """
    from scipy.optimize import brentq  # as above

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

    Canonne, Kamath and Steinke (2020), Algorithm 3, with integer arithmetic only. They may be of
    any size. Sigma is at least 1; of 10 and more it is the standard deviation to 1e-80.
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
