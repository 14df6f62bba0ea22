"""Read and check a table, or a folder with a table of each party."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources import read_frame as read_from_source
from flwr_vertical.tables import CsvFormat, Finding, Severity, Table, check_table, read_frame
from flwr_vertical.tables.dtypes import plain_column
from flwr_vertical.tables.id_checks import check_overlap_of, overlap_of, type_of_ids
from flwr_vertical.tables.kinds import Kind, infer_kinds
from flwr_vertical.tables.table import checked_ids
from flwr_vertical.tables.writers import FORMATS

from .trial import Trial

Step = Callable[[str], None]


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


def check_files(
    path: Path,
    *,
    id_column: str | None = None,
    csv: CsvFormat | Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
    party: str | None = None,
    leave_out: Sequence[Path] = (),
    step: Step = lambda _: None,
) -> Checks:
    """Check a table, or each table of a folder and whether they fit together."""
    stated = CsvFormat.of(csv)
    files = files_of(path, leave_out)
    names = [file.name.split(".")[0] for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{path} holds several tables named {', '.join(twice)}; each file is that of a party, "
            "so give them different names or check one file"
        )
    if party is not None and len(files) == 1:
        names = [party]
    tables = [
        _check_file(file, name, id_column, stated, kinds or {}, len(files) > 1, step)
        for file, name in zip(files, names, strict=True)
    ]
    if len(tables) == 1:
        return Checks(tables)
    indices = {}
    for table in tables:
        if table.frame is not None and not any(one.code == "ids" for one in table.findings):
            indices[table.party] = checked_ids(table.frame.index, table.party)
    if len(indices) < 2:
        return Checks(tables)
    step("comparing sample IDs")
    return Checks(tables, list(check_overlap_of(indices)), overlap_of(indices))


def check_source(
    data: str,
    *,
    id_column: str | None = None,
    dates: str | None = None,
    table: str | None = None,
    query: str | None = None,
    secret_file: str | None = None,
    kinds: Mapping[str, str] | None = None,
    party: str | None = None,
    step: Step = lambda _: None,
) -> Checks:
    """Check the table that a node reads from a database or a folder of Parquet files."""
    step("reading")
    frame, where, notes = read_from_source(
        data, table=table, query=query, id_column=id_column, dates=dates, secret_file=secret_file
    )
    reading = tuple(Finding(Severity.WARNING, "source", "", note) for note in notes)
    return Checks([_checked(party or "the table", where, frame, reading, kinds or {}, step)])


def _check_file(
    file: Path,
    name: str,
    id_column: str | None,
    stated: CsvFormat,
    kinds: Mapping[str, str],
    of_several: bool,
    step: Step,
) -> CheckedTable:
    step(f"reading {file.name} ({_size(file)})")
    try:
        frame, reading = read_frame(file, id_column=id_column, csv=stated)
    except DataError as error:
        found = Finding(Severity.ERROR, "file", "", str(error))
        return CheckedTable(name, str(file), None, {}, [found])
    own = {k: v for k, v in kinds.items() if k in frame.columns} if of_several else kinds
    return _checked(name, str(file), frame, reading, own, step)


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
