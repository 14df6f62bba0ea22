"""A node's table and its privacy ledger, as one run uses them: read and opened once a process.

On the Deployment Runtime each message may come to a new process, which reads the table again. A
file that was replaced meanwhile would give one half of a run other rows than the other half: so a
version of the data is compared with the first one of the run, once in a process.
"""

from collections.abc import Callable
from typing import Any

from flwr.app import Context

from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from flwr_vertical.node.state import State
from flwr_vertical.node.steps import NodeServices
from flwr_vertical.node.storage import Storage
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.tables import Severity, Table, check_table
from flwr_vertical.tables.cleaning import DROP, IDS, MISSING_IN
from flwr_vertical.tables.csv_format import PREFIX
from flwr_vertical.tables.findings import lines_of, warnings_in

# In the state: the run of Flower that began, its seed, and what only this node knows of it.
RUN, SEED, SECRET = "node.run", "node.seed", "node.secret"
_LEDGER, _ROWS, _TABLE = "privacy-ledger", "ledger-rows-of-table", "raw-table"
# Keys of the node config by which a table is read, and beginnings of such keys.
_READ_BY = ("data", "table", "query", "id-column", DROP, IDS)
_HOW = ("kind.", PREFIX, MISSING_IN)
_TOLD_OF_TABLE = "node.told-of-table"
_VERSION, _CHECKED = "node.data", "data-checked"  # in the state, and in the cache


class NodeData:
    """Table and privacy ledger of the node that a message came to."""

    def __init__(
        self, storage: Storage, context: Context, state: State, cache: dict[str, Any]
    ) -> None:
        self._storage, self._context, self._state, self._cache = storage, context, state, cache

    @property
    def version(self) -> str:
        """The version of the data with which the run began; "" if none was noted."""
        return str(self._state.get(_VERSION, ""))

    def note_version(self) -> None:
        """Note the version that the data have now; refuse another one than was noted before."""
        storage, context = self._storage, self._context
        version = storage.data_version(context) if storage.role(context) == "party" else ""
        if self.version not in ("", version):
            raise DataError(
                f"party {storage.party_name(context)!r}: its data have changed since the run "
                "began; put back what they were, or start the run anew"
            )
        self._state[_VERSION] = version
        self._cache[_CHECKED] = True

    def _check_version(self) -> None:
        # Tables in memory are those of this process, and nobody replaces them.
        if _CHECKED not in self._cache and (self.version or not self._storage.in_memory):
            self.note_version()

    def _load_fitted(self) -> Table | None:
        self._check_version()
        return self._storage.load_fitted(self._context)

    def services(
        self,
        policy: Policy,
        sequence: int,
        course: int,
        asked: Callable[[], bytes],
        binding: Callable[[], bytes],
    ) -> NodeServices:
        """Return what a party or an arbiter is given for the time of one message."""
        storage, context, state = self._storage, self._context, self._state
        return NodeServices(
            name=str(state["node.name"]),
            run_config=context.run_config,
            node_config=storage.node_config(context),
            state=state,
            cache=self._cache,
            load_table=self.table,
            hide=lambda table: storage.hide(context, table),
            load_fitted=self._load_fitted,
            load_truth=lambda: storage.load_truth(context),
            save_output=lambda frame, *where: storage.save(context, frame, *where),
            save_model=lambda model: storage.save_model(context, model),
            load_model=lambda run: storage.load_model(context, run),
            load_output=lambda beside: storage.load_output(context, beside),
            seed=str(state.get(SEED, "0")),
            secret=bytes(state.get(SECRET, b"")),
            sequence=sequence,
            course=course,
            asked=asked,
            binding=binding,
            policy=policy,
            ledger=self.ledger(),
            in_memory=storage.in_memory,
        )

    def ledger(self) -> RunLedger | None:
        """Return the node's privacy ledger for this run; opened once a process."""
        if _LEDGER not in self._cache:
            self._cache[_LEDGER] = self._storage.privacy_ledger(self._context)
        ledger: PrivacyLedger | None = self._cache[_LEDGER]
        if ledger is None:
            return None

        def find_rows(ledger: PrivacyLedger) -> OwnRows:
            if _ROWS not in self._cache:

                def load() -> OwnRows:
                    table = self.table()
                    return ledger.rows(table.ids, table.frame)

                self._check_version()
                config = self._context.node_config
                read = {k: v for k, v in config.items() if k in _READ_BY or k.startswith(_HOW)}
                version = f"{self.version} {sorted(read.items())}" if self.version else ""
                self._cache[_ROWS] = ledger.rows_of_version(version, load)
            own: OwnRows = self._cache[_ROWS]
            return own

        # A run that goes on has another number at Flower than the one in which it greeted.
        return RunLedger(ledger, f"run {self._state.get(RUN, self._context.run_id)}", find_rows)

    def table(self) -> Table:
        """Return the node's table as it is in its storage; read once a process."""
        if _TABLE not in self._cache:
            self._check_version()
            self._cache[_TABLE] = self._storage.load(self._context)
            self._tell_of(self._cache[_TABLE])
        table: Table = self._cache[_TABLE]
        return table

    def _tell_of(self, table: Table) -> None:
        """Write into the node's own log, once a run, what its owner should know of the table."""
        # New rows of an earlier fit are taken as that fit's were.
        if self._storage.in_memory or _TOLD_OF_TABLE in self._state:
            return
        self._state[_TOLD_OF_TABLE] = 1
        fitted = bool(self._context.run_config.get("fitted"))
        config = self._context.node_config
        stated = {key.removeprefix("kind.") for key in config if key.startswith("kind.")}
        found = table.reading if fitted else check_table(table, stated=stated)
        who = f"party {self._storage.party_name(self._context)!r}"
        for line in lines_of(warnings_in(found)):
            logger.warning("%s: its table: %s", who, line)
        # Of the check's own notes there may be many, and `flwr-vertical check` shows them.
        for line in lines_of([one for one in table.reading if one.severity is Severity.NOTE]):
            logger.info("%s: its table: %s", who, line)
