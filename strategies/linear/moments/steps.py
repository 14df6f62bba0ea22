"""The party half of moments: its columns in rough units, which enter private products."""

import hashlib
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Summands, step
from flwr_vertical.arrays import Array, Bytes, Flags
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products import HeldColumns, PairKeySteps
from flwr_vertical.products.columns import ScaledRows, squares_of
from flwr_vertical.products.noise import PrivateRows
from flwr_vertical.products.noisy_sums import check_epsilon
from flwr_vertical.products.rare_levels import level_codes
from flwr_vertical.protocol.arguments import Is, Within
from strategies.linear.data import (
    FORMULA,
    PUBLIC_RANGE,
    Labelled,
    RegressionRows,
    RowSettings,
    spread_around,
)
from strategies.linear.moments.dp_opening import brought_in, column_ranges, middle_and_half

_STEPS = 4  # a centre is a multiple of the unit over this


_SQUARED = 480  # Binary digits: the squares of so large numbers are far from the ends of floats


def rough_units(raw: Array, few: Flags) -> tuple[Array, Array]:
    """Choose centre and unit of each column.

    Shapes: raw (n_rows, n_columns): in the table's units; at least one row; few (n_columns,):
    columns of few different values; returns (n_columns,): the unit is a power of two not below the
    standard deviation; the centre the nearest multiple of a quarter of it to the mean.
    """
    low, high = raw.min(axis=0), raw.max(axis=0)
    largest = np.maximum(np.abs(low), np.abs(high))
    far = (largest > 0.0) & (np.abs(np.log2(np.where(largest > 0.0, largest, 1.0))) > _SQUARED)
    if far.any():  # squares would overflow, or vanish
        reach = 2.0 ** np.where(far, np.floor(np.log2(np.where(far, largest, 1.0))), 0.0)
        center, unit = rough_units(raw / reach, few)
        return center * reach, unit * reach
    middle = raw.mean(axis=0)
    spread = spread_around(raw, middle)
    middle = np.where(few, (low + high) / 2.0, middle)
    spread = np.where(few, (high - low) / 2.0, spread)
    # Rounding leaves a constant column with a tiny spread: its one value is the centre.
    constant = spread <= 1e-12 * largest
    unit = 2.0 ** np.ceil(np.log2(np.where(constant, 1.0, spread)))
    center = np.round(middle / unit * _STEPS) / _STEPS * unit
    return np.where(constant, low, center), np.where(constant, 1.0, unit)


# Under a prefix that the server may not write to.
_FIXED = "node.moments.rows"
_PRIVATE = "node.moments.private"
_OFFERED = "moments.offered"
_N_LABELLED = "moments.n-labelled"


class MomentSteps(RegressionRows):
    """Offers a party's columns for products; the party also uses `PairKeySteps`.

    Products are of columns in rough units, which tell hardly anything: the exact mean and standard
    deviation would tell of rows that are in no group. The server standardises by what it opens.
    With epsilon they are in half ranges of public bounds, and their sums have noise.
    """

    @step(repeatable=False)  # a key pair is drawn
    def prepare_moments(
        self,
        nonce: bytes,
        columns_of: str = "",
        labelled: Labelled | None = None,
        epsilon: Annotated[float, Is("epsilon or 0.0")] = 0.0,
        delta: Annotated[float, Within(0.0, 1.0)] = 0.0,
        row_norm: Annotated[float | None, Is("row_norm")] = None,
        bounds: str = "",
        formula: Annotated[str, Is("formula")] = "",
        **settings: Unpack[RowSettings],
    ) -> Summands:
        """Prepare the table, and make the key pair of this run.

        Message: nonce: of this run; columns_of: the only party whose columns are wanted; all
        parties' if empty; epsilon, delta, row_norm, bounds: see `FitBudget`; no epsilon: sums
        are opened as they are; formula: by party, what takes the place of its columns
        (`read_formulas`); labelled, **settings: see `RegressionData.prepare`; returns nothing to be
        summed; publicly what `RegressionData.prepare` and `PairKeySteps.pair_key` tell,
        ``center`` and ``unit`` of each column (`rough_units`), ``min_rows``, if the node's policy
        states it, and ``at_least``, the fewest rows of a set, where a formula needs more.
        """
        self.state[FORMULA] = formula
        if epsilon:
            check_epsilon(self.party, epsilon)
            self.state[_PRIVATE] = [float(epsilon), float(delta), float(row_norm or 1.0)]
        offered = columns_of in ("", self.name)
        self.state[_OFFERED] = offered
        if offered:
            told = dict(self.prepare_rows(labelled=labelled, **settings).public)
        else:
            told = self._nothing_offered(labelled)
        if epsilon and offered:
            self._check_no_levels()
            columns = self.design.columns
            self.state[PUBLIC_RANGE] = np.stack(column_ranges(bounds, columns, self.name))
            told |= {"collinear": [], "selective": False}
        center, unit = self._units
        told |= {"center": center, "unit": unit, **self.other(PairKeySteps).pair_key(nonce)}
        if self.party.policy.min_rows is not None:
            told["min_rows"] = self.party.policy.min_rows
        if offered and self.design.at_least:
            told["at_least"] = self.design.at_least
        if self.party.policy.vectors is not None:
            told["vectors"] = self.party.policy.vectors
        return Summands({}, told)

    def _check_no_levels(self) -> None:
        """Refuse columns of levels: which there are follows from the table."""
        of_levels = [column for column, levels in self.design.origins.values() if levels]
        if found := sorted({*of_levels, *self.design.left_out}):
            raise DataError(
                f"party {self.name!r}: columns {found} hold levels; with epsilon nothing may "
                "depend on which of these are in a table: encode them beforehand, by a list that "
                "is public, or leave the columns out"
            )

    def _nothing_offered(self, labelled: Bytes | None) -> dict[str, Any]:
        held = self.party.positions[self.party.positions >= 0]
        if labelled is None:
            labelled = np.ones(self.party.n_samples, dtype=np.uint8)
        self.state[_N_LABELLED] = int(np.sum(labelled))
        return {
            "columns": [],
            "n_observed": int(np.asarray(labelled)[held].astype(bool).sum()),
            "dropped": np.zeros(0, dtype=np.int64),
            "selective": False,
            "collinear": [],
            "left_out": [],
        }

    # -- the columns -----------------------------------------------------------------------

    def aligned_columns(self) -> HeldColumns:
        """Return the columns over all rows that the party has, numbered as they are aligned."""
        own, (center, unit) = self.design, self._units
        squares = squares_of(ScaledRows(self.table_rows, center, unit))
        values, n = ScaledRows(own.x, center, unit), self.party.n_samples
        names = tuple(own.columns)
        held = HeldColumns(
            values, own.rows, n, names, squares=squares,
            sources=own.sources, at_least=own.at_least,
        )  # fmt: skip
        return self.beside_earlier(held)

    @kept("moments.columns")
    def columns(self) -> HeldColumns:
        """The columns that are multiplied, for ``columns_to_multiply`` of the party."""
        if not self.state[_OFFERED]:
            n_labelled = int(self.state[_N_LABELLED])
            none = np.zeros(0, dtype=np.int64)
            return HeldColumns(np.zeros((0, 0)), none, n_labelled, noise=self._noise)
        # Rows are numbered among the labelled samples: other labels would give them other numbers,
        # and the record of what was told of them would be of other rows.
        labelled = np.asarray(self.state.get("labelled", np.zeros(0, dtype=np.uint8)))
        parts = (np.int64(self.n_labelled), labelled.astype(np.uint8))
        chosen = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if self.state.setdefault(_FIXED, chosen) != chosen:
            raise ProtocolError(
                f"party {self.name!r}: other samples are to have labels than when its columns were "
                "first offered in this run; start another run for other labels"
            )
        noise, squares = self._noise, None
        values: Array | ScaledRows
        if noise is not None and self.public_range is not None:
            values = brought_in(self.raw, *self.public_range, noise.row_norm, self.intercept)
        else:
            center, unit = self._units
            values = ScaledRows(self.raw, center, unit)
            squares = squares_of(ScaledRows(self.table_rows, center, unit))
        names = tuple(self.design.columns)
        rows, own, n_labelled = self.rows, self.own_rows, self.n_labelled
        held = HeldColumns(
            values, rows, n_labelled, names, own, noise, squares,
            sources=self.design.sources, at_least=self.design.at_least,
        )  # fmt: skip
        return self.beside_earlier(held)

    @property
    def _noise(self) -> PrivateRows | None:
        """What noise the fit promises, if any."""
        if _PRIVATE not in self.state:
            return None
        return PrivateRows(*self.state[_PRIVATE])

    @kept("moments.units")
    def _units(self) -> tuple[Array, Array]:
        if not self.state[_OFFERED]:
            return np.zeros(0), np.ones(0)
        if self.public_range is not None:
            return middle_and_half(*self.public_range, self.intercept)
        # Not of the rows that take part, which the server chooses; see `table_rows`.
        raw = self.table_rows
        n_columns = raw.shape[1]
        stated = self.party.policy.min_rows
        needed = min_rows(n_columns, 1) if stated is None else stated
        center, unit = np.zeros(n_columns), np.ones(n_columns)
        if len(raw) >= needed:
            few = np.array([level_codes(column) is not None for column in raw.T], dtype=bool)
            center, unit = rough_units(raw, few)
        far = np.flatnonzero(np.abs(np.log2(unit)) > _SQUARED)
        if len(far):
            names = [self.design.columns[j] for j in far]
            raise DataError(
                f"party {self.name!r}: columns {names} are so large, or vary so little, that "
                "squares of their values are no finite numbers; state them in other units"
            )
        return center, unit
