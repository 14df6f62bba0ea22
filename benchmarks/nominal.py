"""Nominal columns in synthetic tables: indicators of levels beside one order, quality and time.

    python benchmarks/nominal.py           # three seeds of 2,000 rows: about two minutes
    python benchmarks/nominal.py --quick   # one seed of 400 rows, epsilon 1, for CI

Tables are those of `python -m simulations synthesis`, split in the same way. The noise comes from
seeds here, on public data, so that the numbers can be repeated.
"""

import argparse
import logging
import time

import numpy as np
import pandas as pd
from machine import machine_line

from flwr_vertical import simulate
from flwr_vertical.grading import quality_score
from flwr_vertical.privacy import Keystream, seeded_noise
from simulations.data import Sources
from simulations.synthesis.data import draw, load, split
from strategies import copula
from strategies.copula.ranks import Flip, indicator_ranks, perturbed_ranks
from strategies.copula.release import NOMINALS

PAPER_ROWS = 71_827


def quality(
    method: str, whole: pd.DataFrame, name: str, epsilon: float, nominal: str, rows: int, seeds: int
) -> dict[str, float]:
    """Return mean quality, shapes, trends and processor seconds of some runs."""
    found = []
    for seed in range(seeds):
        real = split(draw(name, whole, rows, seed))
        started = time.process_time()
        with seeded_noise(seed):
            strategy = getattr(copula, method)(epsilon, nominal=nominal)
            result = simulate(strategy, real, seed=seed, progress=False)
        seconds = time.process_time() - started
        score = quality_score(real, result.tables)
        found.append((score.score, score.shapes.mean(), score.trends.mean(), seconds))
    names = ["quality", "column shapes", "pair trends", "CPU seconds"]
    return dict(zip(names, np.mean(found, axis=0).round(3).tolist(), strict=True))


def ranks_alone(n_rows: int) -> None:
    """Print processor seconds of the ranks of one column."""
    flip, rng = Flip.of(0.5), np.random.default_rng(0)
    started = time.process_time()
    perturbed_ranks(rng.normal(size=n_rows), flip, Keystream())
    print(f"{n_rows:,} ranks of numbers: {time.process_time() - started:.2f} CPU seconds")
    for k in (4, 12):
        levels = rng.integers(k, size=n_rows)
        started = time.process_time()
        for level in range(k):
            indicator_ranks(levels == level, flip.of_indicators, Keystream())
        print(f"the same of {k} levels: {time.process_time() - started:.2f} CPU seconds")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description="Measure nominal columns in synthetic tables.")
    parser.add_argument("--quick", action="store_true", help="one small run of each, for CI")
    quick = parser.parse_args().quick
    logging.getLogger("flwr_vertical").setLevel(logging.ERROR)
    print(machine_line())
    ranks_alone(5_000 if quick else PAPER_ROWS)
    sources, rows = Sources.find(), {}
    for name in ("Bank", "German Credit"):
        whole = load(name, sources)
        for epsilon in (1.0,) if quick else (1.0, 100.0):
            for method in ("VCDS",) if quick else ("VCDS", "EVCDS", "IEVCDS"):
                for nominal in NOMINALS:
                    key = (name, epsilon, method, nominal)
                    size = (400, 1) if quick else (2000, 3)
                    rows[key] = quality(method, whole, name, epsilon, nominal, *size)
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(rows, names=["data", "epsilon", "method", "nominal"])
    print(frame.to_string())


if __name__ == "__main__":
    main()
