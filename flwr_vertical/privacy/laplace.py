"""Integer Laplace noise, sampled exactly.

Laplace noise in floating point has holes that can give the noiseless value away (Mironov 2012,
"On Significance of the Least Significant Bits for Differential Privacy"). Counts are integers, so
their noise can be, too: Canonne, Kamath and Steinke (2020), "The Discrete Gaussian for Differential
Privacy", Algorithm 2, with integer arithmetic only.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy.keystream import Keystream

_PARTS = 2**20


def rational(epsilon: float) -> Fraction:
    """Return an epsilon as a fraction of 2^20, rounded down: never less private than asked for."""
    found = Fraction(int(min(epsilon, 2.0**40) * _PARTS), _PARTS)
    if found <= 0:
        raise ConfigError(f"epsilon must be at least {1 / _PARTS:.1e}, got {epsilon!r}")
    return found


def laplace_integers(scale: Fraction, count: int, stream: Keystream) -> npt.NDArray[np.int64]:
    """Draw integers with probability proportional to ``exp(-abs(x) / scale)``.

    Adding them to integers of l1-sensitivity D is (D / scale)-differentially private.

    Parameters
    ----------
    scale : Fraction
        Positive. The variance is ``2 a / (1 - a)^2`` with ``a = exp(-1 / scale)``, about
        ``2 scale^2``.
    count : int
        How many.
    stream : Keystream
        Random bits.

    Returns
    -------
    numpy.ndarray of shape (count,), int64
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
