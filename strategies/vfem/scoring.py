"""The fit by Fisher scoring on completed rows: pairs, then three steps at most.

Of each step one matrix of sums over all rows is opened (`completed_rounds`). The first gives pairs
of columns over the rows that have both; a step is generalised least squares of what it opens
(`strategies.linear.moments.scoring`), so noise and rounding of the point by which rows are
completed cost hardly anything, and bias nothing.
"""

from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from strategies.linear.moments.collect import FitColumns, Prepared
from strategies.linear.moments.covariances import FullCovariance
from strategies.linear.moments.fit import Fit, Likelihood
from strategies.linear.moments.groups import rows_by_pattern
from strategies.linear.moments.identifiable import made_of
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.moments.scoring import PatternCounts, covariance_of_slopes, scoring_step
from strategies.vfem.completed_rounds import CompletedMoments, CompletedProducts
from strategies.vfem.completed_steps import STEPS, noise_variance
from strategies.vfem.completion import GRID, Point, lifts, whole_sizes
from strategies.vfem.maximum_likelihood import Maximum

SETTLED = 0.1
"""By so many standard errors the last step may move a slope."""

COPY = 0.995
"""Columns with a larger correlation over the rows of both count as copies of each other."""


_NO_SHRINKAGE = 0.15


def shrinkage(n_both: Array) -> float:
    """Return the weight of the identity in the correlations by which rows are completed.

    Errors of the correlations of d columns over n rows move their eigenvalues by ``(d / n)^1/2``.
    Where that is large, inverses of the covariance weigh rows by chance, and shrinking it costs
    less: a step is consistent by any covariance where blocks are missing completely at random.

    Shapes: n_both (n_columns, n_columns): rows that hold two columns.
    """
    return max(float(np.sqrt(len(n_both) / n_both.mean())) - _NO_SHRINKAGE, 0.0)


@dataclass(frozen=True)
class _Lone:
    """Labels of rows of which no column is told."""

    n_rows: int
    total: float
    square: float

    def completed(self, mean: Array, covariance: Array) -> tuple[Array, Array, Array]:
        """Return coefficients, sums and products of these rows, completed by their labels."""
        lift = np.zeros_like(covariance)
        lift[:, -1] = covariance[:, -1] / covariance[-1, -1]
        along, level = lift[:, -1], mean[-1]
        square = self.square - 2.0 * level * self.total + self.n_rows * level**2
        return lift, along * (self.total - self.n_rows * level), square * np.outer(along, along)


def fit_by_scoring(prepared: Prepared, taken: Flags) -> tuple[FitColumns, Maximum]:
    """Open completed rows' products until a step settles, three times at most, and fit."""
    products = CompletedProducts(prepared, taken)
    patterns, d = products.patterns, len(products.shifts)
    n_both, y = patterns.joint_rows, prepared.problem.y / products.unit
    first, _ = products.completed(Point.none(d))
    mean, covariance = _of_pairs(first, products, y, n_both)
    kept = _usable(prepared, first, covariance)
    columns = np.append(kept, d - 1)
    here = np.ix_(columns, columns)
    mean, covariance, both = mean[columns], covariance[here], n_both[here]
    alone = np.ones(len(y), dtype=bool)
    alone[patterns.rows] = False
    lone = _Lone(int(alone.sum()), float(y[alone].sum()), float(y[alone] @ y[alone]))
    counts = patterns.counts
    counts = PatternCounts(counts.observed[:, columns], counts.n_rows)
    if lone.n_rows:
        label = np.arange(len(columns)) == len(kept)
        counts = PatternCounts(
            np.vstack([counts.observed, label]), np.append(counts.n_rows, lone.n_rows)
        )
    added = noise_variance(len(prepared.widths)) ** 0.5
    # Not below what a party finds in its own rows, whatever the noise was.
    own_rows = np.maximum(np.diag(both)[:-1], 1.0)
    spread = first.products.diagonal()[kept] / own_rows - (first.sums[kept] / own_rows) ** 2
    above = spread + 2.5 * added / own_rows
    sizes = whole_sizes(np.append(np.sqrt(np.maximum(above, 0.0)), 1.0))
    noise = added**0.5 * sizes / GRID
    settled, steps = False, 0
    before = slopes = np.full(len(kept), np.nan)
    while steps < STEPS and not settled:
        steps += 1
        weight = shrinkage(both) * (2.0 if steps == 1 else 1.0)
        point = Point.near(mean, covariance, both, sizes, weight)
        opened, flat = products.completed(_of_all(point, columns, d))
        centre, used = point.centres, point.covariance(both)
        lift = lifts(flat, patterns, products.shifts)[:, columns][:, :, columns]
        sums, of_rows = opened.sums[columns], opened.products[here]
        if lone.n_rows:
            more, its_sums, its_products = lone.completed(centre, used)
            lift = np.concatenate([lift, more[None]])
            sums, of_rows = sums + its_sums, of_rows + its_products
        mean, covariance = scoring_step(counts, centre, used, lift, sums, of_rows)
        before, slopes = slopes, np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
        vcov = np.full(both.shape, np.nan)
        if steps == 1 or not _is_positive(covariance):
            continue
        sampling, of_noise = covariance_of_slopes(counts, used, mean, covariance, noise)
        vcov = sampling + of_noise
        settled = steps > 1 and _has_settled(slopes - before, vcov, of_noise)
    positive = _is_positive(covariance)
    if not positive:
        covariance = Point.near(mean, covariance, both, sizes).covariance(both)
    held = _as_patterns(counts)
    unit = np.append(np.ones(len(kept)), products.unit)
    fit = _in_units(held, mean * unit, covariance * np.outer(unit, unit), vcov, products.unit)
    fit = replace(fit, iterations=steps, converged=settled)
    unseen = np.flatnonzero(first.withheld[:-1])
    model = FullCovariance(np.ones(both.shape, dtype=bool))
    told = _as_patterns(PatternCounts(patterns.counts.observed, patterns.counts.n_rows))
    opened_columns = FitColumns(
        problem=prepared.problem,
        patterns=told,
        center=prepared.of_columns("center"),
        unit=prepared.of_columns("unit"),
        parties=prepared.parties,
    )
    prepared.result.metrics["columns_withheld"] += float(len(unseen))
    _note(prepared, patterns.rows, settled, positive, steps)
    parts = made_of(told, kept, kept[:0])
    return opened_columns, Maximum(fit, model, held, kept, unseen, [], parts, by_pattern=False)


def _of_pairs(
    opened: CompletedMoments, products: CompletedProducts, y: Array, n_both: Array
) -> tuple[Array, Array]:
    """Return mean and covariance of columns and label from pairs, a start.

    The label is known in all rows. So a column counts by its regression on the label over its own
    rows, and two columns by what they have in common given the label over the rows of both: where
    blocks are missing by the label, these hold for all rows.
    """
    rows = products.patterns.rows
    held = products.held[rows][:, products.patterns.owner].astype(np.float64)
    n, own = np.maximum(n_both[:-1, :-1], 1.0), np.maximum(np.diag(n_both)[:-1], 1.0)
    level = held.T @ (held * y[rows, None]) / n  # of the label, over the rows of two columns
    spread = held.T @ (held * y[rows, None] ** 2) / n - level**2
    mean, at = opened.sums[:-1] / own, np.diag(level)
    slope = (opened.products[:-1, -1] / own - mean * at) / np.maximum(np.diag(spread), 1e-12)
    here = mean[:, None] + slope[:, None] * (level - at[:, None])
    given = opened.products[:-1, :-1] / n - here * here.T
    variance = float(y.var())
    covariance = np.empty_like(n_both)
    covariance[:-1, :-1] = given + np.outer(slope, slope) * (variance - spread)
    covariance[:-1, -1] = covariance[-1, :-1] = slope * variance
    covariance[-1, -1] = variance
    return np.append(mean + slope * (y.mean() - at), y.mean()), covariance


def _usable(prepared: Prepared, opened: CompletedMoments, covariance: Array) -> Indices:
    """Return the columns that a fit can use: told of, and no copy of those before them."""
    left_out = opened.withheld[:-1].copy()
    for name, own in prepared.parties.items():
        names = prepared.problem.columns[name]
        left_out[own] |= np.isin(names, prepared.problem.collinear[name])
    left_out |= np.diag(covariance)[:-1] <= 1e-6
    columns = np.flatnonzero(~left_out)
    if not len(columns):
        raise DataError("no column of any party varies over rows that may be told of")
    size = np.sqrt(np.diag(covariance)[columns])
    correlation = covariance[np.ix_(columns, columns)] / np.outer(size, size)
    copies = (np.triu(np.abs(correlation), 1) > COPY).any(axis=0)
    return np.asarray(columns[~copies])


def _of_all(point: Point, columns: Indices, n_columns: int) -> Point:
    """Return a point of some columns as one of all: the others are independent of any."""
    every = Point.none(n_columns)
    every.mean[columns], every.spread[columns] = point.mean, point.spread
    every.correlations[np.ix_(columns, columns)] = point.correlations
    every.sizes[columns] = point.sizes
    return every


def _is_positive(covariance: Array) -> bool:
    size = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
    return bool(np.linalg.eigvalsh(covariance / np.outer(size, size))[0] > 1e-6)


def _has_settled(moved: Array, vcov: Array, of_noise: Array) -> bool:
    """Tell whether a step moved slopes by less than `SETTLED` errors, beside what noise moves.

    Noise of two steps moves a slope with twice the variance of one's. Over all slopes together the
    mean of squares is compared: its own error is small where there are many.
    """
    variance, noise = np.diag(vcov)[1:], 2.0 * np.diag(of_noise)[1:]
    expected = noise / variance
    chance = 2.0 * np.sqrt(2.0 * float(expected @ expected)) / len(moved)
    return bool(np.mean(moved**2 / variance - expected) < SETTLED**2 + chance)


def _as_patterns(counts: PatternCounts) -> Patterns:
    """Return patterns of which nothing but the rows is known."""
    found = []
    for observed, n_rows in zip(counts.observed, counts.n_rows, strict=True):
        o = np.flatnonzero(observed)
        found.append(Pattern(o, float(n_rows), np.zeros(len(o)), np.zeros((len(o), len(o)))))
    return Patterns(counts.observed.shape[1], found)


def _in_units(
    held: Patterns, mean: Array, covariance: Array, vcov: Array, label_unit: float
) -> Fit:
    """Return the fit, of labels as the server has them."""
    model = FullCovariance(np.ones(covariance.shape, dtype=bool))
    fit = Likelihood(held, model).fit(mean, covariance, vcov * label_unit**2, 0, True)
    return replace(fit, log_likelihood=float("nan"), without_information=True)


def _note(prepared: Prepared, taken: Indices, settled: bool, positive: bool, steps: int) -> None:
    result, mask = prepared.result, prepared.problem.mask
    n_left = int((~mask).any(axis=1).sum()) - len(taken)
    counted = np.ones(mask.shape, dtype=bool)
    counted[taken] = mask[taken]
    names = list(prepared.widths)
    result.frames["rows_by_pattern"] = rows_by_pattern(mask, counted, names)
    result.metrics["rows_merged"], result.metrics["rows_left_out"] = 0.0, float(n_left)
    if n_left:
        result.notes.append(
            f"{n_left:,} rows were left out: the parties that hold them, or lack them, would tell "
            "of few rows. A lower 'min-rows' at the nodes would use more of them"
        )
    if not positive:
        result.notes.append(
            "the estimated covariance of columns and label is not positive definite: there are no "
            "standard errors and intervals; columns are nearly combinations of others, or too few "
            "rows are shared"
        )
    elif not settled:
        result.notes.append(
            f"the last of {steps} steps moved a coefficient by more than a tenth of its standard "
            "error: standard errors and intervals take blocks as missing completely at random"
        )
