"""What moves predictions: importance of parties or columns, contributions to single samples."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter

from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import Item, Section, folded_html, subheading


def sections(
    importance: pd.DataFrame | None, contributions: pd.DataFrame | None
) -> Iterator[Section]:
    """Return the report's section, if there is anything to show."""
    items: list[Item] = []
    if importance is not None and (figure := importance_figure(importance)):
        by, all_of = ("column", "columns") if importance.index.nlevels > 1 else ("party", "parties")
        table = folded_html(importance, f"All {len(importance)} {all_of}")
        items += [subheading(f"Importance by {by}"), figure, table]
    if contributions is not None and len(contributions) and contributions.shape[1] > 1:
        items += [subheading("Contributions by party"), contributions_figure(contributions)]
        caption = (
            "Of each sample, contributions and base add up to the raw prediction. Drawn are the "
            "median, the middle half and the middle 90 % of all samples."
        )
        items.append(f'<p class="caption">{caption}</p>')
    if items:
        yield Section("What moves predictions", items)


def importance_figure(importance: pd.DataFrame, most: int = 30) -> str | None:
    """Draw importance as bars: of parties, or of their columns, the largest first; as SVG."""
    frame = importance.sort_values("gain", ascending=False, kind="stable").head(most)
    frame = frame[frame["gain"] > 0]
    if frame.empty:
        return None
    keys = [key if isinstance(key, tuple) else (key,) for key in frame.index]
    parties = list(dict.fromkeys(str(key[0]) for key in importance.index.to_frame().to_numpy()))
    share = frame["gain"].to_numpy(dtype=float) / float(importance["gain"].sum())
    position = np.arange(len(frame))[::-1]
    figure, (ax,) = fg.new_figure(0.9 + 0.26 * len(frame))
    for number, party in enumerate(parties):
        own = np.array([str(key[0]) == party for key in keys])
        if own.any():
            ax.barh(position[own], share[own], 0.68, color=fg.colour(number), label=fg.plain(party))
    for at, value in zip(position, share, strict=True):
        ax.text(value, at, f" {value:.1%}", va="center", fontsize=8, color=fg.SOFT)
    ax.set_yticks(position, [fg.plain(key[-1]) for key in keys])
    ax.set_ylim(-0.7, len(frame) - 0.3)
    ax.set_xlim(0, 1.1 * share.max())
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    fg.label(ax, "", "share of the gain of all splits")
    if len(keys[0]) > 1 and len(parties) > 1:
        fg.legend(ax, loc="lower right")
    return fg.to_svg(figure)


def contributions_figure(contributions: pd.DataFrame, most: int = 12) -> str:
    """Draw how far each party moves the predictions of samples: a box for each, as SVG."""
    frame = contributions.drop(columns="base")
    order = frame.abs().mean().sort_values(ascending=False, kind="stable").index[:most]
    figure, (ax,) = fg.new_figure(1.0 + 0.42 * len(order))
    ax.axvline(0, **fg.GUIDE)
    for at, name in enumerate(order):
        low, first, middle, third, high = np.quantile(frame[name], [0.05, 0.25, 0.5, 0.75, 0.95])
        ink = fg.colour(list(frame).index(name))
        ax.hlines(at, low, high, color=ink, linewidth=1.2)
        ax.hlines(at, first, third, color=ink, linewidth=9, alpha=0.75)
        ax.plot([middle], [at], "o", color="white", markersize=4)
    ax.set_yticks(range(len(order)), [fg.plain(name) for name in order])
    ax.set_ylim(len(order) - 0.5, -0.5)
    fg.grid_lines(ax, "x")
    fg.label(ax, "", "contribution to the raw prediction")
    return fg.to_svg(figure)
