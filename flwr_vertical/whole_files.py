"""Files that are either whole or not there.

A run may be stopped at any moment. Everything is therefore written to a temporary name in the same
folder (the same file system, so that the rename is one operation) and renamed when it is complete.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr_vertical.errors import StorageError

# Also tells `results` which names in a folder are leftovers of a killed run.
TEMPORARY_PREFIX = ".flwr-vertical-"


def temporary_name(path: Path) -> Path:
    """Return an unused name next to `path` with its suffix, by which writers compress."""
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(6)}{path.suffix}")


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there; say which file is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        there = next(above for above in (folder, *folder.parents) if above.exists())
        raise StorageError(
            f"cannot write into {folder}: {there} is a file, expected a folder; name another place"
        ) from error


@contextmanager
def atomic_path(
    path: str | os.PathLike[str], mode: int = 0o666, *, fresh: bool = False
) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` when the block ends without an error.

    It is an empty file in the same folder, to be written by any writer. Missing parent folders are
    made. `mode` has the file's permissions, less the umask; 0o600 for what is its owner's alone.
    With `fresh` nothing is replaced, and no folder made: FileExistsError where `path` is there.
    """
    target = Path(path)
    if not fresh:
        make_folder(target.parent)
    temporary = temporary_name(target)
    # Not tempfile.mkstemp: its files stay readable by the owner only, ours follow the umask.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        _flush_to_disk(temporary)
        if fresh:
            os.link(temporary, target)  # unlike a rename, it fails if the name is taken
            flush_folder(target.parent)  # what cannot be made again must outlive a power cut
        else:
            os.replace(temporary, target)
    finally:  # Ctrl-C, too, must leave no temporary file
        with suppress(OSError):  # it would hide what went wrong
            temporary.unlink()


def write_bytes_atomically(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> Path:
    """Write `data` to `path`, whole or not at all, and return the path."""
    with atomic_path(path, mode) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text_atomically(path: str | os.PathLike[str], data: str, mode: int = 0o666) -> Path:
    """Write `data` as UTF-8 to `path`, whole or not at all, and return the path."""
    return write_bytes_atomically(path, data.encode("utf-8"), mode)


def _flush_to_disk(path: Path) -> None:
    # Without it a power cut after the rename can leave an empty file under the final name.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: Path) -> None:
    """Return when the names in a folder outlive a power cut, where the system can do that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
