"""Where a party's table comes from and where its results go: always the party's own side."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from flwr.app import Context

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import Kind, Table, read_table, write_table


class Storage(Protocol):
    """A party's own storage, as `party_app` needs it."""

    def role(self, context: Context) -> str:
        """Role of the node: ``"party"`` or ``"arbiter"``."""

    def party_name(self, context: Context) -> str:
        """Name of the party that runs on this node."""

    def load(self, context: Context) -> Table:
        """Read the party's table."""

    def load_fitted(self, context: Context) -> Table | None:
        """Read what the earlier run named ``fitted`` left here, if the run config names one."""

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return the complete table where it is known, as in demonstrations."""

    def save(self, context: Context, frame: pd.DataFrame) -> str:
        """Store what the party holds after the run; returns where, for the party's own log."""


class MemoryStorage:
    """Tables held in memory, by party name: for notebooks, tests and studies.

    Parameters
    ----------
    tables : Mapping[str, Table]
        Each party's table.
    fitted : Mapping[str, Table], optional
        What an earlier run left at each party.
    """

    def __init__(
        self, tables: Mapping[str, Table], fitted: Mapping[str, Table] | None = None
    ) -> None:
        self._tables = dict(tables)
        self._fitted = dict(fitted or {})
        self.outputs: dict[str, pd.DataFrame] = {}

    def role(self, context: Context) -> str:
        """Role of the node, from the node config."""
        return configured_role(context)

    def party_name(self, context: Context) -> str:
        """Name of the party, from the node config."""
        return _configured_name(context)

    def load(self, context: Context) -> Table:
        """Return the party's table."""
        return self._tables[self.party_name(context)]

    def load_fitted(self, context: Context) -> Table | None:
        """Return what the earlier run left at the party."""
        return self._fitted.get(self.party_name(context))

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return None: `simulate` compares with the truth itself."""

    def data_version(self, context: Context) -> str:
        """Return a digest of the party's table."""
        tables = self._tables.get(self.party_name(context)), self.load_fitted(context)
        return " ".join("none" if t is None else data_digest(t.frame) for t in tables)

    def save(self, context: Context, frame: pd.DataFrame) -> str:
        """Keep the result in ``outputs``."""
        self.outputs[self.party_name(context)] = frame
        return "memory"


class FileStorage:
    """Files named in the node config: ``party``, ``data``, ``id-column``, ``output``.

    Results are written to ``<output>/<run name>/<party>.parquet``; ``output`` defaults to
    ``FLWR_VERTICAL_HOME`` or ``~/flwr-vertical``. Column kinds can be set by keys
    ``kind.<column> = "continuous" | "binary" | "categorical" | "ordinal" | "count"``.
    """

    def role(self, context: Context) -> str:
        """Role of the node, from the node config."""
        return configured_role(context)

    def party_name(self, context: Context) -> str:
        """Name of the party, from the node config."""
        return _configured_name(context)

    def load(self, context: Context) -> Table:
        """Read the file that the node config names as ``data``."""
        party = self.party_name(context)
        path = context.node_config.get("data")
        if not path:
            raise ConfigError(
                f"party {party!r}: the node config has no 'data'; start the SuperNode with "
                f"--node-config \"party='{party}' data='/path/to/table.csv'\""
            )
        id_column = context.node_config.get("id-column")
        return read_table(
            str(path),
            id_column=None if id_column is None else str(id_column),
            kinds=_stated_kinds(context),
            party=party,
            like=self.load_fitted(context),
        )

    def load_fitted(self, context: Context) -> Table | None:
        """Read the table that the run named ``fitted`` in the run config left here."""
        earlier = context.run_config.get("fitted")
        if not earlier:
            return None
        party = self.party_name(context)
        path = party_folder(context) / _run_folder("fitted", earlier) / f"{party}.parquet"
        if not path.is_file():
            raise DataError(
                f"party {party!r} has nothing from a run named {earlier!r} "
                "in its output folder; check 'fitted' in the run config"
            )
        return read_table(path, kinds=fitted_kinds(_stated_kinds(context)), party=party)

    def load_truth(self, context: Context) -> pd.DataFrame | None:
        """Return None: nobody knows the truth about a real table."""

    def data_version(self, context: Context) -> str:
        """Return a digest of the party's file, and of what an earlier run left, if that is used."""
        paths = [Path(str(context.node_config.get("data", "")))]
        if earlier := context.run_config.get("fitted"):
            folder = party_folder(context) / _run_folder("fitted", earlier)
            paths.append(folder / f"{self.party_name(context)}.parquet")
        return " ".join(_file_digest(path) for path in paths)

    def save(self, context: Context, frame: pd.DataFrame) -> str:
        """Write the result under the run's name."""
        path = party_folder(context) / run_name(context) / f"{self.party_name(context)}.parquet"
        write_table(frame, path)
        return str(path)


def check_name(name: object) -> str:
    """Return a party's name if it can stand in file names and tables, else raise."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w .+-]{0,63}", name):
        raise ConfigError(
            f"party name {name!r} is not usable; expected 1 to 64 letters, digits, spaces or _.+-, "
            "beginning with a letter or digit"
        )
    return name


def _stated_kinds(context: Context) -> dict[str, Kind | str]:
    return {
        key.removeprefix("kind."): str(value)
        for key, value in context.node_config.items()
        if key.startswith("kind.")
    }


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


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:  # whoever reads it will say what is wrong
        return "unreadable"


def output_home() -> Path:
    """Folder for results where nothing else is configured."""
    configured = os.environ.get("FLWR_VERTICAL_HOME")
    return Path(configured) if configured else Path.home() / "flwr-vertical"


def party_folder(context: Context) -> Path:
    """Folder on the party's own disk that its results go to."""
    configured = context.node_config.get("output")
    return Path(str(configured)) if configured else output_home() / "parties"


def run_name(context: Context) -> str:
    """Name of the run: ``run-name`` of the run config, or the run's ID."""
    configured = context.run_config.get("run-name")
    return _run_folder("run-name", configured) if configured else f"run-{context.run_id}"


def _run_folder(key: str, value: object) -> str:
    """Return a run's name, which comes from the server, if it stays in a party's own folder."""
    name = str(value)
    if not re.fullmatch(r"\w[\w .+-]{0,127}", name):
        raise ConfigError(
            f"{key} {name!r} is not usable; it names a folder inside each party's own: expected 1 "
            "to 128 letters, digits, spaces or _.+-, beginning with a letter or digit"
        )
    return name


def _configured_name(context: Context) -> str:
    if "party" not in context.node_config:
        raise ConfigError(
            f"node {context.node_id} has no party name; start its SuperNode with "
            "--node-config \"party='bank' data='/path/to/table.csv'\""
        )
    return check_name(context.node_config["party"])
