"""Binomial and Poisson models by masked means: time, rounds, bytes, and distance to statsmodels.

    python benchmarks/glm_masked.py            # up to 166,207 x 35, five parties
    python benchmarks/glm_masked.py --quick    # small sizes, for CI

Parties and server run in this process. The time is that of the whole run, alignment and moments
included; statsmodels fits the pooled table.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm
from machine import machine_line
from scipy.special import expit

from flwr_vertical import simulate
from strategies.glm import VerticalGLM

LARGE = [
    ("binomial", 3_000, 8, 2),
    ("binomial", 5_000, 30, 5),
    ("binomial", 166_207, 35, 5),
    ("poisson", 5_000, 9, 3),
    ("poisson", 20_000, 8, 2),
]
QUICK = [("binomial", 1_000, 6, 3), ("poisson", 1_000, 6, 2)]


def make(
    family: str, n_rows: int, n_columns: int, n_parties: int
) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]"]:
    """Make columns, every third a flag and every fifth skewed, and labels."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n_rows, n_columns))
    x[:, 1::3] = x[:, 1::3] > 0.5
    x[:, 2::5] = rng.exponential(size=x[:, 2::5].shape)
    strength = 1.2 if family == "binomial" else 0.5
    slopes = strength * rng.standard_normal(n_columns) / np.sqrt(n_columns)
    eta = (x - x.mean(axis=0)) / x.std(axis=0) @ slopes - 0.5
    y = rng.random(n_rows) < expit(eta) if family == "binomial" else rng.poisson(np.exp(eta))
    cuts = np.linspace(0, n_columns, n_parties + 1).astype(int)
    parties = {
        f"party-{k}": pd.DataFrame(x[:, a:b], columns=[f"x{j}" for j in range(a, b)])
        for k, (a, b) in enumerate(pairwise(cuts))
    }
    return parties, pd.Series(y.astype(float))


def measure(family: str, n_rows: int, n_columns: int, n_parties: int) -> None:
    """Fit, and print a line."""
    parties, labels = make(family, n_rows, n_columns, n_parties)
    started = time.perf_counter()
    result = simulate(
        VerticalGLM(family=family, penalty=None), parties, labels, alignment="plain", progress=False
    )
    seconds = time.perf_counter() - started
    pooled = sm.add_constant(np.hstack([frame.to_numpy() for frame in parties.values()]))
    kind = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
    truth = sm.GLM(labels.to_numpy(), pooled, family=kind).fit(tol=1e-14, maxiter=100)
    table = result.coefficients
    off = np.abs(table["estimate"].to_numpy() - truth.params)
    errors = np.abs(table["std_error"].to_numpy() / truth.bse - 1.0).max()
    ledger = result.ledger.to_frame()
    ours = ledger[ledger["step"].isin(["send_digits", "place_fits", "open_means"])]
    sent = float(ours["bytes_up"].sum() + ours["bytes_down"].sum()) / n_rows / n_parties
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1]) / 2**20
    print(
        f"{family}, {n_rows:,} x {n_columns}, {n_parties} parties: {seconds:.1f} s, "
        f"{result.metrics['iterations']:.0f} evaluations, {result.ledger.rounds} rounds, "
        f"{sent / 1e3:.1f} kB a row and party, estimates off by {off.max():.0e} "
        f"({(off / truth.bse).max():.0e} SE), standard errors by {errors:.0e}, peak {peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    print(machine_line())
    for case in QUICK if parser.parse_args().quick else LARGE:
        measure(*case)


if __name__ == "__main__":
    main()
