"""Progress of a run: a bar in a terminal, a line in a notebook, a log line elsewhere."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, SupportsFloat, overload

from flwr_vertical.log import logger
from flwr_vertical.pages.page import human_seconds
from flwr_vertical.results.displays import Display, RoundBegun, Seen, open_display

_LOG_EVERY_SECONDS = 5.0
_LOG_EVERY_SHARE = 0.10
# The rate is that of the last half minute, once there is a second of it.
_WINDOW_SECONDS, _SHORTEST_SECONDS, _MARK_EVERY_SECONDS = 30.0, 1.0, 0.25

# Two bars drawn at once overwrite each other: a run inside a study leaves the bar to the study.
_drawing = threading.Lock()


class Progress:
    """Shows how far a run is; use it as a context manager.

    Parameters
    ----------
    title : str
        What is running, such as the strategy's name.
    total : int, optional
        Number of steps to take; may be unknown and may be set later by ``p.total = n``.
    enabled : bool, optional
        False shows nothing at all.
    stream : text file, optional
        Where the bar is drawn. By default the notebook, if one runs this process, else standard
        error. A bar needs a terminal; elsewhere lines go to the logger ``flwr_vertical`` at level
        INFO, one per 10 % or 5 seconds: without a logging set-up, nothing is shown.

    Examples
    --------
    >>> with Progress("FKNN", total=12) as p:
    ...     p.step("distances", detail="block 3 of 10")
    >>> with Progress("FALSE-VFL") as p:
    ...     for i in range(3):
    ...         p.step(i + 1, 3, loss=1.0 / (i + 1))
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        enabled: bool = True,
        stream: IO[str] | None = None,
    ) -> None:
        self.title = title
        self.done = 0
        self.total = total
        self._enabled = enabled
        self._stream = stream
        self._display: Display | None = None
        self._round: RoundBegun | None = None
        self._started = self._last_time = time.monotonic()
        self._last_done = 0
        self._name = ""
        self._latest: tuple[str, dict[str, SupportsFloat]] = "", {}
        self._marks: deque[tuple[float, int]] = deque([(self._started, 0)])

    @overload
    def step(
        self, name: str, advance: int = 1, detail: str = "", **values: SupportsFloat
    ) -> None: ...
    @overload
    def step(
        self, name: int, advance: int | None = None, detail: str = "", **values: SupportsFloat
    ) -> None: ...
    def step(
        self, name: str | int, advance: int | None = None, detail: str = "", **values: SupportsFloat
    ) -> None:
        """Say what is done: ``step("distances")``, or ``step(i, total, loss=loss)`` in a training.

        Parameters
        ----------
        name : str or int
            What is going on; or how many steps are done, which begins again with each phase.
        advance : int, optional
            After a name, how many more steps are done (default 1). After a number, how many there
            are in all.
        detail : str, optional
            More about it.
        **values : float
            Numbers to be shown, such as ``loss=0.3``. They are read only when they are shown, so
            that a number on an accelerator does not make every step wait for it.
        """
        if not self._enabled:
            return
        if isinstance(name, str):
            self._name = name
            self.done += 1 if advance is None else advance
        else:
            self.total = self.total if advance is None else int(advance)
            self.done = int(name)
        now = time.monotonic()
        self._mark(now)
        self._latest = detail, values
        if self._display is None and self._due(now):
            self._last_time, self._last_done = now, self.done
            of = f"/{self.total}" if self.total else ""
            share = f" ({self.done / self.total:.0%})" if self.total else ""
            tail = "".join(f", {part}" for part in self.seen()._replace(round=None).parts)
            what = f"{self._name} " if self._name else ""
            logger.info("%s: %s%d%s%s%s", self.title, what, self.done, of, share, tail)

    def round(self, number: int, step: str, names: Sequence[str]) -> None:
        """Say which round begins, and who is asked for what; a bar shows it."""
        self._round = RoundBegun(number, step, names, time.monotonic())

    def _mark(self, now: float) -> None:
        """Remember when how much was done, as far as the rate needs it."""
        if self.done < self._marks[-1][1]:  # another phase
            self._marks = deque([(now, self.done)])
            self._last_done = self.done
        elif now - self._marks[-1][0] >= _MARK_EVERY_SECONDS:
            self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW_SECONDS:
            self._marks.popleft()

    def _rate(self, now: float) -> float:
        """Return steps a second, 0 while that is not known."""
        since, done = self._marks[0]
        return (self.done - done) / (now - since) if now - since >= _SHORTEST_SECONDS else 0.0

    def seen(self) -> Seen:
        """Return what a display shows; may be called by another thread."""
        now = time.monotonic()
        detail, values = self._latest
        spent, rate = now - self._started, self._rate(now)
        return Seen(self.done, self.total, self._name, spent, rate, detail, values, self._round)

    def __enter__(self) -> "Progress":
        self._started = self._last_time = time.monotonic()
        self._marks = deque([(self._started, self.done)])
        if self._enabled:
            self._open_display()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        end = "done" if kind is None else f"stopped by {kind.__name__}"
        if self._display is not None:
            display, self._display = self._display, None
            try:
                self._round = None
                display.stop(end)
            finally:
                _drawing.release()
        elif self._enabled:
            spent = human_seconds(time.monotonic() - self._started)
            logger.info("%s: %s after %d steps, %s", self.title, end, self.done, spent)

    def _due(self, now: float) -> bool:
        if now - self._last_time >= _LOG_EVERY_SECONDS:
            return True
        return bool(self.total) and (
            self.done - self._last_done >= _LOG_EVERY_SHARE * (self.total or 1)
        )

    def _open_display(self) -> None:
        if not _drawing.acquire(blocking=False):
            return
        # A display must never stop a run: without rich, or with an odd terminal, lines are logged.
        try:
            self._display = open_display(self._stream, self.title, self.seen)
        except Exception as error:
            logger.debug("no progress bar: %s", error)
        if self._display is None:
            _drawing.release()
