"""What was expected, as rows that pass or fail."""

from typing import Any

import pandas as pd

from simulations.page import FAIL, PASS
from simulations.vfem.methods import BASELINES
from simulations.vfem.tables import finite, inference, paired

MEASURES = {"coefficients": "coefficient RMSE", "prediction": "prediction error"}


def ahead(frame: pd.DataFrame, least: float, method: str = "VFEM") -> pd.DataFrame:
    """Whether a method beats every baseline, wherever at least a share of `least` is missing.

    Methods are compared over the runs that both could fit; a baseline that could fit none is
    beaten.
    """
    columns = {}
    for number, title in MEASURES.items():
        gaps = paired(frame, number, method)
        gaps = gaps[gaps.index.get_level_values("rate") >= least]
        fitted = finite(frame, number)[method].reindex(gaps.index).notna()
        columns[title] = pd.Series(
            [
                _verdict([name for name in BASELINES if gap[name] <= 0]) if fits else f"{FAIL} none"
                for (_, gap), fits in zip(gaps.iterrows(), fitted, strict=True)
            ],
            index=gaps.index,
        )
    return pd.DataFrame(columns)


def _verdict(ahead: list[str]) -> str:
    return f"{FAIL} {', '.join(ahead)}" if ahead else PASS


def intervals(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether intervals cover, and standard errors are right, for every party."""
    low, high = settings["coverage"]
    table = inference(frame, "inference")
    table = table[table.index.get_level_values("kind") == "VFEM"]
    table = table.droplevel(["rows", "cross"])[["runs", "coverage", "SE / SD"]].copy()
    covers = table["coverage"].between(low, high)
    right = (table["SE / SD"] - 1).abs() <= settings["se_within"]
    table[f"coverage {low:g} to {high:g}"] = covers.map({True: PASS, False: FAIL})
    table[f"SE within {settings['se_within']:.0%}"] = right.map({True: PASS, False: FAIL})
    return table


def cost(summary: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether VFEM on the SME-like data is fast, small and closer to the truth than others."""
    rmse = summary["RMSE, standard units"]
    rows = {}
    for name in summary.index:
        if name != "VFEM":
            continue
        values = summary.loc[name]
        row = {
            f"at most {settings['target_seconds']:g} s": values["seconds"]
            <= settings["target_seconds"],
            f"at most {settings['target_gib']:g} GiB": values["peak GiB"] <= settings["target_gib"],
        }
        for other in ("CC", "Impute"):
            known = other in rmse.index and pd.notna(rmse[other])
            row[f"RMSE below {other}"] = not known or rmse[name] < rmse[other]
        rows[name] = {title: PASS if good else FAIL for title, good in row.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
