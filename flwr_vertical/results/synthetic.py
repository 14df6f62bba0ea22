"""Figures of synthetic values beside the observed ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from flwr_vertical.results import figures as fg
from flwr_vertical.results.quality import Correlations, Pair, level_shares


def margins_figure(pairs: Sequence[Pair]) -> str:
    """Draw real and synthetic distributions, one panel for each column, as SVG."""
    figure, axes = fg.small_multiples(len(pairs))
    for ax, pair in zip(axes, pairs, strict=True):
        series = (("observed", pair.real), ("synthetic", pair.made))
        if pair.numeric:
            values = [s.to_numpy(dtype=float) for _, s in series]
            low, high = min(v.min() for v in values), max(v.max() for v in values)
            edges = np.linspace(low, high, 31)
            for number, v in enumerate(values):
                ax.hist(
                    v,
                    edges.tolist(),
                    weights=np.full(len(v), 1 / len(v)),
                    histtype="stepfilled" if number == 0 else "step",
                    color=fg.LINE if number == 0 else fg.colour(0),
                    linewidth=1.6,
                    label=series[number][0],
                )
        else:
            shares = pd.DataFrame({name: level_shares(s) for name, s in series}).fillna(0.0)
            shares = shares.sort_values("observed", ascending=False).head(8)
            at = np.arange(len(shares))
            for number, name in enumerate(shares):
                colour = fg.LINE if number == 0 else fg.colour(0)
                ax.bar(at + 0.4 * number - 0.2, shares[name], 0.38, color=colour, label=str(name))
            ax.set_xticks(at, [fg.plain(level, 9) for level in shares.index])
        fg.label(ax, f"{fg.plain(pair.party, 26)}\n{fg.plain(pair.column, 26)}", "", "share")
    fg.legend(axes[0])
    return fg.to_svg(figure)


def correlations_figure(found: Correlations) -> str:
    """Draw each pair's rank correlation before and after, as SVG."""
    figure, (left, right) = fg.new_figure(4.2, 1, 2)
    upper = np.triu_indices(len(found.names), k=1)
    left.plot([-1, 1], [-1, 1], color=fg.SOFT, linewidth=1, linestyle=(0, (4, 3)))
    points = found.real[upper], found.made[upper]
    left.scatter(*points, s=10, color=fg.colour(0), alpha=0.6, rasterized=True)
    left.set(xlim=(-1, 1), ylim=(-1, 1), box_aspect=1)
    fg.label(left, "Rank correlation of each pair of columns", "observed", "synthetic")
    image = right.imshow(found.made - found.real, cmap="RdBu_r", vmin=-0.3, vmax=0.3)
    figure.colorbar(image, ax=right, shrink=0.8)
    parties = [party for party, _ in found.names]
    starts = [k for k in range(len(parties)) if k == 0 or parties[k] != parties[k - 1]]
    right.set_xticks(starts, [fg.plain(parties[k], 12) for k in starts], rotation=45, ha="right")
    right.set_yticks(starts, [fg.plain(parties[k], 12) for k in starts])
    fg.label(right, "Synthetic less observed")
    return fg.to_svg(figure)
