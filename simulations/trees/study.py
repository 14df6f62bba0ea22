"""The study of trees from options to pages: run what is open, then tables and pages."""

import logging
import time

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.results import write_text_atomically
from simulations.data import Sources
from simulations.fedpsg.data import Joint
from simulations.kept import keep_beside, start_from
from simulations.replications import FolderStore, Job, run_all, to_frame
from simulations.study import Options, Outcome, Output, print_tables
from simulations.trees import own, tables
from simulations.trees.data import load
from simulations.trees.experiments import replicate
from simulations.trees.page import GOALS, TITLES, as_markdown, make_page
from simulations.trees.preset import Preset

logger = logging.getLogger("flwr_vertical")


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations trees --help``."""
    if options.own:
        return own.run(options)
    started = time.monotonic()
    preset, output = Preset.load(options), Output(options.output)
    sources = Sources.find(options.data)
    names = dict.fromkeys(job.settings["dataset"] for job in preset.jobs())
    data = {name: load(name, sources) for name in names}
    context = f"trees {preset.version}"
    store = FolderStore(output.folder / "records", start_from("trees", options))
    if not options.report:
        # A line for each run about columns of few values would bury the progress.
        logger.setLevel(logging.ERROR)
        run_all(
            with_data(preset.chosen(options), data), replicate, data,
            store=store, context=context, title="study of trees", workers=options.workers,
        )  # fmt: skip
        logger.setLevel(logging.INFO)
    jobs = with_data(preset.jobs(), data)
    frame = to_frame(jobs, store, context)
    if frame.empty:
        raise ConfigError(
            f"{store.path} has no runs with these settings; run some, without --report, or name "
            "the folder that has them by --output"
        )
    found = make_tables(frame, preset)
    output.tables(found)
    page = output.page(make_page(found, preset))
    if options.write is not None:
        write_text_atomically(options.write, as_markdown(found, preset))
        keep_beside(options.write, "trees", store, jobs, context)
        logger.info("wrote %s", options.write.absolute())
    print_tables(TITLES, found, page, started)
    return Outcome(tables.reached(*(found[name] for name in GOALS)), found, page)


def with_data(jobs: list[Job], data: dict[str, Joint]) -> list[Job]:
    """Return the jobs with the fingerprints of their data among their settings."""
    return [
        Job(job.part, {**job.settings, "data": data[job.settings["dataset"]].fingerprint})
        for job in jobs
    ]


def make_tables(frame: pd.DataFrame, preset: Preset) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    return {
        "pooled": tables.pooled(frame, preset["targets"]["within"]),
        "margins": tables.margins(frame),
        "blocks": tables.blocks(frame),
        "both": tables.blocks(frame, "AUC, both parties"),
        "a_only": tables.blocks(frame, "AUC, party a only"),
        "seconds": tables.seconds(frame),
    }
