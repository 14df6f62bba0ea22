"""Files that are either whole or not there.

A run may be stopped at any moment. Everything is therefore written to a temporary name in the same
folder (the same file system, so that the rename is one operation) and renamed when it is complete.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Also tells `storage` which names in a folder are leftovers of a killed run.
TEMPORARY_PREFIX = ".flwr-vertical-"


def temporary_name(path: Path) -> Path:
    """Return an unused name next to `path` that keeps its suffix.

    Writers such as ``DataFrame.to_csv`` choose the compression by the suffix.
    """
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(6)}{path.suffix}")


@contextmanager
def atomic_path(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` when the block ends without an error.

    It is an empty file in the same folder, to be written by any writer. Missing parent folders are
    made. `mode` has the file's permissions, less the umask; 0o600 for what is its owner's alone.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(target)
    # Not tempfile.mkstemp: its files stay readable by the owner only, ours follow the umask.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C, too, must leave no temporary file; it is raised again
        with suppress(OSError):
            temporary.unlink()
        raise


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
