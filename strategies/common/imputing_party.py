"""What every imputing party shares: aligned codes of its table, open cells, writing the result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.incomplete import imputation_accuracy
from flwr_vertical.log import logger
from flwr_vertical.node import Party
from flwr_vertical.node.kept import kept
from flwr_vertical.node.row_index import aligned_name, free_names
from flwr_vertical.tables import Table
from flwr_vertical.tables.codes import Levels, fit_levels, from_codes, put_in, to_codes
from flwr_vertical.tables.ids import index_of


class ImputingParty(Party):
    """A party that fills missing cells of its own table and blocks it lacks altogether.

    Where an earlier run left a fitted table here, its rows are the donors and those of the own
    table are new; otherwise every row of the aligned index is both.
    """

    @classmethod
    def imputing(cls) -> frozenset[str]:
        """Return that the strategy completes the own table."""
        return frozenset({""})

    @property
    def donors(self) -> Table:
        """The table from which values are taken."""
        return self.fitted or self.table

    @kept("levels")
    def levels(self) -> Levels:
        """Levels of the columns that are not numeric, as fitted on the donors."""
        return fit_levels([self.donors])

    @property
    def level_counts(self) -> list[int]:
        """How many levels each column has; 0 of a number."""
        return [len(self.levels.get(name, ())) for name in self.table.columns]

    @property
    def own_ids(self) -> "pd.Index[Any]":
        """IDs of all own rows: donors first, then new ones."""
        if self.fitted is None:
            return self.table.ids
        self._check_fitted(self.fitted)
        return self.fitted.ids.append(self.table.ids)

    def _check_fitted(self, fitted: Table) -> None:
        if fitted.columns != self.table.columns:
            raise DataError(
                f"party {self.name!r}: the fitted table has columns {fitted.columns}, the new rows "
                f"have {self.table.columns}; they must be the same, in the same order"
            )
        shared = int(self.table.ids.isin(fitted.ids).sum())
        if shared:
            raise DataError(
                f"party {self.name!r}: {shared} sample IDs of the new rows are also among the "
                "donors; leave them out or rename them"
            )

    @kept("codes")
    def codes(self) -> Array:
        """All aligned rows as numbers, array of shape (n_samples, n_columns), NaN = missing."""
        for name, column in self.table.frame.items():
            floating = column.dtype == np.float64 and name not in self.table.exact
            if floating and column.abs().max() > 2**53 and column.isna().any():
                logger.warning(
                    "party %r, column %r: numbers beyond 2^53 were read as floating-point ones, so "
                    "the last digits of whole ones may be lost. A Parquet column of pandas' type "
                    "Int64 keeps them; IDs are better left out (drop-columns)",
                    self.name, name,
                )  # fmt: skip
        own = to_codes(self.table, self.levels, self.name)
        if self.fitted is not None:
            own = np.vstack([to_codes(self.fitted, self.levels, self.name), own])
        return np.asarray(self.to_aligned(own, np.nan))

    @property
    def is_donor(self) -> Flags:
        """Which aligned rows give values here, array of shape (n_samples,)."""
        count = self.fitted.n_samples if self.fitted is not None else self.table.n_samples
        return np.asarray(self.to_aligned(np.arange(len(self.positions)) < count, False))

    def write(self, codes: Array, complete_blocks: bool) -> pd.DataFrame:
        """Write the imputed table, by its codes, to the party's own storage."""
        frame = self.frame_of(codes, complete_blocks)
        self.save_output(frame)
        return frame

    def places(self, complete_blocks: bool) -> Integers:
        """Return the aligned row of each row of `frame_of`, -1 if it is left out."""
        first = 0 if self.fitted is None else self.fitted.n_samples
        own: Integers = self.positions[first:]
        return np.concatenate([own, self._added]) if complete_blocks else own

    def frame_of(self, codes: Array, complete_blocks: bool) -> pd.DataFrame:
        """Return a table by the codes of all aligned rows."""
        own_codes = to_codes(self.table, self.levels, self.name)
        positions = self.places(False)
        kept = positions >= 0
        own_codes[kept] = codes[positions[kept]]
        frame = from_codes(own_codes, self.table, self.levels, self.table.ids)
        for name, column in self.table.frame.items():
            if pd.api.types.is_integer_dtype(column.dtype):  # whole, and codes hold 53 bits
                frame[name] = column
        if complete_blocks and len(rows := self._added):
            index = self._absent_ids(rows)
            added = from_codes(codes[rows], self.table, self.levels, index)
            frame = pd.concat([frame, added])
        for name, exact in self.table.exact.items():
            if name in frame:
                own = exact.set_axis(self.table.ids)  # in the form that the run compares
                frame[name] = put_in(frame[name], own.dropna())
        frame.index.name = self.table.ids.name
        return frame

    @property
    def _added(self) -> Integers:
        """Aligned rows that are added to the own ones."""
        absent = self._absent
        if self.fitted is not None and "donors" in self.state:
            # A sample that is a donor elsewhere is not new, so it is not completed.
            absent[self.state["donors"]] = False
        return np.flatnonzero(absent)

    def _absent_ids(self, rows: Integers) -> "pd.Index[Any]":
        own = self.table.ids
        integer = pd.api.types.is_integer_dtype(own.dtype)
        if "ids" in self.state:
            index: pd.Index[Any] = index_of(self.state["ids"][rows])
            if not integer:
                return index.astype(own.dtype)
            own_range = np.iinfo(str(own.dtype))  # others' IDs may need more bits
            fits = own_range.min <= index.min() and index.max() <= own_range.max
            return index.astype(own.dtype) if fits else index
        if integer:  # text beside integers would be no index that a later run can align
            return pd.Index(min(0, int(own.min())) - 1 - rows)
        return free_names(map(aligned_name, rows), own)

    def missing_cells(self, complete_blocks: bool) -> Flags:
        """Which cells are to be imputed, array of shape (n_samples, n_columns)."""
        missing = np.isnan(self.codes)
        if not complete_blocks:
            missing[self._absent] = False
        if self.fitted is not None:
            missing[self.is_donor] = False
            if "donors" in self.state:
                self._check_new_rows(self.state["donors"])
                missing[self.state["donors"]] = False
        return missing

    def _check_new_rows(self, donors: Integers) -> None:
        """Refuse samples that are new here and donors elsewhere: nobody could impute them."""
        assert self.fitted is not None
        new = self.positions[self.fitted.n_samples :]
        if clash := int(np.isin(new, donors).sum()):
            raise DataError(
                f"party {self.name!r}: {clash} of its new samples are fitted donors at another "
                "party; leave them out of the new rows, or fit again with them"
            )

    @property
    def _absent(self) -> Flags:
        """Aligned rows that this party does not have, array of shape (n_samples,)."""
        return np.asarray(self.to_aligned(np.zeros(len(self.positions), bool), True))

    def accuracy(
        self, frame: pd.DataFrame, intervals: pd.DataFrame | None = None
    ) -> dict[str, float]:
        """Compare with the truth where this node knows it (demonstrations only)."""
        truth = self.services.load_truth()
        if truth is None:
            return {}
        return imputation_accuracy(self.table.by_kind, frame, truth, intervals)


def numbers_told(replies: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return what parties told in the end, as `Result.party_metrics`."""
    return {
        name: {key: float(value) for key, value in reply.items()} for name, reply in replies.items()
    }
