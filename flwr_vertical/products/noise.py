"""Noise that a party adds to sums of its columns before they are opened.

`PrivateRows` is ``(epsilon, delta)``-differential privacy of one row of all parties.

A sum of two owners' data, such as a product of two parties' columns, gets the full noise of each:
no node that knows its own noise comes nearer to the exact sum than what the rule promises. Noise is
in whole numbers of the ring, from a cryptographic generator under a key of the node and the run,
and follows from what is asked for: the same sums have the same noise, so asking again tells
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Ring
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import Keystream, gaussian_integers, gaussian_sigma
from flwr_vertical.products.arithmetic import Layout

SUMS, SQUARES, PRODUCTS, VECTORS = range(4)
"""Columns of an array of levels: sums of a column, products of a column with itself, of two
columns, and of a column with a vector of the server."""

_MARGIN = 20.0
"""Standard deviations of noise for which the ring has room."""


@dataclass(frozen=True)
class PrivateRows:
    """Differential privacy of the values of one row, over all parties and the vectors.

    Replacing the values of one row changes the matrix of sums of products of ``z = (c, x, a v)`` by
    ``zz' - z'z''``, whose Frobenius norm is at most ``sqrt(2)`` times the largest ``|z|^2``. So
    noise of standard deviation sigma on its diagonal, and ``sigma / sqrt(2)`` beside it, which is
    the same in all directions of symmetric matrices, is a Gaussian mechanism. ``c^2 = a^2 =
    max |x|^2 / 2`` weigh sums and vectors against products. Groups of rows have no row in common,
    so each gets the noise of one release.
    """

    epsilon: float  # Of all sums of a run together
    delta: float  # Of all sums of a run together
    # Largest root mean square of a party's values of one row; the columns are offered so that
    # none is above 1 and no row above this. Vectors of the server are at most 1.
    row_norm: float = 1.0

    def levels(
        self, widths: Sequence[int], present: Flags, n_vectors: int, step: float = 0.0
    ) -> Array:
        """Return standard deviations by group and kind of sum.

        Shapes: present (n_groups, n_parties): whose columns are in the sums of a group; returns
        (n_groups, 4): `SUMS`, `SQUARES`, `PRODUCTS`, `VECTORS`; of columns in the units in which
        they are offered.
        """
        columns = np.asarray(present, dtype=float) @ np.asarray(widths, dtype=float)
        columns = np.maximum(columns, 1.0)
        squared = columns * (self.row_norm + step / 2.0) ** 2  # of x, with its rounding
        weight = self.weight(columns)
        largest = squared + weight * (1.0 + n_vectors)
        sigma = np.sqrt(2.0) * largest * gaussian_sigma(self.epsilon, self.delta)
        beside = sigma / np.sqrt(2.0)
        return np.stack([beside / np.sqrt(weight), sigma, beside, beside / np.sqrt(weight)], axis=1)

    def of_vectors(
        self, widths: Sequence[int], present: Flags, n_vectors: int
    ) -> tuple[Array, Array]:
        """Return standard deviations (n_groups,) for sums of a vector, and of its squares."""
        columns = np.maximum(np.asarray(present, float) @ np.asarray(widths, float), 1.0)
        weight = self.weight(columns)
        sigma = self.levels(widths, present, n_vectors)[:, SQUARES]
        return sigma / np.sqrt(2.0) / weight, sigma / weight

    def weight(self, columns: Array) -> Array:
        """Return ``c^2 = a^2`` for numbers of columns of a group."""
        return np.asarray(columns * self.row_norm**2 / 2.0)

    @property
    def agreed(self) -> bytes:
        """Epsilon, delta and norm: another party's bound is part of one's own promise."""
        return repr((self.epsilon, self.delta, self.row_norm)).encode()


def room_for(levels: Array, n_rows: int) -> int:
    """Return by how many bits columns must shrink for products to fit with the largest noise."""
    if not levels.size:
        return 0
    of_products = float(levels[:, [SQUARES, PRODUCTS]].max()) * _MARGIN / max(n_rows, 1)
    of_vectors = float(levels[:, VECTORS].max()) * _MARGIN / max(n_rows, 1)
    bits = max(0.5 * np.log2(max(of_products, 1.0)), np.log2(max(of_vectors, 1.0)))
    found = int(np.ceil(bits))
    if found > MOST_ROOM:
        raise ConfigError(
            f"the noise asked for is {of_products / _MARGIN:.3g} times as large as what products "
            f"of columns over {n_rows:,} rows can be: nothing would be left of them. Take more "
            "rows, fewer columns, or a larger epsilon"
        )
    return found


MOST_ROOM = 12
"""Bits that columns may leave free for noise."""


@dataclass(frozen=True)
class Drawn:
    """Noise of one party, in whole numbers of the ring."""

    sums: Ring  # (n_groups, n_own)
    own: Ring  # (n_groups, n_own, n_own): symmetric
    # (n_groups, 1, n_columns, n_columns): in the places of `arithmetic.corrections`
    across: Ring
    vectors: Ring  # (n_groups, n_own, n_vectors)


def draw(
    scaled: Array,
    bits: int,
    party: str,
    layout: Layout,
    n_vectors: int,
    streams: Sequence[Keystream],
) -> Drawn:
    """Draw noise for all sums of a party at levels (n_groups, 4), as they are encoded."""
    here, n_groups = layout.slices[party], len(scaled)
    width = here.stop - here.start
    found = Drawn(
        np.zeros((n_groups, width), dtype=np.uint64),
        np.zeros((n_groups, width, width), dtype=np.uint64),
        layout.zeros(n_groups),
        np.zeros((n_groups, width, n_vectors), dtype=np.uint64),
    )
    upper = np.triu_indices(width, 1)
    diagonal = np.arange(width)
    for g, (level, stream) in enumerate(zip(scaled, streams, strict=True)):
        found.sums[g] = _ring(level[SUMS] * 2.0**bits, (width,), stream)
        found.own[g, diagonal, diagonal] = _ring(level[SQUARES] * 4.0**bits, (width,), stream)
        beside = _ring(level[PRODUCTS] * 4.0**bits, (len(upper[0]),), stream)
        found.own[g][upper] = found.own[g].T[upper] = beside
        for other in layout.slices.values():
            if other == here:
                continue
            size = other.stop - other.start
            block = _ring(level[PRODUCTS] * 4.0**bits, (width, size), stream)
            if other.start < here.start:
                found.across[g, 0, here, other] = block
            else:
                found.across[g, 0, other, here] = block.T
        found.vectors[g] = _ring(level[VECTORS] * 4.0**bits, (width, n_vectors), stream)
    return found


def _ring(sigma: float, shape: tuple[int, ...], stream: Keystream) -> Ring:
    """Draw numbers modulo 2^64; a standard deviation is rounded up to a whole number."""
    count = int(np.prod(shape))
    drawn = gaussian_integers(max(int(np.ceil(sigma)), 1), count, stream)
    return np.array([value % 2**64 for value in drawn], dtype=np.uint64).reshape(shape)


def variances(
    told: Mapping[str, Mapping[str, Array]], names: Sequence[str], withheld: Flags, unit: Array
) -> dict[str, Array]:
    """Return the variance of the noise of each opened number.

    Shapes: withheld (n_groups, n_columns); unit (n_vectors,): what the vectors were divided by.
    """
    if not any("noise" in told[name] for name in names):
        return {}
    none = np.zeros((len(withheld), 4))
    levels = {name: np.asarray(told[name].get("noise", none)) ** 2 for name in names}
    scale = [np.asarray(told[name]["scale"]) ** 2 for name in names]
    owner = np.repeat(np.arange(len(names)), [len(s) for s in scale])
    squared = np.concatenate(scale)
    of_column = np.stack([levels[name] for name in names])[owner]  # (n_columns, n_groups, 4)
    sums = of_column[:, :, SUMS].T * squared
    beside = of_column[:, :, PRODUCTS].T
    # A product of two parties' columns has the noise of both.
    products = beside[:, :, None] + beside[:, None, :]
    same = owner[:, None] == owner[None, :]
    products = np.where(same, beside[:, :, None], products)
    at = np.arange(len(owner))
    products[:, at, at] = of_column[:, :, SQUARES].T
    products = products * np.outer(squared, squared)
    vectors = of_column[:, :, VECTORS].T[:, :, None] * squared[:, None] * unit**2
    sums[withheld], vectors[withheld] = 0.0, 0.0
    products[withheld] = 0.0
    products.swapaxes(1, 2)[withheld] = 0.0
    return {"sums_variance": sums, "products_variance": products, "vectors_variance": vectors}
