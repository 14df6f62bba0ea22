"""Figures of the study."""

import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages.figures import INK, grid_lines, label, legend, new_figure
from simulations.fedpsg.classifiers import CLASSIFIERS
from simulations.fedpsg.floors import BEST, DRAW, MEAN
from simulations.fedpsg.tables import KEYS, means, whole
from simulations.figures import line

_STYLES = {DRAW: ":", MEAN: "--", BEST: "-"}


def errors_figure(frame: pd.DataFrame) -> Figure:
    """RMSE of all methods by ratio, one panel for each data set; floors as black lines."""
    found = means(whole(frame), "rows", KEYS[:3], "rmse")["mean"]
    datasets = list(dict.fromkeys(key[0] for key in found.index)) or ["–"]
    figure, axes = new_figure(2.6 * len(datasets), len(datasets), 1)
    for ax, dataset in zip(axes, datasets, strict=True):
        chosen = found[[key[0] == dataset for key in found.index]]
        names = list(dict.fromkeys(key[2] for key in chosen.index))
        others = [name for name in names if name not in _STYLES and "valid" not in str(name)]
        for number, name in enumerate(others):
            values = chosen[[key[2] == name for key in chosen.index]]
            line(ax, [key[1] for key in values.index], values, number, name)
        for name, style in _STYLES.items():
            values = chosen[[key[2] == name for key in chosen.index]]
            ax.plot([key[1] for key in values.index], values, style, color=INK, linewidth=1.2,
                    label=name)  # fmt: skip
        label(ax, f"RMSE, {dataset}", "share of samples that B lacks")
        grid_lines(ax)
        legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def aligned_figure(frame: pd.DataFrame) -> Figure:
    """AUC of each classifier against the number of aligned samples."""
    figure, axes = new_figure(2.8, 1, len(CLASSIFIERS))
    for ax, name in zip(axes, CLASSIFIERS, strict=True):
        found = means(frame, "aligned", ["aligned", "method"], f"{name} auc")["mean"]
        for number, method in enumerate(dict.fromkeys(key[1] for key in found.index)):
            values = found[[key[1] == method for key in found.index]].sort_index()
            line(ax, [key[0] for key in values.index], values, number, method)
        ax.set_xscale("log")
        label(ax, f"AUC, {name}", "aligned samples")
        grid_lines(ax)
    if axes[0].get_legend_handles_labels()[0]:
        legend(axes[0], loc="lower right")
    return figure
