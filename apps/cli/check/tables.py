"""Read and check a table, or a folder with a table of each party."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources.address import is_database
from flwr_vertical.sources.reading import read_frame as read_from_source
from flwr_vertical.tables import (
    Cleaning,
    CsvFormat,
    Finding,
    Severity,
    Table,
    check_table,
    read_frame,
)
from flwr_vertical.tables.dtypes import plain_column
from flwr_vertical.tables.id_checks import check_overlap_of, overlap_of, type_of_ids
from flwr_vertical.tables.kinds import Kind, infer_kinds
from flwr_vertical.tables.table import checked_ids
from flwr_vertical.tables.writers import FORMATS

from .trial import Trial

Step = Callable[[str], None]
_KIND = "kind."


@dataclass
class CheckedTable:
    """A party's table and what was found."""

    party: str  # Its name: that of the file unless stated
    source: str  # Where it was read
    frame: pd.DataFrame | None  # Indexed by sample ID; None if it cannot be read
    kinds: dict[str, str]  # Of the columns, inferred or stated
    findings: list[Finding]  # Errors first

    @property
    def id_type(self) -> str:
        """``"integer"``, ``"text"`` or what else the IDs are."""
        return "" if self.frame is None else type_of_ids(self.frame.index)

    @property
    def usable(self) -> bool:
        """Whether a run would take the table."""
        return all(one.severity is not Severity.ERROR for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        shape = (0, 0) if self.frame is None else self.frame.shape
        return {
            "party": self.party,
            "source": self.source,
            "rows": shape[0],
            "columns": shape[1],
            "ids": self.id_type,
            "kinds": self.kinds,
            "findings": [finding.to_dict() for finding in self.findings],
        }


@dataclass
class Checks:
    """What was found in all tables."""

    tables: list[CheckedTable]
    # Of the tables together: whether their sample IDs meet
    findings: list[Finding] = field(default_factory=list)
    overlap: pd.DataFrame | None = None  # See `overlap_of`; None of a single table
    trials: list[Trial] = field(default_factory=list)  # What strategies said

    @property
    def all_findings(self) -> list[Finding]:
        """Those of each table, then those of all."""
        return [*(one for table in self.tables for one in table.findings), *self.findings]

    def count(self, severity: Severity) -> int:
        """Return how many findings are so bad; a named strategy that refuses is an error."""
        refused = sum(trial.refused and trial.named for trial in self.trials)
        found = sum(one.severity is severity for one in self.all_findings)
        return found + (refused if severity is Severity.ERROR else 0)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "tables": [table.to_dict() for table in self.tables],
            "findings": [finding.to_dict() for finding in self.findings],
            "overlap": [] if self.overlap is None else self.overlap.to_dict("records"),
            "strategies": [trial.to_dict() for trial in self.trials],
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
        }


def files_of(path: Path, leave_out: Sequence[Path] = ()) -> list[Path]:
    """Return the tables that a path stands for: a file, or all in a folder."""
    if not path.is_dir():
        return [path]
    without = {left.resolve() for left in leave_out}
    found = [
        file
        for file in sorted(path.iterdir())
        if file.name.lower().endswith(tuple(FORMATS)) and not file.name.startswith(".")
    ]
    found = [file for file in found if file.resolve() not in without]
    if not found:
        raise DataError(f"{path} holds no table; expected files in {', '.join(FORMATS)}")
    return found


def configs_of(
    path: Path, config: Mapping[str, Any] | None = None, leave_out: Sequence[Path] = ()
) -> dict[str, dict[str, Any]]:
    """Return a node config for a table, or for each table of a folder: each file is a party's.

    `config` has the keys that hold for all of them.
    """
    files = files_of(path, leave_out)
    names = [file.name.split(".")[0] for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{path} holds several tables named {', '.join(twice)}; each file is that of a party, "
            "so give them different names or check one file"
        )
    stated = {key: value for key, value in (config or {}).items() if key != "party"}
    if config is not None and "party" in config and len(files) == 1:
        names = [str(config["party"])]
    return {
        name: {**stated, "party": name, "data": str(file)}
        for file, name in zip(files, names, strict=True)
    }


def check_nodes(configs: Mapping[str, Mapping[str, Any]], step: Step = lambda _: None) -> Checks:
    """Check the tables of nodes, read by their node configs, and whether they fit together."""
    tables = [_check_node(name, config, len(configs) > 1, step) for name, config in configs.items()]
    indices = {}
    for table in tables:
        if table.frame is not None and not any(one.code == "ids" for one in table.findings):
            indices[table.party] = checked_ids(table.frame.index, table.party)
    if len(indices) < 2:
        return Checks(tables)
    step("comparing sample IDs")
    return Checks(tables, list(check_overlap_of(indices)), overlap_of(indices))


def kinds_in(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds of columns that a node config states."""
    return {k.removeprefix(_KIND): str(v) for k, v in config.items() if k.startswith(_KIND)}


def _check_node(name: str, config: Mapping[str, Any], of_several: bool, step: Step) -> CheckedTable:
    """Check the table that a node reads: a file, a folder of Parquet files or from a database."""
    source = str(config["data"])
    kinds = kinds_in(config)
    stated, cleaning = CsvFormat.of_node_config(config), Cleaning.of_node_config(config)
    texts = {key: str(value) for key, value in config.items()}
    id_column = texts.get("id-column")
    file = Path(source)
    reading: tuple[Finding, ...]
    try:
        if is_database(source) or file.is_dir():
            step("reading")
            frame, source, notes = read_from_source(
                source,
                table=texts.get("table"),
                query=texts.get("query"),
                id_column=id_column,
                dates=stated.dates,
                secret_file=texts.get("secret-file"),
                cleaning=cleaning,
            )
            reading = tuple(Finding("source", "", note) for note in notes)
        else:
            step(f"reading {file.name} ({_size(file)})")
            frame, reading = read_frame(file, id_column=id_column, csv=stated, cleaning=cleaning)
    except DataError as error:
        if is_database(source):
            raise
        found = Finding("file", "", str(error), severity=Severity.ERROR)
        return CheckedTable(name, source, None, {}, [found])
    own = {k: v for k, v in kinds.items() if k in frame.columns} if of_several else kinds
    return _checked(name, source, frame, reading, own, step)


def _checked(
    name: str,
    source: str,
    frame: pd.DataFrame,
    reading: tuple[Finding, ...],
    kinds: Mapping[str, str],
    step: Step,
) -> CheckedTable:
    table = Table(frame, {}, reading)
    findings = check_table(table, kinds, step=lambda column: step(f"checking {name}: {column}"))
    return CheckedTable(name, source, frame, _inferred_kinds(frame, kinds), findings)


def _size(file: Path) -> str:
    from flwr_vertical.pages.page import human_bytes

    return human_bytes(file.stat().st_size) if file.is_file() else "no file"


def _inferred_kinds(
    frame: pd.DataFrame, kinds: Mapping[str, Kind | str] | None = None
) -> dict[str, str]:
    """Return the kind of each column; "unusable" where none fits."""
    found = {}
    for name in frame.columns:
        own = {name: kinds[name]} if kinds and name in kinds else None
        try:
            found[str(name)] = str(infer_kinds(plain_column(frame[name]).to_frame(), own)[name])
        except (DataError, ConfigError):
            found[str(name)] = "unusable"
    return found
