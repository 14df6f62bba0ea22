"""What contributions by party cost: sides of splits told, and time, on Bank Marketing.

    python benchmarks/contributions.py            # 45,211 samples, 100 trees; two and three parties
    python benchmarks/contributions.py --quick    # 2,000 samples, 5 trees, for CI

Contributions by path follow from the sides that a prediction tells anyway. Shapley values need the
sides at all splits to which a sample would come if some of the parties lacked it. Trees are grown
with open histograms, which makes the same trees as hidden ones.
"""

import argparse
import time
from typing import Any

import pandas as pd
from machine import machine_line
from trees import BANK, CUSTOMER, bank

from flwr_vertical import simulate
from strategies.predict import Predict
from strategies.trees import VerticalGBDT


def parties_of(
    tables: dict[str, pd.DataFrame], n_parties: int, rows: int
) -> dict[str, pd.DataFrame]:
    """Return the customers' and the bank's columns at two or three parties."""
    a, b = tables["a"].iloc[:rows], tables["b"].iloc[:rows]
    if n_parties == 2:
        return {"a": a, "b": b}
    return {"a": a[CUSTOMER[:4]], "b": b[BANK], "c": a[CUSTOMER[4:]]}


def told(fitted: Any, tables: dict[str, pd.DataFrame], form: str) -> tuple[str, float]:
    """Predict all rows; return what is said of the sides told, and the seconds."""
    began = time.process_time()
    result = simulate(Predict(fitted, contributions=form), tables, progress=False)
    seconds = time.process_time() - began
    return next((n for n in result.notes if n.startswith("contributions")), ""), seconds


def main() -> None:
    """Print what each form tells and takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2,000 samples and 5 trees")
    parser.add_argument("--rows", type=int, default=45_211)
    parser.add_argument("--trees", type=int, default=100)
    given = parser.parse_args()
    rows, trees = (2000, 5) if given.quick else (given.rows, given.trees)
    whole, y = bank()
    print(machine_line())
    for n_parties in (2, 3):
        tables = parties_of(whole, n_parties, rows)
        strategy = VerticalGBDT(n_trees=trees, max_depth=6, histograms="open")
        fitted = simulate(strategy, tables, y.iloc[:rows], progress=False)
        _, path = told(fitted, tables, "path")
        note, shapley = told(fitted, tables, "shapley")
        print(
            f"{n_parties} parties, {len(tables['a']):,} samples, {trees} trees of depth 6: {note}"
        )
        print(f"  CPU of the prediction: by path {path:.1f} s, Shapley values {shapley:.1f} s")


if __name__ == "__main__":
    main()
