"""Imputed values: against the truth where it is known, else against the observed."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from flwr_vertical.grading.quality import bin_edges, is_synthetic
from flwr_vertical.pages import figures as fg
from flwr_vertical.pages.page import Item, Section, dataframe_html, details_html, folded_html
from flwr_vertical.results import imputation
from flwr_vertical.results.data import ResultData
from flwr_vertical.tables.codes import as_labels

_MOST_PANELS = 12


def scatter_figure(columns: Sequence[imputation.Imputed]) -> str:
    """Draw true against imputed values of numeric columns, one panel each, as SVG."""
    figure, axes = fg.small_multiples(len(columns), height=2.75)
    for ax, item in zip(axes, columns, strict=True):
        true, filled = item.pairs()
        fg.diagonal(ax, true, filled)
        mean = imputation.rmse(true, np.float64(item.observed.mean()))
        of_mean = f" (mean: {mean:.3g})" if np.isfinite(mean) else ""
        note = f"true\nRMSE {imputation.rmse(true, filled):.3g}{of_mean}\nn = {len(true):,}"
        if item.intervals is not None and item.truth is not None:
            of = item.intervals.assign(true=item.truth.astype(float)).dropna()
            ax.vlines(*of[["true", "lower", "upper"]].iloc[: fg.MOST_POINTS].to_numpy().T,
                      color=fg.colour(0), alpha=0.12, linewidth=0.8, rasterized=True)  # fmt: skip
            inside = of["true"].between(of["lower"], of["upper"]).mean()
            note += f"\n{inside:.1%} in 95 % intervals" if len(of) else ""
        ax.locator_params(nbins=4)
        fg.label(ax, _title(item), note, "imputed")
    return fg.to_svg(figure)


def accuracy_figure(columns: Sequence[imputation.Imputed]) -> str:
    """Draw how often the imputed category is the true one, beside the commonest guess, as SVG."""
    hits, guesses = zip(*map(imputation.share_right, columns), strict=True)
    figure, (ax,) = fg.new_figure(1.0 + 0.32 * len(columns))
    place = np.arange(len(columns))[::-1]
    ax.barh(place, hits, 0.6, color=fg.colour(5), label="imputed = true")
    ax.plot(guesses, place, "|", color=fg.INK, ms=14, mew=2, label="always the commonest category")
    for y, hit in zip(place, hits, strict=True):
        ax.text(0.01, y, f"{hit:.0%}", va="center", fontsize=8.5, color=fg.INK)
    ax.set_yticks(place, [fg.plain(item.name) for item in columns])
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    fg.label(ax, "", "share of imputed cells", "column")
    fg.legend(ax, loc="outside upper left", ncols=2)
    return fg.to_svg(figure)


def distributions_figure(columns: Sequence[imputation.Imputed]) -> str:
    """Draw the distributions of observed and imputed values, one panel per column, as SVG."""
    figure, axes = fg.small_multiples(len(columns))
    for ax, item in zip(axes, columns, strict=True):
        if item.numeric:
            _histograms(ax, item)
        else:
            _shares(ax, item)
        y = "density" if item.numeric else "share"
        fg.label(ax, _title(item), f"value ({len(item.filled):,} imputed)", y)
    fg.legend(axes[0], loc="best")
    return fg.to_svg(figure)


def _histograms(ax: Axes, item: imputation.Imputed) -> None:
    observed, filled = item.observed.to_numpy(dtype=float), item.filled.to_numpy(dtype=float)
    observed, filled = observed[np.isfinite(observed)], filled[np.isfinite(filled)]
    bins = bin_edges(np.concatenate([observed, filled]), 24).tolist()
    # A column may be missing altogether; a density of nothing would divide by zero.
    if len(observed):
        ax.hist(observed, bins, density=True, color="#c3cfda", label="observed")
    ax.hist(filled, bins, density=True, histtype="step", color=fg.colour(1), linewidth=1.6,
            label="imputed")  # fmt: skip
    ax.set_yticks([])
    ax.locator_params(axis="x", nbins=4)


def _shares(ax: Axes, item: imputation.Imputed) -> None:
    observed = as_labels(item.observed).value_counts(normalize=True)
    filled = as_labels(item.filled).value_counts(normalize=True)
    names = list(observed.add(filled, fill_value=0).sort_values(ascending=False).index[:8])
    place = np.arange(len(names))
    ax.bar(place - 0.2, observed.reindex(names, fill_value=0), 0.38, color="#c3cfda",
           label="observed")  # fmt: skip
    ax.bar(place + 0.2, filled.reindex(names, fill_value=0), 0.38, color=fg.colour(1),
           label="imputed")  # fmt: skip
    ax.set_xticks(place, [fg.plain(name, 9) for name in names])
    if len(names) > 4:
        ax.tick_params(axis="x", labelrotation=45)


def _title(item: imputation.Imputed) -> str:
    return f"{fg.plain(item.party, 22)}\n{fg.plain(item.column, 22)}"


def columns_of(result: ResultData) -> list[imputation.Imputed]:
    """Return the imputed columns of a result: those it was compared in, or those it tells of."""
    judged = result._judged or (result.originals, _filled(result), result.truth)
    return imputation.imputed_columns(*judged, result.intervals)


def sections(result: ResultData) -> Iterator[Section]:
    """Return the sections on imputed values, with the truth and without."""
    columns = columns_of(result)
    known = [item for item in columns if item.truth is not None]
    guess = [item for item in columns if item.truth is None]
    if known:
        items: list[Item] = []
        numeric = [item for item in known if item.numeric]
        categories = [item for item in known if not item.numeric]
        if numeric:
            items.append(scatter_figure(numeric[:_MOST_PANELS]))
        if categories:
            items.append(accuracy_figure(categories[:_MOST_PANELS]))
        caption = "Imputed cells whose true value is known. On the dashed line both are equal."
        if result.imputation is None:
            table = dataframe_html(imputation.imputation_quality(known))
            items.append(details_html(f"Errors of all {len(known)} columns", table))
        else:
            what = f"Errors of all {len(result.imputation)} columns"
            items.append(folded_html(result.imputation, what))
            caption += (
                " Beside the error of a column stands that of its mean (of levels, the most "
                "frequent one), and of the party alone where it was run; skill is the share of the "
                "mean's squared error, or wrong cells, that is removed: below 0 the mean is better."
            )
            if result.settings.get("hold_out"):
                caption += " Cells were held out of the run for this, and put back."
        caption += _left_out("numeric columns", len(numeric))
        caption += _left_out("categorical columns", len(categories))
        yield Section("Imputed against true values", items, caption)
    sure = [item for item in columns if item.intervals is not None]
    if sure:
        caption = (
            "The standard error of an imputed value, and what it is of the standard deviation of "
            "observed ones: on average over cells with an interval, which is 1.96 of it to each "
            "side. Without one are cells that depend on relations which nobody could estimate."
        )
        yield Section("How sure imputed values are", dataframe_html(errors_of(sure)), caption)
    if guess and result._judged is None:
        figure = distributions_figure(guess[:_MOST_PANELS])
        caption = "What is missing may truly differ from what is seen: unlike shapes need no error."
        caption += _left_out("columns", len(guess))
        yield Section("Imputed and observed values", figure, caption)


def errors_of(columns: Sequence[imputation.Imputed]) -> pd.DataFrame:
    """Return, by column, how many cells have an interval, and the mean standard error."""
    rows = {}
    for item in columns:
        assert item.intervals is not None
        error, observed = item.intervals["std_error"].dropna(), item.observed.astype(float)
        rows[item.party, item.column] = {
            "cells": len(item.filled),
            "with interval": len(error),
            "std_error": error.mean(),
            "std_error / sd": error.mean() / (observed.std(ddof=0) or np.nan),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["party", "column"])


def _filled(result: ResultData) -> dict[str, pd.DataFrame]:
    """Return the parties' tables that are no synthetic ones."""
    return {
        name: table
        for name, table in result.tables.items()
        if name in result.originals and not is_synthetic(result.originals[name], table)
    }


def _left_out(what: str, count: int) -> str:
    if count <= _MOST_PANELS:
        return ""
    return f" Drawn are the {_MOST_PANELS} most imputed of {count} {what}."
