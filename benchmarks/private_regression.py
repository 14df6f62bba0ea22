"""Regression with differential privacy: errors of noisy sums beside exact ones and dp='admm'.

    python benchmarks/private_regression.py            # three parties, six columns
    python benchmarks/private_regression.py --quick    # fewer rows and repetitions, for CI

Columns are normal with correlations of 0.2, within public bounds of four standard deviations each
way. Errors are root mean squares over slopes and repetitions, of slopes per standard deviation of
a column, beside the true ones; a prediction of zero would have 0.68. Epsilon is that of the whole
run: for dp='admm' the ledger's, over all its rounds, at the same delta, where a smaller epsilon a
round is taken until the whole is no more than stated.
"""

import argparse
import logging

import numpy as np
import pandas as pd
from machine import machine_line
from scipy.optimize import brentq

from flwr_vertical import simulate
from strategies.glm_admm import GLMADMM
from strategies.glm_admm.admm import composed, noise_scale
from strategies.least_squares import CompleteCase

DELTA = 1e-6
ROUNDS = 5
BETA = np.array([1.0, -0.8, 0.6, -0.4, 0.2, 0.0])
BOUNDS = {f"x{j}": (-4.0, 4.0) for j in range(len(BETA))} | {"y": (-10.0, 10.0)}


def make(n: int, seed: int) -> "tuple[dict[str, pd.DataFrame], pd.Series[float]]":
    """Return tables of three parties with two columns each, and labels."""
    rng = np.random.default_rng(seed)
    x = np.sqrt(0.8) * rng.normal(size=(n, len(BETA))) + np.sqrt(0.2) * rng.normal(size=(n, 1))
    ids = [f"s{i}" for i in range(n)]
    y = pd.Series(x @ BETA + rng.normal(size=n), ids, name="y")
    columns = [f"x{j}" for j in range(len(BETA))]
    frame = pd.DataFrame(x, ids, columns)
    return {name: frame[columns[2 * k : 2 * k + 2]] for k, name in enumerate("abc")}, y


def admm_round(epsilon: float) -> float:
    """Return the epsilon of one round with which all rounds together have the one stated."""

    def excess(each: float) -> float:
        return composed(noise_scale(each, DELTA), DELTA, ROUNDS) - epsilon

    return float(brentq(excess, 1e-6 * epsilon, 10 * epsilon))


def error(strategy: object, n: int, repetitions: int) -> tuple[float, float]:
    """Return the root mean squared error of slopes, and the share of intervals that cover."""
    gaps, covered = [], []
    for seed in range(repetitions):
        tables, labels = make(n, seed)
        table = simulate(strategy, tables, labels, progress=False).coefficients  # type: ignore[arg-type]
        assert table is not None
        found = table["estimate"].to_numpy()[-len(BETA) :]
        gaps.append(found - BETA)
        if "std_error" in table:
            spread = table["std_error"].to_numpy()[-len(BETA) :]
            covered.append(np.abs(found - BETA) < 1.96 * spread)
    return float(np.sqrt(np.mean(np.square(gaps)))), float(np.mean(covered)) if covered else np.nan


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    logging.getLogger("flwr_vertical").setLevel(logging.ERROR)
    print(machine_line())
    repetitions = 2 if quick else 10
    print(f"delta {DELTA:g}; root mean squared error of slopes, {repetitions} repetitions")
    print(f"{'rows':>8} {'epsilon':>8} {'noisy sums':>11} {'covered':>8} {'row_norm 0.5':>13} "
          f"{'covered':>8} {'admm':>8} {'exact':>8}")  # fmt: skip
    for n in (2_000,) if quick else (2_000, 10_000, 50_000):
        exact, _ = error(CompleteCase(), n, repetitions)
        for epsilon in (1.0,) if quick else (0.5, 1.0, 3.0, 10.0):
            given = {"epsilon": epsilon, "delta": DELTA, "bounds": BOUNDS}
            wide, covers = error(CompleteCase(**given), n, repetitions)  # type: ignore[arg-type]
            narrow, also = error(CompleteCase(**given, row_norm=0.5), n, repetitions)  # type: ignore[arg-type]
            admm = np.nan
            if n <= 10_000:
                baseline = GLMADMM(
                    epsilon=admm_round(epsilon), delta=DELTA, max_iter=ROUNDS, penalty="none"
                )
                admm, _ = error(baseline, n, repetitions)
            print(f"{n:8,} {epsilon:8g} {wide:11.3f} {covers:8.2f} {narrow:13.3f} {also:8.2f} "
                  f"{admm:8.3f} {exact:8.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
