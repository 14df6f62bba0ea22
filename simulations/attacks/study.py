"""The attack suite from options to page: run what is open, then tables and pages."""

import logging
import time
from pathlib import Path

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, human_seconds, render_page
from flwr_vertical.results import write_text_atomically
from simulations.attacks import tables
from simulations.attacks.docs import ATTACKS_IN_WORDS, INTRODUCTION, as_markdown
from simulations.attacks.experiments import replicate
from simulations.attacks.preset import Preset
from simulations.replications import Store, run_all
from simulations.study import FAIL, Options, Outcome, Output, print_table
from simulations.vfem.page import marked

logger = logging.getLogger("flwr_vertical")

TITLES = {
    "targets": "What was aimed at",
    "by_strategy": "The most that any attack finds at default settings (shares of others' cells)",
    "consented": "Exchanges that need every node's consent",
    "rough": "The same, roughly: R squared of others' columns, half of the samples known",
    "labels": "Labels at a party: R squared or AUC from its own columns, and what messages add",
    "routed": "Trees: what sides of splits and gains tell",
    "by_attack": "The most that each attack finds (labels: R squared or AUC gained)",
    "several": "Several runs, and outputs alone",
    "smallest_sets": "Rows of the smallest set whose sums a run opens",
}


def run(options: Options) -> Outcome:
    """Run the suite; see ``python -m simulations attacks --help``."""
    started = time.monotonic()
    preset, output = Preset.load(options), Output(options.output)
    level = logger.level
    logger.setLevel(logging.ERROR)  # a line for each run that leaves samples out
    frame = run_all(
        preset.jobs(), replicate, None,
        store=Store(output.folder / "replications.csv"), context=f"attacks {preset.version}",
        title="attack suite", workers=options.workers,
    )  # fmt: skip
    logger.setLevel(level)
    found = make_tables(frame, preset)
    output.tables(found)
    page = output.page(make_page(found))
    for name, title in TITLES.items():
        print_table(title, found[name])
    if options.write is not None:
        write_docs(options.write, found, tables.refused(frame), options.quick)
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page and CSV files: {page.absolute()}")
    return Outcome(bool((found["targets"]["reached"] != FAIL).all()), found, page)


def make_tables(frame: pd.DataFrame, preset: Preset) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    found, consented = tables.findings(frame, "grid"), tables.findings(frame, "consented")
    return {
        "targets": tables.targets(frame, preset["targets"]),
        "by_strategy": tables.by_strategy(found),
        "consented": tables.by_strategy(consented),
        "rough": tables.rough(frame),
        "labels": tables.labels(frame),
        "routed": tables.routed(frame),
        "by_attack": tables.by_attack(found, consented),
        "several": tables.several(frame),
        "smallest_sets": tables.smallest_sets(frame),
        "findings": pd.concat([found, consented], ignore_index=True),
    }


def make_page(found: dict[str, pd.DataFrame]) -> str:
    """Return the page."""
    notes = [INTRODUCTION, *(f"{name}: {what}" for name, what in ATTACKS_IN_WORDS.items())]
    sections = [
        Section(title, [marked(dataframe_html(found[name], max_rows=400))])
        for name, title in TITLES.items()
    ]
    return render_page(
        "What nodes could compute of what they see",
        [Section("How to read it", [bullet_list(notes)]), *sections],
        facts={"targets": "all met" if (found["targets"]["reached"] != FAIL).all() else "not met"},
        kicker="flwr-vertical · attack suite",
    )


def write_docs(path: Path, found: dict[str, pd.DataFrame], refused: list[str], quick: bool) -> None:
    """Write the documentation's page of attacks."""
    write_text_atomically(path, as_markdown({n: found[n] for n in TITLES}, TITLES, refused, quick))
    logger.info("wrote %s", path.absolute())
