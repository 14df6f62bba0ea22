"""Figures of a run, from arrays to SVG or PNG.

They use matplotlib's object interface and set every style on the objects, so they neither read nor
change the user's pyplot state and may be drawn in any thread.
"""

import functools
import io
import math
import textwrap
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, MaxNLocator

from flwr_vertical.arrays import Array, Integers

# Okabe and Ito's colours: they stay apart for colour-blind readers. Strongest first.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6b7c")
INK, SOFT, LINE = "#1d2733", "#5b6b7c", "#d5dde5"
GUIDE: dict[str, Any] = {"color": SOFT, "linewidth": 1, "linestyle": (0, (4, 3))}
"""How a line is drawn that values are compared with."""
MOST_POINTS = 1500  # of a cloud
_FONT = "DejaVu Sans"  # comes with matplotlib
_OTHER_FONTS = "Verdana, 'Noto Sans', 'Noto Sans CJK SC', sans-serif"
_RASTER_DPI = 150  # of clouds of points inside a drawing
_saving = threading.Lock()
WIDTH = 10.6  # inches; a figure fills a section of the page at 100 dots per inch
_NARROW = 3.7  # inches of a drawing for a phone, on which its letters keep their size
# Letters that fit into a narrow drawing: of a title, a label of an axis, and a tick.
_TITLE, _AXIS, _TICK = 25, 42, 20


class Drawing(str):
    """A drawing as SVG text, and the same for a phone: narrow, with panels below each other."""

    narrow = ""


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
    figure = Figure(figsize=(WIDTH, height), facecolor="none", layout="constrained")
    grid = figure.add_gridspec(rows, columns, height_ratios=height_ratios)
    axes = [figure.add_subplot(grid[i // columns, i % columns]) for i in range(rows * columns)]
    for ax in axes:
        ax.set_facecolor("none")
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


def grid_lines(ax: Axes, axis: Literal["x", "y"] = "y", **options: Any) -> None:
    """Draw thin lines at the ticks of an axis, behind all else."""
    ax.grid(visible=True, axis=axis, color=LINE, linewidth=0.6, **options)
    ax.set_axisbelow(True)


def legend(ax: Axes, **options: Any) -> None:
    """Add a plain legend to the axes; to their figure where it stands outside of the axes."""
    options = {"frameon": False, "fontsize": 8, "labelcolor": SOFT, **options}
    if str(options.get("loc")).startswith("outside"):
        handles = ax.get_legend_handles_labels()[0]
        ax.figure.legend(**{"handles": handles, **options})
    else:
        ax.legend(**options)


def diagonal(ax: Axes, x: Array, y: Array) -> None:
    """Draw pairs of numbers that should be equal beside the line on which they would be."""
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.05 * (high - low) or 1.0
    ends = (low - margin, high + margin)
    ax.plot(ends, ends, **GUIDE)
    points(ax, x, y)
    ax.set(xlim=ends, ylim=ends, box_aspect=1)


def points(ax: Axes, x: Array, y: Array) -> None:
    """Draw points, some of too many, as an image within the figure."""
    take = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
    strength = 0.65 if len(take) < 200 else 0.35
    ax.scatter(
        x[take], y[take], s=11, color=colour(0), alpha=strength, linewidths=0, rasterized=True
    )


def colour_scale(ax: Axes, image: AxesImage) -> None:
    """Add the scale of an image's colours, as a part of its axes, with which it moves."""
    beside = ax.inset_axes((1.04, 0.1, 0.04, 0.8))
    beside.figure.colorbar(image, cax=beside)
    beside.tick_params(colors=SOFT, labelsize=8, length=3)


def to_svg(figure: Figure, *, restyle: bool = True) -> Drawing:
    """Return a figure as SVG text without a background, so that it suits a dark page as well.

    Letters are drawn as shapes, so that they look alike everywhere. A figure with a letter that
    the font lacks keeps its text as text: the viewer's own fonts know more scripts.

    The figure is narrow afterwards: its drawing for a phone is made last.

    `restyle` False leaves fonts, background and width of somebody else's figure as they are.
    """
    if not restyle:
        return Drawing(_as_svg(figure, "white", str(mpl.rcParams["svg.fonttype"])))
    _fix_text(figure)
    kind = "path" if _is_drawable(figure) else "none"
    drawing = Drawing(_as_svg(figure, "none", kind))
    _make_narrow(figure)
    drawing.narrow = _as_svg(figure, "none", kind)
    return drawing


def _as_svg(figure: Figure, back: str, kind: str) -> str:
    buffer = io.StringIO()
    # The kind of text is a global of matplotlib's, and so are filters of warnings.
    with _saving, mpl.rc_context({"svg.fonttype": kind}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(
            buffer, format="svg", facecolor=back, dpi=_RASTER_DPI, metadata={"Date": None}
        )
    text = buffer.getvalue()
    if kind == "none":
        text = text.replace(f"'{_FONT}'", f"'{_FONT}', {_OTHER_FONTS}")
    return text[text.index("<svg") :]


def _make_narrow(figure: Figure) -> None:
    """Put the panels of a figure below each other, two of four in a row, as wide as a phone."""
    placed = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    grid = placed[0].get_gridspec() if placed else None
    if grid is None:
        return
    for ax in placed:
        if not ax.get_visible():
            ax.remove()
    panels = [ax for ax in placed if ax.get_visible()]
    columns = max(1, grid.ncols // 2)
    rows = math.ceil(len(panels) / columns)
    height = figure.get_figheight() / grid.nrows * (1.0 if columns == 1 else 0.85)
    if any(ax.images and ax.get_aspect() == 1.0 for ax in panels):  # squares of a matrix
        height = min(height, _NARROW + 1.0)
    figure.set_size_inches(_NARROW, height * rows)
    ratios = grid.get_height_ratios() if rows == grid.nrows else None
    narrow = figure.add_gridspec(rows, columns, height_ratios=ratios)
    for number, ax in enumerate(panels):
        ax.set_subplotspec(narrow[number // columns, number % columns])
        _shorten(ax, columns, height)
    for found in figure.legends:
        found.set_loc("outside upper left")
        found.set_ncols(2)


def _shorten(ax: Axes, columns: int, height: float) -> None:
    """Let the letters of a panel fit into one of `columns` columns of a narrow drawing."""
    beside = 0.0  # the share of the width that names beside the axes take
    ax.tick_params(axis="y", labelleft=True)
    if isinstance(ax.yaxis.get_major_locator(), FixedLocator):
        names = [plain(tick.get_text().replace(r"\$", "$"), _TICK) for tick in ax.get_yticklabels()]
        ax.set_yticks(ax.get_yticks(), names)
        if ax.images:
            ax.tick_params(axis="y", labelsize=min(8.0, 72 * (height - 2.2) / len(names)))
        beside = 0.018 * max(map(len, names), default=0)
    if isinstance(ax.xaxis.get_major_locator(), FixedLocator):
        names = [tick.get_text() for tick in ax.get_xticklabels()]
        if sum(map(len, names)) > _AXIS // columns:
            room = 72 * (_NARROW - 0.6) / columns / len(names)  # points
            ax.tick_params(axis="x", labelrotation=90, labelsize=min(8.0, room))
            for tick in ax.get_xticklabels():
                tick.set(horizontalalignment="center", rotation_mode="default")
    title, axis = (int(most * (1 - beside)) // columns for most in (_TITLE, _AXIS))
    title_text, x = _broken(ax.get_title("left"), title), _broken(ax.get_xlabel(), axis)
    label(ax, title_text, x, ax.get_ylabel())


def _broken(text: str, width: int) -> str:
    """Break lines that are too long."""
    return "\n".join(textwrap.fill(line, width) for line in text.split("\n"))


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """Return a figure as PNG bytes."""
    buffer = io.BytesIO()
    _fix_text(figure)
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def history_figure(history: Sequence[Mapping[str, object]], most: int = 9) -> str | None:
    """Draw each numeric series of a run's history against its round, iteration or epoch."""
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
            largest = float(y.abs().max())
            tame = largest == 0 or 1e-3 <= largest < 1e6
            ax.ticklabel_format(axis="y", useOffset=False, style="plain" if tame else "sci")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        grid_lines(ax)
        label(ax, plain(name), clock or "entry")
    return to_svg(figure)


def coefficients_figure(
    coefficients: pd.DataFrame, spreads: pd.Series | None = None, most: int = 60
) -> str | None:
    """Draw estimates with their confidence intervals, grouped by party."""
    frame = coefficients[np.isfinite(coefficients["estimate"].astype(float))]
    frame = frame[[not _is_intercept(key) for key in frame.index]]
    scale = np.ones(len(frame)) if spreads is None else spreads.reindex(frame.index).to_numpy()
    if len(frame) > most:
        size = np.nan_to_num(np.abs(frame["estimate"].to_numpy(dtype=float) * scale))
        largest = np.sort(size.argsort(kind="stable")[-most:])
        frame, scale = frame.iloc[largest], scale[largest]
    if frame.empty:
        return None
    keys = [key if isinstance(key, tuple) else ("", key) for key in frame.index]
    parties = list(dict.fromkeys(str(key[0]) for key in keys))
    figure, axes = new_figure(1.0 + 0.24 * len(frame), 1, 1 if spreads is None else 2)
    with_ci = " and confidence interval" if "ci_low" in frame else ""
    _forest(axes[0], frame, np.ones(len(frame)), keys, parties)
    axes[0].set_yticks(_places(frame), [plain(key[-1]) for key in keys])
    label(axes[0], "Coefficients by party", f"estimate{with_ci}", "variable")
    if spreads is not None:
        _forest(axes[1], frame, scale, keys, parties)
        axes[1].set_yticks(_places(frame), [plain(key[-1]) for key in keys])
        axes[1].tick_params(axis="y", labelleft=False)
        label(axes[1], "Standardised", f"per standard deviation of the variable{with_ci}")
    if any(parties):
        legend(axes[0], loc="outside upper right", ncols=min(len(parties), 6))
    return to_svg(figure)


def _places(frame: pd.DataFrame) -> Integers:
    return np.arange(len(frame))[::-1]


def _forest(
    ax: Axes,
    frame: pd.DataFrame,
    scale: Array,
    keys: Sequence[tuple[Any, ...]],
    parties: Sequence[str],
) -> None:
    """Draw scaled estimates and intervals, the first one on top."""
    position = _places(frame)
    estimate = frame["estimate"].to_numpy(dtype=float) * scale
    ax.axvline(0, color=SOFT, linewidth=0.8)
    for number, party in enumerate(parties):
        own = np.array([str(key[0]) == party for key in keys])
        if {"ci_low", "ci_high"} <= set(frame):
            low, high = (
                (frame[c].to_numpy(dtype=float) * scale)[own] for c in ("ci_low", "ci_high")
            )
            ax.hlines(position[own], low, high, color=colour(number), linewidth=1.8, alpha=0.75)
        ax.plot(estimate[own], position[own], "o", color=colour(number), ms=4.5, label=plain(party))
    ax.set_ylim(-0.8, len(frame) - 0.2)
    grid_lines(ax, "x")


def _fix_text(figure: Figure) -> None:
    # A user's rcParams may ask for LaTeX or a font that is not there; reports must still be drawn.
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_usetex(False)
            text.set_fontfamily(_FONT)


@functools.lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    """Return the code points that the reports' font can draw."""
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def _is_drawable(figure: Figure) -> bool:
    """Whether the reports' font has all letters of a figure."""
    used = {
        ord(letter)
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_visible()
        for letter in text.get_text()
    }
    return {code for code in used if code >= ord(" ")} <= _letters()


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_intercept(key: object) -> bool:
    name = key[-1] if isinstance(key, tuple) else key
    return str(name).lower().strip("()") in ("intercept", "const", "constant", "bias")
