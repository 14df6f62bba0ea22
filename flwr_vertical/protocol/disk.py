"""Records on disk: frames that tell a torn write from a damaged file, and digests of requests.

A file is a sequence of frames. A frame is a header (length and checksums) and a payload: an index
in JSON and the raw bytes it points to, so that large arrays are neither copied nor converted.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_vertical.errors import CodecError, ProtocolError
from flwr_vertical.protocol.messages import ENVELOPE

# Readable and writable by the owner alone: such files hold private keys.
FILE_MODE, FOLDER_MODE = 0o600, 0o700

_TRIES = 10
_MAGIC = b"fvf1"
_HEADER = struct.Struct("<4sQII")  # magic, length of the payload, its CRC, CRC of all before
_LENGTH = struct.Struct("<Q")
_KINDS: dict[str, type[Any]] = {"values": ConfigRecord, "metrics": MetricRecord}


def pack(meta: Mapping[str, Any], records: RecordDict) -> list[bytes]:
    """Return a payload, in pieces: something that JSON can carry, and records.

    Raises
    ------
    CodecError
        If a record is of a kind that nobody here makes.
    """
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


def write_frame(file: BinaryIO, pieces: Iterable[bytes]) -> None:
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
    """Return the next frame's payload; None at the end, or where a last frame was torn.

    After None the file stands where that frame begins.

    Raises
    ------
    ProtocolError
        If the file is damaged in another way than by a write that did not finish.
    """
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
                "this run cannot go on from it: remove it and start the run anew"
            )
    file.seek(start)
    return None


def flush_to_disk(file: BinaryIO) -> None:
    """Return when what was written outlives a power cut."""
    file.flush()
    os.fsync(file.fileno())


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into; parents as usual."""
    for attempt in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            path.chmod(FOLDER_MODE)
        except FileNotFoundError:  # a neighbour that shares it found it empty and removed it
            if attempt + 1 == _TRIES:
                raise
        else:
            return


def digest(step: str, records: RecordDict) -> bytes:
    """Digest what a request asks for: its step and all its records but the envelope."""
    found = hashlib.blake2b(step.encode(), digest_size=16)
    for name in sorted(set(records) - {ENVELOPE}):
        record = records[name]
        for key in sorted(record):
            value = record[key]
            if isinstance(value, Array):
                head = [name, key, value.dtype, list(value.shape), value.stype, len(value.data)]
                found.update(json.dumps(head).encode())
                found.update(value.data)
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
