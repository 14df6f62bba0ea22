"""Guesses of cells, and how many of them are right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Indices

TOLERANCE = 1e-3  # of a column's standard deviation
_FEW = 10
_FEWEST = 3  # an affine map has two unknowns, so that it fits fewer cells always


@dataclass(frozen=True)
class Guess:
    """What an attack says of a column."""

    rows: Indices  # (n_rows,): samples
    values: Array  # (n_rows,): their cells, NaN where the attack says nothing
    # (party, column) that is meant; without it the attacker does not know, and any may be it
    target: tuple[str, str] | None = None
    # Whether origin and unit are unknown. Two cells that the attacker knows would fix them.
    affine: bool = True


@dataclass(frozen=True)
class Score:
    """What an attack found."""

    # Share of all cells recovered, beyond what the commonest value of a column would score
    cells: float = 0.0
    columns: int = 0  # Columns recovered in 99 of 100 of the cells guessed, in ten rows at least
    best: float = 0.0  # The largest share of a column's cells that was recovered


def score(
    guesses: Iterable[Guess],
    truth: Mapping[str, pd.DataFrame],
    exclude: str = "",
    tolerance: float = TOLERANCE,
) -> Score:
    """Compare guesses with the tables."""
    targets = {
        (party, str(name)): frame[name].to_numpy(dtype=float)
        for party, frame in truth.items()
        if party != exclude
        for name in frame
    }
    spreads = {target: float(np.nanstd(values)) for target, values in targets.items()}
    hit = {target: np.zeros(len(values), dtype=bool) for target, values in targets.items()}
    whole: set[tuple[str, str]] = set()
    for guess in guesses:
        for target in targets if guess.target is None else [guess.target]:
            if target not in targets:
                continue
            right, share = _right(guess, targets[target], spreads[target], tolerance)
            if share > 0.0:
                hit[target][guess.rows[right]] = True
                if share >= 0.99 and right.sum() >= 10:
                    whole.add(target)
    known = sum(int((~np.isnan(values)).sum()) for values in targets.values())
    shares = {
        target: float(np.mean(found[~np.isnan(targets[target])])) for target, found in hit.items()
    }
    cells = sum(int(found.sum()) for found in hit.values())
    return Score(cells / max(known, 1), len(whole), max(shares.values(), default=0.0))


def _right(guess: Guess, truth: Array, spread: float, tolerance: float) -> tuple[Flags, float]:
    """Tell which cells of a guess are right, and the share beyond the commonest value's."""
    true, said = truth[guess.rows], np.asarray(guess.values, dtype=float)
    known = ~np.isnan(true) & np.isfinite(said)
    right = np.zeros(len(true), dtype=bool)
    if known.sum() < (_FEWEST if guess.affine else 1) or spread == 0.0:
        return right, 0.0
    if guess.affine:
        if np.ptp(said[known]) == 0.0 or np.ptp(true[known]) == 0.0:
            return right, 0.0
        said = _calibrated(said, true, known)
    right[known] = np.abs(said[known] - true[known]) <= tolerance * spread
    if not right.any():
        return right, 0.0
    counts = np.unique(true[known], return_counts=True)[1]
    chance = counts.max() / known.sum() if len(counts) < known.sum() or guess.affine else 0.0
    share = float(right[known].mean())
    beyond = max(0.0, (share - chance) / (1.0 - chance)) if chance < 1.0 else 0.0
    # A few hits among many cells are what a random guess has: 0.1 % of a normal column is so near.
    one = min(1.0, chance + 2 * tolerance)
    lucky = known.sum() * one
    bound = lucky + 4.0 * np.sqrt(lucky * (1.0 - one)) + 2.0
    few = 1 < known.sum() <= _FEW  # of which a hit may be luck
    if share < 1.0 and (few or right.sum() <= bound):
        return np.zeros(len(true), dtype=bool), 0.0
    return right, beyond


def _calibrated(said: Array, true: Array, known: Flags) -> Array:
    """Return a guess in the column's origin and unit, by a line through the known cells."""
    x, y = said[known], true[known]
    origin, unit = _line(x, y)
    # Cells that are far off are guesses gone wrong: once more without them.
    off = np.abs(origin + unit * x - y)
    near = off <= np.median(off) + 1e-12
    if near.sum() >= _FEWEST and np.ptp(x[near]) > 0:
        origin, unit = _line(x[near], y[near])
    return np.asarray(origin + unit * said)


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Return origin and unit of the least squares line."""
    centred = x - x.mean()
    unit = float(centred @ y / (centred @ centred))
    return float(y.mean()) - unit * float(x.mean()), unit
