"""VFEM at the size of the paper's data: time, memory and rounds; ``--quick`` for CI."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from machine import machine_line

from flwr_vertical import simulate
from strategies.vfem import VFEM

PAPER_ROWS, PAPER_COLUMNS = 166_207, (12, 3, 6, 9, 5)
PAPER_RATES = (0.5365, 0.8761, 0.9305, 0.0091, 0.9328)
SOME_MISSING = (0.3, 0.3, 0.3, 0.3, 0.3)
OPENING = 2  # greeting and alignment


def make_data(
    n_rows: int, sizes: tuple[int, ...], rates: tuple[float, ...], seed: int = 0
) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]", np.ndarray]:
    """Make normal columns, correlated within a party; blocks missing completely at random."""
    rng = np.random.default_rng(seed)
    y, parties, truth = rng.normal(size=n_rows), {}, []
    for k, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        covariance = 0.3 ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        x = rng.normal(size=(n_rows, size)) @ np.linalg.cholesky(covariance).T
        beta = rng.normal(size=size)
        y += x @ beta
        truth.append(beta)
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(size)])
        parties[f"party-{k}"] = frame[rng.random(n_rows) >= rate]
    return parties, pd.Series(y), np.concatenate(truth)


def at_paper_size(n_rows: int, rates: tuple[float, ...], what: str) -> None:
    """Run once at the size of the paper's data and print time, peak memory and error."""
    parties, y, truth = make_data(n_rows, PAPER_COLUMNS, rates)
    base = peak_gib()
    started, busy = time.perf_counter(), time.process_time()
    result = simulate(VFEM(), parties, y, progress=False)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    error = result.coefficients["estimate"].to_numpy()[1:] - truth
    print(
        f"\n{n_rows:,} rows, {len(truth)} columns, {len(rates)} parties, {what}, from moments, "
        f"masked, LocalGrid: {seconds:.1f} s ({busy:.1f} s of processor), target 5; peak "
        f"{peak_gib():.2f} GiB ({base:.2f} of it the tables and the library), target 1; "
        f"{result.ledger.rounds - OPENING} rounds after alignment, target 6; "
        f"{result.model.outcome} after {result.metrics['iterations']:.0f} steps at the server; "
        f"RMSE of coefficients {np.sqrt(np.mean(error**2)):.4f}; "
        f"{result.metrics['rows_merged']:.0f} rows merged",
        flush=True,
    )


def peak_gib() -> float:
    """Return the largest memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 2**20


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    parser.add_argument("--case", choices=("paper", "some"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    n_rows = 8_000 if options.quick else PAPER_ROWS
    if options.case:
        paper = options.case == "paper"
        rates = PAPER_RATES if paper else SOME_MISSING
        at_paper_size(n_rows, rates, "the paper's missing rates" if paper else "30 % missing")
        return
    print(machine_line(), flush=True)
    for case in ("paper", "some"):  # each in a process of its own, whose memory counts
        command = [sys.executable, __file__, "--case", case, *(["--quick"] * options.quick)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
