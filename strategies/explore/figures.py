"""Figures of an exploration: overlap, correlations, information value."""

import numpy as np
import pandas as pd
import scipy

from flwr_vertical.arrays import Array
from flwr_vertical.pages import figures as fg
from strategies.explore.associations import BANDS

_FEW_PATTERNS, _MOST_PATTERNS = 12, 24
_MOST_VARIABLES = 60


def overlap_figure(overlap: pd.DataFrame, parties: list[str]) -> str:
    """Draw who holds the same samples as an UpSet plot (Lex et al., 2014), as SVG."""
    shown = overlap.head(_MOST_PATTERNS)
    height = 0.34 * len(parties)
    figure, (bars, dots) = fg.new_figure(3.2 + height, 2, 1, height_ratios=(2.6, height))
    at, counts = np.arange(len(shown)), shown["samples"].to_numpy(dtype=float)
    held = shown[parties].to_numpy(dtype=object) == True  # noqa: E712 (None: sets of few)
    colours = np.where(held.all(axis=1), fg.colour(0), fg.SOFT)
    bars.bar(at, counts, 0.62, color=colours)
    small = shown[parties].isna().all(axis=1)
    for x, (count, rest) in enumerate(zip(counts.tolist(), small.tolist(), strict=True)):
        text = f"{count:,.0f}" + "\nin small sets" * rest
        bars.text(x, count, text, ha="center", va="bottom", fontsize=8, color=fg.SOFT)
    bars.set_xticks([])
    bars.set_ylim(0, 1.2 * counts.max(initial=1.0))
    fg.label(bars, "", "", "samples")
    for row in range(len(parties)):
        y = len(parties) - 1 - row
        if row % 2 == 0:
            dots.axhspan(y - 0.5, y + 0.5, color=fg.LINE, alpha=0.35, linewidth=0)
        flags = held[:, row]
        dots.scatter(at, np.full(len(at), y), 46, color=fg.LINE, zorder=2)
        dots.scatter(at[flags], np.full(int(flags.sum()), y), 46, color=fg.INK, zorder=3)
        for x in at[flags].tolist():
            lowest = len(parties) - 1 - int(np.flatnonzero(held[x]).max())
            dots.plot([x, x], [lowest, y], color=fg.INK, linewidth=1.6, zorder=3)
    dots.set_ylim(-0.5, len(parties) - 0.5)
    dots.set_yticks(range(len(parties)), [fg.plain(name) for name in reversed(parties)])
    dots.set_xticks([])
    for ax in (bars, dots):
        ax.set_xlim(-0.6, max(len(at), _FEW_PATTERNS) - 0.4)
    dots.spines["bottom"].set_visible(False)
    return fg.to_svg(figure)


def information_figure(found: pd.DataFrame, parties: list[str], most: int = 30) -> str | None:
    """Draw information values, or eta, as bars; behind them the bands by which they are read."""
    by = "iv" if "iv" in found else "eta"
    frame = found[found[by].notna()].head(most)
    if frame.empty:
        return None
    at, values = np.arange(len(frame))[::-1], frame[by].to_numpy(dtype=float)
    figure, (ax,) = fg.new_figure(1.1 + 0.26 * len(frame))
    end = 1.15 * max(values.max(), 0.12)
    start = 0.0
    for number, (bound, word) in enumerate(BANDS if by == "iv" else ()):
        if start < end:
            stop = min(bound, end)
            ax.axvspan(start, stop, color=fg.LINE, alpha=0.12 * number, linewidth=0)
            if stop - start > 0.25 * end:  # has room for its word on a phone, too
                ax.text(start, len(frame) - 0.4, f" {word}", fontsize=7.5, color=fg.SOFT)
            start = stop
    for number, party in enumerate(parties):
        own = (frame.index.get_level_values(0) == party).tolist()
        if any(own):
            ax.barh(at[own], values[own], 0.66, color=fg.colour(number), label=fg.plain(party))
    for y, value in zip(at.tolist(), values.tolist(), strict=True):
        ax.text(value, y, f" {value:.3f}", va="center", fontsize=8, color=fg.SOFT)
    ax.set_yticks(at, [fg.plain(name) for _, name in frame.index])
    ax.set_ylim(-0.7, len(frame) + 0.1)
    ax.set_xlim(0, end)
    fg.label(ax, "", "information value" if by == "iv" else "eta of the labels by bin")
    fg.legend(ax, loc="lower right")
    return fg.to_svg(figure)


def strengths(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return one number for every two variables: a correlation, Cramér's V or eta; 0 if unknown."""
    chosen = pairs[pairs["measure"].isin(["correlation", "cramers v", "eta"])]
    ends = [
        pd.MultiIndex.from_frame(chosen[list(names)], names=["party", "variable"])
        for names in (("party", "variable"), ("other_party", "other_variable"))
    ]
    index = ends[0].append(ends[1]).drop_duplicates()
    values = np.eye(len(index))
    here, there = (index.get_indexer(end) for end in ends)
    values[here, there] = values[there, here] = chosen["value"]
    return pd.DataFrame(values, index=index, columns=index)


def correlations_figure(pairs: pd.DataFrame, parties: list[str]) -> str | None:
    """Draw how variables go together, similar ones side by side, as SVG."""
    frame = strengths(pairs)
    if len(frame) < 2:
        return None
    values = frame.to_numpy()
    if len(frame) > _MOST_VARIABLES:
        owner = frame.index.get_level_values(0).to_numpy()
        others = np.where(owner[:, None] == owner, 0.0, np.abs(values)).max(axis=1)
        kept = np.sort(np.argsort(-others, kind="stable")[:_MOST_VARIABLES])
        frame, values = frame.iloc[kept, kept], values[np.ix_(kept, kept)]
    order = _clustered(values)
    frame, values = frame.iloc[order, order], values[np.ix_(order, order)]
    n = len(frame)
    figure, (ax,) = fg.new_figure(min(9.6, 2.2 + 0.19 * n))
    image = ax.imshow(values, cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
    names = [(str(party), fg.plain(name, 24)) for party, name in frame.index]
    size = 8 if n <= 30 else 6
    ax.set_yticks(range(n), [name for _, name in names], fontsize=size)
    ax.set_xticks(range(n), [name for _, name in names], rotation=90, fontsize=size)
    for axis in (ax.get_xticklabels(), ax.get_yticklabels()):
        for text, (party, _) in zip(axis, names, strict=True):
            text.set_color(fg.colour(parties.index(party)))
    if n <= 14:
        for i in range(n):
            for j in range(n):
                dark = abs(values[i, j]) > 0.55
                ax.text(
                    j, i, f"{values[i, j]:.2f}".replace("0.", "."), ha="center", va="center",
                    fontsize=7, color="white" if dark else fg.INK,
                )  # fmt: skip
    for number, party in enumerate(parties):
        ax.plot([], [], "s", color=fg.colour(number), label=fg.plain(party))
    fg.legend(ax, loc="outside upper right", ncols=min(len(parties), 6))
    fg.colour_scale(ax, image)
    return fg.to_svg(figure)


def _clustered(values: Array) -> list[int]:
    """Return an order in which variables that go together stand side by side."""
    if len(values) < 3:
        return list(range(len(values)))
    apart = scipy.spatial.distance.squareform(np.clip(1.0 - np.abs(values), 0.0, 1.0), checks=False)
    trees = scipy.cluster.hierarchy
    tree = trees.linkage(apart, "average")
    return [int(i) for i in trees.leaves_list(trees.optimal_leaf_ordering(tree, apart))]
