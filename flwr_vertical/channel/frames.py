"""Frames of a channel: large messages in parts, with room for signs of life in between."""

import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from flwr_vertical.channel.wire import Piece

# Kinds of frames. Requests and goodbyes go to the party, the others come from it (a goodbye is
# answered by one).
WELCOME, REQUEST, REPLY, BEAT, BYE = 1, 2, 3, 4, 5

CHUNK = 1 << 20
# Kind, message number, part, parts, total length; of requests, the number below which all earlier
# ones to this party are settled.
HEADER = struct.Struct("!BQIIQQ")
LARGEST_FRAME = CHUNK + HEADER.size
_KINDS = {WELCOME, REQUEST, REPLY, BEAT, BYE}


class FrameError(ValueError):
    """The other end sent a frame that it must not send."""


class Assembled(NamedTuple):
    """A whole message as it arrived."""

    kind: int
    number: int
    pieces: list[memoryview]
    settled: int = 0


def total_size(pieces: Iterable[Piece]) -> int:
    """Return the number of bytes of a message."""
    return sum(len(piece) for piece in pieces)


def cut(
    kind: int, number: int = 0, pieces: Sequence[Piece] = (), settled: int = 0
) -> Iterator[bytes]:
    """Cut a message into frames, one at a time: as many exist as are on their way."""
    total = total_size(pieces)
    parts = max(1, -(-total // CHUNK))
    views = deque(memoryview(piece) for piece in pieces)
    for part in range(parts):
        fields: list[Piece] = [HEADER.pack(kind, number, part, parts, total, settled)]
        room = CHUNK
        while room and views:
            view = views.popleft()
            fields.append(view[:room])
            if len(view) > room:
                views.appendleft(view[room:])
            room -= min(room, len(view))
        yield b"".join(fields)


class Assembler:
    """Puts the frames of one direction together again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._header: tuple[int, int, int, int, int] | None = None
        self._next = 0
        self._left = 0
        self._pieces: list[memoryview] = []

    def feed(self, frame: bytes) -> Assembled | None:
        """Take a frame; return the message that it completes, if it does."""
        if len(frame) < HEADER.size:
            raise FrameError(f"a frame of {len(frame)} bytes is shorter than its header")
        kind, number, part, parts, total, settled = HEADER.unpack_from(frame)
        body = memoryview(frame)[HEADER.size :]
        if kind not in _KINDS:
            raise FrameError(f"a frame has the unknown kind {kind}")
        if total > self._max_bytes or len(body) > CHUNK:
            raise FrameError(
                f"a message of {total} bytes in parts of {len(body)} exceeds the limit of "
                f"{self._max_bytes} bytes in parts of {CHUNK}"
            )
        if kind == BEAT:
            return None
        header = (kind, number, parts, total, settled)
        if self._header is None:
            self._header, self._next, self._left = header, 0, total
        if header != self._header or part != self._next or part >= parts:
            raise FrameError("frames of a message are out of order")
        self._next += 1
        self._left -= len(body)
        if self._left < 0 or (self._next == parts) != (self._left == 0):
            raise FrameError("a message has another length than it announced")
        if body:
            self._pieces.append(body)
        if self._next < parts:
            return None
        self._header, pieces, self._pieces = None, self._pieces, []
        return Assembled(kind, number, pieces, settled)


class Outbox:
    """What waits to be sent on a stream; iterating over it blocks until there is a frame."""

    def __init__(self, depth: int = 8) -> None:
        self._depth = depth
        self._changed = threading.Condition()
        self._waiting: deque[Iterator[bytes]] = deque()
        self._urgent: deque[bytes] = deque()
        self._finished = False
        self._closed = False

    def put(self, frames: Iterator[bytes]) -> bool:
        """Queue a message; return whether the stream still takes messages."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished or len(self._waiting) < self._depth)
            if self._finished:
                return False
            self._waiting.append(frames)
            self._changed.notify_all()
            return True

    def beat(self) -> None:
        """Send a sign of life before whatever waits, even between the parts of a message."""
        with self._changed:
            if not self._urgent and not self._closed:
                self._urgent.append(next(cut(BEAT)))
                self._changed.notify_all()

    def finish(self, frames: Iterator[bytes] | None = None) -> None:
        """Take no more messages after this one; what waits is still sent."""
        with self._changed:
            if not self._finished and frames is not None:
                self._waiting.append(frames)
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what waits; whoever iterates comes to the end."""
        with self._changed:
            self._finished = self._closed = True
            self._waiting.clear()
            self._urgent.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._urgent or self._finished)
                if self._urgent:
                    return self._urgent.popleft()
                if not self._waiting:
                    raise StopIteration
                frames = self._waiting[0]
                frame = next(frames, None)
                if frame is not None:
                    return frame
                self._waiting.popleft()
                self._changed.notify_all()
