"""What boosted trees tell: labels and columns from the sides of splits, columns from histograms.

    python benchmarks/trees_told.py            # 5,000 samples of 12 columns of 32 bins, 100 trees
    python benchmarks/trees_told.py --quick    # 1,000 samples, 20 trees, for CI

The trees are those of scikit-learn's booster on codes: vertical boosting grows the same ones
(`tests/strategies/test_trees_oracle.py`), so what routing tells is the same.

* A party sees in which node each labelled sample is above the last split. It guesses labels by the
  eigenvectors of samples that share nodes, or by the nodes of 50 samples whose labels it knows.
* The server sees the side of each split, and which bin it is at: an interval of codes of each cell.
* With open histograms the server knows the sums of g and h over each bin of each node, and g and h.
  Per bin these are linear equations of 0 and 1, solved by least squares (here for 1,000 samples).
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from flwr_vertical.arrays import Array, Integers

BINS = 32


@dataclass
class Split:
    """A split of one tree: rows that come to it, column, bin."""

    tree: int
    depth: int
    rows: Integers
    column: int
    at: int


def make(n: int) -> tuple[Integers, Array]:
    """Return codes of 12 columns of which six have a signal, and labels."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 12))
    signal = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.8 * x[:, 3] - 0.6 * x[:, 5] + 0.5 * x[:, 8]
    y = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    return np.argsort(np.argsort(x, axis=0), axis=0) * BINS // n, y


def splits_of(model: Any, codes: Integers) -> list[Split]:
    """Return all splits, with the rows that come to them."""
    found = []
    for t, (predictor,) in enumerate(model._predictors):
        nodes = predictor.nodes
        todo = [(0, 0, np.arange(len(codes)))]
        while todo:
            i, depth, rows = todo.pop()
            node = nodes[i]
            if node["is_leaf"]:
                continue
            column, at = int(node["feature_idx"]), int(np.floor(node["num_threshold"]))
            found.append(Split(t, depth, rows, column, at))
            left = codes[rows, column] <= at
            todo += [(int(node["left"]), depth + 1, rows[left])]
            todo += [(int(node["right"]), depth + 1, rows[~left])]
    return found


def guess_labels(splits: list[Split], y: Array, trees: int) -> tuple[float, float]:
    """Return AUC of a party's guesses, without labels and with 50 of them."""
    n = len(y)
    # The last nodes that a party sees: those that the last level splits, or that end above it.
    last: dict[int, npt.NDArray[np.int64]] = {}
    for i, split in enumerate(splits):
        if split.tree < trees:
            last.setdefault(split.tree, np.zeros(n, dtype=np.int64))[split.rows] = i + 1
    blocks = []
    for node in last.values():
        _, number, count = np.unique(node, return_inverse=True, return_counts=True)
        weight = 1.0 / np.sqrt(count[number])
        blocks.append(sp.csr_matrix((weight, (np.arange(n), number))))
    z = sp.hstack(blocks).tocsr()
    degree = np.asarray(z @ np.asarray(z.sum(axis=0)).ravel())
    vectors = svds(sp.diags(1 / np.sqrt(degree)) @ z, min(4, z.shape[1] - 1), random_state=0)[0]
    blind = max(abs(roc_auc_score(y, v / np.sqrt(degree)) - 0.5) for v in vectors.T[:-1]) + 0.5
    known = np.random.default_rng(8).permutation(n)[:50]
    score = z @ (z[known].T @ (y[known] - y[known].mean()))
    others = np.setdiff1d(np.arange(n), known)
    return float(blind), float(roc_auc_score(y[others], score[others]))


def bits_of_columns(splits: list[Split], codes: Integers, trees: int) -> Array:
    """Return how many of 5 bits of each column's codes the server knows, on average."""
    low, high = np.zeros(codes.shape), np.full(codes.shape, BINS - 1.0)
    for split in splits:
        if split.tree < trees:
            left = codes[split.rows, split.column] <= split.at
            a, b = split.rows[left], split.rows[~left]
            high[a, split.column] = np.minimum(high[a, split.column], split.at)
            low[b, split.column] = np.maximum(low[b, split.column], split.at + 1)
    return np.asarray(np.log2(BINS) - np.log2(high - low + 1).mean(axis=0))


def recovered(splits: list[Split], codes: Integers, y: Array, raw: Array, trees: int) -> float:
    """Return the share of cells whose bin follows from open histograms of a column.

    Shapes: raw (n_trees, n_samples): raw predictions before each tree.
    """
    used = [split for split in splits if split.tree < trees]
    at = np.concatenate([np.full(len(s.rows), i) for i, s in enumerate(used)])
    rows = np.concatenate([s.rows for s in used])
    p = 1 / (1 + np.exp(-raw[np.concatenate([np.full(len(s.rows), s.tree) for s in used]), rows]))
    shape = len(used), len(y)
    design = np.zeros((2, *shape))
    design[0, at, rows], design[1, at, rows] = p - y[rows], p * (1 - p)
    equations = design.reshape(-1, shape[1])
    sums = equations @ (codes[:, [0]] == np.arange(BINS))
    found = np.linalg.lstsq(equations, sums)[0]
    return float(np.mean(found.argmax(axis=1) == codes[:, 0]))


def fitted(n: int, trees: int) -> tuple[Integers, Array, Any, list[Split]]:
    """Return codes, labels, a booster and its splits."""
    codes, y = make(n)
    model = HistGradientBoostingClassifier(
        max_iter=trees, max_depth=6, max_leaf_nodes=None, early_stopping=False
    ).fit(codes, y)
    return codes, y, model, splits_of(model, codes)


def stages_of(model: Any, codes: Integers) -> list[Array]:
    """Return raw predictions before each tree, and after the last."""
    out = [np.full(len(codes), float(np.ravel(model._baseline_prediction)[0]))]
    out += [np.log(p[:, 1] / p[:, 0]) for p in model.staged_predict_proba(codes)]
    return out


def main() -> None:
    """Parse the command line, attack and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 samples, 20 trees, for CI")
    options = parser.parse_args()
    n, most = (1000, 20) if options.quick else (5000, 100)
    codes, y, model, splits = fitted(n, most)
    auc = roc_auc_score(y, model.decision_function(codes))
    print(f"{n:,} samples, {len(splits):,} splits; the model itself: AUC {auc:.3f}")
    for trees in sorted({1, 5, 20, min(50, most), most}):
        blind, known = guess_labels(splits, y, trees)
        bits = bits_of_columns(splits, codes, trees)
        signal = bits[[0, 1, 2, 3, 5, 8]]
        print(
            f"{trees:>4} trees: a party guesses labels with AUC {blind:.2f}, with 50 known "
            f"{known:.2f}; the server has {signal.min():.1f} to {signal.max():.1f} of 5 bits of "
            f"columns with a signal, {bits.min():.1f} to {bits.max():.1f} of all",
            flush=True,
        )
    codes, y, model, splits = fitted(1000, 40)
    stages = np.array(stages_of(model, codes))
    for trees in (5, 20, 40):
        share = recovered(splits, codes, y, stages, trees)
        print(f"{trees:>4} trees: open histograms give {share:.0%} of a column's bins", flush=True)


if __name__ == "__main__":
    main()
