"""Data sets and the papers' numbers: where they lie, how they are read, and what is missing.

Numbers that the papers print are part of the project. Data sets are not: they have licences of
their own, and lie in ``data/`` of the repository or where ``FLWR_VERTICAL_DATA`` says.
"""

import gzip
import hashlib
import os
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from flwr_vertical.errors import DataError

DATA_VARIABLE = "FLWR_VERTICAL_DATA"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


@dataclass(frozen=True)
class DataSet:
    """A data set that a study reads; see ``data_sets.toml`` for what each field says."""

    title: str
    holds: str
    origin: str
    licence: str
    make: str
    studies: list[str]  # Names of the studies that read it
    files: dict[str, str]  # SHA-256 of the content of each file, "" where it is not known


DATA_SETS = {
    name: DataSet(**fields)
    for name, fields in tomllib.loads((HERE / "data_sets.toml").read_text()).items()
}
"""By the name of the folder that holds it."""


@dataclass(frozen=True)
class Sources:
    """The folder of data sets."""

    data: Path  # Has one folder for each data set

    @classmethod
    def find(cls, data: Path | None = None) -> "Sources":
        """Return the given folder, else the environment's, else ``data/`` of the repository."""
        return cls((data or Path(os.environ.get(DATA_VARIABLE) or ROOT / "data")).absolute())

    def found(self, relative: str) -> Path | None:
        """Return the path of a file, compressed or not, or of a folder; None if it is not there."""
        paths = (self.data / f"{relative}.gz", self.data / relative)
        return next((path for path in paths if path.exists()), None)

    def path(self, relative: str) -> Path:
        """Return the path of a file, compressed or not; DataError if it is not there."""
        if path := self.found(relative):
            return path
        known = DATA_SETS.get(relative.split("/")[0])
        raise DataError(
            f"the folder of data sets, {self.data}, has neither {relative} nor {relative}.gz"
            + (f" ({known.title})" if known else "")
            + "; `python -m simulations data` says where to get it, and --data or the variable "
            f"{DATA_VARIABLE} names another folder"
        )


def read_paper(study: str, table: str) -> pd.DataFrame:
    """Return a table that a study's paper prints, as in ``read_paper("fknn", "table4")``.

    ``README.md`` of the study's folder ``paper`` says what the columns are.
    """
    return pd.read_csv(HERE / study / "paper" / f"{table}.csv")


@dataclass(frozen=True)
class VerticalData:
    """A complete data set, split by parties."""

    parties: dict[str, pd.DataFrame]  # Tables on a common index
    labels: "pd.Series[float]"  # On the same index
    fingerprint: str  # Tells whether replications kept from an earlier run saw the same data


def load_motor(sources: Sources) -> VerticalData:
    """Load the motor data of FATE: guest (4 features, label ``motor_speed``), host (7 features)."""
    tables = {}
    for name in ("guest", "host"):
        path = sources.path(f"motor/motor_hetero_{name}.csv")
        frame = pd.read_csv(path)
        if "idx" not in frame or (name == "guest" and "motor_speed" not in frame):
            raise DataError(
                f"{path} has columns {list(frame.columns)}; expected FATE's file, with idx"
                + (" and motor_speed" if name == "guest" else "")
            )
        tables[name] = frame.set_index("idx").astype(float)
    tables["host"] = tables["host"].reindex(tables["guest"].index)
    if any(frame.isna().to_numpy().any() for frame in tables.values()):
        raise DataError(
            f"the motor data in {sources.data / 'motor'} are incomplete, or guest and host hold "
            "different samples; expected FATE's files, 800 complete rows each"
        )
    labels = tables["guest"].pop("motor_speed")
    return VerticalData(tables, labels, fingerprint([*tables.values(), labels.to_frame()]))


def fingerprint(frames: list[pd.DataFrame]) -> str:
    """Return a short hash of the values, columns and index of some tables."""
    digest = hashlib.sha256()
    for frame in frames:
        digest.update(repr(list(frame.columns)).encode())
        digest.update(pd.util.hash_pandas_object(frame).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def describe(sources: Sources) -> str:
    """Return a text: of each data set origin, licence, use, and which files are here, unchanged."""
    lines = [
        f"Data sets are looked for in {sources.data}.",
        f"{DATA_VARIABLE} or --data names another folder. Files may be compressed (.gz).",
    ]
    here = 0
    for name, of in DATA_SETS.items():
        absent = [file for file in of.files if sources.found(file) is None]
        here += not absent
        lines += ["", f"{name}: {of.title}"]
        lines += _field("holds", of.holds)
        lines += _field("from", of.origin)
        lines += _field("licence", of.licence)
        lines += _field("used by", ", ".join(of.studies))
        for file in of.files:
            lines += _field("missing" if file in absent else "here", _state(of, file, sources))
        if absent:
            lines.append(f"  to do    in {sources.data}: {of.make}")  # whole: it may be a command
    lines += ["", f"{here} of {len(DATA_SETS)} are here. The other studies need no data."]
    return "\n".join(lines)


def _field(name: str, text: str) -> list[str]:
    start = f"  {name:<9}"
    return textwrap.wrap(
        text, 100, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _state(of: DataSet, file: str, sources: Sources) -> str:
    path, expected = sources.found(file), of.files[file]
    if path is None or not expected:
        return file
    if _content_sum(path) == expected:
        return f"{file}, content as in the documented results"
    return f"{file}, with other content than in the documented results"


def _content_sum(path: Path) -> str:
    """Return the SHA-256 of a file's uncompressed content."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
