"""Where data sets and the papers' numbers lie, and how they are read.

Neither is part of the project: data sets have licences of their own.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from flwr_vertical.errors import DataError

DATA_VARIABLE = "FLWR_VERTICAL_DATA"
TABLES_VARIABLE = "FLWR_VERTICAL_TABLES"
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Sources:
    """Folders from which a study reads.

    Parameters
    ----------
    data : Path
        Data sets, one folder each.
    tables : Path
        The papers' numbers, one CSV file per table.
    """

    data: Path
    tables: Path

    @classmethod
    def find(cls, data: Path | None = None) -> "Sources":
        """Find the folders: the given one, else the environment's, else beside the repository.

        Raises
        ------
        DataError
            If a folder is not there; says what was looked for and where to set it.
        """
        named = os.environ.get(DATA_VARIABLE)
        default = ROOT.parent / "shared" / "data"
        folder = data or (Path(named) if named else default)
        if not folder.is_dir():
            origin = "--data" if data else f"${DATA_VARIABLE}" if named else "the default place"
            raise DataError(
                f"no folder of data sets at {folder.absolute()} ({origin}); name the folder that "
                f"holds the data sets, such as motor/, by --data or the variable {DATA_VARIABLE}"
            )
        tables = Path(os.environ.get(TABLES_VARIABLE) or folder.absolute().parent / "tables")
        if not tables.is_dir():
            raise DataError(
                f"no folder of the papers' numbers at {tables}; name the folder that holds files "
                f"such as fknn_table4.csv by the variable {TABLES_VARIABLE}"
            )
        return cls(folder.absolute(), tables)

    def path(self, relative: str) -> Path:
        """Return the path of a data file, compressed or not; DataError if it is not there."""
        for suffix in (".gz", ""):
            path = self.data / f"{relative}{suffix}"
            if path.is_file():
                return path
        raise DataError(
            f"{self.data / relative}.gz is not there, nor is it without .gz; name the folder that "
            f"holds it by --data or the variable {DATA_VARIABLE}"
        )

    def paper(self, name: str) -> pd.DataFrame:
        """Return the numbers of one of the papers' tables, such as ``fknn_table4``."""
        path = self.tables / f"{name}.csv"
        if not path.is_file():
            raise DataError(
                f"{path} is not there; name the folder that holds it by the variable "
                f"{TABLES_VARIABLE}"
            )
        return pd.read_csv(path)


@dataclass(frozen=True)
class VerticalData:
    """A complete data set, split by parties.

    Parameters
    ----------
    parties : dict of str to DataFrame
        Tables on a common index.
    labels : Series
        On the same index.
    fingerprint : str
        Tells whether replications kept from an earlier run saw the same data.
    """

    parties: dict[str, pd.DataFrame]
    labels: "pd.Series[float]"
    fingerprint: str


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
