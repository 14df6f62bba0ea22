"""A party's own copy of what a run read from its database.

A step may run in a new process, which reads the table again. A database may be gone by then, or
have other rows. So what was read at the greeting lies on the party's own disk until the run is
over, and all steps of the run read that.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from flwr_vertical.protocol.disk import FILE_MODE, private_folder, writing
from flwr_vertical.tables import checked_ids, write_table

logger = logging.getLogger("flwr_vertical")

FOLDER_NAME = ".sources"


class SourceCopy:
    """The copy of one party and run."""

    def __init__(
        self,
        folder: Path,
        party: str,
        run: str,
        read: Callable[[], tuple[pd.DataFrame, str, list[str]]],
    ) -> None:
        self._folder = folder / FOLDER_NAME / party
        self._results = folder
        self._party, self._run, self._read = party, run, read

    @property
    def path(self) -> Path:
        """Path of the file; reads the database if it is not there."""
        path = self._folder / f"{self._run}.parquet"
        if not path.is_file():
            self._take(path)
        return path

    def begin(self) -> None:
        """Read the database for a run that begins.

        Copies of other runs are removed, except of those that can be resumed.
        """
        for path in self._folder.glob("*.parquet"):
            kept = self._results / path.stem / ".checkpoint" / f"{self._party}.party"
            if path.stem == self._run or not kept.exists():
                path.unlink(missing_ok=True)
        _ = self.path

    def end(self) -> None:
        """Remove the file: the run is over."""
        (self._folder / f"{self._run}.parquet").unlink(missing_ok=True)

    def frame(self) -> pd.DataFrame:
        """Return what was read, indexed by sample ID."""
        return pd.read_parquet(self.path)

    def _take(self, path: Path) -> None:
        frame, where, notes = self._read()
        for note in notes:
            logger.warning("party %r: %s", self._party, note)
        frame.index = checked_ids(frame.index, where)
        logger.info("party %r: %d rows read from %s", self._party, len(frame), where)
        with writing(f"party {self._party!r}: its copy of what was read", path):
            private_folder(self._folder)
            write_table(frame, path, FILE_MODE)
