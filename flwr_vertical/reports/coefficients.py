"""Coefficients, and the path of penalised fits: by lambda, with the criterion that chose."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import Item, Section, folded_html
from flwr_vertical.results.data import ResultData

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
        fg.grid_lines(ax)
        if chosen is not None and np.isfinite(chosen) and chosen > 0:
            ax.axvline(chosen, **fg.GUIDE)
    fg.label(axes[0], "Coefficients", "lambda", what)
    # Beside the axes: lines fill them.
    fg.legend(axes[0], loc="outside right upper")
    return fg.to_svg(figure)


def sections(result: ResultData) -> Iterator[Section]:
    """Return the coefficients' section, and that of a path of penalised fits."""
    frame = result.coefficients
    if frame is not None and not frame.empty:
        items: list[Item] = []
        spreads = spreads_of(result)
        figure = fg.coefficients_figure(frame, spreads) if "estimate" in frame else None
        if figure:
            items.append(figure)
        items.append(folded_html(frame, f"All {len(frame)} estimates"))
        caption = (
            "Standardised is by how much the prediction changes as the variable rises by one of "
            "its standard deviations: that can be compared between variables."
        )
        yield Section("Coefficients", items, caption if spreads is not None else "")
    path = getattr(result.model, "path", None)
    estimates = getattr(result.model, "path_coefficients", None)
    if isinstance(path, pd.DataFrame) and isinstance(estimates, pd.DataFrame):
        spreads = None if frame is None else spreads_of(result)
        if figure := path_figure(path, estimates, spreads, result.metrics.get("lambda")):
            caption = (
                "Coefficients as the weight of the penalty falls, from left to right; the dashed "
                "line is the model that was chosen."
            )
            yield Section("Path of the penalty", figure, caption)
    yield from getattr(result.model, "sections", tuple)()  # a strategy's own


def spreads_of(result: ResultData) -> pd.Series | None:
    """Return standard deviations of the coefficients' variables, as far as tables are known."""
    assert result.coefficients is not None
    found = {
        key: spread_of(result.originals[key[0]], str(key[1]))
        for key in result.coefficients.index
        if isinstance(key, tuple) and key[0] in result.originals
    }
    known = {key: spread for key, spread in found.items() if spread is not None and spread > 0}
    return pd.Series(known, dtype=float) if known else None


def spread_of(table: pd.DataFrame, variable: str) -> float | None:
    """Return the standard deviation of a column, or of the indicator ``column=level``."""
    if variable in table:
        column = table[variable]
        numeric = pd.api.types.is_numeric_dtype(column)
        return float(column.astype(float).std()) if numeric else None
    name, _, level = variable.partition("=")
    if not level or name not in table:
        return None
    known = table[name].dropna()
    return float((known.astype(str) == level).astype(float).std()) if len(known) else None
