"""FKNN against scikit-learn's KNNImputer, a million rows, and what drawn donors cost.

    python benchmarks/fknn.py            # the whole: about ten minutes
    python benchmarks/fknn.py --quick    # small sizes, for CI

Contestants run by turns in one process; the least time of each counts.

The million rows run in a process of its own, with all nodes in it and plain alignment, whose time
`alignment.py` measures. What drawn donors cost is the error of hidden cells over that with all
donors, by plain nearest neighbours with FKNN's distance: of generated tables of a million rows,
and of real tables, which are smaller, by the share of their rows.
"""

from functools import partial

import numpy as np
import pandas as pd
from common import alone, begin, command_line, memory_gib, timed
from sklearn import datasets
from sklearn.impute import KNNImputer

from flwr_vertical import simulate
from simulations.data import Sources
from strategies.fknn import FKNN

CONTESTANTS = ("knn-imputer", "plain", "masked")
MILLION = "million"
MOST = FKNN().max_donors


def make_table(n_rows: int, n_columns: int = 16, every: int = 10) -> pd.DataFrame:
    """Correlated normal columns; one of `every` rows lacks three cells."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n_rows, n_columns)) @ rng.normal(size=(n_columns, n_columns))
    for row in rng.choice(n_rows, n_rows // every, replace=False):
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


def compare(n_rows: int, repetitions: int) -> None:
    """Print the least time of each contestant, and ratios."""
    table = make_table(n_rows)
    print(f"{n_rows} rows x {table.shape[1]} columns, 2 parties, 10 % of rows incomplete:")
    seconds = dict.fromkeys(CONTESTANTS, np.inf)
    for name in CONTESTANTS * repetitions:
        seconds[name] = min(seconds[name], timed(partial(run, name, table)).seconds)
    for name, least in seconds.items():
        print(f"{name:<12} {least:6.2f} s")
    for over, under, target in (("masked", "plain", 2.0), ("masked", "knn-imputer", 0.25)):
        print(f"{over} / {under}: {seconds[over] / seconds[under]:.2f}, target at most {target}")


def run_million(n_rows: int) -> None:
    """Impute 1 % of many rows with the default settings; print seconds and this process's peak."""
    table = make_table(n_rows, every=100)
    parties = {"a": table.iloc[:, :8], "b": table.iloc[:, 8:]}
    del table
    tables = memory_gib()
    _, seconds, cpu = timed(lambda: simulate(FKNN(), parties, alignment="plain", progress=False))
    print(
        f"{n_rows} rows x 16 columns, 2 parties, 1 % of rows incomplete, masked, at most {MOST} "
        f"donors: {seconds:.0f} s, target 120 ({cpu:.0f} s of processors); peak of the "
        f"process with both parties and the server {memory_gib():.2f} GiB, target 4 ({tables:.2f} "
        "with the tables alone)"
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
    values = values[:, values.std(axis=0) > 0]
    values = ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)
    values = values[rng.permutation(len(values))]
    asked, donors = values[:n_asked], values[n_asked:]
    seen = np.ones(asked.shape, dtype=np.float32)
    np.put_along_axis(seen, np.argsort(rng.random(asked.shape), axis=1)[:, :3], 0.0, axis=1)
    left, right = np.hstack([seen, -2 * seen * asked]), np.hstack([donors**2, donors]).T
    squares = np.zeros(len(sizes))
    for rows in np.array_split(np.arange(n_asked), max(1, n_asked // 32)):
        apart = left[rows] @ right
        for k, size in enumerate(sizes):
            nearest = np.argpartition(apart[:, :size], 4, axis=1)[:, :5]
            gaps = donors[nearest].mean(axis=1) - asked[rows]
            squares[k] += (gaps[seen[rows] == 0] ** 2).sum()
    return np.sqrt(squares / (seen == 0).sum())


def cost_of_drawing(n_rows: int) -> None:
    """Print errors with drawn donors over those with all: of generated and of real tables."""
    n_asked = min(1000, n_rows // 10)
    most = min(MOST, n_rows // 2)
    sizes = [most // 4, most // 2, most, n_rows]
    heading = "".join(f"{size:>10}" for size in sizes)
    print(f"\nRMSE over that with all donors, {n_rows} generated rows, donors:\n{'':<14}{heading}")
    for kind in ("normal", "4 factors", "20 clusters", "curved"):
        errors = errors_by_donors(generated(kind, n_rows + n_asked), sizes, n_asked, 0)
        print(f"{kind:<14}" + "".join(f"{error / errors[-1]:>10.3f}" for error in errors))
    shares = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    heading = "".join(f"{share:>10.0%}" for share in shares)
    print(f"\nReal tables, share of the rows that donate:\n{'':<14}{heading}")
    for name, values in real_tables().items():
        n_asked = min(1000, len(values) // 5)
        n_donors = len(values) - n_asked
        sizes = [max(5, int(share * n_donors)) for share in shares]
        several = max(1, 4000 // n_asked)
        total = sum(errors_by_donors(values, sizes, n_asked, seed) for seed in range(several))
        row = "".join(f"{error / total[-1]:>10.3f}" for error in total)
        print(f"{name:<14}{row}   {len(values)} rows x {values.shape[1]}")


def main() -> None:
    """Parse the command line and run."""
    options = begin(command_line(__doc__))
    n_rows = 2_000 if options.quick else 20_000
    many = 20_000 if options.quick else 1_000_000
    if options.only == MILLION:
        run_million(many)
        return
    compare(n_rows, 2 if options.quick else 5)
    print("\n" + alone(__file__, MILLION, options.quick).strip())
    cost_of_drawing(many)


if __name__ == "__main__":
    main()
