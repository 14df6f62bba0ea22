"""Figure of a path of penalised fits: coefficients by lambda, and the criterion that chose."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flwr_vertical.results import figures as fg

_MOST_NAMED = 10


def path_figure(
    path: pd.DataFrame,
    estimates: pd.DataFrame,
    spreads: pd.Series | None = None,
    chosen: float | None = None,
) -> str | None:
    """Draw each coefficient along the path, and the criterion of choice where there is one."""
    lambdas = path.index.to_numpy(dtype=float)
    if len(lambdas) < 3 or estimates.shape[1] != len(lambdas) or (lambdas <= 0).any():
        return None
    values = estimates.to_numpy(dtype=float)
    what = "coefficient"
    if spreads is not None and set(estimates.index) <= set(spreads.index):
        values = values * spreads.reindex(estimates.index).to_numpy(dtype=float)[:, None]
        what = "coefficient per standard deviation"
    reach = np.nanmax(np.abs(values), axis=1, initial=0.0)
    if not reach.any():
        return None
    bic = path["bic"].to_numpy(dtype=float) if "bic" in path else np.full(len(path), np.nan)
    with_bic = int(np.isfinite(bic).sum()) > 2
    figure, axes = fg.new_figure(3.6, 1, 2)
    named = set(np.argsort(reach, kind="stable")[::-1][: min(_MOST_NAMED, int((reach > 0).sum()))])
    for number, row in enumerate(sorted(named, key=lambda row: -reach[row])):
        name = " · ".join(map(str, np.atleast_1d(np.asarray(estimates.index[row], dtype=object))))
        solid = number < len(fg.PALETTE)
        axes[0].plot(
            lambdas, values[row], color=fg.colour(number), linewidth=1.5, label=fg.plain(name, 30),
            linestyle="-" if solid else (0, (4, 2)),
        )  # fmt: skip
    for row in set(range(len(values))) - named:
        axes[0].plot(lambdas, values[row], color=fg.LINE, linewidth=0.8, zorder=1)
    if with_bic:
        axes[1].plot(lambdas, bic, color=fg.colour(0), linewidth=1.6, marker="o", markersize=3)
        fg.label(axes[1], "Criterion of choice", "lambda", "BIC")
    else:
        axes[1].set_visible(False)
    for ax in axes:
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.tick_params(which="minor", length=0)
        ax.grid(visible=True, axis="y", color=fg.LINE, linewidth=0.6)
        if chosen is not None and np.isfinite(chosen) and chosen > 0:
            ax.axvline(chosen, color=fg.SOFT, linewidth=1, linestyle=(0, (4, 3)))
    fg.label(axes[0], "Coefficients", "lambda", what)
    # Beside the axes: lines fill them.
    figure.legend(
        handles=axes[0].get_lines()[: len(named)], loc="outside right upper", frameon=False,
        fontsize=8, labelcolor=fg.SOFT,
    )  # fmt: skip
    return fg.to_svg(figure)
