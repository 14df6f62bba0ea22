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
from argparse import Namespace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from common import make_parties, memory_gib, run, show, timed
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from flwr_vertical import LocalGrid, simulate
from simulations.data import Sources
from simulations.trees.data import load
from strategies.trees import VerticalGBDT

DEPTH = 6


def made_up(rows: int, columns: int) -> tuple[dict[str, pd.DataFrame], "pd.Series[Any]"]:
    """Return normal numbers of two parties, 5 % of the cells missing, and labels."""
    parties, common = make_parties(rows, (columns // 2, columns - columns // 2))
    rng = np.random.default_rng(1)
    y = pd.Series((rng.random(rows) < 1 / (1 + np.exp(-2 * common))).astype(float))
    return {name: x.mask(rng.random(x.shape) < 0.05) for name, x in parties.items()}, y


def slow_links(seconds: float) -> Any:
    """Have every round take so much longer: to all nodes at once, and back."""
    send_and_receive = LocalGrid.send_and_receive

    def later(*given: Any, **how: Any) -> Any:
        time.sleep(seconds)
        return send_and_receive(*given, **how)

    return mock.patch.object(LocalGrid, "send_and_receive", later)


def main(options: Namespace) -> None:
    """Grow the same trees by scikit-learn and by parties, and print what they cost."""
    if options.rows:
        tables, y = made_up(options.rows, options.columns)
    else:
        bank = load("Bank", Sources.find())
        tables, y = {"a": bank.a, "b": bank.b}, bank.labels.astype(float)
    trees = options.trees or (3 if options.quick else 100)
    x = pd.concat(tables.values(), axis=1, ignore_index=True)
    booster = HistGradientBoostingClassifier(
        max_iter=trees, max_depth=DEPTH, max_leaf_nodes=None, max_bins=options.bins,
        early_stopping=False,
    )  # fmt: skip
    model, pooled, cpu = timed(lambda: booster.fit(x, y))
    auc = roc_auc_score(y, model.decision_function(x))
    loss = log_loss(y, model.predict_proba(x)[:, 1])
    times = {"s of wall": pooled, "s of the processor": cpu}
    show("scikit-learn, pooled", times | {"AUC in sample": auc, "log loss": loss})
    for mode in options.modes.split(","):
        strategy = VerticalGBDT(
            n_trees=trees, max_depth=DEPTH, n_bins=options.bins, histograms=mode,
            validation_share=0.0,
        )  # fmt: skip
        with slow_links(options.delay / 1e3):
            result, seconds, cpu = timed(partial(simulate, strategy, tables, y, progress=False))
        ledger, metrics = result.ledger, result.metrics
        quality = {"AUC in sample": metrics["train_auc"], "log loss": metrics["train_loss"]}
        ratio = {"times scikit-learn's": seconds / pooled, "GiB at most": memory_gib()}
        times = {"s of wall": seconds, "s of the processor": cpu}
        show(mode, times | ratio | quality)
        sizes = {"MiB up": ledger.bytes_up / 2**20, "MiB down": ledger.bytes_down / 2**20}
        show("  in all", {"rounds": ledger.rounds} | sizes)
        steps = ledger.to_frame().groupby("step")
        sent = steps[["bytes_up", "bytes_down"]].sum() / 2**20
        told = ledger.to_frame().drop_duplicates("round").groupby("step")["seconds"].sum()
        for step, up, down in sent.itertuples():
            if told[step] >= 0.1 or max(up, down) >= 1:
                show(f"  {step}", {"s": told[step], "MiB up": up, "MiB down": down})


if __name__ == "__main__":
    run(
        __doc__,
        main,
        "3 trees",
        trees=(0, "how many (default: 100)"),
        rows=(0, "of made-up numbers in place of Bank"),
        columns=(50, "of made-up numbers"),
        bins=(32, "of a column"),
        delay=(0.0, "milliseconds a round, of links"),
        modes=("hidden,open", "which histograms"),
    )
