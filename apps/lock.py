"""One run of a name at a time: a lock that the system gives back when its holder ends."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.disk import FILE_MODE, lock_file, writing
from flwr_vertical.results.storage import result_digest
from flwr_vertical.whole_files import TEMPORARY_PREFIX


class RunFolder:
    """The server's folder of a run, as it was when the run began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found = result_digest(path)

    def check_unchanged(self) -> None:
        """Refuse to replace a result that came into the folder since the run began."""
        if result_digest(self.path) != self._found:
            raise ConfigError(
                f"{self.path} holds another result than when this run began, which is not replaced "
                "by this run's: another run of this name has ended meanwhile; move that folder, or "
                "give this run a run-name of its own, and start it again"
            )


_RETRY = 0.2
"""Seconds between two looks at a lock that another process holds."""


@contextmanager
def taken(folder: Path, run_id: int, patience: float = 0.0) -> Iterator[RunFolder]:
    """Lock the server's folder of a run while it lasts.

    The file lies beside the folder. It may stay there after a crash, but its lock does not. A
    process that was told to stop takes a while to end, so a run that is resumed waits for as long
    as `patience` (seconds).
    """
    path = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}.lock")
    made = not folder.parent.exists()
    with writing("the lock of the run", path):
        descriptor = _locked(path, time.monotonic() + patience)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        who = f"Flower's run {run_id}, process {os.getpid()} on {platform.node()}, since {now}"
        os.ftruncate(descriptor, 0)
        os.write(descriptor, who.encode())
    try:
        yield RunFolder(folder)
    finally:
        with suppress(OSError):  # Windows removes no open file; nobody takes it for a lock
            path.unlink()
        os.close(descriptor)
        if made:
            with suppress(OSError):  # it holds something
                folder.parent.rmdir()


def _locked(path: Path, until: float) -> int:
    """Open the file and lock it; refuse if another process has done so, and does not end."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # the holder before may have removed it
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        if not lock_file(descriptor):
            who = os.read(descriptor, 1000).decode(errors="replace")
            os.close(descriptor)
            if time.monotonic() < until:
                time.sleep(_RETRY)
                continue
            name = path.name.removeprefix(TEMPORARY_PREFIX).removesuffix(".lock")
            raise ConfigError(
                f"another run of the name {name!r} is under way ({who or 'it began just now'}), "
                "and one of the two results would be lost: wait for its end, end it with `flwr "
                "stop`, or give this run a run-name of its own"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # the holder before removed the file while it was being opened
