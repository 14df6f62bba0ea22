"""Ridge regressions from moments: what is missing in a sample on all that is known of it.

Chained equations (MICE; van Buuren and Groothuis-Oudshoorn, 2011) regress each attribute on all
others, fill in, and begin again until nothing changes. Where a party lacks whole samples, each
regression is learnt from the same complete ones, so its coefficients do not change either, and the
end is known at once: the linear regression of what is missing on what is known. That is what is
solved here; with few moments, not with rows. The penalty is that of the least generalised cross
validation (Golub, Heath and Wahba, 1979, (1.4)), which needs moments only, too.

What is regressed on what: jobs from which cells are missing, and their coefficients.

The regressions of one party alone: the paper's local imputation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.row_groups import distinct_rows
from strategies.fedpsg.regression.features import WHOLE, RegressionColumns, draw_codes, n_trees_of

PENALTIES = np.logspace(-6, 1, 15)
"""Tried, in units of a column of variance 1."""


@dataclass(frozen=True)
class RowMoments:
    """First and second moments of columns."""

    n_rows: int  # Samples
    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns)

    @classmethod
    def of_sums(cls, n_rows: int, sums: Array, products: Array) -> "RowMoments":
        """Make them of sums over rows, shapes (n_columns,) and (n_columns, n_columns)."""
        mean = sums / n_rows
        return cls(n_rows, mean, products / n_rows - np.outer(mean, mean))


@dataclass(frozen=True)
class Regression:
    """Coefficients of a regression."""

    weights: Array  # (n_known, n_targets)
    offset: Array  # (n_targets,)
    # (n_targets, n_targets): A square root of the covariance of what is left over: ``root @
    # root.T``
    root: Array
    penalty: float  # Chosen


def regress(moments: RowMoments, known: Indices, targets: Indices) -> Regression:
    """Regress some columns on others."""
    n = moments.n_rows
    within = moments.covariance[np.ix_(known, known)]
    across = moments.covariance[np.ix_(known, targets)]
    own = moments.covariance[np.ix_(targets, targets)]
    values, vectors = np.linalg.eigh(within)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ across
    spread = np.maximum(np.diag(own), 1e-12)
    best = np.inf, 0.0
    for penalty in PENALTIES if len(known) else ():
        shrunk = 1.0 / (values + penalty)
        explained = (turned**2 * (2.0 * shrunk - values * shrunk**2)[:, None]).sum(axis=0)
        left = n - 1.0 - (values * shrunk).sum()
        if left <= 0.0:
            continue
        score = float(((spread - explained) / spread).sum()) / left**2
        best = min(best, (score, float(penalty)))
    penalty = best[1] if np.isfinite(best[0]) else float(PENALTIES[-1])
    weights = vectors @ (turned / (values + penalty)[:, None])
    left_over = own - weights.T @ across - across.T @ weights + weights.T @ within @ weights
    roots, directions = np.linalg.eigh(left_over)
    root = directions * np.sqrt(np.maximum(roots, 0.0))
    offset = moments.mean[targets] - moments.mean[known] @ weights
    return Regression(weights, offset, root, penalty)


MOST_JOBS = 400


@dataclass(frozen=True)
class KnownColumns:
    """What the server knows of a party's columns."""

    attributes: Indices  # (width,): the attribute of each column; `WHOLE` where all are needed
    n_targets: int  # How many columns attributes can be told from; they come first
    missing: Flags  # (n_samples, n_attributes): which cells are to be imputed

    def known(self, missing: Flags) -> Flags:
        """Return which columns are known where some attributes are missing; shape (width,)."""
        flags: Flags = ~np.append(missing, missing.any())[self.attributes]
        assert WHOLE == -1
        return flags

    def targets(self, missing: Flags) -> Indices:
        """Return the columns that missing attributes are told from."""
        return np.flatnonzero(missing[self.attributes[: self.n_targets]])


@dataclass(frozen=True)
class Job:
    """Samples of which one party misses the same attributes and all know the same others."""

    target: str  # The party
    rows: Indices  # The samples
    missing: Mapping[str, Flags]  # (n_attributes,): by party, which attributes are missing

    @property
    def columns(self) -> Indices:
        """The attributes to be imputed."""
        return np.flatnonzero(self.missing[self.target])


def jobs_of(told: Mapping[str, KnownColumns]) -> tuple[list[Job], int]:
    """Return what is imputed, at most `MOST_JOBS`, and how many samples are left out.

    Sets of missing attributes that most samples have come first: of whole missing blocks, too.
    """
    names = list(told)
    flags = np.hstack([told[name].missing for name in names])
    kinds, member, counts = distinct_rows(flags)
    ends = np.cumsum([told[name].missing.shape[1] for name in names])
    jobs: list[Job] = []
    left = 0
    for k in np.argsort(-counts, kind="stable"):
        parts = dict(zip(names, np.split(kinds[k], ends[:-1]), strict=True))
        targets = [name for name in names if parts[name].any()]
        if len(jobs) + len(targets) > MOST_JOBS:
            left += int(counts[k])
            continue
        rows = np.flatnonzero(member == k)
        jobs += [Job(name, rows, parts) for name in targets]
    return jobs, left


@dataclass(frozen=True)
class GroupSums:
    """Sums over groups of rows, as opened."""

    parties: Sequence[str]  # In the order of the columns
    n_rows: Indices  # (n_groups,)
    mask: Flags  # (n_groups, n_parties): true where a party counts as missing
    sums: Array  # (n_groups, n_columns)
    products: Array  # (n_groups, n_columns, n_columns)
    withheld: Flags  # (n_groups, n_columns)

    def over(self, parties: Sequence[str]) -> tuple[RowMoments, Flags] | None:
        """Return moments of rows that some parties share, and what is whole; None without rows."""
        at = [list(self.parties).index(name) for name in parties]
        groups = np.flatnonzero(~self.mask[:, at].any(axis=1))
        if not len(groups):
            return None
        sums, products = self.sums[groups].sum(axis=0), self.products[groups].sum(axis=0)
        told = np.count_nonzero(self.withheld[groups], axis=0) == 0
        return RowMoments.of_sums(int(self.n_rows[groups].sum()), sums, products), told


def solve(
    job: Job, told: Mapping[str, KnownColumns], sums: GroupSums
) -> tuple[Array, Regression] | None:
    """Return the coefficients of a job.

    Shapes: returns (n_columns, n_target_columns): of all parties' columns, 0 where unknown.
    """
    names = list(told)
    at = dict(zip(names, np.cumsum([0, *(len(told[n].attributes) for n in names)]), strict=False))
    known = np.concatenate([told[n].known(job.missing[n]) for n in names])
    owner = np.repeat(np.arange(len(names)), [len(told[n].attributes) for n in names])
    helpers = [n for k, n in enumerate(names) if known[owner == k].any() or n == job.target]
    targets = at[job.target] + told[job.target].targets(job.missing[job.target])
    # Rows that all of them share; where there are none, of fewer of them.
    while (found := sums.over(helpers)) is None:
        others = [n for n in helpers if n != job.target]
        if not others:
            return None
        helpers = [job.target, *others[:-1]]
    moments, is_told = found
    within = np.isin(owner, [names.index(n) for n in helpers])
    used = np.flatnonzero(known & is_told & within)
    result = regress(moments, used, targets)
    unknown = ~is_told[targets]
    weights = np.zeros((len(known), len(targets)))
    weights[used] = np.where(unknown, 0.0, result.weights)
    offset = np.where(unknown, 0.0, result.offset)
    root = np.where(unknown[:, None], 0.0, result.root)
    return weights, Regression(result.weights, offset, root, result.penalty)


def regress_alone(
    own: Array,
    codes: Array,
    n_levels: Sequence[int],
    drawn: bool,
    n_trees: int,
    rng: np.random.Generator,
) -> Array:
    """Fill what is missing in a party's table by regressions on the party's own attributes.

    Shapes: own (n_samples, n_columns): as observed: regressions are learnt from rows without a
    missing cell; codes (n_samples, n_columns): to be filled; returns (n_samples, n_columns): NaN
    in columns of which nothing is learnt.
    """
    whole = own[~np.isnan(own).any(axis=1)]
    width = int(np.maximum(n_levels, 1).sum())
    trees = n_trees_of(n_trees, len(whole), width)
    features = RegressionColumns.fit(own, n_levels, drawn, trees)
    columns = features.encode(whole)
    told = {"own": KnownColumns(features.attributes, features.n_targets, np.isnan(codes))}
    sums = GroupSums(
        ["own"], np.array([len(whole)]), np.zeros((1, 1), bool), columns.sum(axis=0)[None],
        (columns.T @ columns)[None], np.zeros((1, columns.shape[1]), bool),
    )  # fmt: skip
    out = codes.copy()
    for job in jobs_of(told)[0] if len(whole) else ():
        found = solve(job, told, sums)
        assert found is not None
        weights, result = found
        values = features.encode(codes[job.rows]) @ weights + result.offset
        columns = job.columns.tolist()
        out[np.ix_(job.rows, columns)] = (
            draw_codes(features, values, columns, result.root, rng)
            if drawn
            else features.decode(values, columns)
        )
    return out
