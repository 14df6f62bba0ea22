"""From runs to cells (one data set, training, test and method), and tables beside the paper's."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simulations.false_vfl.methods import BASELINES, METHODS, PROPOSED
from simulations.page import beside_paper, indexed

PAPER = ("tables", "table2", "table11", "table18")
NAMES = {
    "isolet": "Isolet", "hapt": "HAPT", "fashion_mnist": "FashionMNIST", "modelnet10": "ModelNet10",
}  # fmt: skip
CELL = ["dataset", "train", "test"]
WITHOUT = "*"  # the paper's asterisk: the run without SimSiam is the better one
_ORDER = ("MCAR 0", "MCAR 2", "MCAR 5", "MAR 1", "MAR 2", "MNAR 7", "MNAR 9")
_ACCURACY = "accuracy "


def cells(frame: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return the reported accuracy of each cell and method, beside the paper's."""
    own = _accuracies(frame)
    groups = own.groupby([*CELL, "method", "simsiam"], sort=False)["value"]
    numbers = {"accuracy": groups.mean(), "sd": groups.std(), "runs": groups.count()}
    by_form = pd.DataFrame(numbers).reset_index("simsiam")
    names: list[str] = [*CELL, "method"]
    ranked = by_form.sort_values("accuracy", ascending=False, kind="stable")
    best = ranked.groupby(level=names, sort=False).head(1)
    forms = by_form.groupby(level=names, sort=False).size()
    baseline = best.index.get_level_values("method").isin(list(BASELINES))
    best = best.assign(
        labelled_only=baseline & (best["simsiam"] == "without").to_numpy(), forms=forms
    ).drop(columns="simsiam")
    printed = paper.rename(columns={"train_mechanism": "train", "test_mechanism": "test"})
    printed = printed.set_index(names)[["accuracy", "std", "labelled_only"]]
    best = best.join(printed.set_axis(["paper", "paper sd", "paper labelled_only"], axis=1))
    best["difference"] = best["accuracy"] - best["paper"]
    return _ordered(best)


def _accuracies(frame: pd.DataFrame) -> pd.DataFrame:
    own = frame[frame["metric"].str.startswith(_ACCURACY)]
    test = own["metric"].str.removeprefix(_ACCURACY)
    return own.assign(test=test, dataset=own["dataset"].map(NAMES))


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Put rows in the order of the paper."""
    known = {"dataset": [*NAMES.values()], "train": _ORDER, "test": _ORDER, "method": [*METHODS]}
    places = [
        pd.Index(names).get_indexer(table.index.get_level_values(level))
        for level, names in known.items()
        if level in table.index.names
    ]
    return table.iloc[np.lexsort(places[::-1])]


def as_text(row: "pd.Series[float]") -> str:
    """Return a cell as text: ``84.7 ± 0.3* (86.3*, -1.6)``, the paper's in brackets."""
    text = f"{row['accuracy']:.1f}"
    if pd.notna(row["sd"]):
        text += f" ± {row['sd']:.1f}"
    if row["labelled_only"]:
        text += WITHOUT
    if pd.notna(row.get("paper")):
        star = WITHOUT if row["paper labelled_only"] else ""
        text += f" ({row['paper']:.1f}{star}, {row['difference']:+.1f})"
    return text


def by_training(found: pd.DataFrame, paper: pd.DataFrame, train: str) -> pd.DataFrame:
    """Return one of Tables 12 to 17: methods by test mechanism; a dash where nothing was run."""
    own = found[found.index.get_level_values("train") == train].droplevel("train")
    text = own.apply(as_text, axis=1).unstack("test", sort=False) if len(own) else pd.DataFrame()
    if len(own):
        groups = own.groupby(level=["dataset", "method"])
        seeds = groups["runs"].min().astype(int).astype(str)
        text = text.assign(seeds=seeds, forms=groups["forms"].min())
    printed = paper[paper["train_mechanism"] == train]
    stars = printed["labelled_only"].map({True: WITHOUT, False: ""})
    cells = "– (" + printed["accuracy"].map("{:.1f}".format) + stars + ")"
    keys = ["dataset", "method", "test_mechanism"]
    others = printed[keys].assign(text=cells).set_index(keys)["text"].unstack(sort=False)
    others = others.assign(seeds="0", forms=0)
    text = pd.concat([text, others[~others.index.isin(text.index)]])
    return _ordered(text).rename_axis(columns=None)


def gaps(found: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return Table 2: the best variant of FALSE-VFL minus the best baseline, averaged."""
    pairs = rivals(found)
    if pairs.empty:
        return pd.DataFrame()
    rows = {}
    for name in ("dataset", "train", "test"):
        printed_name = name if name == "dataset" else f"{name}_mechanism"
        for level, own in pairs.groupby(level=name, sort=False):
            chosen = (paper["by"] == printed_name) & (paper["level"] == level)
            rows[name, level] = {
                "points": (own["proposed"] - own["baseline"]).mean(),
                "cells": len(own),
                "points, paper": paper.loc[chosen, "gap_points"].mean(),
                "points, paper, same cells": (own["paper proposed"] - own["paper baseline"]).mean(),
            }
    return indexed(rows, ["by", "level"])


def rivals(found: pd.DataFrame, proposed: Sequence[str] = tuple(PROPOSED)) -> pd.DataFrame:
    """Return the best of `proposed` and the best baseline, of each cell where all were run."""
    parts = {}
    for side, names in (("proposed", proposed), ("baseline", tuple(BASELINES))):
        own = found[found.index.get_level_values("method").isin(list(names))]
        most = own.groupby(level=CELL, sort=False)[["accuracy", "paper"]].max()
        parts[side] = most.rename(columns={"accuracy": side, "paper": f"paper {side}"})
        parts[side]["count"] = own.groupby(level=CELL, sort=False).size()
    whole = parts["baseline"][parts["baseline"]["count"] == len(BASELINES)]
    return parts["proposed"].drop(columns="count").join(whole.drop(columns="count"), how="inner")


def wins(found: pd.DataFrame) -> pd.DataFrame:
    """Return in how many cells a variant of FALSE-VFL is best: the paper says 160 of 168."""
    pairs = rivals(found)
    if pairs.empty:
        return pd.DataFrame()
    groups = [(name, own) for name, own in pairs.groupby(level="dataset", sort=False)]
    rows = {
        name: {
            "FALSE-VFL best in": int((own["proposed"] > own["baseline"]).sum()),
            "equal": int((own["proposed"] == own["baseline"]).sum()),
            "cells run": len(own),
            "paper, same cells": int((own["paper proposed"] > own["paper baseline"]).sum()),
        }
        for name, own in [*groups, *([("all", pairs)] if len(groups) > 1 else [])]
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("dataset")


def ratios(found: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return Table 18: accuracy trained under MCAR 5 in percent of that trained under MCAR 2."""
    if not {"MCAR 2", "MCAR 5"} <= set(found.index.get_level_values("train")):
        return pd.DataFrame()
    accuracy = found["accuracy"].unstack("train", sort=False)
    ratio = (100.0 * accuracy["MCAR 5"] / accuracy["MCAR 2"]).dropna().unstack("test", sort=False)
    keys = [str(name) for name in ratio.index.names]
    printed = paper.set_index([*keys, "test_mechanism"])["ratio_percent"].unstack()
    methods = [name for name in METHODS if name in ratio.index.get_level_values("method")]
    text = beside_paper(ratio.reindex(methods, level="method"), printed, digits=1)
    return text.rename_axis(columns=None)


def minutes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return minutes of a run's phases, medians over runs."""
    own = frame[frame["metric"].str.startswith("seconds ")]
    own = own.assign(
        phase=own["metric"].str.removeprefix("seconds "),
        dataset=own["dataset"].map(NAMES),
        value=own["value"] / 60.0,
    )
    keys = ["dataset", "method", "simsiam"]
    table = own.pivot_table(
        index=keys, columns="phase", values="value", aggfunc="median", sort=False
    )
    table = table[[name for name in ("pretraining", "training", "prediction") if name in table]]
    table["runs"] = own[own["phase"] == "training"].groupby(keys).size()
    return table.rename_axis(columns=None)


def beside_minutes(table: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return Table 11: minutes by phase, beside the paper's on a graphics card."""
    table = table.copy()
    printed = paper.set_index(["dataset", "phase"])["minutes"]
    for phase in ("pretraining", "training"):
        table[f"{phase}, paper"] = [
            printed.get((key[0], phase), np.nan) if key[1] in PROPOSED else np.nan
            for key in table.index
        ]
    return table


def by_parties(frame: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy in percent by how many parties hold a test sample, all tests together."""
    own = frame[frame["metric"].str.match(r"(samples|correct) ")]
    own = own.assign(dataset=own["dataset"].map(NAMES))
    keys = ["dataset", "train", "method"]
    own = own.join(better_forms(frame), on=keys)
    own = own[own["simsiam"] == own["form"]]
    split = own["metric"].str.split(" ")
    own = own.assign(kind=split.str[0], parties=split.str[-1].astype(int))
    sums = own.pivot_table(index=[*keys, "parties"], columns="kind", values="value", aggfunc="sum")
    sums = sums[sums["samples"] >= 50]
    share = 100.0 * sums["correct"].fillna(0.0) / sums["samples"]
    return share.unstack("parties").sort_index(axis=1)


def better_forms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the form of each method that is better on average over tests: column ``form``."""
    keys = ["dataset", "train", "method", "simsiam"]
    mean = _accuracies(frame).groupby(keys)["value"].mean()
    best = mean.unstack("simsiam").idxmax(axis=1)
    return best.rename("form").to_frame()
