"""A Flower message as pieces of bytes, and back: arrays are neither joined nor copied twice.

::

    length of the skeleton, number of arrays | size of each array | skeleton | data of arrays

The skeleton is Flower's own protobuf form of the message without the data of large arrays, built
in place (nested protobufs that are built first are copied again at every level). The data follow
as they are, so that a message may be larger than the 2 GiB that one protobuf can hold.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import (
    config_record_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
)
from flwr.common.serde_utils import (
    error_from_proto,
    error_to_proto,
    metadata_from_proto,
    metadata_to_proto,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import ConfigRecord as ProtoConfigRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from flwr_vertical.protocol.codec import entries, filled, raw_array

Piece = bytes | memoryview

_COUNTS = struct.Struct("!II")
_INLINE = 4096  # smaller arrays stay in the skeleton: a piece of their own costs more


class WireError(ValueError):
    """The bytes are not what `pack` makes."""


def pack(message: Message) -> list[Piece]:
    """Turn a message into pieces; their concatenation is what travels."""
    proto = ProtoMessage()
    proto.metadata.CopyFrom(metadata_to_proto(message.metadata))
    if message.has_error():
        proto.error.CopyFrom(error_to_proto(message.error))
    sizes: list[int] = []
    data: list[Piece] = []
    if message.has_content():
        proto.content.SetInParent()
        pack_records(message.content, proto.content, sizes, data)
    skeleton = proto.SerializeToString()
    head = _COUNTS.pack(len(skeleton), len(sizes)) + struct.pack(f"!{len(sizes)}Q", *sizes)
    return [head + skeleton, *data]


def unpack(pieces: Sequence[Piece]) -> Message:
    """Rebuild a message from the pieces in which it arrived, however they were cut."""
    source = _Source(pieces)
    try:
        length, count = _COUNTS.unpack(source.take(_COUNTS.size))
        if count * 8 > source.left:
            raise WireError("the message announces more arrays than it holds")
        sizes = iter(struct.unpack(f"!{count}Q", source.take(8 * count)))
        proto = ProtoMessage.FromString(source.take(length))
        content = (
            _unpack_records(proto.content, sizes, source) if proto.HasField("content") else None
        )
        error = error_from_proto(proto.error) if proto.HasField("error") else None
        if (content is None) == (error is None) or source.left:
            raise WireError("the message has not exactly one of content and error, or a rest")
        return make_message(metadata_from_proto(proto.metadata), content, error)
    except WireError:
        raise
    except Exception as error:  # protobuf's, struct's and Flower's own
        raise WireError(f"the bytes are no message: {type(error).__name__}: {error}") from error


def pack_records(
    records: RecordDict, proto: ProtoRecordDict, sizes: list[int], data: list[Piece]
) -> None:
    """Write records into a protobuf in place; large arrays go to ``data``."""
    for name, record in entries(records).items():
        item = proto.items.add(key=name)
        if isinstance(record, ArrayRecord):
            item.array_record.SetInParent()
            _pack_arrays(record, item.array_record, sizes, data)
        elif isinstance(record, ConfigRecord):
            item.config_record.SetInParent()
            _pack_config(record, item.config_record)
        elif isinstance(record, MetricRecord):
            item.metric_record.CopyFrom(metric_record_to_proto(record))
        else:
            raise TypeError(
                f"record {name!r} has type {type(record).__name__}, not one of Flower's"
            )


def _pack_arrays(
    record: ArrayRecord, proto: ProtoArrayRecord, sizes: list[int], data: list[Piece]
) -> None:
    for name, array in entries(record).items():
        value = proto.items.add(key=name).value
        value.dtype, value.stype = array.dtype, array.stype
        value.shape.extend(array.shape)
        if len(array.data) < _INLINE:
            value.data = array.data
            sizes.append(0)
        else:
            data.append(array.data)
            sizes.append(len(array.data))


_FIELDS = {bytes: "bytes", str: "string", bool: "bool", float: "double"}


def _pack_config(record: ConfigRecord, proto: ProtoConfigRecord) -> None:
    """Write values in place, but for those that Flower writes in several ways."""
    for name, value in entries(record).items():
        if field := _FIELDS.get(type(value)):
            setattr(proto.items.add(key=name).value, field, value)
        elif type(value) is int and value < 2**63:
            proto.items.add(key=name).value.sint64 = value
        elif isinstance(value, list) and value and isinstance(value[0], bytes):
            proto.items.add(key=name).value.bytes_list.vals.extend(value)
        else:
            proto.items.append(config_record_to_proto(ConfigRecord({name: value})).items[0])


def _unpack_records(proto: ProtoRecordDict, sizes: Iterator[int], source: "_Source") -> RecordDict:
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {}
    for item in proto.items:
        field = item.WhichOneof("value")
        if field == "array_record":
            arrays = {}
            for entry in item.array_record.items:
                size, value = next(sizes), entry.value
                data = source.take(size) if size else value.data
                arrays[entry.key] = raw_array(value.dtype, tuple(value.shape), value.stype, data)
            records[item.key] = filled(ArrayRecord(), arrays)
        elif field == "config_record":
            records[item.key] = filled(ConfigRecord(), _unpack_config(item.config_record))
        elif field == "metric_record":
            records[item.key] = metric_record_from_proto(item.metric_record)
        else:
            raise WireError(f"record {item.key!r} is of no known kind")
    return filled(RecordDict(), records)


def _unpack_config(proto: ProtoConfigRecord) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in proto.items:
        field = item.value.WhichOneof("value")
        if field is None:
            raise WireError(f"value {item.key!r} is of no known kind")
        value = getattr(item.value, field)
        found[item.key] = list(value.vals) if field.endswith("_list") else value
    return found


class _Source:
    """Takes bytes from pieces one after the other; each byte is copied once."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = [memoryview(piece) for piece in pieces]
        self._at = 0
        self._offset = 0
        self.left = sum(len(piece) for piece in self._pieces)

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise WireError(f"the message ends {size - self.left} bytes too early")
        self.left -= size
        taken: list[memoryview] = []
        while size:
            piece = self._pieces[self._at]
            part = piece[self._offset : self._offset + size]
            taken.append(part)
            size -= len(part)
            self._offset += len(part)
            if self._offset == len(piece):
                self._at, self._offset = self._at + 1, 0
        return b"".join(taken)
