"""What is regressed on what: jobs from which cells are missing, and their coefficients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.products.row_groups import distinct_rows
from strategies.fedpsg.regression.features import WHOLE
from strategies.fedpsg.regression.ridge import Regression, RowMoments, regress

MOST_JOBS = 400


@dataclass(frozen=True)
class Told:
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


def jobs_of(told: Mapping[str, Told]) -> list[Job]:
    """Return what has to be imputed."""
    names = list(told)
    flags = np.hstack([told[name].missing for name in names])
    kinds, member, _ = distinct_rows(flags)
    ends = np.cumsum([told[name].missing.shape[1] for name in names])
    jobs = []
    for k, kind in enumerate(kinds):
        parts = dict(zip(names, np.split(kind, ends[:-1]), strict=True))
        rows = np.flatnonzero(member == k)
        jobs += [Job(name, rows, parts) for name in names if parts[name].any()]
        if len(jobs) > MOST_JOBS:
            raise DataError(
                f"more than {MOST_JOBS} different sets of attributes are missing, each of which "
                "takes regressions of its own; impute single cells first (strategy 'fknn'), or "
                "take imputer 'gain'"
            )
    return jobs


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
        """Return moments of the rows that some parties share, and of which columns all is told.

        None if there are no such rows.
        """
        at = [list(self.parties).index(name) for name in parties]
        groups = np.flatnonzero(~self.mask[:, at].any(axis=1))
        if not len(groups):
            return None
        sums, products = self.sums[groups].sum(axis=0), self.products[groups].sum(axis=0)
        told = np.count_nonzero(self.withheld[groups], axis=0) == 0
        return RowMoments.of_sums(int(self.n_rows[groups].sum()), sums, products), told


def solve(job: Job, told: Mapping[str, Told], sums: GroupSums) -> tuple[Array, Regression] | None:
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
