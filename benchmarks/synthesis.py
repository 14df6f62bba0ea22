"""Synthesis at the size of the copula paper's data.

    python benchmarks/synthesis.py            # the whole: some minutes on two cores
    python benchmarks/synthesis.py --quick    # small sizes, for CI

The paper's data has 71,827 firms and 55 variables, the response included, at five institutions
whose missing rates are those of its Table 8; here the fifth, which lacks nobody, has the response.
A third of the columns are counts, a third indicators. MST and AIM take them complete, at three
parties.
"""

from argparse import Namespace
from functools import partial

import numpy as np
import pandas as pd
from common import Cases, make_parties, memory_gib, run, show, timed

from flwr_vertical import Strategy, simulate
from flwr_vertical.privacy import Keystream
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.copula.ranks import Flip, perturbed_ranks
from strategies.marginals import AIM, MST

PAPER_ROWS, PAPER_COLUMNS = 71_827, (13, 6, 6, 19, 10)
PAPER_RATES = (0.7234, 0.8353, 0.8733, 0.2711, 0.0)


def measure(
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
    paper, tables = (3000, 2000) if options.quick else (PAPER_ROWS, PAPER_ROWS)
    found = {"ranks": partial(ranks_alone, 5_000 if options.quick else PAPER_ROWS)}
    for method in (VCDS, EVCDS, IEVCDS):
        target = "" if options.quick or method is not VCDS else "900 s, 4 GiB"
        how = method(epsilon=1.0), paper, PAPER_COLUMNS, PAPER_RATES, target
        found[method.__name__] = partial(measure, *how)
    target = "" if options.quick else "120 s, 40 rounds"
    for each in (MST(epsilon=1.0), AIM(epsilon=1.0)):
        found[each.name] = partial(measure, each, tables, (19, 18, 18), (0.0,) * 3, target)
    return found


if __name__ == "__main__":
    run(__doc__, main)
