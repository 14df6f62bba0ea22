"""Tables and results on the party's own disk, or in its database."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.app import Context

from flwr_vertical.errors import ConfigError, DataError, VerticalError
from flwr_vertical.log import logger
from flwr_vertical.node import storage
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.database import SUFFIX as LEDGER_SUFFIX
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.protocol.disk import FILE_MODE, private_folder, writing
from flwr_vertical.sources.address import is_database
from flwr_vertical.sources.folders import folder_digest
from flwr_vertical.sources.reading import read_frame, read_source
from flwr_vertical.sources.writing import Destination, FileDestination, table_name
from flwr_vertical.tables import (
    Cleaning,
    CsvFormat,
    Kind,
    Table,
    checked_ids,
    read_table,
    write_table,
)
from flwr_vertical.whole_files import write_bytes_atomically

FOLDER_NAME = ".sources"


class SourceCopy:
    """The copy of one party and run."""

    def __init__(
        self,
        folder: Path,
        party: str,
        run: str,
        read: Callable[[], tuple[pd.DataFrame, str, list[str]]],
    ) -> None:
        self._folder = folder / FOLDER_NAME / party
        self._results = folder
        self._party, self._run, self._read = party, run, read

    @property
    def path(self) -> Path:
        """Path of the file; reads the database if it is not there."""
        path = self._folder / f"{self._run}.parquet"
        if not path.is_file():
            self._take(path)
        return path

    def begin(self) -> None:
        """Read the database for a run that begins; remove copies of runs that cannot go on."""
        for path in self._folder.glob("*.parquet"):
            kept = self._results / path.stem / ".checkpoint" / f"{self._party}.party"
            if path.stem == self._run or not kept.exists():
                path.unlink(missing_ok=True)
        _ = self.path

    def end(self) -> None:
        """Remove the file: the run is over."""
        (self._folder / f"{self._run}.parquet").unlink(missing_ok=True)

    def frame(self) -> pd.DataFrame:
        """Return what was read, indexed by sample ID."""
        return pd.read_parquet(self.path)

    def _take(self, path: Path) -> None:
        frame, where, notes = self._read()
        for note in notes:
            logger.warning("party %r: %s", self._party, note)
        frame.index = checked_ids(frame.index, where)
        logger.info("party %r: %d rows read from %s", self._party, len(frame), where)
        with writing(f"party {self._party!r}: its copy of what was read", path):
            private_folder(self._folder)
            write_table(frame, path, FILE_MODE)


class FileStorage(storage.Storage):
    """What the node config names: ``party``, ``data``, ``id-column``, ``output``.

    ``data`` is a file, a folder of Parquet files, or the address of a database with ``table`` or
    ``query``; a database is read once a run. Results are written to
    ``<output>/<run name>/<party>.parquet``, what else it gets (``<party>.intervals.parquet``, or
    ``<party>.names.parquet``, by which names the server calls its samples) and its part of a model
    (``<party>.model.npz``) beside it; ``output`` defaults to ``FLWR_VERTICAL_HOME`` or
    ``~/flwr-vertical``. If it is a database or a Parquet file, the result is written there, too,
    and the party's files go to ``output-folder``. Column kinds can be set by keys ``kind.<column> =
    "continuous" | "binary" | "categorical" | "ordinal" | "count"``, and how a CSV file is written
    by the keys ``csv.*`` (see `CsvFormat`).
    """

    in_memory = False

    def load(self, context: Context) -> Table:
        """Read what the node config names as ``data``."""
        party = self.party_name(context)
        path = context.node_config.get("data")
        if not path:
            raise ConfigError(
                f"party {party!r}: the node config has no 'data'; start the SuperNode with "
                f"--node-config \"party='{party}' data='/path/to/table.csv'\""
            )
        new_rows = bool(context.run_config.get("fitted"))
        if (copy := self._copy(context)) is not None:
            fitted = self.load_fitted(context)
            return Table.of(copy.frame(), _stated_kinds(context), party, fitted, new_rows)
        _refuse_database_keys(party, context)
        how: dict[str, Any] = {"id_column": _id_column(context), "kinds": _stated_kinds(context)}
        config = context.node_config
        how |= {"party": party, "like": self.load_fitted(context), "new_rows": new_rows}
        how |= {"cleaning": Cleaning.of_node_config(config)}
        if Path(str(path)).is_dir():
            return read_source(str(path), **how, dates=_text(config, "csv.dates"))
        return read_table(str(path), **how, csv=CsvFormat.of_node_config(config))

    def load_fitted(self, context: Context) -> Table | None:
        """Read the table that the run named ``fitted`` in the run config left here."""
        earlier = context.run_config.get("fitted")
        if not earlier:
            return None
        party = self.party_name(context)
        folder = storage.party_folder(context) / storage.run_folder("fitted", earlier)
        path = folder / f"{party}.parquet"
        if not path.is_file():
            if _model_path(context, party, earlier).is_file():  # it fitted a model, and no table
                return None
            raise DataError(
                f"party {party!r} has nothing from a run named {earlier!r} "
                "in its output folder; check 'fitted' in the run config"
            )
        return read_table(path, kinds=storage.fitted_kinds(_stated_kinds(context)), party=party)

    def policy(self, context: Context) -> Policy:
        """Return the policy of the node config, or of the file that it names."""
        return read_policy(storage.node_in_words(context), context.node_config)

    def privacy_ledger(self, context: Context) -> PrivacyLedger | None:
        """Return the ledger beside the party's results; made at the first run."""
        if self.role(context) == "arbiter":
            return None
        party = self.party_name(context)
        path = storage.party_folder(context) / f"{party}{LEDGER_SUFFIX}"
        return PrivacyLedger(path, party, self.policy(context))

    def data_version(self, context: Context) -> str:
        """Return a digest of the party's data, and of what an earlier run left, if that is used."""
        copy = self._copy(context)
        own = Path(str(context.node_config.get("data", ""))) if copy is None else copy.path
        paths = [own]
        if earlier := context.run_config.get("fitted"):
            folder = storage.party_folder(context) / storage.run_folder("fitted", earlier)
            paths.append(folder / f"{self.party_name(context)}.parquet")
            paths.append(_model_path(context, self.party_name(context), earlier))
        return " ".join(_file_digest(path) for path in paths)

    def begin(self, context: Context) -> None:
        """Read the party's database, if it has one, and see whether its result can be written."""
        if self.role(context) == "arbiter":
            return
        config = context.node_config
        named = [str(config.get(key, "")) for key in ("data", "output")]
        if "secret-file" in config and not any(map(_has_users, named)):
            raise ConfigError(
                f"party {self.party_name(context)!r}: 'secret-file' is for the password of a "
                "PostgreSQL user, and neither 'data' nor 'output' is such a database; take it out"
            )
        if (copy := self._copy(context)) is not None:
            copy.begin()
        if (destination := self._destination(context)) is not None:
            self._begun(context).unlink(missing_ok=True)
            destination.check()

    def end(self, context: Context) -> None:
        """Remove what was kept for this run alone."""
        if self.role(context) != "arbiter" and (copy := self._copy(context)) is not None:
            copy.end()

    def earlier_result(self, context: Context) -> Path | None:
        """Return the result or model of an earlier run that has the name of this one, if any."""
        if self.role(context) == "arbiter" or not context.run_config.get("run-name"):
            return None
        model = _model_path(context, self.party_name(context), storage.run_name(context))
        return next((path for path in (self._result(context), model) if path.exists()), None)

    def save(self, context: Context, frame: pd.DataFrame, beside: str = "", stage: str = "") -> str:
        """Write the result under the run's name; only its owner can read it."""
        path = self._result(context, beside)
        with writing(f"party {self.party_name(context)!r}: its result", path):
            write_table(frame, path, FILE_MODE)
        destination = None if beside else self._destination(context)
        if destination is None:
            return str(path)
        try:
            begun = self._begun(context)
            if not begun.exists():
                destination.check()
                begun.touch(FILE_MODE)
            # If this step is taken again, what is there is this run's own.
            destination.replacing().write(frame)
        except VerticalError as error:
            raise DataError(f"{error}. The result lies in the output folder: {path}") from error
        return f"{destination}; {path}"

    def load_output(self, context: Context, beside: str) -> pd.DataFrame:
        """Read what this run wrote beside its result."""
        return pd.read_parquet(self._result(context, beside))

    def save_model(self, context: Context, data: bytes) -> str:
        """Write the party's part of the model under the run's name; only its owner can read it."""
        path = _model_path(context, self.party_name(context), storage.run_name(context))
        with writing(f"party {self.party_name(context)!r}: its part of the model", path):
            return str(write_bytes_atomically(path, data, FILE_MODE))

    def load_model(self, context: Context, run: str = "") -> bytes | None:
        """Read the party's part of the model of the run named, or of ``fitted``."""
        earlier = run or context.run_config.get("fitted")
        if not earlier:
            return None
        party = self.party_name(context)
        path = _model_path(context, party, earlier)
        if not path.is_file():
            raise DataError(
                f"party {party!r} has no model from a run named {str(earlier)!r}: there is no "
                f"file {path.name} in that run's folder inside its output folder; check 'fitted' "
                "in the run config"
            )
        return path.read_bytes()

    def _copy(self, context: Context) -> SourceCopy | None:
        """Return the copy of what this run reads of a database; None if the data are files."""
        data = str(context.node_config.get("data", ""))
        if not data or not is_database(data):
            return None
        config = context.node_config
        party = self.party_name(context)
        read = partial(
            read_frame,
            data,
            table=_text(config, "table"),
            query=_text(config, "query"),
            id_column=_id_column(context),
            dates=_text(config, "csv.dates"),
            secret_file=_secret_file(config, data),
            cleaning=Cleaning.of_node_config(config),
        )
        return SourceCopy(storage.party_folder(context), party, storage.run_name(context), read)

    def _destination(self, context: Context) -> Destination | FileDestination | None:
        """Return where a result is written besides the party's folder, if anywhere."""
        config = context.node_config
        output, party = str(config.get("output", "")), self.party_name(context)
        if not storage.is_destination(output):
            for key in ("output-table", "output-replace", "output-folder"):
                if key in config:
                    raise ConfigError(
                        f"party {party!r}: {key} is set, but 'output' is no database or Parquet "
                        "file; it is a folder, in which each run has a folder of its own"
                    )
            return None
        replace, run = str(config.get("output-replace", "never")), storage.run_name(context)
        if not is_database(output):
            return FileDestination(replace, Path(table_name(output, party, run)))
        return Destination.of(
            output,
            table_name(str(config.get("output-table", "{party}_{run}")), party, run),
            replace=replace,
            secret_file=_secret_file(config, output),
            source=_text(config, "data"),
            source_table=_text(config, "table"),
        )

    def _begun(self, context: Context) -> Path:
        """Return a file that is there once this run began to write its result elsewhere."""
        path = self._result(context)
        return path.with_name(f".{path.name}.written")

    def _result(self, context: Context, beside: str = "") -> Path:
        name = f"{self.party_name(context)}{'.' if beside else ''}{beside}.parquet"
        return storage.party_folder(context) / storage.run_name(context) / name


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return None if value is None else str(value)


def _secret_file(config: Mapping[str, Any], address: str) -> str | None:
    """Return the file with the password, for a database that has users."""
    return _text(config, "secret-file") if _has_users(address) else None


def _has_users(address: str) -> bool:
    return address.lower().startswith(("postgres", "${"))


def _id_column(context: Context) -> str | None:
    return _text(context.node_config, "id-column")


def _refuse_database_keys(party: str, context: Context) -> None:
    """Refuse keys that only a database has."""
    for key in ("table", "query"):
        if key in context.node_config:
            raise ConfigError(
                f"party {party!r}: the node config has {key!r}, but 'data' is a file or a folder; "
                f"take {key!r} out, or name a database"
            )


def _stated_kinds(context: Context) -> dict[str, Kind | str]:
    return {
        key.removeprefix("kind."): str(value)
        for key, value in context.node_config.items()
        if key.startswith("kind.")
    }


def _model_path(context: Context, party: str, run: object) -> Path:
    """Return where a party's part of a run's model is."""
    return storage.party_folder(context) / storage.run_folder("fitted", run) / f"{party}.model.npz"


def _file_digest(path: Path) -> str:
    try:
        if path.is_dir():
            return folder_digest(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except (OSError, DataError):  # whoever reads it will say what is wrong
        return "unreadable"
