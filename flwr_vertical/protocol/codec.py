"""Carry arrays, scalars, strings and bytes in Flower records, unchanged.

A payload is a flat mapping of names to values. Arrays travel as raw bytes (one copy, no pickle),
with their dtype and shape; everything else travels in a ``ConfigRecord``. Decoded arrays are
read-only views on the received bytes, so decoding a large block costs nothing.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flwr_vertical.errors import CodecError

Payload = dict[str, Any]
Filled = TypeVar("Filled", ArrayRecord, ConfigRecord, RecordDict)

_STYPE = "flwr-vertical.raw"
_STYPE_SCALAR = "flwr-vertical.raw-scalar"
_KINDS = "biufcMmUS"  # bool, integers, floats, complex, dates, fixed-width text and bytes
_DTYPE = re.compile(r"[<|=][biufcUS]\d{1,9}|[<=][mM]8(\[\w{1,8}\])?")
_MAX_DIMENSIONS = 32
_MAX_ITEMS = 2**40
_INT64 = np.iinfo(np.int64)
_REMEDY = (
    "a payload carries numpy arrays (no object arrays), int, float, bool, str, bytes, "
    "and lists of one of those"
)


def entries(record: ArrayRecord | ConfigRecord | RecordDict) -> dict[str, Any]:
    """Return the dict of a record's entries as it is: Flower's own methods check each again."""
    found: dict[str, Any] = vars(record)["_data"]
    return found


def filled(record: Filled, values: Mapping[str, Any]) -> Filled:
    """Put values that need no check into a new record."""
    vars(record)["_data"].update(values)
    return record


def raw_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """Return a Flower array of fields that need no check."""
    array = Array.__new__(Array)
    vars(array).update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def encode(payload: Mapping[str, Any], prefix: str) -> RecordDict:
    """Put a payload into Flower records of a ``RecordDict``; see `encoded`."""
    return filled(RecordDict(), encoded(payload, prefix))


def encoded(payload: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Put a payload into records ``<prefix>.arrays`` and ``.values``, or raise `CodecError`."""
    arrays: dict[str, Array] = {}
    values: dict[str, Any] = {}
    for name, value in payload.items():
        if not isinstance(name, str):
            raise CodecError(f"payload names must be strings, got {name!r} ({type(name).__name__})")
        if isinstance(value, np.ndarray | np.generic):
            arrays[name] = _array_to_record(name, value)
        else:
            values[name] = _check_scalar(name, value)
    return {
        f"{prefix}.arrays": filled(ArrayRecord(), arrays),
        f"{prefix}.values": filled(ConfigRecord(), values),
    }


def decode(records: RecordDict, prefix: str) -> Payload:
    """Read back what `encode` wrote, arrays read-only; missing records give an empty payload."""
    payload: Payload = {}
    arrays = entries(records).get(f"{prefix}.arrays")
    values = entries(records).get(f"{prefix}.values")
    if isinstance(arrays, ArrayRecord):
        for name, array in entries(arrays).items():
            payload[name] = _array_from_record(name, array)
    if isinstance(values, ConfigRecord):
        # A list is copied, since a record may be shared with other nodes of this process.
        payload |= {k: list(v) if isinstance(v, list) else v for k, v in entries(values).items()}
    return payload


def override(common: RecordDict, own: RecordDict, prefix: str) -> RecordDict:
    """Join two encoded payloads of one prefix; what is in both is taken from `own`."""
    # The data of `common` are shared, not copied, and `common` stays as it is.
    kinds = (("arrays", ArrayRecord), ("values", ConfigRecord))
    names = {name for kind, _ in kinds for name in own[f"{prefix}.{kind}"]}
    joined = RecordDict()
    for kind, record in kinds:
        both: Any = record()
        both.update({k: v for k, v in common[f"{prefix}.{kind}"].items() if k not in names})
        both.update(own[f"{prefix}.{kind}"])
        joined[f"{prefix}.{kind}"] = both
    return joined


def payload_bytes(records: RecordDict) -> int:
    """Count the bytes of data that the records of a message carry (without protobuf framing)."""
    total = 0
    for record in entries(records).values():
        if isinstance(record, ArrayRecord):
            total += sum(len(name) + len(array.data) for name, array in entries(record).items())
        elif isinstance(record, ConfigRecord):
            total += sum(
                len(name) + _scalar_bytes(value) for name, value in entries(record).items()
            )
        else:
            total += record.count_bytes()
    return total


def _array_to_record(name: str, value: "np.ndarray[Any, Any] | np.generic") -> Array:
    scalar = isinstance(value, np.generic)
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS or array.dtype.hasobject:
        raise CodecError(
            f"payload value {name!r} is an array of dtype {array.dtype}, which cannot travel: "
            f"{_REMEDY}; convert it first (for text: array.astype(str))"
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    whole: Any = (
        array.base
    )  # of an array that was made of bytes, the bytes: nobody can change these
    shared = isinstance(whole, bytes) and len(whole) == array.nbytes and array.flags.c_contiguous
    return raw_array(
        dtype=array.dtype.str,
        shape=array.shape,
        stype=_STYPE_SCALAR if scalar else _STYPE,
        data=whole if shared else array.tobytes(),
    )


def _array_from_record(name: str, array: Array) -> Any:
    if array.stype not in (_STYPE, _STYPE_SCALAR):
        raise CodecError(
            f"array {name!r} has serialisation {array.stype!r}, expected {_STYPE!r}: "
            "the sender does not speak this protocol"
        )
    dtype, shape = _checked_dtype(name, array.dtype), _checked_shape(name, array.shape)
    expected = math.prod(shape) * dtype.itemsize
    if len(array.data) != expected:
        raise CodecError(
            f"array {name!r} of dtype {dtype} and shape {shape} should have {expected} bytes, "
            f"came with {len(array.data)}: the message was truncated or tampered with"
        )
    if expected == 0:
        return np.empty(shape, dtype=dtype)
    decoded: np.ndarray[Any, Any] = np.ndarray(shape, dtype, array.data)
    return decoded[()] if array.stype == _STYPE_SCALAR else decoded


def _checked_dtype(name: str, text: object) -> "np.dtype[Any]":
    """Read a dtype as `_array_to_record` writes it, and no other: `np.dtype` takes much more."""
    dtype: np.dtype[Any] | None = None
    if isinstance(text, str) and _DTYPE.fullmatch(text):
        with suppress(TypeError, ValueError):
            dtype = np.dtype(text)
    # Of items of no bytes a short message could hold any number, and NumPy gives each some.
    if dtype is None or dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise CodecError(
            f"array {name!r} has dtype {str(text)[:40]!r}, which no array of a payload has: the "
            "sender does not speak this protocol"
        )
    return dtype


def _checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    found = tuple(int(n) for n in shape)
    items = math.prod(max(n, 1) for n in found)
    if len(found) > _MAX_DIMENSIONS or min(found, default=0) < 0 or items > _MAX_ITEMS:
        raise CodecError(
            f"array {name!r} has {len(found)} dimensions and shape {str(found)[:60]}; expected at "
            f"most {_MAX_DIMENSIONS}, none negative, and at most {_MAX_ITEMS:,} items"
        )
    return found


def _check_scalar(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        value = list(value)
    items = value if isinstance(value, list) else [value]
    types = {type(item) for item in items}
    if len(types) > 1:
        shown = ", ".join(sorted(t.__name__ for t in types))
        raise CodecError(
            f"payload value {name!r} is a list that mixes types ({shown}); use one type"
        )
    if wrong := types - {int, float, bool, str, bytes}:
        raise CodecError(
            f"payload value {name!r} has type {wrong.pop().__name__}, which cannot travel: "
            f"{_REMEDY}"
        )
    for item in items if types == {int} else ():
        if not _INT64.min <= item <= _INT64.max:
            raise CodecError(
                f"payload value {name!r} = {item} does not fit 64 bits; send it as str or bytes"
            )
    return value


def _scalar_bytes(value: Any) -> int:
    if isinstance(value, list):
        whole = value and isinstance(value[0], bytes)  # such as the keys of a thousand parties
        return sum(map(len if whole else _scalar_bytes, value))
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else 8
