"""Read a party's table or the server's labels from a file.

CSV and TSV carry no types: numbers, booleans and strings are told apart by their looks, and an
empty field or a usual mark such as NA is missing. Parquet keeps types and is the better choice
between machines.
"""

import csv
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet

from flwr_vertical.errors import DataError, VerticalError
from flwr_vertical.tables.cleaning import Cleaning
from flwr_vertical.tables.codes import level_text
from flwr_vertical.tables.conversion import with_days
from flwr_vertical.tables.csv_format import CsvFormat
from flwr_vertical.tables.csv_reader import check_header, id_columns, read_csv, require_columns
from flwr_vertical.tables.dtypes import present
from flwr_vertical.tables.findings import DataWarning, Finding, lines_of, warnings_in
from flwr_vertical.tables.kinds import Kind
from flwr_vertical.tables.on_disk import BATCH_ROWS, frame_of
from flwr_vertical.tables.table import Table, check_digits, check_series
from flwr_vertical.tables.writers import SEPARATORS, file_format

Csv = CsvFormat | Mapping[str, str] | None


def read_table(
    path: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    kinds: Mapping[str, Kind | str] | None = None,
    party: str | None = None,
    columns: Sequence[str] | None = None,
    like: Table | None = None,
    new_rows: bool = False,
    csv: Csv = None,
    cleaning: Cleaning | None = None,
) -> Table:
    """Read a party's table.

    Of a CSV file, separator, encoding and marks of numbers are found out where `csv` does not state
    them; what is not certain is a warning in the table's ``reading``.

    Parameters
    ----------
    path : path-like
        A .csv, .csv.gz, .tsv, .parquet or .pq file with a header.
    id_column : str, optional
        Column of sample IDs, or several with commas for composite IDs. Default: the index stored
        in a Parquet file if it is more than row numbers, else the first column, which needs no
        name. In CSV, IDs become integers only if each is written as an
        integer prints, so "007" stays a string, and so do all others of its column.
    kinds : mapping of column name to Kind or its name, optional
        See `flwr_vertical.tables.infer_kinds`.
    party : str, optional
        Name of the party, for messages.
    columns : sequence of str, optional
        Keep only these, in this order; default all.
    like : Table, optional
        Earlier data, of which the file holds new rows; see `Table.of`.
    new_rows : bool, default False
        Whether columns may be all missing; see `Table.of`.
    csv : CsvFormat or mapping of str to str, optional
        How a CSV file is written, such as ``{"separator": ";", "decimal": ","}``; see `CsvFormat`.
        Its ``dates`` hold for Parquet, too.
    cleaning : Cleaning, optional
        Marks of missing cells, columns to leave out, form of the sample IDs.

    Returns
    -------
    Table
        Its ``reading`` says what was found out of the file.

    Raises
    ------
    DataError
        If the file is absent, a folder, of another format or unreadable, repeats a column name,
        lacks `id_column` or one of `columns`, or `Table.of` refuses its content.
    ConfigError
        If `kinds` does not fit the columns, or `csv` holds what no format is.
    """
    frame, reading = read_frame(path, id_column=id_column, columns=columns, csv=csv,
                                cleaning=cleaning)  # fmt: skip
    try:
        table = Table.of(frame, kinds, party, like, new_rows)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    del frame
    pyarrow.default_memory_pool().release_unused()  # else a table or two stay in it
    return replace(table, reading=reading)


def read_frame(
    path: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    csv: Csv = None,
    cleaning: Cleaning | None = None,
) -> tuple[pd.DataFrame, tuple[Finding, ...]]:
    """Read a file as `read_table` does, without the checks of its content.

    Returns
    -------
    frame : pandas.DataFrame of shape (n_samples, n_columns)
        Indexed by sample ID.
    reading : tuple of Finding
        How the file was read, where it leaves a choice.

    Raises
    ------
    DataError, ConfigError
        As `read_table`.
    """
    stated = CsvFormat.of(csv)
    cleaning = cleaning or Cleaning()
    frame, reading = _read(Path(path), id_column, stated, cleaning)
    frame = cleaning.apply(frame, str(path))
    if columns is not None:
        require_columns(columns, frame.columns, path)
        frame = frame[list(columns)]
    reading = tuple(one for one in reading if one.column in ("", *frame.columns))
    if stated.dates is not None:
        frame = with_days(frame)
    return frame, reading


def read_labels(
    path: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    column: str | None = None,
    csv: Csv = None,
) -> "pd.Series[Any]":
    """Read the labels that the server holds.

    What is not certain of how the file is written is a Python warning, `DataWarning`.

    Parameters
    ----------
    path : path-like
        As for `read_table`.
    id_column : str, optional
        As for `read_table`.
    column : str, optional
        Column of labels; default the only one besides the IDs.
    csv : CsvFormat or mapping of str to str, optional
        As for `read_table`.

    Returns
    -------
    pandas.Series, shape (n_samples,)
        Indexed by sample ID, named after the column; NaN where a sample has no label.

    Raises
    ------
    DataError
        As for `read_table`, or if `column` is needed and not given.
    """
    frame, reading = read_frame(path, id_column=id_column, csv=csv)
    if column is None:
        if frame.shape[1] != 1:
            raise DataError(
                f"{path} has {frame.shape[1]} columns besides the sample ID; say which one "
                f"holds the labels: {', '.join(map(str, frame.columns))}"
            )
        column = str(frame.columns[0])
    require_columns([column], frame.columns, path)
    for line in lines_of([one for one in warnings_in(reading) if one.column in ("", column)]):
        warnings.warn(f"{path}: {line}", DataWarning, stacklevel=2)
    try:
        return Table.of(frame[[column]]).frame[column]
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def label_numbers(
    labels: "pd.Series[Any]", positive_label: str, who: str, log: logging.Logger | None = None
) -> "pd.Series[Any]":
    """Return labels as numbers: of two classes with a stated positive one, 1 and 0.

    Parameters
    ----------
    labels : pandas.Series, shape (n_samples,)
        NaN where a sample has none.
    positive_label : str
        The class that counts as 1, as it is written; empty if labels are numbers.
    who : str
        Whose labels they are, for errors.
    log : logging.Logger, optional
        Where classes are named in place of the error: the log of the party that holds them.

    Raises
    ------
    DataError
        If labels are text and no class is stated, or a stated one is none of two.
    """
    check_series(labels, who)
    observed = present(labels)
    if pd.api.types.is_bool_dtype(observed.dtype) or not pd.api.types.is_numeric_dtype(observed):
        numbers = None if positive_label else _as_numbers(observed)
        texts = observed.astype(str)
    else:
        numbers = None if positive_label else observed
        texts = observed.map(level_text)
    if numbers is not None:
        check_digits(numbers, who)
        # Whole numbers stay whole.
        whole = numbers is observed and isinstance(labels.dtype, np.dtype)
        return labels if whole else _in_place(labels, numbers)
    levels = sorted(texts.unique())
    if len(levels) == 2 and positive_label in levels:
        return _in_place(labels, texts == positive_label)
    shown = ", ".join(map(repr, levels[:_SHOWN])) + ", ..." * (len(levels) > _SHOWN)
    if log is not None:
        log.error("%s have the classes %s", who, shown)
    named = f"the {len(levels)} classes {shown}" if log is None else f"{len(levels)} classes"
    where = "" if log is None else " (its own log names them)"
    if len(levels) != 2:
        raise DataError(
            f"{who} must be numbers, or texts of two classes; they have {named}{where}; number "
            "the classes 0, 1, ... in a column of their own"
        )
    if positive_label:
        raise DataError(
            f"positive-label = {positive_label!r} is no class of {who}, which have {named}{where}; "
            "state it as it is written there"
        )
    raise DataError(
        f"{who} must be numbers, or the class that counts as 1 must be stated: they have {named}"
        f"{where}; state positive-label in the run config (positive_label in Python)"
    )


_SHOWN = 4


def _in_place(labels: "pd.Series[Any]", numbers: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return numbers of the labels that are not missing where these are; IDs may repeat."""
    values = np.full(len(labels), np.nan)
    values[labels.notna().to_numpy()] = numbers.to_numpy(dtype=float)
    return pd.Series(values, labels.index, name=labels.name)


def _as_numbers(values: "pd.Series[Any]") -> "pd.Series[Any] | None":
    """Return texts or truth values as numbers, None if some are none."""
    numbers = pd.to_numeric(values, errors="coerce")
    return None if numbers.isna().any() else numbers


def _read(
    path: Path, id_column: str | None, stated: CsvFormat, cleaning: Cleaning
) -> tuple[pd.DataFrame, tuple[Finding, ...]]:
    """Read a file into a frame indexed by sample ID, and say how it was read."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file")
    if not path.exists():
        raise DataError(f"{path} does not exist; the path is taken from {Path.cwd()} if relative")
    form = file_format(path)
    try:
        if form == "parquet":
            return _read_parquet(path, id_column), ()
        return read_csv(path, id_column, SEPARATORS[form], stated, cleaning)
    except VerticalError:
        raise
    # pandas, pyarrow and gzip fail in many ways; all mean that the file is no such table.
    except (OSError, EOFError, ValueError, Warning, csv.Error, pyarrow.ArrowException) as error:
        cause = str(error).strip().split("\n")[0]
        raise DataError(f"{path} cannot be read as {form.upper()} table: {cause}") from error


def _read_parquet(path: Path, id_column: str | None) -> pd.DataFrame:
    """Read a Parquet file."""
    with pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        check_header(schema.names, path)
        frame = frame_of(
            schema,
            file.metadata.num_rows,
            file.read,
            lambda names: file.iter_batches(BATCH_ROWS, columns=names),
        )
    nameless_rows = frame.index.name is None and isinstance(frame.index, pd.RangeIndex)
    if id_column is None and not nameless_rows:
        return frame
    if id_column is not None and id_column == frame.index.name:
        return frame
    if not nameless_rows and any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    ids = id_columns(list(frame.columns), id_column, path)
    return frame.set_index(ids[0] if len(ids) == 1 else ids)
