"""The FALSE-VFL study from options to page: run what is open, then tables, figures, one page."""

import logging
import time

import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.results import human_seconds
from simulations.data import Sources
from simulations.false_vfl import tables
from simulations.false_vfl.preset import Preset
from simulations.false_vfl.runs import Shared, replicate
from simulations.replications import FolderStore, run_all, to_frame
from simulations.study import Options, Outcome, Output, print_table

logger = logging.getLogger("flwr_vertical")


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations false_vfl --help``."""
    started = time.monotonic()
    preset = Preset.load(options)
    jobs = preset.jobs(options)
    output = Output(options.output)
    store = FolderStore(output.folder / "records")
    checkpoints = output.folder / "checkpoints"
    for path in checkpoints.glob("*.pt"):
        if path.stem in store.found:
            path.unlink()
    if not options.report:
        every = preset["study"]["checkpoint_every"]
        run_all(
            jobs, replicate,
            Shared(Sources.find(options.data), checkpoints, every, preset.context),
            store=store, context=preset.context, title="FALSE-VFL study",
            workers=options.workers, cost=preset.minutes,
        )  # fmt: skip
    frame = to_frame(preset.jobs(), store, preset.context)
    found = {"accuracy": tables.accuracies(frame)}
    output.tables(found)
    for name, table in found.items():
        print_table(name, table)
    spent = human_seconds(time.monotonic() - started)
    page = output.page("")
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    return Outcome(True, found, page)


def find_paper(options: Options) -> dict[str, pd.DataFrame]:
    """Return the paper's tables; none, and a line in the log, where they are not here."""
    try:
        sources = Sources.find(options.data)
        return {name: sources.paper(f"false_vfl_{name}") for name in tables.PAPER}
    except DataError as error:
        if options.data is not None:
            raise
        logger.warning("the paper's numbers are left out: %s", error)
        return {}
