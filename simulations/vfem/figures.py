"""Figures of the finite-sample parts."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from flwr_vertical.pages.figures import (
    INK,
    LINE,
    SOFT,
    colour,
    grid_lines,
    label,
    legend,
    new_figure,
)
from simulations.figures import line
from simulations.vfem.preset import FINITE_METHODS
from simulations.vfem.tables import MISSING_AT

KINDS = ("VFEM", "Algorithm 2")


def rates_figure(tables: dict[str, pd.DataFrame]) -> Figure:
    """Errors against the missing rate, a column for each mechanism and size."""
    first = next(iter(tables.values()))
    settings = list(dict.fromkeys((key[0], key[1]) for key in first.index))
    columns = max(len(settings), 2)
    figure, axes = new_figure(2.8 * len(tables), len(tables), columns)
    for i, (title, table) in enumerate(tables.items()):
        for ax in axes[i * columns + len(settings) : (i + 1) * columns]:
            ax.set_visible(False)
        for j, (mechanism, rows) in enumerate(settings):
            ax = axes[i * columns + j]
            values = table.xs(mechanism).xs(rows).xs(MISSING_AT[False])
            for number, name in enumerate(FINITE_METHODS):
                if name in values:
                    line(ax, values.index * 100, values[name], number, name)
            log_axis(ax)
            label(
                ax,
                f"{mechanism}, n = {rows:,}" if i == 0 else "",
                "missing blocks of B to E, %" if i == len(tables) - 1 else "",
                title if j == 0 else "",
            )
    legend(axes[0], ncols=2, loc="best", columnspacing=1.0, handlelength=1.4)
    return figure


def coverage_figure(table: pd.DataFrame, band: list[float], within: float) -> Figure:
    """Coverage and standard errors by party and kind, what is aimed at shaded."""
    figure, axes = new_figure(3.2, 1, 2)
    flat = table.droplevel(["rows", "cross"])
    panels = (
        ("coverage", "coverage of 95 % intervals", band, 0.95),
        ("SE / SD", "mean standard error / SD of estimates", [1 - within, 1 + within], 1.0),
    )
    for ax, (column, title, (low, high), ideal) in zip(axes, panels, strict=True):
        ax.axhspan(low, high, color=LINE, alpha=0.45, linewidth=0)
        ax.axhline(ideal, color=INK, linewidth=1, linestyle="--")
        kinds = [kind for kind in KINDS if kind in flat.index.get_level_values("kind")]
        for number, kind in enumerate(kinds):
            values = flat.loc[kind][column]
            places = np.arange(len(values)) + 0.16 * (number - (len(kinds) - 1) / 2)
            ax.plot(places, values, "o", color=colour(number), label=kind, markersize=6)
            ax.set_xticks(np.arange(len(values)), list(values.index))
        label(ax, title, "party")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes[1], loc="best", ncols=3)
    return figure


def parting_figure(table: pd.DataFrame) -> Figure:
    """Bias, coverage and standard errors against the correlation between parties."""
    sizes = sorted(table.index.get_level_values("rows").unique())
    figure, axes = new_figure(2.7 * len(sizes), len(sizes), 3)
    for i, rows in enumerate(sizes):
        for j, column in enumerate(("bias", "coverage", "SE / SD")):
            ax, at = axes[3 * i + j], table.loc[rows]
            kinds = [kind for kind in KINDS if kind in at.index.get_level_values("kind")]
            for number, kind in enumerate(kinds):
                values = at.xs(kind, level="kind")
                if column == "bias":
                    # Estimates do not depend on the kind of standard error.
                    if number == 0:
                        for k, (name, style) in enumerate((("bias", "o-"), ("SD", "o--"))):
                            line(ax, values.index, values[name], 5 + k, name, style)
                    continue
                line(ax, values.index, values[column], number, kind)
            if column != "bias":
                ideal = 0.95 if column == "coverage" else 1.0
                ax.axhline(ideal, color=INK, linewidth=1, linestyle="--", zorder=0)
            last = i == len(sizes) - 1
            name = "bias and spread" if column == "bias" else column
            label(ax, f"{name}, n = {rows}", "correlation between parties" if last else "")
            grid_lines(ax)
    legend(axes[0], loc="best")
    legend(axes[2], loc="best")
    return figure


def log_axis(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    ax.set_yscale("log")
    for formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 4, 6)))
    ax.tick_params(which="minor", length=0, labelsize=7, labelcolor=SOFT)
    grid_lines(ax, which="both")
