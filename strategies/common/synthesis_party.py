"""The party half that synthesisers share: own columns as they take them, synthetic ones written."""

from typing import Any

import pandas as pd

from flwr_vertical import Party, Table
from flwr_vertical.arrays import Array
from flwr_vertical.node.kept import kept
from flwr_vertical.tables.codes import Levels, fit_levels
from strategies.common.synthesis_columns import Columns, parse_resolution, read_columns, with_others


class SynthesisParty(Party):
    """Reads own columns as synthesis takes them, and writes synthetic ones in their form."""

    takes_dates = True

    @kept("columns")
    def _columns(self) -> Columns:
        stated = parse_resolution(str(self.state["resolution"]))
        return read_columns(self._taken, stated, f"party {self.name!r}")

    @property
    def _taken(self) -> Table:
        """The own table, with the kinds that the method takes."""
        return self.table

    @kept("levels")
    def _levels(self) -> Levels:
        return fit_levels([self._columns.table])

    def _save(self, codes: Array) -> None:
        """Write synthetic rows to the own storage.

        Shapes: codes (n_rows, n_columns): values, and numbers of levels.
        """
        table = self._columns.table
        index = synthetic_ids(len(codes), table.ids.name)
        frame = with_others(codes, table, self._levels, index)
        written = {name: date.written(frame[name]) for name, date in self._columns.dates.items()}
        self.save_output(frame.assign(**written))


def synthetic_ids(count: int, name: Any = None) -> "pd.Index[Any]":
    """Return IDs that are nobody's, the same at all parties, index of shape (count,)."""
    return pd.Index([f"synthetic-{i}" for i in range(count)], name=name)
