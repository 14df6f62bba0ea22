"""`MemoryLedger`: the privacy ledger of one run, in its state, where tables lie in memory."""

import sqlite3
from collections.abc import Iterator, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.entries import add_run
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.privacy_ledger.seals import SCHEMA, add_functions, seal

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
