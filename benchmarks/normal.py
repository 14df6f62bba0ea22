"""Methods on pairs: exploration, completion, discriminants, a regression on 150 columns.

    python benchmarks/normal.py [--quick]

Tables are drawn: correlated normal columns, a quarter of some parties' rows missing. Runs are in
one process with plain alignment. Beside completion stands the same in numpy on the pooled table.
"""

from argparse import Namespace
from functools import partial

import numpy as np
import pandas as pd
from common import memory_gib, run, say, show, timed

from flwr_vertical import Strategy, simulate
from flwr_vertical.incomplete import split_columns
from strategies.explore import Explore
from strategies.lda import LDA
from strategies.normal import JointNormal
from strategies.normal.filling import complete_rows
from strategies.vfem import VFEM

ALLOWING = {"min-rows": 1, "vectors": 26, "predictions": 200.0, "alignments": "plain"}
"""Of nodes with few labels and many classes; see docs/methods/lda.md."""

Tables = dict[str, pd.DataFrame]


def make_tables(n_rows: int, n_columns: int, n_parties: int, lacking: int = 9) -> Tables:
    """Columns with twenty common factors, neighbouring ones at each party; some lack rows."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(20, n_columns)) / 4.0
    x = rng.normal(size=(n_rows, 20)) @ loadings + rng.normal(size=(n_rows, n_columns))
    lacks = rng.random((n_rows, n_parties)) < 0.25
    lacks[lacks.all(axis=1), 0] = False
    lacks[:, lacking:] = False
    parts = split_columns(pd.DataFrame(x).add_prefix("x"), n_parties, shuffle=False)
    return {name: part[~lacks[:, k]] for k, (name, part) in enumerate(parts.items())}


def pooled(tables: Tables, n_rows: int) -> None:
    """Complete the pooled table by pairwise covariances."""
    x = np.hstack([table.reindex(range(n_rows)).to_numpy() for table in tables.values()])
    zeros, flags = np.nan_to_num(x), (~np.isnan(x)).astype(float)
    covariance = zeros.T @ zeros / (flags.T @ flags) + 0.1 * np.eye(x.shape[1])
    complete_rows(x, np.zeros(x.shape), covariance)


def measure(
    title: str, strategy: Strategy, tables: Tables, labels: "pd.Series[float] | None"
) -> None:
    """Time a run, and print rounds with greeting and alignment."""
    result, seconds, _ = timed(
        lambda: simulate(
            strategy, tables, labels, alignment="plain", policy=ALLOWING, progress=False
        )
    )
    show(f"{title}, {len(tables)} parties", {"s": seconds, "rounds": result.ledger.rounds})


def main(options: Namespace) -> None:
    """Run each method, and what it does on the pooled table."""
    quick = options.quick
    n_rows = 1_500 if quick else 1_000_000
    tables = make_tables(n_rows, 50, 2, lacking=0)
    measure(f"explore, {n_rows:,} x 50", Explore(), tables, None)
    show("  the process, tables and Python with it", {"GiB at most": memory_gib()})
    whole = pd.concat(tables, axis=1)
    say("  pooled in pandas", lambda: [whole.corr(how) for how in ("pearson", "spearman")])
    sizes = ((800, 24, 3),) if quick else ((166_207, 35, 3), (6_238, 616, 8))
    for n_rows, n_columns, n_parties in sizes:
        tables = make_tables(n_rows, n_columns, n_parties)
        measure(f"joint-normal, {n_rows:,} x {n_columns}", JointNormal(), tables, None)
        say("  pooled in numpy", partial(pooled, tables, n_rows))
    n_labels, n_classes = (400, 2) if quick else (500, 26)
    labels = pd.Series(np.arange(n_labels) % n_classes + 0.0, name="class").reindex(range(n_rows))
    measure(f"lda, the same, {n_labels} labels of {n_classes} classes", LDA(), tables, labels)
    n_rows, n_columns = (1_500, 24) if quick else (6_000, 150)
    x = pd.concat(make_tables(n_rows, n_columns, 3, lacking=0).values(), axis=1)
    y = (x.sum(axis=1) + np.random.default_rng(1).normal(size=n_rows)).rename("y")
    tables = make_tables(n_rows, n_columns, 3, lacking=1)
    measure(f"vfem with errors, {n_rows:,} x {n_columns}", VFEM(), tables, y)


if __name__ == "__main__":
    run(__doc__, main)
