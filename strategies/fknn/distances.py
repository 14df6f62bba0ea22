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
from flwr_vertical.tables import Kind, is_numeric


@dataclass(frozen=True)
class Features:
    """A party's columns, laid out so that a block of distances is one matrix product.

    ``sum_j m_pj m_qj (x_pj - x_qj)^2 = [z^2, m, -2 z]_p . [m, z^2, z]_q`` with ``z = m x``.
    """

    left: Array  # (n_samples, 3 * n_features): the two factors
    right: Array  # (n_samples, 3 * n_features): the two factors
    observed: npt.NDArray[np.float32]  # (n_samples, n_columns): 1 where a cell is observed
    column_of: tuple[int, ...]  # The column of each feature

    @property
    def n_features(self) -> int:
        """Number of features: of a categorical column as many as levels, else one."""
        return len(self.column_of)

    def known_values(self, feature: int) -> Array:
        """Return a feature's values where they are known."""
        known = self.right[:, feature] > 0
        values: Array = self.right[known, 2 * self.n_features + feature]
        return values

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.observed.shape[1])


def make_features(
    codes: Array,
    kinds: list[Kind],
    n_levels: list[int],
    standardize: bool,
    fit_rows: npt.NDArray[np.bool_],
) -> Features:
    """Lay out a party's columns for `squared_distances`.

    Shapes: codes (n_samples, n_columns): values or level numbers, NaN = missing; fit_rows
    (n_samples,): rows from which mean and standard deviation are taken.
    """
    values, masks, column_of = [], [], []
    for j, kind in enumerate(kinds):
        column = codes[:, j]
        known = ~np.isnan(column)
        if kind is Kind.CATEGORICAL:
            # Two different levels differ in two indicators, each 1/sqrt(2): distance 1.
            for level in range(n_levels[j]):
                values.append((column == level) * np.sqrt(0.5))
                masks.append(known)
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
        masks.append(known)
        column_of.append(j)
    z = np.column_stack(values)
    m = np.column_stack(masks).astype(np.float64)
    with np.errstate(over="ignore"):
        squares = z * z
    return Features(
        left=np.hstack([squares, m, -2.0 * z]),
        right=np.hstack([m, squares, z]),
        observed=(~np.isnan(codes)).astype(np.float32),
        column_of=tuple(column_of),
    )


def squared_distances(
    features: Features, rows: npt.NDArray[np.int64], donors: npt.NDArray[np.int64] | None
) -> tuple[Array, npt.NDArray[np.uint16]]:
    """Sum of squared differences over shared columns, and how many are shared.

    Shapes: rows (n_rows,): samples to be imputed; donors (n_donors,): samples to compare with;
    None for all; returns (n_rows, n_donors): never negative; 0 where nothing is shared; returns
    (n_rows, n_donors): number of columns observed in both samples.
    """
    right = features.right if donors is None else features.right[donors]
    observed = features.observed if donors is None else features.observed[donors]
    sums = features.left[rows] @ right.T
    # Cancellation leaves a little of what should be 0, as between equal samples.
    tiny = sums.max(axis=1, keepdims=True, initial=0.0) * (right.shape[1] * 2.0**-50)
    sums[sums < tiny] = 0.0
    shared = (features.observed[rows] @ observed.T).astype(np.uint16)
    return sums, shared


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
