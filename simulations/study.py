"""What all studies share: options, output files, and tables on the terminal."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages import format_value, human_seconds
from flwr_vertical.pages.figures import to_png
from flwr_vertical.results import write_bytes_atomically, write_text_atomically

PASS, FAIL = "PASS", "FAIL"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    output: Path  # Where everything goes; made if needed
    data: Path | None = None  # Folder of the data sets
    workers: int | None = None  # Processes for Ray, default all cores; 0 = without Ray
    seeds: int | None = None  # Replications of every part, default as in the preset
    quick: bool = False  # Whether to run the preset's small version
    # A page of the documentation that the study writes, where it writes one
    write: Path | None = None
    # Settings that differ from the preset's, each a line of TOML such as ``complete.runs = 3``
    changes: tuple[str, ...] = ()
    # Which replications to run, where a study lets one choose: names by option
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether to run nothing and make tables and page of the replications that are there
    report: bool = False
    fresh: bool = False  # Whether to leave aside the replications that are kept in the repository
    # A user's file and what is asked of it, where a study takes one; empty without a file
    own: Mapping[str, Any] = field(default_factory=dict)

    def choice(self, name: str, known: Sequence[str]) -> list[str]:
        """Return what was chosen of some names, all of them if nothing was; in the order known."""
        chosen = self.chosen.get(name) or tuple(known)
        if unknown := [each for each in chosen if each not in known]:
            raise ConfigError(
                f"--{name} {unknown[0]!r} is unknown; there are {', '.join(map(repr, known))}"
            )
        return [each for each in known if each in chosen]


@dataclass(frozen=True)
class Outcome:
    """What a study found."""

    reached: bool  # Whether all targets were met
    tables: dict[str, pd.DataFrame]  # Its tables, as written to CSV
    page: Path  # The HTML page


@dataclass
class Output:
    """The folder of a study: CSV, PNG and HTML files, each whole or not there."""

    folder: Path  # Made if it is not there

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {self.folder.absolute()}: {error.strerror}; name another "
                "one by --output"
            ) from error

    def tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write each table to ``<name>.csv``."""
        for name, frame in tables.items():
            write_text_atomically(self.folder / f"{name}.csv", frame.to_csv(float_format="%.6g"))

    def figure(self, name: str, figure: Figure) -> bytes:
        """Write a figure to ``<name>.png`` and return it for the page."""
        picture = to_png(figure)
        write_bytes_atomically(self.folder / f"{name}.png", picture)
        return picture

    def page(self, html: str) -> Path:
        """Write ``index.html`` and return its path."""
        return write_text_atomically(self.folder / "index.html", html)


def beside_paper(ours: pd.DataFrame, paper: pd.DataFrame, digits: int = 3) -> pd.DataFrame:
    """Return ours and the paper's numbers in one cell: ``0.345 (0.385)``, a dash where unknown."""
    text = pd.DataFrame("", index=ours.index, columns=ours.columns, dtype=object)
    for column in ours.columns:
        for row in ours.index:
            value = f"{ours.loc[row, column]:.{digits}f}"
            if column in paper and row in paper.index and pd.notna(paper.loc[row, column]):
                value += f" ({paper.loc[row, column]:.{digits}f})"
            text.loc[row, column] = value
    return text


def print_tables(
    titles: Mapping[str, str], found: Mapping[str, pd.DataFrame], page: Path, started: float
) -> None:
    """Print the tables of a study, how long it took since ``started``, and where its page is."""
    for name, title in titles.items():
        print_table(title, found[name])
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page and CSV files: {page.absolute()}")


def print_table(title: str, frame: pd.DataFrame, note: str = "") -> None:
    """Print a table with its index: with rules and colours on a terminal, plain elsewhere."""
    on_terminal = sys.stdout.isatty()
    # A pipe has no width; wrapped tables could not be read back from a log.
    console = Console(width=None if on_terminal else 160, highlight=False)
    table = RichTable(
        title=title, title_justify="left", title_style="bold", caption=note or None,
        caption_justify="left",
    )  # fmt: skip
    names: Sequence[str] = [str(name or "") for name in frame.index.names]
    for name in names:
        table.add_column(name)
    for column in frame.columns:
        table.add_column(str(column), justify="right")
    for label, row in zip(frame.index, frame.to_numpy(dtype=object), strict=True):
        labels = label if isinstance(label, tuple) else (label,)
        table.add_row(*map(str, labels), *(_cell(value) for value in row))
    console.print(table)
    console.print()


def _cell(value: object) -> Text:
    text = value if isinstance(value, str) else format_value(value)
    style = {PASS: "green", FAIL: "bold red"}.get(text.split(" ")[0], "")
    return Text(text, style=style)
