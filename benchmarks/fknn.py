"""FKNN against scikit-learn's KNNImputer, a million rows, and what drawn donors cost.

    python benchmarks/fknn.py            # the whole: about ten minutes
    python benchmarks/fknn.py --quick    # small sizes, for CI

Contestants run by turns in one process; the least time of each counts.

The million rows run with all nodes in one process and plain alignment, whose time `alignment.py`
measures. What drawn donors cost is the error of hidden cells over that with all donors, by plain
nearest neighbours with FKNN's distance: of generated tables of a million rows, and of real tables,
which are smaller, by the share of their rows.
"""

from argparse import Namespace
from functools import partial

import numpy as np
import pandas as pd
from common import Cases, memory_gib, run, show, timed
from sklearn import datasets
from sklearn.impute import KNNImputer

from flwr_vertical import simulate
from simulations.data import Sources
from strategies.fknn import FKNN

CONTESTANTS = ("knn-imputer", "plain", "masked")
MOST = FKNN().max_donors


def make_table(n_rows: int, every: int = 10) -> pd.DataFrame:
    """Correlated normal columns; one of `every` rows lacks three cells."""
    rng, values = np.random.default_rng(0), generated("normal", n_rows)
    for row in rng.choice(n_rows, n_rows // every, replace=False):
        values[row, rng.choice(values.shape[1], 3, replace=False)] = np.nan
    return pd.DataFrame(values).add_prefix("x")


def impute(contestant: str, table: pd.DataFrame) -> np.ndarray:
    """Impute the table by one contestant; all give the same numbers."""
    if contestant == "knn-imputer":
        return np.asarray(KNNImputer(n_neighbors=5).fit_transform(table))
    half = table.shape[1] // 2
    parties = {"a": table.iloc[:, :half], "b": table.iloc[:, half:]}
    strategy = FKNN(n_neighbors=5, weighting="exact", standardize=False)
    result = simulate(strategy, parties, aggregation=contestant, progress=False)
    return np.hstack([result.tables[name].to_numpy() for name in parties])


def compare(n_rows: int, repetitions: int) -> None:
    """Print the least time of each contestant, and ratios."""
    table = make_table(n_rows)
    print(f"{n_rows} rows x {table.shape[1]} columns, 2 parties, 10 % of rows incomplete:")
    seconds = dict.fromkeys(CONTESTANTS, np.inf)
    for name in CONTESTANTS * repetitions:
        seconds[name] = min(seconds[name], timed(partial(impute, name, table)).seconds)
    for name, least in seconds.items():
        show(name, {"s": least})
    for over, under, target in (("masked", "plain", "2.0"), ("masked", "knn-imputer", "0.25")):
        show(f"{over} / {under}", {"of the time": seconds[over] / seconds[under]}, target)


def run_million(n_rows: int) -> None:
    """Impute 1 % of many rows with the default settings; print seconds and this process's peak."""
    table = make_table(n_rows, every=100)
    parties = {"a": table.iloc[:, :8], "b": table.iloc[:, 8:]}
    del table
    tables = memory_gib()
    _, seconds, cpu = timed(lambda: simulate(FKNN(), parties, alignment="plain", progress=False))
    show(
        f"{n_rows:,} rows, 1 % incomplete, at most {MOST:,} donors",
        {"s": seconds, "s of processors": cpu, "GiB at most": memory_gib(), "GiB before": tables},
        "120 s, 4 GiB for both parties and the server",
    )


def generated(kind: str, n_rows: int, n_columns: int = 16) -> np.ndarray:
    """Return rows of one kind: how fast the error falls with donors depends on it."""
    rng = np.random.default_rng(1)
    if kind == "normal":  # as many directions as columns
        return rng.normal(size=(n_rows, n_columns)) @ rng.normal(size=(n_columns, n_columns))
    if kind == "4 factors":
        factors = rng.normal(size=(n_rows, 4)) @ rng.normal(size=(4, n_columns))
        return factors + 0.5 * rng.normal(size=(n_rows, n_columns))
    if kind == "20 clusters":
        centres = 1.5 * rng.normal(size=(20, n_columns))
        spread = 0.5 * rng.normal(size=(n_rows, n_columns))
        return centres[rng.integers(20, size=n_rows)] + spread
    curved = np.sin(rng.normal(size=(n_rows, 3)) @ rng.normal(size=(3, n_columns)))
    return curved + 0.3 * rng.normal(size=(n_rows, n_columns))


def real_tables() -> dict[str, np.ndarray]:
    """Return the numeric columns of scikit-learn's tables, and of the data folder if it is set."""
    names = ("diabetes", "wine", "breast_cancer", "digits")
    tables = {name: getattr(datasets, f"load_{name}")().data for name in names}
    files = ("letter/letter_recognition.csv", "bank/bank_full.csv", "motor/motor_hetero_host.csv")
    for name in files:
        if path := Sources.find().found(name):
            frame = pd.read_csv(path).select_dtypes("number")
            tables[path.parent.name] = frame.to_numpy(dtype=float)
    return tables


def errors_by_donors(values: np.ndarray, sizes: list[int], n_asked: int, seed: int) -> np.ndarray:
    """RMSE of three hidden cells of `n_asked` rows, imputed from so many of the other rows."""
    rng = np.random.default_rng(seed)
    values = rng.permutation(values[:, values.std(axis=0) > 0])
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    asked, donors = values[:n_asked], values[n_asked:]
    hidden = np.zeros(asked.shape, dtype=bool)
    np.put_along_axis(hidden, np.argsort(rng.random(asked.shape), axis=1)[:, :3], True, axis=1)
    lacking = np.where(hidden, np.nan, asked)
    imputers = [KNNImputer().fit(donors[:size]) for size in sizes]
    gaps = [(imputer.transform(lacking) - asked)[hidden] for imputer in imputers]
    return np.asarray(np.sqrt(np.square(gaps).mean(axis=1)))


def show_errors(what: str, values: np.ndarray, sizes: list[int], n_asked: int, runs: int) -> None:
    """Print errors by donors over the last one, with all donors."""
    total = np.sum([errors_by_donors(values, sizes, n_asked, seed) for seed in range(runs)], axis=0)
    donors = [f"by {size:,}" for size in sizes]
    show(what, dict(zip(donors, total / total[-1], strict=True)))


def cost_of_drawing(n_rows: int) -> None:
    """Print errors with drawn donors over those with all: of generated and of real tables."""
    n_asked = min(1000, n_rows // 10)
    most = min(MOST, n_rows // 2)
    print(f"\nRMSE over that with all donors, {n_rows:,} generated rows:")
    for kind in ("normal", "4 factors", "20 clusters", "curved"):
        values = generated(kind, n_rows + n_asked)
        show_errors(kind, values, [most // 4, most // 2, most, n_rows], n_asked, 1)
    print("\nReal tables; a 32nd, 16th, 8th, quarter and half of the rows, and all, donate:")
    for name, values in real_tables().items():
        n_asked = min(1000, len(values) // 5)
        sizes = [max(5, (len(values) - n_asked) >> halvings) for halvings in (5, 4, 3, 2, 1, 0)]
        show_errors(name, values, sizes, n_asked, max(1, 4000 // n_asked))


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    few, repetitions, many = (2_000, 2, 20_000) if options.quick else (20_000, 5, 1_000_000)
    return {
        "contestants": partial(compare, few, repetitions),
        "million": partial(run_million, many),
        "donors": partial(cost_of_drawing, many),
    }


if __name__ == "__main__":
    run(__doc__, main)
