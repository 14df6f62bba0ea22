"""Figures of a run, from arrays to SVG or PNG.

They use matplotlib's object interface and set every style on the objects, so they neither read nor
change the user's pyplot state and may be drawn in any thread.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours: they stay apart for colour-blind readers. Strongest first.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6b7c")
INK, SOFT, LINE = "#1d2733", "#5b6b7c", "#d5dde5"
WIDTH = 10.6  # inches; a figure fills a section of the page at 100 dots per inch


def colour(number: int) -> str:
    """Return the colour of the series or party with this number."""
    return PALETTE[number % len(PALETTE)]


def plain(text: object, longest: int = 34) -> str:
    """Return a name as it may stand in a figure: short, one line, no dollar read as mathematics."""
    line = " ".join(str(text).split())
    if len(line) > longest:
        # Names of one family often differ in their last letters only: cut the middle.
        tail = longest // 3
        line = f"{line[: longest - tail - 1]}…{line[-tail:]}"
    return line.replace("$", r"\$")


def new_figure(
    height: float, rows: int = 1, columns: int = 1, height_ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as the page and its axes, row by row, in the reports' style."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white", layout="constrained")
    grid = figure.add_gridspec(rows, columns, height_ratios=height_ratios)
    axes = [figure.add_subplot(grid[i // columns, i % columns]) for i in range(rows * columns)]
    for ax in axes:
        ax.set_facecolor("white")
        ax.grid(visible=False)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            ax.spines[side].set(color=LINE, linewidth=1)
        ax.tick_params(colors=SOFT, labelcolor=SOFT, labelsize=8, length=3, width=0.8)
    return figure, axes


def small_multiples(count: int, columns: int = 4, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` equal panels, at most `columns` in a row."""
    columns = min(columns, max(count, 2))
    rows = math.ceil(count / columns)
    figure, axes = new_figure(height * rows, rows, columns)
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes[:count]


def label(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Write title and axis labels in the reports' style."""
    ax.set_title(title, loc="left", fontsize=9.5, color=INK, fontweight="bold", pad=6)
    ax.set_xlabel(x, fontsize=8.5, color=SOFT)
    ax.set_ylabel(y, fontsize=8.5, color=SOFT)


def legend(ax: Axes, **options: Any) -> None:
    """Add a plain legend to the axes."""
    ax.legend(frameon=False, fontsize=8, labelcolor=SOFT, **options)


def to_svg(figure: Figure, *, restyle: bool = True) -> str:
    """Return a figure as SVG text, letters drawn as shapes so that it looks alike everywhere.

    `restyle` False leaves the fonts of somebody else's figure as they are.
    """
    buffer = io.StringIO()
    if restyle:
        _fix_text(figure)
    figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """Return a figure as PNG bytes."""
    buffer = io.BytesIO()
    _fix_text(figure)
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def history_figure(history: Sequence[Mapping[str, object]], most: int = 9) -> str | None:
    """Draw each numeric series of a run's history against its round, iteration or epoch.

    Parameters
    ----------
    history : sequence of mapping
        One entry per round or iteration; entries may have different keys.
    most : int, optional
        Series drawn at most; the first ones win.

    Returns
    -------
    str or None
        SVG, or None where there is no series of two finite values.
    """
    frame = pd.DataFrame([{k: v for k, v in h.items() if _is_real(v)} for h in history])
    clocks = [k for k in ("iteration", "epoch", "round", "step") if k in frame]
    clock = clocks[0] if clocks else None
    values = frame.drop(columns=["iteration", "epoch", "round", "step"], errors="ignore")
    values = values.astype(float).replace([np.inf, -np.inf], np.nan)
    names = [name for name in values if values[name].notna().sum() > 1][:most]
    if not names:
        return None
    time = frame[clock].astype(float) if clock else pd.Series(np.arange(len(frame)), frame.index)
    figure, axes = small_multiples(len(names), columns=3, height=2.5)
    for ax, name in zip(axes, names, strict=True):
        y = values[name].dropna()
        # Markers show single rounds as long as they can be told apart.
        ax.plot(
            time[y.index], y, color=colour(0), linewidth=1.6, marker="o" if len(y) <= 40 else ""
        )
        ax.lines[0].set_markersize(3)
        if y.min() > 0 and y.max() / y.min() > 1e3:
            ax.set_yscale("log")
            ax.tick_params(which="minor", length=0)
        else:
            ax.ticklabel_format(axis="y", useOffset=False, style="plain" if _tame(y) else "sci")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.grid(visible=True, axis="y", color=LINE, linewidth=0.6)
        label(ax, plain(name), clock or "entry")
    return to_svg(figure)


def coefficients_figure(coefficients: pd.DataFrame, most: int = 60) -> str | None:
    """Draw estimates with their confidence intervals, grouped by party.

    Parameters
    ----------
    coefficients : DataFrame
        Index (party, variable); column estimate, and ci_low, ci_high where known. Intercepts are
        left out: they are on another scale.
    most : int, optional
        Coefficients drawn at most; the largest win.

    Returns
    -------
    str or None
        SVG, or None where there is nothing to draw.
    """
    frame = coefficients[np.isfinite(coefficients["estimate"].astype(float))]
    frame = frame[[not _is_intercept(key) for key in frame.index]]
    if len(frame) > most:
        largest = frame["estimate"].abs().to_numpy().argsort(kind="stable")[-most:]
        frame = frame.iloc[np.sort(largest)]
    if frame.empty:
        return None
    keys = [key if isinstance(key, tuple) else ("", key) for key in frame.index]
    parties = list(dict.fromkeys(str(key[0]) for key in keys))
    position = np.arange(len(frame))[::-1]
    estimate = frame["estimate"].to_numpy(dtype=float)
    figure, (ax,) = new_figure(1.0 + 0.24 * len(frame))
    ax.axvline(0, color=SOFT, linewidth=0.8)
    for number, party in enumerate(parties):
        own = np.array([str(key[0]) == party for key in keys])
        if {"ci_low", "ci_high"} <= set(frame):
            low, high = (frame[c].to_numpy(dtype=float)[own] for c in ("ci_low", "ci_high"))
            ax.hlines(position[own], low, high, color=colour(number), linewidth=1.8, alpha=0.75)
        ax.plot(estimate[own], position[own], "o", color=colour(number), ms=4.5, label=plain(party))
    ax.set_yticks(position, [plain(key[-1]) for key in keys])
    ax.set_ylim(-0.8, len(frame) - 0.2)
    ax.grid(visible=True, axis="x", color=LINE, linewidth=0.6)
    ax.set_axisbelow(True)
    with_ci = " and confidence interval" if "ci_low" in frame else ""
    label(ax, "Coefficients by party", f"estimate{with_ci}", "variable")
    if any(parties):
        legend(ax, loc="lower left", bbox_to_anchor=(0.3, 1.0), ncols=min(len(parties), 6))
    return to_svg(figure)


def _fix_text(figure: Figure) -> None:
    # A user's rcParams may ask for LaTeX or a font that is not there; reports must still be drawn.
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_usetex(False)
            text.set_fontfamily("DejaVu Sans")


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_intercept(key: object) -> bool:
    name = key[-1] if isinstance(key, tuple) else key
    return str(name).lower().strip("()") in ("intercept", "const", "constant", "bias")


def _tame(values: pd.Series) -> bool:
    largest = float(values.abs().max())
    return largest == 0 or 1e-3 <= largest < 1e6
