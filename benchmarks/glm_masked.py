"""Logistic and Poisson regression of two and three parties, against statsmodels.

    python benchmarks/glm_masked.py            # 30,000 rows x 23 columns
    python benchmarks/glm_masked.py --quick    # 3,000 rows, for CI

Labels of 0 and 1 are drawn at two strengths: predictors that reach farther take longer Fourier
sums. Strategy and statsmodels run by turns in one process, and the median is printed.
"""

import statistics

import numpy as np
import pandas as pd
import statsmodels.api as sm
from common import Timed, begin, command_line, timed
from scipy.special import expit

from flwr_vertical import Result, simulate
from strategies.glm import VerticalGLM

CASES = (
    # family, strength of the columns, parties
    ("binomial", 1.0, 2),
    ("binomial", 1.0, 3),
    ("binomial", 2.0, 2),
    ("binomial", 4.0, 2),
    ("poisson", 0.5, 2),
)
N_COLUMNS = 23
TARGET_MB = 180.0


def make_table(n_rows: int, family: str, strength: float) -> tuple[pd.DataFrame, pd.Series]:
    """Make columns as of borrowers: codes, correlated amounts with a long tail, flags; labels."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 6, (n_rows, 6)) + rng.integers(0, 3, (n_rows, 1))
    amounts = 0.6 * (rng.standard_normal((n_rows, 12)) + rng.standard_normal((n_rows, 1)))
    if family == "binomial":  # counts are refused where columns have a long tail
        amounts = np.exp(amounts)
    flags = rng.random((n_rows, 5)) < (0.5, 0.4, 0.3, 0.2, 0.1)
    values = np.column_stack([codes, amounts, flags]).astype(float)
    slopes = rng.standard_normal(N_COLUMNS)
    eta = (values - values.mean(axis=0)) / values.std(axis=0) @ slopes
    eta *= strength / eta.std()
    if family == "poisson":
        y = rng.poisson(np.exp(eta - 0.5)).astype(float)
    else:
        y = (rng.random(n_rows) < expit(eta - 1.2)).astype(float)
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(N_COLUMNS)]), pd.Series(y, name="y")


def fit(family: str, columns: pd.DataFrame, labels: pd.Series, n_parties: int) -> Timed[Result]:
    """Fit the model to columns of several parties."""
    own = np.array_split(np.arange(N_COLUMNS), n_parties)
    parties = {f"p{k}": columns.iloc[:, these] for k, these in enumerate(own)}
    strategy = VerticalGLM(family=family, penalty="none")
    return timed(lambda: simulate(strategy, parties, labels, progress=False))


def compare(n_rows: int, family: str, strength: float, n_parties: int, repetitions: int) -> None:
    """Fit by turns, and print what travelled, seconds, and how far estimates differ."""
    columns, labels = make_table(n_rows, family, strength)
    model = sm.GLM(labels, sm.add_constant(columns), family=getattr(sm.families, family.title())())
    truth, seconds, pooled = model.fit(tol=1e-12), [], []
    for _ in range(repetitions):
        result, one, _ = fit(family, columns, labels, n_parties)
        seconds.append(one)
        pooled.append(timed(model.fit).seconds)
    table = result.coefficients
    assert table is not None
    far = np.abs((table["estimate"].to_numpy() - truth.params.to_numpy()) / truth.bse.to_numpy())
    total = result.ledger.summary("total").iloc[0]
    rounds, down, up = int(total["rounds"]), total["bytes_down"] / 1e6, total["bytes_up"] / 1e6
    print(
        f"{family:<9} {strength:>8.1f} {n_parties:>8} {rounds:>7} {down:>9.0f} {up:>7.0f} "
        f"{statistics.median(seconds):>8.2f} {statistics.median(pooled):>12.2f} {far.max():>10.1e}"
    )


def main() -> None:
    """Parse the command line and run."""
    options = begin(command_line(__doc__, "3,000 rows, once"))
    n_rows, repetitions = (3_000, 1) if options.quick else (30_000, 3)
    print(f"{n_rows:,} rows x {N_COLUMNS} columns; target of the first: {TARGET_MB:.0f} MB down")
    print("family    strength  parties  rounds   MB down   MB up  seconds  statsmodels  off in SE")
    for family, strength, n_parties in CASES:
        compare(n_rows, family, strength, n_parties, repetitions)


if __name__ == "__main__":
    main()
