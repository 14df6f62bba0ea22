"""From the numbers of replications to tables, the paper's beside them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simulations.fedpsg.classifiers import CLASSIFIERS
from simulations.fedpsg.floors import BEST, DRAW, MEAN, VALID

FLOORS = (DRAW, MEAN, BEST, VALID)
SEEDS = "seeds"
KEYS = ["dataset", "ratio", "method", "cnum"]
NOTHING = "nothing"
"""The approach that adds no rows, the paper's N-GM."""

_TABLE3 = {"Mean": "mean", "VF-MissFI": "VF-MissFI", "VF-MICE": "VF-MICE"}


def means(frame: pd.DataFrame, part: str, keys: Sequence[str], metric: str) -> pd.DataFrame:
    """Return mean, standard deviation and number of seeds of one metric."""
    names = ["mean", "sd", SEEDS]
    if frame.empty:
        return pd.DataFrame(columns=[*keys, *names]).set_index(list(keys))
    chosen = frame[(frame["part"] == part) & (frame["metric"] == metric)]
    if chosen.empty:  # Settings of parts that were not run are no columns.
        return means(chosen, part, keys, metric)
    groups = chosen.groupby(list(keys), sort=False)["value"]
    found = groups.agg(["mean", "std", "count"])
    return found.set_axis(names, axis=1)


def paper_errors(papers: Sequence[pd.DataFrame]) -> "pd.Series[float]":
    """Return all RMSEs that the paper prints, by `KEYS` and in our names."""
    found: dict[tuple[Any, ...], float] = {}
    for table in papers:
        for row in table.to_dict("records"):
            dataset, ratio = row["dataset"], float(row["missing_ratio"])
            cnum = int(row.get("cnum", 5))
            if "group" in row:
                name = str(row["method"]).replace("CAG/AR-0", "AR-0").replace("-5 (", " (")
                cnum = 5 if "FedPSG" in name and "-0" not in name else 0
            elif "imputation" in row:
                of_b = row.get("federated", True) is False
                imputer = _TABLE3.get(row["imputation"], str(row["imputation"]))
                name = f"FedPSG-AR ({imputer}{' of B' if of_b else ''})"
            else:
                name = f"{row['method']} (VF-GAIN)"
            found[dataset, ratio, name, cnum] = float(row["rmse"])
    index = pd.MultiIndex.from_tuples(list(found), names=KEYS) if found else None
    return pd.Series(list(found.values()), index=index, dtype=float)


def cell(ours: float, paper: "pd.Series[float]", key: tuple[Any, ...]) -> str:
    """Return a number, and the paper's in brackets where it has one."""
    text = "–" if np.isnan(ours) else f"{ours:.3f}"
    return f"{text} ({paper[key]:.3f})" if len(paper) and key in paper.index else text


def each(found: pd.DataFrame) -> list[tuple[tuple[Any, ...], dict[str, float]]]:
    """Return the rows of a table by `means`, as keys and plain numbers."""
    keys = [key if isinstance(key, tuple) else (key,) for key in found.index.tolist()]
    records = [{str(k): float(v) for k, v in row.items()} for row in found.to_dict("records")]
    return list(zip(keys, records, strict=True))


def seeds_text(counts: "pd.Series[int]") -> str:
    """Return how many seeds stand behind the numbers of a row."""
    counts = counts[counts > 0]
    if counts.empty:
        return "0"
    least, most = int(counts.min()), int(counts.max())
    return str(least) if least == most else f"{least} to {most}"


def laid_out(
    found: pd.DataFrame,
    paper: "pd.Series[float]",
    rows: Sequence[str],
    columns: Sequence[tuple[str, str, int]],
) -> pd.DataFrame:
    """Return a table of text, and the floors and numbers of seeds beside it.

    Shapes: columns (title, method, cnum).
    """
    out: dict[tuple[Any, ...], dict[str, str]] = {}
    for dataset, ratio in sorted(set(zip(*_levels(found, rows), strict=True))):
        row: dict[str, str] = {}
        counts = []
        for title, method, cnum in columns:
            key = (dataset, ratio, method, cnum)
            if key in found.index:
                row[title] = cell(float(found.loc[key, "mean"]), paper, key)
                counts.append(int(found.loc[key, SEEDS]))
            else:
                row[title] = cell(float("nan"), paper, key)
        if not counts:
            continue
        for floor in FLOORS:
            if (dataset, ratio, floor, 0) in found.index:
                row[f"floor: {floor}"] = f"{found.loc[(dataset, ratio, floor, 0), 'mean']:.3f}"
        row[SEEDS] = seeds_text(pd.Series(counts))
        out[dataset, ratio] = row
    return _frame(out, list(rows))


def _levels(found: pd.DataFrame, names: Sequence[str]) -> list[list[Any]]:
    return [list(found.index.get_level_values(name)) for name in names]


def _frame(rows: dict[tuple[Any, ...], dict[str, Any]], names: list[str]) -> pd.DataFrame:
    if not rows:
        return pd.DataFrame({"not run": []})
    frame = pd.DataFrame(list(rows.values()))
    frame.index = pd.MultiIndex.from_tuples(list(rows), names=names)
    return frame.fillna("–")


def table12(found: pd.DataFrame, paper: "pd.Series[float]", most: int) -> pd.DataFrame:
    """Tables 1 and 2: errors by Cnum, of attributes generated by rules or by a local generator."""
    short = {"AG": "FedPSG-AG (VF-GAIN)", "AR": "FedPSG-AR (VF-GAIN)"}
    columns = [
        (f"{name}-{cnum}", method, cnum)
        for cnum in range(1, most + 1)
        for name, method in short.items()
    ]
    return laid_out(found, paper, ["dataset", "ratio"], columns)


def table3(found: pd.DataFrame, paper: "pd.Series[float]") -> pd.DataFrame:
    """Table 3: errors by imputer at Cnum 5."""
    names = ("mean", "VF-MissFI", "VF-MICE", "VF-GAIN", "VF-VGAIN", "VF-CGAIN")
    columns = [(name, f"FedPSG-AR ({name})", 5) for name in names]
    return laid_out(found, paper, ["dataset", "ratio"], columns)


def table4(found: pd.DataFrame, paper: "pd.Series[float]") -> pd.DataFrame:
    """Table 4: federated and local imputation by Cnum."""
    columns = [
        (f"{name}, {cnum}", f"FedPSG-AR ({name})", cnum)
        for cnum in (1, 5, 8)
        for name in ("VF-GAIN", "GAIN of B")
    ]
    return laid_out(found, paper, ["dataset", "ratio"], columns)


def table5(found: pd.DataFrame, paper: "pd.Series[float]") -> pd.DataFrame:
    """Table 5: federated and local imputation by network."""
    columns = [
        (name, f"FedPSG-AR ({name})", 5)
        for kind in ("GAIN", "VGAIN", "CGAIN")
        for name in (f"VF-{kind}", f"{kind} of B")
    ]
    return laid_out(found, paper, ["dataset", "ratio"], columns)


def table67(found: pd.DataFrame, paper: "pd.Series[float]", names: Sequence[str]) -> pd.DataFrame:
    """Tables 6 and 7: errors of every method, the floors first."""
    out: dict[tuple[Any, ...], dict[str, str]] = {}
    every = list(dict.fromkeys(found.index))
    ratios = sorted({key[1] for key in every})
    for dataset in dict.fromkeys(key[0] for key in every):
        for name in (*FLOORS, *names):
            row, counts = {}, []
            for ratio in ratios:
                keys = [(dataset, ratio, name, cnum) for cnum in (0, 5)]
                # At all attributes ("99") where rules generate all of B.
                keys += [key for key in every if key[:3] == (dataset, ratio, name)][:1]
                here = next((key for key in keys if key in found.index), None)
                ours = float("nan") if here is None else float(found.loc[here, "mean"])
                counts.append(0 if here is None else int(found.loc[here, SEEDS]))
                printed = next((key for key in keys if key in paper.index), keys[0])
                row[f"{ratio:g}"] = cell(ours, paper, printed)
            if any(counts):
                out[dataset, name] = {**row, SEEDS: seeds_text(pd.Series(counts))}
    return _frame(out, ["dataset", "method"])


def attribute_table(frame: pd.DataFrame, ratio: float) -> pd.DataFrame:
    """RMSE of each of B's attributes at one ratio, by data set and method."""
    if frame.empty:
        return _frame({}, [])
    chosen = frame[
        (frame["part"] == "rows") & (frame["ratio"] == ratio) & (frame["rows"] == 0)
        & frame["metric"].str.startswith("of ")
    ]  # fmt: skip
    out: dict[tuple[Any, ...], dict[str, str]] = {}
    found = chosen.groupby(["dataset", "method", "cnum", "metric"], sort=False)["value"].mean()
    for (dataset, method, _, metric), row in each(found.to_frame("mean")):
        name = str(metric).removeprefix("of ")
        out.setdefault((dataset, name), {})[method] = f"{row['mean']:.3f}"
    return _frame(out, ["dataset", "attribute"])


def quality_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Levels that are right, distances of dependence and margins, copies, membership."""
    titles = {
        "accuracy": "levels right",
        "correlation": "correlation distance",
        "margin": "margin distance",
        "quality": "quality",
        "copies": "rows that B has",
        "copies by chance": "the same of true rows",
        "membership": "membership, points",
    }
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for metric, title in titles.items():
        found = means(_whole(frame), "rows", KEYS, metric)
        for key, row in each(found):
            place = key[:3]
            digits = 1 if metric == "membership" else 3
            value = "–" if np.isnan(row["mean"]) else f"{row['mean']:.{digits}f}"
            out.setdefault(place, {})[title] = value
            out[place][SEEDS] = str(int(row[SEEDS]))
    rows = {key: {**{t: row.get(t, "–") for t in titles.values()}, SEEDS: row[SEEDS]}
            for key, row in out.items()}  # fmt: skip
    return _frame(rows, KEYS[:3])


def _whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frame` on all rows of a data set."""
    return frame if frame.empty or "rows" not in frame else frame[frame["rows"] == 0]


def downstream_table(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Experiment 3: one measure of every classifier by approach."""
    keys = ["dataset", "ratio", "method"]
    return _by_classifier(frame, "downstream", keys, measure)


def aligned_table(frame: pd.DataFrame) -> pd.DataFrame:
    """AUC by the number of aligned samples and by approach."""
    return _by_classifier(frame, "aligned", ["aligned", "method"], "auc")


def _by_classifier(frame: pd.DataFrame, part: str, keys: list[str], measure: str) -> pd.DataFrame:
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name in CLASSIFIERS:
        found = means(frame, part, keys, f"{name} {measure}")
        for key, row in each(found):
            place = tuple(
                int(k) if name == "aligned" else k for name, k in zip(keys, key, strict=True)
            )
            out.setdefault(place, {})[name] = f"{row['mean']:.3f}"
            out[place][SEEDS] = str(int(row[SEEDS]))
    ordered = {
        key: {**{k: v for k, v in row.items() if k != SEEDS}, SEEDS: row[SEEDS]}
        for key, row in sorted(out.items(), key=lambda item: item[0][:-1])  # methods as they come
    }
    return _frame(ordered, keys)


def paired(frame: pd.DataFrame) -> pd.DataFrame:
    """AUC of completed tables less that of the aligned rows alone, seed by seed."""
    names = ["aligned", "method", "classifier"]
    rows: dict[tuple[Any, ...], dict[str, float]] = {}
    chosen = frame[frame["part"] == "aligned"] if not frame.empty else frame
    for name in CLASSIFIERS if len(chosen) else ():
        auc = chosen[chosen["metric"] == f"{name} auc"]
        table = auc.pivot_table(index=["aligned", "seed"], columns="method", values="value")
        if NOTHING not in table:
            continue
        for method in table.columns.drop(NOTHING):
            gain = (table[method] - table[NOTHING]).dropna()
            for aligned, values in gain.groupby("aligned"):
                count = len(values)
                error = float(values.std() / np.sqrt(count)) if count > 1 else float("nan")
                rows[aligned, method, name] = {
                    "gain": float(values.mean()), "se": error, SEEDS: count
                }  # fmt: skip
    if not rows:
        return pd.DataFrame(columns=["gain", "se", SEEDS])
    return pd.DataFrame(
        list(rows.values()), index=pd.MultiIndex.from_tuples(list(rows), names=names)
    )
