"""Margins of numeric columns of any scale: a tree of noisy counts that needs no range.

The range -1e8 to 1e8 is cut into 16 x 16 x 16 cells of equal width in asinh(10 x): near 0 they are
0.001 wide, far from 0 they are 1 % of the value. Every number has its cell, so the cells are
public, and no smallest and largest value is told. Values beyond the range count as its ends.

1.  The number of values in each node of each level gets integer Laplace noise. Replacing one value
    changes two counts of a level by one, so a level whose noise has the scale 2 / e spends e.
2.  Nodes are made consistent as in Hay, Rastogi, Miklau and Suciu (2010), "Boosting the Accuracy of
    Differentially Private Histograms Through Consistency": upwards, each count is averaged with the
    sum of its children by their variances; downwards, children are projected on those counts that
    are not negative and add up to their parent's.
3.  Cells that hold much are cut further: into 16 parts, and into single numbers that point masses
    have, such as 999 (0 is a cell from the start). Only parts that stand out of the noise are
    believed; what is left of the cell is spread over it. Such a round spends its own share, and
    there are as many as the noise allows.

Cells without a multiple of the column's resolution hold nothing, so they get no noise.
"""

from math import inf

import numpy as np
import numpy.typing as npt

from flwr_vertical.privacy import Keystream, laplace_integers, rational
from strategies.synthesis.copula.domain import LIMIT, Domain
from strategies.synthesis.copula.margins import Margin

Array = npt.NDArray[np.float64]

BRANCHES = 16
LEVELS = 3

_UNIT = 0.1  # below it cells have one width, above it one share of the value

_EXTRA = 0.15  # share of the budget for point masses, where it is enough to find any
_MOST_ROUNDS = 13  # 16^13 parts of a cell: single numbers in double precision
_STANDS_OUT = 5.0  # in scales of the noise: a count of 0 exceeds it with chance 0.003
_NOTHING = 1e-6  # values: less is rounding
_LEAST = 0.01  # of the values: smaller cells are left alone
_NINES = np.array([10.0**k - 1 for k in range(1, 8)])
_WIDE = 0.02  # a point mass below it is told to nobody


def base_edges(domain: Domain) -> Array:
    """Return the ends of the tree's cells, array of shape (16^3 + 1,); equal ends have no cell."""
    widest = max(LIMIT, abs(domain.low), abs(domain.high))
    count = BRANCHES**LEVELS
    ends = _UNIT * np.sinh(np.arcsinh(widest / _UNIT) * np.linspace(-1.0, 1.0, count + 1))
    # The number 0, the likeliest point mass, is a cell of its own; the last two cells are one.
    half, first = count // 2, float(ends[count // 2 + 1])
    zero = [0.0, min(domain.step, first) or float(np.nextafter(0.0, inf))]
    ends = np.concatenate([ends[:half], zero, ends[half + 1 : -2], ends[-1:]])
    ends = domain.edges(ends)
    beyond = domain.step / 2
    ends[0], ends[-1] = min(ends[0], domain.low - beyond), max(ends[-1], domain.high + beyond)
    if not domain.step:  # a cell includes its lower end; the last one both
        ends[-1] = np.nextafter(ends[-1], inf)
        if domain.high < widest:
            ends[ends >= domain.high] = ends[-1]
    return np.maximum.accumulate(ends)


def tree_margin(values: npt.ArrayLike, domain: Domain, epsilon: float, stream: Keystream) -> Margin:
    """Estimate the margin of a numeric column with ``epsilon``-differential privacy.

    Parameters
    ----------
    values : array of shape (n,)
        Observed values.
    domain : Domain
        What is public of them.
    epsilon : float
        Budget of replacing one value; infinite for no noise.
    stream : Keystream
        Random bits.

    Returns
    -------
    Margin
        Point masses are steps of its distribution function.
    """
    ordered = np.sort(domain.snap(values))
    n = len(ordered)
    rounds, each = refining_rounds(n, epsilon)
    base = epsilon if epsilon == inf else epsilon - rounds * each
    ends = base_edges(domain)
    counts = np.diff(np.searchsorted(ordered, ends, side="left")).astype(np.float64)
    mass = _consistent(counts, np.diff(ends) > 0, n, base, stream)
    kept = mass > 0
    cells = [
        (float(low), float(high), float(count))
        for low, high, count in zip(ends[:-1][kept], ends[1:][kept], mass[kept], strict=True)
    ]
    for number in range(rounds):
        cells = _refined(cells, ordered, domain, each, number == 0, stream)
    return _margin(cells, domain)


def refining_rounds(n: int, epsilon: float) -> tuple[int, float]:
    """Return how often large cells are cut further, and what each round spends.

    A round is worth it if it can tell a twentieth of the values from nothing; the first, which
    finds the likeliest point masses, if it can tell a fifth.
    """
    if epsilon == inf:
        return _MOST_ROUNDS, inf
    whole = _EXTRA * epsilon
    least = _STANDS_OUT * 2 / n  # epsilon that tells all values from nothing
    rounds = int(min(whole / (20 * least), _MOST_ROUNDS))
    if not rounds:
        rounds = int(whole >= 5 * least)
    return rounds, whole / max(rounds, 1)


def _noise(counts: Array, epsilon: float, stream: Keystream) -> Array:
    if epsilon == inf or not len(counts):
        return counts
    return counts + laplace_integers(2 / rational(epsilon), len(counts), stream)


def _consistent(
    counts: Array, there: npt.NDArray[np.bool_], n: int, epsilon: float, stream: Keystream
) -> Array:
    """Return consistent noisy counts of the finest cells, array of shape (16^3,).

    Parameters
    ----------
    counts : numpy.ndarray of shape (16^3,)
        Exact.
    there : numpy.ndarray of shape (16^3,), bool
        Cells that can hold a value at all.
    """
    if epsilon == inf:
        return counts
    found, alive, variances = [], [], []
    each = epsilon / LEVELS
    for level in range(LEVELS):
        width = BRANCHES ** (LEVELS - 1 - level)
        own = counts.reshape(-1, width).sum(axis=1)
        live = there.reshape(-1, width).any(axis=1)
        noisy = np.zeros(len(own))
        noisy[live] = _noise(own[live], each, stream)
        found.append(noisy)
        alive.append(live)
        variances.append(np.where(live, 2 * (2 / each) ** 2, 0.0))
    for level in range(LEVELS - 2, -1, -1):
        below = found[level + 1].reshape(-1, BRANCHES).sum(axis=1)
        spread = variances[level + 1].reshape(-1, BRANCHES).sum(axis=1)
        live, own = alive[level], variances[level]
        weight = np.divide(spread, own + spread, out=np.zeros(len(own)), where=live)
        found[level] = weight * found[level] + (1 - weight) * below
        variances[level] = weight * own
    parents = np.array([float(n)])
    for noisy, live in zip(found, alive, strict=True):
        children = zip(
            noisy.reshape(-1, BRANCHES), live.reshape(-1, BRANCHES), parents, strict=True
        )
        parents = np.concatenate([_project(*each) for each in children])
    return parents


def _project(counts: Array, live: npt.NDArray[np.bool_], total: float) -> Array:
    """Return the nearest counts that are not negative and have a sum, array of their shape."""
    found = np.zeros(len(counts))
    if total > _NOTHING and live.any():
        own = counts[live]
        falling = np.sort(own)[::-1]
        excess = (np.cumsum(falling) - total) / np.arange(1, len(own) + 1)
        last = int(np.flatnonzero(falling > excess)[-1])
        found[live] = np.maximum(own - excess[last], 0.0)
    return found


Cell = tuple[float, float, float]


def _refined(
    cells: list[Cell],
    ordered: Array,
    domain: Domain,
    epsilon: float,
    points: bool,
    stream: Keystream,
) -> list[Cell]:
    """Cut large cells once.

    Parameters
    ----------
    cells : list of (low, high, count)
        A cell includes its lower end.
    points : bool
        Whether to look for point masses at round numbers, too.
    """
    scale = 0.0 if epsilon == inf else 2 / epsilon
    least = max(_STANDS_OUT * scale, _LEAST * len(ordered))
    found: list[Cell] = []
    for low, high, count in cells:
        ends = _parts(low, high, domain, points) if count > least else np.array([low, high])
        if len(ends) < 3:
            found.append((low, high, count))
            continue
        exact = np.diff(np.searchsorted(ordered, ends, side="left")).astype(np.float64)
        noisy = _noise(exact, epsilon, stream)
        found += _believed(ends, noisy, count, _STANDS_OUT * scale)
    return found


def _parts(low: float, high: float, domain: Domain, points: bool) -> Array:
    """Return the ends of a cell's parts, ascending; two if it cannot be cut."""
    ends = domain.edges(np.linspace(low, high, BRANCHES + 1))
    ends[0], ends[-1] = low, high
    if points:
        singles = _round_numbers(low, high, domain)
        ends = np.concatenate([ends, *(_around(x, domain) for x in singles)])
    return np.unique(np.clip(ends, low, high))


def _around(x: float, domain: Domain) -> Array:
    """Return the ends of a cell that holds one number only."""
    if domain.step:
        return np.array([x - domain.step / 2, x + domain.step / 2])
    return np.array([x, np.nextafter(x, inf)])


def _round_numbers(low: float, high: float, domain: Domain) -> list[float]:
    """Return the roundest number of a cell, and 9, 99, 999 and so on."""
    found = [float(x) for x in (*_NINES, *-_NINES) if low <= x < high]
    if low <= 0 < high:
        return [*found, 0.0]
    for digits in range(18):
        size = 10.0 ** (np.floor(np.log10(max(abs(low), abs(high)))) - digits)
        first = np.ceil(low / size) * size
        if low <= first < high:
            found.append(float(domain.snap(np.round(first, 15))))
            break
    return found


def _believed(ends: Array, noisy: Array, total: float, least: float) -> list[Cell]:
    """Return the parts that stand out, the rest of the cell spread over the others."""
    stands = noisy > least
    counts = np.where(stands, noisy, 0.0)
    widths = np.where(stands, 0.0, np.diff(ends))
    rest = total - counts.sum()
    if rest > 0 and widths.any():
        counts += rest * widths / widths.sum()
    counts *= total / counts.sum()
    # Neighbours that do not stand out have one density: one cell, which a later round may cut.
    joined = ~stands[1:] & ~stands[:-1]
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    sums = np.add.reduceat(counts, first)
    lows, highs = ends[first], ends[[*first[1:], len(counts)]]
    return [
        (float(low), float(high), float(count))
        for low, high, count in zip(lows, highs, sums, strict=True)
        if count > 0
    ]


def _margin(cells: list[Cell], domain: Domain) -> Margin:
    """Return the distribution function that is linear in each cell."""
    bounds = np.array([cell[:2] for cell in cells])
    mass = np.array([cell[2] for cell in cells])
    above = np.cumsum(mass)
    shares = np.stack([above - mass, above], axis=1) / above[-1]
    single = np.nextafter(bounds[:, 0], inf) >= bounds[:, 1]
    if domain.step:
        single = np.diff(bounds, axis=1)[:, 0] < 1.5 * domain.step
        bounds[single] = domain.snap(bounds[single].mean(axis=1))[:, None]
    else:
        bounds[single, 1] = bounds[single, 0]
    atoms = shares[single & (mass > _WIDE * above[-1])]
    return Margin(
        np.clip(bounds, domain.low, domain.high).reshape(-1),
        shares.reshape(-1),
        discrete=False,
        step=domain.step,
        atoms=atoms,
    )
