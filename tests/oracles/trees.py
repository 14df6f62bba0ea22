"""A plain central booster over histograms: float64, one table, loops where they are clearest.

It knows nothing of the library. Rules, as a reader of Friedman (2001) and of XGBoost (Chen and
Guestrin, 2016, Equations 5 to 7) would write them:

* A column has codes 0 to ``B - 1``, and ``B`` where the cell is missing.
* Trees grow level by level. A split sends codes up to a bin (or, of a nominal column, one code) to
  the left; missing cells go to the right, or (where there are some in the node) to the left.
* The best split has the largest ``G_L^2 / (H_L + l2) + G_R^2 / (H_R + l2)``. Splits within a share
  of `TIE` of the best one's advantage over the node count as equal, and the first of them is taken,
  in order of columns, bins, missing right before left. Of splits that send the same rows the same
  way because a bin is empty in the node, the first is meant.
* With `monotone`, a direction by column: the right side of a split of such a column has the larger
  value (1) or the smaller one (-1), and neither side's leaves pass the mean of the two values. A
  node stays a leaf if values brought into its range do not lower the loss. A split into known and
  missing cells has no direction.
* With `sorted_levels` codes of nominal columns are numbered anew, by the mean first gradient of
  their rows (codes that leave fewer than `min_child` rows on a side last), and beside the splits of
  one code a nominal column has those of an ordered one, which come after them.
* Both sides have `min_child` rows at least. A node whose rows are all alike is not split.
"""

from dataclasses import dataclass, field

import numpy as np

TIE = 2.0**-18


@dataclass
class Node:
    """Rows of the fit in it, and the split: column, bin, whether missing cells go to the left."""

    path: str
    rows: np.ndarray
    split: tuple[int, int, int] | None = None
    side: bool = False
    """Where rows without the cell go in the end."""
    gap: float = 1.0
    """By which share the best split beats the next that is not equal."""
    value: float = 0.0


@dataclass
class Boosted:
    """Trees by round and class, each a list of nodes; raw predictions of all rows."""

    trees: list = field(default_factory=list)
    raw: np.ndarray = None
    base: np.ndarray = None
    codes: np.ndarray = None
    nominal: dict = None
    """Of each nominal column, how many splits there are."""

    def splits(self, number, of_class=0):
        """Splits of a tree: set of (path, column, bin, side of missing cells)."""
        return {
            (n.path, *n.split[:2], n.side)
            for n in self.trees[number][of_class]
            if n.split is not None
        }


def boost(
    codes, bins, y, objective="binary", n_trees=10, depth=4, rate=0.1, l2=0.0, min_child=20,
    nominal=(), fit=None, monotone=None, sorted_levels=False,
):  # fmt: skip
    """Fit; `fit` are the rows that are fitted, the others are only routed."""
    nominal = {j: 2 * bins[j] if sorted_levels else bins[j] + 1 for j in nominal}
    n = len(codes)
    fit = np.arange(n) if fit is None else fit
    base = start(y[fit], objective)
    raw = np.tile(base[:, None], (1, n))
    if sorted_levels:
        g, h = gradients(y, raw, objective)
        codes = codes.copy()
        for j in nominal:
            codes[:, j] = renumbered(codes[:, j], bins[j], g[0], h[0], fit, min_child)
    out = Boosted(base=base, codes=codes, nominal=nominal)
    for _ in range(n_trees):
        g, h = gradients(y, raw, objective)
        trees = []
        for c in range(len(base)):
            nodes, values = grow(
                codes, bins, g[c], h[c], fit, depth, l2, min_child, nominal, monotone
            )
            raw[c] += rate * values
            trees.append(nodes)
        out.trees.append(trees)
    out.raw = raw
    return out


def renumbered(code, n_codes, g, h, fit, min_child):
    """Number codes by the mean gradient of their rows; the last is that of missing cells."""
    ranked = {}
    for c in range(n_codes):
        rows = fit[code[fit] == c]
        if min_child <= len(rows) <= len(fit) - min_child:
            ranked[c] = round(g[rows].sum() / h[rows].sum(), 9)  # equal means keep their order
    order = sorted(ranked, key=ranked.get) + [c for c in range(n_codes) if c not in ranked]
    number = {c: rank for rank, c in enumerate(order)} | {n_codes: n_codes}
    return np.array([number[c] for c in code])


def start(y, objective):
    if objective == "regression":
        return np.array([y.mean()])
    if objective == "poisson":
        return np.log([y.mean()])
    if objective == "binary":
        return np.array([np.log(y.mean() / (1 - y.mean()))])
    p = np.array([np.mean(y == c) for c in range(int(y.max()) + 1)])
    return np.log(p) - np.log(p).mean()


def gradients(y, raw, objective):
    if objective == "regression":
        return raw - y, np.ones_like(raw)
    if objective == "poisson":
        return np.exp(raw) - y, np.exp(raw)
    if objective == "binary":
        p = 1 / (1 + np.exp(-raw))
        return p - y, p * (1 - p)
    p = np.exp(raw - raw.max(axis=0))
    p /= p.sum(axis=0)
    return p - (y == np.arange(len(raw))[:, None]), p * (1 - p)


def grow(codes, bins, g, h, fit, depth, l2, min_child, nominal, monotone=None):
    """Grow a tree; return its nodes and the value of every row."""
    monotone = monotone or {}
    values = np.zeros(len(codes))
    inside = np.zeros(len(codes), dtype=bool)
    inside[fit] = True
    level, nodes = [("", np.arange(len(codes)), -np.inf, np.inf)], []
    for d in range(depth + 1):
        below = []
        for path, rows, low, high in level:
            mine = rows[inside[rows]]
            node = Node(path, mine)
            nodes.append(node)
            if d < depth:
                node.split, node.gap = best_split(
                    codes[mine],
                    bins,
                    g[mine],
                    h[mine],
                    l2,
                    min_child,
                    nominal,
                    np.abs(g[fit]).max(),
                    monotone,
                )
            if node.split is not None:
                ranges = below_in_range(
                    codes, bins, g, h, mine, node, l2, nominal, monotone, low, high
                )
                node.split = node.split if ranges else None
            if node.split is None:
                node.value = np.clip(-g[mine].sum() / (h[mine].sum() + l2), low, high)
                values[rows] = node.value
                continue
            left = goes_left(codes[rows], node.split, bins, nominal)
            column, node.side = node.split[0], bool(node.split[2])
            if not (codes[mine, column] == bins[column]).any():
                # Nobody in the fit lacks the cell: who lacks it goes where most go.
                more = goes_left(codes[mine], node.split, bins, nominal).mean() >= 0.5
                left[codes[rows, column] == bins[column]] = node.side = bool(more)
            below += [(path + "L", rows[left], *ranges[0]), (path + "R", rows[~left], *ranges[1])]
        level = below
    return nodes, values


def below_in_range(codes, bins, g, h, mine, node, l2, nominal, monotone, low, high):
    """Return the ranges of the two sides' values; None if the split does not lower the loss."""
    left = goes_left(codes[mine], node.split, bins, nominal)

    def value_and_loss(rows):
        slope, weight = g[rows].sum(), h[rows].sum() + l2
        value = min(max(-slope / weight, low), high)
        return value, slope * value + 0.5 * weight * value * value

    whole, (a, loss_a), (b, loss_b) = map(value_and_loss, (mine, mine[left], mine[~left]))
    if np.isfinite([low, high]).any() and whole[1] - loss_a - loss_b <= 1e-9 * abs(whole[1]):
        return None
    column, at, _ = node.split
    direction = monotone.get(column, 0) if at < bins[column] - 1 else 0
    middle = 0.5 * (a + b)
    if direction > 0:
        return (low, middle), (middle, high)
    if direction < 0:
        return (middle, high), (low, middle)
    return (low, high), (low, high)


def goes_left(codes, split, bins, nominal):
    column, at, missing_left = split
    code = codes[:, column]
    last = bins[column]
    if column in nominal and at < last:
        left = code == at
    else:  # of a nominal column up to all codes: that is, observed or not
        threshold = at - (nominal[column] - last) if column in nominal else at
        left = (code <= threshold) & (code < last)
    return left | ((code == bins[column]) & bool(missing_left))


def best_split(codes, bins, g, h, l2, min_child, nominal, largest, monotone):
    found = []
    n, total_g, total_h = len(codes), g.sum(), h.sum()
    if np.abs(g - total_g / (total_h + 2 * l2) * h).max() <= 1e-9 * largest:
        return None, 1.0  # all rows are alike
    parent = total_g**2 / (total_h + 2 * l2)
    for j, last in enumerate(bins):
        code = codes[:, j]
        missing = code == last
        n_splits = nominal.get(j, last)
        for at in range(n_splits):
            top = at if at < last else at - (n_splits - last)
            whole = at == n_splits - 1
            if not (code == top).any() and not (whole and j in nominal):
                continue
            for missing_left in (0, 1):
                if missing_left and (whole or not missing.any()):
                    continue
                left = goes_left(codes, (j, at, missing_left), bins, nominal)
                if min(left.sum(), n - left.sum()) < min_child:
                    continue
                a, b = g[left].sum(), h[left].sum()
                rises = (total_g - a) / (total_h - b + l2) <= a / (b + l2)  # values are -G / H
                if not whole and monotone.get(j, 0) and rises != (monotone[j] > 0):
                    continue
                gain = a**2 / (b + l2) + (total_g - a) ** 2 / (total_h - b + l2) - parent
                found.append((gain, j, at, missing_left))
    if not found:
        return None, 1.0
    best = max(gain for gain, *_ in found)
    equal = [split for gain, *split in found if gain >= best * (1 - TIE)]
    rest = [gain for gain, *_ in found if gain < best * (1 - TIE)]
    return tuple(min(equal)), 1 - max(rest, default=0.0) / best
