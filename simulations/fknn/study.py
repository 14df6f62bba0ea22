"""The FKNN study from options to page: run what is open, then tables, figures, one page."""

import logging
import time

import pandas as pd

from flwr_vertical.pages import human_seconds
from simulations.data import Sources, load_motor, read_paper
from simulations.fknn import figures, tables
from simulations.fknn.experiments import replicate
from simulations.fknn.page import make_page
from simulations.fknn.preset import SCOPES, Preset
from simulations.fknn.regression import cross_validation, regression_table
from simulations.replications import Store, run_all
from simulations.study import Options, Outcome, Output, beside_paper, print_table

logger = logging.getLogger("flwr_vertical")

READING_TITLES = {
    "strong": "usual local imputers",
    "label": "usual ones, using the label too",
    "printed": "as the paper's numbers suggest",
}
REGRESSION_NAMES = {"A": "figure11_regression", "A and B": "figure15_regression"}


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations fknn --help``."""
    started = time.monotonic()
    data, preset = load_motor(Sources.find(options.data)), Preset.load(options)
    papers = {name: read_paper("fknn", name) for name in ("table3", "table4", "table5")}
    output = Output(options.output)
    frame = run_all(
        preset.jobs(),
        replicate,
        data,
        store=Store(output.folder / "replications.csv"),
        context=f"{data.fingerprint} {preset.version}",
        title="fknn study",
        workers=options.workers,
    )
    logger.info("fknn study: drawing figures")
    paper = {name: tables.paper_table(papers[name]) for name in ("table3", "table4")}
    found = make_tables(frame, papers, preset)
    found["section42_regression"] = cross_validation(data)
    output.tables(found)
    pictures = {
        "figure4_imputed": figures.imputed_figure(data, preset),
        "figures5-7_runs": figures.runs_figure(frame, paper["table3"]),
        "figure8_rmse": figures.table4_figure(
            {title: found[f"table4_{name}"] for name, title in READING_TITLES.items()},
            paper["table4"],
        ),
        "figure11_bars": figures.bars_figure(found["figure11_regression"]),
        "figures12-14_boxes": figures.box_figure(frame, "A"),
        "figure15_bars": figures.bars_figure(found["figure15_regression"]),
        "figures16-18_boxes": figures.box_figure(frame, "A and B"),
    }
    drawn = {name: output.figure(name, figure) for name, figure in pictures.items()}
    page = output.page(make_page(found, paper, drawn, preset))
    show(found, paper)
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    return Outcome(tables.reached(found["targets"]), found, page)


def make_tables(
    frame: pd.DataFrame, papers: dict[str, pd.DataFrame], preset: Preset
) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    paper4 = tables.paper_table(papers["table4"])
    found = {"table3": tables.means(frame, "table3")[list(tables.TABLE3)]}
    for reading in READING_TITLES:
        found[f"table4_{reading}"] = tables.table4(frame, reading)
    found["targets"] = tables.targets(frame, paper4, preset.target)
    found["table4_stability"] = tables.stability(frame, paper4)
    found["table4_settings"] = tables.variants(frame, paper4)
    found["table4_closeness"] = tables.closeness(frame, paper4)
    found["table4_rows"] = tables.table4(frame, "strong", "rows")
    found["table5"] = tables.lossless(frame, papers["table5"])
    for scope in SCOPES:
        found[REGRESSION_NAMES[scope]] = regression_table(frame, scope)
    return found


def show(found: dict[str, pd.DataFrame], paper: dict[str, pd.DataFrame]) -> None:
    """Print the tables, the paper's numbers in parentheses."""
    print_table(
        "Table 3: RMSE of removed cells (in parentheses: the paper's)",
        beside_paper(found["table3"], paper["table3"]),
    )
    for reading, title in READING_TITLES.items():
        print_table(
            f"Table 4, {title}: RMSE of removed cells (in parentheses: the paper's)",
            beside_paper(found[f"table4_{reading}"], paper["table4"]),
        )
    print_table("Targets of Table 4", found["targets"])
    print_table("FKNN over more runs", found["table4_stability"])
    print_table("FKNN with other settings", found["table4_settings"])
    print_table(
        "Distance of each reading to the paper's Table 4 (RMS over missing rates)",
        found["table4_closeness"],
    )
    print_table("Table 5: federated against centralised", found["table5"].T)
    for scope, name in REGRESSION_NAMES.items():
        print_table(f"Regression of motor_speed, cells of {scope} missing", found[name])
