"""Vertical boosting on Bank Marketing: time and cost, beside scikit-learn on the pooled table.

    python benchmarks/trees.py            # 100 trees of depth 6, hidden and open histograms
    python benchmarks/trees.py --quick    # 3 trees, for CI
    python benchmarks/trees.py --deployment   # 5 trees over channels on three SuperNodes
    python benchmarks/trees.py --rows 1000000 --columns 50 --bins 16 --trees 20   # made-up numbers

Customer information lies at party a (age, job, marital, education, day, month, duration, pdays),
bank information at b, all 45,211 samples at both. scikit-learn's booster has the same bins, depth,
rate and fewest samples of a leaf. Both get levels as integer codes in the order of their names, so
they grow the same trees but for ties. With ``--missing 0.5`` party b lacks that share of the
samples, and half of all samples have no label and are predicted, beside what scikit-learn makes of
the samples that both have, of zeros in place of what is missing, and of party a alone.
"""

import argparse
import os
import resource
import time
from typing import Any

import numpy as np
import pandas as pd
from machine import machine_line
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score
from trees_deployed import compare

from flwr_vertical import simulate
from simulations.data import Sources
from strategies.trees import VerticalGBDT

CUSTOMER = ["age", "job", "marital", "education", "day", "month", "duration", "pdays"]
BANK = ["default", "balance", "housing", "loan", "contact", "campaign", "previous", "poutcome"]


def bank() -> tuple[dict[str, pd.DataFrame], "pd.Series[Any]"]:
    """Return the tables of two parties, and whether a deposit was subscribed."""
    table = pd.read_csv(Sources.find().path("bank/bank_full.csv"))
    label = next(name for name in table.columns if name not in (*CUSTOMER, *BANK))
    values = table[label]
    y = values.astype(float) if values.dtype.kind in "if" else (values == "yes").astype(float)
    codes = codes_of(table[[*CUSTOMER, *BANK]])
    return {"a": codes[CUSTOMER], "b": codes[BANK]}, y


def made_up(rows: int, columns: int) -> tuple[dict[str, pd.DataFrame], "pd.Series[Any]"]:
    """Return normal numbers of two parties, 5 % of the cells missing, and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    signal = x[:, 0] * x[:, -1] + np.sin(2 * x[:, 1]) + x[:, -2]
    y = pd.Series((rng.random(rows) < 1 / (1 + np.exp(-signal))).astype(float))
    x[rng.random(x.shape) < 0.05] = np.nan
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(columns)])
    half = columns // 2
    return {"a": frame.iloc[:, :half], "b": frame.iloc[:, half:]}, y


def codes_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return all columns as numbers, levels by their names."""
    numbers = {
        name: column
        if pd.api.types.is_numeric_dtype(column)
        else column.astype("category").cat.codes.astype(int)
        for name, column in table.items()
    }
    return pd.DataFrame(numbers, index=table.index)


def central(trees: int, bins: int) -> HistGradientBoostingClassifier:
    """Return scikit-learn's booster with the settings of the federated one."""
    return HistGradientBoostingClassifier(
        max_iter=trees, max_depth=6, max_leaf_nodes=None, max_bins=bins, early_stopping=False
    )


def missing_blocks(
    tables: dict[str, pd.DataFrame], y: "pd.Series[Any]", share: float, trees: int, bins: int
) -> None:
    """Compare predictions of samples without a label where party b lacks some of all samples."""
    rng = np.random.default_rng(0)
    x = pd.concat(tables.values(), axis=1)
    lacks, test = rng.random(len(x)) < share, rng.random(len(x)) < 0.5
    own = list(tables["b"].columns)
    gaps, zeros = x.astype(float), x.copy()
    gaps.loc[lacks, own], zeros.loc[lacks, own] = np.nan, 0
    given = {"party a alone": x[tables["a"].columns], "zeros": zeros, "pooled, with gaps": gaps}
    raw = {
        name: central(trees, bins).fit(data[~test], y[~test]).decision_function(data)
        for name, data in given.items()
    }
    both = central(trees, bins).fit(x[~test & ~lacks], y[~test & ~lacks])
    raw["samples that both have, else party a"] = np.where(
        lacks, raw["party a alone"], both.decision_function(x)
    )
    for name, scores in raw.items():
        print(f"  {name}: AUC {roc_auc_score(y[test], scores[test]):.4f}", flush=True)
    strategy = VerticalGBDT(n_trees=trees, n_bins=bins, histograms="open")
    labels = y.astype(float).mask(test)
    held = {"a": tables["a"], "b": tables["b"][~lacks]}
    found = simulate(strategy, held, labels, progress=False).predictions["probability_1"]
    print(f"  federated: AUC {roc_auc_score(y[found.index], found):.4f}", flush=True)


def main() -> None:
    """Parse the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 trees, for CI")
    parser.add_argument("--deployment", action="store_true", help="over channels on SuperNodes")
    parser.add_argument("--trees", type=int, default=0, help="how many (default: 100)")
    parser.add_argument("--rows", type=int, default=0, help="of made-up numbers in place of Bank")
    parser.add_argument("--columns", type=int, default=50, help="of made-up numbers")
    parser.add_argument("--bins", type=int, default=32, help="of a column")
    parser.add_argument("--missing", type=float, default=0.0, help="share of party b's samples")
    parser.add_argument("--modes", default="hidden,open", help="which histograms")
    options = parser.parse_args()
    print(machine_line(), f"; load {os.getloadavg()[0]:.1f}")
    tables, y = made_up(options.rows, options.columns) if options.rows else bank()
    few = 3 if options.quick else 5 if options.deployment else 100
    trees = options.trees or few
    if options.deployment:
        for mode in options.modes.split(","):
            print(f"{mode}, {trees} trees:")
            compare(tables, y, {"n_trees": trees, "n_bins": options.bins, "histograms": mode})
        return
    if options.missing:
        print(f"{options.missing:.0%} of the samples are missing at party b; {trees} trees")
        missing_blocks(tables, y, options.missing, trees, options.bins)
        return
    x = pd.concat(tables.values(), axis=1)
    started, cpu = time.perf_counter(), time.process_time()
    model = central(trees, options.bins).fit(x, y)
    pooled, cpu = time.perf_counter() - started, time.process_time() - cpu
    loss = log_loss(y, model.predict_proba(x)[:, 1])
    auc = roc_auc_score(y, model.decision_function(x))
    print(
        f"scikit-learn, pooled: {pooled:.1f} s wall, {cpu:.1f} s of processor time, AUC in sample "
        f"{auc:.5f}, log loss {loss:.5f}",
        flush=True,
    )
    for mode in options.modes.split(","):
        strategy = VerticalGBDT(n_trees=trees, n_bins=options.bins, histograms=mode)
        started, cpu = time.perf_counter(), time.process_time()
        result = simulate(strategy, tables, y, progress=False)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        ledger, metrics = result.ledger, result.metrics
        told = ledger.to_frame().drop_duplicates("round").groupby("step")["seconds"].sum()
        steps = ", ".join(f"{step} {value:.1f}" for step, value in told.items() if value >= 0.1)
        print(
            f"{mode}: {seconds:.1f} s wall, {cpu:.1f} s of processor time "
            f"({seconds / pooled:.0f} times scikit-learn's), {ledger.rounds} rounds, "
            f"{ledger.bytes_up / 2**20:.0f} MiB up, {ledger.bytes_down / 2**20:.0f} MiB down\n"
            f"  seconds in rounds: {steps}\n"
            f"  AUC in sample {metrics['train_auc']:.5f}, log loss {metrics['train_loss']:.5f}; "
            f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
