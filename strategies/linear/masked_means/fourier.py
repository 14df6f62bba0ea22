"""A mean function as a Fourier sum, so that a masked angle is enough to evaluate it.

A linear predictor t lives on a circle of `CIRCLE` units, the whole numbers modulo 2^64. On
``|t| <= radius`` the function is

    f(t) = constant + sum over h = 1, 3, .., 2 H - 1 of sine_h sin(h w t) + cosine_h cos(h w t),

``w = 2 pi times / CIRCLE``. Odd multiples alone change their sign, less the constant, after half a
turn, ``CIRCLE / (2 times)``. That is longer than the interval, so f may be any function there (a
Fourier extension, Boyd 2002); what lies beyond is never asked for. Least squares with small
singular values cut off keep the coefficients small, which rounding needs.

A logistic function about 0 falls again as it has risen, half a turn later. So half a turn a little
longer than the radius is enough: functions that are level at both ends (`expand_level`) take half
the terms of others where predictors reach far.

Two parties must come to the same whole numbers from the same angle, on whatever machines: the
functions of the mathematical library differ in their last bit, so sine and cosine are built here
from additions and multiplications, which are rounded alike everywhere (IEEE 754).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from flwr_vertical.arrays import Array, Ring
from flwr_vertical.errors import DataError

CIRCLE = 2048.0
"""Units of the linear predictor around the circle."""
_CIRCLE_BITS = 64 - 11

_RATIOS = (3.0, 2.5, 2.2)  # half a turn over radius; of those that need as many terms, the last
_BEYOND = (6.0, 9.0, 12.0, 15.0, 18.0)  # half a turn less radius, of functions level at both ends
_TERMS = (
    *range(6, 20, 2),
    *range(20, 32, 4),
    *range(32, 80, 8),
    *range(80, 160, 16),
    *range(160, 257, 32),
)
MOST_TERMS = _TERMS[-1]
_CUTS = (1e-6, 1e-8, 1e-10)  # singular values, relative to the largest


@dataclass(frozen=True)
class Expansion:
    """A Fourier sum."""

    times: int  # How many periods the circle has
    constant: float
    sine: Array  # (n_terms,)
    cosine: Array  # (n_terms,)
    radius: float  # Up to where it holds
    error: float  # Largest error there, relative to what `expand` was told

    @property
    def n_terms(self) -> int:
        """Number of harmonics."""
        return len(self.sine)

    @property
    def size(self) -> float:
        """How many times larger than the features' own rounding its effect on a value is."""
        return float(np.sqrt(np.sum(self.sine**2 + self.cosine**2)))

    def __call__(self, t: Array) -> Array:
        """Evaluate the sum."""
        angle = np.multiply.outer(t, _frequencies(self.times, self.n_terms))
        return np.asarray(self.constant + np.sin(angle) @ self.sine + np.cos(angle) @ self.cosine)


def expand(
    functions: "list[Callable[[Array], Array]]",
    radius: float,
    tolerance: float = 1e-6,
    unit: Callable[[Array], Array] = np.ones_like,
    most_terms: int = MOST_TERMS,
    constant: bool = True,
) -> list[Expansion]:
    """Expand functions in the same harmonics, as few as are needed.

    Without a constant, values may be multiplied by weights of the rows.
    """
    best: list[Expansion] | None = None
    # Fewer terms than the radius never are enough, and the largest ratio often needs the fewest.
    enough = [n_terms for n_terms in _TERMS if radius < n_terms <= most_terms]
    for ratio in _RATIOS:
        times = math.floor(CIRCLE / (2.0 * ratio * radius))
        # Of later ratios the most terms first: if these are not enough, no fewer are.
        first, least, at = best is None, math.inf, 0
        for n_terms in () if times < 1 else enough if first else enough[::-1]:
            found = _fit(functions, radius, times, n_terms, tolerance, unit, float(constant))
            error = max(one.error for one in found)
            near = error <= tolerance
            if near:
                best, enough = found, [fewer for fewer in enough if fewer <= n_terms]
            if error < 0.5 * least:
                least, at = error, n_terms
            if near == first or (first and n_terms > 2.5 * at):  # what is left is rounding
                break
    if best is None:
        raise DataError(
            f"no Fourier sum of at most {most_terms} terms comes within {tolerance:g} of the mean "
            f"function for linear predictors up to {radius:.4g} from their centre; standardise or "
            "transform columns with values far out"
        )
    return best


def expand_level(
    functions: "list[Callable[[Array], Array]]",
    radius: float,
    unit: Callable[[Array], Array],
    tolerance: float,
) -> list[Expansion] | None:
    """Expand functions with the derivatives or integrals of one that is level far from 0.

    Of a function f that is level, ``f - f(0)`` is odd; its derivative and its integral are even.
    """
    best: list[Expansion] | None = None
    for beyond in _BEYOND:
        times = math.floor(CIRCLE / (2.0 * (radius + beyond)))
        high = math.ceil(1.1 * (radius + beyond))
        if best is not None:
            high = best[0].n_terms - 1
        low = max(2, math.floor(0.25 * (radius + beyond)))
        n_terms = high  # the most first: if these are not enough, no fewer are
        while times >= 1 and low < n_terms <= MOST_TERMS:
            found = _fit(functions, radius, times, n_terms, tolerance, unit, 1.0)
            if all(one.error <= tolerance for one in found):
                best, high = found, n_terms
            elif n_terms == high:
                break
            else:
                low = n_terms
            n_terms = (low + high) // 2
    return best


def _frequencies(times: int, n_terms: int) -> Array:
    return np.asarray((2.0 * np.arange(n_terms) + 1.0) * (2.0 * np.pi * times / CIRCLE))


def _svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Return the singular value decomposition of a matrix whose singular values fall to zero."""
    try:
        left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # Divide and conquer (LAPACK's gesdd) fails now and then with several threads; gesvd is
        # slower and does not.
        left, singular, right = linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")
    return left, singular, right


def _fit(
    functions: list[Callable[[Array], Array]],
    radius: float,
    times: int,
    n_terms: int,
    tolerance: float,
    unit: Callable[[Array], Array],
    constant: float,
) -> list[Expansion]:
    n_nodes = max(5 * n_terms, 200)
    # Chebyshev's nodes: least squares there are close to the best uniform fit.
    nodes = radius * np.cos(np.pi * (np.arange(n_nodes) + 0.5) / n_nodes)
    between = radius * np.linspace(-1.0, 1.0, 2 * n_nodes + 1)
    frequencies = _frequencies(times, n_terms)
    fine = _basis(between, frequencies, constant)
    left, singular, right = _svd(_basis(nodes, frequencies, constant) / unit(nodes)[:, None])
    out = []
    for function in functions:
        inner, truth = left.T @ (function(nodes) / unit(nodes)), function(between)
        best: Expansion | None = None
        for cut in _CUTS:
            kept = singular > cut * singular[0]
            values = right[kept].T @ (inner[kept] / singular[kept])
            error = float((np.abs(fine @ values - truth) / unit(between)).max())
            if best is None or error < best.error:
                sine, cosine = values[1 : n_terms + 1], values[n_terms + 1 :]
                level = constant * float(values[0])
                best = Expansion(times, level, sine, cosine, radius, error)
            if best.error <= tolerance:
                break
        assert best is not None
        out.append(best)
    return out


def _basis(t: Array, frequencies: Array, constant: float) -> Array:
    angle = np.multiply.outer(t, frequencies)
    return np.column_stack([np.full(len(t), constant), np.sin(angle), np.cos(angle)])


def to_circle(t: Array) -> Ring:
    """Put linear predictors on the circle; shape as given."""
    if not (np.abs(t) < CIRCLE / 2).all():
        raise DataError(
            f"linear predictors must be within {CIRCLE / 2:g} of 0, the largest is "
            f"{float(np.abs(t).max(initial=0.0)):.4g}"
        )
    return np.rint(np.ldexp(t, _CIRCLE_BITS)).astype(np.int64).view(np.uint64)


def harmonics(angle: Ring, times: int, n_terms: int) -> Iterator[tuple[Array, Array]]:
    """Give sine and cosine of odd multiples of angles, the same bits on every machine.

    Shapes: angle (n,): on the circle; returns (n,): for multiples 1, 3, ..., ``2 n_terms - 1`` of
    `times`; of h within ``(h + 7) 2^-52``.
    """
    s, c = _sine_cosine(angle * np.uint64(times))
    sine, cosine = _sine_cosine(angle * np.uint64(2 * times))
    for h in range(n_terms):
        if h:
            s, c = s * cosine + c * sine, c * cosine - s * sine
        yield s, c


# Of Taylor's series of sine and cosine, up to where they stay below 2^-53 on an eighth of a turn.
_SINE = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(9)]
_COSINE = [(-1.0) ** k / math.factorial(2 * k) for k in range(9)]


def _sine_cosine(angle: Ring) -> tuple[Array, Array]:
    """Return both for angles on the circle, in one turn."""
    turns = np.ldexp(angle.view(np.int64).astype(np.float64), -64)
    quarter = np.rint(4.0 * turns)
    rest = (turns - 0.25 * quarter) * (2.0 * math.pi)  # the difference is exact
    square = rest * rest
    s, c = _horner(_SINE, square) * rest, _horner(_COSINE, square)
    quadrant = quarter.astype(np.int64) & 3
    odd = (quadrant & 1).astype(bool)
    s, c = np.where(odd, c, s), np.where(odd, s, c)
    return np.where(quadrant >= 2, -s, s), np.where((quadrant == 1) | (quadrant == 2), -c, c)


def _horner(coefficients: list[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x
        total = total + coefficient
    return total
