"""The copula study from options to page: run what is open, then tables, figures, one page."""

import logging
import time

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages import human_seconds
from simulations.copula import figures, tables, targets
from simulations.copula.criteria import MEASURES
from simulations.copula.experiments import replicate
from simulations.copula.page import GOALS, TITLES, make_page
from simulations.copula.preset import Preset
from simulations.data import read_paper
from simulations.replications import Store, run_all
from simulations.study import Options, Outcome, Output, print_table

logger = logging.getLogger("flwr_vertical")

Papers = dict[str, list[pd.DataFrame]]
PAPERS = {"complete": (1, 2, 3), "missing": (4, 5, 6, 7), "sme": (9,)}


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations copula --help``."""
    started = time.monotonic()
    preset = Preset.load(options)
    papers = {
        part: [read_paper("copula", f"table{number}") for number in numbers]
        for part, numbers in PAPERS.items()
    }
    output = Output(options.output)
    # A line for each run that leaves samples out would bury the progress.
    logger.setLevel(logging.ERROR)
    frame = run_all(
        preset.jobs(), replicate, None,
        store=Store(output.folder / "replications.csv"), context=f"copula {preset.version}",
        title="copula study", workers=options.workers,
    )  # fmt: skip
    logger.setLevel(logging.INFO)
    found = make_tables(frame, papers, preset)
    output.tables(found)
    drawn = {
        name: output.figure(name, figure) for name, figure in make_figures(found, papers).items()
    }
    page = output.page(make_page(found, drawn, preset))
    for name, title in TITLES.items():
        print_table(title, found[name])
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    return Outcome(targets.reached(*(found[name] for name in GOALS)), found, page)


def make_tables(frame: pd.DataFrame, papers: Papers, preset: Preset) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    complete = tables.means(frame, "complete", tables.COMPLETE)
    missing = tables.means(frame, "missing", tables.MISSING)
    paper = tables.paper_complete(papers["complete"])
    gaps = tables.paper_missing(papers["missing"])
    spread = tables.spread_over_epsilon(complete, preset["complete"]["epsilons"])
    attacks = tables.attacks(frame)
    found = {
        "target_unprotected": targets.unprotected(complete, paper, preset["complete"]),
        "target_synthetic": targets.synthetic(complete, paper, preset["complete"]),
        "target_ranking": targets.ranking(missing, gaps, preset["missing"]),
        "target_attacks": targets.attacked(attacks, preset["attacks"]),
        "effort": tables.effort(complete),
        "table9": tables.sme(frame, papers["sme"][0]),
        "attacks": attacks,
        "paper_implies": tables.what_the_paper_implies(paper, preset["design"]),
        "complete_means": complete,
        "missing_means": missing,
    }
    for number, measure in enumerate(MEASURES, start=1):
        found[f"table{number}"] = tables.beside(spread, paper, measure, tables.COMPLETE)
        found[f"tables4to7_{measure}"] = tables.by_mechanism(
            tables.beside(missing, gaps, measure, tables.MISSING)
        )
    return found


def make_figures(found: dict[str, pd.DataFrame], papers: Papers) -> dict[str, Figure]:
    """Return the study's figures by the name of their PNG file."""
    return {
        "complete": figures.complete_figure(
            found["complete_means"], tables.paper_complete(papers["complete"])
        ),
        "missing": figures.missing_figure(
            found["missing_means"], tables.paper_missing(papers["missing"])
        ),
        "sme": figures.sme_figure(found["table9"]),
    }
