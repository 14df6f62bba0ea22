"""VFEM from moments: maximum likelihood on the server, given sums by pattern of missing blocks."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from strategies.linear.moments.collect import OpenedMoments, told_by
from strategies.linear.moments.covariances import (
    BlockCovariance,
    CovarianceModel,
    FullCovariance,
    NoisePrior,
    RegressionCovariance,
    Through,
)
from strategies.linear.moments.fit import Fit, fit_normal
from strategies.linear.moments.identifiable import (
    gives_label,
    made_of,
    redundant,
    restrict,
    unobserved,
    without_redundant,
)
from strategies.linear.moments.patterns import Patterns
from strategies.linear.problem import note

FEWEST_JOINT = 30
"""Of columns held together in fewer rows, the covariance is not identified."""

MOST_MOVED = 0.1
"""By so many standard errors a coefficient may hang on covariances that are not identified."""

MOST_COLUMNS = 100
"""Of more, the information on the covariance does not fit a usual computer's memory."""


@dataclass(frozen=True)
class Maximum:
    """The fitted model, in standardised units."""

    fit: Fit  # Of the columns in `kept`
    model: CovarianceModel  # What was free
    patterns: Patterns  # What it was fitted to
    kept: Indices  # (n_kept,): columns of the fit, by their numbers among all
    unseen: Indices  # (n_unseen,): columns that are in no group
    # (str, str): pairs of parties some of whose columns have a covariance that is not identified,
    # for lack of rows
    unidentified: list[tuple[str, str]]
    # (n_columns, 1 + n_kept): a level, and weights of the columns in `kept` of which each column is
    # made; 0 of those that are not
    parts: Array
    by_pattern: bool = True  # Whether `patterns` have sums; else they have rows alone

    def not_identified(self, change: Array) -> Flags:
        """Tell which coefficients depend on covariances that no rows tell.

        Shapes: change (n_kept + 1, n_kept + 1): from (intercept, beta) of the fit to those in
        question; returns (n_kept + 1,): true where partial correlations of 1/2 or -1/2 in place of
        0 move a coefficient, all together, by more than `MOST_MOVED` of its standard error.
        """
        moved = np.abs(change @ self.fit.moved).max(axis=0).sum(axis=1)
        error = np.sqrt(np.maximum(np.diag(change @ self.fit.vcov @ change.T), 0.0))
        return np.asarray(moved > MOST_MOVED * error)


def maximise(
    opened: OpenedMoments, covariance: str, intercept: bool = True, noise_prior: float = 0.0
) -> Maximum:
    """Fit the joint normal model to opened moments."""
    d = opened.n_columns
    unseen = unobserved(opened.patterns)[:d]
    if covariance == "full":
        # Rows that lack a column and have its copy do not lack it: they may be missing by it.
        patterns, kept, parts = without_redundant(opened.patterns)
    else:
        # Columns follow from those of their own party alone, and tell nothing more.
        patterns, kept = opened.patterns, np.flatnonzero(~(unseen | _redundant_at_home(opened)))
        parts = made_of(patterns, kept, kept[:0])
    if len(kept) > MOST_COLUMNS and not intercept:
        raise DataError(
            f"{len(kept)} columns of all parties, and without an intercept the joint model fits at "
            f"most {MOST_COLUMNS}; set intercept=True, or leave out columns"
        )
    if not len(kept):
        raise DataError("no column of any party varies over rows that may be told of")
    if len(found := gives_label(opened.patterns)):
        raise DataError(f"{told_by(opened.names(found))}; the likelihood has no maximum")
    patterns = restrict(patterns, np.append(kept, d))
    owner = opened.owner[kept]
    unidentified: list[tuple[str, str]] = []
    if covariance == "block":
        counts = np.bincount(owner, minlength=len(opened.parties))
        model: CovarianceModel = BlockCovariance([int(n) for n in counts])
    else:
        free = patterns.joint_rows() >= FEWEST_JOINT
        free[-1, :] = free[:, -1] = True
        free |= np.pad(owner[:, None] == owner[None, :], ((0, 1), (0, 1)))
        names = list(opened.parties)
        zero = np.argwhere(~free[:-1, :-1])
        pairs = {(int(owner[i]), int(owner[j])) for i, j in zero if owner[i] < owner[j]}
        unidentified = [(names[a], names[b]) for a, b in sorted(pairs)]
        regression = noise_prior > 0 or not intercept  # then its noise variance is a parameter
        if unidentified and regression:
            raise DataError(
                f"the parties {listed(unidentified)} hold fewer than {FEWEST_JOINT} rows together, "
                "which a fit with noise_prior or without an intercept needs; set intercept=True "
                "and noise_prior=0, or covariance='block', or leave one out"
            )
        model = RegressionCovariance(free[:-1, :-1]) if regression else FullCovariance(free)
    through = None
    if not intercept:
        assert isinstance(model, RegressionCovariance)
        through = Through(-opened.center[kept] / opened.unit[kept], model)
    prior = None
    if noise_prior:
        y = opened.problem.y
        prior = NoisePrior(noise_prior * len(kept), 0.5 * float(np.var(y)))
    newton = len(kept) <= MOST_COLUMNS
    fit = fit_normal(patterns, model, through=through, prior=prior, newton=newton)
    return Maximum(fit, model, patterns, kept, np.flatnonzero(unseen), unidentified, parts)


def listed(pairs: list[tuple[str, str]]) -> str:
    """Name pairs of parties, for notes."""
    return ", ".join(f"{one!r} and {other!r}" for one, other in pairs)


def _redundant_at_home(opened: OpenedMoments) -> Flags:
    """Tell which columns follow from others of their own party; shape (n_columns,).

    Where columns of different parties are uncorrelated, the rows that two parties share need not
    tell how theirs go together: there may be fewer of these than columns.
    """
    found = np.zeros(opened.n_columns, dtype=bool)
    for own in opened.parties.values():
        if own.stop > own.start:
            columns = np.append(np.arange(own.start, own.stop), opened.n_columns)
            found[own] = redundant(restrict(opened.patterns, columns))
    return found


def correlations(opened: OpenedMoments) -> Array:
    """Return correlations of all columns over the rows that have both; NaN where these are few.

    Shapes: returns (n_columns, n_columns).
    """
    d = opened.n_columns
    counts, sums = np.zeros((d, d)), np.zeros((d, d))
    squares, products = np.zeros((d, d)), np.zeros((d, d))
    for p in opened.held:
        o = p.observed[:-1]
        here = np.ix_(o, o)
        counts[here] += p.n_rows
        sums[here] += p.sums[:-1, None]
        squares[here] += np.diag(p.products)[:-1, None]
        products[here] += p.products[:-1, :-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums / counts
        spread = np.sqrt(np.maximum(squares / counts - mean**2, 0.0))
        found = (products / counts - mean * mean.T) / (spread * spread.T)
    return np.where(counts >= FEWEST_JOINT, found, np.nan)


MAX_ROOT_MEAN_SQUARE = 0.1
MAX_CORRELATION = 0.3
_DEVIATIONS = 5.0


def check_correlations(opened: OpenedMoments, result: Result) -> None:
    """Note how correlated columns of different parties are, and warn where the model is far off.

    The moments have the correlations that the model takes as zero, so nothing more is asked for.
    """
    found = correlations(opened)
    between = np.triu(opened.owner[:, None] != opened.owner) & np.isfinite(found)
    if not between.any():
        result.notes.append(
            "correlations between parties were not checked: any two share too few samples"
        )
        return
    rows = opened.patterns.joint_rows()[:-1, :-1]
    chance = 1.0 / rows[between]  # variance of the correlation of independent columns
    mean_square = float(np.mean(found[between] ** 2 - chance))
    root = float(np.sqrt(max(mean_square, 0.0)))
    result.metrics["correlation_rms"] = root
    i, j = np.unravel_index(np.argmax(np.where(between, np.abs(found), 0.0)), found.shape)
    largest = float(found[i, j])
    sure = abs(largest) > max(MAX_CORRELATION, _DEVIATIONS / np.sqrt(rows[i, j]))
    many = root > MAX_ROOT_MEAN_SQUARE and mean_square > _DEVIATIONS * float(
        np.sqrt(2.0) * np.linalg.norm(chance) / len(chance)
    )
    if sure or many:
        a, b = opened.names([i, j])
        text = (
            "covariance='block' assumes that columns of different parties are uncorrelated, which "
            f"is far off here: columns {a!r} and {b!r} have a correlation of {largest:.2f}, and "
            f"the root mean square over {int(between.sum())} pairs of columns is {root:.2f}. Where "
            "blocks are missing, coefficients are biased and standard errors wrong; use "
            "covariance='full'"
        )
        note(result, text)
