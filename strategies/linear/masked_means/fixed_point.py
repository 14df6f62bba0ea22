"""Whole numbers modulo 2^64 behind masked mean functions: digits of columns, features, weights.

A value ``mu = sum_h a_h sin(h theta) + b_h cos(h theta)`` of an angle ``theta = alpha - gamma``,
of which the server knows alpha and the parties gamma, is a sum of products,

    mu = sum_h sin(h alpha) [a_h cos(h gamma) + b_h sin(h gamma)]
             + cos(h alpha) [b_h cos(h gamma) - a_h sin(h gamma)],

of *features* of the server and *weights* of the parties. Both are rounded to whole numbers, so that
features under a mask r give ``mu + q`` with ``q`` the same sum over r: modulo 2^64, to the bit.

A column enters as digits to the base 2^8: products of a digit with values of f fraction bits leave
room in 64 bits for as many rows as there may be, where 24-bit columns would not.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical.arrays import Array, Flags, Ring
from flwr_vertical.errors import DataError
from strategies.linear.masked_means.fourier import Expansion, harmonics

DIGIT_BITS = 8
N_DIGITS = 3
"""Digits of a column: to ``2^-25`` of its root mean square, in sums with a value."""
N_LEADING = 2
"""Digits of it in products of two columns and a value."""

_BITS = 62  # of a sum's absolute value
_MOST_FEATURE_BITS = 44  # products with a sine are exact in double precision
_BLOCK = 8192


def to_digits(x: Array) -> Ring:
    """Split columns into digits.

    Shapes: x (n_rows, n_columns): of root mean square at most 1; returns (n_rows, N_DIGITS *
    n_columns): all first digits, then all second ones, ...: ``x = sum_i digit_i 2^(-8 i)``, i = 1,
    2, .
    """
    rest, digits = x, []
    for _ in range(N_DIGITS):
        rest = rest * 2.0**DIGIT_BITS
        digits.append(np.rint(rest))
        rest = rest - digits[-1]
    return np.concatenate(digits, axis=1).astype(np.int64).view(np.uint64)


def from_digits(encoded: Ring, n_digits: int) -> Array:
    """Put sums over digits together, (n_digits * n_columns, ...) to (n_columns, ...)."""
    return _weighted(encoded.view(np.int64).astype(np.float64), n_digits)


def from_digit_products(encoded: Ring, n_digits: int) -> Array:
    """Put sums over products of digits together, along both axes."""
    values = _weighted(encoded.view(np.int64).astype(np.float64), n_digits)
    return np.asarray(_weighted(values.T, n_digits).T)


def _weighted(values: Array, n_digits: int) -> Array:
    parts = values.reshape(n_digits, -1, *values.shape[1:])
    weights = 2.0 ** (-DIGIT_BITS * np.arange(1, n_digits + 1))
    return np.asarray(np.tensordot(weights, parts, axes=1))


@dataclass(frozen=True)
class Precision:
    """How many fraction bits features and weights have."""

    feature: int  # Of sines and cosines of the server's angle
    weight: tuple[int, ...]  # Of the parties' weights, by function

    def of(self, function: int) -> int:
        """Fraction bits of the values of a function."""
        return self.feature + self.weight[function]


def choose_precision(expansions: list[Expansion], bounds: list[float]) -> Precision:
    """Choose fraction bits with which no sum overflows, and rounding does least harm."""
    totals = [math.floor(_BITS - math.log2(max(bound, 1.0))) for bound in bounds]
    shares = []
    for total, expansion in zip(totals, expansions, strict=True):
        # Features' rounding is multiplied by the coefficients, weights' adds up over the terms.
        tilt = math.log2(max(expansion.size, 1e-3) / math.sqrt(2.0 * expansion.n_terms))
        shares.append(round((total + tilt) / 2.0))
    # A function of no use for the fit (a cumulant) does not decide: the tightest does.
    feature = min(max(min(shares), 1), _MOST_FEATURE_BITS)
    weight = tuple(
        min(total - feature, 50 - max(0, math.ceil(math.log2(max(expansion.size, 1.0)))))
        for total, expansion in zip(totals, expansions, strict=True)
    )
    if min(weight) < 1:
        raise DataError(
            "sums of the mean function do not fit into 64 bits with digits after the point; "
            "transform columns with values far out, and fit counts as large as hundreds or "
            "thousands by their logarithms, with family='gaussian'"
        )
    return Precision(feature, weight)


def server_features(
    alpha: Ring, times: int, n_terms: int, bits: int, weights: Array | None = None
) -> Ring:
    """Return sines and cosines, by turns, of multiples of the server's angle.

    Shapes: weights (n_weightings, n): what rows count; by default 1; returns
    (n_weightings * 2 * n_terms, n).
    """
    of_rows = np.ones((1, len(alpha))) if weights is None else weights
    out = np.empty((len(of_rows), 2 * n_terms, len(alpha)), dtype=np.uint64)
    for start in range(0, len(alpha), _BLOCK):
        here = slice(start, start + _BLOCK)
        for h, (sine, cosine) in enumerate(harmonics(alpha[here], times, n_terms)):
            out[:, 2 * h, here] = rounded(sine * of_rows[:, here], bits)
            out[:, 2 * h + 1, here] = rounded(cosine * of_rows[:, here], bits)
    return out.reshape(-1, len(alpha))


def combine(
    features: Ring,
    gamma: Ring,
    times: int,
    sine: Array,
    cosine: Array,
    bits: "list[int] | tuple[int, ...]",
) -> Ring:
    """Combine features to values: ``mu + q`` of masked ones, ``q`` of the mask.

    Shapes: features (n_weightings * 2 * n_terms, n): of `server_features` under a mask, or the
    mask; gamma (n,): by which the angles are turned; sine, cosine (n_functions, n_terms):
    coefficients, of one function if there are several weightings; returns (n_functions *
    n_weightings, n).
    """
    n_functions, n_terms = sine.shape
    by_weighting = features.reshape(-1, 2 * n_terms, len(gamma))
    out = np.zeros((n_functions * len(by_weighting), len(gamma)), dtype=np.uint64)
    for start in range(0, len(gamma), _BLOCK):
        here = slice(start, start + _BLOCK)
        for h, (s, c) in enumerate(harmonics(gamma[here], times, n_terms)):
            for f in range(n_functions):
                a, b = sine[f, h], cosine[f, h]
                of_sine, of_cosine = a * c + b * s, b * c - a * s
                of_sine, of_cosine = rounded(of_sine, bits[f]), rounded(of_cosine, bits[f])
                for k, own in enumerate(by_weighting):
                    out[f + k, here] += of_sine * own[2 * h, here]
                    out[f + k, here] += of_cosine * own[2 * h + 1, here]
    return out


def rounded(x: Array, bits: int) -> Ring:
    """Return values as whole numbers of so many fraction bits; shape as given."""
    # Plain operations in a fixed order: all parties come to the same whole numbers.
    return np.rint(x * 2.0**bits).astype(np.int64).view(np.uint64)


@dataclass(frozen=True)
class ByRow:
    """A sum of functions, each times a factor of the row that only the server knows.

    Their constants do not count.
    """

    functions: list[Expansion]  # In the same harmonics
    factors: Array  # (n_functions, n)

    @property
    def common(self) -> Expansion:
        """What parties are told: sizes of the harmonics, as powers of two that no row exceeds."""
        size = np.zeros(self.functions[0].n_terms)
        for start in range(0, self.factors.shape[1], _BLOCK):
            sine, cosine = self._coefficients(slice(start, start + _BLOCK))
            size = np.maximum(size, np.hypot(sine, cosine).max(axis=0))
        size = 2.0 ** np.ceil(np.log2(np.maximum(size, 1e-300)))
        return replace(self.functions[0], constant=0.0, sine=np.zeros_like(size), cosine=size)

    def features(self, alpha: Ring, bits: int) -> Ring:
        """Return what takes the place of the server's sines and cosines, at most 1."""
        first, size = self.functions[0], self.common.cosine
        out = np.empty((2 * len(size), len(alpha)), dtype=np.uint64)
        for start in range(0, len(alpha), _BLOCK):
            here = slice(start, start + _BLOCK)
            sine, cosine = (part / size for part in self._coefficients(here))
            for h, (s, c) in enumerate(harmonics(alpha[here], first.times, len(size))):
                a, b = sine[:, h], cosine[:, h]
                out[2 * h, here] = rounded(b * s - a * c, bits)
                out[2 * h + 1, here] = rounded(a * s + b * c, bits)
        return out

    def _coefficients(self, rows: slice) -> tuple[Array, Array]:
        """Return those of sines and of cosines by row, each (n_rows, n_terms)."""
        factors = self.factors[:, rows].T
        sine = np.stack([one.sine for one in self.functions])
        return factors @ sine, factors @ np.stack([one.cosine for one in self.functions])


@dataclass(frozen=True)
class ByClass:
    """A function for each of two classes."""

    first: Expansion  # In the same harmonics, of samples of the first and of the second class
    second: Expansion  # In the same harmonics, of samples of the first and of the second class
    is_second: Flags  # (n,): the class of each sample

    @property
    def _by_row(self) -> ByRow:
        factors = np.stack([~self.is_second, self.is_second]).astype(np.float64)
        return ByRow([self.first, self.second], factors)

    @property
    def common(self) -> Expansion:
        """What parties are told: sizes of the harmonics, and the mean of the constants."""
        mean = (self.first.constant + self.second.constant) / 2.0
        return replace(self._by_row.common, constant=mean)

    @property
    def half_difference(self) -> float:
        """What the constant of the second class has beyond the mean, and the first lacks."""
        return (self.second.constant - self.first.constant) / 2.0

    def features(self, alpha: Ring, bits: int) -> Ring:
        """Return what takes the place of the server's sines and cosines, at most 1."""
        return self._by_row.features(alpha, bits)
