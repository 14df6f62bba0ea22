"""The paper's figures from the study's numbers."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from flwr_vertical.incomplete import mcar_cells
from flwr_vertical.pages.figures import (
    INK,
    LINE,
    SOFT,
    colour,
    grid_lines,
    label,
    legend,
    new_figure,
    small_multiples,
)
from simulations.data import VerticalData
from simulations.figures import boxes, line
from simulations.fknn.experiments import impute_guest
from simulations.fknn.regression import COMPLETE, MEASURES, compared
from simulations.fknn.tables import TABLE3, TABLE4
from simulations.preset import StudyPreset

MEASURE_LABELS = {"explained variance": "explained variance", "RMSE": "RMSE of motor_speed"}


def imputed_figure(data: VerticalData, preset: StudyPreset) -> Figure:
    """Figure 4: original against imputed values of one run, by missing rate and method."""
    rates, guest = preset["table3"]["rates"], data.parties["guest"]
    strategies = compared(preset["method"])
    figure, axes = new_figure(2.35 * len(rates), len(rates), len(strategies))
    low, high = float(guest.min().min()), float(guest.max().max())
    for i, rate in enumerate(rates):
        mask = mcar_cells(guest, rate, seed=0)
        for j, (name, strategy) in enumerate(strategies.items()):
            ax = axes[i * len(strategies) + j]
            values = impute_guest(data, mask, strategy).to_numpy()[mask]
            ax.plot([low, high], [low, high], color=LINE, linewidth=1, zorder=0)
            ax.scatter(guest.to_numpy()[mask], values, s=4, color=colour(j), alpha=0.5, linewidth=0)
            ax.set(xlim=(low - 0.2, high + 0.2), ylim=(low - 0.2, high + 0.2), aspect="equal")
            label(
                ax,
                f"{name}, {rate:.0%} missing",
                "original" if i == len(rates) - 1 else "",
                "imputed" if j == 0 else "",
            )
    return figure


def runs_figure(frame: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Figures 5 to 7: RMSE of each of the runs of Table 3, the paper's mean dotted."""
    chosen = frame[frame["part"] == "table3"]
    rates = sorted(chosen["rate"].unique())
    figure, axes = small_multiples(len(rates), columns=len(rates), height=2.9)
    for ax, rate in zip(axes, rates, strict=True):
        for j, name in enumerate(TABLE3):
            runs = chosen[(chosen["rate"] == rate) & (chosen["metric"] == name)]
            line(ax, runs["seed"] + 1, runs["value"], j, name)
            ax.axhline(paper.loc[rate, name], color=colour(j), linestyle=":", linewidth=1.1)
        ax.set_ylim(0, 3)
        ax.set_xticks(sorted(chosen["seed"].unique() + 1))
        label(ax, f"{rate:.0%} missing (dotted: the paper's mean)", "run", "RMSE")
    legend(axes[0], ncols=4, loc="upper left", columnspacing=1.0, handlelength=1.4)
    return figure


def table4_figure(readings: dict[str, pd.DataFrame], paper: pd.DataFrame) -> Figure:
    """Figure 8: RMSE against the missing rate, a panel for each reading, the paper's dotted."""
    figure, axes = new_figure(4.3, 1, len(readings))
    for ax, (title, ours) in zip(axes, readings.items(), strict=True):
        for j, name in enumerate(TABLE4):
            line(ax, ours.index * 100, ours[name], j, name)
            ax.plot(paper.index * 100, paper[name], "x:", color=colour(j),
                    markersize=4, linewidth=1.2)  # fmt: skip
        ax.set_ylim(0, 1.2)
        grid_lines(ax)
        label(ax, title, "missing cells of the guest, %", "RMSE of removed cells")
    axes[0].plot([], [], "x:", color=SOFT, label="the paper's")
    # Inside a panel so wide a legend would take the room of the others.
    legend(axes[0], loc="outside upper right", ncols=6)
    return figure


def bars_figure(table: pd.DataFrame) -> Figure:
    """Figures 11 and 15: means of explained variance and RMSE, grouped by missing rate."""
    figure, axes = new_figure(3.3, 1, 2)
    for ax, (measure, hint) in zip(axes, MEASURES.items(), strict=True):
        values = table.loc[measure]
        places = np.arange(len(values))
        for j, name in enumerate(TABLE3):
            bars = ax.bar(places + 0.2 * (j - 1.5), values[name], 0.18, color=colour(j), label=name)
            ax.bar_label(bars, fmt="%.3f", fontsize=6.5, color="white", padding=-11)
        ax.axhline(values[COMPLETE].mean(), color=INK, linestyle="--", linewidth=1, zorder=0)
        ax.set_xticks(places, [f"{rate:.0%}" for rate in values.index])
        ax.set_ylim(0, float(values.to_numpy().max()) * 1.22)
        label(ax, f"{MEASURE_LABELS[measure]} ({hint})", "missing rate", "")
    axes[0].plot([], [], "--", color=INK, linewidth=1, label=COMPLETE)
    legend(axes[0], ncols=5, loc="upper left", columnspacing=1.0, handlelength=1.2)
    return figure


def box_figure(frame: pd.DataFrame, scope: str) -> Figure:
    """Figures 12 to 14 or 16 to 18: the runs behind the bars of one scope."""
    chosen = frame[(frame["part"] == "regression") & (frame["scope"] == scope)]
    rates = sorted(chosen["rate"].unique())
    columns = max(len(rates), 2)
    figure, axes = new_figure(5.0, len(MEASURES), columns)
    for i, measure in enumerate(MEASURES):
        for ax in axes[i * columns + len(rates) : (i + 1) * columns]:
            ax.set_visible(False)
        for ax, rate in zip(axes[i * columns :], rates, strict=False):
            at = chosen[chosen["rate"] == rate]
            runs = [at[at["metric"] == f"{name}/{measure}"]["value"] for name in TABLE3]
            boxes(ax, runs, TABLE3, "mean")  # as in the paper
            grid_lines(ax)
            label(ax, f"{rate:.0%} missing" if i == 0 else "", "", MEASURE_LABELS[measure])
    return figure
