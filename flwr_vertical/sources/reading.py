"""Read a party's table from wherever it is: a file, a Parquet folder, a database."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources import duckdb_file, postgres, sqlite_file
from flwr_vertical.sources.address import DUCKDB, POSTGRESQL, SQLITE, is_database, parse_address
from flwr_vertical.sources.columns import SourceColumns, in_order, with_ids
from flwr_vertical.sources.folders import read_folder
from flwr_vertical.sources.statements import Wanted
from flwr_vertical.tables import Cleaning, Kind, Table, read_table
from flwr_vertical.tables.findings import DataWarning

_READERS = {POSTGRESQL: postgres.read, DUCKDB: duckdb_file.read, SQLITE: sqlite_file.read}


def read_source(
    data: str | os.PathLike[str],
    *,
    table: str | None = None,
    query: str | None = None,
    id_column: str | None = None,
    kinds: Mapping[str, Kind | str] | None = None,
    party: str | None = None,
    columns: Sequence[str] | None = None,
    like: Table | None = None,
    new_rows: bool = False,
    dates: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    cleaning: Cleaning | None = None,
    **options: Any,
) -> Table:
    """Read a party's table from a file, a folder of Parquet files or a database.

    Parameters
    ----------
    data : str or path-like
        The path of a file or folder, or the address of a database: see
        `flwr_vertical.sources.address.parse_address`.
    table, query : str, optional
        What to read of a database: a table or view by its name (``schema.name``), or the rows of
        one SELECT statement. Exactly one of the two.
    id_column : str, optional
        Column of sample IDs, or several with commas. Default: the first column; of a file, see
        `flwr_vertical.tables.read_table`.
    kinds : mapping of column name to Kind or its name, optional
        See `flwr_vertical.tables.infer_kinds`.
    party : str, optional
        Name of the party, for messages.
    columns : sequence of str, optional
        Read only these, in this order, besides the IDs; default all.
    like : Table, optional
        Earlier data, of which these are new rows; see `Table.of`.
    new_rows : bool, default False
        Whether columns may be all missing; see `Table.of`.
    dates : str, optional
        ``"days"`` makes dates days since 1970-01-01. By default they are text, with a warning.
    secret_file : path-like, optional
        A file with the password of a PostgreSQL user.
    cleaning : Cleaning, optional
        See `flwr_vertical.tables.read_table`.
    **options
        Further options of `flwr_vertical.tables.read_table`, for a file.

    Returns
    -------
    Table
        Of a database, in the order of the IDs.

    Raises
    ------
    ConfigError
        If the address, the query or an option cannot be used.
    DataError
        If the database cannot be reached, or what it has is no table.

    Examples
    --------
    >>> bank = read_source("bank.duckdb", table="customers")  # doctest: +SKIP
    """
    wants = table is not None or query is not None
    if not is_database(data) and not Path(data).is_dir():
        if wants or secret_file is not None:
            raise ConfigError(
                f"{data} is a file, and 'table', 'query' and a secret file are for databases; take "
                "them out"
            )
        return read_table(
            data, id_column=id_column, kinds=kinds, party=party, columns=columns, like=like,
            new_rows=new_rows, cleaning=cleaning, **options,
        )  # fmt: skip
    frame, where, notes = read_frame(
        data, table=table, query=query, id_column=id_column, columns=columns, dates=dates,
        secret_file=secret_file, cleaning=cleaning,
    )  # fmt: skip
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    try:
        return Table.of(frame, kinds, party, like, new_rows)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def read_frame(
    data: str | os.PathLike[str],
    *,
    table: str | None = None,
    query: str | None = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    dates: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    cleaning: Cleaning | None = None,
) -> tuple[pd.DataFrame, str, list[str]]:
    """Read a folder or a database; returns a frame by sample ID, where it is from, and notes."""
    days = dates is not None and dates.startswith("days")
    if is_database(data):
        address = parse_address(data, secret_file)
        wanted = Wanted.of(table, query, str(address))
        where = f"{address}, {wanted.what}"
        made = SourceColumns(where, days)
        read = _READERS[address.kind]
        if columns is not None and id_column is None:
            raise ConfigError(f"{where}: name 'id_column' to read some columns only")
        frame = read(address, wanted, _with_ids_first(columns, id_column), made)
        frame = in_order(with_ids(frame, id_column, where))
    else:
        if table is not None or query is not None or secret_file is not None:
            raise ConfigError(
                f"{data} is a folder, and 'table', 'query' and a secret file are for databases; "
                "take them out"
            )
        where = str(data)
        made = SourceColumns(where, days)
        frame = read_folder(Path(data), _with_ids_first(columns, id_column), made)
        frame = with_ids(frame, id_column, where)
    frame = (cleaning or Cleaning()).apply(frame, where)
    return (frame if columns is None else frame[list(columns)]), where, made.notes


def _with_ids_first(columns: Sequence[str] | None, id_column: str | None) -> list[str] | None:
    if columns is None:
        return None
    ids = [] if id_column is None else [part.strip() for part in id_column.split(",")]
    return [*ids, *(name for name in columns if name not in ids)]
