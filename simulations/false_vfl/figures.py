"""Figures of the study, as Figures 2 and 4 to 8 of the paper."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flwr_vertical.pages.figures import colour, grid_lines, label, legend, small_multiples
from simulations.false_vfl.methods import METHODS
from simulations.figures import line

_NUMBERS = {name: number for number, name in enumerate(METHODS)}


def _panels(
    found: pd.DataFrame, dataset: str, height: float
) -> tuple[Figure, list[tuple[Axes, str, pd.DataFrame]]]:
    own = found.xs(dataset, level="dataset")
    trains = list(dict.fromkeys(own.index.get_level_values("train")))
    figure, axes = small_multiples(len(trains), columns=3, height=height)
    numbers = (pd.DataFrame(own.xs(train, level="train")) for train in trains)
    return figure, list(zip(axes, trains, numbers, strict=True))


def tests_figure(found: pd.DataFrame, dataset: str) -> Figure:
    """Accuracy against the test mechanism by training: mean and deviation, the paper's dotted."""
    figure, panels = _panels(found, dataset, height=3.0)
    for ax, train, here in panels:
        tests = list(dict.fromkeys(here.index.get_level_values("test")))
        for method in dict.fromkeys(here.index.get_level_values("method")):
            own = here.xs(method, level="method").reindex(tests)
            places, paint = np.arange(len(tests)), colour(_NUMBERS[method])
            mean, sd = own["accuracy"], own["sd"].fillna(0.0)
            line(ax, places, mean, _NUMBERS[method], method)
            ax.fill_between(places, mean - sd, mean + sd, color=paint, alpha=0.15, linewidth=0)
            ax.plot(places, own["paper"], ":", color=paint, linewidth=1)
        ax.set_xticks(range(len(tests)), tests, rotation=35, ha="right")
        grid_lines(ax)
        label(ax, f"{dataset}, trained under {train}", "", "accuracy, %")
    legend(panels[0][0], loc="best", ncols=2)
    return figure


def parties_figure(shares: pd.DataFrame, dataset: str) -> Figure:
    """Accuracy against the number of parties that hold a test sample, by training."""
    figure, panels = _panels(shares, dataset, height=2.8)
    for ax, train, here in panels:
        for method in (name for name in METHODS if name in here.index):
            own = here.loc[method].dropna()
            line(ax, own.index, own, _NUMBERS[method], method)
        ax.set_xticks([int(number) for number in shares.columns])
        grid_lines(ax)
        label(ax, f"{dataset}, trained under {train}", "parties that hold a sample", "accuracy, %")
    legend(panels[0][0], loc="best", ncols=2)
    return figure
