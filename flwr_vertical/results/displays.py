"""Where progress is drawn: a bar of rich's in a terminal, a line of HTML in a notebook."""

import contextvars
import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import IO, Any, NamedTuple, Protocol, SupportsFloat

from flwr_vertical.pages.page import human_seconds

_REDRAW_EVERY_SECONDS = 1.0
# A run that is over sooner leaves no line in the notebook.
_SHORT_SECONDS = 0.5
_MOST_NAMED = 3  # parties of a round


class RoundBegun(NamedTuple):
    """A round that began."""

    number: int
    step: str
    names: Sequence[str]  # Who is asked
    since: float  # Moment of `time.monotonic`


class Seen(NamedTuple):
    """What a display shows of a run."""

    done: int  # Steps
    total: int | None  # Steps to take, as far as that is known
    name: str  # What is going on
    seconds: float  # Since the beginning
    rate: float  # Steps a second, of late; 0 while that is not known
    detail: str
    values: Mapping[str, SupportsFloat]
    round: RoundBegun | None

    @property
    def left(self) -> float | None:
        """Seconds until all steps are taken, None while that is not known."""
        known = self.rate and self.total and self.total > self.done
        return (self.total - self.done) / self.rate if known and self.total else None

    @property
    def parts(self) -> list[str]:
        """What stands behind the count: round, values, detail, rate and time left."""
        parts = []
        if self.round is not None:
            few = 0 < len(self.round.names) <= _MOST_NAMED
            who = ", ".join(self.round.names) if few else f"{len(self.round.names)} parties"
            parts.append(f"round {self.round.number}: {self.round.step} at {who}")
        parts += [f"{name.replace('_', ' ')} {_number(v)}" for name, v in self.values.items()]
        if self.detail:
            parts.append(self.detail)
        if self.rate:
            each = human_seconds(1 / self.rate)
            parts.append(f"{self.rate:.3g} it/s" if self.rate >= 1 else f"{each}/it")
        if self.left is not None:
            parts.append(f"{human_seconds(self.left)} left")
        return parts


def _number(value: SupportsFloat) -> str:
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError):  # a display must never stop a run
        return str(value)


class Display(Protocol):
    """Asks how far a run is, on a clock of its own, until it is stopped."""

    def stop(self, end: str) -> None:
        """Show the last state, and how it ended, in words."""


def open_display(stream: IO[str] | None, title: str, ask: Callable[[], Seen]) -> Display | None:
    """Return a display: of a notebook, or of a terminal; None where neither is there."""
    if stream is None and in_notebook():
        return NotebookLine(title, ask)
    stream = stream or sys.stderr
    return TerminalBar(stream, title, ask) if stream.isatty() else None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell: Any = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in str(type(shell))


class TerminalBar:
    """A line with a bar in a terminal, drawn anew some times a second."""

    def __init__(self, stream: IO[str], title: str, ask: Callable[[], Seen]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title, self._ask = title, ask
        console = Console(file=stream)
        self._live = Live(console=console, get_renderable=self._line, refresh_per_second=10)
        self._live.start()

    def stop(self, end: str) -> None:
        """See `Display`."""
        self._live.stop()

    def _line(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # Step names and details are no markup: they may hold square brackets.
        seen, line = self._ask(), Table.grid(padding=(0, 1))
        line.add_row(
            Text(self._title, "bold"),
            ProgressBar(seen.total, seen.done, width=30),
            Text(f"{seen.done}/{'?' if seen.total is None else seen.total}"),
            Text(human_seconds(seen.seconds)),
            Text(seen.name),
            Text(", ".join(seen.parts), "dim"),
        )
        return line


class NotebookLine:
    """A line of HTML in a notebook, drawn anew each second while it changes; without widgets."""

    def __init__(self, title: str, ask: Callable[[], Seen]) -> None:
        ipython: Any = importlib.import_module("IPython.display")
        self._title, self._ask, self._html = title, ask, ipython.HTML
        self._handle = ipython.display(self._html(self._line(ask())), display_id=True)
        self._drawing, self._over = threading.Lock(), threading.Event()
        # A kernel finds by context which cell an output belongs to.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._redraw,), daemon=True)
        self._thread.start()

    def stop(self, end: str) -> None:
        """See `Display`."""
        self._over.set()
        seen = self._ask()
        with self._drawing:
            short = seen.seconds < _SHORT_SECONDS and end == "done"
            last = f"{self._title}: {end} after {human_seconds(seen.seconds)}"
            self._draw("" if short else f"<small>{escape(last)}</small>")

    def _redraw(self) -> None:
        while not self._over.wait(_REDRAW_EVERY_SECONDS):
            with self._drawing:
                if not self._over.is_set():
                    self._draw(self._line(self._ask()))

    def _draw(self, html: str) -> None:
        self._handle.update(self._html(html))

    def _line(self, seen: Seen) -> str:
        bar = f'<progress max="{seen.total}" value="{seen.done}"></progress>'
        count = f"{bar} {seen.done}/{seen.total}" if seen.total else f"{seen.done} steps"
        what = " · ".join([seen.name, *seen.parts] if seen.name else seen.parts)
        return (
            f"<small><b>{escape(self._title)}</b> {count} · {human_seconds(seen.seconds)}"
            f"{' · ' if what else ''}{escape(what)}</small>"
        )
