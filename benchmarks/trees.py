"""Vertical boosting on Bank Marketing: time and cost, beside scikit-learn on the pooled table.

    python benchmarks/trees.py            # 100 trees of depth 6, hidden and open histograms
    python benchmarks/trees.py --quick    # 3 trees, for CI
    python benchmarks/trees.py --rows 947 --columns 16 --modes hidden   # few rows: bytes of shares
    python benchmarks/trees.py --rows 1000000 --columns 50 --bins 16 --trees 20   # made-up numbers
    python benchmarks/trees.py --modes hidden --delay 50   # as over links of 50 ms there and back

Customer information lies at party a, bank information at b, all 45,211 samples at both.
scikit-learn's booster has the same bins, depth, rate and fewest samples of a leaf. Both get levels
as integer codes in the order of their names, so they grow the same trees but for ties.
"""

import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from common import begin, command_line, memory_gib, timed
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from flwr_vertical import LocalGrid, simulate
from simulations.data import Sources
from simulations.trees.data import load
from strategies.trees import VerticalGBDT

DEPTH = 6


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


def slow_links(seconds: float) -> Any:
    """Have every round take so much longer: to all nodes at once, and back."""
    send_and_receive = LocalGrid.send_and_receive

    def later(*given: Any, **how: Any) -> Any:
        time.sleep(seconds)
        return send_and_receive(*given, **how)

    return mock.patch.object(LocalGrid, "send_and_receive", later)


def main() -> None:
    """Parse the command line, run and print."""
    parser = command_line(__doc__, "3 trees, for CI")
    parser.add_argument("--trees", type=int, default=0, help="how many (default: 100)")
    parser.add_argument("--rows", type=int, default=0, help="of made-up numbers in place of Bank")
    parser.add_argument("--columns", type=int, default=50, help="of made-up numbers")
    parser.add_argument("--bins", type=int, default=32, help="of a column")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds a round, of links")
    parser.add_argument("--modes", default="hidden,open", help="which histograms")
    options = begin(parser)
    if options.rows:
        tables, y = made_up(options.rows, options.columns)
    else:
        bank = load("Bank", Sources.find())
        tables, y = {"a": bank.a, "b": bank.b}, bank.labels.astype(float)
    trees = options.trees or (3 if options.quick else 100)
    x = pd.concat(tables.values(), axis=1)
    booster = HistGradientBoostingClassifier(
        max_iter=trees, max_depth=DEPTH, max_leaf_nodes=None, max_bins=options.bins,
        early_stopping=False,
    )  # fmt: skip
    model, pooled, cpu = timed(lambda: booster.fit(x, y))
    print(
        f"scikit-learn, pooled: {pooled:.1f} s wall, {cpu:.1f} s of processor time, AUC in sample "
        f"{roc_auc_score(y, model.decision_function(x)):.5f}, log loss "
        f"{log_loss(y, model.predict_proba(x)[:, 1]):.5f}",
        flush=True,
    )
    for mode in options.modes.split(","):
        strategy = VerticalGBDT(
            n_trees=trees, max_depth=DEPTH, n_bins=options.bins, histograms=mode,
            validation_share=0.0,
        )  # fmt: skip
        with slow_links(options.delay / 1e3):
            result, seconds, cpu = timed(partial(simulate, strategy, tables, y, progress=False))
        ledger, metrics = result.ledger, result.metrics
        frame = ledger.to_frame()
        told = frame.drop_duplicates("round").groupby("step")["seconds"].sum()
        steps = ", ".join(f"{step} {value:.1f}" for step, value in told.items() if value >= 0.1)
        sent = frame.groupby("step")[["bytes_up", "bytes_down"]].sum() / 2**20
        large = [
            f"{step} {up:.1f} up {down:.1f} down"
            for step, up, down in sent.itertuples()
            if max(up, down) >= 1
        ]
        print(
            f"{mode}: {seconds:.1f} s wall, {cpu:.1f} s of processor time "
            f"({seconds / pooled:.0f} times scikit-learn's), {ledger.rounds} rounds, "
            f"{ledger.bytes_up / 2**20:.0f} MiB up, {ledger.bytes_down / 2**20:.0f} MiB down\n"
            f"  seconds in rounds: {steps}\n"
            f"  MiB: {', '.join(large)}\n"
            f"  AUC in sample {metrics['train_auc']:.5f}, log loss {metrics['train_loss']:.5f}; "
            f"peak memory {memory_gib():.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
