"""Parties and their steps.

A `Party` subclass is the party half of a strategy: each method marked with `step` can be called
by the server in one message. The party's table stays where it is; what must survive from one
message to the next goes into ``self.state`` (Flower may run each message in a new process),
what can be computed again may be kept in ``self.cache``.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.protocol.aligning import AligningNode
from flwr_vertical.protocol.node import Host, Node, Summands, step

if TYPE_CHECKING:
    from flwr_vertical.tables import Table

__all__ = ["Arbiter", "Host", "Party", "Summands", "step"]


class Party(AligningNode):
    """One organisation's side of a strategy.

    Subclass it, mark methods with `step`; a step takes the payload as keyword arguments and
    returns a mapping of values (`Federation.call`) or `Summands` (`Federation.sum`).

    Attributes
    ----------
    name : str
        The party's name.
    table : Table
        Its own data, read from the node's own storage at first use.
    state : State
        Values that survive between messages.
    cache : dict
        Values that survive as long as the process does.
    """

    @property
    def table(self) -> "Table":
        """The party's own table, without its label column; cached while the process lives."""
        if "table" not in self.cache:
            table = self.host.load_table()
            column = self._label_column
            if column in table.frame.columns:
                kinds = {name: kind for name, kind in table.kinds.items() if name != column}
                table = replace(table, frame=table.frame.drop(columns=column), kinds=kinds)
            self.cache["table"] = table
        own: Table = self.cache["table"]
        return own

    @property
    def fitted(self) -> "Table | None":
        """The table that an earlier run left at this party, if the run names one (``fitted``)."""
        if "fitted" not in self.cache:
            self.cache["fitted"] = self.host.load_fitted()
        table: Table | None = self.cache["fitted"]
        return table

    def save_output(self, frame: pd.DataFrame) -> str:
        """Write what the party holds afterwards to its own storage; returns where."""
        return self.host.save_output(frame)

    @property
    def own_ids(self) -> "pd.Index[Any]":
        """IDs of the rows that take part in alignment; strategies may add rows of their own."""
        return self.table.ids

    @step
    def labels(self) -> dict[str, Any]:
        """Hand the labels to the server, if the run config names this party as their holder."""
        column = self._label_column
        if not column:
            raise ConfigError(
                f"party {self.name!r} was asked for labels, but the run config does not name it as "
                "'label-holder' together with a 'label-column'"
            )
        frame = self.host.load_table().frame
        if column not in frame.columns:
            raise DataError(
                f"party {self.name!r} has no column {column!r} for the labels; "
                f"its columns are {list(frame.columns)}"
            )
        values = pd.to_numeric(frame[column]).to_numpy(dtype=float)
        # Strategies may align further rows before those of the table (fitted donors).
        positions = self.positions[-len(values) :]
        # In the aligned order, as the order of the own rows may tell about their IDs; and none
        # of rows that are left out.
        order = np.argsort(positions)[np.count_nonzero(positions < 0) :]
        return {"labels": values[order], "positions": positions[order]}

    @property
    def _label_column(self) -> str:
        """The label column, if the run config names this party as the labels' holder."""
        if self.host.run_config.get("label-holder") != self.name:
            return ""
        return str(self.host.run_config.get("label-column", ""))


class Arbiter(Node):
    """The node that opens encrypted sums; it holds the secret key and no data.

    A strategy that wants something else than the sum to leave the arbiter (ranks instead of
    distances, say) subclasses it and names one of its steps as ``release`` of
    `Federation.sum`; the step receives the opened sums as ``sums``. In the modes ``plain`` and
    ``masked`` the server takes the same step itself.
    """

    @step
    def reveal(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Release the sums as they are."""
        return sums
