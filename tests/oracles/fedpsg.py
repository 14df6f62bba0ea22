"""VF-AR on one pooled table, from the paper's equations, by pandas and SciPy alone."""

import numpy as np
import pandas as pd
from scipy.stats import spearmanr


def spearman(a, b):
    """Correlation of average ranks over the samples that both tables have: (1) to (3) with ties."""
    shared = a.index.intersection(b.index)
    table = np.empty((a.shape[1], b.shape[1]))
    for i, j in np.ndindex(table.shape):
        found = spearmanr(coded(a.iloc[:, i])[shared], coded(b.iloc[:, j])[shared])
        table[i, j] = 0.0 if np.isnan(found.statistic) else found.statistic
    return table


def coded(column):
    """Numbers as they are; levels by their place in the alphabet, as the paper's integer codes."""
    if pd.api.types.is_numeric_dtype(column):
        return column.astype(float)
    return column.map({level: i for i, level in enumerate(sorted(column.dropna().unique()))})


def pairs(tables, target, count):
    """The paper's loop: the largest entry of the matrix, until there are enough attributes."""
    others = [name for name in tables if name != target]
    matrix = pd.concat(
        {other: pd.DataFrame(np.abs(spearman(tables[other], tables[target]))) for other in others}
    )
    found = []
    while len({column for column, *_ in found}) < count:
        source, at = matrix.max(axis=1).idxmax()
        column = matrix.loc[(source, at)].idxmax()
        if column not in {c for c, *_ in found}:
            found.append((int(column), source, int(at)))
        matrix.loc[(source, at), column] = 0.0
    return found


def beta(source, target):
    """Shares of the target's values given each of the source's, over shared samples."""
    shared = source.index.intersection(target.index)
    return pd.crosstab(source[shared], target[shared], normalize="index")


def generated(source, target):
    """Arg-max values of the samples that the target lacks; only where one value is the largest."""
    rules = beta(source, target)
    lacking = source.index.difference(target.index)
    values = source[lacking]
    values = values[values.isin(rules.index)]
    largest = rules.eq(rules.max(axis=1), axis=0)
    unique = largest.sum(axis=1) == 1
    return values[values.map(unique)].map(rules.idxmax(axis=1))


def ridge(x, y, penalties):
    """Ridge regression of the penalty with the least generalised cross-validation, from rows.

    Golub, Heath and Wahba (1979), (1.4), with the hat matrix written out, over all columns of y,
    each divided by its variance. A penalty is the number of rows times as large for the sums.
    """
    n = len(x)
    mean, level = x.mean(axis=0), y.mean(axis=0)
    design, target = x - mean, y - level
    scores, found = [], []
    for penalty in penalties:
        inverse = np.linalg.inv(design.T @ design + n * penalty * np.eye(x.shape[1]))
        weights = inverse @ design.T @ target
        hat = design @ inverse @ design.T + 1.0 / n
        left = ((target - design @ weights) ** 2).sum(axis=0) / (target**2).sum(axis=0)
        scores.append(left.sum() / (n - np.trace(hat)) ** 2)
        found.append(weights)
    weights = found[int(np.argmin(scores))]
    return weights, level - mean @ weights, np.array(scores)
