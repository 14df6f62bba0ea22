"""The FALSE-VFL study: both variants and four baselines, beside the paper's tables."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from simulations.data import DATA_SETS, Sources, read_paper
from simulations.false_vfl import figures, tables, targets
from simulations.false_vfl.preset import Preset
from simulations.false_vfl.runs import Shared, replicate
from simulations.page import Part, Tables
from simulations.replications import Job, Store
from simulations.study import Study

TRAININGS = {"MCAR 2": 12, "MCAR 5": 13, "MAR 1": 14, "MAR 2": 15, "MNAR 7": 16, "MNAR 9": 17}


def table_of(train: str) -> str:
    """Return the name of the table of a training."""
    return f"table{TRAININGS[train]}" if train in TRAININGS else f"table {train}"


class FalseVFLStudy(Study):
    """Isolet and Fashion-MNIST, and HAPT and ModelNet10 where a user has them."""

    name = "false_vfl"
    preset_class = Preset
    preset: Preset
    shared: Shared
    replicate = staticmethod(replicate)

    def prepare(self) -> Shared:
        """Return what every run reads; data sets are loaded where they are used."""
        return Shared(
            Sources.find(self.options.data),
            self.options.output / "checkpoints",
            self.preset["study"]["checkpoint_every"],
            self.context,
        )

    def chosen(self) -> list[Job]:
        """Return the runs that the options choose."""
        jobs = super().chosen()
        if self.options.quick and not self.options.chosen.get("datasets"):
            return without_absent(jobs, self.shared.sources)
        return jobs

    def compute(self, store: Store) -> None:
        """Run what is open; checkpoints of finished runs go."""
        remove_finished(self.shared.checkpoints, store)
        self.run_jobs(self.chosen(), store, cost=self.preset.minutes)
        remove_finished(self.shared.checkpoints, store)

    def tables(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return Tables 2 and 11 to 18, and what they are compared with."""
        papers = {name: read_paper("false_vfl", name) for name in tables.PAPER}
        found = tables.cells(frame, papers["tables"])
        part, trainings = self.preset["targets"], self.preset["study"]["train"]
        return {
            "cells": found,
            "wins": tables.wins(found),
            "target_accuracy": targets.accuracy(found, part),
            "target_baselines": targets.baselines(found, part),
            "target_ahead": targets.ahead(found, part),
            "table2": tables.gaps(found, papers["table2"]),
            **{
                table_of(train): tables.by_training(found, papers["tables"], train)
                for train in trainings
            },
            "table18": tables.ratios(found, papers["table18"]),
            "table11": tables.beside_minutes(tables.minutes(frame), papers["table11"]),
            "parties": tables.by_parties(frame).sort_index().sort_index(axis=1),
            "choices": choices(),
        }

    def figures(self, frame: pd.DataFrame, found: Tables) -> dict[str, Figure]:
        """Return Figures 2 and 4 to 8."""
        drawn = {}
        for dataset in self._datasets(found):
            drawn[f"tests_{dataset}"] = figures.tests_figure(found["cells"], dataset)
            drawn[f"parties_{dataset}"] = figures.parties_figure(found["parties"], dataset)
        return drawn

    def _datasets(self, found: Tables) -> list[str]:
        return list(dict.fromkeys(found["cells"].index.get_level_values("dataset")))

    def parts(self, found: Tables) -> Sequence[Part]:
        """Return the sections of the page."""
        drawn = [f"{kind}_{d}" for d in self._datasets(found) for kind in ("tests", "parties")]
        others = [train for train in self.preset["study"]["train"] if train not in TRAININGS]
        return [
            Part("Figures 2 and 4 to 8", figures=drawn),
            *super().parts(found),
            *(Part(f"Trained under {train}", tables={table_of(train): ""}) for train in others),
        ]


def choices() -> pd.DataFrame:
    """Return the recorded search over choices: ``search.csv`` beside this module."""
    path = Path(__file__).with_name("search.csv")
    frame = pd.read_csv(path)
    keys = ["candidate", "regime", "variant", "mixed", "pretrain_epochs", "epochs", "seed"]
    names = list(frame)
    return frame.set_index(keys)[names[names.index("loss") : names.index("mean") + 1]]


def without_absent(jobs: list[Job], sources: Sources) -> list[Job]:
    """Leave out data sets that are not here, with a line in the log, but the last one."""
    for dataset in dict.fromkeys(job.settings["dataset"] for job in jobs):
        try:
            for file in DATA_SETS[dataset].files:
                sources.path(file)
        except DataError as error:
            others = [job for job in jobs if job.settings["dataset"] != dataset]
            if not others:
                raise
            logger.warning("%s is left out: %s", dataset, error)
            jobs = others
    return jobs


def remove_finished(folder: Path, store: Store) -> None:
    """Delete checkpoints of runs that are finished."""
    for path in folder.glob("*.pt"):
        if path.stem in store.found:
            path.unlink(missing_ok=True)


open_study = FalseVFLStudy
