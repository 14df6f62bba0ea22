"""Completion by nearest neighbours and by a joint normal model; its intervals and draws.

Columns of each table are split among parties in their order; cells and blocks are missing
completely at random. Errors are root mean squares of numbers in standard deviations, on average
over parties and seeds. Pooled is scikit-learn's `IterativeImputer` on one table. On normal data
follow the shares of 95 % intervals that hold the truth: of cells, and of slopes of a party's column
on all others, by draws and Rubin's rules, and how large these are:
``python -m simulations.fknn.completion [--quick]``
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next one)
from sklearn.impute import IterativeImputer

from flwr_vertical import Result, Strategy, simulate
from flwr_vertical.errors import VerticalError
from flwr_vertical.incomplete import imputation_accuracy
from simulations.data import Sources
from simulations.page import indexed, markdown_table
from simulations.preset import quick_asked
from strategies.baselines import Mean
from strategies.fknn import FKNN
from strategies.normal import JointNormal
from strategies.normal.rubin import pool

LOADS = {"diabetes": (load_diabetes, 2), "breast cancer": (load_breast_cancer, 3),
         "wine": (load_wine, 2), "digits": (load_digits, 4),
         "german": ("german/german_credit.csv", 3), "bank": ("bank/bank_full.csv", 3)}  # fmt: skip
MISSING = ((0.2, 0.0), (0.1, 0.05), (0.0, 0.3))  # shares of cells and of blocks
COLUMNS = ("`joint-normal`", "intervals", "`fknn`", "`mean`", "pooled")
SLOPES = np.array([0.3, 0.5, -0.4, 0.25, -0.3])
Tables = dict[str, pd.DataFrame]


def make_tables(x: pd.DataFrame, k: int, cells: float, blocks: float, seed: int) -> list[Tables]:
    """Return the parties' incomplete tables, and the complete ones."""
    rng, given, whole = np.random.default_rng(seed), Tables(), Tables()
    for number, columns in enumerate(np.array_split(np.arange(x.shape[1]), k)):
        table = whole[f"party {number}"] = x.iloc[:, columns]
        kept = table[rng.random(len(x)) >= blocks]
        given[f"party {number}"] = kept.mask(rng.random(kept.shape) < cells)
    return [given, whole]


def table_of(load: object) -> pd.DataFrame:
    """Return a data set; of a file, 2,000 rows at most."""
    if callable(load):
        x = pd.DataFrame(load().data).add_prefix("c").astype(float)
        return x.loc[:, [x[c].nunique() > 2 and (x[c] != 0).mean() > 0.2 for c in x]]
    x = pd.read_csv(Sources.find().path(str(load)))
    x = x.sample(min(len(x), 2000), random_state=0).reset_index(drop=True)
    return x.astype(dict.fromkeys(x.select_dtypes("number"), float))


def pooled(given: Tables, whole: Tables) -> float:
    """Return the error where scikit-learn imputes the pooled numbers."""
    x = pd.concat([given[name].reindex(whole[name].index) for name in whole], axis=1)
    x = x.select_dtypes("number")
    x[:] = IterativeImputer(random_state=0).fit_transform(x / x.std()) * x.std().to_numpy()
    found = [imputation_accuracy(given[n], x.filter(list(t)), t) for n, t in whole.items()]
    return float(np.mean([one["rmse_in_sd"] for one in found if one]))


def score(strategy: Strategy, given: Tables, whole: Tables) -> list[float]:
    """Return the error and how often intervals hold, NaN where parties refuse."""
    try:
        found = simulate(strategy, given, truth=whole, progress=False).party_metrics.values()
    except VerticalError:
        return [np.nan, np.nan]
    of = ([v[name] for v in found if name in v] for name in ("rmse_in_sd", "coverage"))
    return [float(np.mean(values or [np.nan])) for values in of]


def replicate(cells: float, blocks: float, seed: int, draws: int = 10) -> tuple[float, ...]:
    """Return how often intervals hold on normal data, of cells and of pooled slopes.

    And how large pooled slopes are, as a share of the true ones.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1000, 6)) + rng.normal(size=(1000, 1))
    x[:, 0] = x[:, 1:] @ SLOPES + rng.normal(size=1000)
    given, whole = make_tables(pd.DataFrame(x).add_prefix("c"), 3, cells, blocks, seed)
    result = simulate(JointNormal(draws), given, truth=whole, progress=False)
    fits = []
    for tables in result.draws:
        frames = [tables[name].reindex(range(1000)) for name in whole]
        z = np.asarray(pd.concat(frames, axis=1).dropna())
        slopes, left, *_ = np.linalg.lstsq(z[:, 1:], z[:, 0])
        errors = np.sqrt(left / (len(z) - 6) * np.diag(np.linalg.inv(z[:, 1:].T @ z[:, 1:])))
        table = pd.DataFrame({"estimate": slopes, "std_error": errors})
        fits.append(Result("", coefficients=table))
    found = pool(fits, 994)
    covered = np.mean([values["coverage"] for values in result.party_metrics.values()])
    of_slopes = ((found.ci_low < SLOPES) & (found.ci_high > SLOPES)).mean()
    size = found.estimate @ SLOPES / (SLOPES @ SLOPES)
    return float(covered), float(of_slopes), float(size)


def main(quick: bool) -> None:
    """Print the tables."""
    found = {}
    chosen = [*LOADS.items()][: 1 if quick else None]
    for (name, (load, k)), rates in ((one, r) for one in chosen for r in MISSING):
        rows = []
        for seed in range(1 if quick else 5):
            data = make_tables(table_of(load), k, *rates, seed)
            own, fknn, mean = (score(each, *data) for each in (JointNormal(), FKNN(), Mean()))
            rows.append([*own, fknn[0], mean[0], pooled(*data)])
        texts = [f"{x:.3f}" if x == x else "refused" for x in np.mean(rows, axis=0)]
        found[name, *rates] = dict(zip(COLUMNS, texts, strict=True))
    print(markdown_table(indexed(found, ["table", "cells", "blocks"])), flush=True)
    for rates in MISSING:
        held = [replicate(*rates, seed) for seed in range(4 if quick else 200)]
        print("normal data:", *rates, np.mean(held, axis=0).round(3).tolist(), flush=True)


if __name__ == "__main__":
    main(quick_asked(__doc__))
