"""Limits on the threads of numerical libraries while several parties compute in one process.

Every party's BLAS and torch would take all cores, so that parties that run side by side would
fight for them. The limits hold for the whole process, and are lifted by whoever set them.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController


def n_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ThreadLimits:
    """Thread counts of BLAS and torch, set while parties run and restored afterwards.

    Use the one of this process, `thread_limits`. torch is never imported here: its threads are
    limited if somebody else has imported it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._controller: Any = None
        self._seen_torch = False
        self._limit: int | None = None
        self._torch_before: int | None = None

    @contextmanager
    def limited(self, threads: int) -> Iterator[None]:
        """Let each call of BLAS use at most so many threads, and torch where `adopt` is called.

        Within another use, also of another thread, this changes nothing: libraries let only the
        thread that has set a limit lift it.
        """
        with ExitStack() as stack:
            with self._lock:
                if self._limit is None:
                    self._begin(threads, stack)
            yield

    def adopt(self) -> None:
        """Give torch in the calling thread the threads it may use now: torch counts by thread."""
        torch = _torch()
        if torch is None:
            return
        with self._lock:
            if self._torch_before is None:  # imported after the limit was set
                self._torch_before = torch.get_num_threads()
            wanted = min(self._limit or self._torch_before, self._torch_before)
            if torch.get_num_threads() != wanted:
                torch.set_num_threads(wanted)

    def _begin(self, threads: int, stack: ExitStack) -> None:
        torch = _torch()
        if self._controller is None or (torch is not None and not self._seen_torch):
            # torch brings a BLAS of its own. This takes milliseconds: too long for every round.
            self._controller = ThreadpoolController().select(user_api="blas")
            self._seen_torch = torch is not None
        self._limit = threads
        self._torch_before = None if torch is None else torch.get_num_threads()
        stack.callback(self._end)
        least = min((own.num_threads for own in self._controller.lib_controllers), default=1)
        if threads < least:
            stack.enter_context(self._controller.limit(limits=threads))

    def _end(self) -> None:
        with self._lock:
            self._limit = None
            torch = _torch()
            if torch is not None and self._torch_before is not None:
                torch.set_num_threads(self._torch_before)  # threads to come begin with this number


def _torch() -> Any:
    """Return torch if it has been imported, whole, by somebody else."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


thread_limits = ThreadLimits()
