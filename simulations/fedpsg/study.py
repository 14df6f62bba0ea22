"""The FedPSG-AR study from options to page: run what is open, then tables, figures, one page."""

import logging
import time

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.pages import human_seconds
from flwr_vertical.results import write_text_atomically
from simulations.data import Sources, read_paper
from simulations.fedpsg import figures, tables, targets
from simulations.fedpsg.data import NEWS_NAME, Joint, load
from simulations.fedpsg.docs import as_markdown
from simulations.fedpsg.experiments import replicate
from simulations.fedpsg.page import GOALS, TITLES, make_page
from simulations.fedpsg.preset import Preset
from simulations.kept import as_kept, keep_beside, start_from
from simulations.replications import FolderStore, Job, run_all, to_frame
from simulations.study import Options, Outcome, Output, print_table

logger = logging.getLogger("flwr_vertical")

_OPTIONAL = (NEWS_NAME,)


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations fedpsg --help``."""
    started = time.monotonic()
    sources, preset = Sources.find(options.data), Preset.load(options)
    data, absent = load_all(preset, sources)
    papers = [read_paper("fedpsg", f"table{number}") for number in range(1, 8)]
    output = Output(options.output)
    context = f"fedpsg {preset.version}"
    store = FolderStore(output.folder / "records", start_from("fedpsg", options))
    if not options.report:
        # A line for each run that completes samples would bury the progress.
        logger.setLevel(logging.ERROR)
        run_all(
            with_data(preset.chosen(options), data), replicate, data,
            store=store, context=context, title="fedpsg study", workers=options.workers,
        )  # fmt: skip
        logger.setLevel(logging.INFO)
    # Also what earlier runs with other choices left.
    jobs = with_data(preset.jobs(), data)
    frame = as_kept(to_frame(jobs, store, context))
    if frame.empty:
        raise ConfigError(
            f"{store.path} has no runs with these settings; run some, without --report, or name "
            "the folder that has them by --output"
        )
    found = make_tables(frame, papers, preset)
    output.tables(found)
    drawn = {name: output.figure(name, figure) for name, figure in make_figures(frame).items()}
    page = output.page(make_page(found, drawn, preset, absent))
    if options.write is not None:
        write_text_atomically(options.write, as_markdown(found, preset, absent))
        keep_beside(options.write, "fedpsg", store, jobs, context)
        logger.info("wrote %s", options.write.absolute())
    for name, title in TITLES.items():
        print_table(title, found[name])
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    return Outcome(targets.reached(*(found[name] for name in GOALS)), found, page)


def load_all(preset: Preset, sources: Sources) -> tuple[dict[str, Joint], list[str]]:
    """Return the data sets of the preset, and which of the optional ones are not here."""
    data, absent = {}, []
    for name in preset.datasets:
        try:
            data[name] = load(name, sources)
        except DataError as error:
            if name not in _OPTIONAL:
                raise
            logger.warning("%s is left out: %s", name, error)
            absent.append(name)
    return data, absent


def with_data(jobs: list[Job], data: dict[str, Joint]) -> list[Job]:
    """Return the jobs whose data set is here, with its fingerprint among their settings."""
    return [
        Job(job.part, {**job.settings, "data": data[job.settings["dataset"]].fingerprint})
        for job in jobs
        if job.settings["dataset"] in data
    ]


def make_tables(
    frame: pd.DataFrame, papers: list[pd.DataFrame], preset: Preset
) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    paper, goals = tables.paper_errors(papers), preset["targets"]
    every = tables.means(frame, "rows", [*tables.KEYS, "rows"], "rmse")
    # Bank has parts on some of its rows, and parts on all.
    parts = {part: _rows_of(every, preset[part]["rows"]) for part in ("cnum", "imputers")}
    whole = _rows_of(every, {})
    most = max(preset["cnum"]["largest"].values())
    return {
        "target_errors": targets.errors(frame, goals),
        "target_dependence": targets.dependence(frame, goals),
        "target_training": targets.training(frame, goals),
        "tables12": tables.table12(parts["cnum"], paper, most),
        "table3": tables.table3(parts["imputers"], paper),
        "table4": tables.table4(parts["imputers"], paper),
        "table5": tables.table5(parts["imputers"], paper),
        "tables67": tables.table67(whole, paper, preset["methods_compared"]["methods"]),
        "quality": tables.quality_table(frame),
        "attributes": tables.attribute_table(frame, 0.5),
        **{
            f"experiment3_{measure}": tables.downstream_table(frame, measure)
            for measure in ("auc", "acc", "f1")
        },
        "aligned": tables.aligned_table(frame),
        "paired": tables.paired(frame),
        "rmse": every,
    }


def _rows_of(found: pd.DataFrame, rows: dict[str, int]) -> pd.DataFrame:
    """Return the means on so many rows of each data set; 0 = all."""
    chosen = [key[-1] == rows.get(key[0], 0) for key in found.index]
    return found[chosen].droplevel("rows")


def make_figures(frame: pd.DataFrame) -> dict[str, Figure]:
    """Return the study's figures by the name of their PNG file."""
    return {"errors": figures.errors_figure(frame), "aligned": figures.aligned_figure(frame)}
