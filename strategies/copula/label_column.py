"""The labels, which the server holds and treats as a party treats its columns."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.privacy import fresh_keystream
from flwr_vertical.tables import Table, is_numeric
from flwr_vertical.tables.codes import fit_levels, from_codes, to_codes
from strategies.copula.columns import read_columns
from strategies.copula.party import synthetic_ids
from strategies.copula.release import Budget, Release, make_release, synthetic_codes

SERVER = "server"


class Label:
    """The labels as a table of one column, released like any party's.

    Shapes: values (n_samples,): NaN where a sample has none.
    """

    def __init__(
        self,
        name: str,
        values: Array,
        dtype: Any,
        impute: bool,
        bounds: Mapping[str, tuple[float, float]],
        resolution: Mapping[str, float],
        budget: Budget,
        key: bytes,
    ) -> None:
        self.name = name
        self._dtype = dtype
        table = Table.of(pd.DataFrame({name: values}), party=SERVER)
        columns = read_columns(table, resolution, "the labels")
        self._table = columns.table
        self._fitted = fit_levels([self._table])
        codes = to_codes(self._table, self._fitted, SERVER)
        count = 0 if is_numeric(self._table.kinds[name]) else len(self._fitted[name])
        self.made: Release = make_release(
            codes,
            self._table.kinds,
            [count],
            bounds,
            columns.steps,
            [None],
            budget,
            fresh_keystream("server", key),
            "the labels",
            impute,
        )
        self.told = {
            "n_recast": len(columns.recast),
            "n_like_ids": len(columns.like_ids),
            "n_resolved": len(resolution.keys() & columns.steps.keys()),
            "least_epsilon": self.made.least_epsilon,
        }

    def synthesise(self, levels: Array) -> "pd.Series[Any]":
        """Return synthetic labels, Series of shape (n_rows,)."""
        codes = synthetic_codes(self.made.margins, levels[:, None], self._table.kinds)
        index = synthetic_ids(len(levels))
        made = from_codes(codes, self._table, self._fitted, index)[self.name]
        whole = self._dtype is not None and pd.api.types.is_integer_dtype(self._dtype)
        return made.round().astype("int64") if whole else made.astype("float64")
