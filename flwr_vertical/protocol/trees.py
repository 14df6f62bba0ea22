"""Trees of values (dicts, lists, arrays, tensors, numbers) in one frame of a file, without pickle.

A tree is split into its outline, which JSON carries, and the raw bytes of its arrays, which are
neither copied nor converted on the way to the file: a model of 120 MB is written as it lies in
memory. Tensors of torch are told by their type; torch itself is imported only where a file holds
some.
"""

import importlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flwr_vertical.errors import CodecError, ProtocolError
from flwr_vertical.protocol.disk import WHOLE, read_frame

Piece = bytes | memoryview

_LENGTH = struct.Struct("<Q")
_KINDS = "biufcMmUS"
_PLAIN = (bool, int, float, str, type(None))
_REMEDY = (
    "a tree is made of dicts, lists, tuples, numpy arrays, torch tensors, numbers, str, bytes and "
    "None"
)


def pack_tree(meta: Mapping[str, Any], tree: Any) -> list[Piece]:
    """Return a payload, in pieces: something that JSON can carry, and a tree."""
    blobs: list[Piece] = []
    outline = _outline(tree, blobs, "")
    text = json.dumps([dict(meta), outline], separators=(",", ":")).encode()
    return [_LENGTH.pack(len(text)), text, *blobs]


def unpack_tree(payload: bytes) -> tuple[dict[str, Any], Any]:
    """Read what `pack_tree` made; arrays and tensors have memory of their own."""
    (length,) = _LENGTH.unpack_from(payload)
    at = _LENGTH.size + length
    meta, outline = json.loads(payload[_LENGTH.size : at])
    view = memoryview(payload)

    def take(count: int) -> memoryview:
        nonlocal at
        at += count
        return view[at - count : at]

    return meta, _build(outline, take)


def read_tree(path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tree that a run, as `meta` names it, wrote into a file; it may raise OSError."""
    with path.open("rb") as file:
        payload = read_frame(file, path)
    if payload is None:
        raise ProtocolError(f"{path} is cut off or empty; {WHOLE}")
    found, tree = unpack_tree(payload)
    if found != meta:
        raise ProtocolError(f"{path} belongs to another run; {WHOLE}")
    made: dict[str, Any] = tree
    return made


def _outline(value: Any, blobs: list[Piece], where: str) -> list[Any]:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise CodecError(f"{where or 'the tree'} is an array of dtype {array.dtype}; {_REMEDY}")
        blobs.append(_bytes_of(array))
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return [kind, array.dtype.str, list(array.shape)]
    if isinstance(value, _PLAIN):
        return ["plain", value]
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return ["bytes", len(value)]
    if isinstance(value, Mapping):
        return [
            "dict",
            [
                [
                    _outline(key, blobs, f"a key of {where}"),
                    _outline(item, blobs, f"{where}[{key!r}]"),
                ]
                for key, item in value.items()
            ],
        ]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        items = [_outline(item, blobs, f"{where}[{k}]") for k, item in enumerate(value)]
        return [kind, items]
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return _tensor_outline(value, blobs, where)
    raise CodecError(f"{where or 'the tree'} is a {type(value).__name__}; {_REMEDY}")


def _tensor_outline(tensor: Any, blobs: list[Piece], where: str) -> list[Any]:
    torch = importlib.import_module("torch")
    try:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        blobs.append(_bytes_of(flat.view(torch.uint8).numpy()))
    except (RuntimeError, TypeError, ValueError) as error:
        raise CodecError(f"{where or 'the tree'} is a tensor without raw bytes: {error}") from error
    name = str(tensor.dtype).removeprefix("torch.")
    return ["tensor", name, list(tensor.shape), int(flat.numel() * flat.element_size())]


def _bytes_of(array: "np.ndarray[Any, Any]") -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _build(outline: list[Any], take: Callable[[int], memoryview]) -> Any:
    kind, first, *rest = outline
    if kind == "plain":
        return first
    if kind == "bytes":
        return bytes(take(first))
    if kind == "dict":
        return {_build(key, take): _build(item, take) for key, item in first}
    if kind in ("list", "tuple"):
        items = [_build(item, take) for item in first]
        return items if kind == "list" else tuple(items)
    if kind == "tensor":
        torch = importlib.import_module("torch")
        tensor = torch.empty(rest[0], dtype=getattr(torch, first))
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        raw[:] = np.frombuffer(take(rest[1]), dtype=np.uint8)
        return tensor
    dtype = np.dtype(first)
    array = np.empty(rest[0], dtype=dtype)
    count = math.prod(rest[0]) * dtype.itemsize
    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(take(count), dtype=np.uint8)
    return array if kind == "array" else array[()]
