"""Figures of the study, as Figures 2 and 4 to 8 of the paper."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages.figures import LINE, colour, label, legend, small_multiples
from simulations.false_vfl.methods import METHODS

_NUMBERS = {name: number for number, name in enumerate(METHODS)}


def tests_figure(found: pd.DataFrame, dataset: str) -> Figure:
    """Accuracy against the test mechanism by training: mean and deviation, the paper's dotted."""
    own = found.xs(dataset, level="dataset")
    trains = list(dict.fromkeys(own.index.get_level_values("train")))
    figure, axes = small_multiples(len(trains), columns=3, height=3.0)
    for ax, train in zip(axes, trains, strict=True):
        here = own.xs(train, level="train")
        tests = list(dict.fromkeys(here.index.get_level_values("test")))
        for method in dict.fromkeys(here.index.get_level_values("method")):
            line = here.xs(method, level="method").reindex(tests)
            places, paint = np.arange(len(tests)), colour(_NUMBERS[method])
            mean, sd = line["accuracy"], line["sd"].fillna(0.0)
            ax.plot(places, mean, "o-", color=paint, label=method, markersize=3, linewidth=1.4)
            ax.fill_between(places, mean - sd, mean + sd, color=paint, alpha=0.15, linewidth=0)
            ax.plot(places, line["paper"], ":", color=paint, linewidth=1)
        ax.set_xticks(range(len(tests)), tests, rotation=35, ha="right")
        ax.grid(visible=True, axis="y", color=LINE, linewidth=0.6)
        label(ax, f"{dataset}, trained under {train}", "", "accuracy, %")
    legend(axes[0], loc="best", ncols=2)
    return figure


def parties_figure(shares: pd.DataFrame, dataset: str) -> Figure:
    """Accuracy against the number of parties that hold a test sample, by training."""
    own = shares.xs(dataset, level="dataset")
    trains = list(dict.fromkeys(own.index.get_level_values("train")))
    figure, axes = small_multiples(len(trains), columns=3, height=2.8)
    for ax, train in zip(axes, trains, strict=True):
        here = own.xs(train, level="train")
        for method in (name for name in METHODS if name in here.index):
            line = here.loc[method].dropna()
            ax.plot(
                line.index, line, "o-", color=colour(_NUMBERS[method]), label=method,
                markersize=3, linewidth=1.4,
            )  # fmt: skip
        ax.set_xticks([int(number) for number in own.columns])
        ax.grid(visible=True, axis="y", color=LINE, linewidth=0.6)
        label(ax, f"{dataset}, trained under {train}", "parties that hold a sample", "accuracy, %")
    legend(axes[0], loc="best", ncols=2)
    return figure
