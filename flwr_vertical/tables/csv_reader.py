"""Read a CSV file: its format is found out where its owner does not state it, and then said.

Without marks to be found out, cells are read as pandas does. Text columns whose cells are all
numbers with thousands or decimal marks become numbers if there is one way only to read them.
"""

import csv
import gzip
import io
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.tables.cleaning import Cleaning
from flwr_vertical.tables.conversion import convert_texts
from flwr_vertical.tables.csv_format import CsvFormat
from flwr_vertical.tables.findings import Finding, Severity, examples_of
from flwr_vertical.tables.ids import integers_of
from flwr_vertical.tables.sniffing import sniff_encoding, sniff_separator, whole_lines

# Before 3.1, pandas by default misread the last digit of some floats; since then it never does.
_OLD_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
EXACT_FLOATS: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
# pandas' own marks. They are listed because IDs such as "NA" (Namibia) must not be taken for
# missing.
_MISSING_MARKS = [
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
]
_HEAD = 1 << 18  # characters by which the separator is found
_NAMES = {"\t": "tab", " ": "space"}
_LEADING_ZERO = re.compile(r"0[0-9]+")
_FIRST_ROWS = 1000

_limit = threading.RLock()


@contextmanager
def _long_texts() -> Iterator[None]:
    """Have the csv module take texts of any length, as pandas does; its limit is the process's."""
    with _limit:
        before = csv.field_size_limit(2**31 - 1)
        try:
            yield
        finally:
            csv.field_size_limit(before)


@dataclass
class _File:
    """A file and what is known of its format."""

    path: Path
    encoding: str = "utf-8-sig"
    separator: str = ","
    header: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    cleaning: Cleaning = field(default_factory=Cleaning)

    def bytes(self) -> BinaryIO:
        zipped = self.path.name.lower().endswith(".gz")
        return cast(BinaryIO, gzip.open(self.path, "rb") if zipped else self.path.open("rb"))

    def frame(self, **options: Any) -> pd.DataFrame:
        """Read some columns, or all, by pandas."""
        with warnings.catch_warnings():
            # pandas only warns when rows are longer than the header, and drops their ends.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame: pd.DataFrame = pd.read_csv(
                self.path,
                sep=self.separator,
                encoding=self.encoding,
                names=self.header,  # pandas would make up a name for a column without one
                header=0,
                index_col=False,
                keep_default_na=False,
                na_values={
                    name: [""]
                    if name in self.ids
                    else [*_MISSING_MARKS, *self.cleaning.marks(name)]
                    for name in self.header
                },
                low_memory=False,
                **EXACT_FLOATS,
                **options,
            )
        return frame

    def texts(self, columns: Sequence[str]) -> pd.DataFrame:
        """Read columns as they are written."""
        return self.frame(usecols=list(columns), dtype=str)[list(columns)]


@_long_texts()
def read_csv(
    path: Path, id_column: str | None, usual: str, stated: CsvFormat, cleaning: Cleaning
) -> tuple[pd.DataFrame, tuple[Finding, ...]]:
    """Read a CSV file into a frame (n_samples, n_columns) indexed by sample ID."""
    findings: list[Finding] = []
    file = _File(path, cleaning=cleaning)
    file.encoding = stated.encoding or _encoding(file, findings)
    file.separator = stated.separator or _separator(file, usual, findings)
    with file.bytes() as raw, io.TextIOWrapper(raw, file.encoding, newline="") as stream:
        file.header = next(csv.reader(stream, delimiter=file.separator), [])
    check_header(file.header, path)
    _check_nameless(file.header, id_column, path)
    file.ids = id_columns(file.header, id_column, path)
    try:
        frame = file.frame(dtype=dict.fromkeys(file.ids, str))
    except (ValueError, Warning) as error:
        raise _hinting(error, file, stated) from error
    if len(file.header) == 1:
        raise DataError(
            f"{path} has 0 columns besides the sample ID: split at {_name(file.separator)}, its "
            f"only one is {file.header[0]!r}; state csv.separator if that is the wrong mark"
        )
    columns = [name for name in file.header if name not in file.ids]
    frame, found = convert_texts(frame, columns, stated, file.texts, file.separator)
    findings += found
    findings += _leading_zeros(file, frame, columns)
    _say_format(file, usual, stated, findings)
    if len(file.ids) > 1:
        return frame.set_index(file.ids), tuple(findings)
    return _with_ids(frame, file.ids[0]), tuple(findings)


def _encoding(file: _File, findings: list[Finding]) -> str:
    """Find the encoding; a guess is a warning with the words by which its owner can tell."""
    with file.bytes() as stream:
        encoding, certain = sniff_encoding(stream)
    if certain:
        return encoding
    with file.bytes() as stream:
        words = re.findall(rb"[\w\x80-\xff]*[\x80-\xff][\w\x80-\xff]*", stream.read(1 << 20))
    shown = list(dict.fromkeys(word.decode(encoding) for word in words))
    seen = f"the file is not in UTF-8 and was read as {encoding} (Western European)"
    advice = (
        f"state csv.encoding='{encoding}' if the examples look right, else the right one, "
        "such as 'cp1250' (Central European) or 'mac-roman'"
    )
    findings.append(
        Finding("encoding", "", seen, advice, examples_of(shown), {"csv.encoding": encoding})
    )
    return encoding


def _separator(file: _File, usual: str, findings: list[Finding]) -> str:
    with file.bytes() as raw, io.TextIOWrapper(raw, file.encoding, newline="") as stream:
        head = stream.read(_HEAD)
    found = sniff_separator(whole_lines(head, len(head) < _HEAD), usual)
    if len(found) > 1:
        shown = " and ".join(_name(separator) for separator in found)
        seen = f"the lines can be split at {shown}; read with {_name(found[0])}"
        advice = f"state csv.separator={_key(found[0])} if that is right, else the right one"
        mend = {"csv.separator": _NAMES.get(found[0], found[0])}
        findings.append(Finding("separator", "", seen, advice, mend=mend))
    return found[0] if found else usual


def _name(separator: str) -> str:
    return _NAMES.get(separator, repr(separator))


def _key(separator: str) -> str:
    return f"'{_NAMES.get(separator, separator)}'"


def _hinting(error: Exception, file: _File, stated: CsvFormat) -> Exception:
    """Say by which separator a file was read that cannot be read, if nobody stated it."""
    if stated.separator is not None:
        return error
    cause = str(error).strip().split("\n")[0].rstrip(".")
    return ValueError(
        f"{cause} (split at {_name(file.separator)} into {len(file.header)} columns; if that is "
        "wrong, state csv.separator)"
    )


def _say_format(file: _File, usual: str, stated: CsvFormat, findings: list[Finding]) -> None:
    """Note what was found out and is not usual."""
    said: list[str] = []
    mend: dict[str, str] = {}
    if stated.separator is None and file.separator != usual:
        said.append(f"separator {_name(file.separator)}")
        mend["csv.separator"] = _NAMES.get(file.separator, file.separator)
    if (
        stated.encoding is None
        and file.encoding != "utf-8-sig"
        and not any(one.code == "encoding" for one in findings)
    ):
        said.append(f"encoding {file.encoding}")
        mend["csv.encoding"] = file.encoding
    if said:
        seen = f"found out of the file: {', '.join(said)}"
        advice = "state the keys csv.* to have it read so in any case"
        findings.insert(0, Finding("format", "", seen, advice, mend=mend, severity=Severity.NOTE))


def _leading_zeros(file: _File, frame: pd.DataFrame, columns: Sequence[str]) -> list[Finding]:
    """Warn of whole numbers that are written with leading zeros, as codes are."""
    whole = {file.header.index(name): name for name in columns if frame[name].dtype.kind in "if"}
    cells: dict[str, list[str]] = {}
    n_rows = 0
    if whole:
        with file.bytes() as raw, io.TextIOWrapper(raw, file.encoding, newline="") as stream:
            lines = csv.reader(stream, delimiter=file.separator)
            for line in islice(lines, 1, _FIRST_ROWS + 1):
                n_rows += 1
                for place, cell in enumerate(line):
                    if cell[:1] == "0" and place in whole and _LEADING_ZERO.fullmatch(cell):
                        cells.setdefault(whole[place], []).append(cell)
    return [
        Finding(
            "leading-zeros",
            name,
            f"numbers with leading zeros, {len(found):,} of the first {n_rows:,}, which are "
            "dropped",
            f"state kind.{name}='categorical' if they are codes; a letter before the digits keeps "
            "the zeros",
            examples_of(dict.fromkeys(found)),
            {f"kind.{name}": "categorical"},
        )
        for name, found in cells.items()
    ]


def _with_ids(frame: pd.DataFrame, id_column: str) -> pd.DataFrame:
    """Index a frame by its IDs, as integers only if each is written as an integer prints."""
    frame = frame.set_index(id_column)
    frame.index = integers_of(frame.index.rename(frame.index.name or None))
    return frame


def check_header(names: Sequence[str], path: Path) -> None:
    """Refuse a header without names or with a name twice."""
    if not any(names):
        raise DataError(f"{path} has no header with column names")
    if len(set(names)) == len(names):
        return
    twice = sorted({name for name in names if list(names).count(name) > 1})
    raise DataError(f"{path} has several columns named {', '.join(map(repr, twice))}; rename them")


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


def require_columns(wanted: Iterable[str], there: Iterable[Any], where: object) -> None:
    """Refuse columns that a table does not have."""
    names = list(there)
    if lacking := [name for name in wanted if name not in names]:
        raise DataError(
            f"{where} has no column{'s' * (len(lacking) > 1)} {', '.join(map(repr, lacking))}; "
            f"there are {', '.join(map(str, names))}"
        )


def id_columns(names: Sequence[Any], id_column: str | None, where: object) -> list[str]:
    """Return the name of the ID column, or the names of several that make composite IDs."""
    if id_column is None:
        return [str(names[0])]
    parts = [part.strip() for part in id_column.split(",")]
    if len(parts) > 1 and id_column not in names and set(parts) <= set(names):
        return parts
    if id_column not in names:
        raise DataError(
            f"{where} has no column {id_column!r} for the sample IDs; there are "
            f"{', '.join(map(str, names))}"
        )
    return [id_column]
