"""Records on disk: frames that tell a torn write from a damaged file, and digests of requests.

A file is a sequence of frames. A frame is a header (length and checksums) and a payload: an index
in JSON and the raw bytes it points to, so that large arrays are neither copied nor converted.
"""

import errno
import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_vertical.errors import CodecError, ProtocolError, StorageError
from flwr_vertical.protocol.messages import ENVELOPE
from flwr_vertical.whole_files import flush_folder

fcntl: ModuleType | None
msvcrt: Any
try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None

# Readable and writable by the owner alone: such files hold private keys.
FILE_MODE, FOLDER_MODE = 0o600, 0o700

# What else can be done, the server says: it knows its journal.
WHOLE = "the run cannot go on without a whole copy of it"

_TRIES = 10
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
_LOCKED_BYTE = 2**40  # behind all content: Windows lets nobody else read what is locked
_MAGIC = b"fvf1"
_HEADER = struct.Struct("<4sQII")  # magic, length of the payload, its CRC, CRC of all before
_LENGTH = struct.Struct("<Q")
_KINDS: dict[str, type[Any]] = {"values": ConfigRecord, "metrics": MetricRecord}


def pack(meta: Mapping[str, Any], records: RecordDict) -> list[bytes]:
    """Return a payload, in pieces: something that JSON can carry, and records."""
    blobs: list[bytes] = []
    index: dict[str, Any] = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            items: dict[str, Any] = {}
            for key, array in record.items():
                items[key] = [array.dtype, list(array.shape), array.stype, len(array.data)]
                blobs.append(array.data)
            index[name] = ["arrays", items]
            continue
        kind = next((k for k, cls in _KINDS.items() if isinstance(record, cls)), None)
        if kind is None:
            raise CodecError(f"record {name!r} is a {type(record).__name__}, which is not kept")
        index[name] = [kind, {key: _spec(value, blobs) for key, value in record.items()}]
    text = json.dumps([dict(meta), index], separators=(",", ":")).encode()
    return [_LENGTH.pack(len(text)), text, *blobs]


def unpack_meta(payload: bytes) -> dict[str, Any]:
    """Read the first part of what `pack` made."""
    meta: dict[str, Any] = _index(payload)[0]
    return meta


def unpack(payload: bytes) -> tuple[dict[str, Any], RecordDict]:
    """Read what `pack` made."""
    meta, index, at = _index(payload)
    view = memoryview(payload)

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return bytes(view[at - count : at])

    records = RecordDict()
    for name, (kind, items) in index.items():
        if kind == "arrays":
            arrays = ArrayRecord()
            for key, (dtype, shape, stype, count) in items.items():
                arrays[key] = Array(dtype=dtype, shape=tuple(shape), stype=stype, data=take(count))
            records[name] = arrays
            continue
        values = _KINDS[kind]()
        for key, (form, value) in items.items():
            if form == "bytes":
                values[key] = take(value)
            else:
                values[key] = value if form == "json" else [take(count) for count in value]
        records[name] = values
    return meta, records


def write_frame(file: BinaryIO, pieces: Iterable[bytes | memoryview]) -> None:
    """Append a frame to an open file; `flush_to_disk` makes it durable."""
    pieces = list(pieces)
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    header = struct.pack("<4sQI", _MAGIC, sum(map(len, pieces)), crc)
    file.write(header + struct.pack("<I", zlib.crc32(header)))
    for piece in pieces:
        file.write(piece)


def read_frame(file: BinaryIO, path: Path) -> bytes | None:
    """Return the next frame's payload; None, where that begins, at the end or where it was torn."""
    start = file.tell()
    header = file.read(_HEADER.size)
    if len(header) == _HEADER.size:
        magic, length, crc, own = _HEADER.unpack(header)
        if magic == _MAGIC and zlib.crc32(header[:-4]) == own:
            payload = file.read(length)
            if len(payload) == length and zlib.crc32(payload) == crc:
                return payload
            torn = not file.read(1)
        else:  # a file may have grown, and its bytes not have reached the disk
            torn = not any(file.read())
        if not torn:
            raise ProtocolError(
                f"{path} is damaged at byte {start:,}, and not by a write that did not finish; "
                f"{WHOLE}"
            )
    file.seek(start)
    return None


def flush_to_disk(file: BinaryIO) -> None:
    """Return when what was written outlives a power cut."""
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, pieces: Iterable[bytes | memoryview], what: str) -> None:
    """Write a private file of one frame; it is whole under its name, or not there."""
    pieces = list(pieces)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    with writing(what, path, sum(map(len, pieces))):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                write_frame(file, pieces)
                flush_to_disk(file)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # it would hide what went wrong
                temporary.unlink()
            raise
        flush_folder(path.parent)


@contextmanager
def writing(what: str, path: Path, needed: int = 0) -> Iterator[None]:
    """Say what could not be written, and where, if the system refuses it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            reason += _room(path, needed)
        raise StorageError(
            f"{what} {path} cannot be written: {reason}; make room or give access there, or "
            "have 'output' name another folder"
        ) from error


def _room(path: Path, needed: int) -> str:
    """Return how much room a file needs, and how much its folder has; "" if the system is mute."""
    from flwr_vertical.pages.page import human_bytes  # not above: its package loads much

    try:
        folder = next(each for each in path.parents if each.is_dir())
        free = shutil.disk_usage(folder).free
    except (OSError, StopIteration):
        return ""
    wanted = f"{human_bytes(needed)} are needed, " if needed else ""
    return f" ({wanted}{human_bytes(free)} are free in {folder})"


def lock_file(descriptor: int) -> bool:
    """Lock an open file until it is closed or the process ends; False if another one holds it."""
    # On a file system without locks nobody holds any.
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return True
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    finally:
        os.lseek(descriptor, at, os.SEEK_SET)
    return True


def is_alive(pid: int) -> bool:
    """Whether a process of this machine lives; taken for granted where signal 0 would end it."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into; parents as usual."""
    for attempt in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            path.chmod(FOLDER_MODE)
        # A neighbour that shares it found it empty and removed it, perhaps after it was seen here.
        except (FileNotFoundError, FileExistsError):
            if attempt + 1 == _TRIES:
                raise
        else:
            return


def digest(step: str, records: Mapping[str, Any], known: dict[int, bytes] | None = None) -> bytes:
    """Digest what a request asks for: its step and all its records but the envelope."""
    known = {} if known is None else known
    found = hashlib.blake2b(step.encode(), digest_size=16)
    for name in sorted(set(records) - {ENVELOPE}):
        record = records[name]
        for key in sorted(record):
            value = record[key]
            if isinstance(value, Array):
                head = [name, key, value.dtype, list(value.shape), value.stype, len(value.data)]
                found.update(json.dumps(head).encode())
                if id(value) not in known:
                    known[id(value)] = hashlib.sha256(value.data).digest()
                found.update(known[id(value)])
            else:
                blobs: list[bytes] = []
                found.update(json.dumps([name, key, _spec(value, blobs)]).encode())
                for blob in blobs:
                    found.update(blob)
    return found.digest()


def _index(payload: bytes) -> tuple[dict[str, Any], dict[str, Any], int]:
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    meta, index = json.loads(payload[_LENGTH.size : end])
    return meta, index, end


def _spec(value: Any, blobs: list[bytes]) -> list[Any]:
    """Describe a value in JSON; bytes join the blobs."""
    if isinstance(value, bytes):
        blobs.append(value)
        return ["bytes", len(value)]
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        blobs.extend(value)
        return ["blobs", [len(item) for item in value]]
    return ["json", value]
