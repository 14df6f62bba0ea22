"""`RunLedger`: the privacy ledger as one run uses it, in a file or in the run's state."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array, Integers, Ring
from flwr_vertical.errors import PolicyError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.entries import add_run
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_history import OpenedRows, ToldColumns
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.privacy_ledger.seals import SCHEMA, add_functions, seal


class RunLedger:
    """`PrivacyLedger` for one run and the rows of its table: its methods, without run and rows."""

    def __init__(
        self, ledger: PrivacyLedger, token: str, find_rows: Callable[[PrivacyLedger], OwnRows]
    ) -> None:
        self.ledger, self.token = ledger, token
        self.kinds: set[str] = set()  # of the entries that it got
        self._find_rows = find_rows

    @property
    def rows(self) -> OwnRows:
        """The own rows, in the order of the node's table."""
        return self._find_rows(self.ledger)

    def rows_of(self, ids: "pd.Index[Any]") -> OwnRows:
        """Return rows by their IDs; changes of their cells are not noticed."""
        return self.ledger.rows(ids)

    def row_secrets(self, rows: OwnRows, at: Integers) -> tuple[Ring, bytes]:
        """Return a secret number of each of some rows, the same in all runs, and a name of these.

        Shapes: at (n_chosen,): which of them; returns (n_chosen,): uniform, known to this node
        alone.
        """
        return self.ledger.row_secrets(rows, at)

    def version_of(self, values: Array) -> bytes:
        """Return a keyed digest of values of the table's rows, the same in any order of these."""
        return self.ledger.version_of(self.rows, values)

    def begin(self, name: str, strategy: str, settings: Mapping[str, Any]) -> None:
        """Write down that the run greets this node."""
        later = bool(settings.get("fitted"))
        self.ledger.begin(self.token, name, strategy, settings, self.rows, all_new=later)

    def note_refused(
        self, name: str, strategy: str, settings: Mapping[str, Any], error: PolicyError
    ) -> None:
        """Write down that the policy forbade the run, before it began."""
        self.ledger.note_refused(self.token, name, strategy, settings, error)

    def note_nothing(self, kind: str) -> None:
        """Say that an answer has nothing of the own rows, although its step tells of rows."""
        self.kinds.add(kind)

    def note_ended(self, step: str, why: str) -> None:
        """Write down at which step this node left the run: it was refused, or failed."""
        self.ledger.note_ended(self.token, step, why)

    def check_and_note_rows(
        self, group: npt.ArrayLike, at_least: int, *, rows: OwnRows | None = None, **options: Any
    ) -> OpenedRows:
        """Tell of sums over groups of own rows, or refuse; `rows` if they are not the table's."""
        own = self.rows if rows is None else rows
        self.kinds.add("rows")
        return self.ledger.check_and_note_rows(self.token, own, group, at_least, **options)

    def open_bits(
        self, chosen: npt.ArrayLike, bits: float, *, rows: OwnRows | None = None, **options: Any
    ) -> None:
        """Tell something of single rows, or refuse."""
        own = self.rows if rows is None else rows
        self.kinds.add("bits")
        self.ledger.open_bits(self.token, own, chosen, bits, **options)

    def spend_epsilon(self, epsilon: float, **options: Any) -> None:
        """Spend privacy budget on a release with noise, or refuse."""
        self.kinds.add("epsilon")
        self.ledger.spend_epsilon(self.token, epsilon, **options)

    def columns_told(self, rows: OwnRows, *noted: Any, **group: Any) -> ToldColumns:
        """Return how columns were made that were told of; see `row_history.columns_told`."""
        return self.ledger.columns_told(self.token, rows, *noted, **group)

    def note_stream(self, name: str, content: bytes) -> None:
        """Use a key stream, or a pad, for a content; refuse it for another one."""
        self.ledger.note_stream(self.token, name, content)

    def note_streams(self, streams: Mapping[str, bytes]) -> None:
        """Use several key streams; all or none."""
        self.ledger.note_streams(self.token, streams)

    def note_foreign_ids(
        self, count: int, n_own: int, sender: str = "server", content: bytes = b""
    ) -> None:
        """Blind IDs of others, or refuse."""
        self.kinds.add("ids")
        self.ledger.note_foreign_ids(self.token, count, n_own, sender, content)


# Under a prefix that the server may not write to.
_KEPT = "node.privacy-ledger"
_RUN = "run"


class MemoryLedger(PrivacyLedger):
    """A ledger by the same rules that ends with the run, so rows are known by their numbers."""

    def __init__(self, state: MutableMapping[str, Any], party: str, policy: Policy) -> None:
        self.path, self.party, self.policy = Path("in-memory"), party, policy
        self._who, self._state = f"party {party!r}", state
        self._clock = lambda: 0.0

    def rows(self, ids: "pd.Index[Any]", frame: pd.DataFrame | None = None) -> OwnRows:
        """Return own rows by their numbers: nothing of a table in memory changes within a run."""
        return OwnRows(np.arange(len(ids), dtype=np.uint64))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            add_functions(connection)
            if _KEPT in self._state:
                connection.deserialize(self._state[_KEPT])
            else:
                connection.execute("PRAGMA page_size = 512")
                for statement in SCHEMA.values():
                    connection.execute(statement)
                seal(connection)
                add_run(connection, _RUN, "", "", {}, 0.0)
            yield connection
            self._state[_KEPT] = connection.serialize()


def run_ledger_in_memory(
    state: MutableMapping[str, Any], party: str, policy: Policy, ids: "pd.Index[Any]"
) -> RunLedger:
    """Return the ledger of a run whose state is given."""
    return RunLedger(MemoryLedger(state, party, policy), _RUN, lambda ledger: ledger.rows(ids))
