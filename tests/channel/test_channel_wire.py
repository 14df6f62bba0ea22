"""Messages and frames: the same bytes at the other end, and nothing else accepted."""

import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto

from flwr_vertical.channel.frames import (
    BEAT,
    CHUNK,
    HEADER,
    REPLY,
    REQUEST,
    Assembler,
    FrameError,
    Outbox,
    cut,
)
from flwr_vertical.channel.wire import WireError, pack, unpack
from flwr_vertical.protocol.messages import make_message

RNG = np.random.default_rng(0)
CONTENTS = {
    "empty": RecordDict(),
    "small": RecordDict(
        {"a": ArrayRecord([np.arange(3.0)]), "m": MetricRecord({"x": 1, "y": 2.5})}
    ),
    "large": RecordDict(
        {
            "a": ArrayRecord([RNG.normal(size=5000), np.empty(0), RNG.normal(size=(300, 7))]),
            "b": ArrayRecord(),
            "c": ArrayRecord({"raw": Array("<f8", (0,), "mine", b"")}),
        }
    ),
    "values": RecordDict({"e": ConfigRecord(), "c": ConfigRecord({
        "flag": True, "flags": [True, False], "n": -5, "big": 2**63, "ns": [1, 2], "x": 0.5,
        "xs": [0.5], "t": "text", "ts": ["a", "b"], "b": b"\0bytes", "bs": [b"", b"x" * 10_000],
        "none": [],
    })}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_message_arrives_as_by_flowers_own_serialisation(name):
    sent = make_message(CONTENTS[name], 7)
    expected = message_from_proto(message_to_proto(sent))
    received = unpack(pack(sent))
    assert received.content == expected.content
    assert vars(received.metadata) == vars(expected.metadata)
    # However the bytes are cut.
    whole = b"".join(pack(sent))
    assert unpack([whole[i : i + 97] for i in range(0, len(whole), 97)]).content == sent.content


def test_an_error_reply_arrives():
    request = make_message(RecordDict(), 7)
    received = unpack(pack(Message(Error(8, "gone"), reply_to=request)))
    assert (received.error.code, received.error.reason) == (8, "gone")
    assert received.metadata.src_node_id == 7


def test_damaged_bytes_are_refused():
    whole = b"".join(pack(make_message(CONTENTS["large"], 7)))
    for broken in (
        b"",
        whole[:5],
        whole[:-1],
        whole + b"x",
        whole[:8] + b"\xff" * 8 + whole[16:],
        b"\xff" * 8 + whole[8:],
        bytes(64),
        b"\0\0\0\0\0\0\0\0",
    ):
        with pytest.raises(WireError):
            unpack([broken])


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_frames_join_to_what_was_cut(size):
    data = RNG.bytes(size)
    pieces = [data[:5], data[5:100], data[100:]]
    frames = list(cut(REQUEST, 9, pieces))
    assert len(frames) == max(1, -(-size // CHUNK))
    assembler = Assembler(size)
    *first, last = frames
    for frame in first:
        assert assembler.feed(frame) is None
        assert assembler.feed(next(cut(BEAT))) is None
    assembled = assembler.feed(last)
    assert (assembled.kind, assembled.number) == (REQUEST, 9)
    assert b"".join(assembled.pieces) == data


def test_an_oversized_message_is_refused_by_its_first_frame():
    first = next(cut(REPLY, 1, [bytes(3 * CHUNK)]))
    with pytest.raises(FrameError, match=f"{3 * CHUNK} bytes .* exceeds the limit of {2 * CHUNK} "):
        Assembler(2 * CHUNK).feed(first)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"short"], "shorter than its header"),
        ([HEADER.pack(77, 0, 0, 1, 0, 0)], "unknown kind 77"),
        ([HEADER.pack(REPLY, 1, 1, 2, 8, 0) + b"1234"], "out of order"),
        ([HEADER.pack(REPLY, 1, 0, 2, 8, 0) + b"1234", HEADER.pack(REPLY, 2, 1, 2, 8, 0) + b"1234"],
         "out of order"),
        ([HEADER.pack(REPLY, 1, 0, 1, 8, 0) + b"1234"], "another length"),
        ([HEADER.pack(REPLY, 1, 0, 1, 2, 0) + b"1234"], "another length"),
        ([HEADER.pack(REPLY, 1, 0, 2, 4, 0) + b"1234"], "another length"),
    ],
)  # fmt: skip
def test_frames_out_of_rule_are_refused(frames, text):
    assembler = Assembler(1 << 30)
    *first, last = frames
    for frame in first:
        assembler.feed(frame)
    with pytest.raises(FrameError, match=text):
        assembler.feed(last)


def test_a_sign_of_life_overtakes_what_waits():
    outbox = Outbox()
    outbox.put(cut(REQUEST, 1, [bytes(2 * CHUNK)]))
    kinds = [HEADER.unpack_from(next(outbox))[0]]
    outbox.beat()
    outbox.beat()  # one is enough
    outbox.finish()
    kinds += [HEADER.unpack_from(frame)[0] for frame in outbox]
    assert kinds == [REQUEST, BEAT, REQUEST]
    assert not outbox.put(cut(REQUEST, 2))


def test_an_outbox_takes_no_more_than_its_depth_until_it_is_emptied_or_closed():
    outbox = Outbox(depth=1)
    assert outbox.put(cut(REQUEST, 1))
    taken = []
    thread = threading.Thread(target=lambda: taken.append(outbox.put(cut(REQUEST, 2))))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    next(outbox)
    assert HEADER.unpack_from(next(outbox))[1] == 2
    thread.join(5)
    assert taken == [True]
    thread = threading.Thread(target=lambda: taken.append(outbox.put(cut(REQUEST, 3))))
    thread.start()
    outbox.close()
    thread.join(5)
    assert taken == [True, False]
