"""An executor for gRPC: a daemon thread per stream, so that nothing keeps the interpreter alive."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class StreamThreads(Executor):
    """Runs each call in a thread of its own.

    The executor of the standard library joins its threads before the interpreter ends, which
    would wait for streams that nobody closes any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._alive: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Start a call."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # gRPC asks the future
                future.set_exception(error)
            finally:
                with self._lock:
                    self._alive.discard(thread)

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        with self._lock:
            self._alive.add(thread)
        thread.start()
        return future

    def join(self, patience: float) -> None:
        """Wait until all calls have ended, at most some time."""
        deadline = time.monotonic() + patience
        with self._lock:
            alive = list(self._alive)
        for thread in alive:
            thread.join(max(0.0, deadline - time.monotonic()))
