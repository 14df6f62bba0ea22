"""How far each party moves a prediction, and how predictions depend on columns; no protocol.

*By the way through the trees* (Saabas, 2014; scikit-learn's interpreters): the expectation of a
node is the mean of its leaves' values, weighted by cover. Each split on a sample's way moves the
expectation, and that is its owner's doing. All of it follows from the leaves that a sample comes
to, which the server knows: nothing more is told.

*By Shapley values* (Shapley, 1953): with v(S) the raw prediction if the parties S alone had the
sample, and all splits of the others sent it to the side of missing cells,

    phi_k = sum over S without k of |S|! (K - |S| - 1)! / K! (v(S + k) - v(S)).

A party that lacks the sample has 0, and parties of equal effect have equal values, which the first
form does not give. It needs the sides at all splits that the sample would come to without some of
the parties, beside those on its way: see `predict`.

In both, base and contributions add up to the raw prediction.

*Partial dependence* on single columns is that of Friedman (2001), Section 8.2, bin by bin, by
weighted ways through the trees: at a split of the column a way takes the side of its bin, at others
both sides, by their shares of rows. The server has all of it but names and edges of bins; it needs
no value and no round. Curves of single samples (ICE) are left out: told to a party, they would be
predictions of samples, and so of their labels.
"""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.tables.dtypes import present
from strategies.trees.binning import Bins, SlotLayout, limit_texts
from strategies.trees.model import TreesModel

Leaves = npt.NDArray[np.integer]

FORMS = ("none", "path", "shapley")
MOST_PARTIES = 6
"""Of Shapley values: with more, every sample would go 128 ways through all trees."""


def expectations(model: TreesModel) -> Array:
    """Return the mean value of the leaves below each node, weighted by cover; shape (n_nodes,)."""
    out = np.array(model.value, dtype=np.float64)
    for line in range(len(out) - 1, -1, -1):  # children stand after their parents
        if model.party[line] >= 0:
            below = [model.left[line], model.right[line]]
            cover = np.maximum(model.cover[below], 1e-300)
            out[line] = np.average(out[below], weights=cover)
    return out


def path_contributions(model: TreesModel, leaves: Leaves) -> Array:
    """Return contributions of parties by the way through the trees.

    Shapes: leaves (n_trees, n_samples): lines of the leaves that samples come to; -1 in trees that
    do not predict them; returns (width, n_samples, 1 + n_parties): base first.
    """
    expected = expectations(model)
    moved = np.zeros((len(expected), len(model.parties)))
    for line in np.flatnonzero(model.party >= 0):  # parents before their children
        for below in (model.left[line], model.right[line]):
            moved[below] = moved[line]
            moved[below, model.party[line]] += expected[below] - expected[line]
    out = np.zeros((model.width, leaves.shape[1], 1 + len(model.parties)))
    out[:, :, 0] = model.base[:, None]
    for t, own in enumerate(leaves):
        comes = own >= 0
        out[t % model.width, comes, 0] += expected[model.roots[t]]
        out[t % model.width, comes, 1:] += moved[own[comes]]
    return out


def coalitions(n_parties: int) -> list[tuple[int, ...]]:
    """Return all sets of parties; the empty one first, that of all parties last."""
    everybody = range(n_parties)
    return [chosen for size in range(n_parties + 1) for chosen in combinations(everybody, size)]


def shapley_contributions(values: Array, n_parties: int) -> Array:
    """Return Shapley values of parties.

    Shapes: values (2^n_parties, width, n_samples): raw predictions with the parties of each of
    `coalitions`; returns (width, n_samples, 1 + n_parties): base first: the raw prediction without
    any party.
    """
    sets = coalitions(n_parties)
    place = {chosen: i for i, chosen in enumerate(sets)}
    out = np.zeros((*values.shape[1:], 1 + n_parties))
    out[..., 0] = values[0]
    for chosen in sets:
        for k in set(range(n_parties)) - set(chosen):
            weight = 1.0 / (n_parties * comb(n_parties - 1, len(chosen)))
            more = place[tuple(sorted((*chosen, k)))]
            out[..., 1 + k] += weight * (values[more] - values[place[chosen]])
    return out


def contributions_table(model: TreesModel, parts: Array, index: "pd.Index[Any]") -> pd.DataFrame:
    """Return contributions, (width, n_samples, 1 + n_parties), as a table."""
    names = ["base", *model.parties]
    tables = [pd.DataFrame(part, index, names) for part in parts]
    if len(tables) == 1:
        return tables[0]
    whole = pd.concat(dict(enumerate(tables)), names=["class"])
    return whole.reorder_levels([*range(1, whole.index.nlevels), 0])


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
            limits = limit_texts(bins.edges[j], present(frame[name]).to_numpy(np.float64))
            texts = [f"to {limit}" for limit in limits]
            texts.append(f"above {limits[-1]}" if limits else "all")
        order = bins.ranks.get(j, range(len(texts)))
        named = sorted(zip(order, texts, strict=True))
        rows += [(str(name), text) for _, text in named] + [(str(name), "missing")]
    table = pd.DataFrame(rows, columns=["column", "values"])
    for c, own in enumerate(curves):
        table["prediction" if len(curves) == 1 else f"prediction_{c}"] = own
    return table.rename_axis("row")
