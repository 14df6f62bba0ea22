"""Ranks perturbed by antisymmetric randomised response on all pairwise comparisons.

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Eqs. 2.2 and 2.3. Each of the n (n - 1) / 2 comparisons of a column is turned round with
probability theta, independently; a sample's perturbed rank counts the comparisons that it wins
afterwards. In the order of the true ranks, with f_ij = 1 where the comparison of i > j was turned,

    R~_i = 1 + i - sum_{j < i} f_ij + sum_{j > i} f_ji,        i = 0, ..., n - 1,

so only row and column sums of a triangular matrix of random bits are needed. The bits are made
and counted in tiles, 64 to a word: n = 70,000 needs no n x n memory.

A nominal column has no order. Each of its levels is an indicator with ranks of its own, whose equal
values are compared by a fair coin each. Where one value changes from level a to level b, only the
indicators of a and b change, each from a win or a defeat to a coin or back. So one comparison
spends at most ``2 log(1 / (2 theta))`` over all indicators together, however many there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, floor, inf, log

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers, Ring
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import Keystream

Words = Ring

THETA_BITS = 16
_ROWS = 256  # a power of two: rows of a tile, and the unit of its columns
_WORDS = 64  # words in a row of a tile: 256 x 64 words are 128 KiB, which a core's cache holds
_WIDTH = 64 * _WORDS
_TOO_SMALL = (
    "epsilon = {:.2e} for the comparisons of one column is too small: they would be pure noise; "
    "use a larger epsilon or budget='per-variable'"
)


@dataclass(frozen=True)
class Flip:
    """The chance that a comparison is turned round, as a multiple of 2^-16."""

    numerator: int  # ``theta = numerator / 2^16``, in [0, 1/2)

    @classmethod
    def of(cls, epsilon: float) -> "Flip":
        """Return theta = 1 / (1 + exp(epsilon)), rounded up: never less private than asked for.

        Beyond epsilon = 11 theta stays at 2^-16; an infinite epsilon gives no noise at all.
        """
        if not epsilon > 0:
            raise ConfigError(f"epsilon must be positive, got {epsilon!r}")
        if epsilon == inf:
            return cls(0)
        numerator = floor(2**THETA_BITS / (1 + exp(min(epsilon, 700.0)))) + 1
        if 2 * numerator >= 2**THETA_BITS:
            raise ConfigError(_TOO_SMALL.format(epsilon))
        return cls(numerator)

    @property
    def theta(self) -> float:
        """The chance itself; exact."""
        return float(self.numerator / 2**THETA_BITS)

    @property
    def epsilon(self) -> float:
        """What one comparison really spends, ``log((1 - theta) / theta)``."""
        return float(log((1 - self.theta) / self.theta)) if self.numerator else inf

    @property
    def of_indicators(self) -> "Flip":
        """The chance with which all indicators of a column together spend no more than this one.

        ``2 log(1 / (2 theta'))`` is at most ``log((1 - theta) / theta)``.
        """
        if not self.numerator:
            return self
        half = (self.theta / (1 - self.theta)) ** 0.5  # exp(-epsilon / 2)
        numerator = floor(2 ** (THETA_BITS - 1) * half) + 1
        if 2 * numerator >= 2**THETA_BITS:
            raise ConfigError(_TOO_SMALL.format(self.epsilon))
        return Flip(numerator)

    def debias(self, ranks: npt.ArrayLike, n: int) -> Array:
        """Return unbiased estimates of ranks, (n,), less their mean (n + 1) / 2 (Eq. 2.3)."""
        centred: Array = np.asarray(ranks, dtype=np.float64) - (n + 1) / 2
        return centred / (1 - 2 * self.theta)

    def noise_variance(self, n: int) -> float:
        """Variance of a debiased rank: (n - 1) theta (1 - theta) / (1 - 2 theta)^2."""
        theta = self.theta
        return float((n - 1) * theta * (1 - theta) / (1 - 2 * theta) ** 2)

    def indicator_noise(self, n: int, share: float) -> float:
        """Mean variance of a debiased rank of an indicator that a share of the rows has."""
        unequal = 2 * share * (1 - share)
        each = unequal * self.theta * (1 - self.theta) + (1 - unequal) / 4
        return float((n - 1) * each / (1 - 2 * self.theta) ** 2)


_COIN = Flip(2 ** (THETA_BITS - 1))


def perturbed_ranks(values: npt.ArrayLike, flip: Flip, stream: Keystream) -> Integers:
    """Rank a column, turning comparisons round at random.

    Shapes: values (n,): without missing ones; returns (n,): in 1, ..., n; not a permutation, but
    their sum is that of one.
    """
    values = np.asarray(values)
    n = len(values)
    ties = stream.shuffled(n)
    order = ties[np.argsort(values[ties], kind="stable")]
    ranks = np.arange(1, n + 1)
    if flip.numerator:
        rows, columns = flip_sums(n, flip, stream)
        ranks += columns - rows
    perturbed = np.empty(n, dtype=np.int64)
    perturbed[order] = ranks
    return perturbed


def column_ranks(values: npt.ArrayLike, width: int, flip: Flip, stream: Keystream) -> Integers:
    """Rank a column in its order, or each of its levels against all others; (n, width)."""
    if width == 1:
        return perturbed_ranks(values, flip, stream)[:, None]
    values, each = np.asarray(values), flip.of_indicators
    return np.column_stack([indicator_ranks(values == a, each, stream) for a in range(width)])


def indicator_ranks(held: npt.ArrayLike, flip: Flip, stream: Keystream) -> Integers:
    """Rank an indicator, turning comparisons of unequal values round at random.

    Shapes: held (n,): which rows have the level; returns (n,): in 1, ..., n; not a permutation,
    but their sum is that of one.
    """
    held = np.asarray(held, dtype=np.bool_)
    n = len(held)
    ranks = np.ones(n, dtype=np.int64)
    parts = [np.flatnonzero(held), np.flatnonzero(~held)]
    for rows in parts:
        lost, won = flip_sums(len(rows), _COIN, stream)
        ranks[rows] += np.arange(len(rows)) - lost + won
    with_it, without = parts
    ranks[with_it] += len(without)
    if flip.numerator:
        lost, won = rectangle_sums(len(with_it), len(without), flip, stream)
        ranks[with_it] -= lost
        ranks[without] += won
    return ranks


def rectangle_sums(
    n_rows: int, n_columns: int, flip: Flip, stream: Keystream
) -> tuple[Integers, Integers]:
    """Return row and column sums of a rectangle of random bits."""
    rows = np.zeros(n_rows + _ROWS, dtype=np.int64)
    columns = np.zeros(n_columns + _WIDTH, dtype=np.int64)
    buffer = np.empty((2, _ROWS * _WORDS), dtype=np.uint64)
    for first in range(0, n_rows, _ROWS):
        for left in range(0, n_columns, _WIDTH):
            width = min(_WIDTH, n_columns - left)
            n_words = -(-width // 64)
            size = _ROWS * n_words
            bits = _bernoulli(buffer[0, :size], buffer[1, :size], flip.numerator, stream)
            tile = bits.reshape(_ROWS, n_words)
            tile[n_rows - first :] = 0
            if width % 64:  # the last word has bits of no column
                tile[:, -1] &= np.uint64((1 << width % 64) - 1)
            rows[first : first + _ROWS] += np.bitwise_count(tile).sum(axis=1, dtype=np.int64)
            columns[left : left + 64 * n_words] += column_counts(tile)
    return rows[:n_rows], columns[:n_columns]


def flip_sums(n: int, flip: Flip, stream: Keystream) -> tuple[Integers, Integers]:
    """Return the sums ``f_ij`` over j < i, and ``f_ji`` over j > i, (n,) each, of random bits."""
    rows = np.zeros(n + _ROWS, dtype=np.int64)
    columns = np.zeros(n + _ROWS, dtype=np.int64)
    for first, left, bits in flip_tiles(n, flip, stream):
        rows[first : first + _ROWS] += np.bitwise_count(bits).sum(axis=1, dtype=np.int64)
        columns[left : left + 64 * bits.shape[1]] += column_counts(bits)
    return rows[:n], columns[:n]


def flip_tiles(n: int, flip: Flip, stream: Keystream) -> Iterator[tuple[int, int, Words]]:
    """Make the random bits f_ij of all comparisons, tile by tile.

    Shapes: returns (256, n_words): first row, first column, bits: bit b of word w in row r is f of
    row ``first + r`` and column ``left + 64 w + b``.
    """
    buffer = np.empty((2, _ROWS * _WORDS), dtype=np.uint64)
    corner = np.tril(np.ones((_ROWS, _ROWS), dtype=np.uint8), k=-1)
    mask = np.packbits(corner, axis=1, bitorder="little").view(np.uint64)
    for first in range(0, n, _ROWS):
        for left in range(0, first + _ROWS, _WIDTH):
            n_words = min(_WIDTH, first + _ROWS - left) // 64
            size = _ROWS * n_words
            bits = _bernoulli(buffer[0, :size], buffer[1, :size], flip.numerator, stream)
            tile = bits.reshape(_ROWS, n_words)
            if left + 64 * n_words == first + _ROWS:
                tile[:, -_ROWS // 64 :] &= mask
            tile[n - first :] = 0
            yield first, left, tile


def _bernoulli(out: Words, spare: Words, numerator: int, stream: Keystream) -> Words:
    """Fill words with bits of chance numerator / 2^16, from the binary digits of that chance.

    A random bit *or* a bit of chance p has chance (1 + p) / 2, a random bit *and* it p / 2.
    """
    lowest = (numerator & -numerator).bit_length() - 1
    stream.words(out)
    for digit in range(lowest + 1, THETA_BITS):
        stream.words(spare)
        combine = np.bitwise_or if numerator >> digit & 1 else np.bitwise_and
        combine(out, spare, out=out)
    return out


def column_counts(bits: Words) -> Integers:
    """Count the bits of each column, adding whole words bit by bit.

    Shapes: bits (a power of two, n_words); returns (64 n_words,).
    """
    planes = [bits]  # the binary digits of one number for each row and column, lowest first
    while len(planes[0]) > 1:
        half = len(planes[0]) // 2
        carry: Words | None = None
        added = []
        for plane in planes:
            one, other = plane[:half], plane[half:]
            if carry is None:
                added.append(one ^ other)
                carry = one & other
            else:
                either = one ^ other
                added.append(either ^ carry)
                carry = (one & other) | (either & carry)
        assert carry is not None
        planes = [*added, carry]
    counts = np.zeros(64 * bits.shape[1], dtype=np.int64)
    for digit, plane in enumerate(planes):
        ones = np.unpackbits(plane.reshape(-1).view(np.uint8), bitorder="little")
        counts += ones.astype(np.int64) << digit
    return counts
