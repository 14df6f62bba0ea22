"""How predictions depend on single columns: from splits and leaves alone, bin by bin.

Partial dependence as in Friedman (2001), Section 8.2, by weighted ways through the trees: at a
split of the column a way takes the side of its bin, at others both sides, by their shares of rows.
The server has all of it but names and edges of bins; it needs no value and no round.

Curves of single samples (ICE) are left out: told to a party, they would be predictions of samples,
and so of their labels.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array
from strategies.trees.binning import Bins, SlotLayout, limit_texts
from strategies.trees.model import TreesModel


def partial_dependence(
    model: TreesModel, slots: npt.NDArray[np.integer], rows: Array, layouts: list[SlotLayout]
) -> list[Array]:
    """Return mean raw predictions by party, (width, n_codes): of all codes, column by column.

    Shapes: slots, rows (n_nodes,): the slot of each split at its party; rows of the fit in each
    node; layouts: of each party. Of trees by pattern, those of all samples.
    """
    bounds = [np.cumsum([0, *(bins + 1 for bins in own.n_bins)]) for own in layouts]
    out = [np.zeros((model.width, int(ends[-1]))) for ends in bounds]
    total = np.array(model.base, dtype=np.float64)
    ends = [*model.roots[1:], len(model.tree)]
    for t, (root, end) in enumerate(zip(model.roots, ends, strict=True)):
        if t // model.width % len(model.ensembles):
            continue
        of_class = t % model.width
        lines = range(int(root), int(end))
        places = {
            i: (int(model.party[i]), *layouts[model.party[i]].locate(int(slots[i])))
            for i in lines
            if model.party[i] >= 0
        }
        mean = _along(model, rows, lines, {}, 1)[0]
        total[of_class] += mean
        for k, column in {place[:2] for place in places.values()}:
            layout = layouts[k]
            codes = np.arange(layout.n_bins[column] + 1, dtype=np.uint8)
            left = {
                i: layout.goes_left(codes, column, at, bool(model.missing_left[i]))
                for i, (party, of, at) in places.items()
                if (party, of) == (k, column)
            }
            own = slice(int(bounds[k][column]), int(bounds[k][column + 1]))
            out[k][of_class, own] += _along(model, rows, lines, left, len(codes)) - mean
    return [own + total[:, None] for own in out]


def _along(
    model: TreesModel, rows: Array, lines: range, left: dict[int, Any], n_codes: int
) -> Array:
    """Return the mean of a tree's leaves by code, (n_codes,); `left`: codes that splits send so."""
    weight = np.zeros((len(lines), n_codes))
    weight[0] = 1.0
    found = np.zeros(n_codes)
    for i, own in zip(lines, weight, strict=True):  # what comes after a node stands behind it
        if model.party[i] < 0:
            found += own * model.value[i]
            continue
        below = [int(model.left[i]), int(model.right[i])]
        share = left.get(i, rows[below[0]] / max(rows[below].sum(), 1.0))
        weight[below[0] - lines[0]] = own * share
        weight[below[1] - lines[0]] = own * (1.0 - share)
    return found


def dependence_table(bins: Bins, frame: pd.DataFrame, curves: Array) -> pd.DataFrame:
    """Return a party's own table: ``column``, ``values`` of the bin, ``prediction`` by class.

    Shapes: curves (width, n_codes).
    """
    rows = []
    for j, name in enumerate(bins.columns):
        if levels := bins.levels[j]:
            texts = [str(level) for level in levels] + ["other"] * (bins.other[j] >= 0)
        else:
            limits = limit_texts(bins.edges[j], frame[name].dropna().to_numpy(np.float64))
            texts = [f"to {limit}" for limit in limits]
            texts.append(f"above {limits[-1]}" if limits else "all")
        order = bins.ranks.get(j, range(len(texts)))
        named = sorted(zip(order, texts, strict=True))
        rows += [(str(name), text) for _, text in named] + [(str(name), "missing")]
    table = pd.DataFrame(rows, columns=["column", "values"])
    for c, own in enumerate(curves):
        table["prediction" if len(curves) == 1 else f"prediction_{c}"] = own
    return table.rename_axis("row")
