"""The FALSE-VFL study from options to pages: run what is open, then tables, figures, pages."""

import logging
import time
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.pages import human_seconds
from flwr_vertical.results import write_text_atomically
from simulations.data import DATA_SETS, Sources, read_paper
from simulations.false_vfl import figures, tables, targets
from simulations.false_vfl.page import GOALS, as_markdown, choices, make_page, table_of, titles
from simulations.false_vfl.preset import Preset
from simulations.false_vfl.runs import Shared, replicate
from simulations.kept import as_kept, keep_beside, start_from
from simulations.replications import FolderStore, Job, run_all, to_frame
from simulations.study import Options, Outcome, Output, print_table

logger = logging.getLogger("flwr_vertical")

Tables = dict[str, pd.DataFrame]


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations false_vfl --help``."""
    started = time.monotonic()
    preset = Preset.load(options)
    papers = {name: read_paper("false_vfl", name) for name in tables.PAPER}
    jobs = preset.jobs(options)
    output = Output(options.output)
    store = FolderStore(output.folder / "records", start_from("false_vfl", options))
    if not options.report:
        shared = Shared(
            Sources.find(options.data),
            output.folder / "checkpoints",
            preset["study"]["checkpoint_every"],
            preset.context,
        )
        if options.quick and not options.chosen.get("datasets"):
            jobs = without_absent(jobs, shared.sources)
        remove_finished(shared.checkpoints, store)
        run_all(
            jobs, replicate, shared,
            store=store, context=preset.context, title="FALSE-VFL study",
            workers=options.workers, cost=preset.minutes,
        )  # fmt: skip
        remove_finished(shared.checkpoints, store)
    every = preset.jobs(everything=True)
    frame = as_kept(to_frame(every, store, preset.context))
    if frame.empty:
        raise ConfigError(
            f"{store.path} has no runs with these settings; run some, without --report, or name "
            "the folder that has them by --output"
        )
    found = make_tables(frame, papers, preset)
    output.tables(found)
    drawn = {name: output.figure(name, figure) for name, figure in make_figures(found).items()}
    page = output.page(make_page(found, drawn, preset))
    for name, title in titles(found, preset).items():
        print_table(title, found[name])
    if options.write is not None:
        write_text_atomically(options.write, as_markdown(found, preset, options.quick))
        keep_beside(options.write, "false_vfl", store, every, preset.context)
        logger.info("wrote %s", options.write.absolute())
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    return Outcome(targets.reached(*(found[name] for name in GOALS)), found, page)


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


def remove_finished(folder: Path, store: FolderStore) -> None:
    """Delete checkpoints of runs that are finished."""
    for path in folder.glob("*.pt"):
        if path.stem in store.found:
            path.unlink(missing_ok=True)


def make_tables(frame: pd.DataFrame, papers: Tables, preset: Preset) -> Tables:
    """Return the study's tables by the name of their CSV file."""
    found = tables.cells(frame, papers["tables"])
    part = preset["targets"]
    return {
        "cells": found,
        "wins": tables.wins(found),
        "target_accuracy": targets.accuracy(found, part),
        "target_baselines": targets.baselines(found, part),
        "target_ahead": targets.ahead(found, part),
        "table2": tables.gaps(found, papers["table2"]),
        **{table_of(train): tables.by_training(found, train) for train in preset["study"]["train"]},
        "table18": tables.ratios(found, papers["table18"]),
        "table11": tables.minutes(frame, papers["table11"]),
        "parties": tables.by_parties(frame, tables.better_forms(frame)),
        "choices": choices(),
    }


def make_figures(found: Tables) -> dict[str, Figure]:
    """Return the study's figures by the name of their PNG file."""
    drawn = {}
    for dataset in dict.fromkeys(found["cells"].index.get_level_values("dataset")):
        drawn[f"tests_{dataset}"] = figures.tests_figure(found["cells"], dataset)
        drawn[f"parties_{dataset}"] = figures.parties_figure(found["parties"], dataset)
    return drawn
