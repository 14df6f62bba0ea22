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
from flwr_vertical.results import (
    format_value,
    human_seconds,
    write_bytes_atomically,
    write_text_atomically,
)
from flwr_vertical.results.figures import to_png

PASS, FAIL = "PASS", "FAIL"


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Parameters
    ----------
    output : Path
        Where everything goes; made if needed.
    data : Path, optional
        Folder of the data sets.
    workers : int, optional
        Processes for Ray, default all cores; 0 = without Ray.
    seeds : int, optional
        Replications of every part, default as in the preset.
    quick : bool
        Whether to run the preset's small version.
    write : Path, optional
        A page of the documentation that the study writes, where it writes one.
    changes : tuple of str
        Settings that differ from the preset's, each a line of TOML such as ``complete.runs = 3``.
    chosen : mapping of str to tuple of str
        Which replications to run, where a study lets one choose: names by option.
    report : bool
        Whether to run nothing and make tables and page of the replications that are there.
    fresh : bool
        Whether to leave aside the replications that are kept in the repository.
    own : mapping of str to Any
        A user's file and what is asked of it, where a study takes one; empty without a file.
    """

    output: Path
    data: Path | None = None
    workers: int | None = None
    seeds: int | None = None
    quick: bool = False
    write: Path | None = None
    changes: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    report: bool = False
    fresh: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)

    def choice(self, name: str, known: Sequence[str]) -> list[str]:
        """Return what was chosen of some names, all of them if nothing was; in the order known.

        Raises
        ------
        ConfigError
            If a chosen name is not known.
        """
        chosen = self.chosen.get(name) or tuple(known)
        if unknown := [each for each in chosen if each not in known]:
            raise ConfigError(
                f"--{name} {unknown[0]!r} is unknown; there are {', '.join(map(repr, known))}"
            )
        return [each for each in known if each in chosen]


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    Parameters
    ----------
    reached : bool
        Whether all targets were met.
    tables : dict of str to DataFrame
        Its tables, as written to CSV.
    page : Path
        The HTML page.
    """

    reached: bool
    tables: dict[str, pd.DataFrame]
    page: Path


@dataclass
class Output:
    """The folder of a study: CSV, PNG and HTML files, each whole or not there.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    folder: Path

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
    """Return ours and the paper's numbers in one cell: ``0.345 (0.385)``, a dash where unknown.

    Parameters
    ----------
    ours, paper : DataFrame
        Numbers with equal labels; what the paper lacks is left out.
    digits : int
        Decimals shown.
    """
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
