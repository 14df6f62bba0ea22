"""Methods on pairs, and synthesis at the size of the copula paper's data.

    python benchmarks/methods.py            # the whole: some minutes on two cores
    python benchmarks/methods.py --quick    # small sizes, for CI

Exploration, completion, discriminants and a regression on 150 columns: of correlated normal columns
that are drawn, a quarter of some parties' rows missing, with plain alignment. Beside completion
stands the same in numpy on the pooled table.

The paper's data has 71,827 firms and 55 variables, the response included, at five institutions
whose missing rates are those of its Table 8; here the fifth, which lacks nobody, has the response.
A third of the columns are counts, a third indicators. MST and AIM take them complete, at three
parties.
"""

from argparse import Namespace
from functools import partial

import numpy as np
import pandas as pd
from common import Cases, make_parties, memory_gib, run, say, show, timed

from flwr_vertical import Strategy, simulate
from flwr_vertical.incomplete import split_columns
from flwr_vertical.privacy import Keystream
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.copula.ranks import Flip, perturbed_ranks
from strategies.explore import Explore
from strategies.lda import LDA
from strategies.marginals import AIM, MST
from strategies.normal import JointNormal
from strategies.normal.filling import complete_rows
from strategies.vfem import VFEM

ALLOWING = {"min-rows": 1, "vectors": 26, "predictions": 200.0, "alignments": "plain"}
"""Of nodes with few labels and many classes; see docs/methods/lda.md."""

PAPER_ROWS, PAPER_COLUMNS = 71_827, (13, 6, 6, 19, 10)
PAPER_RATES = (0.7234, 0.8353, 0.8733, 0.2711, 0.0)

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


def on_pairs(quick: bool) -> None:
    """Run methods on pairs, and what they do on the pooled table."""
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


def synthesise(
    strategy: Strategy, n_rows: int, sizes: tuple[int, ...], rates: tuple[float, ...], target: str
) -> None:
    """Run one strategy once and print time and peak memory of this process."""
    parties, common = make_parties(n_rows, sizes)
    rng = np.random.default_rng(1)
    for (name, frame), rate in zip(parties.items(), rates, strict=True):
        x = frame.to_numpy(copy=True)
        x[:, 1::3] = np.floor(np.exp(x[:, 1::3] / 2 + 1))
        x[:, 2::3] = x[:, 2::3] > 0.5
        # Names differ between parties: synthetic tables may be put side by side.
        table = pd.DataFrame(x, columns=[f"{name} x{j}" for j in range(x.shape[1])])
        parties[name] = table[rng.random(n_rows) >= rate]
    labels = None
    if not isinstance(strategy, MST | AIM):
        labels = pd.Series((common + rng.normal(size=n_rows) > 0).astype(float))
    result, seconds, _ = timed(lambda: simulate(strategy, parties, labels, progress=False))
    missing = f"{1 - sum(map(len, parties.values())) / n_rows / len(parties):.0%} of blocks missing"
    ledger, figures = result.ledger, {"s": seconds, "GiB at most": memory_gib()}
    if labels is None:
        figures |= {"levels": result.metrics["levels"], "pairs": result.metrics["chosen_pairs"]}
    figures |= {"rounds": ledger.rounds, "MiB up": ledger.bytes_up / 2**20}
    what = f"{type(strategy).__name__}, {n_rows:,} x {sum(sizes) + (labels is not None)}, {missing}"
    show(what, figures | {"MiB down": ledger.bytes_down / 2**20}, target)


def ranks_alone(n: int) -> None:
    """Print the time that one column's comparisons take."""
    values, stream = np.random.default_rng(0).random(n), Keystream()
    seconds = timed(lambda: perturbed_ranks(values, Flip.of(0.5), stream)).seconds
    pairs = n * (n - 1) / 2
    speed = {"million pairs a second": pairs / seconds / 1e6}
    show(f"ranks of one column, n = {n:,}", {"s": seconds} | speed)


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    found = {"pairs": partial(on_pairs, options.quick)}
    paper, tables = (3000, 2000) if options.quick else (PAPER_ROWS, PAPER_ROWS)
    found["ranks"] = partial(ranks_alone, 5_000 if options.quick else PAPER_ROWS)
    for method in (VCDS, EVCDS, IEVCDS):
        target = "" if options.quick or method is not VCDS else "900 s, 4 GiB"
        how = method(epsilon=1.0), paper, PAPER_COLUMNS, PAPER_RATES, target
        found[method.__name__] = partial(synthesise, *how)
    target = "" if options.quick else "120 s, 40 rounds"
    for each in (MST(epsilon=1.0), AIM(epsilon=1.0)):
        found[each.name] = partial(synthesise, each, tables, (19, 18, 18), (0.0,) * 3, target)
    return found


if __name__ == "__main__":
    run(__doc__, main)
