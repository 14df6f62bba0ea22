"""Read a party's table or the server's labels from a file.

CSV and TSV carry no types: numbers, booleans and strings are told apart by their looks, and an
empty field or a usual mark such as NA is missing. Parquet keeps types and is the better choice
between machines.
"""

import csv
import gzip
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet

from flwr_vertical.errors import DataError
from flwr_vertical.tables.kinds import Kind
from flwr_vertical.tables.table import Table
from flwr_vertical.tables.writers import SEPARATORS, file_format

# Before 3.1, pandas by default misread the last digit of some floats; since then it never does.
_OLD_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT_FLOATS: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
# What an integer prints as, with at most 18 digits to fit 64 bits.
_CANONICAL_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
# pandas' own marks. They are listed because IDs such as "NA" (Namibia) must not be taken for
# missing.
_MISSING_MARKS = [
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
]


def read_table(
    path: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    kinds: Mapping[str, Kind | str] | None = None,
    party: str | None = None,
    columns: Sequence[str] | None = None,
    like: Table | None = None,
) -> Table:
    """Read a party's table.

    Parameters
    ----------
    path : path-like
        A .csv, .csv.gz, .tsv, .parquet or .pq file in UTF-8 with a header.
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

    Returns
    -------
    Table

    Raises
    ------
    DataError
        If the file is absent, a folder, of another format or unreadable, repeats a column name,
        lacks `id_column` or one of `columns`, or `Table.of` refuses its content.
    ConfigError
        If `kinds` does not fit the columns.
    """
    frame = _read(Path(path), id_column)
    if columns is not None:
        _require(columns, frame, Path(path))
        frame = frame[list(columns)]
    try:
        return Table.of(frame, kinds, party, like)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def read_labels(
    path: str | os.PathLike[str], *, id_column: str | None = None, column: str | None = None
) -> "pd.Series[Any]":
    """Read the labels that the server holds.

    Parameters
    ----------
    path : path-like
        As for `read_table`.
    id_column : str, optional
        As for `read_table`.
    column : str, optional
        Column of labels; default the only one besides the IDs.

    Returns
    -------
    pandas.Series, shape (n_samples,)
        Indexed by sample ID, named after the column; NaN where a sample has no label.

    Raises
    ------
    DataError
        As for `read_table`, or if `column` is needed and not given.
    """
    frame = _read(Path(path), id_column)
    if column is None:
        if frame.shape[1] != 1:
            raise DataError(
                f"{path} has {frame.shape[1]} columns besides the sample ID; say which one "
                f"holds the labels: {', '.join(map(str, frame.columns))}"
            )
        column = str(frame.columns[0])
    _require([column], frame, Path(path))
    try:
        return Table.of(frame[[column]]).frame[column]
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _read(path: Path, id_column: str | None) -> pd.DataFrame:
    """Read a file into a frame indexed by sample ID."""
    form = file_format(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file")
    if not path.exists():
        raise DataError(f"{path} does not exist; the path is taken from {Path.cwd()} if relative")
    try:
        if form == "parquet":
            return _read_parquet(path, id_column)
        return _read_text(path, id_column, SEPARATORS[form])
    except DataError:
        raise
    # pandas, pyarrow and gzip fail in many ways; all mean that the file is no such table.
    except (OSError, EOFError, ValueError, Warning, csv.Error, pyarrow.ArrowException) as error:
        cause = str(error).strip().split("\n")[0]
        raise DataError(f"{path} cannot be read as {form.upper()} table: {cause}") from error


def _read_parquet(path: Path, id_column: str | None) -> pd.DataFrame:
    """Read a Parquet file."""
    _check_header(pyarrow.parquet.read_schema(path).names, path)
    frame = pd.read_parquet(path)
    nameless_rows = frame.index.name is None and isinstance(frame.index, pd.RangeIndex)
    if id_column is None and not nameless_rows:
        return frame
    if id_column is not None and id_column == frame.index.name:
        return frame
    if not nameless_rows and any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    ids = _id_columns(list(frame.columns), id_column, path)
    return frame.set_index(ids[0] if len(ids) == 1 else ids)


def _read_text(path: Path, id_column: str | None, separator: str) -> pd.DataFrame:
    """Read a CSV or TSV file."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream, delimiter=separator), [])
    _check_header(header, path)
    _check_nameless(header, id_column, path)
    ids = _id_columns(header, id_column, path)
    with warnings.catch_warnings():
        # pandas only warns when rows are longer than the header, and drops their ends.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame: pd.DataFrame = pd.read_csv(
            path,
            sep=separator,
            encoding="utf-8-sig",
            names=header,  # pandas would make up a name for a column without one
            header=0,
            index_col=False,
            dtype=dict.fromkeys(ids, str),
            keep_default_na=False,
            na_values={name: [""] if name in ids else _MISSING_MARKS for name in header},
            low_memory=False,
            **_EXACT_FLOATS,
        )
    if len(ids) > 1:
        return frame.set_index(ids)
    frame = frame.set_index(ids[0])
    texts = frame.index.rename(frame.index.name or None)
    frame.index = texts
    if not texts.hasnans and all(_CANONICAL_INTEGER.fullmatch(text) for text in texts):
        frame.index = texts.astype("int64")
    return frame


def _check_header(names: Sequence[str], path: Path) -> None:
    """Refuse a header without names or with a name twice."""
    if not any(names):
        raise DataError(f"{path} has no header with column names")
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise DataError(
            f"{path} has several columns named {', '.join(map(repr, twice))}; rename them"
        )


def _check_nameless(names: Sequence[str], id_column: str | None, path: Path) -> None:
    """Refuse a column without a name, unless it is the first and holds the sample IDs."""
    if "" not in names:
        return
    if (number := list(names).index("")) > 0:
        raise DataError(f"{path}: column number {number + 1} has no name; name it in the header")
    if id_column is not None:
        raise DataError(
            f"{path}: the first column has no name, and the sample IDs are in {id_column!r}; take "
            "it out if it holds row numbers, or name it"
        )


def _id_columns(names: Sequence[Any], id_column: str | None, path: Path) -> list[str]:
    """Return the name of the ID column, or the names of several that make composite IDs."""
    if id_column is None:
        return [str(names[0])]
    parts = [part.strip() for part in id_column.split(",")]
    if len(parts) > 1 and id_column not in names and set(parts) <= set(names):
        return parts
    if id_column not in names:
        raise DataError(
            f"{path} has no column {id_column!r} for the sample IDs; there are "
            f"{', '.join(map(str, names))}"
        )
    return [id_column]


def _require(columns: Sequence[str], frame: pd.DataFrame, path: Path) -> None:
    """Refuse columns that the file does not have."""
    if lacking := [name for name in columns if name not in frame.columns]:
        raise DataError(
            f"{path} has no columns {', '.join(map(repr, lacking))}; there are "
            f"{', '.join(map(str, frame.columns))}"
        )
