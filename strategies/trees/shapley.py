"""Samples on all ways that they would take through trees if some of the parties lacked them.

All ways go level by level together, so that a split is asked about a sample once, however many
ways lead there. A way that comes to a split of a party that is left out goes on to the side of
missing cells, without a word to anybody.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.results import Progress
from strategies.trees.binning import narrowest
from strategies.trees.contributions import coalitions
from strategies.trees.model import TreesModel

Lines = npt.NDArray[np.int32]


def descend_without(
    federation: Federation, model: TreesModel, absent: Flags, progress: Progress
) -> tuple[Array, str]:
    """Return raw predictions with some of the parties; one round for each level.

    Shapes: absent (n_samples, n_parties): which parties lack which samples; returns (2^n_parties,
    width, n_samples): with the parties of each of `coalitions`.
    """
    n_parties = len(model.parties)
    present = np.array(
        [[k in chosen for k in range(n_parties)] for chosen in coalitions(n_parties)]
    )
    at = np.stack([model.starts(~absent & row) for row in present])
    told = own_way = 0
    while ((owner := np.where(at >= 0, model.party[at], -1)) >= 0).any():
        left = model.missing_left[at] > 0
        asked, ways = {}, {}
        for k, name in enumerate(model.parties):
            with_k = np.flatnonzero(present[:, k])  # the last of them is the samples' own way
            comes = (owner[with_k] == k) & ~absent[:, k]
            if comes.any():
                ways[name] = with_k
                asked[name] = distinct(np.where(comes, at[with_k], -1))
                told += int((asked[name] >= 0).sum())
                own_way += int(comes[-1].sum())
        if asked:
            for name, (lines, sides) in _ask(federation, model, asked).items():
                for way in ways[name]:
                    for layer, side in zip(lines, sides, strict=True):
                        here = (at[way] == layer) & (layer >= 0)
                        left[way][here] = side[here]
            progress.step("level")
        at = np.where(owner >= 0, np.where(left, model.left[at], model.right[at]), at)
    values = np.stack([model.raw(leaves) for leaves in at])
    return values, (
        f"contributions: {told:,} sides of splits were told, {own_way:,} of them on the samples' "
        f"own ways through the trees ({told / max(own_way, 1):.2f} times as many)"
    )


def distinct(lines: Lines) -> Lines:
    """Return the distinct lines of each sample and tree over all ways, in as few layers as it may.

    Shapes: lines (n_ways, n_trees, n_samples): -1 for none; returns (n_layers, n_trees,
    n_samples): -1 for none.
    """
    ordered = -np.sort(-lines, axis=0)
    ordered[1:][ordered[1:] == ordered[:-1]] = -1
    ordered = -np.sort(-ordered, axis=0)
    return ordered[: max(1, int((ordered >= 0).any(axis=(1, 2)).sum()))]


def _ask(
    federation: Federation, model: TreesModel, asked: dict[str, Lines]
) -> dict[str, tuple[Lines, Flags]]:
    """Have owners tell the sides of splits; returns lines and whether rows go to the left."""
    own: dict[str, dict[str, Any]] = {}
    for name, layers in asked.items():
        lines = np.unique(layers[layers >= 0])
        number = np.full(len(model.party) + 1, -1, dtype=np.int64)
        number[lines] = np.arange(len(lines))
        own[name] = {
            "names": np.stack([model.tree[lines], model.number[lines]], axis=1),
            "split": narrowest(number[layers].reshape(-1, layers.shape[2])),
        }
    replies = federation.call("sides", {"model": model.name}, per_party=own, parties=list(own))
    found = {}
    for name, layers in asked.items():
        comes = layers >= 0
        sides = np.zeros(layers.shape, dtype=bool)
        bits = np.unpackbits(replies[name]["left"], count=int(comes.sum()))
        sides[comes] = bits == 1
        found[name] = layers, sides
    return found
