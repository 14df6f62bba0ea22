"""Algorithm 2: products of different parties' columns, estimated from random projections.

Two parties draw one m x n matrix S of signs (Achlioptas, 2003) from a seed that the server does not
know, and send ``S X / sqrt(m)`` of their columns X (zero in samples that they lack). Since
``E[S'S / m] = I``, the product of the two sketches estimates ``X_k' X_l`` without bias, with
variance ``(|a|^2 |b|^2 + (a'b)^2 - 2 sum of a_i^2 b_i^2) / m`` for columns a and b. The paper's L
sketches of m rows, averaged, are one of L m rows. It prints a matrix ``S_k`` of each client's own,
with which the products would have expectation zero: a pair must share it.

Without S, a sketch tells the server the second moments ``X'X``, and little more. The other owner of
the seed could solve for X, and must not see the sketch.
"""

from typing import Annotated, Any

import numpy as np

from flwr_vertical import Federation, StepGroup, step
from flwr_vertical.arrays import Array
from flwr_vertical.products import HeldColumns, PairKeys, PairKeySteps
from flwr_vertical.products.columns import MultipliesColumns
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.arguments import OWN, Is, Within

PURPOSE = "vfem information"
_BLOCK_SIGNS = 1 << 20


class SketchSteps(StepGroup):
    """Sketches of columns; the party also uses `PairKeySteps`, and has `columns_to_multiply`."""

    party: MultipliesColumns

    @step
    def sketch_rows(
        self,
        nonce: bytes,
        weight: Annotated[Array, OWN, Within(0.0, 1e300)],
        size: Annotated[int, Is("sketch_size")],
    ) -> dict[str, Any]:
        """Sketch the own columns for each other party, each row times the root of its weight.

        Message: nonce: of this run; weight (n_held,): of the rows held; size: rows of a sketch;
        returns (size, n_columns) by the other party's name.
        """
        columns = self.party.columns_to_multiply().weighted(np.sqrt(weight))
        seeds = self.other(PairKeySteps).seeds(nonce, PURPOSE)
        return {name: sketch(columns, seed, size) for name, seed in seeds.items()}


def sketch(columns: HeldColumns, seed: bytes, size: int) -> Array:
    """Multiply a party's columns by the signs of a seed; returns (size, n_columns)."""
    stream = KeyStream(seed, "vfem sketch", (columns.n_samples, -(-size // 64)))
    total = np.zeros((size, columns.values.shape[1]))
    block = max(_BLOCK_SIGNS // size, 1)
    for start in range(0, columns.n_samples, block):
        stop = min(start + block, columns.n_samples)
        first, last = np.searchsorted(columns.rows, [start, stop])
        words = stream.rows(start, stop)[columns.rows[first:last] - start].astype("<u8")
        bits = np.unpackbits(words.view(np.uint8), axis=1)[:, :size]
        total += (2.0 * bits - 1.0).T @ columns.values[first:last]
    return np.asarray(total / np.sqrt(size))


def sketched_products(
    federation: Federation, weight: dict[str, Array], size: int
) -> dict[tuple[int, int], Array]:
    """Estimate weighted products of two parties' columns, j < k; three rounds, if there are any."""
    names = federation.parties
    if len(names) < 2 or not size:
        return {}
    keys = PairKeys(federation)
    keys.hand_out()
    sketches = federation.call(
        "sketch_rows",
        {"nonce": keys.nonce, "size": size},
        per_party={name: {"weight": weight[name]} for name in names},
    )
    return {
        (j, k): sketches[names[j]][names[k]].T @ sketches[names[k]][names[j]]
        for k in range(1, len(names))
        for j in range(k)
    }
