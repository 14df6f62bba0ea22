"""The study's two pages: HTML with figures, and the documentation's, of the same tables."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page
from simulations.attacks.docs import markdown_table
from simulations.false_vfl.preset import Preset
from simulations.false_vfl.targets import reached
from simulations.markdown import items
from simulations.study import FAIL, PASS
from simulations.vfem.page import marked

PAPER = (
    "Hong, Park and Hwang, deep latent variable model based vertical federated learning with "
    "flexible alignment and labeling scenarios (FALSE-VFL)"
)
GOALS = ("target_accuracy", "target_baselines", "target_ahead")
COMMAND = "python -m simulations false_vfl --report --write docs/false-vfl-study.md"

_BRACKETS = "in brackets the paper's and the difference; * without SimSiam"
# What is shown, in this order; Tables 12 to 17 stand between, one for each training.
BEFORE = {
    "wins": "Cells in which a variant of FALSE-VFL is best (paper: 160 of 168)",
    "target_accuracy": "Target: FALSE-VFL minus the paper, in points (at least)",
    "target_baselines": "Target: baselines minus the paper, in points (at least)",
    "target_ahead": "Target: FALSE-VFL above the best baseline, in percent",
    "table2": "Table 2: best FALSE-VFL minus best baseline, in points",
}
AFTER = {
    "table18": "Table 18: trained under MCAR 5, in percent of MCAR 2 (the paper's in brackets)",
    "table11": "Table 11: minutes of a run, on one core",
    "parties": "Accuracy by how many parties hold a test sample, all tests together",
    "choices": "Choices that the paper leaves open: accuracy on speakers held out of training",
}
TRAININGS = {"MCAR 2": 12, "MCAR 5": 13, "MAR 1": 14, "MAR 2": 15, "MNAR 7": 16, "MNAR 9": 17}


def table_of(train: str) -> str:
    """Return the name of the table of a training."""
    return f"table{TRAININGS[train]}" if train in TRAININGS else f"table {train}"


def titles(found: Mapping[str, pd.DataFrame], preset: Preset) -> dict[str, str]:
    """Return the titles of the tables that have something in them, in order."""
    middle = {
        table_of(train): f"Table {TRAININGS.get(train, '')}: trained under {train}; {_BRACKETS}"
        for train in preset["study"]["train"]
    }
    return {name: text for name, text in (BEFORE | middle | AFTER).items() if len(found[name])}


def make_page(
    found: Mapping[str, pd.DataFrame], pictures: Mapping[str, bytes], preset: Preset
) -> str:
    """Return the HTML page."""
    sections = [Section("How to read it", [bullet_list(notes(preset))])]
    sections += [
        Section(title, [marked(dataframe_html(found[name], max_rows=400))])
        for name, title in titles(found, preset).items()
    ]
    if pictures:
        sections.insert(1, Section("Figures 2 and 4 to 8", list(pictures.values())))
    return render_page(
        "FALSE-VFL and its baselines",
        sections,
        subtitle=PAPER,
        facts={"targets": "all met" if reached(*(found[n] for n in GOALS)) else "not all met"},
        kicker="flwr-vertical · study",
    )


def as_markdown(found: Mapping[str, pd.DataFrame], preset: Preset, quick: bool) -> str:
    """Return the documentation's page."""
    command = COMMAND + (" --quick" if quick else "")
    parts = [
        "# FALSE-VFL and its baselines, beside the paper\n",
        f"<!-- Written by `{command}`; do not edit. -->\n",
        items(notes(preset)),
    ]
    for name, title in titles(found, preset).items():
        parts += [f"## {title}\n", markdown_table(found[name])]
    return "\n".join(parts)


def notes(preset: Preset) -> list[str]:
    """Return what a reader must know of the numbers."""
    part = preset["targets"]
    data = preset["isolet"]["data"]
    return [
        f"{PAPER}. Accuracies in percent, mean ± standard deviation over the seeds that were run "
        "(column seeds; the paper has five). On Isolet's 1,559 test samples one run has a standard "
        "error of 0.9 points by the sampling of these alone.",
        "Runs are in one process, where all columns lie together: the same computation as that of "
        "server and parties, whose gradients equal it to 1e-5 (tests/strategies/). No message is "
        "sent, so times are of the computation, on one core of a machine that did other work too.",
        f"Isolet: {data['labels']} labels, {data['aligned']} of them of samples that all parties "
        "hold; eight parties, 77 columns each. Test samples are the data set's own. Which samples "
        "have labels, which blocks are missing and all initial weights follow from the seed.",
        "Baselines run with and without SimSiam before; the better mean of the two is shown, with "
        "an asterisk where that is the one without, as in the paper; column forms says how many of "
        "the two have been run. Counts and gaps are of cells with all four baselines, means over "
        "whatever seeds each method has so far. Vanilla VFL "
        "and FedHSSL train on the aligned labelled samples only; a party that lacks a test sample "
        "counts as zeros.",
        "The paper's Tables 14 and 15 are titled MAR 0 and MAR 1, and read here as MAR 1 and MAR "
        "2, as its text and its columns have them.",
        "The paper names no width, depth, activation or bound of a variance for tables: see the "
        "last table, and simulations/false_vfl/search.md. Images have one mean and deviation for "
        "all pixels; baselines have multilayer perceptrons there too, the paper's have ResNet-18.",
        f"Targets, on Isolet: FALSE-VFL at most {part['within']:g} points below the paper under "
        "any test mechanism and above it on average; baselines at most "
        f"{part['baselines_within']:g} below; FALSE-VFL above the best baseline in "
        f"{part['best_in']} of 28 cells. {PASS} or {FAIL} follows from the numbers; a cell that "
        "was not run is not there.",
    ]


def choices() -> pd.DataFrame:
    """Return the recorded search over choices: ``search.csv`` beside this module."""
    path = Path(__file__).with_name("search.csv")
    frame = pd.read_csv(path)
    keys = ["candidate", "regime", "variant", "mixed", "pretrain_epochs", "epochs", "seed"]
    names = list(frame)
    return frame.set_index(keys)[names[names.index("loss") : names.index("mean") + 1]]
