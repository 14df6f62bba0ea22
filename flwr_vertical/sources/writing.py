"""Write a result back: to a table of a database, in one transaction."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Self

import pandas as pd
import pyarrow as pa

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources import duckdb_file, postgres, sqlite_file
from flwr_vertical.sources.address import (
    DUCKDB,
    POSTGRESQL,
    SQLITE,
    Address,
    is_database,
    parse_address,
)
from flwr_vertical.sources.statements import table_parts
from flwr_vertical.tables import checked_ids, write_table

_BACKENDS = {POSTGRESQL: postgres, DUCKDB: duckdb_file, SQLITE: sqlite_file}
_REPLACE = ("never", "result", "input")


@dataclass(frozen=True)
class _Replacing:
    # What of that name may be replaced: ``never`` anything, ``result`` for another table than the
    # one that was read, ``input`` for any
    replace: str

    def __post_init__(self) -> None:
        """Check the value."""
        if self.replace not in _REPLACE:
            raise ConfigError(
                f"output-replace = {self.replace!r}; expected one of {list(_REPLACE)}"
            )

    def replacing(self) -> Self:
        """Return the same destination, where what is there may be replaced."""
        return replace(self, replace="input")


@dataclass(frozen=True)
class Destination(_Replacing):
    """A table of a database that a result is written to."""

    address: Address  # The database
    table: str  # Its name, with its schema before a dot if need be

    @classmethod
    def of(
        cls,
        output: str | os.PathLike[str],
        table: str,
        *,
        replace: str = "never",
        secret_file: str | os.PathLike[str] | None = None,
        source: str | os.PathLike[str] | None = None,
        source_table: str | None = None,
    ) -> "Destination":
        """Return a destination, unless it is the table that was read (`source`, `source_table`).

        `ConfigError` if something cannot be used, or the destination is the table that was read and
        `replace` does not allow it. `secret_file` has the password of a PostgreSQL user.
        """
        address = parse_address(output, secret_file)
        table_parts(table)
        found = cls(replace, address, table)
        if source is not None and source_table is not None and is_database(source):
            read = parse_address(source)
            same = _identity(read) == _identity(address)
            if same and _bare(source_table) == _bare(table) and replace != "input":
                raise ConfigError(
                    f"the result would go to {found}, the table that was read; name another "
                    "'output-table', or set output-replace='input' to lose what was read"
                )
        return found

    def __str__(self) -> str:
        """Return what messages may show."""
        return f"{self.address}, the table {self.table!r}"

    def check(self) -> None:
        """Raise unless the table can be written there, as far as can be told before.

        `DataError` if the database cannot be reached, `ConfigError` if there is such a table and it
        may not be replaced.
        """
        address = self.address
        there = address.path is None or address.path.exists()
        there = there and self.replace == "never"
        if there and _BACKENDS[address.kind].exists(address, self.table):
            self._taken()

    def write(self, frame: pd.DataFrame) -> None:
        """Write a table, with its IDs as the first column; others see all of it or nothing."""
        data = frame.set_axis(checked_ids(frame.index, f"the table for {self}"), axis=0)
        name = str(data.index.name or "sample_id")
        if name in data.columns:
            raise DataError(
                f"the table for {self} has a column named {name!r} like its index; rename one"
            )
        write: Callable[..., None] = _BACKENDS[self.address.kind].write
        rows = _arrow(data.rename_axis(index=name).reset_index())
        write(self.address, self.table, rows, self.replace != "never", self._taken)

    def _taken(self) -> NoReturn:
        raise ConfigError(
            f"{self} exists, and the result would replace it: name another 'output-table', or set "
            "output-replace='result'"
        )


@dataclass(frozen=True)
class FileDestination(_Replacing):
    """A Parquet file that a result is written to, whole or not at all."""

    path: Path  # The file; folders that do not exist are made

    def __str__(self) -> str:
        """Return what messages may show."""
        return str(self.path)

    def check(self) -> None:
        """Raise unless the file may be written there; see `Destination.check`."""
        if self.replace == "never" and self.path.exists():
            raise ConfigError(
                f"{self.path} exists, and the result would replace it: name another 'output', or "
                "set output-replace='result'"
            )

    def write(self, frame: pd.DataFrame) -> None:
        """Write a table; only its owner can read it."""
        self.check()
        try:
            write_table(frame, self.path, 0o600)
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written: {error.strerror or error}; make room or give "
                "access there"
            ) from error


def table_name(text: str, party: str, run: str) -> str:
    """Fill ``{party}`` and ``{run}`` in, by letters, digits and ``_``: a server names runs."""

    def plain(name: str) -> str:
        return re.sub(r"\W", "_", name)

    return text.replace("{party}", plain(party)).replace("{run}", plain(run))


def _arrow(frame: pd.DataFrame) -> pa.Table:
    """Return rows as databases take them: levels as text, NaN as NULL."""
    plain = {}
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(object).where(column.notna(), None)
        array = pa.Array.from_pandas(column)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        if pa.types.is_large_string(array.type):
            array = array.cast(pa.string())
        plain[str(name)] = array
    return pa.table(plain)


def _identity(address: Address) -> tuple[str, str]:
    if address.path is not None:
        return address.kind, str(Path(address.path).resolve())
    return address.kind, re.sub(r":5432(?=/|$|,)", "", address.shown).lower()


def _bare(table: str) -> str:
    """Return a table's name without its schema: the same name in two schemas is left to 'input'."""
    return table_parts(table)[-1]
