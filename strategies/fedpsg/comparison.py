"""The server's products in a run of FedPSG-AR: rank correlations, then counts of value pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.products import EncryptedProducts, GroupKey, Moments, PairKeys, products_of
from flwr_vertical.products.moments import largest_minimum
from flwr_vertical.results import Progress
from strategies.fedpsg.attribute_pairs import Pair
from strategies.fedpsg.counts import (
    SharedRows,
    bins_of,
    counts_of_pairs,
    rank_correlations,
    score_labels,
)
from strategies.fedpsg.run_plan import LABELS, told_of_features, told_of_pairs, told_of_rows


@dataclass(frozen=True)
class Comparison:
    """Compares the attributes of the parties over the samples that they share."""

    federation: Federation  # Of the run
    group_key: GroupKey  # Hands the group seed to the parties
    columns: Mapping[str, list[str]]  # Names of each party's attributes
    mask: npt.NDArray[np.bool_]  # (n_samples, n_parties): true where a party lacks a sample
    rows: SharedRows  # Samples that two parties or more have, in groups that may be told of
    minimum: int  # Fewest samples of anything that is told of, the largest over the parties
    by_rule: bool  # Whether a party holds to the default minimum, three rows a column
    progress: Progress  # Told of every round

    @classmethod
    def of(
        cls,
        federation: Federation,
        keys: PairKeys,
        told: Mapping[str, Mapping[str, Any]],
        mask: npt.NDArray[np.bool_],
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
        """Return, by party, how many rows there are for its columns of regressions.

        Where nodes hold to three rows a column, each group of rows needs as many.
        """
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
        products = products_of(self.federation, self.group_key, limbs=1)
        products.send()
        self.progress.step("send rank scores")
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
        products = products_of(self.federation, self.group_key, limbs=1)
        replies = products.send()
        self.progress.step("send indicators")
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
        products = products_of(self.federation, self.group_key, limbs=1)
        products.send()
        self.progress.step("send columns of regressions")
        moments: Moments = products.moments(rows.group, len(rows.mask), missing=rows.mask)
        self.progress.step("open their products")
        return moments

    def _tell(self, values: Mapping[str, Any]) -> None:
        for name in self.names:
            self.federation.update(name, values)

    def _opened(self, products: Any, labels: Indices) -> Moments:
        self._tell({LABELS: labels})
        rows = self.rows
        moments: Moments = products.moments(rows.group, len(rows.mask), missing=rows.mask)
        if isinstance(products, EncryptedProducts):
            products.close()
        return moments
