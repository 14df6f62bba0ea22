"""Progress of a run: a bar in a terminal, a few log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import IO, Any

from flwr_vertical.results.units import human_seconds

logger = logging.getLogger("flwr_vertical")

_LOG_EVERY_SECONDS = 10.0
_LOG_EVERY_SHARE = 0.10

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
        Where the bar is drawn: standard error by default. A bar needs a terminal; elsewhere lines
        go to the logger ``flwr_vertical`` at level INFO, one per 10 % or 10 seconds.

    Examples
    --------
    >>> with Progress("FKNN", total=12) as p:
    ...     p.step("distances", detail="block 3 of 10")
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
        self._total = total
        self._enabled = enabled
        self._stream = stream
        self._bar: Any = None
        self._task: Any = None
        self._started = self._last_time = time.monotonic()
        self._last_done = 0

    @property
    def total(self) -> int | None:
        """Number of steps to take, or None while it is unknown."""
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def step(self, name: str, advance: int = 1, detail: str = "") -> None:
        """Say that `advance` more steps are done, and what is going on."""
        if not self._enabled:
            return
        self.done += advance
        if self._bar is not None:
            self._bar.update(self._task, advance=advance, step=name, detail=detail)
        elif self._due():
            self._last_time, self._last_done = time.monotonic(), self.done
            of = f"/{self._total}" if self._total else ""
            share = f" ({self.done / self._total:.0%})" if self._total else ""
            tail = f", {detail}" if detail else ""
            logger.info("%s: %s %d%s%s%s", self.title, name, self.done, of, share, tail)

    def __enter__(self) -> Progress:
        self._started = self._last_time = time.monotonic()
        if self._enabled:
            self._open_bar()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            try:
                bar.stop()
            finally:
                _drawing.release()
        elif self._enabled:
            end = "done" if kind is None else f"stopped by {kind.__name__}"
            spent = human_seconds(time.monotonic() - self._started)
            logger.info("%s: %s after %d steps, %s", self.title, end, self.done, spent)

    def _due(self) -> bool:
        if time.monotonic() - self._last_time >= _LOG_EVERY_SECONDS:
            return True
        return bool(self._total) and (
            self.done - self._last_done >= _LOG_EVERY_SHARE * (self._total or 1)
        )

    def _open_bar(self) -> None:
        stream = self._stream or sys.stderr
        if not stream.isatty() or not _drawing.acquire(blocking=False):
            return
        # A display must never stop a run: without rich, or with an odd terminal, lines are logged.
        try:
            self._bar, self._task = _rich_bar(stream, self.title, self._total, self.done)
        except Exception as error:
            _drawing.release()
            logger.debug("no progress bar: %s", error)


def progress(title: str, total: int | None = None, *, enabled: bool = True) -> Progress:
    """Return a `Progress`: ``with progress("FKNN", total=12) as p: p.step("distances")``."""
    return Progress(title, total, enabled=enabled)


def _rich_bar(stream: IO[str], title: str, total: int | None, done: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    # Step names and details may hold square brackets, which rich would read as styles.
    bar = RichProgress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TextColumn("{task.fields[detail]}", markup=False, style="dim"),
        console=Console(file=stream),
    )
    bar.start()
    return bar, bar.add_task(escape(title), total=total, completed=done, step="", detail="")
