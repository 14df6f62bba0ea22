"""Figures of the SME-like data: estimates beside the truth, and Figure 4."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.pages.figures import INK, colour, label, legend, small_multiples
from simulations.figures import boxes
from simulations.vfem.figures import log_axis
from simulations.vfem.sme_tables import METHODS

WIDE = 1.96


def forest_figure(
    found: pd.DataFrame, truth: "pd.Series[float]", scale: "pd.Series[float]"
) -> Figure:
    """Estimates with 95 % intervals minus the truth, in standard units, by method."""
    methods = [name for name in METHODS if ("estimate", name) in found]
    height = 0.17 * len(truth) + 1.1
    figure, axes = small_multiples(len(methods), columns=len(methods), height=height)
    places = -np.arange(len(truth), dtype=float)
    parties = list(dict.fromkeys(truth.index.get_level_values(0)))
    # On CC's scale the other methods' panels could not be read.
    shown = found["estimate"].sub(truth, axis=0).abs() + WIDE * found["std_error"]
    reach = 1.05 * float(shown.mul(scale, axis=0).drop(columns="CC", errors="ignore").max().max())
    for j, (ax, name) in enumerate(zip(axes, methods, strict=True)):
        estimate = found["estimate", name].reindex(truth.index)
        error = found["std_error", name].reindex(truth.index)
        for number, party in enumerate(parties):
            at = (truth.index.get_level_values(0) == party) & estimate.notna().to_numpy()
            ax.errorbar(
                ((estimate - truth) * scale)[at], places[at], xerr=WIDE * (error * scale)[at],
                fmt="o", markersize=3, linewidth=1.1, color=colour(number),
                label=party if j == 0 else None,
            )  # fmt: skip
        ax.axvline(0, color=INK, linewidth=1, zorder=0)
        ax.set_ylim(places[-1] - 0.8, 0.8)
        if name != "CC":
            ax.set_xlim(-reach, reach)
        if j == 0:
            ax.set_yticks(places, list(truth.index.get_level_values(1)), fontsize=7)
        else:
            ax.set_yticks([])
        label(ax, name, "estimate − truth, standard units")
    legend(axes[0], loc="outside upper right", ncols=3)
    return figure


def boxes_figure(panels: dict[str, pd.DataFrame]) -> Figure:
    """Figure 4: a box for each method, every split as a dot."""
    figure, axes = small_multiples(len(panels), height=3.4)
    for ax, (title, table) in zip(axes, panels.items(), strict=True):
        boxes(ax, [table[name].dropna() for name in table], list(table), "median")
        log_axis(ax)
        label(ax, title)
    return figure
