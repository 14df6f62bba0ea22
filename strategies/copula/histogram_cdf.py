"""From cells with noisy counts to the distribution function of a numeric column.

A cell that is all but a single number is a point mass at the roundest number in it. Between point
masses the function is smooth, as far as the noise allows; else it is made cell by cell.

Noise of known size is on the shares up to each cell's end. So of all smooth functions from values
to normal scores the smoothest is taken that is as near to these shares as the noise puts them
(Morozov's discrepancy principle). Normal columns have a straight line, log-normal ones another in
asinh; columns of any shape keep it where the noise does not explain it. It is post-processing and
spends nothing.
"""

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array, Flags
from strategies.copula.margins import Domain, Margin

Curve = Callable[[Array], Array]

_LEAST_ENDS = 6  # of cells; fewer say too little of a shape
_PENALTIES = np.logspace(2.0, -8.0, 21).tolist()
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
        data = at[apart], scores[apart], weights[apart] / weights.mean()

        def near(curve: Curve, at: Array = at) -> bool:
            # Noise of counts is independent: of parts between ends, not of shares up to them.
            missed = np.diff(ndtr(curve(at)) - shares, prepend=0.0, append=0.0) / error
            return bool(missed @ missed <= len(missed))

        tried = [p for p in _PENALTIES if best is None or p > _SMOOTHER * best[0]]
        smoothest = _smoothest(data, tried, near)
        if smoothest is None:
            continue
        grid, found = _with_tails(smoothest[1], tails)
        if (np.diff(found) > 0).all():
            values = np.clip(back(start + width * grid), *limits)
            best = smoothest[0], np.stack([values, ndtr(found)], axis=1)
    return None if best is None else best[1]


def _smoothest(
    data: tuple[Array, Array, Array], penalties: list[float], near: Callable[[Curve], bool]
) -> tuple[float, "scipy.interpolate.BSpline"] | None:
    """Return the largest of descending penalties whose curve is near, and that curve.

    The smoother a curve, the further it is from the data, so it is found by bisection.
    """
    spline = functools.partial(scipy.interpolate.make_smoothing_spline, *data)
    first = bisect.bisect_left(penalties, True, key=lambda penalty: near(spline(lam=penalty)))
    return (penalties[first], spline(lam=penalties[first])) if first < len(penalties) else None


def _with_tails(
    curve: "scipy.interpolate.BSpline", tails: tuple[bool, bool]
) -> tuple[Array, Array]:
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
        (lambda x: np.arcsinh((x - middle) / spread), lambda y: middle + spread * np.sinh(y)),
    ]


UNIT = 0.1
"""Below it cells have one width, above it one share of the value."""

_MASS = 2.5  # of a point mass, in standard deviations of the noise
_SINGLE = 1e-5  # width over value of a cell that is one number
_INNER = 3  # cells whose slope says where the outermost one ends
_SLACK = 1.5
_LAST = 3.5  # a normal score that one of 4,000 samples has
_PIECES = 16  # straight ones, of the distribution function in a cell
_WIDE = 0.02  # a point mass below it is told to nobody


def margin_of_cells(low: Array, high: Array, mass: Array, domain: Domain, error: float) -> Margin:
    """Return the distribution function of cells and what they hold.

    Shapes: low, high (n_cells,): ends of the cells, ascending; mass (n_cells,): how many values
    each holds; not negative.
    """
    held = mass > 0
    low, high, mass = low[held], high[held], mass[held]
    above = np.cumsum(mass)
    n = round(above[-1])
    shares = np.stack([above - mass, above], axis=1) / above[-1]
    if domain.step:
        single = high - low < 1.5 * domain.step
        numbers = domain.snap((low + high) / 2)
    else:
        single = high - low <= _SINGLE * np.maximum(np.maximum(abs(low), abs(high)), UNIT)
        numbers = np.array(
            [_roundest(*ends) if s else 0.0 for *ends, s in zip(low, high, single, strict=True)]
        )
    low, high = _shorter_tails(low, high, shares, single)
    masses = single if domain.step else single & (mass > _MASS * error)
    points: list[Array] = []
    for first, last in _runs(masses):
        cells = slice(first, last)
        curve = None
        if not masses[first] and not domain.step:
            curve = _smooth(low[cells], high[cells], shares[cells], error / n, domain)
        if curve is not None:
            points.append(curve)
            continue
        points += [
            np.array([[numbers[i], share] for share in shares[i]])
            if single[i]
            else _spread(low[i], high[i], shares[i], n)
            for i in range(first, last)
        ]
    values, cumulative = np.concatenate(points).T
    return Margin(
        np.clip(values, domain.low, domain.high),
        cumulative,
        discrete=False,
        step=domain.step,
        atoms=shares[masses & (mass > _WIDE * n)],
    )


def _shorter_tails(low: Array, high: Array, shares: Array, single: Flags) -> tuple[Array, Array]:
    """Return ends of cells, the outermost moved inwards to where their neighbours' slope leads.

    Where cells between were empty it may lead past the whole cell, and then says nothing.
    """
    n_inner = min(_INNER, len(low) - 1)
    if n_inner < 1:
        return low, high
    low, high = low.copy(), high.copy()
    inner, outer = slice(1, n_inner + 1), 1 - shares[::-1, ::-1]
    if not single[: n_inner + 1].any():
        first = -_reach(-low[inner], -high[inner], shares[0, 1], shares[n_inner, 1])
        low[0] = max(low[0], first) if first < high[0] else low[0]
    if not single[-n_inner - 1 :].any():
        right = slice(-n_inner - 1, -1)
        last = _reach(high[right][::-1], low[right][::-1], outer[0, 1], outer[n_inner, 1])
        high[-1] = min(high[-1], last) if last > low[-1] else high[-1]
    return low, high


def _reach(far: Array, near: Array, beyond: float, further: float) -> float:
    """Return where the last of samples lies, by the slope of asinh(10 x); outermost cells first."""
    start, end = np.arcsinh(np.array([near[-1], far[0]]) / UNIT)
    scores = -ndtri(np.array([further, beyond]))
    rise = (end - start) / max(scores[1] - scores[0], 1e-9)
    with np.errstate(over="ignore"):  # infinite is beyond every limit
        return float(UNIT * np.sinh(end + _SLACK * rise * max(_LAST - scores[1], 0.0)))


def _runs(single: Flags) -> Iterator[tuple[int, int]]:
    """Yield first and last (not included) of all runs of cells of one kind."""
    changes = np.flatnonzero(single[1:] != single[:-1]) + 1
    yield from itertools.pairwise([0, *changes.tolist(), len(single)])


def _smooth(low: Array, high: Array, shares: Array, error: float, domain: Domain) -> Array | None:
    """Return points of a smooth distribution function in neighbouring cells; None if there is none.

    Shapes: low, high (n_cells,); shares (n_cells, 2): where each cell begins and ends.
    """
    ends = np.concatenate([low[:1], high])
    levels = np.concatenate([shares[:1, 0], shares[:, 1]])
    inside = (levels > 0) & (levels < 1 - 1e-9)
    # A tail is at most as long as the outermost cell again, and does not cross 0, which is where
    # many columns end.
    reach = UNIT * np.sinh(2 * np.arcsinh(ends[[0, -1]] / UNIT) - np.arcsinh(ends[[1, -2]] / UNIT))
    bottom = max(0.0 if low[0] >= 0 else domain.low, float(reach[0]))
    top = min(0.0 if high[-1] <= 0 else domain.high, float(reach[1]))
    limits = (
        bottom if not inside[0] else float(ends[0]),
        top if not inside[-1] else float(ends[-1]),
    )
    return smoothed(ends[inside], levels[inside], error, limits)


def _spread(low: float, high: float, share: Array, n: int) -> Array:
    """Return points in a cell, (n_points, 2), where asinh(10 x) is linear in a normal score."""
    ends = np.arcsinh(np.array([low, high]) / UNIT)
    start, end = share
    scores = ndtri(np.clip(share, 0.5 / n, 1 - 0.5 / n))
    if not scores[1] > scores[0]:
        return np.array([[low, start], [high, end]])
    part = np.linspace(0.0, 1.0, _PIECES + 1)
    values = UNIT * np.sinh(ends[0] + part * (ends[1] - ends[0]))
    levels = ndtr(scores[0] + part * (scores[1] - scores[0]))
    values[0], values[-1], levels[0], levels[-1] = low, high, start, end
    return np.stack([values, levels], axis=1)


def _roundest(low: float, high: float) -> float:
    """Return the number with the fewest digits that a cell includes."""
    if low <= 0 < high:
        return 0.0
    largest = np.floor(np.log10(max(abs(low), abs(high))))
    for digits in range(17):
        size = 10.0 ** (largest - digits)
        first = float(np.round(np.ceil(low / size) * size, int(digits - largest)))
        if low <= first < high:
            return first
    return low
