"""The party half of the joint normal model: its columns, and its completed rows."""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Uses, step
from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import DataError
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps
from flwr_vertical.products.masked import PrivateProductSteps
from flwr_vertical.products.pairs import PairProductSteps
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits, takes_as
from flwr_vertical.tables import Kind
from flwr_vertical.tables.codes import fill_values
from strategies.common.imputing_party import ImputingParty
from strategies.linear.moments.steps import rough_units
from strategies.normal.coding import Coding
from strategies.normal.completion import CompletionSteps
from strategies.normal.equations import complete_rows, fill_own_cells


class JointNormalParty(ImputingParty):
    """Offers its columns for products, and completes its rows by what `CompletionSteps` reads."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    completion = Uses(CompletionSteps)
    products = Uses(PairProductSteps, purpose="joint normal")

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns of the model in rough units; missing cells from the own columns."""
        if "normal.columns" not in self.cache:
            rows = np.flatnonzero(self.positions_held)
            filled = fill_own_cells(self._values[rows])
            squares = (filled**2).sum(axis=0)
            names = self._coding.names(self.table.columns)
            self.cache["normal.columns"] = HeldColumns(
                filled, rows, self.n_samples, names, squares=squares
            )
        columns: HeldColumns = self.cache["normal.columns"]
        return columns

    @step
    @takes_as(PrivateProductSteps.send_masked)
    def send_masked(self, **arguments: Any) -> dict[str, Any]:
        """Hand over the own columns under a key stream; and which rows it wants completed, as well.

        Message: see `PrivateProductSteps.send_masked`; returns as there, ``wanted`` (n_samples,),
        uint64, and whether it lacks ``cells`` of rows that it holds.
        """
        if self.fitted is not None:
            raise DataError(
                f"party {self.name!r} has a fitted table, and this method completes the rows of "
                "one run; leave out `fitted`, and give old and new rows together"
            )
        if (n := self.codes.shape[1]) and not np.isfinite(self.codes).any(axis=0).all():
            empty = int(np.argmin(np.isfinite(self.codes).any(axis=0)))
            raise DataError(
                f"party {self.name!r}, column {self.table.columns[empty]!r} of {n}: no row that "
                "takes part has a value; leave the column out, or align other rows"
            )
        told = self.products.send_masked(**arguments)
        wanted = self.completion.wish(self._wanted, told["tag"])
        return told | {"wanted": wanted, "cells": bool(self._open_cells.any())}

    @step
    def finish(
        self,
        pattern: Annotated[Indices, Shape("n_samples"), Within(0, "n_patterns - 1")],
        n_patterns: Annotated[int, Within(1, "n_samples")],
        total: Annotated[Ring, Shape("n_samples", None), OWN],
        offset: Annotated[Array, Shape("n_patterns", None), OWN],
        unit: Annotated[Array, Shape("n_patterns", None), OWN],
        residual: Annotated[npt.NDArray[np.float32], Shape("n_patterns", None, None), OWN],
    ) -> dict[str, Any]:
        """Complete the own table, write it, and forget the seed.

        Message: pattern: as in `complete`; total (n_samples, n_own): the sum of all terms, under
        the own pad; offset, unit (n_patterns, n_own): what is added to it, and its unit; residual
        (n_patterns, n_own, n_own): covariance given the others' columns; returns how many cells
        were imputed.
        """
        n_own = self._values.shape[1]
        check_fits(self.name, "residual", residual, Shape(None, n_own, n_own))
        mean = self.completion.means(pattern, total, offset, unit)
        self.group_key.erase_group_seed()
        completed = self._values.copy()
        for g in np.unique(pattern[self._wanted]):
            rows = np.flatnonzero(self._wanted & (pattern == g))
            of_pattern = np.asarray(residual[g], dtype=np.float64)
            completed[rows] = complete_rows(self._values[rows], mean[rows], of_pattern)
        center, scale = self._units
        codes = self._coding.decode(completed * scale + center)
        missing = self.missing_cells(True)
        frame = self.write(np.where(missing, codes, self.codes), True)
        return {"cells-imputed": int(missing.sum())} | self.accuracy(frame)

    @property
    def positions_held(self) -> Flags:
        """Which aligned rows this party has, array of shape (n_samples,)."""
        held: Flags = self.to_aligned(np.ones(len(self.positions), dtype=bool), False)
        return held

    @property
    def _open_cells(self) -> Flags:
        """Rows that this party holds with a missing cell."""
        open_cells: Flags = np.isnan(self.codes).any(axis=1) & self.positions_held
        return open_cells

    @property
    def _wanted(self) -> Flags:
        """Rows to be completed: those that this party lacks, and those with a missing cell."""
        return self._open_cells | ~self.positions_held

    @property
    def _coding(self) -> Coding:
        kinds: list[Kind] = list(self.table.kinds.values())
        return Coding(kinds, self.level_counts)

    @property
    def _units(self) -> tuple[Array, Array]:
        """Centre and unit of each column of the model, over the own table."""
        if "normal.units" not in self.cache:
            filled = np.where(
                np.isnan(self.codes), fill_values(self.codes, self.table.kinds), self.codes
            )
            raw = self._coding.encode(filled[self.positions_held])
            few = np.array([len(np.unique(raw[:, j])) <= 20 for j in range(raw.shape[1])])
            self.cache["normal.units"] = rough_units(raw, few)
        units: tuple[Array, Array] = self.cache["normal.units"]
        return units

    @property
    def _values(self) -> Array:
        """All aligned rows in rough units, (n_samples, n_columns), NaN = missing."""
        if "normal.values" not in self.cache:
            center, unit = self._units
            self.cache["normal.values"] = (self._coding.encode(self.codes) - center) / unit
        values: Array = self.cache["normal.values"]
        return values
