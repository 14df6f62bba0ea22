"""How far each party moves a prediction, from leaves; no protocol.

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
"""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array
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
