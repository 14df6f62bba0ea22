"""Completion by nearest neighbours and by a joint normal model, on tables inside scikit-learn.

Columns of each table are split among parties in their order; cells and blocks are missing
completely at random. Beside them what one would use if the tables were pooled: scikit-learn's
`IterativeImputer`. Errors are root mean squares in standard deviations of each column, on average
over parties and seeds: 1 is what the column's mean gives::

    python -m simulations.fknn.completion [--quick]
"""

import math
import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next one)
from sklearn.impute import IterativeImputer

from flwr_vertical import Strategy, simulate
from flwr_vertical.errors import VerticalError
from flwr_vertical.incomplete import imputation_accuracy
from strategies.baselines import Mean
from strategies.fknn import FKNN
from strategies.normal import JointNormal

LOADS = {
    "breast cancer": (load_breast_cancer, 3),
    "diabetes": (load_diabetes, 2),
    "wine": (load_wine, 2),
    "digits": (load_digits, 4),
}
MISSING = ((0.2, 0.0), (0.1, 0.05), (0.0, 0.3))
"""Shares of cells and of blocks."""
SEEDS = 5

Tables = dict[str, pd.DataFrame]


def make_tables(name: str, cells: float, blocks: float, seed: int) -> tuple[Tables, Tables]:
    """Return the parties' incomplete tables, and the complete ones."""
    load, n_parties = LOADS[name]
    x = load().data
    x = x[:, [len(np.unique(column)) > 2 and (column != 0).mean() > 0.2 for column in x.T]]
    rng = np.random.default_rng(seed)
    ids = [f"s{i:04}" for i in range(len(x))]
    whole, given = {}, {}
    for k, columns in enumerate(np.array_split(np.arange(x.shape[1]), n_parties)):
        frame = pd.DataFrame(x[:, columns], index=ids, columns=[f"c{j}" for j in columns])
        whole[f"party {k}"] = frame.astype(float)
        kept = frame[rng.random(len(x)) >= blocks].astype(float)
        given[f"party {k}"] = kept.mask(rng.random(kept.shape) < cells)
    return given, whole


def complete(strategy: Strategy, given: Tables) -> Mapping[str, pd.DataFrame]:
    """Return the completed tables, none where parties refuse sums over so few rows."""
    try:
        return dict(simulate(strategy, given, progress=False).tables)
    except VerticalError:
        return {}


def error_of(given: Tables, found: Mapping[str, pd.DataFrame], whole: Tables) -> float:
    """Return the error over parties."""
    if not found:
        return math.nan
    errors = [imputation_accuracy(given[n], found[n], whole[n])["rmse-in-sd"] for n in whole]
    return float(np.mean(errors))


def pooled(given: Tables, whole: Tables) -> Tables:
    """Impute the pooled table by scikit-learn."""
    ids = next(iter(whole.values())).index
    table = pd.concat([frame.reindex(ids) for frame in given.values()], axis=1)
    spread = table.std()
    filled = IterativeImputer(random_state=0).fit_transform(table / spread)
    frame = pd.DataFrame(filled, index=ids, columns=table.columns) * spread
    return {name: frame[list(part.columns)] for name, part in given.items()}


def main(quick: bool) -> None:
    """Print the table."""
    print("| table | cells | blocks | `joint-normal` | `fknn` | `mean` | pooled |")
    print("|---|---|---|---|---|---|---|")
    for name in ("diabetes",) if quick else LOADS:
        for cells, blocks in MISSING:
            rows = []
            for seed in range(1 if quick else SEEDS):
                given, whole = make_tables(name, cells, blocks, seed)
                found = [complete(each, given) for each in (JointNormal(), FKNN(), Mean())]
                found.append(pooled(given, whole))
                rows.append([error_of(given, tables, whole) for tables in found])
            means = np.mean(rows, axis=0)
            errors = " | ".join("refused" if math.isnan(e) else f"{e:.3f}" for e in means)
            print(f"| {name} | {cells:g} | {blocks:g} | {errors} |", flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv)
