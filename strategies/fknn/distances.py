"""Partial distances between samples on the columns of one party (Du et al., 2024, Eq. 6).

All kinds of columns enter: a numeric column by its squared difference, any other by 0 or 1 for
equal or different levels (the overlap metric of HEOM; Wilson and Martinez, 1997), an ordinal one
by the squared difference of its ranks scaled to [0, 1]. Cells missing at either sample are left
out.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from flwr_vertical.tables import Kind, is_numeric
from strategies.fknn.blinding import FACTOR_BITS, SCALE_BITS, WEIGHT_BITS, Units


@dataclass(frozen=True)
class Donors:
    """The right factors of the products that make distances from some samples."""

    right: Array  # (3 * n_features, n_donors)
    observed: npt.NDArray[np.float32]  # (n_columns, n_donors): 1 where a cell is observed


@dataclass(frozen=True)
class DistanceFeatures:
    """A party's columns, of which a block of distances is made by one matrix product.

    ``sum_j m_pj m_qj (x_pj - x_qj)^2 = [z^2, m, -2 z]_p . [m, z^2, z]_q`` with ``z = m x``. The
    factors are laid out for the samples that are compared, not for the whole table.
    """

    values: Array  # (n_samples, n_features): 0 where a cell is missing
    observed: npt.NDArray[np.bool_]  # (n_samples, n_columns)
    column_of: tuple[int, ...]  # The column of each feature

    @property
    def n_features(self) -> int:
        """Number of features: of a categorical column as many as levels, else one."""
        return len(self.column_of)

    def known_values(self, feature: int) -> Array:
        """Return a feature's values where they are known."""
        known: Array = self.values[self.observed[:, self.column_of[feature]], feature]
        return known

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.observed.shape[1])

    def left(self, rows: npt.NDArray[np.int64]) -> Array:
        """Return the left factors of some rows, array of shape (n_rows, 3 * n_features)."""
        z, m = self.values[rows], self.observed[rows][:, self.column_of]
        return np.hstack([z * z, m, -2.0 * z])

    def donors(self, rows: npt.NDArray[np.int64] | None = None) -> Donors:
        """Lay out some samples as donors; None for all."""
        chosen = slice(None) if rows is None else rows
        z, observed = self.values[chosen], self.observed[chosen]
        right = np.vstack([observed.T[list(self.column_of)], (z * z).T, z.T])
        return Donors(right, observed.T.astype(np.float32, order="C"))


def make_features(
    codes: Array,
    kinds: list[Kind],
    n_levels: list[int],
    standardize: bool,
    fit_rows: npt.NDArray[np.bool_],
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
    features: DistanceFeatures, rows: npt.NDArray[np.int64], donors: Donors
) -> tuple[Array, npt.NDArray[np.uint16]]:
    """Sum of squared differences over shared columns, and how many are shared.

    Shapes: rows (n_rows,): samples to be imputed; donors: samples to compare with; returns
    (n_rows, n_donors): never negative; 0 where nothing is shared; returns (n_rows, n_donors):
    number of columns observed in both samples.
    """
    sums = features.left(rows) @ donors.right
    # Cancellation leaves a little of what should be 0, as between equal samples.
    tiny = sums.max(axis=1, keepdims=True, initial=0.0) * (len(donors.right) * 2.0**-50)
    sums[sums < tiny] = 0.0
    shared = features.observed[rows].astype(np.float32) @ donors.observed
    return sums, shared.astype(np.uint16)


def party_terms(
    sums: Array, shared: npt.NDArray[np.uint16], weighting: str
) -> tuple[Array, npt.NDArray[np.uint16]]:
    """Turn one party's distances into its terms of the two private sums.

    ``exact``: sums of squares and numbers of shared columns, whose ratio over all parties is the
    mean squared difference on the pooled table. ``party-mean``: the party's own mean squared
    difference (Eq. 6) and 1 where it is defined, so that every party weighs the same (Eq. 10).

    Shapes: returns (n_rows, n_donors): the distance over all parties is the ratio of their sums.
    """
    if weighting == "exact":
        return sums, shared
    defined = shared > 0
    np.divide(sums, shared, out=sums, where=defined)
    return sums, defined.view(np.uint8).astype(np.uint16)


# Distances are told as powers of two between 2^-1000 and 2^1047, more than floats can have.
N_EXPONENTS = 2048
_LOWEST = -1000
_SHIFT_BITS = 2
"""Shifts reach to 2^2 times the mean distance of the party where it is largest."""


def magnitude(
    features: DistanceFeatures, weighting: str, names: list[str] | None = None, party: str = ""
) -> npt.NDArray[np.uint8]:
    """Tell orders of magnitude of a party's distances and weights, as three 1s among zeros.

    Summed over parties they tell the largest of each, not whose it is.

    Shapes: returns (3, N_EXPONENTS): A 1 at ``1000 + e`` where ``2^e`` is the least power of two
    not below the largest distance, its mean over pairs a unit of weight, and the largest weight;
    at 0 for none above 0.
    """
    spread, variance = np.zeros(features.n_features), np.zeros(features.n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(features.n_features):
            column = features.known_values(j)
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
