"""From replications to tables, beside the paper's."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from simulations.copula.criteria import least_rmse
from simulations.copula.design import effects
from simulations.copula.mechanisms import MECHANISMS
from simulations.copula.methods import FEDERATED, FRESH, SYNTHESES, UNPROTECTED
from simulations.page import beside_paper, seeds_text, select
from simulations.replications import numbers_of

TITLES = {"rmse": "RMSE", "g_means": "G-means", "fdr": "FDR"}
COMPLETE = ["model", "rows", "epsilon", "method"]
MISSING = ["model", "mechanism", "rows", "method"]


def means(frame: pd.DataFrame, part: str, keys: Sequence[str]) -> pd.DataFrame:
    """Means over runs: index `keys`, a column for each number and ``se <number>``, and ``runs``."""
    runs = numbers_of(frame, part, [*keys, "seed"])
    groups = runs.groupby(level=list(keys))
    counts = groups.count().astype(float)
    errors = groups.std() / counts**0.5
    return groups.mean().join(errors.add_prefix("se ")).assign(runs=groups.size())


def order(methods: Sequence[str]) -> list[str]:
    """Methods in the order of the paper's columns, ours after them."""
    base = ["VCDS", "EVCDS", "IEVCDS"]
    known = [*UNPROTECTED, "VFL-ADMM-DP", "Vertigan"]
    known += [start + name for name in base for start in ("CC-", "Impute-", "")]
    known += [name for name in SYNTHESES if name.endswith(FRESH)]
    known += ["Single-VCDS", "Single-EVCDS"]
    return sorted(methods, key=lambda name: known.index(name) if name in known else len(known))


def beside(
    ours: pd.DataFrame, paper: pd.DataFrame, measure: str, keys: Sequence[str]
) -> pd.DataFrame:
    """One measure by setting and method: ``0.0374 (0.0401)``, the paper's in brackets.

    The last column is how many seeds stand behind a row; a dash is a cell that was not run.
    """
    if ours.empty:
        return pd.DataFrame(index=ours.reset_index("method").index)
    table = ours[measure].unstack("method")
    printed = paper[paper["metric"] == measure].set_index(list(keys))["value"].unstack("method")
    names = order([str(name) for name in table.columns.union(printed.columns)])
    seeds = ours["runs"].groupby(level=[key for key in keys if key != "method"]).agg(seeds_text)
    text = beside_paper(table.reindex(columns=names), printed).assign(seeds=seeds)
    return text.rename_axis(columns=None)


def spread_over_epsilon(table: pd.DataFrame, epsilons: Sequence[float]) -> pd.DataFrame:
    """Repeat the rows of methods that spend nothing over epsilon, as the paper does."""
    rows = [table]
    for name in UNPROTECTED:
        own = select(table, method=name).droplevel(["epsilon", "method"])
        if len(own):
            for epsilon in epsilons:
                keyed = own.assign(epsilon=float(epsilon), method=name)
                rows.append(keyed.set_index(["epsilon", "method"], append=True))
    whole = pd.concat(rows)
    return whole[whole.index.get_level_values("epsilon") > 0].sort_index()


def by_mechanism(table: pd.DataFrame) -> pd.DataFrame:
    """Put the mechanisms in the paper's order."""
    names = table.index.get_level_values("mechanism")
    found = [name for name in MECHANISMS if name in set(names)]
    return pd.concat([table[names == name] for name in found]) if found else table


def what_the_paper_implies(paper: pd.DataFrame, design: dict[str, Any]) -> pd.DataFrame:
    """Compare each printed RMSE with the one that the printed misses alone would make."""
    beta = effects(design)
    wide = paper[paper["epsilon"] == paper["epsilon"].min()].pivot_table(
        index=["method", "model", "rows"], columns="metric", values="value"
    )
    wide = wide.loc[[name for name in UNPROTECTED if name in wide.index.get_level_values(0)]]
    least = [
        least_rmse(row["g_means"], row["fdr"], int((beta != 0).sum()), len(beta), design["effect"])
        for _, row in wide.iterrows()
    ]
    return pd.DataFrame(
        {
            "G-means printed": wide["g_means"],
            "FDR printed": wide["fdr"],
            "RMSE of missed columns alone": least,
            "RMSE printed": wide["rmse"],
        }
    )


def effort(ours: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds of the federated fits: a path of all lambdas together."""
    if FEDERATED not in ours.index.get_level_values("method"):
        return pd.DataFrame()
    own = select(ours, method=FEDERATED).droplevel(["epsilon", "method"])
    names = {"iterations": "rounds of ADMM", "rounds": "rounds in all", "seconds": "seconds"}
    return own[[name for name in names if name in own]].rename(columns=names)


def sme(frame: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Table 9: recall, AUC and number of selected variables by method, the paper's beside them."""
    ours = means(frame, "sme", ["method"])
    columns = {"recall": "Recall", "auc": "AUC", "ns": "NS"}
    table = ours.reindex(columns=list(columns)).rename(columns=columns)
    table["runs"] = ours["runs"]
    plain, how = paper["method"], paper["privatisation"]
    names = plain.where(plain == how, plain + "-" + how)
    printed = paper.assign(name=names).pivot_table(index="name", columns="metric", values="value")
    for metric, title in columns.items():
        table[f"{title}, paper"] = printed[metric].reindex(table.index)
    return table.loc[order([str(name) for name in table.index])].rename_axis(columns=None)


def attacks(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean points above chance of both attacks, with their standard errors."""
    table = means(frame, "attacks", ["method"])
    columns = ["membership", "se membership", "attribute", "se attribute", "runs"]
    return table.reindex(columns=columns).rename_axis(columns=None)
