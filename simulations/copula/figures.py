"""Figures of the study."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages.figures import INK, colour, grid_lines, label, legend, new_figure
from simulations.copula.mechanisms import MECHANISMS
from simulations.copula.methods import FEDERATED, FRESH, UNPROTECTED
from simulations.copula.tables import TITLES, by_mechanism, order
from simulations.figures import line
from simulations.page import matching, select

_LINES = ("VFL-ADMM-DP", "VCDS", "EVCDS", "EVCDS" + FRESH)


def complete_figure(ours: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Each measure against the number of rows at the smallest epsilon; the paper's dashed."""
    models = list(dict.fromkeys(ours.index.get_level_values("model")))
    figure, axes = new_figure(2.5 * len(models), len(models), len(TITLES))
    smallest = min(e for e in ours.index.get_level_values("epsilon") if e > 0)
    for i, model in enumerate(models):
        for j, (measure, title) in enumerate(TITLES.items()):
            ax = axes[i * len(TITLES) + j]
            for number, name in enumerate([FEDERATED, *_LINES]):
                epsilon = 0.0 if name in UNPROTECTED else smallest
                own = select(ours[measure], model=model, epsilon=epsilon, method=name)
                line(ax, own.index.get_level_values("rows"), own, number, name)
                where = {"metric": measure, "model": model, "epsilon": smallest, "method": name}
                printed = matching(paper, **where).set_index("rows")["value"]
                ax.plot(printed.index, printed, "--", color=colour(number), linewidth=1)
            last = i == len(models) - 1
            label(ax, f"{title}, {model}", "rows" if last else "")
            grid_lines(ax)
    legend(axes[0], loc="best")
    return figure


def missing_figure(ours: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """G-means of every method by mechanism at the largest number of rows; the paper's as bars."""
    rows = max(ours.index.get_level_values("rows"))
    models = list(dict.fromkeys(ours.index.get_level_values("model")))
    chosen = by_mechanism(select(ours, rows=rows)).droplevel("rows")
    table = chosen["g_means"].unstack("method")
    mechanisms = [name for name in MECHANISMS if name in table.index.get_level_values("mechanism")]
    names = order([str(name) for name in table])
    figure, axes = new_figure(2.9 * len(models), len(models), 1)
    for ax, model in zip(axes, models, strict=True):
        for number, name in enumerate(names):
            values = select(table, model=model).droplevel("model")[name].reindex(mechanisms)
            places = np.arange(len(mechanisms)) + 0.09 * (number - (len(names) - 1) / 2)
            ax.plot(places, values, "o", color=colour(number), label=name, markersize=5)
            printed = matching(paper, metric="g_means", model=model, rows=rows, method=name)
            bars = printed.groupby("mechanism")["value"].first().reindex(mechanisms)
            ax.plot(places, bars, "_", color=INK, markersize=8)
        ax.set_xticks(np.arange(len(mechanisms)), mechanisms)
        label(ax, f"G-means, {model}, {rows:,} rows (bars: the paper's)")
        grid_lines(ax)
    legend(axes[0], loc="best", ncols=3)
    return figure


def sme_figure(table: pd.DataFrame) -> Figure:
    """Recall and AUC by method; the paper's as bars."""
    figure, axes = new_figure(3.0, 1, 2)
    for ax, title in zip(axes, ("Recall", "AUC"), strict=True):
        places = np.arange(len(table))
        ax.plot(places, table[title], "o", color=colour(0), markersize=6)
        ax.plot(places, table[f"{title}, paper"], "_", color=INK, markersize=12)
        ax.set_xticks(places, [str(name) for name in table.index], rotation=40, ha="right")
        label(ax, f"{title} (bars: the paper's, of other data)")
        grid_lines(ax)
    return figure
