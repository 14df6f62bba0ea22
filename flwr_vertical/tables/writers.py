"""Write tables to files, whole or not at all."""

import gzip
import os
from pathlib import Path
from typing import BinaryIO, cast

import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.tables.table import Table, checked_ids
from flwr_vertical.whole_files import atomic_path

FORMATS = {".csv": "csv", ".csv.gz": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
SEPARATORS = {"csv": ",", "tsv": "\t"}


def write_table(
    frame: pd.DataFrame | Table, path: str | os.PathLike[str], mode: int = 0o666
) -> Path:
    """Write a table to CSV, TSV or Parquet, by the suffix.

    The file appears complete or not at all: it is written under another name in the same folder and
    then renamed, so a party that reads meanwhile sees the old file or the new one.

    Parameters
    ----------
    frame : pandas.DataFrame or Table, shape (n_samples, n_columns)
        Indexed by sample ID. A nameless index is written as column `sample_id`.
    path : path-like
        Folders that do not exist are made; a file that exists is replaced.
    mode : int, default 0o666
        Permissions of the file, less the umask; 0o600 for what is its owner's alone.

    Returns
    -------
    pathlib.Path
        The path written.

    Raises
    ------
    DataError
        If the suffix is unknown, the path is a folder, the IDs are unusable or a column has the
        name of the index.
    """
    path = Path(path)
    form = file_format(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected the name of a file to write")
    data = frame.frame if isinstance(frame, Table) else frame
    data = data.set_axis(checked_ids(data.index, f"the table for {path}"), axis=0)
    index_name = str(data.index.name or "sample_id")
    data = data.rename_axis(index=index_name)
    if index_name in data.columns:
        raise DataError(
            f"the table for {path} has a column named {index_name!r} like its index; rename one"
        )
    with atomic_path(path, mode) as partial:
        if form == "parquet":
            data.to_parquet(partial)
        else:
            zipped = path.name.lower().endswith(".gz")
            with partial.open("wb") as raw, _packed(raw, zipped) as stream:
                data.to_csv(stream, sep=SEPARATORS[form], encoding="utf-8", lineterminator="\n")
    return path


def _packed(raw: BinaryIO, zipped: bool) -> BinaryIO:
    """Return the stream, or a gzip stream onto it without name and time: same table, same bytes."""
    return cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if zipped else raw


def file_format(path: Path) -> str:
    """Return csv, tsv or parquet by the file's suffix; DataError if it is none of them."""
    for suffix, form in FORMATS.items():
        if path.name.lower().endswith(suffix):
            return form
    raise DataError(f"{path} has an unknown suffix, expected one of {', '.join(FORMATS)}")
