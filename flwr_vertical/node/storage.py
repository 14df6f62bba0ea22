"""What a node asks its storage for, and the names and folders that go with it."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from flwr.app import Context

from flwr_vertical.errors import ConfigError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.sources.address import is_database
from flwr_vertical.tables import Kind, Table


class Storage(Protocol):
    """A party's own storage, as `party_app` needs it."""

    in_memory: bool  # whether tables lie in the server's own process, from which nothing is hidden

    def role(self, context: Context) -> str:
        """Role of the node, ``"party"`` or ``"arbiter"``: that of the node config."""
        return configured_role(context)

    def party_name(self, context: Context) -> str:
        """Name of the party that runs on this node: that of the node config."""
        return configured_name(context)

    def in_words(self, context: Context) -> str:
        """Return the node as errors name it."""
        if self.role(context) == "arbiter":
            return "the arbiter"
        return f"party {self.party_name(context)!r}"

    def load(self, context: Context) -> Table:
        """Read the party's table."""

    def hide(self, context: Context, table: Table) -> Table:
        """Return what a stage that imputes is given of a table: all but cells held out of it."""
        return table

    def load_fitted(self, context: Context) -> Table | None:
        """Read what the earlier run named ``fitted`` left here, if the run config names one."""

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return the complete table where it is known, as in demonstrations."""
        return None

    def node_config(self, context: Context) -> Mapping[str, Any]:
        """Return what the node's owner has stated, as a party reads it."""
        return context.node_config

    def policy(self, context: Context) -> Policy:
        """Return what the node agrees to."""

    def privacy_ledger(self, context: Context) -> PrivacyLedger | None:
        """Return the node's privacy ledger; None if it keeps none."""

    def data_version(self, context: Context) -> str:
        """Return a digest of what the run reads, by which a change in its course is noticed."""

    def begin(self, context: Context) -> None:
        """Get ready for a run, before anything of its table is read."""
        return

    def end(self, context: Context) -> None:
        """Remove what was kept for this run alone."""
        return

    def earlier_result(self, context: Context) -> Path | None:
        """Return the result of an earlier run that this one would replace, if there is one."""
        return None

    def save(self, context: Context, frame: pd.DataFrame, beside: str = "", stage: str = "") -> str:
        """Store what the party holds after a run or `stage`, or `beside` it; returns where."""

    def load_output(self, context: Context, beside: str) -> pd.DataFrame:
        """Read what this run stored `beside` its result."""

    def save_model(self, context: Context, data: bytes) -> str:
        """Store the party's part of the run's model, for its owner's eyes; returns where."""

    def load_model(self, context: Context, run: str) -> bytes | None:
        """Read the party's part of the model of an earlier run, None if no run is named.

        By default the run is the one named ``fitted`` in the run config. `DataError` if it left
        none.
        """


def node_in_words(context: Context) -> str:
    """Return a node as errors name it by its node config alone; see `Storage.in_words`."""
    if configured_role(context) == "arbiter":
        return "the arbiter"
    return f"party {str(context.node_config.get('party', context.node_id))!r}"


def check_name(name: object) -> str:
    """Return a party's name if it can stand in file names and tables, else raise."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w .+-]{0,63}", name):
        raise ConfigError(
            f"party name {name!r} is not usable; expected 1 to 64 letters, digits, spaces or _.+-, "
            "beginning with a letter or digit"
        )
    if name == "server":  # whose intercept, labels and name would be mixed up with the party's
        raise ConfigError("a party cannot be named 'server', as the server is; rename it")
    return name


def is_destination(output: str) -> bool:
    """Whether ``output`` is a database or a Parquet file, and not the party's folder."""
    return bool(output) and (is_database(output) or output.lower().endswith((".parquet", ".pq")))


def fitted_kinds(kinds: Mapping[str, Kind | str]) -> dict[str, Kind | str]:
    """Kinds that hold for an imputed table too: imputed counts are means, not whole numbers."""
    return {name: kind for name, kind in kinds.items() if kind != Kind.COUNT}


def configured_role(context: Context) -> str:
    """Role of a node: ``"party"`` (default) or ``"arbiter"``, from its node config."""
    role = str(context.node_config.get("role", "party"))
    if role not in ("party", "arbiter"):
        raise ConfigError(f"node config role = {role!r}; expected 'party' or 'arbiter'")
    return role


def data_digest(data: "pd.DataFrame | pd.Series[Any]") -> str:
    """Return a digest of a table or of labels, with their index and the names of the columns."""
    rows = pd.util.hash_pandas_object(data, index=True).to_numpy()
    found = hashlib.blake2b(rows.tobytes(), digest_size=16)
    if isinstance(data, pd.DataFrame):
        found.update(repr([*map(str, data.columns)]).encode())
    return found.hexdigest()


def output_home() -> Path:
    """Folder for results where nothing else is configured."""
    configured = os.environ.get("FLWR_VERTICAL_HOME")
    return Path(configured) if configured else Path.home() / "flwr-vertical"


def party_folder(context: Context) -> Path:
    """Folder on the party's own disk that its results go to."""
    configured = str(context.node_config.get("output", ""))
    if is_destination(configured):
        configured = str(context.node_config.get("output-folder", ""))
    return Path(configured) if configured else output_home() / "parties"


def run_name(context: Context) -> str:
    """Name of the run: ``run-name`` of the run config, or the run's ID."""
    configured = context.run_config.get("run-name")
    return run_folder("run-name", configured) if configured else f"run-{context.run_id}"


def run_folder(key: str, value: object) -> str:
    """Return a run's name, which comes from the server, if it stays in a party's own folder."""
    name = str(value)
    if not re.fullmatch(r"\w[\w .+-]{0,127}", name):
        raise ConfigError(
            f"{key} {name!r} is not usable; it names a folder inside each party's own: expected 1 "
            "to 128 letters, digits, spaces or _.+-, beginning with a letter or digit"
        )
    return name


def configured_name(context: Context) -> str:
    """Name of the party on a node, from its node config."""
    if "party" not in context.node_config:
        raise ConfigError(
            f"node {context.node_id} has no party name; start its SuperNode with "
            "--node-config \"party='bank' data='/path/to/table.csv'\""
        )
    return check_name(context.node_config["party"])
