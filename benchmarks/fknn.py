"""FKNN against scikit-learn's KNNImputer, and CKKS on the motor data.

    python benchmarks/fknn.py                   # the whole: about a minute
    python benchmarks/fknn.py --quick           # small sizes, for CI
    python benchmarks/fknn.py --before 1396387  # also beside an earlier commit: what blinding costs

Times are taken side by side in one process: in each repetition every contestant runs once, and
the ratios are formed within the repetition; the median is printed. Peak memory is that of a
fresh process that runs one contestant.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from machine import machine_line
from sklearn.impute import KNNImputer

from flwr_vertical import simulate
from flwr_vertical.errors import DataError
from simulations.data import Sources, load_motor
from strategies.fknn import FKNN

CONTESTANTS = ("knn-imputer", "plain", "masked")


def make_table(n_rows: int, n_columns: int = 16) -> pd.DataFrame:
    """Correlated normal columns; every tenth row lacks three cells."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n_rows, n_columns)) @ rng.normal(size=(n_columns, n_columns))
    for row in rng.choice(n_rows, n_rows // 10, replace=False):
        values[row, rng.choice(n_columns, 3, replace=False)] = np.nan
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(n_columns)])


def run(contestant: str, table: pd.DataFrame) -> np.ndarray:
    """Impute the table by one contestant; all give the same numbers."""
    if contestant == "knn-imputer":
        return np.asarray(KNNImputer(n_neighbors=5).fit_transform(table))
    half = table.shape[1] // 2
    parties = {"a": table.iloc[:, :half], "b": table.iloc[:, half:]}
    result = simulate(
        FKNN(n_neighbors=5, weighting="exact", standardize=False),
        parties,
        aggregation=contestant,
        progress=False,
    )
    return np.hstack([result.tables[name].to_numpy() for name in parties])


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def peak_of_this_process() -> float:
    """Peak resident memory in GiB (``ru_maxrss`` would count the parent's before ``exec``)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def peak_memory(contestant: str, n_rows: int) -> float:
    """Peak memory in GiB of a process that only makes the table and runs one contestant."""
    command = [sys.executable, __file__, "--only", contestant, "--rows", str(n_rows)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(answer.stdout.split()[-1])


def compare(n_rows: int, repetitions: int) -> None:
    """Time the contestants side by side and print ratios and memory."""
    table = make_table(n_rows)
    reference = run("knn-imputer", table)
    for name in ("plain", "masked"):
        difference = float(np.abs(run(name, table) - reference).max())
        print(f"{name:<12} largest difference from KNNImputer {difference:.1e}")
    seconds = [
        {c: timed(lambda c=c: run(c, table)) for c in CONTESTANTS} for _ in range(repetitions)
    ]
    print(f"\n{n_rows} rows x {table.shape[1]} columns, 2 parties, 10 % of rows incomplete:")
    for name in CONTESTANTS:
        median = statistics.median(s[name] for s in seconds)
        print(f"{name:<12} median {median:6.2f} s   peak {peak_memory(name, n_rows):.2f} GiB")
    for over, under, target in (("masked", "plain", 2.0), ("plain", "knn-imputer", 1.0)):
        ratios = sorted(s[over] / s[under] for s in seconds)
        print(
            f"{over} / {under}: median {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}), target at most {target}"
        )


def seconds_of(folder: Path, n_rows: int) -> tuple[float, float]:
    """Seconds, and processor seconds, of a fresh process's second masked run."""
    command = [sys.executable, __file__, "--only", "masked", "--rows", str(n_rows), "--time"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    wall, processor = answer.stdout.split()[-2:]
    return float(wall), float(processor)


def compare_with_commit(commit: str, n_rows: int, repetitions: int) -> None:
    """Time masked runs of this library and of that of a commit in turn."""
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, "flwr_vertical", "strategies"],
            check=True,
            capture_output=True,
            cwd=here,
        )
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
        pairs = [
            (seconds_of(here, n_rows), seconds_of(Path(folder), n_rows)) for _ in range(repetitions)
        ]
    print(f"\nmasked, {n_rows} rows, beside commit {commit}, target at most 1.5 times the seconds")
    for k, unit in enumerate(("seconds", "processor seconds")):
        now, then = (statistics.median(pair[side][k] for pair in pairs) for side in (0, 1))
        ratios = sorted(new[k] / old[k] for new, old in pairs)
        print(
            f"{unit}: {now:.2f}, then {then:.2f}; ratio: median {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def ckks_on_motor(tables: dict[str, pd.DataFrame], rate: float) -> None:
    """Impute party A of the motor data in ckks mode; time and ciphertext bytes."""
    hidden = np.random.default_rng(0).random(tables["guest"].shape) < rate
    parties = {"a": tables["guest"].mask(hidden), "b": tables["host"]}
    started = time.perf_counter()
    result = simulate(FKNN(n_neighbors=5), parties, aggregation="ckks", progress=False)
    seconds = time.perf_counter() - started
    summary = result.ledger.summary()
    print(f"\nmotor, {rate:.0%} of party A's cells missing, ckks: {seconds:.1f} s, target 20")
    print(f"ciphertext bytes per value in 'impute': {summary.loc['impute', 'bytes_per_value']:.1f}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    parser.add_argument("--rows", type=int, default=0, help="rows (default 20000, quick 2000)")
    parser.add_argument("--repetitions", type=int, default=0, help="default 5, quick 2")
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--before", metavar="COMMIT", help="compare with the library at a commit")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    n_rows = options.rows or (2_000 if options.quick else 20_000)
    if options.only and options.time:
        table = make_table(n_rows)
        run(options.only, table)
        before = time.process_time()
        print(timed(lambda: run(options.only, table)), time.process_time() - before)
        return
    if options.only:
        run(options.only, make_table(n_rows))
        print(peak_of_this_process())
        return
    print(machine_line() + "\n")
    compare(n_rows, options.repetitions or (2 if options.quick else 5))
    if options.before:
        compare_with_commit(options.before, n_rows, options.repetitions or 5)
    try:
        motor = load_motor(Sources.find()).parties
    except DataError as error:
        print(f"\nckks is not timed: {error}")
        return
    for rate in (0.1,) if options.quick else (0.1, 0.4):
        ckks_on_motor(motor, rate)


if __name__ == "__main__":
    main()
