"""The study's pages: one in HTML, one of the documentation."""

from collections.abc import Mapping

import pandas as pd

from flwr_vertical.pages import Section, bullet_list, dataframe_html, render_page
from simulations.attacks.docs import markdown_table
from simulations.markdown import items
from simulations.trees.preset import Preset
from simulations.trees.tables import reached
from simulations.vfem.page import marked

COMMAND = "python -m simulations trees --report --write docs/trees-study.md"
GOALS = ("pooled", "margins")
TITLES = {
    "pooled": "Against scikit-learn on the pooled table, in the same bins",
    "margins": "Bank, missing blocks: AUC of trees by pattern less that of others",
    "blocks": "Bank, missing blocks: AUC of all samples without a label",
    "both": "The same, samples that both parties hold",
    "a_only": "The same, samples that party a alone holds",
    "seconds": "Processor seconds of a federated fit, in one process",
}

Tables = Mapping[str, pd.DataFrame]


def notes(preset: Preset) -> list[str]:
    """Return what a reader must know."""
    booster, pooled, blocks = preset["booster"], preset["pooled"], preset["blocks"]
    trees = ", ".join(f"{name} {count}" for name, count in pooled["trees"].items())
    return [
        f"Depth {booster['max_depth']}, {booster['n_bins']} bins, at least {booster['min_child']} "
        f"samples in a leaf, rate {booster['learning_rate']:g}, no early stopping. Iterations: "
        f"{trees}; with missing blocks {blocks['trees']}.",
        "Two parties hold the columns; levels are integer codes in the order of their names. A "
        f"share of {pooled['test']:g} of the samples ({blocks['test']:g} with missing blocks) has "
        "no label and is judged; seeds draw these samples and what is missing.",
        "RMSE is in units of the labels' standard deviation. Differences are paired by seed. "
        "Trees of small tables differ by ties: scikit-learn compares gains in float32 sums and "
        "takes the first of equal ones by another rule, so single splits differ, and with "
        "300 or fewer samples to judge the figures with them. The federated trees are those of a "
        "central booster with the same tie rule (tests/strategies/test_trees_oracle.py).",
        "Histograms are open in most runs, which are cheaper; hidden ones grow the same trees but "
        "for gains closer than rounding.",
        "'one model of all samples': scikit-learn on both parties' columns, NaN where b lacks "
        "them, which is what the federated booster grows by default. 'trees by pattern': "
        "patterns=3. 'two models': "
        "scikit-learn on the samples that both hold, and on party a's columns for the others. "
        "'intersection only' predicts these others with b's columns missing. 'zeros' "
        "and 'donors' complete b's table first; 'donors' has the mean of the five nearest "
        "samples by a's columns, which is what FKNN imputes here (a test compares the two). "
        "'party b alone' gives samples that b lacks the same score.",
        "Trees by pattern were chosen on Bank with other draws (seeds 10 and 11) of what is "
        "missing and what is judged than those of this page, beside shared trees, boosting in "
        "stages (a's columns first), and a's trees that both ensembles build on.",
        "LASER-VFL: "
        + ", ".join(f"{name} {value}" for name, value in preset["laser"].items())
        + ", numbers standardised, no pretraining.",
        f"Processor seconds of the kept records: {preset['kept']['machine']}. On an idle machine "
        "they are fewer.",
        "What has no row, or 'not run', was not run: the command without --report runs it, and "
        "goes on from what is there.",
    ]


def make_page(found: Tables, preset: Preset) -> str:
    """Return the HTML page."""
    sections = [Section("How", [bullet_list(notes(preset))], "")]
    sections += [
        Section(title, [marked(dataframe_html(found[name], max_rows=200))], "")
        for name, title in TITLES.items()
        if len(found[name])
    ]
    goals = [found[name] for name in GOALS]
    return render_page(
        "Vertical boosting",
        sections,
        subtitle="Beside a central booster, and with blocks missing",
        facts={"targets": "all met" if reached(*goals) else "not all met"},
        kicker="flwr-vertical · study",
    )


def as_markdown(found: Tables, preset: Preset) -> str:
    """Return the documentation's page."""
    parts = [
        "# Vertical boosting beside a central booster, and with blocks missing\n",
        f"<!-- Written by `{COMMAND}`; do not edit. -->\n",
        items(notes(preset)),
    ]
    for name, title in TITLES.items():
        if len(found[name]):
            parts += [f"## {title}\n", markdown_table(found[name])]
    return "\n".join(parts)
