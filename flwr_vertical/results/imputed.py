"""Figures of imputed values: against the truth where it is known, else against the observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from flwr_vertical.results import figures as fg

_MOST_POINTS = 1500


class Imputed(NamedTuple):
    """One column of a party: what was given, what was filled in, and the truth where known."""

    party: str
    column: str
    observed: pd.Series
    filled: pd.Series
    truth: pd.Series | None
    numeric: bool

    def pairs(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return true and imputed values, as numbers, where both are finite."""
        assert self.truth is not None
        true = self.truth.to_numpy(dtype=float, na_value=np.nan)
        filled = self.filled.to_numpy(dtype=float, na_value=np.nan)
        finite = np.isfinite(true) & np.isfinite(filled)
        return true[finite], filled[finite]

    @property
    def name(self) -> str:
        """Party and column, on one line."""
        return f"{self.party} · {self.column}"

    @property
    def title(self) -> str:
        """Party and column, as the title of a small panel."""
        return f"{fg.plain(self.party, 26)}\n{fg.plain(self.column, 26)}"


def imputed_columns(
    originals: Mapping[str, pd.DataFrame],
    tables: Mapping[str, pd.DataFrame],
    truth: Mapping[str, pd.DataFrame],
) -> list[Imputed]:
    """Return the columns in which cells were filled in, the most imputed first."""
    found = []
    for party, given in originals.items():
        if party not in tables:
            continue
        after = tables[party]
        before = given.reindex(after.index)
        for column in (c for c in after.columns if c in given.columns):
            was_missing = before[column].isna() & after[column].notna()
            if not was_missing.any():
                continue
            filled = after.loc[was_missing, column]
            true = truth[party][column] if column in truth.get(party, ()) else None
            if true is not None:
                true = true.reindex(filled.index)
            observed = given[column].dropna()
            numeric = _is_numeric(observed, filled, true)
            item = Imputed(party, str(column), observed, filled, true, numeric)
            if true is not None and (true.isna().all() or (numeric and not len(item.pairs()[0]))):
                item = item._replace(truth=None)
            found.append(item)
    return sorted(found, key=lambda item: -len(item.filled))


def errors(columns: Sequence[Imputed]) -> pd.DataFrame:
    """Return how far imputed values are from the truth: one row per column whose truth is known.

    ``rmse / sd`` compares the error with the spread of the true values: about 1 is as good as
    filling in the mean.
    """
    rows, keys = [], []
    for item in (item for item in columns if item.truth is not None):
        row: dict[str, float]
        if item.numeric:
            true, filled = item.pairs()
            off, spread = filled - true, float(np.std(true))
            rmse = _rmse(true, filled)
            row = {"imputed": len(true), "rmse": rmse, "bias": float(off.mean())}
            row["rmse / sd"] = rmse / spread if spread > 0 else np.nan
        else:
            hits, _ = _accuracy(item)
            row = {"imputed": len(item.filled), "accuracy": hits}
        rows.append(row)
        keys.append((item.party, item.column))
    if not rows:
        return pd.DataFrame()
    return pd.DataFrame(rows, index=pd.MultiIndex.from_tuples(keys, names=["party", "column"]))


def scatter_figure(columns: Sequence[Imputed]) -> str:
    """Draw true against imputed values of numeric columns, one panel each, as SVG."""
    figure, axes = fg.small_multiples(len(columns), height=2.75)
    for ax, item in zip(axes, columns, strict=True):
        true, filled = item.pairs()
        low, high = min(true.min(), filled.min()), max(true.max(), filled.max())
        margin = 0.05 * (high - low) or 1.0
        ends = (low - margin, high + margin)
        ax.plot(ends, ends, color=fg.SOFT, linewidth=1, linestyle=(0, (4, 3)))
        take = np.linspace(0, len(true) - 1, min(len(true), _MOST_POINTS)).astype(int)
        strength = 0.65 if len(take) < 200 else 0.35
        ax.scatter(
            true[take], filled[take], s=11, color=fg.colour(0), alpha=strength, linewidths=0,
            rasterized=True,
        )  # fmt: skip
        ax.set(xlim=ends, ylim=ends, box_aspect=1)
        note = f"RMSE {_rmse(true, filled):.3g}\nn = {len(true):,}"
        ax.text(0.04, 0.96, note, transform=ax.transAxes, va="top", fontsize=8, color=fg.SOFT)
        ax.locator_params(nbins=4)
        fg.label(ax, item.title, "true", "imputed")
    return fg.to_svg(figure)


def accuracy_figure(columns: Sequence[Imputed]) -> str:
    """Draw how often the imputed category is the true one, beside the commonest guess, as SVG."""
    hits, guesses = zip(*map(_accuracy, columns), strict=True)
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
    fg.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return fg.to_svg(figure)


def distributions_figure(columns: Sequence[Imputed]) -> str:
    """Draw the distributions of observed and imputed values, one panel per column, as SVG."""
    figure, axes = fg.small_multiples(len(columns))
    for ax, item in zip(axes, columns, strict=True):
        if item.numeric:
            _histograms(ax, item)
        else:
            _shares(ax, item)
        y = "density" if item.numeric else "share"
        fg.label(ax, item.title, f"value ({len(item.filled):,} imputed)", y)
    fg.legend(axes[0], loc="best")
    return fg.to_svg(figure)


def _histograms(ax: Axes, item: Imputed) -> None:
    observed, filled = item.observed.to_numpy(dtype=float), item.filled.to_numpy(dtype=float)
    observed, filled = observed[np.isfinite(observed)], filled[np.isfinite(filled)]
    bins = np.histogram_bin_edges(np.concatenate([observed, filled]), bins=24).tolist()
    # A column may be missing altogether; a density of nothing would divide by zero.
    if len(observed):
        ax.hist(observed, bins, density=True, color="#c3cfda", label="observed")
    ax.hist(filled, bins, density=True, histtype="step", color=fg.colour(1), linewidth=1.6,
            label="imputed")  # fmt: skip
    ax.set_yticks([])
    ax.locator_params(axis="x", nbins=4)


def _shares(ax: Axes, item: Imputed) -> None:
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


def _rmse(true: npt.NDArray[np.float64], filled: npt.NDArray[np.float64]) -> float:
    with np.errstate(over="ignore"):  # a run that diverged has an infinite error
        return float(np.sqrt(np.mean((filled - true) ** 2)))


def _accuracy(item: Imputed) -> tuple[float, float]:
    """Return how often the imputed category is right, and how often the commonest one is."""
    assert item.truth is not None
    known = item.truth.notna()
    true = as_labels(item.truth[known]).to_numpy()
    common = as_labels(item.observed).mode()
    guess = float(np.mean(true == common.iloc[0])) if len(common) else 0.0
    return float(np.mean(true == as_labels(item.filled[known]).to_numpy())), guess


def as_labels(values: pd.Series) -> pd.Series:
    """Return categories as text: those of 1, 1.0 and True of different dtypes are alike."""
    numeric = pd.to_numeric(values.astype(object), errors="coerce")
    if len(values) and bool(numeric.notna().all()):
        return numeric.astype(float).map(lambda value: f"{value:g}")
    return values.astype(str)


def _is_numeric(observed: pd.Series, filled: pd.Series, true: pd.Series | None) -> bool:
    parts = [part for part in (observed, filled, true) if part is not None and len(part)]
    for part in parts:
        if not pd.api.types.is_numeric_dtype(part) or pd.api.types.is_bool_dtype(part):
            return False
    # Two values only, and nothing between them: a binary column is better read as categories.
    return int(pd.concat([part.dropna() for part in parts]).nunique()) > 2
