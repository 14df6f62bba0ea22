"""Tables and results in memory: for simulations, notebooks and tests."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from flwr.app import Context

from flwr_vertical.incomplete.held_out import hide_cells, put_back
from flwr_vertical.node.config import HOLD_OUT
from flwr_vertical.node.outputs import OutputFolder
from flwr_vertical.node.storage import Storage, data_digest, node_in_words
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.requirements import open_to
from flwr_vertical.privacy_ledger.database import SUFFIX as LEDGER_SUFFIX
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.tables import Table


class MemoryStorage(Storage):
    """Tables held in memory, by party name: for notebooks, tests and studies.

    Parameters
    ----------
    tables : Mapping[str, Table]
        Each party's table.
    fitted : Mapping[str, Table], optional
        What an earlier run left at each party.
    fitted_models : Mapping[str, bytes], optional
        What each party saved of an earlier run's model.
    folder : path-like, optional
        What the parties save is also kept there, and what is there belongs to this run.
    counted : bool or path-like, default False
        Whether each party keeps a privacy ledger, so that limits of its policy on what adds up
        hold: over the runs that this storage serves, or in a folder over all that name it.
    """

    in_memory = True

    def __init__(
        self,
        tables: Mapping[str, Table],
        fitted: Mapping[str, Table] | None = None,
        fitted_models: Mapping[str, bytes] | None = None,
        folder: str | os.PathLike[str] | None = None,
        counted: bool | str | os.PathLike[str] = False,
    ) -> None:
        self._tables = dict(tables)
        self._fitted = dict(fitted or {})
        self._fitted_models = dict(fitted_models or {})
        self.outputs: dict[str, pd.DataFrame] = {}
        self.models: dict[str, bytes] = {}
        self._folder = None if folder is None else OutputFolder(folder)
        self._ledgers = None if isinstance(counted, bool) else Path(counted)
        if counted is True:
            # Removed with this object.
            self._own_folder = TemporaryDirectory(prefix="flwr-ledgers-")
            self._ledgers = Path(self._own_folder.name)
        if self._folder is not None:
            self.outputs, self.models = self._folder.load(self._tables)

    def load(self, context: Context) -> Table:
        """Return the party's table."""
        return self._tables[self.party_name(context)]

    def hide(self, context: Context, table: Table) -> Table:
        """Return the table without the cells that are held out of a pipeline's imputations."""
        share = context.node_config.get(HOLD_OUT)
        if not share:
            return table
        seed = str(context.run_config.get("seed", 0))
        return hide_cells(table, float(share), seed, self.party_name(context))

    def load_fitted(self, context: Context) -> Table | None:
        """Return what the earlier run left at the party."""
        return self._fitted.get(self.party_name(context))

    def policy(self, context: Context) -> Policy:
        """Return what the node config states; where it is silent, any run is agreed to."""
        return read_policy(node_in_words(context), context.node_config, open_to(context.run_config))

    def privacy_ledger(self, context: Context) -> PrivacyLedger | None:
        """Return the party's ledger if they are kept; tables in memory seldom need any."""
        if self._ledgers is None or self.role(context) == "arbiter":
            return None
        party = self.party_name(context)
        path = self._ledgers / f"{party}{LEDGER_SUFFIX}"
        return PrivacyLedger(path, party, self.policy(context))

    def data_version(self, context: Context) -> str:
        """Return a digest of the party's table."""
        tables = self._tables.get(self.party_name(context)), self.load_fitted(context)
        parts = ["none" if t is None else data_digest(t.frame) for t in tables]
        model = self.load_model(context)
        own = "none" if model is None else hashlib.blake2b(model, digest_size=16).hexdigest()
        return " ".join([*parts, own])

    def save(self, context: Context, frame: pd.DataFrame, beside: str = "", stage: str = "") -> str:
        """Keep the result in ``outputs``; what is beside it, under ``<party>@<beside>``.

        With what a stage leaves to later ones the cells come back that were held out of it.
        """
        if beside and beside == stage and context.node_config.get(HOLD_OUT):
            frame = put_back(frame, self.load(context))
        name = self.party_name(context) + ("@" + beside if beside else "")
        self.outputs[name] = frame
        if self._folder is not None:
            self._folder.save_table(name, frame)
        return "memory"

    def load_output(self, context: Context, beside: str) -> pd.DataFrame:
        """Return what was kept beside the result."""
        return self.outputs[f"{self.party_name(context)}@{beside}"]

    def save_model(self, context: Context, data: bytes) -> str:
        """Keep the party's part of the model in ``models``."""
        self.models[self.party_name(context)] = data
        if self._folder is not None:
            self._folder.save_model(self.party_name(context), data)
        return "memory"

    def load_model(self, context: Context, run: str = "") -> bytes | None:
        """Return the party's part of the earlier run's model; there is one such run at most."""
        return self._fitted_models.get(self.party_name(context))
