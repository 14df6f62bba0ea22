"""What a pipeline leaves behind: the results of its stages, in one folder and on one page."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pandas as pd

from flwr_vertical import Result
from flwr_vertical.pages.page import Section, dataframe_html, human_bytes, human_seconds

_FOLDER = "stages"


@dataclass(eq=False, repr=False)
class PipelineResult(Result):
    """The result of a pipeline: that of its last fit, and those of all stages.

    Parameters
    ----------
    stages : dict of str to Result
        By the stage's name, in their order.
    """

    stages: dict[str, Result] = field(default_factory=dict)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save as `Result.save` does, and each stage's result in a folder under ``stages``."""
        where = super().save(folder)
        for number, (name, found) in enumerate(self.stages.items(), 1):
            found.save(where / _FOLDER / f"{number}-{name}")
        return where

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load what `save` wrote; raises as `Result.load`."""
        found = super().load(folder)
        assert isinstance(found, cls)
        paths = (Path(folder) / _FOLDER).glob("*-*")
        for path in sorted(paths, key=lambda path: int(path.name.partition("-")[0])):
            found.stages[path.name.partition("-")[2]] = Result.load(path)
        return found

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write one page with all stages; returns its path, see `Result.report`."""
        from flwr_vertical.reports.notebook import ReportPath
        from flwr_vertical.reports.report import write_report

        # What a stage shows is shown with it.
        whole = replace(
            self, coefficients=None, predictions=None, evaluation=None, history=[], figures={},
            frames={}, importance=None, contributions=None,
        )  # fmt: skip
        path: Path = ReportPath(write_report(whole, Path(folder), [*self._sections()]))
        return path

    def summary(self) -> pd.DataFrame:
        """Return a table of the stages: strategy, rounds, bytes sent by the parties, seconds."""
        rows = {
            name: {
                "strategy": found.strategy,
                "rounds": found.ledger.rounds,
                "bytes_up": found.ledger.bytes_up,
                "seconds": found.ledger.seconds,
            }
            for name, found in self.stages.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("stage")

    def _sections(self) -> Iterator[Section]:
        from flwr_vertical.reports.report import stage_sections

        formats = {"bytes_up": human_bytes, "seconds": human_seconds}
        table = dataframe_html(self.summary(), formats=formats)
        caption = "In their order, over one alignment; what each found follows."
        yield Section("Stages", table, caption)
        for name, found in self.stages.items():
            for section in stage_sections(found):
                yield section._replace(heading=f"{name}: {section.heading}")

    def __str__(self) -> str:
        lines = [f"{name}: {found!r}" for name, found in self.stages.items()]
        return super().__str__() + "\nstages    " + ("\n" + " " * 10).join(lines)
