"""What was expected, as rows that pass or fail; what was not run is said to be so."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simulations.fedpsg.floors import BEST, BOOSTED, TRUE
from simulations.fedpsg.tables import KEYS, SEEDS, each, means, paired, whole
from simulations.page import at_least, at_most, indexed, verdict

NOT_RUN = "not run"

Values = dict[str, float]


def errors(frame: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Compare the best variant's RMSE with the conditional mean's, and with what it must beat."""
    rows: dict[Any, dict[str, str]] = {}
    for place, (here, seeds) in by_place(frame, "rmse", part["datasets"]).items():
        ours = {name: here[name] for name in part["best"] if name in here}
        if BEST not in here or not ours:
            continue
        best = min(ours, key=lambda name: ours[name])
        most = here[BEST] + part["rmse_within"]
        printed = here.get(part["paper"], float("nan"))
        beaten = [here.get(name, float("nan")) for name in part["beaten"]]
        rows[place] = {
            "best variant": best,
            "RMSE (at most)": at_most(ours[best], most),
            part["paper"]: NOT_RUN if np.isnan(printed) else f"{printed:.3f}",
            "best below others": below(ours[best], part["beaten"], beaten),
            "paper's below others": below(printed, part["beaten"], beaten),
            SEEDS: f"{min(seeds[name] for name in (best, BEST)):g}",
        }
    return indexed(rows, ["dataset", "ratio"])


def below(value: float, names: Sequence[str], others: Sequence[float]) -> str:
    """Say whether a number is below all others; which of them were not run is said, too."""
    there = {name: n for name, n in zip(names, others, strict=True) if not np.isnan(n)}
    if np.isnan(value) or not there:
        return NOT_RUN
    lost = [f"{name} {other:.3f}" for name, other in there.items() if value >= other]
    text = "not below " + ", ".join(lost) if lost else f"all of {len(there)}"
    absent = len(names) - len(there)
    return verdict(not lost, text + (f" ({absent} {NOT_RUN})" if absent else ""))


def dependence(frame: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Compare drawn rows with conditional means (correlation distance) and copulas (quality)."""
    scores = by_place(frame, "quality", part["datasets"])
    rows: dict[Any, dict[str, str]] = {}
    for place, (here, seeds) in by_place(frame, "correlation", part["datasets"]).items():
        quality = scores[place][0]
        copulas = [quality[name] for name in part["copulas"] if name in quality]
        for name in part["dependence"]:
            row: dict[str, str] = {}
            for other in part["conditional"]:
                if name in here and other in here:
                    most = part["correlation_share"] * here[other]
                    row[f"correlation distance (at most half of {other})"] = at_most(
                        here[name], most
                    )
            if name in quality and copulas:
                row["quality (at least the copulas')"] = at_least(quality[name], max(copulas))
            if row:
                if TRUE in here:
                    row[f"correlation distance of {TRUE}"] = f"{here[TRUE]:.3f}"
                rows[(*place, name)] = {**row, SEEDS: f"{seeds[name]:g}"}
    return indexed(rows, ["dataset", "ratio", "method"])


def training(frame: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Compare classifiers trained on completed tables and on aligned rows alone, seed by seed."""
    rows: dict[Any, dict[str, str]] = {}
    for (aligned, method, name), row in each(paired(frame)):
        few, many = aligned <= part["few"], aligned >= part["many"]
        least = 0.0 if few else -part["loses"]
        error = "" if np.isnan(row["se"]) else f" ± {row['se']:.3f}"
        text = f"{row['gain']:+.3f}{error}"
        key = (int(aligned), method, "above 0" if few else f"at least {least:g}" if many else "–")
        said = verdict(row["gain"] > least, text) if few or many else text
        rows.setdefault(key, {SEEDS: f"{row[SEEDS]:g}"})[name] = said
    return indexed(dict(sorted(rows.items())), ["aligned", "method", "target"])


def default(frame: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Compare the default's error with boosting on A's attributes and with the paper's forms."""
    rows: dict[Any, dict[str, str]] = {}
    keys = ["dataset", "mechanism", "ratio"]
    found = means(frame, "default", [*keys, "method"], "error")
    for place in dict.fromkeys(key[:3] for key in found.index):
        here = {key[3]: row["mean"] for key, row in each(found) if key[:3] == place}
        ours = here.get(part["default"], float("nan"))
        boosted = min(
            (here[name] for name in (BEST, BOOSTED) if name in here), default=float("nan")
        )
        if not np.isfinite([ours, boosted]).all():
            continue
        most = boosted + part["boosted_within"]
        paper = [here.get(name, float("nan")) for name in part["paper_forms"]]
        rows[place] = {
            "error (at most)": at_most(ours, most),
            "below the paper's forms": below(ours, part["paper_forms"], paper),
            SEEDS: f"{found.loc[(*place, part['default']), SEEDS]:g}",
        }
    return indexed(rows, keys)


def by_place(
    frame: pd.DataFrame, metric: str, datasets: Sequence[str]
) -> dict[tuple[Any, ...], tuple[Values, Values]]:
    """Return means and numbers of seeds by method, for each data set and ratio, on all rows.

    Of several Cnum the last one in the order of the preset counts: five, or all attributes.
    """
    found: dict[tuple[Any, ...], tuple[Values, Values]] = {}
    for (dataset, ratio, method, cnum), row in each(means(whole(frame), "rows", KEYS, metric)):
        if dataset in datasets and cnum in (0, 5, 99):
            values, seeds = found.setdefault((dataset, ratio), ({}, {}))
            values[method], seeds[method] = row["mean"], row[SEEDS]
    return dict(sorted(found.items()))
