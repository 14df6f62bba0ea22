"""Small data with missing cells, blocks and labels; runs on it, and their trees to the split."""

import numpy as np
import pandas as pd

from flwr_vertical import Table, simulate
from strategies.trees import VerticalGBDT
from strategies.trees.binning import fit_bins
from strategies.trees.model import TreePart

N = 400
SMALL = {"n_trees": 3, "max_depth": 4, "n_bins": 12, "min_child": 8, "validation_share": 0.0}


def make_tables(n=N, seed=0, n_parties=2):
    """Numbers, levels, missing cells; the second party lacks a third of the rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3 * n_parties))
    x[rng.random(x.shape) < 0.08] = np.nan
    tables = {}
    for k, name in enumerate(["bank", "court", "shop"][:n_parties]):
        frame = pd.DataFrame(x[:, 3 * k : 3 * k + 3], columns=[f"{name[0]}{j}" for j in range(3)])
        frame[f"{name[0]}9"] = rng.choice(list("uvwxy"), n)
        frame.loc[rng.random(n) < 0.05, f"{name[0]}9"] = None
        tables[name] = frame
    tables["court"] = tables["court"].iloc[n // 3 :]
    return tables


def make_labels(tables, objective="binary", seed=1, n=N, unlabelled=0):
    rng = np.random.default_rng(seed)
    bank = tables["bank"].reindex(range(n))
    court = tables["court"].reindex(range(n))
    signal = bank["b0"].fillna(0) * court["c0"].fillna(1) + np.sin(2 * court["c1"].fillna(0))
    signal = signal + bank["b1"].fillna(-0.5) + (court["c9"] == "v") * 1.5
    if objective == "binary":
        y = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    elif objective == "multiclass":
        y = np.digitize(signal + rng.normal(size=n), [-0.5, 0.8]).astype(float)
    elif objective == "poisson":
        y = rng.poisson(np.exp(0.5 * signal)).astype(float)
    else:
        y = signal + rng.normal(size=n)
    labels = pd.Series(y, dtype=float)
    labels.iloc[:unlabelled] = np.nan
    return labels


def fit(tables, labels, policy=None, **settings):
    strategy = VerticalGBDT(**{**SMALL, **settings})
    return simulate(strategy, tables, labels, policy=policy)


def pooled(tables, n_bins=SMALL["n_bins"], n=N):
    """Codes of all parties' columns in one table, bins of each, and which are nominal."""
    codes, bins, nominal = [], [], []
    for name in sorted(tables):
        table = Table.of(tables[name])
        made = fit_bins(table, n_bins)
        own = np.tile(np.array(made.layout.n_bins), (n, 1))
        own[table.frame.index] = made.codes(table, name)
        nominal += [len(bins) + j for j, flag in enumerate(made.layout.nominal) if flag]
        bins += made.layout.n_bins
        codes.append(own)
    return np.hstack(codes), bins, nominal


def splits_of(result, tree):
    """Splits of a tree as the oracle tells them: path, column over all parties, bin, side."""
    model, parts, starts = result.predictor, {}, [0]
    for name in model.parties:
        part = TreePart.from_bytes(result._party_models[name])
        parts[name] = {(int(t), int(q)): rest for t, q, *rest in part.splits}
        starts.append(starts[-1] + len(part.columns))
    found, todo = set(), [(int(model.roots[tree]), "")]
    while todo:
        line, path = todo.pop()
        k = int(model.party[line])
        if k < 0:
            continue
        own = parts[model.parties[k]][int(model.tree[line]), int(model.number[line])]
        column, at, side = (int(value) for value in own)
        assert side == model.missing_left[line]
        found.add((path, starts[k] + column, at, bool(side)))
        todo += [(int(model.left[line]), path + "L"), (int(model.right[line]), path + "R")]
    return found
