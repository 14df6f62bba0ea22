"""The base of all studies: from options to tables, figures and one page."""

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.figures import to_png
from flwr_vertical.pages.page import format_value, human_seconds
from flwr_vertical.whole_files import write_bytes_atomically, write_text_atomically
from simulations.data import HERE, ROOT
from simulations.kept import as_kept, read_kept, write_kept
from simulations.page import FAIL, PASS, Part, Tables, reached, read_words, render
from simulations.preset import Options, StudyPreset
from simulations.replications import Job, Store, run_all, to_frame


class Study(ABC):
    """A study: it runs the replications that are open, then makes tables, figures and the page."""

    name: ClassVar[str]  # On the command line, of its folder and its records
    page_file: ClassVar[str] = "page.toml"  # The words of its page, in its folder
    preset_class: ClassVar[type[StudyPreset]] = StudyPreset
    replicate: ClassVar[Any]  # Of one job and what `prepare` returned: figures by name

    def __init__(self, options: Options) -> None:
        self.options = options
        # By part, how many replications were run, and how many the preset asks for
        self.counts: dict[str, tuple[int, int]] = {}
        self.preset = self.preset_class.load(self.name, options)
        self.text = read_words(HERE / self.name / self.page_file)
        self.goals: dict[str, str] = self.text["goals"]
        self.keeps: bool = self.text.get("keeps", False)
        self.shared = self.prepare()

    def prepare(self) -> Any:
        """Return what every replication reads, such as data sets."""
        return None

    @property
    def context(self) -> str:
        """What replications depend on beside their settings."""
        return f"{self.name} {self.preset.version}"

    def jobs(self) -> list[Job]:
        """Return the replications of the study."""
        return self.preset.jobs()

    def chosen(self) -> list[Job]:
        """Return the replications that the options choose."""
        return self.preset.chosen(self.jobs(), self.options)

    @abstractmethod
    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the tables by the name of their CSV file, of one line for each number."""

    def figures(self, frame: pd.DataFrame, tables: Tables) -> dict[str, Figure]:
        """Return the figures by the name of their PNG file."""
        return {}

    def words(self, tables: Tables) -> dict[str, Any]:
        """Return what stands for names in braces in words of the page, beside the preset's."""
        return {}

    def notes(self, words: Mapping[str, Any]) -> list[str]:
        """Return what a reader must know: choices, and where they differ from the paper's."""
        return [text.format(**words) for text in self.text.get("notes", ())]

    def parts(self, tables: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        words = {**self.preset.values, **self.words(tables)}
        return [Part.of(part, words) for part in self.text["parts"]]

    def compute(self, store: Store) -> None:
        """Run the chosen replications that are not finished."""
        self.run_jobs(self.chosen(), store)

    def run_jobs(self, jobs: Sequence[Job], store: Store, **how: Any) -> None:
        """Run replications; ``how`` as `run_all` takes it."""
        how.setdefault("workers", self.options.workers)
        run_all(
            jobs, type(self).replicate, self.shared, store=store, context=self.context,
            title=f"{self.name} study", **how,
        )  # fmt: skip

    def run(self) -> bool:
        """Run what is open, write tables, figures and page, and show the tables.

        Returns whether everything came as expected.
        """
        started, options, folder = time.monotonic(), self.options, self.options.output
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {folder.absolute()}: {error.strerror}; name another one "
                "by --output"
            ) from error
        kept = ROOT / "docs" / "records" / f"{self.name}.jsonl"
        known = read_kept(kept) if self.keeps and not options.fresh else {}
        store = Store(folder / "records.jsonl", known)
        if not options.report:
            self.compute(store)
        jobs = self.jobs()  # also those that earlier commands chose
        frame = to_frame(jobs, store, self.context)
        if frame.empty:
            raise ConfigError(
                f"{store.path} has no runs with these settings; run some, without --report, or "
                "name the folder that has them by --output"
            )
        finished = Counter(j.part for j in jobs if j.key(self.context) in store.found)
        asked = Counter(job.part for job in jobs)
        self.counts = {part: (finished[part], asked[part]) for part in asked}
        tables = self.tables(as_kept(frame) if self.keeps else frame)
        for name, table in tables.items():
            write_text_atomically(folder / f"{name}.csv", table.to_csv(float_format="%.6g"))
        figures = self.figures(frame, tables)
        for name, figure in figures.items():
            write_bytes_atomically(folder / f"{name}.png", to_png(figure))
        page = write_text_atomically(folder / "index.md", self.page(tables, list(figures)))
        if options.write is not None:
            write_text_atomically(options.write, self.page(tables, []))
            if self.keeps:
                keys = {job.key(self.context) for job in jobs}
                own = {key: of for key, of in store.records.items() if key in keys}
                write_kept(options.write.parent / "records" / f"{self.name}.jsonl", own)
        self.show(tables)
        spent = human_seconds(time.monotonic() - started)
        print(f"{spent}; page, figures and CSV files: {page.absolute()}")
        return reached(tables[name] for name in self.goals)

    def page(self, tables: Tables, figures: Sequence[str]) -> str:
        """Return the page."""
        command = f"python -m simulations {self.name}" + " --quick" * self.options.quick
        if "page" in self.text:
            command += " --report" * self.keeps + f" --write {self.text['page']}"
        notes = self.notes({**self.preset.values, **self.words(tables)})
        notes = [*self._open_runs(), *notes]
        return render(self.text, command, notes, self.parts(tables), tables, figures)

    def _open_runs(self) -> list[str]:
        """Return a note of how many replications were not run, and the command that runs them."""
        if all(run == asked for run, asked in self.counts.values()):
            return []
        parts = ", ".join(f"{name} {run:,} of {n:,}" for name, (run, n) in self.counts.items())
        kept = ", and goes on from those of the repository" if self.keeps else ""
        return [
            f"Not all replications were run: {parts}. What has no row, or a dash, was not run; "
            f"`python -m simulations {self.name}` runs what is lacking{kept}."
        ]

    def show(self, tables: Tables) -> None:
        """Print what was expected, and the tables of the page."""
        for name, text in self.goals.items():
            print_table(text, tables[name])
        for part in self.parts(tables):
            for name, caption in part.tables.items():
                if name in tables:
                    print_table(caption or part.heading, tables[name])


def print_table(title: str, frame: pd.DataFrame) -> None:
    """Print a table with its index: with rules and colours on a terminal, plain elsewhere."""
    on_terminal = sys.stdout.isatty()
    # A pipe has no width; wrapped tables could not be read back from a log.
    console = Console(width=None if on_terminal else 160, highlight=False)
    # Of its own, since a table's title is as narrow as the table.
    console.print(Text(title, style="bold"))
    if frame.empty:
        console.print("not run\n")
        return
    table = RichTable()
    for name in [str(name or "") for name in frame.index.names]:
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
