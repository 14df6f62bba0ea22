"""Parties and arbiters.

A `Party` subclass is the party half of a strategy: each method marked with `step` can be called
by the server in one message. The party's table stays where it is; what must survive from one
message to the next goes into ``self.state`` (Flower may run each message in a new process),
what can be computed again may be kept in ``self.cache``, and models that are trained in
``self.live``.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pandas as pd

from flwr_vertical.errors import DataError, PolicyError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.node.labels import LabelColumn
from flwr_vertical.node.row_index import aligned_name, own_rows, rows_of, to_aligned
from flwr_vertical.node.steps import Node, NodeServices, Uses, step
from flwr_vertical.node.storage import data_digest
from flwr_vertical.policy.record import Policy, allows, key_of, text_of
from flwr_vertical.privacy_ledger.budgets import bits_of_row
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.privacy_ledger.run_ledger import RunLedger, run_ledger_in_memory
from flwr_vertical.protocol import pins
from flwr_vertical.results.model import Model
from flwr_vertical.tables.kinds import refuse_dates

if TYPE_CHECKING:
    from flwr_vertical.tables import Table

_M = TypeVar("_M", bound=Model)

# The secret order in which a private alignment saw the own rows.
ORDER = "align.order"

NAMES = "names"
"""What the table of own samples by the server's names is called, beside the result."""


class Party(Node):
    """One organisation's side of a strategy.

    Subclass it, mark methods with `step`; a step takes the payload as keyword arguments and
    returns a mapping of values (`Federation.call`) or `Summands` (`Federation.sum`). Steps that
    several strategies share come in groups, which a party declares by `Uses`.

    Attributes
    ----------
    name : str
        The party's name.
    table : Table
        Its own data, read from the node's own storage at first use.
    state : State
        Values that survive between messages.
    cache : dict
        Values that survive as long as the process does, and can be computed again.
    live : LiveObjects
        Models and other objects that stay in the process; never lost without an error.
    takes_dates : bool
        Whether `table` may have columns of points in time (`Kind.DATE`); otherwise such a table is
        refused.
    """

    takes_dates: ClassVar[bool] = False
    _ledger: RunLedger | None = None

    label_column = Uses(LabelColumn)

    @classmethod
    def imputing(cls) -> frozenset[str]:
        """Return which stages of a run complete the own table; "" if it has no stages.

        Cells that are held out (``hold-out``) are hidden from these alone.
        """
        return frozenset()

    @property
    def table(self) -> "Table":
        """The party's own table, without its label column; cached while the process lives."""
        table, labels = self._own_columns, self.label_column.column
        if not table.kinds and labels:
            raise DataError(
                f"party {self.name!r} has no column besides the labels ({labels!r}), and a method "
                "takes columns of each party; add columns, or leave it out and give its labels to "
                "the server, which then sees them"
            )
        return table

    @kept("table")
    def _own_columns(self) -> "Table":
        table = self.services.load_table()
        column = self.label_column.column
        if column in table.frame.columns:
            kinds = {name: kind for name, kind in table.kinds.items() if name != column}
            table = replace(table, frame=table.frame.drop(columns=column), kinds=kinds)
        if not self.takes_dates:
            refuse_dates(table.kinds, self.name)
        return table

    @property
    def policy(self) -> Policy:
        """What the node agrees to, whatever the run config asks for."""
        return self.services.policy

    @property
    def privacy_ledger(self) -> RunLedger:
        """Where what leaves is written down first: of this run alone where tables lie in memory."""
        if self._ledger is None:
            self._ledger = self.services.ledger or run_ledger_in_memory(
                self.state, self.name, self.policy, self.own_ids
            )
        return self._ledger

    @property
    def kinds_noted(self) -> set[str]:
        """Kinds of entries that the ledger got in this message."""
        return set() if self._ledger is None else self._ledger.kinds

    @property
    def remembers(self) -> bool:
        """Whether the privacy ledger outlives the run."""
        return self.services.ledger is not None

    def rows_in_ledger(self) -> OwnRows:
        """Return `own_ids` as the ledger knows them; changed cells of added ones are not seen."""
        if "ledger-rows" not in self.cache:
            ids, table = self.own_ids, self._own_columns.ids
            same = ids is table or (len(ids) == len(table) and ids.equals(table))
            ledger = self.privacy_ledger
            self.cache["ledger-rows"] = ledger.rows if same else ledger.rows_of(ids)
        rows: OwnRows = self.cache["ledger-rows"]
        return rows

    def open_bits(self, chosen: Any, bits: float, **options: Any) -> None:
        """Tell something of single own rows, or refuse; before it leaves.

        Parameters
        ----------
        chosen : array_like of shape (n_own,), bool
            Of which of `own_ids`.
        bits : float
            Of each of them at most.
        **options
            See `PrivacyLedger.open_bits`.

        Raises
        ------
        PolicyError
            Names the key of the policy.
        """
        if "bits-of-row" not in self.cache:
            self.cache["bits-of-row"] = bits_of_row(self.table)
        options.setdefault("whole", self.cache["bits-of-row"])
        rows = self.rows_in_ledger()
        self.privacy_ledger.open_bits(chosen, bits, rows=rows, **options)

    def open_exchange(self, name: str, what: str) -> None:
        """Take part in an exchange that opens numbers of single samples, or refuse.

        However many numbers it opens, they tell no more of a row than it holds; that is written
        down, once a run, for every own row that takes part.

        Parameters
        ----------
        name : str
            See `check_exchange`.
        what : str
            What is opened, in words.

        Raises
        ------
        DataError
            See `check_exchange`.
        PolicyError
            If a row holds more bits than ``policy.openings``, or too many versions of it were told.
        """
        self.check_exchange(name)
        noted = f"node.opened.{name}"
        if noted in self.state:
            return
        held = self.positions >= 0
        cells = data_digest(self.table.frame).encode()
        self.open_bits(held, bits_of_row(self.table), content=cells, agreed=True, what=what)
        self.state[noted] = 1

    @kept("fitted")
    def fitted(self) -> "Table | None":
        """The table that an earlier run left at this party, if the run names one (``fitted``)."""
        return self.services.load_fitted()

    def save_output(self, frame: pd.DataFrame, beside: str = "") -> str:
        """Write what the party holds afterwards, or what is named `beside` it; returns where."""
        return self.services.save_output(frame, beside)

    def save_model(self, model: Model) -> str:
        """Keep this party's part of the model in its own storage, under the run's name.

        Parameters
        ----------
        model : Model
            Only what this party may know; no message carries it. It replaces what an earlier step
            of the run saved.

        Returns
        -------
        str
            Where it is, for the party's own log.
        """
        self._save_names()
        return self.services.save_model(model.to_bytes())

    def _save_names(self) -> None:
        """Write, beside the result, how the server names own rows whose IDs it does not know."""
        if ORDER not in self.state or "positions" not in self.state or NAMES in self.cache:
            return
        self.cache[NAMES] = True
        held = self.positions >= 0
        names = [aligned_name(row) for row in self.positions[held].tolist()]
        self.save_output(pd.DataFrame({"sample": names}, index=self.own_ids[held]), NAMES)

    def load_model(self, kind: type[_M], run: str = "") -> _M | None:
        """Read what this party saved of a model in an earlier run.

        Parameters
        ----------
        kind : type[Model]
            The model that is expected.
        run : str, optional
            Name of that run (default: the one named ``fitted`` in the run config).

        Returns
        -------
        Model or None
            None if no run is named at all.

        Raises
        ------
        DataError
            If the run left no model here, or its file is damaged.
        ConfigError
            If it is the model of another strategy, or of a newer version.
        """
        self._save_names()
        data = self.services.load_model(run)
        if data is None:
            return None
        earlier = run or self.services.run_config.get("fitted")
        named = f" {str(earlier)!r}" if earlier else ""
        return kind.from_bytes(data, f"what party {self.name!r} saved in the earlier run{named}")

    def identity(self, purpose: str) -> pins.NodeIdentity:
        """Say who this party is where a key for a purpose is signed or checked."""
        return pins.NodeIdentity(self.name, "party", purpose, 0, self.services.node_config)

    def check_exchange(self, name: str) -> None:
        """Refuse to take part in an exchange to which this node has not agreed.

        A step that tells more than the method's default exchange does calls this before it answers.
        The run config asks; the node's policy alone allows (``exchanges`` of the node config).

        Parameters
        ----------
        name : str
            Of the exchange, such as ``"sums"``.

        Raises
        ------
        PolicyError
            If the policy does not name it.
        """
        allowed = self.policy.exchanges
        if not allows(allowed, name):
            raise PolicyError(
                f"party {self.name!r}",
                key_of("exchanges"),
                f"exchange {name!r}, which tells more than the method's default one",
                text_of(allowed),
                f"add {name!r} to 'exchanges' of the node config if this party agrees, or run the "
                "method with its default exchange",
            )

    # -- the aligned rows ------------------------------------------------------------------

    @property
    def own_ids(self) -> "pd.Index[Any]":
        """IDs of the rows that take part in alignment; strategies may add rows of their own."""
        return self._own_columns.ids

    @property
    def n_samples(self) -> int:
        """Number of aligned samples over all parties."""
        return int(self._aligned("n_samples"))

    @property
    def positions(self) -> Any:
        """Aligned row number of each own row, -1 if it is left out; array of shape (n_own,)."""
        positions = self._aligned("positions")
        if ORDER not in self.state:
            return positions
        # Private protocols see the rows in a secret order; only this party can undo it.
        if "positions" not in self.cache:
            own = np.empty(len(positions), dtype=np.int64)
            own[self.state[ORDER]] = positions
            self.cache["positions"] = own
        return self.cache["positions"]

    def to_aligned(self, values: Any, fill: Any) -> Any:
        """Scatter values of the own rows into the aligned order.

        Parameters
        ----------
        values : array_like of shape (n_own, ...)
            A value for each of `own_ids`.
        fill : scalar
            Stands where this party has no row.

        Returns
        -------
        numpy.ndarray of shape (n_samples, ...)
            Of the values' dtype, or the smallest that holds `fill`, too.
        """
        return to_aligned(values, self.positions, self.n_samples, fill)

    def rows_of(self, batch: Any) -> tuple[Any, Any]:
        """Find which rows of a batch this party holds.

        Parameters
        ----------
        batch : array_like of shape (n_batch,)
            Aligned row numbers, in any order.

        Returns
        -------
        places : numpy.ndarray of shape (n_held,), int64
            Where in the batch the rows held stand, ascending.
        rows : numpy.ndarray of shape (n_held,), int64
            Which own rows these are: ``values[rows]`` belongs to ``batch[places]``.
        """
        if "own-rows" not in self.cache:
            self.cache["own-rows"] = own_rows(self.positions, self.n_samples)
        return rows_of(batch, self.cache["own-rows"])

    def _aligned(self, key: str) -> Any:
        if key not in self.state:
            raise ProtocolError(
                f"party {self.name!r} has no {key!r} yet: samples are aligned before other steps"
            )
        return self.state[key]


class Arbiter(Node):
    """The node that opens encrypted sums; it holds the secret key and no data.

    A strategy that wants something else than the sum to leave the arbiter (ranks instead of
    distances, say) subclasses it and names one of its steps as ``release`` of
    `Federation.sum`; the step receives the opened sums as ``sums``. In the modes ``plain`` and
    ``masked`` the server takes the same step itself, on an arbiter without a node.
    """

    def __init__(self, services: NodeServices | None = None) -> None:
        super().__init__(services or _without_node())

    @step
    def reveal(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Release the sums as they are."""
        return sums


def _without_node() -> NodeServices:
    """Return what an arbiter half has where the server takes a release step itself."""

    def refuse(*_: object) -> Any:
        raise ProtocolError("the server holds no table; a release step works on the sums alone")

    return NodeServices("server", {}, {}, {}, {}, refuse, refuse, refuse, refuse)
