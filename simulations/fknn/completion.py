"""Completion by nearest neighbours and by a joint normal model; its intervals and draws.

Columns of each table are split among parties in their order; cells and blocks are missing
completely at random. Errors are root mean squares in standard deviations of each column of numbers,
on average over parties and seeds: 1 is what the column's mean gives. Pooled is scikit-learn's
`IterativeImputer` on one table. On normal data follow the shares of 95 % intervals that hold the
truth: of cells, and of slopes of a party's column on all others, by draws and Rubin's rules::

    python -m simulations.fknn.completion [--quick]
"""

import sys

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next one)
from sklearn.impute import IterativeImputer

from flwr_vertical import Result, simulate
from flwr_vertical.errors import VerticalError
from flwr_vertical.incomplete import imputation_accuracy
from simulations.data import Sources
from strategies.baselines import Mean
from strategies.fknn import FKNN
from strategies.normal import JointNormal
from strategies.normal.rubin import pool

LOADS = {"diabetes": (load_diabetes, 2), "breast cancer": (load_breast_cancer, 3),
         "wine": (load_wine, 2), "digits": (load_digits, 4),
         "german": ("german/german_credit.csv", 3), "bank": ("bank/bank_full.csv", 3)}  # fmt: skip
MISSING = ((0.2, 0.0), (0.1, 0.05), (0.0, 0.3))
"""Shares of cells and of blocks."""
Tables = dict[str, pd.DataFrame]


def make_tables(x: pd.DataFrame, k: int, cells: float, blocks: float, seed: int) -> list[Tables]:
    """Return the parties' incomplete tables, and the complete ones."""
    rng, tables = np.random.default_rng(seed), [{}, {}]  # type: list[Tables]
    for number, columns in enumerate(np.array_split(np.arange(x.shape[1]), k)):
        whole = tables[1][f"party {number}"] = x.iloc[:, columns]
        kept = whole[rng.random(len(x)) >= blocks]
        tables[0][f"party {number}"] = kept.mask(rng.random(kept.shape) < cells)
    return tables


def table_of(name: str) -> pd.DataFrame:
    """Return a data set; of a file, 2,000 rows at most."""
    load = LOADS[name][0]
    if isinstance(load, str):
        x = pd.read_csv(Sources.find().path(load))
        x = x.sample(min(len(x), 2000), random_state=0).reset_index(drop=True)
        x = x.astype(dict.fromkeys(x.select_dtypes("number"), float))
    else:
        x = pd.DataFrame(load().data).add_prefix("c").astype(float)
        x = x.loc[:, [x[c].nunique() > 2 and (x[c] != 0).mean() > 0.2 for c in x]]
    return x.set_axis([f"s{i:04}" for i in range(len(x))])


def pooled(given: Tables, whole: Tables) -> Tables:
    """Impute the pooled numbers by scikit-learn."""
    x = pd.concat([given[name].reindex(whole[name].index) for name in whole], axis=1)
    numbers = x.select_dtypes("number")
    filled = IterativeImputer(random_state=0).fit_transform(numbers / numbers.std())
    x[numbers.columns] = filled * numbers.std().to_numpy()
    return {name: x[list(whole[name])] for name in whole}


def errors(name: str, cells: float, blocks: float, seed: int) -> list[float]:
    """Return errors of the methods, NaN where parties refuse, and how often intervals hold."""
    given, whole = make_tables(table_of(name), LOADS[name][1], cells, blocks, seed)
    found, covered = [pooled(given, whole)], np.nan
    for strategy in (Mean(), FKNN(), JointNormal()):
        try:
            result = simulate(strategy, given, truth=whole, progress=False)
            found.insert(0, result.tables)
            covered = np.mean([v.get("coverage", np.nan) for v in result.party_metrics.values()])
        except VerticalError:
            found.insert(0, {})
    scores = [[imputation_accuracy(given[n], tables[n], whole[n]).get("rmse-in-sd", np.nan)
               for n in tables] for tables in found]  # fmt: skip
    return [*(np.nanmean(one) if one else np.nan for one in scores), float(covered)]


def replicate(cells: float, blocks: float, seed: int, draws: int = 10) -> tuple[float, float]:
    """Return how often intervals hold on normal data: of cells, and of pooled slopes."""
    rng, load = np.random.default_rng(seed), np.random.default_rng(7).normal(size=(2, 6))
    x = pd.DataFrame(rng.normal(size=(1000, 2)) @ load + rng.normal(size=(1000, 6)))
    given, whole = make_tables(x.add_prefix("c"), 3, cells, blocks, seed)
    result = simulate(JointNormal(draws), given, truth=whole, progress=False)
    fits, covariance = [], load.T @ load + np.eye(6)
    for tables in result.draws:
        z = pd.concat([tables[name].reindex(x.index) for name in whole], axis=1).dropna()
        z = z.to_numpy() - z.to_numpy().mean(axis=0)
        inverse = np.linalg.inv(z[:, 1:].T @ z[:, 1:])
        slopes = inverse @ z[:, 1:].T @ z[:, 0]
        left = ((z[:, 0] - z[:, 1:] @ slopes) ** 2).sum() / (len(z) - 6)
        table = {"estimate": slopes, "std_error": np.sqrt(left * np.diag(inverse))}
        fits.append(Result("least squares", coefficients=pd.DataFrame(table)))
    found, true = pool(fits, 994), np.linalg.solve(covariance[1:, 1:], covariance[1:, 0])
    covered = np.mean([values["coverage"] for values in result.party_metrics.values()])
    return float(covered), float(((found.ci_low < true) & (true < found.ci_high)).mean())


def main(quick: bool) -> None:
    """Print the tables."""
    print("| table | cells | blocks | `joint-normal` | `fknn` | `mean` | pooled | intervals |")
    print("|---|---|---|---|---|---|---|---|")
    for name in list(LOADS)[:1] if quick else LOADS:
        for cells, blocks in MISSING:
            rows = [errors(name, cells, blocks, seed) for seed in range(1 if quick else 5)]
            numbers = [f"{x:.3f}" if x == x else "refused" for x in np.mean(rows, axis=0)]
            behind = " behind" if np.mean(rows, axis=0)[0] > np.mean(rows, axis=0)[1] else ""
            print(
                f"| {name} | {cells:g} | {blocks:g} | {' | '.join(numbers)} |{behind}", flush=True
            )
    for cells, blocks in MISSING:
        rows = [replicate(cells, blocks, seed) for seed in range(4 if quick else 200)]
        share, slopes = np.mean(rows, axis=0)
        print(f"normal, cells {cells:g}, blocks {blocks:g}: {share:.3f} of cells, {slopes:.3f} of "
              f"slopes ({len(rows)} replications)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main("--quick" in sys.argv)
