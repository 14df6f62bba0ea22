"""What was expected on Isolet, as rows that pass or fail, with the numbers behind."""

from typing import Any

import pandas as pd

from simulations.false_vfl.methods import BASELINES, PROPOSED
from simulations.false_vfl.tables import rivals
from simulations.page import at_least, indexed, select, verdict

_DATASET = "Isolet"


def accuracy(found: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """FALSE-VFL near the paper on every test mechanism, above it on average."""
    rows = {}
    for cell in map(split_cell, part["cells"]):
        gaps, seeds = _beside_paper(found, *cell)
        if len(gaps):
            least = -part["within"]
            row = {str(test): at_least(value, least, "+.1f") for test, value in gaps.items()}
            average = at_least(float(gaps.mean()), 0.0, "+.1f")
            rows[cell] = {**row, "average": average, "seeds": seeds}
    return indexed(rows, ["method", "train"])


def baselines(found: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """Baselines no further below the paper's than stated, under the same trainings."""
    rows = {}
    for train in dict.fromkeys(split_cell(wanted)[1] for wanted in part["cells"]):
        for method in BASELINES:
            gaps, seeds = _beside_paper(found, method, train)
            if len(gaps):
                least = -part["baselines_within"]
                row = {str(test): at_least(value, least, "+.1f") for test, value in gaps.items()}
                rows[method, train] = {**row, "seeds": seeds}
    return indexed(rows, ["method", "train"])


def ahead(found: pd.DataFrame, part: dict[str, Any]) -> pd.DataFrame:
    """FALSE-VFL above the best baseline in so many of the cells that were aimed at."""
    rows: dict[Any, dict[str, str]] = {}
    counted = won = planned = 0
    for wanted in part["cells"]:
        method, train = split_cell(wanted)
        pairs = select(rivals(found, [method]), dataset=_DATASET, train=train)
        if pairs.empty:
            continue
        better = pairs["proposed"] > pairs["baseline"]
        counted, won = counted + len(pairs), won + int(better.sum())
        planned += 1
        rows[method, train] = {
            str(key[2]): f"{row['proposed']:.1f} : {row['baseline']:.1f}"
            for key, row in pairs.iterrows()
            if isinstance(key, tuple)
        }
        rows[method, train]["above in"] = f"{int(better.sum())} of {len(pairs)}"
    if rows:
        whole = planned == len(part["cells"])
        word = verdict(won >= part["best_in"]) if whole else "open"
        rows["all", ""] = {"above in": f"{word} {won} of {counted} (at least {part['best_in']})"}
    return indexed(rows, ["method", "train"]).fillna("")


def split_cell(wanted: str) -> tuple[str, str]:
    """Return method and mechanism of training of ``"FALSE-VFL-I MCAR 2"``."""
    for method in PROPOSED:
        if wanted.startswith(f"{method} "):
            return method, wanted.removeprefix(f"{method} ")
    raise ValueError(f"expected a variant of FALSE-VFL and a mechanism, got {wanted!r}")


def _beside_paper(found: pd.DataFrame, method: str, train: str) -> tuple["pd.Series[float]", str]:
    """Return ours minus the paper's by test, empty where one is lacking; and the fewest seeds."""
    own = select(found, dataset=_DATASET, method=method, train=train)
    gaps = own["difference"].dropna().droplevel(["dataset", "train", "method"])
    return gaps, f"{own['runs'].min():g}"
