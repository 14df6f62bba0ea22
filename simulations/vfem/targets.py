"""What was expected, as rows that pass or fail."""

from typing import Any

import pandas as pd

from simulations.page import verdict, verdicts
from simulations.vfem.methods import BASELINES
from simulations.vfem.tables import finite, inference, paired

MEASURES = {"coefficients": "coefficient RMSE", "prediction": "prediction error"}


def ahead(frame: pd.DataFrame, least: float, method: str = "VFEM") -> pd.DataFrame:
    """Whether a method beats all baselines at a rate of `least` or more, where both could fit."""
    columns = {}
    for number, title in MEASURES.items():
        gaps = paired(frame, number, method)
        gaps = gaps[gaps.index.get_level_values("rate") >= least]
        fitted = finite(frame, number)[method].reindex(gaps.index).notna()
        lost = [", ".join(n for n in BASELINES if gap[n] <= 0) for _, gap in gaps.iterrows()]
        columns[title] = pd.Series(
            [
                verdict(fits and not names, names if fits else "none")
                for names, fits in zip(lost, fitted, strict=True)
            ],
            index=gaps.index,
        )
    return pd.DataFrame(columns)


def intervals(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether intervals cover, and standard errors are right, for every party."""
    low, high = settings["coverage"]
    table = inference(frame, "inference")
    table = table[table.index.get_level_values("kind") == "VFEM"]
    table = table.droplevel(["rows", "cross"])[["runs", "coverage", "SE / SD"]].copy()
    covers = table["coverage"].between(low, high)
    right = (table["SE / SD"] - 1).abs() <= settings["se_within"]
    table[f"coverage {low:g} to {high:g}"] = verdicts(covers)
    table[f"SE within {settings['se_within']:.0%}"] = verdicts(right)
    return table


def cost(summary: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether VFEM on the SME-like data is fast, small and closer to the truth than others."""
    rmse = summary["RMSE, standard units"]
    rows = {}
    if "VFEM" in summary.index:
        values = summary.loc["VFEM"]
        seconds, gib = settings["target_seconds"], settings["target_gib"]
        row = {
            f"at most {seconds:g} s": values["seconds"] <= seconds,
            f"at most {gib:g} GiB": values["peak GiB"] <= gib,
        }
        for other in ("CC", "Impute"):
            known = other in rmse.index and pd.notna(rmse[other])
            row[f"RMSE below {other}"] = not known or rmse["VFEM"] < rmse[other]
        rows["VFEM"] = {title: verdict(good) for title, good in row.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
