"""FKNN against scikit-learn's KNNImputer, and CKKS on the motor data.

    python benchmarks/fknn.py            # the whole: about a minute
    python benchmarks/fknn.py --quick    # small sizes, for CI

Times are taken side by side in one process: in each repetition every contestant runs once, and
the ratios are formed within the repetition; the median is printed. Peak memory is that of a
fresh process that runs one contestant.
"""

import statistics

import numpy as np
import pandas as pd
from common import alone, command_line, machine_line, peak_gib, seconds_of
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
    strategy = FKNN(n_neighbors=5, weighting="exact", standardize=False)
    result = simulate(strategy, parties, aggregation=contestant, progress=False)
    return np.hstack([result.tables[name].to_numpy() for name in parties])


def compare(n_rows: int, repetitions: int, quick: bool) -> None:
    """Time the contestants side by side and print ratios and memory."""
    table = make_table(n_rows)
    reference = run("knn-imputer", table)
    for name in ("plain", "masked"):
        difference = float(np.abs(run(name, table) - reference).max())
        print(f"{name:<12} largest difference from KNNImputer {difference:.1e}")
    seconds = [
        {c: seconds_of(lambda c=c: run(c, table)) for c in CONTESTANTS} for _ in range(repetitions)
    ]
    print(f"\n{n_rows} rows x {table.shape[1]} columns, 2 parties, 10 % of rows incomplete:")
    for name in CONTESTANTS:
        median = statistics.median(s[name] for s in seconds)
        peak = float(alone(__file__, name, quick).split()[-1])
        print(f"{name:<12} median {median:6.2f} s   peak {peak:.2f} GiB")
    for over, under, target in (("masked", "plain", 2.0), ("plain", "knn-imputer", 1.0)):
        ratios = sorted(s[over] / s[under] for s in seconds)
        print(
            f"{over} / {under}: median {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}), target at most {target}"
        )


def ckks_on_motor(tables: dict[str, pd.DataFrame], rate: float) -> None:
    """Impute party A of the motor data in ckks mode; time and ciphertext bytes."""
    hidden = np.random.default_rng(0).random(tables["guest"].shape) < rate
    parties = {"a": tables["guest"].mask(hidden), "b": tables["host"]}
    results = []
    seconds = seconds_of(
        lambda: results.append(
            simulate(FKNN(n_neighbors=5), parties, aggregation="ckks", progress=False)
        )
    )
    summary = results[0].ledger.summary()
    print(f"\nmotor, {rate:.0%} of party A's cells missing, ckks: {seconds:.1f} s, target 20")
    print(f"ciphertext bytes per value in 'impute': {summary.loc['impute', 'bytes_per_value']:.1f}")


def main() -> None:
    """Parse the command line and run."""
    options = command_line(__doc__).parse_args()
    n_rows = 2_000 if options.quick else 20_000
    if options.only:
        run(options.only, make_table(n_rows))
        print(peak_gib())
        return
    print(machine_line() + "\n")
    compare(n_rows, 2 if options.quick else 5, options.quick)
    try:
        motor = load_motor(Sources.find()).parties
    except DataError as error:
        print(f"\nckks is not timed: {error}")
        return
    for rate in (0.1,) if options.quick else (0.1, 0.4):
        ckks_on_motor(motor, rate)


if __name__ == "__main__":
    main()
