"""The server's products in a run of FedPSG-AR: rank correlations, then counts of value pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isqrt
from typing import Any, Self

import numpy as np

from flwr_vertical import Federation, Progress
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.products import EncryptedProducts, GroupKey, Moments, PairKeys, products_of
from flwr_vertical.products.moments import largest_minimum
from flwr_vertical.products.row_groups import RowGroups, group_rows
from strategies.fedpsg.attribute_pairs import Pair
from strategies.fedpsg.run_plan import told_of_features, told_of_labels, told_of_pairs, told_of_rows


@dataclass(frozen=True)
class SharedRows:
    """Rows that two parties or more hold, in groups that may be told of."""

    parties: tuple[str, ...]  # In the order of the mask's columns
    # (n_samples,): number of each row's group, -1 for rows that one party alone holds or that are
    # too few
    group: Indices
    mask: Flags  # (n_groups, n_parties): true where a party's block counts as missing

    @classmethod
    def of(cls, mask: Flags, parties: Sequence[str], widths: Indices, minimum: int) -> "SharedRows":
        """Group the rows of a mask of shape (n_samples, n_parties), small groups merged."""
        groups: RowGroups = group_rows(mask, widths, 0, minimum)
        shared = (~groups.mask).sum(axis=1) >= 2
        number = np.append(np.where(shared, np.cumsum(shared) - 1, -1), -1)
        return cls(tuple(parties), number[groups.group], groups.mask[shared])

    @property
    def sizes(self) -> Indices:
        """Rows of each group; shape (n_groups,)."""
        return np.bincount(self.group[self.group >= 0], minlength=len(self.mask))

    def groups_of(self, a: str, b: str) -> Flags:
        """Return which groups both parties hold; shape (n_groups,)."""
        at = [self.parties.index(a), self.parties.index(b)]
        return np.asarray(np.logical_and(*np.logical_not(self.mask[:, at]).T))

    def count(self, a: str, b: str) -> int:
        """Return how many rows both parties hold."""
        return int(self.sizes[self.groups_of(a, b)].sum())


def score_labels(parties: Sequence[str], widths: Mapping[str, int]) -> Indices:
    """Return of which two parties each column of rank scores is: equal ones are multiplied."""
    number = {frozenset(two): i for i, two in enumerate(combinations(parties, 2))}
    return np.array(
        [
            number[frozenset((name, other))]
            for name in parties
            for other in parties
            if other != name
            for _ in range(widths[name])
        ],
        dtype=np.int64,
    )


def rank_correlations(
    moments: Moments, rows: SharedRows, widths: Mapping[str, int]
) -> dict[tuple[str, str], Array]:
    """Return Spearman's correlations, (p_a, p_b), by two parties, the earlier first."""
    labels = score_labels(rows.parties, widths)
    owner = np.concatenate(
        [np.full(widths[n] * (len(rows.parties) - 1), k) for k, n in enumerate(rows.parties)]
    )
    found = {}
    for number, (a, b) in enumerate(combinations(rows.parties, 2)):
        here = rows.groups_of(a, b)
        n_rows = rows.count(a, b)
        of_a = np.flatnonzero((labels == number) & (owner == rows.parties.index(a)))
        of_b = np.flatnonzero((labels == number) & (owner == rows.parties.index(b)))
        total = moments.products[here][:, of_a][:, :, of_b].sum(axis=0)
        known = _told(moments, here)
        total = np.where(np.outer(known[of_a], known[of_b]), total, np.nan)
        found[a, b] = np.clip(total / n_rows, -1.0, 1.0) if n_rows else np.full(total.shape, np.nan)
    return found


def bins_of(pair: Pair, rows: SharedRows, minimum: int, most: int) -> int:
    """Return the most groups of a pair's values with which cells hold the minimum on average."""
    cells = rows.count(pair.target, pair.source) // max(minimum, 1)
    return min(most, max(2, isqrt(cells)))


def counts_of_pairs(
    moments: Moments, labels: Indices, owner: Indices, pairs: Sequence[Pair], rows: SharedRows
) -> list[Indices]:
    """Return the table of counts of each pair.

    Shapes: labels, owner (n_columns,): number of the pair, and of the party, of each column;
    returns (n_source, n_target): 0 in groups of values that a party withheld in some of the rows.
    """
    found = []
    for i, pair in enumerate(pairs):
        here = rows.groups_of(pair.target, pair.source)
        of_source, of_target = (
            np.flatnonzero((labels == i) & (owner == rows.parties.index(name)))
            for name in (pair.source, pair.target)
        )
        total = moments.products[here][:, of_source][:, :, of_target].sum(axis=0)
        told = _told(moments, here)
        counts = np.where(np.outer(told[of_source], told[of_target]), total, 0.0)
        found.append(np.rint(counts).astype(np.int64))
    return found


def _told(moments: Moments, groups: Flags) -> Flags:
    """Return of which columns all of some groups are told; shape (n_columns,)."""
    return np.asarray(np.count_nonzero(moments.withheld[groups], axis=0) == 0)


@dataclass(frozen=True)
class Comparison:
    """Compares the attributes of the parties over the samples that they share."""

    federation: Federation  # Of the run
    group_key: GroupKey  # Hands the group seed to the parties
    columns: Mapping[str, list[str]]  # Names of each party's attributes
    mask: Flags  # (n_samples, n_parties): true where a party lacks a sample
    rows: SharedRows  # Samples that two parties or more have, in groups that may be told of
    minimum: int  # Fewest samples of anything that is told of, the largest over the parties
    by_rule: bool  # Whether a party holds to the default minimum, three rows a column
    progress: Progress  # Told of every round
    _told: set[str] = field(default_factory=set)  # What was written into the parties' states

    @classmethod
    def of(
        cls,
        federation: Federation,
        keys: PairKeys,
        told: Mapping[str, Mapping[str, Any]],
        mask: Flags,
        progress: Progress,
    ) -> Self:
        """Group the samples, given what the parties told in `ComparingParty.prepare`."""
        names = federation.parties
        columns = {name: [str(c) for c in told[name]["columns"]] for name in names}
        widths = np.array([len(columns[name]) for name in names], dtype=np.int64)
        stated = {n: int(told[n]["min_rows"]) for n in names if "min_rows" in told[n]}
        minimum = largest_minimum(names, stated, int(widths.max()) * (len(names) - 1), 0)
        rows = SharedRows.of(mask, names, widths, minimum)
        by_rule = len(stated) < len(names)
        key = GroupKey(federation, keys)
        return cls(federation, key, columns, mask, rows, minimum, by_rule, progress)

    @property
    def names(self) -> list[str]:
        """The parties."""
        return self.federation.parties

    def rows_to_learn_from(self) -> dict[str, int]:
        """Return, by party, how many rows its regressions have: some for each column and group."""
        sizes, held = self.rows.sizes, ~self.rows.mask
        whole = int(sizes.sum())
        if not self.by_rule:
            return dict.fromkeys(self.names, whole)
        return {n: int(sizes[held[:, k]].min(initial=whole)) for k, n in enumerate(self.names)}

    def check_shared(self, targets: list[str]) -> None:
        """Refuse a party that shares too few samples with everybody."""
        for name in targets:
            if not max(self.rows.count(name, other) for other in self.names if other != name):
                k = self.names.index(name)
                shared = (~self.mask[:, [k]] & ~np.delete(self.mask, k, axis=1)).sum(axis=0)
                raise DataError(
                    f"party {name!r} shares too few samples with any other party to learn from: "
                    f"{int(shared.max())}, and nothing is told of fewer than {self.minimum}; align "
                    "more samples, or have every party lower 'min-rows' in its node config "
                    "(simulate(min_rows=...))"
                )

    def correlate(self) -> dict[tuple[str, str], Array]:
        """Return rank correlations of the attributes of every two parties; see `masked`."""
        widths = {name: len(self.columns[name]) for name in self.names}
        self._tell(told_of_rows(self.rows.group, self.rows.mask, self.names, self.minimum))
        products, _ = self._sent("rank scores")
        moments = self._opened(products, score_labels(self.names, widths))
        self.progress.step("open rank correlations")
        return rank_correlations(moments, self.rows, widths)

    def count(self, pairs: list[Pair], most: int) -> list[Indices]:
        """Return tables of counts of pairs of values, with up to `most` values of an attribute."""
        parts = {
            name: [i for i, p in enumerate(pairs) if name in (p.target, p.source)]
            for name in self.names
        }
        if self.by_rule:
            columns = 3 * max(len(of) for of in parts.values())
            most = max(2, min(most, int(self.rows.sizes.min()) // columns))
        bins = [bins_of(pair, self.rows, self.minimum, most) for pair in pairs]
        self._tell(told_of_pairs(pairs, bins, self.names))
        products, replies = self._sent("indicators")
        labels, owner = [], []
        for k, name in enumerate(self.names):
            sizes = np.asarray(replies[name]["groups"], dtype=np.int64)
            labels.append(np.repeat(np.array(parts[name], dtype=np.int64), sizes))
            owner.append(np.full(int(sizes.sum()), k))
        moments = self._opened(products, np.concatenate(labels))
        self.progress.step("open counts")
        return counts_of_pairs(
            moments, np.concatenate(labels), np.concatenate(owner), pairs, self.rows
        )

    def multiply_features(self) -> Moments:
        """Return sums of products of all columns of the parties' regressions; two rounds."""
        rows = self.rows
        self._tell(told_of_rows(rows.group, rows.mask, self.names, self.minimum))
        self._tell(told_of_features())
        products, _ = self._sent("columns of regressions")
        moments: Moments = products.moments(rows.group, len(rows.mask), missing=rows.mask)
        self.progress.step("open their products")
        return moments

    def _sent(self, what: str) -> tuple[Any, Mapping[str, Any]]:
        """Have the parties send columns to multiply; return the products, and what they told."""
        products = products_of(self.federation, self.group_key, limbs=1)
        replies = products.send()
        self.progress.step(f"send {what}")
        return products, replies

    def _tell(self, values: Mapping[str, Any]) -> None:
        self._told.update(values)
        for name in self.names:
            self.federation.update(name, values)

    def _opened(self, products: Any, labels: Indices) -> Moments:
        self._tell(told_of_labels(labels, self._told))
        rows = self.rows
        moments: Moments = products.moments(rows.group, len(rows.mask), missing=rows.mask)
        if isinstance(products, EncryptedProducts):
            products.close()
        return moments
