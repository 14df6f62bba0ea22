"""The server half of products of completed rows: which rows take part, and what is opened.

Columns are sent as for sums by pattern, with the power of two that each is divided by. In the
first `open_completed` nothing is completed: what opens are sums over the rows that two parties
share.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Integers, Integers32, Ring
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products import GroupKey, PrivateProducts
from flwr_vertical.products.arithmetic import encode, fraction_bits
from flwr_vertical.server import Federation
from strategies.linear.moments.collect import Prepared
from strategies.vfem.completed_steps import STEPS
from strategies.vfem.completion import (
    ROOM,
    Point,
    RowPatterns,
    coefficients,
    complete,
    unit_bits,
    whole_centres,
)


def rows_to_complete(prepared: Prepared) -> Flags | None:
    """Choose the rows whose sums parties tell of, as many as can be; None if a party has too few.

    Rows that two parties share, that one of two others shares with a third, or that a party lacks
    are none or enough: the smallest set that is not is left out, until all are.

    Shapes: returns (n_labelled,).
    """
    held, widths = ~prepared.problem.mask, np.array(list(prepared.widths.values()))
    names, minima = list(prepared.widths), prepared.minima

    def fewest(name: str, n_columns: int) -> int:
        return minima.get(name, min_rows(n_columns, 1))

    widest = STEPS * int(widths.max())
    own = np.array([fewest(n, int(w) + widest) for n, w in zip(names, widths, strict=True)])
    both = np.maximum(own[:, None], own)
    for a, b in np.ndindex(both.shape):
        needed = fewest(names[a], int(widths[a] + STEPS * widths[b])), 10 * STEPS * int(widths[b])
        both[a, b] = max(both[a, b], *needed)
    both = np.maximum(both, both.T)
    kinds, kind, counts = np.unique(held, axis=0, return_inverse=True, return_counts=True)
    has = kinds.astype(np.float64)
    kept: Flags = np.asarray(kinds.any(axis=1))
    while True:
        n = counts * kept
        pairs = (has * n[:, None]).T @ has
        lone = np.einsum("gk,gj,gm->kjm", has * n[:, None], has, 1.0 - has)
        lacking = n @ (1.0 - has)
        sets = [(pairs[k, m], has[:, k] * has[:, m]) for k, m in np.argwhere(pairs < both)]
        sets += [
            (lone[k, j, m], has[:, k] * has[:, j] * (1.0 - has[:, m]))
            for k, j, m in np.argwhere(lone < own[:, None, None])
        ]
        sets += [(lacking[k], 1.0 - has[:, k]) for k in np.flatnonzero(lacking < own)]
        few = [(size, chosen) for size, chosen in sets if size > 0]
        if not few:
            break
        smallest = min(few, key=lambda found: float(found[0]))[1]
        kept = np.asarray(kept & (smallest == 0))
    enough = [fewest(name, STEPS * int(widths.sum())) for name in names]
    if (np.diag(pairs) < enough).any():
        return None
    return kept[kind.reshape(-1)]


@dataclass(frozen=True)
class CompletedMoments:
    """Sums over completed rows less a mean, in units of the columns, the label last."""

    sums: Array  # (n_columns,)
    products: Array  # (n_columns, n_columns)
    withheld: Flags  # (n_columns,): columns of which nothing is told; sums with these mean nothing


class CompletedProducts(PrivateProducts):
    """Products of completed rows; taken (n_labelled,): `rows_to_complete`."""

    def __init__(self, prepared: Prepared, taken: Flags) -> None:
        federation: Federation = prepared.federation
        super().__init__(federation, GroupKey(federation, prepared.pairs), 1, ROOM)
        self._taken, self.held = taken, ~prepared.problem.mask
        self.widths = prepared.widths
        self.patterns = RowPatterns.of(taken, self.held, list(self.widths.values()))
        replies = self.send(prepared.problem.y[:, None])
        told = [np.asarray(replies[name]["shifts"], dtype=np.int64) for name in self.widths]
        self.shifts: Integers = np.append(np.concatenate(told), ROOM)
        self._y, self._n_opened = prepared.problem.y, 0

    @property
    def unit(self) -> float:
        """What labels are divided by."""
        return float(self._encoded(self._y[:, None], fraction_bits(len(self._y)))[1][0])

    def completed(self, point: Point) -> tuple[CompletedMoments, Integers32]:
        """Open the products of rows completed by a point; one round.

        Returns the moments over the rows that take part, and by what they were completed, int32.
        """
        flat = coefficients(point, self.patterns, self.shifts)
        names, vectors = self.federation.parties, self._y[:, None]
        encoded, _ = self._encoded(vectors, fraction_bits(len(vectors)))
        common = {
            "names": names,
            "widths": list(self.widths.values()),
            "tags": [self._tags[name] for name in names],
            "shifts": self.shifts[:-1],
            "n_rows": len(vectors),
            "n_columns": len(self.shifts),
            "taken": self._taken,
            "held": self.held,
            "mean": point.mean,
            "spread": point.spread,
            "correlations": point.correlations,
            "sizes": point.sizes,
            "coefficients": flat,
            "commitment": self.commitment.of(vectors),
        }
        own: dict[str, dict[str, object]] = {name: {} for name in names}
        self._mask_vectors(encoded, common, own)
        total = self.federation.sum("open_completed", common, per_party=own)
        self._ask_again_if_resumed()
        self._n_opened += 1
        found = self.federation.keep(
            f"completed {self._n_opened}",
            lambda: self._completed(point, flat, encoded, np.asarray(total["corrections"])),
        )
        told = [np.asarray(total.public[name]["withheld"], dtype=bool)[0] for name in names]
        withheld = np.append(np.concatenate(told), False)
        return CompletedMoments(found["sums"], found["products"], withheld), flat

    def _completed(
        self, point: Point, flat: Integers32, encoded: Ring, told: Ring
    ) -> dict[str, Array]:
        rows, owner = self.patterns.rows, self.patterns.owner
        n_rows, d = len(encoded), len(self.shifts)
        masked = np.zeros((1, len(rows), d), dtype=np.uint64)
        for k, name in enumerate(self.widths):
            masked[0][:, np.flatnonzero(owner == k)] = self._masked[name][rows]
        masked[0][:, -1] = encoded[rows, 0]
        masked -= whole_centres(point, n_rows, self.shifts)
        label = np.ones((len(rows), 1), dtype=bool)
        masked[0] *= np.hstack([self.held[rows][:, owner], label])
        done = complete(masked, flat, self.patterns, self.shifts)[0]
        bits = unit_bits(n_rows)
        one = np.full((len(rows), 1), np.uint64(1) << np.uint64(bits))
        done = np.hstack([done, one])
        exact = done.T @ done
        opened = exact - told.view(np.uint64).reshape(d + 1, d + 1)
        opened[d - 1 :, d - 1 :] = exact[d - 1 :, d - 1 :]  # of the label alone
        values = opened.view(np.int64).astype(np.float64) * 2.0 ** (-2 * bits)
        return {"sums": values[:-1, -1], "products": values[:-1, :-1]}

    def _encoded(self, vectors: Array, bits: int) -> tuple[Ring, Array]:
        unit = np.sqrt(np.mean(np.sort(vectors**2, axis=0), axis=0))  # see `PrivateProducts`
        unit[unit == 0.0] = 1.0
        return encode(vectors / unit / 2.0**ROOM, bits, 1, party="the server"), unit
