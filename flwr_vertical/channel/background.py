"""State of a node that is served beside Flower's own messages (Simulation Runtime).

There a node's message must return at once, so what its channel changes in ``context.state``
afterwards reaches Flower no more. At the goodbye it is written to a private file, which the node's
next ordinary message reads and removes, in whichever process of this machine that is handled.
"""

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path

from flwr.app import Context
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from flwr_vertical.whole_files import write_bytes_atomically

_KEPT_FOR = 24 * 3600.0  # what nobody has read by then belongs to a run that is over


def in_ray_worker() -> bool:
    """Whether this process is a Ray worker, as on the Simulation Runtime."""
    import sys

    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    try:
        return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
    except AttributeError:
        return False


def commit(context: Context) -> None:
    """Keep the state of a node for its next ordinary message."""
    folder = _folder()
    _purge(folder)
    data = recorddict_to_proto(context.state).SerializeToString()
    write_bytes_atomically(_path(folder, context), data, 0o600)


def restore(context: Context) -> bool:
    """Put what was kept into a node's context; return whether there was anything."""
    try:
        path = _path(_folder(make=False), context)
        data = path.read_bytes()
        path.unlink()
    except (FileNotFoundError, PermissionError):  # what is not ours we have not written
        return False
    context.state = recorddict_from_proto(ProtoRecordDict.FromString(data))
    return True


def _path(folder: Path, context: Context) -> Path:
    return folder / f"{context.run_id}-{context.node_id}.state"


def _folder(*, make: bool = True) -> Path:
    """Return the private folder; refuse one that others could have prepared or can read."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"flwr-vertical-channel-{owner}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    about = folder.lstat()
    if os.name == "posix" and (
        not stat.S_ISDIR(about.st_mode) or about.st_uid != owner or about.st_mode & 0o077
    ):
        raise PermissionError(
            f"{folder} must be a folder that only its owner can read; remove it, or set TMPDIR"
        )
    return folder


def _purge(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_FOR:
                path.unlink()
