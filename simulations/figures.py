"""What figures of studies draw alike: lines of means, and boxes with every run as a dot."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from flwr_vertical.pages.figures import colour


def line(ax: Axes, x: Any, y: Any, number: int, name: str, style: str = "o-") -> None:
    """Draw a line of means with a dot at each, in the colour of its number."""
    ax.plot(x, y, style, color=colour(number), label=name, markersize=4, linewidth=1.5)


def boxes(ax: Axes, samples: Sequence["pd.Series[float]"], names: Sequence[Any], at: str) -> None:
    """Draw boxes of the middle half, a line at the mean or median, and every run as a dot."""
    for j, values in enumerate(samples):
        low, high = np.percentile(values, [25, 75])
        ax.bar(j, high - low, 0.5, bottom=low, color=colour(j), alpha=0.25)
        ax.hlines(float(values.agg(at)), j - 0.25, j + 0.25, color=colour(j), linewidth=2)
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
        ax.scatter(j + spread, values, s=8, color=colour(j), linewidth=0)
    ax.set_xticks(np.arange(len(samples)), list(names))
    ax.set_axisbelow(True)
