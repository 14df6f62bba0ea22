"""The VFEM study from options to page: run what is open, then tables, figures, one page."""

import logging
import time

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages import human_seconds
from simulations.data import read_paper
from simulations.replications import Store, run_all
from simulations.study import Options, Outcome, Output, print_table
from simulations.vfem import figures, sme_figures, sme_tables, tables, targets
from simulations.vfem.apart import apart_table, apart_target
from simulations.vfem.correlated import correlated_table, correlated_target
from simulations.vfem.experiments import replicate
from simulations.vfem.methods import STEADIED
from simulations.vfem.missing import calibrate_shared, expected_share
from simulations.vfem.page import GOALS, TITLES, make_page
from simulations.vfem.preset import Preset
from simulations.vfem.sample import by_variable
from simulations.vfem.sme import scales
from simulations.vfem.sme_tables import PAPER_COLUMN

logger = logging.getLogger("flwr_vertical")


def run(options: Options) -> Outcome:
    """Run the study; see ``python -m simulations vfem --help``."""
    started = time.monotonic()
    preset = Preset.load(options)
    papers = [read_paper("vfem", name) for name in ("table2", "table3")]
    output = Output(options.output)
    store = Store(output.folder / "replications.csv")
    context = f"vfem {preset.version}"
    # Time and memory are measured while nothing else runs.
    measured = run_all(
        preset.measured_jobs(), replicate, None,
        store=store, context=context, title="vfem study, SME-like data", workers=0,
    )  # fmt: skip
    others = run_all(
        preset.jobs(), replicate, None,
        store=store, context=context, title="vfem study", workers=options.workers,
    )  # fmt: skip
    frame = pd.concat([measured, others], ignore_index=True)
    logger.info("vfem study: drawing figures")
    found = make_tables(frame, papers, preset)
    output.tables(found)
    drawn = {
        name: output.figure(name, figure)
        for name, figure in make_figures(frame, found, preset).items()
    }
    page = output.page(make_page(found, drawn, preset))
    show(found)
    spent = human_seconds(time.monotonic() - started)
    print(f"{spent}; page, figures and CSV files: {page.absolute()}")
    goals = [found[name] for name in GOALS]
    return Outcome(targets.reached(*goals), found, page)


def show(found: dict[str, pd.DataFrame]) -> None:
    """Print the tables; of the long one, without the paper's columns."""
    for name, title in TITLES.items():
        table = found[name]
        if name == "sme_table3":
            table = table[[column for column in table if not str(column).endswith(PAPER_COLUMN)]]
        print_table(title, table)


def make_tables(
    frame: pd.DataFrame, papers: list[pd.DataFrame], preset: Preset
) -> dict[str, pd.DataFrame]:
    """Return the study's tables by the name of their CSV file."""
    sme = preset["sme"]
    truth, _ = true_values(preset)
    printed = sme_tables.paper_cells(*papers)
    found = sme_tables.estimates(frame)
    summary = sme_tables.summary(frame, papers)
    cells = frame[(frame["part"] == "sme") & (frame["metric"] == "complete cases")]
    rates = [float(party["missing"]) for party in sme["parties"].values()]
    counts = {
        "rows": sme["rows"],
        "complete cases": int(cells["value"].iloc[0]),
        "independent": round(expected_share(rates, 0.0) * sme["rows"], 1),
        "shared": calibrate_shared(rates, sme["complete_cases"] / sme["rows"]),
    }
    parting = tables.inference(frame, "parting")
    correlated = correlated_table(frame)
    apart = apart_table(frame)
    return {
        "target_apart": apart_target(apart, preset["apart"]),
        "apart": apart,
        "target_correlated": correlated_target(correlated, preset["correlated"]),
        "correlated": correlated,
        "target_ahead": targets.ahead(frame, preset["finite"]["target_from"]),
        "target_ahead_prior": targets.ahead(frame, preset["finite"]["target_from"], STEADIED),
        "finite_coefficients": tables.finite(frame, "coefficients"),
        "finite_prediction": tables.finite(frame, "prediction"),
        "finite_effort": tables.effort(frame),
        "target_intervals": targets.intervals(frame, preset["inference"]),
        "inference": tables.inference(frame, "inference"),
        "parting": tables.over_parties(parting),
        "parting_by_party": parting,
        "convergence": tables.convergence(frame),
        "target_cost": targets.cost(summary, sme),
        "sme_summary": summary,
        "sme_table3": sme_tables.like_table3(found, truth, printed),
        "sme_data": sme_tables.data_check(sme, counts),
        "figure4_splits": sme_tables.splits(frame),
        "sme_repeats": sme_tables.repeats(frame),
    }


def make_figures(
    frame: pd.DataFrame, found: dict[str, pd.DataFrame], preset: Preset
) -> dict[str, Figure]:
    """Return the study's figures by the name of their PNG file."""
    truth, scale = true_values(preset)
    goals = preset["inference"]
    return {
        "finite": figures.rates_figure(
            {
                "coefficient RMSE": found["finite_coefficients"],
                "prediction error": found["finite_prediction"],
            }
        ),
        "coverage": figures.coverage_figure(
            found["inference"], goals["coverage"], goals["se_within"]
        ),
        "parting": figures.parting_figure(found["parting"]),
        "convergence": figures.convergence_figure(found["convergence"]),
        "sme_forest": sme_figures.forest_figure(sme_tables.estimates(frame), truth, scale),
        "figure4_boxes": sme_figures.boxes_figure(
            {
                "prediction error on complete cases": sme_tables.runs(
                    frame, "splits", "prediction"
                ),
                "coefficient RMSE, standard units": sme_tables.runs(
                    frame, "splits", "coefficients"
                ),
            }
        ),
    }


def true_values(preset: Preset) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return the SME-like data's coefficients and scales, index (party, variable)."""
    parties = preset["sme"]["parties"]
    names = {party: list(values["variables"]) for party, values in parties.items()}
    truth = [value for values in parties.values() for value in values["coefficients"]]
    return by_variable(truth, names), by_variable(scales(preset["sme"]), names)
