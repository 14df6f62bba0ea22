"""What was expected, as rows that pass or fail."""

from typing import Any

import numpy as np
import pandas as pd

from simulations.copula.mechanisms import MAR_COMPLEX
from simulations.copula.methods import FEDERATED, FRESH, ORACLE
from simulations.copula.tables import TITLES
from simulations.page import at_least, at_most, indexed, matching, select, verdict

SYNTHETIC = ("VCDS", "EVCDS", "EVCDS" + FRESH)
_ERRORS = 2.0  # "no worse": by no more than so many standard errors of our mean
ROUNDS = 200


def synthetic(ours: pd.DataFrame, paper: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """RMSE and G-means of synthetic tables against limits from the paper's Tables 1 and 2."""
    rows = {}
    for key in ours.index:
        model, n, epsilon, name = key
        if name not in SYNTHETIC:
            continue
        values = ours.loc[key]
        where = {"model": model, "rows": n, "epsilon": epsilon}
        printed = _printed(paper, **where, method=name.removesuffix(FRESH))
        if printed is None:
            continue
        most = part["rmse_within"] * printed["rmse"]
        least = printed["g_means"] - part["g_means_within"]
        rows[key] = {
            "RMSE (at most)": at_most(values["rmse"], most),
            "G-means (at least)": at_least(values["g_means"], least),
        }
    return indexed(rows, ["model", "rows", "epsilon", "method"])


def unprotected(ours: pd.DataFrame, paper: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """VFL-GLM-VS on the data themselves, no worse than the paper's; and how many rounds it took."""
    rows = {}
    for key in ours.index:
        model, n, _, name = key
        if name != FEDERATED:
            continue
        values = ours.loc[key]
        row: dict[str, str] = {}
        oracle = select(ours, model=model, rows=n, method=ORACLE)["rmse"]
        printed = _printed(paper, model=model, rows=n, method=name)
        if printed is not None and n >= part["targets_from"]:
            for measure, title in TITLES.items():
                error = np.nan_to_num(values[f"se {measure}"])
                sign = -1.0 if measure == "g_means" else 1.0
                worse = sign * (values[measure] - printed[measure])
                good = bool(worse <= _ERRORS * error)
                found = f"{values[measure]:.3f} ({printed[measure]:.3f})"
                row[f"{title} (paper's)"] = verdict(good, found)
        if len(oracle):
            row["RMSE on the true support"] = f"{oracle.iloc[0]:.3f}"
        took = values["iterations"]
        row[f"rounds to tolerance (at most {ROUNDS})"] = verdict(took <= ROUNDS, f"{took:.0f}")
        rows[model, n] = row
    return indexed(rows, ["model", "rows"]).fillna("–")


def ranking(ours: pd.DataFrame, paper: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Under MAR complex: IEVCDS >= EVCDS >= Impute and CC in G-means, each near the paper's."""
    rows = {}
    for model, mechanism, n in dict.fromkeys(key[:3] for key in ours.index):
        if mechanism != MAR_COMPLEX or n < part["targets_from"]:
            continue
        chosen = select(ours, model=model, mechanism=mechanism, rows=n)
        own = chosen.droplevel(["model", "mechanism", "rows"])["g_means"]
        for suffix in ("", FRESH):
            best, next_best = own.get("IEVCDS" + suffix), own.get("EVCDS" + suffix)
            others = [own[name] for name in ("Impute-EVCDS", "CC-EVCDS") if name in own]
            if best is None or next_best is None or not others:
                continue
            row = {
                "IEVCDS ≥ EVCDS": at_least(best, next_best),
                "EVCDS ≥ Impute, CC": at_least(next_best, max(others)),
            }
            for name in ("IEVCDS", "EVCDS"):
                printed = _printed(paper, model=model, mechanism=mechanism, rows=n, method=name)
                if printed is not None:
                    least = printed["g_means"] - part["g_means_within"]
                    value = own[name + suffix]
                    row[f"{name} (at least)"] = at_least(value, least)
            rows[model, n, "fresh rows" if suffix else "as printed"] = row
    return indexed(rows, ["model", "rows", "synthetic rows"])


def attacked(table: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Attacks gain no more than the points stated, for methods that are meant to protect rows."""
    most = part["points"]
    rows = {
        name: {
            kind: at_most(value, most)
            for kind, value in table.loc[name, ["membership", "attribute"]].items()
        }
        for name in part["targets"]
        if name in table.index
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _printed(paper: pd.DataFrame, **setting: Any) -> "pd.Series[float] | None":
    """Return the paper's numbers of one setting by measure, None where it has none."""
    chosen = paper if paper.empty else matching(paper, **setting)
    return None if chosen.empty else chosen.groupby("metric")["value"].first()
