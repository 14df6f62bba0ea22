"""A forest on Bank Marketing beside scikit-learn's.

    python benchmarks/forests.py              # 100 trees of depth 8
    python benchmarks/forests.py --trees 10   # another number of trees
    python benchmarks/forests.py --quick      # 2 trees, for CI

Tables are those of `trees.py`. 30 % of the samples have no label and are predicted; scikit-learn's
forest has the same depth, fewest samples of a leaf and share of columns, but draws columns at each
split.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from machine import machine_line
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from trees import bank

from flwr_vertical import Result, simulate
from strategies.forest import VerticalForest


def timed(what: str, run: Callable[[], Any]) -> Any:
    """Return what a call returns; print how long it took."""
    started, cpu = time.perf_counter(), time.process_time()
    found = run()
    print(
        f"{what}: {time.perf_counter() - started:.1f} s wall, "
        f"{time.process_time() - cpu:.1f} s of processor time",
        flush=True,
    )
    return found


def cost(result: Result) -> str:
    """Describe what a run sent."""
    ledger = result.ledger
    return (
        f"{ledger.rounds} rounds, {ledger.bytes_up / 2**20:.0f} MiB up, "
        f"{ledger.bytes_down / 2**20:.0f} MiB down, peak memory "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )


def forests(tables: dict[str, pd.DataFrame], y: "pd.Series[Any]", trees: int) -> None:
    """Compare forests on samples without a label."""
    test = np.random.default_rng(0).random(len(y)) < 0.3
    x = pd.concat(tables.values(), axis=1)
    model = RandomForestClassifier(
        trees, max_depth=8, min_samples_leaf=5, max_features=0.5, random_state=0
    )
    timed("scikit-learn, pooled", lambda: model.fit(x[~test], y[~test]))
    print(f"  AUC {roc_auc_score(y[test], model.predict_proba(x[test])[:, 1]):.4f}", flush=True)
    forest = VerticalForest(n_trees=trees, max_depth=8)
    result = timed("forest", lambda: simulate(forest, tables, y.mask(test), progress=False))
    found = result.predictions["probability_1"]
    print(f"  AUC {roc_auc_score(y[found.index], found):.4f}; {cost(result)}", flush=True)
    some = {name: table.iloc[:10_000] for name, table in tables.items()}
    again = timed("  10,000 new rows", lambda: result.predict(some, progress=False))
    print(f"  {cost(again)}", flush=True)


def main() -> None:
    """Parse the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 trees, 5,000 rows, for CI")
    parser.add_argument("--trees", type=int, default=100, help="how many")
    options = parser.parse_args()
    print(machine_line(), f"; load {os.getloadavg()[0]:.1f}")
    tables, y = bank()
    if options.quick:
        tables, y = {name: table[:5000] for name, table in tables.items()}, y[:5000]
    forests(tables, y, 2 if options.quick else options.trees)


if __name__ == "__main__":
    main()
