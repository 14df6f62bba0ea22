"""VerticalGLM: whole paths with standard errors, beside pooled fits.

    python benchmarks/glm.py            # 166,207 x 35 in five parties: about two minutes
    python benchmarks/glm.py --quick    # 5,000 rows, for CI

Parties run in this process. Time is that of `simulate`, from the tables to the result, with
alignment, and beside it that of the processor's cores, which other work on the machine does not
change; rounds are those of the ledger after alignment. Each run is a process of its own, so
that its peak of memory, with the tables, is its own.
"""

import argparse
import resource
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import statsmodels.api as sm
from machine import machine_line
from scipy.special import expit

from flwr_vertical import simulate
from strategies.glm import VerticalGLM

ROWS, SIZES = 166_207, (12, 3, 6, 9, 5)
FAMILIES = {
    "gaussian": sm.families.Gaussian,
    "binomial": sm.families.Binomial,
    "poisson": sm.families.Poisson,
}
GOALS = {"gaussian": "at most 6 rounds, 5 s, 1 GiB"}
_BEFORE = ("hello", "share_ids")


def make_data(n_rows: int, family: str) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]"]:
    """Make correlated columns of five parties, every other one without effect."""
    rng = np.random.default_rng(0)
    p = sum(SIZES)
    x = 0.5 * rng.normal(size=(n_rows, 1)) + rng.normal(size=(n_rows, p))
    beta = np.where(np.arange(p) % 2, 0.0, 0.1 * rng.choice([-1.0, 1.0], p))
    eta = -0.5 + x @ beta
    if family == "gaussian":
        y = eta + rng.normal(size=n_rows)
    elif family == "binomial":
        y = (rng.random(n_rows) < expit(eta)).astype(float)
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
    starts = np.cumsum((0, *SIZES))
    parties = {
        f"party-{k}": pd.DataFrame(x[:, a:b]).add_prefix("x")
        for k, (a, b) in enumerate(pairwise(starts))
    }
    return parties, pd.Series(y)


def gib() -> float:
    """Return the peak of this process's memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fit(n_rows: int, family: str) -> None:
    """Fit one path, and without a penalty, and print what it took."""
    parties, y = make_data(n_rows, family)
    before = gib()
    started, busy = time.perf_counter(), time.process_time()
    strategy = VerticalGLM(family)
    result = simulate(strategy, parties, y, "masked", progress=False)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    frame = result.ledger.to_frame()
    rounds = frame.loc[~frame["step"].isin(_BEFORE), "round"].nunique()
    sent = (frame["bytes_up"].sum() + frame["bytes_down"].sum()) / 2**20
    goal = f" ({GOALS[family]})" if family in GOALS else ""
    print(
        f"{family:9} path of {len(result.model.path)}: {rounds:3} rounds, "
        f"{seconds:6.1f} s ({busy:.1f} s of processor), {sent:7.0f} MiB sent, "
        f"peak {gib():.2f} GiB ({before:.2f} with the tables){goal}",
        flush=True,
    )
    free = simulate(VerticalGLM(family, penalty=None), parties, y, "masked", progress=False)
    x = sm.add_constant(np.hstack(list(parties.values())))
    pooled = sm.GLM(y.to_numpy(), x, FAMILIES[family]()).fit(tol=1e-12)
    assert free.coefficients is not None
    off = np.abs(free.coefficients["estimate"].to_numpy() - pooled.params)
    errors = np.abs(free.coefficients["std_error"].to_numpy() / pooled.bse - 1.0)
    print(
        f"{'':18} without a penalty, from statsmodels: {off.max():.1e} "
        f"({(off / pooled.bse).max():.1e} standard errors), standard errors {errors.max():.1e}",
        flush=True,
    )


def main() -> None:
    """Run all fits, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    parser.add_argument("--one", nargs=2, metavar=("ROWS", "FAMILY"))
    options = parser.parse_args()
    if options.one:
        rows, family = options.one
        fit(int(rows), family)
        return
    print(machine_line())
    rows = 5_000 if options.quick else ROWS
    print(f"{rows:,} rows, five parties of {SIZES} columns")
    for family in FAMILIES:
        command = [sys.executable, __file__, "--one", str(rows), family]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
