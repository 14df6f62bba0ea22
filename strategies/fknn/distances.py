"""Partial distances between samples on the columns of one party (Du et al., 2024, Eq. 6).

All kinds of columns enter: a numeric column by its squared difference, any other by 0 or 1 for
equal or different levels (the overlap metric of HEOM; Wilson and Martinez, 1997), an ordinal one
by the squared difference of its ranks scaled to [0, 1]. Cells missing at either sample are left
out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Bytes, Flags, Floats32, Integers, Unsigned16
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.tables import Kind, is_numeric
from strategies.fknn.blinding import FACTOR_BITS, SCALE_BITS, WEIGHT_BITS, Units

_PART = 1 << 14
"""Donors at a time: their distances from some rows stay in the cache."""

_PASS, _FEWEST = 1 << 18, 8
"""Pairs whose distances are held at a time, and of how many rows at least."""


@dataclass(frozen=True)
class Donors:
    """The right factors of the products that make distances from some samples."""

    right: Array  # (3 * n_features, n_donors); of complete donors 2 * n_features + 1 rows
    # (n_columns, n_donors): 1 where a cell is observed; None where none is missing
    observed: Floats32 | None


@dataclass(frozen=True)
class DistanceFeatures:
    """A party's columns, of which a block of distances is made by one matrix product.

    ``sum_j m_pj m_qj (x_pj - x_qj)^2 = [m, -2 z, z^2]_p . [z^2, z, m]_q`` with ``z = m x``. Where q
    is complete, this is ``[m, -2 z, sum_j z_j^2]_p . [z^2, z, 1]_q``. The factors are laid out for
    the samples that are compared, not for the whole table.
    """

    values: Array  # (n_samples, n_features): 0 where a cell is missing
    observed: Flags  # (n_samples, n_columns)
    column_of: tuple[int, ...]  # The column of each feature

    @property
    def n_features(self) -> int:
        """Number of features: of a categorical column as many as levels, else one."""
        return len(self.column_of)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.observed.shape[1])

    def left(self, rows: Integers, complete: bool) -> Array:
        """Return the left factors of some rows, for complete donors or others.

        Shapes: returns (n_rows, n_factors): as many as `Donors.right` has rows.
        """
        z, m = self.values[rows], self.observed[rows][:, self.column_of]
        squares = (z * z).sum(axis=1, keepdims=True) if complete else z * z
        return np.hstack([m, -2.0 * z, squares])

    def donors(self, rows: Integers | slice = slice(None), complete: bool = False) -> Donors:
        """Lay out some samples as donors, all of them complete or not."""
        z, observed = self.values[rows], self.observed[rows]
        if complete:
            return Donors(np.vstack([(z * z).T, z.T, np.ones(len(z))]), None)
        right = np.vstack([(z * z).T, z.T, observed.T[list(self.column_of)]])
        return Donors(right, observed.T.astype(np.float32, order="C"))


def make_features(
    codes: Array, kinds: list[Kind], n_levels: list[int], standardize: bool, fit_rows: Flags
) -> DistanceFeatures:
    """Lay out a party's columns for `squared_distances`.

    Shapes: codes (n_samples, n_columns): values or level numbers, NaN = missing; fit_rows
    (n_samples,): rows from which mean and standard deviation are taken.
    """
    values, column_of = [], []
    for j, kind in enumerate(kinds):
        column = codes[:, j]
        known = ~np.isnan(column)
        if kind is Kind.CATEGORICAL:
            # Two different levels differ in two indicators, each 1/sqrt(2): distance 1.
            for level in range(n_levels[j]):
                values.append((column == level) * np.sqrt(0.5))
                column_of.append(j)
            continue
        if is_numeric(kind):
            fitted = column[known & fit_rows]
            with np.errstate(over="ignore"):
                # Distances do not change with the origin, but rounding errors grow with it. Of a
                # constant column nothing may be left: all else may be as small.
                constant = np.ptp(column[known]) == 0 if known.any() else False
                origin = column[known][0] if constant else fitted.mean() if fitted.size else 0.0
                spread = fitted.std() if standardize and fitted.size else 1.0
                column = column - origin
            # An infinite one is left to `magnitude`, which names the column.
            column = column / spread if 0 < spread < np.inf else column
        elif kind is Kind.ORDINAL:
            column = column / max(n_levels[j] - 1, 1)
        values.append(np.where(known, column, 0.0))
        column_of.append(j)
    return DistanceFeatures(np.column_stack(values), ~np.isnan(codes), tuple(column_of))


def squared_distances(
    features: DistanceFeatures, rows: Integers, donors: Donors, out: Array | None = None
) -> tuple[Array, Unsigned16]:
    """Sum of squared differences over shared columns, and how many are shared.

    Shapes: rows (n_rows,): samples to be imputed; donors: samples to compare with; out (n_rows,
    n_donors): where sums are written; returns (n_rows, n_donors): never negative; 0 where nothing
    is shared; returns (n_rows, n_donors): number of columns observed in both samples; (n_rows, 1)
    of complete donors.
    """
    sums: Array = np.matmul(features.left(rows, donors.observed is None), donors.right, out=out)
    # Cancellation leaves a little of what should be 0, as between equal samples.
    tiny = sums.max(axis=1, initial=0.0) * (len(donors.right) * 2.0**-50)
    for i in np.flatnonzero(sums.min(axis=1, initial=np.inf) < tiny):
        sums[i][sums[i] < tiny[i]] = 0.0
    observed = features.observed[rows]
    if donors.observed is None:
        return sums, observed.sum(axis=1, keepdims=True, dtype=np.uint16)
    return sums, (observed.astype(np.float32) @ donors.observed).astype(np.uint16)


def party_terms(sums: Array, shared: Unsigned16, weighting: str) -> tuple[Array, Unsigned16]:
    """Turn one party's distances into its terms of the two private sums.

    ``exact``: sums of squares and numbers of shared columns, whose ratio over all parties is the
    mean squared difference on the pooled table. ``party-mean``: the party's own mean squared
    difference (Eq. 6) and 1 where it is defined, so that every party weighs the same (Eq. 10).

    Shapes: as `squared_distances` returns them; the distance over all parties is the ratio of
    their sums.
    """
    if weighting == "exact":
        return sums, shared
    sums /= np.maximum(shared, 1)
    return sums, (shared > 0).astype(np.uint16)


class PartyTerms:
    """A party's terms of the private sums, for rows and all donors; complete donors come first."""

    def __init__(
        self,
        features: DistanceFeatures,
        donors: Integers,
        n_complete: int,
        weighting: str,
        party: str = "",
    ) -> None:
        if not features.observed[donors[:n_complete]].all():
            raise ProtocolError(
                f"party {party!r}: of donors that the server says are complete, some lack cells "
                "here; their distances would not be comparable"
            )
        self._party, self._n_complete = party, n_complete
        self._features, self._weighting = features, weighting
        self._parts = [
            features.donors(donors[start : min(start + _PART, last)], complete)
            for first, last, complete in ((0, n_complete, True), (n_complete, len(donors), False))
            for start in range(first, last, _PART)
        ]
        self._space = np.empty((0, len(donors)))
        self.number = np.full(len(features.values), -1)  # of each sample among donors, or -1
        self.number[donors] = np.arange(len(donors))

    def each(self, rows: Integers) -> Iterator[tuple[Array, Unsigned16]]:
        """Go through some rows, each with what `of` returns of it."""
        step = max(_FEWEST, _PASS // max(self._space.shape[1], 1))
        for start in range(0, len(rows), step):
            yield from zip(*self.of(rows[start : start + step]), strict=True)

    def of(self, rows: Integers) -> tuple[Array, Unsigned16]:
        """Return distances, until the next call, and weights; no donor is compared with itself.

        Shapes: rows (n_rows,): none of the complete donors; returns (n_rows, n_donors); returns
        (n_rows, 1 + n_others): the weight of all complete donors, then those of the others.
        """
        inside = np.flatnonzero(self.number[rows] >= 0)
        own = self.number[rows[inside]]
        if (own < self._n_complete).any():
            raise ProtocolError(
                f"party {self._party!r}: rows to be imputed are among the complete donors, and no "
                "row is a donor to itself; the server does not keep to the method"
            )
        if len(self._space) < len(rows):  # memory that is new each time costs more than products
            self._space = np.empty((len(rows), self._space.shape[1]))
        distance, at = self._space[: len(rows)], 0
        n_others = distance.shape[1] - self._n_complete
        weight = np.zeros((len(rows), 1 + n_others), dtype=np.uint16)
        for donors in self._parts:
            part = slice(at, at := at + donors.right.shape[1])
            sums, shared = squared_distances(self._features, rows, donors, distance[:, part])
            found = party_terms(sums, shared, self._weighting)[1]
            first = max(part.start - self._n_complete + 1, 0)
            weight[:, first : first + found.shape[1]] = found
        distance[inside, own], weight[inside, own - self._n_complete + 1] = 0.0, 0
        return distance, weight


# Distances are told as powers of two between 2^-1000 and 2^1047, more than floats can have.
N_EXPONENTS = 2048
_LOWEST = -1000
_SHIFT_BITS = 2
"""Shifts reach to 2^2 times the mean distance of the party where it is largest."""


def magnitude(
    features: DistanceFeatures, weighting: str, names: list[str] | None = None, party: str = ""
) -> Bytes:
    """Tell orders of magnitude of a party's distances and weights, as three 1s among zeros.

    Summed over parties they tell the largest of each, not whose it is.

    Shapes: returns (3, N_EXPONENTS): A 1 at ``1000 + e`` where ``2^e`` is the least power of two
    not below the largest distance, its mean over pairs a unit of weight, and the largest weight;
    at 0 for none above 0.
    """
    spread, variance = np.zeros(features.n_features), np.zeros(features.n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(features.n_features):
            known = features.observed[:, features.column_of[j]]
            column = features.values[known, j]
            if column.size:
                spread[j], variance[j] = np.ptp(column), column.var()
        # Two levels of one column differ in two features, by 1 together.
        of = np.array(features.column_of)
        several = np.bincount(of) > 1
        squares = np.where(several, 1.0, np.bincount(of, spread**2))
        largest = squares.sum() if weighting == "exact" else squares.max(initial=0.0)
    if not np.isfinite(largest):
        wide = np.flatnonzero(~(squares < squares.max(initial=0.0)))
        label = ", ".join(repr(names[j]) if names else f"number {j}" for j in wide)
        raise DataError(
            f"party {party!r}, column {label}: values reach so far (about 1e154) that squared "
            "differences overflow; rescale them"
        )
    mean = 2.0 * variance.sum() / max(features.n_columns, 1)
    weight = features.n_columns if weighting == "exact" else 1
    flags = np.zeros((3, N_EXPONENTS), dtype=np.uint8)
    for flag, value in zip(flags, (largest, mean, weight), strict=True):
        flag[exponent(value) - _LOWEST] = 1
    return flags


def exponent(value: float) -> int:
    """Return the exponent of the least power of two not below a number, at least -1000."""
    return max(int(np.ceil(np.log2(value))), _LOWEST) if value > 0 else _LOWEST


def common_units(magnitudes: npt.NDArray[np.integer], n_parties: int, shifted: bool) -> Units:
    """Return the finest units in which no sum of blinded terms overflows 63 bits.

    Shapes: magnitudes (3, N_EXPONENTS): `magnitude`, summed over parties.
    """
    largest, mean, weight = (int(np.flatnonzero(row).max()) + _LOWEST for row in magnitudes)
    shift = mean + _SHIFT_BITS if shifted else None
    bound = largest if shift is None else max(largest, shift + weight) + 1
    # One of 63 bits is left, since low bits may lift a term a little.
    most = 62 - exponent(n_parties)
    distance = min(most - SCALE_BITS - FACTOR_BITS - bound, 1000)
    return Units(distance, shift, WEIGHT_BITS - FACTOR_BITS - weight)


def check_units(
    units: Units, magnitudes: npt.NDArray[np.integer], shifted: bool, party: str
) -> None:
    """Refuse units that would hide less than this party's own distances need.

    Shapes: magnitudes (3, N_EXPONENTS): what this party told.
    """
    _, mean, weight = (int(np.flatnonzero(row).max()) + _LOWEST for row in magnitudes)
    if shifted and (units.shift is None or units.shift < mean + _SHIFT_BITS):
        raise DataError(
            f"party {party!r}: distances were to be shifted by up to 2^{units.shift}, and its own "
            f"need 2^{mean + _SHIFT_BITS} at least; the server does not keep to the method"
        )
    if units.weight > WEIGHT_BITS - FACTOR_BITS - weight:
        raise DataError(
            f"party {party!r}: weights were to be sent in units of 2^-{units.weight}, and at most "
            f"2^-{WEIGHT_BITS - FACTOR_BITS - weight} hides them; the server does not keep to the "
            "method"
        )
