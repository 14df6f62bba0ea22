"""Smooth distribution functions where the noise allows: between point masses of a tree's margin.

Noise of known size is on the shares up to each cell's end. So of all smooth functions from values
to normal scores the smoothest is taken that is as near to these shares as the noise puts them
(Morozov's discrepancy principle). Normal columns have a straight line, log-normal ones another in
asinh; columns of any shape keep it where the noise does not explain it. It is post-processing and
spends nothing.
"""

from collections.abc import Callable

import numpy as np
from scipy.interpolate import BSpline, make_smoothing_spline
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array

Curve = Callable[[Array], Array]

_LEAST_ENDS = 6  # of cells; fewer say too little of a shape
_PENALTIES = np.logspace(2.0, -8.0, 21)
_POINTS = 200
_SMOOTHER = 10.0  # the penalty by which another scale is better than the column's own
_LEAST_ERROR = 1e-9
_APART = 1e-7  # of all of them, two ends at least
_TAIL = 20
_FAR = 4.5  # a normal score that one of 300,000 samples has


def smoothed(ends: Array, shares: Array, error: float, limits: tuple[float, float]) -> Array | None:
    """Return points of a smooth distribution function, array of shape (n_points, 2).

    Shapes: ends (n_ends,): ends of cells, ascending; shares (n_ends,): noisy shares of samples
    below each, ascending and in (0, 1).
    """
    if len(ends) < _LEAST_ENDS:
        return None
    scores, error = ndtri(shares), max(error, _LEAST_ERROR)
    # All parts add up to 1, so shares have the errors of a bridge. One of a share moves its score
    # by more where few samples are.
    cells = np.arange(1, len(ends) + 1)
    errors = error * np.sqrt(cells * cells[::-1] / (len(ends) + 1))
    weights = (np.exp(-(scores**2) / 2) / np.sqrt(2 * np.pi) / errors) ** 2
    tails = limits[0] < ends[0], limits[1] > ends[-1]
    best: tuple[float, Array] | None = None
    for there, back in _scales(ends):
        at = there(ends)
        start, width = float(at[0]), float(at[-1] - at[0])
        at = (at - start) / width
        apart = np.concatenate([[True], np.diff(at) > _APART])
        if apart.sum() < _LEAST_ENDS:
            continue
        for penalty in _PENALTIES:
            if best is not None and penalty <= _SMOOTHER * best[0]:
                break
            curve = make_smoothing_spline(
                at[apart], scores[apart], weights[apart] / weights.mean(), lam=penalty
            )
            # Noise of counts is independent: of parts between ends, not of shares up to them.
            missed = np.diff(ndtr(curve(at)) - shares, prepend=0.0, append=0.0) / error
            if missed @ missed > len(missed):
                continue
            grid, found = _with_tails(curve, tails)
            if (np.diff(found) > 0).all():
                values = np.clip(back(start + width * grid), *limits)
                best = penalty, np.stack([values, ndtr(found)], axis=1)
            break
    return None if best is None else best[1]


def _with_tails(curve: BSpline, tails: tuple[bool, bool]) -> tuple[Array, Array]:
    """Return a curve on a grid from 0 to 1, and straight tails as far as normal scores matter."""
    grid = np.linspace(0.0, 1.0, _POINTS)
    scores = curve(grid)
    slopes = curve.derivative()(grid[[0, -1]])
    if tails[0] and slopes[0] > 0:
        more = np.linspace(min(scores[0], -_FAR) - 0.1, scores[0], _TAIL)[:-1]
        grid = np.concatenate([(more - scores[0]) / slopes[0], grid])
        scores = np.concatenate([more, scores])
    if tails[1] and slopes[1] > 0:
        more = np.linspace(scores[-1], max(scores[-1], _FAR) + 0.1, _TAIL)[1:]
        grid = np.concatenate([grid, 1 + (more - scores[-1]) / slopes[1]])
        scores = np.concatenate([scores, more])
    return grid, scores


def _scales(ends: Array) -> list[tuple[Curve, Curve]]:
    """Scales on which a column may be straight: its own, and asinh about 0 and about its middle."""
    middle = float(np.median(ends))
    spread = float(np.median(np.abs(ends - middle))) or 1.0
    return [
        (lambda x: x, lambda y: y),
        (lambda x: np.arcsinh(x / 0.1), lambda y: 0.1 * np.sinh(y)),
        (
            lambda x: np.arcsinh((x - middle) / spread),
            lambda y: middle + spread * np.sinh(y),
        ),
    ]
