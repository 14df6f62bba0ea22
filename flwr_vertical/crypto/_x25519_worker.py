"""X25519 of many points under one key; run as a script, a process that does it for another one.

It imports nothing of this package: a process that only needs `cryptography` starts in 40 ms, one
that imports `flwr_vertical` with Flower and pandas in 2 s.

As a script it reads from its standard input the caller's ``sys.path``, then the key, then any
number of blocks of points, and answers each block on its standard output. A block either way is
its length (8 bytes, big-endian) and its bytes; an answer also has one byte before its length:
0, the results follow; 1, a point of low order, whose row follows in decimal; 2, an error message
follows. It ends when its input does, and so with its caller, however that one ends.
"""

import struct
import sys
from typing import IO

POINT_BYTES = 32

OK, LOW_ORDER, FAILED = 0, 1, 2


class LowOrderError(ValueError):
    """A multiple is zero: the point is of low order."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def multiply(points: bytes | memoryview, key: bytes) -> bytes:
    """Return X25519 of each point (RFC 7748, section 5)."""
    # Not at the top: the worker learns only from its input where to find it.
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    exchange = X25519PrivateKey.from_private_bytes(key).exchange
    load = X25519PublicKey.from_public_bytes
    results: list[bytes] = []
    try:
        for (point,) in struct.iter_unpack(f"{POINT_BYTES}s", points):
            results.append(exchange(load(point)))
    except ValueError as error:
        raise LowOrderError(len(results)) from error
    return b"".join(results)


def write_block(stream: IO[bytes], data: bytes | memoryview, status: int | None = None) -> None:
    """Write one block and flush; with `status`, an answer."""
    head = b"" if status is None else bytes([status])
    stream.write(head + len(data).to_bytes(8, "big"))
    stream.write(data)
    stream.flush()


def read_block(stream: IO[bytes]) -> bytes | None:
    """Return the next block, None where the stream ends."""
    head = stream.read(8)
    size = int.from_bytes(head, "big")
    data = stream.read(size) if len(head) == 8 else b""
    return data if len(head) == 8 and len(data) == size else None


def main() -> None:
    """Answer the blocks of the standard input until it ends."""
    import signal

    # Ctrl-C reaches every process of the terminal; the caller is the one to handle it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    path, key = read_block(source), read_block(source)
    if path is None or key is None:
        return
    # The caller may have found `cryptography` in a folder that only it was told of.
    sys.path += [entry for entry in path.decode().split("\0") if entry not in sys.path]
    while (points := read_block(source)) is not None:
        try:
            status, answer = OK, multiply(points, key)
        except LowOrderError as error:
            status, answer = LOW_ORDER, str(error.row).encode()
        except Exception as error:
            status, answer = FAILED, f"{type(error).__name__}: {error}".encode()
        write_block(sink, answer, status)


if __name__ == "__main__":
    main()
