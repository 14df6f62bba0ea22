"""Functions that differ by class, as one Fourier sum whose features know the class.

Parties evaluate ``sum_h a_h sin(h theta) + b_h cos(h theta)`` of ``theta = alpha - gamma`` from
*features* that the server makes of alpha (`masked_numbers`). With the coefficients (a, b) of a
row's own class,

    a sin(h theta) + b cos(h theta) = [b sin(h alpha) - a cos(h alpha)] sin(h gamma)
                                    + [a sin(h alpha) + b cos(h alpha)] cos(h gamma),

so the server puts the brackets in place of ``sin(h alpha)`` and ``cos(h alpha)``, divided by a size
``r_h`` for both classes, and tells the parties ``a_h = 0, b_h = r_h``. Nobody but the server knows
which row is of which class; parties see features under a mask, as ever.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Flags, Ring
from strategies.linear.masked_means.fixed_point import rounded
from strategies.linear.masked_means.fourier import Expansion, harmonics


@dataclass(frozen=True)
class ByClass:
    """A function for each of two classes."""

    first: Expansion  # In the same harmonics, of samples of the first and of the second class
    second: Expansion  # In the same harmonics, of samples of the first and of the second class
    is_second: Flags  # (n,): the class of each sample

    @property
    def common(self) -> Expansion:
        """What parties are told: sizes of the harmonics, and the mean of the constants."""
        one, two = self.first, self.second
        size = np.maximum(np.hypot(one.sine, one.cosine), np.hypot(two.sine, two.cosine))
        return Expansion(
            one.times,
            (one.constant + two.constant) / 2.0,
            np.zeros_like(size),
            size,
            one.radius,
            max(one.error, two.error),
        )

    @property
    def half_difference(self) -> float:
        """What the constant of the second class has beyond the mean, and the first lacks."""
        return (self.second.constant - self.first.constant) / 2.0

    def features(self, alpha: Ring, bits: int) -> Ring:
        """Return what takes the place of the server's sines and cosines.

        Shapes: alpha (n,); returns (2 * n_terms, n): as of `server_features`; none is larger than
        1.
        """
        size = self.common.cosine
        per = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
        sine = np.stack([self.first.sine * per, self.second.sine * per])
        cosine = np.stack([self.first.cosine * per, self.second.cosine * per])
        kind = self.is_second.astype(np.int64)
        out = np.empty((2 * len(size), len(alpha)), dtype=np.uint64)
        for h, (s, c) in enumerate(harmonics(alpha, self.first.times, len(size))):
            a, b = sine[kind, h], cosine[kind, h]
            out[2 * h] = rounded(b * s - a * c, bits)
            out[2 * h + 1] = rounded(a * s + b * c, bits)
        return out
