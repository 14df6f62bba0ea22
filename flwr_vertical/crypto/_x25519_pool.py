"""Spread X25519 over processes: `cryptography` keeps the interpreter locked, so threads don't help.

The processes are plain children that speak through pipes (`_x25519_worker`), not those of
`multiprocessing`: these would run the caller's main script again where it has no ``__main__``
guard, and are forbidden in daemon processes.
"""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from flwr_vertical.crypto import _x25519_worker as worker
from flwr_vertical.errors import VerticalError

# About 60 ms of work: long against the 0.1 ms of a block's way there and back, short against the
# whole, so that no process ends much later than the others.
BLOCK_POINTS = 2048

_logger = logging.getLogger(__name__)

_Process = subprocess.Popen[bytes]


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def multiply(
    prepare: Callable[[int, int], bytes], key: bytes, out: memoryview, processes: int
) -> None:
    """Write X25519 of each point to `out`; here ``prepare(start, stop)`` makes points ahead."""
    starts = range(0, len(out) // worker.POINT_BYTES, BLOCK_POINTS)
    processes = min(processes, len(starts))
    # On an error or Ctrl-C the children end first, so no thread goes on waiting for an answer.
    with ThreadPoolExecutor(max(processes, 1)) as threads, _children(processes, key) as children:
        idle: SimpleQueue[_Process] = SimpleQueue()
        for child in children:
            idle.put(child)

        def serve(start: int, block: bytes) -> None:
            try:
                if children:
                    child = idle.get()
                    try:
                        results = _ask(child, block)
                    finally:
                        idle.put(child)
                else:
                    results = worker.multiply(block, key)
            except worker.LowOrderError as error:
                raise worker.LowOrderError(start + error.row) from error
            at = start * worker.POINT_BYTES
            out[at : at + len(block)] = results

        stops = (min(start + BLOCK_POINTS, starts.stop) for start in starts)
        blocks = map(prepare, starts, stops)
        # An error ends the iteration, which takes back the blocks that nobody has begun.
        for _ in (threads.map if children else map)(serve, starts, blocks):
            pass


@contextlib.contextmanager
def _children(processes: int, key: bytes) -> Iterator[list[_Process]]:
    """Start processes that know the key, none if not all can be had; end them on leaving."""
    children: list[_Process] = []
    # A frozen application's executable is itself, not an interpreter.
    if processes > 1 and sys.executable and not getattr(sys, "frozen", False):
        # Isolated and without `site`: neither the caller's folder nor its start-up hooks matter.
        command = [sys.executable, "-I", "-S", worker.__file__]
        path = b"\0".join(os.fsencode(entry) for entry in sys.path if entry)
        try:
            try:
                for _ in range(processes):
                    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                    children.append(child)
                    assert child.stdin is not None
                    worker.write_block(child.stdin, path)
                    worker.write_block(child.stdin, key)
            except OSError as error:
                _logger.warning("blinding in this process only, can't start others: %s", error)
                _end(children)
                children = []
            yield children
        finally:
            _end(children)
    else:
        yield children


def _end(children: list[_Process]) -> None:
    for child in children:
        child.kill()
    for child in children:
        # What is left in the buffer of a broken pipe can't be written any more.
        with contextlib.suppress(OSError):
            child.__exit__(None, None, None)


def _ask(child: _Process, block: bytes) -> bytes:
    """Return a child's answer to one block of points."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        worker.write_block(child.stdin, block)
    except OSError:
        status, answer = b"", None
    else:
        status = child.stdout.read(1)
        answer = worker.read_block(child.stdout)
    if not status or answer is None:
        raise VerticalError(
            f"a process that blinds IDs ended early (exit status {child.wait()}); is the memory "
            "short? processes=1 does without other processes"
        )
    if status[0] == worker.LOW_ORDER:
        raise worker.LowOrderError(int(answer))
    if status[0] != worker.OK:
        raise VerticalError(f"a process that blinds IDs failed: {answer.decode()}")
    return answer
