"""Scorecards of two parties beside a card of the pooled table, all rows shared and half of them.

German Credit and Bank Marketing, columns split as in the study of FedPSG. A third of the samples is
held out. The pooled card has the same bins and is fitted by scikit-learn; its rows and events are
counted by pandas. Areas under the ROC curve of the samples held out, on average over splits; below
each the standard error of the difference to the column before::

    FLWR_VERTICAL_DATA=... python -m simulations.scorecard [--quick]
"""

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from flwr_vertical import Table, simulate
from flwr_vertical.arrays import Array, Flags
from simulations.data import Sources
from simulations.fedpsg.data import load
from simulations.page import markdown_table
from simulations.preset import quick_asked
from strategies.binning.bins import fit_column_bins
from strategies.binning.woe import merge_bins, weight_of_evidence
from strategies.scorecard import Scorecard
from strategies.scorecard.card import LEAST_EVENTS

SETS = {"German Credit": ("Credit", 20), "Bank Marketing": ("Bank", 3)}
"""By name, that in the study of FedPSG, and how many splits there are."""


def pooled_scores(
    tables: dict[str, pd.DataFrame], y: Array, train: Flags, card: Scorecard
) -> Array:
    """Return linear predictors of a card of all columns at one place, (n_samples,)."""
    columns = []
    for name, frame in tables.items():
        table = Table.of(frame)
        bins = fit_column_bins(table, card.bins)
        for j, number in enumerate(bins.numbers(table, name).T):
            counts = pd.DataFrame({"bin": number[train], "y": y[train]}).groupby("bin")["y"]
            both = counts.agg(["count", "sum"]).reindex(range(bins.n_bins[j]), fill_value=0)
            n, events = both.to_numpy(np.float64).T
            own = bins.n_proper[j], bins.nominal[j]
            merged = merge_bins(n, events, *own, card.least_share, LEAST_EVENTS)
            sums = both.groupby(merged).sum().to_numpy(np.float64).T
            columns.append(weight_of_evidence(*sums)[merged][number])
    x = np.column_stack(columns)
    fit = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8).fit(x[train], y[train])
    return np.asarray(x @ fit.coef_[0])


def auc(
    tables: dict[str, pd.DataFrame], y: Array, train: Flags, test: Flags, card: Scorecard
) -> float:
    """Return how well the parties' card ranks the samples held out."""
    index = next(iter(tables.values())).index
    known = pd.Series(np.where(train, y, np.nan), index=index)
    result = simulate(card, tables, known, progress=False)
    assert result.predictions is not None
    scores = result.predictions["score"].reindex(index[test])
    return float(roc_auc_score(y[test], -scores))


def areas(name: str, n_splits: int) -> pd.DataFrame:
    """Return areas under the curve by split."""
    joint = load(name, Sources.find(None))
    both = {"first": joint.a, "second": joint.b}
    y = np.asarray(joint.labels, dtype=np.float64)
    found = []
    for seed in range(n_splits):
        rng = np.random.default_rng(seed)
        test = rng.random(len(y)) < 1 / 3
        lacking = rng.random(len(y)) < 0.5
        some = {**both, "second": both["second"][~lacking]}
        plain, card = Scorecard(penalty="none"), Scorecard()
        pooled = pooled_scores(both, y, ~test, plain)
        found.append(
            {
                "pooled card": float(roc_auc_score(y[test], pooled[test])),
                "`scorecard`, no selection": auc(both, y, ~test, test, plain),
                "`scorecard`": auc(both, y, ~test, test, card),
                "half missing: common rows": auc(some, y, ~test & ~lacking, test, card),
                "half missing: `scorecard`": auc(some, y, ~test, test, card),
            }
        )
    return pd.DataFrame(found)


if __name__ == "__main__":
    quick = quick_asked(__doc__)
    for title, (own, splits) in list(SETS.items())[: 1 if quick else None]:
        table = areas(own, 2 if quick else splits)
        steps = table.diff(axis=1).sem().fillna(0.0)
        rows = pd.DataFrame({"AUC": table.mean(), "error of the step": steps}).T
        shown = rows.map("{:.4f}".format).rename_axis(f"{title}, {len(table)} splits")
        print("\n" + markdown_table(shown), end="", flush=True)
