"""What labels add: information value, drift, and how far bins explain numbers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from strategies.binning.label_sums import PartyBins
from strategies.binning.woe import information_value, stability_index, weight_of_evidence
from strategies.explore.associations import correlation_ratio

BANDS = ((0.02, "none"), (0.1, "weak"), (0.3, "medium"), (0.5, "strong"), (np.inf, "suspicious"))
"""How Siddiqi (2006, chapter 6) reads information values: each is below the bound."""


def band(value: float) -> str:
    """Return the word for an information value, "" where there is none."""
    return "" if np.isnan(value) else next(word for bound, word in BANDS if value < bound)


def by_bin(opened: Mapping[str, PartyBins], labels: Array, middle: float) -> pd.DataFrame:
    """Return what was opened of each bin; index (party, variable, bin).

    With labels of two values, of which the larger one is the event: ``events``, ``rate``, ``woe``
    and ``iv``; with others the ``mean`` label. `labels` are finite;
    sums were opened of labels less `middle`.
    """
    low, high = float(labels.min()), float(labels.max())
    two = len(np.unique(labels)) == 2
    frames = {}
    for party, found in opened.items():
        frame = found.frame.rename_axis(["variable", "bin"])
        if two:
            frame["events"] = ((frame["sum"] - low * frame["n"]) / (high - low)).round()
            frame["rate"] = frame["events"] / frame["n"]
            for name, part in (("woe", weight_of_evidence), ("iv", information_value)):
                values = [
                    part(own["n"].to_numpy(), own["events"].to_numpy())
                    for _, own in frame.groupby(level="variable", sort=False)
                ]
                frame[name] = np.concatenate(values) if values else []
            frame.loc[frame["n"].isna(), ["woe", "iv"]] = np.nan
        else:
            frame["sum"] += middle * frame["n"]
            frame["mean"] = frame["sum"] / frame["n"]
        frames[party] = frame
    out = pd.concat(frames, names=["party"])
    first = ["n", "events", "rate", "woe", "iv"] if two else ["n", "sum", "mean"]
    return out[[*first, "unlabelled"]]


def by_variable(bins: pd.DataFrame, squares: Mapping[str, float], middle: float) -> pd.DataFrame:
    """Return information value (or eta of the labels by bin) and drift; index (party, variable).

    ``psi`` is the population stability index of the rows without a label against those with one.
    `squares`: by party, the sum of squares of labels less `middle` over its rows.
    """
    lines = {}
    for (party, name), own in bins.groupby(level=["party", "variable"], sort=False):
        n, free = own["n"].to_numpy(dtype=float), own["unlabelled"].to_numpy(dtype=float)
        known = np.isfinite(n).all()
        line: dict[str, object] = {"bins": len(own)}
        if "iv" in own:
            value = float(own["iv"].sum()) if known else float("nan")
            line |= {"iv": value, "band": band(value)}
        else:
            sums = n * (own["mean"].to_numpy(dtype=float) - middle)
            line["eta"] = correlation_ratio(n, sums, squares[str(party)]) if known else np.nan
        drift = known and np.isfinite(free).all() and free.sum() > 0
        line["psi"] = stability_index(n, free) if drift else np.nan
        lines[party, name] = line
    index = pd.MultiIndex.from_tuples(list(lines), names=["party", "variable"])
    frame = pd.DataFrame(list(lines.values()), index=index)
    by = "iv" if "iv" in frame else "eta"
    return frame.sort_values(by, ascending=False, kind="stable")
