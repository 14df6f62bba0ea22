"""What a forest should be: grown centrally, draw by draw."""

import numpy as np
from oracles import trees as oracle
from tree_runs import pooled

from strategies.forest.batch import LEFT, MISSING_LEFT, NUMBER, PARTY, RIGHT, TREE, weights_of
from strategies.forest.model import VotesPart


def central(tables, targets, seed, n_trees, depth, bootstrap=True, min_child=5, n_bins=12):
    """Trees of plain nodes, and the mean of their means for every row.

    `targets` are NaN where unknown; draws are those of the forest's seed.
    """
    codes, bins, nominal = pooled(tables, n_bins, len(targets))
    nominal = {j: bins[j] + 1 for j in nominal}
    fit = np.flatnonzero(~np.isnan(targets))
    y, trees, votes = np.nan_to_num(targets), [], np.zeros(len(targets))
    for draw in range(n_trees):
        weight = np.zeros(len(targets))
        weight[fit] = weights_of(seed, draw, len(fit), bootstrap)
        nodes, values = oracle.grow(
            codes, bins, -weight * y, weight, np.flatnonzero(weight), depth, 0.0, min_child, nominal
        )
        trees.append(nodes)
        votes += values / n_trees
    return trees, votes


def parts_of(result):
    return {n: VotesPart.from_bytes(raw) for n, raw in result._party_models.items()}


def splits_of(result, tree):
    """Splits of a tree: path, column over all parties, bin, side of missing cells."""
    parts = parts_of(result)
    names = result.predictor.parties
    starts = np.concatenate([[0], np.cumsum([len(parts[n].columns) for n in names])])
    table = parts[names[0]].table
    root = np.flatnonzero((table[:, TREE] == tree) & (table[:, NUMBER] == 0))
    found, todo = set(), [(int(root[0]), "")]
    while todo:
        line, path = todo.pop()
        k = int(table[line, PARTY])
        if k >= 0:
            column, at = parts[names[k]].splits[line].tolist()
            found.add((path, int(starts[k]) + column, at, bool(table[line, MISSING_LEFT])))
            todo += [(int(table[line, LEFT]), path + "L"), (int(table[line, RIGHT]), path + "R")]
    return found


def assert_same_splits(found, nodes, targets):
    """Equal but below nodes whose rows are all alike, which a central booster would not split."""
    wanted = {(n.path, *n.split[:2], n.side) for n in nodes if n.split is not None}
    pure = [n.path for n in nodes if n.split is None and np.ptp(targets[n.rows]) == 0]
    assert wanted <= found
    for path, *_ in found - wanted:
        assert any(path.startswith(leaf) for leaf in pure), path
    return len(wanted)
