"""From replications to tables like the paper's Tables 2 and 3, and Figure 4."""

from typing import Any

import numpy as np
import pandas as pd

from simulations.vfem.sme import correlation, scales
from simulations.vfem.tables import part

METHODS = ("Single", "CC", "Impute", "VFEM")
PRINTED = ("Single", "CC", "Impute", "CC-VFEM", "Impute-VFEM")
PAPER_COLUMN = ", paper"
LEVEL = 0.05
INDEPENDENT = "complete cases if institutions were independent"


def estimates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return estimates, standard errors and p-values of the SME-like data."""
    chosen = frame[frame["part"] == "sme"]
    split = chosen["metric"].str.split("/", expand=True).reindex(columns=range(3))
    cells = chosen.assign(number=split[0], party=split[1], variable=split[2])
    cells = cells[cells["number"].isin(["estimate", "std_error", "p_value"])]
    table = cells.pivot_table(
        index=["party", "variable"], columns=["number", "method_name"], values="value", sort=False
    )
    return table.rename_axis(columns=["number", "method"])


def like_table3(
    found: pd.DataFrame, truth: "pd.Series[float]", paper: pd.DataFrame
) -> pd.DataFrame:
    """Return estimates (standard errors), * where significant at 5 %, beside the paper's."""
    text = pd.DataFrame({"truth": [f"{value:.4f}" for value in truth]}, index=truth.index)
    for method in dict.fromkeys((*METHODS, *PRINTED)):
        if ("estimate", method) in found:
            text[method] = [_cell(found, key, method) for key in truth.index]
        if method in paper:
            text[f"{method}{PAPER_COLUMN}"] = paper[method].reindex(truth.index).fillna("–")
    numbers = {name: k for k, name in enumerate(dict.fromkeys(truth.index.get_level_values(0)), 1)}
    return text.rename(index=numbers, level=0).rename_axis(index=["client", "variable"])


def _cell(found: pd.DataFrame, key: tuple[str, str], method: str) -> str:
    numbers = [found[number, method].get(key) for number in ("estimate", "std_error", "p_value")]
    if any(number is None or pd.isna(number) for number in numbers):
        return "–"
    estimate, error, p = (float(number) for number in numbers if number is not None)
    return f"{estimate:.4f} ({error:.4f}){'*' if p < LEVEL else ''}"


def paper_cells(*papers: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's Tables 2 and 3 as text, index (party, variable)."""
    known = pd.concat(papers).dropna(subset=["source"])
    known = known.drop_duplicates(["source", "variable", "method"])
    star = known["significant"].astype(str).str.lower().map({"true": "*"}).fillna("")
    estimate, error = (known[name].map("{:.4f}".format) for name in ("estimate", "std_error"))
    text = estimate + " (" + error + ")" + star
    cells = known.assign(text=text).set_index(["source", "variable", "method"])["text"]
    return cells.unstack("method").rename_axis(index=["party", "variable"], columns=None)


def summary(frame: pd.DataFrame, papers: list[pd.DataFrame]) -> pd.DataFrame:
    """One row for each method: adjusted R2 beside the paper's, RMSE, rows, time and memory."""
    chosen = frame[(frame["part"] == "sme") & ~frame["metric"].str.contains("/")]
    wide = chosen.pivot_table(index="method_name", columns="metric", values="value")
    wide = wide.reindex([name for name in METHODS if name in wide.index])
    columns = {
        "n_samples": "rows used", "adjusted_r2": "adjusted R2",
        "coefficients": "RMSE, standard units", "raw coefficients": "RMSE, raw", "rounds": "rounds",
        "seconds": "seconds", "cpu seconds": "CPU seconds", "GiB": "peak GiB",
    }  # fmt: skip
    table = wide[[name for name in columns if name in wide]].rename(columns=columns)
    rows = pd.concat(papers)
    printed = rows[rows["variable"] == "adjusted_r2"].drop_duplicates("method")
    place = list(table.columns).index("adjusted R2") + 1 if "adjusted R2" in table else 0
    values = printed.set_index("method")["estimate"].rename({"CC-VFEM": "VFEM"})
    table.insert(place, "adjusted R2, paper", values.reindex(table.index))
    return table.rename_axis(index="method", columns=None)


def data_check(sme: dict[str, Any], counts: dict[str, float]) -> pd.DataFrame:
    """Return what the paper says of its data and what the generator gives."""
    sizes = [len(party["variables"]) for party in sme["parties"].values()]
    owner, above = np.repeat(np.arange(len(sizes)), sizes), np.triu_indices(sum(sizes), 1)
    size, same = np.abs(correlation(sme))[above], np.equal.outer(owner, owner)[above]
    scale = scales(sme)
    rows = {
        "rows": (166207, counts["rows"]),
        "complete cases": (96, counts["complete cases"]),
        INDEPENDENT: (None, counts["independent"]),
        "correlation of what is missing": (None, counts["shared"]),
        "mean absolute correlation within": (0.28, float(size[same].mean())),
        "mean absolute correlation between": (0.03, float(size[~same].mean())),
        "smallest and largest scale of a column": (None, f"{scale.min():.2f}, {scale.max():.1f}"),
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["paper", "here"])


def runs(frame: pd.DataFrame, name: str, number: str) -> pd.DataFrame:
    """Values of all runs of a part: index ``seed``, a column for each method."""
    chosen = part(frame, name, number)
    table = chosen.pivot_table(index="seed", columns="method", values="value")
    return table[[m for m in METHODS if m in table]].rename_axis(columns=None)


def splits(frame: pd.DataFrame) -> pd.DataFrame:
    """Median, mean and standard deviation of the prediction error over random splits."""
    values = runs(frame, "splits", "prediction")
    table = values.agg(["median", "mean", "std"]).T.rename(columns={"std": "SD"})
    table["splits"] = values.notna().sum()
    table["coefficient RMSE"] = runs(frame, "splits", "coefficients").mean()
    return table.rename_axis(index="method")


def repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean coefficient RMSE by variant and method, and in how many data sets VFEM beats Impute."""
    rows = {}
    for variant in dict.fromkeys(frame.loc[frame["part"] == "repeats", "variant"]):
        values = runs(frame[frame["variant"] == variant], "repeats", "coefficients")
        rows[variant] = {
            **values.mean(),
            "data sets": len(values),
            "ahead of Impute": int((values["VFEM"] < values["Impute"]).sum()),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variant")
