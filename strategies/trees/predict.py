"""Predictions by trees that were grown before: a round for each level, for all trees at once."""

import hashlib
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Alignment, Federation, Party, Progress, Result, step
from flwr_vertical.arrays import Flags, Integers32
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.node.kept import part_of_fit
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.arguments import OWN, Shape, Within
from flwr_vertical.protocol.declaration import BITS, FACTS, SOME, Protocol, Repeat, Round
from strategies.linear.problem import sample_index
from strategies.trees.binning import narrowest
from strategies.trees.contributions import (
    FORMS,
    MOST_PARTIES,
    coalitions,
    contributions_table,
    path_contributions,
    shapley_contributions,
)
from strategies.trees.model import LEAF, TreePart, TreesModel, figures, prediction_table
from strategies.trees.monotone import NODE_KEY
from strategies.trees.routing import check_openings, count_sides


class TreesPredictParty(Party):
    """Has its own splits from the run named ``fitted``; no step takes any."""

    node_keys = (NODE_KEY,)  # of the fit: a node need not change its config

    @step
    def open_trees(
        self, model: Annotated[str, Within(1, 200)], n_sides: Annotated[int, Within(0, 2**40)]
    ) -> dict[str, Any]:
        """Look for what this party kept.

        Message: model: name of the model; n_sides: to how many splits a row comes at most, in all
        trees; returns ``unknown``: how many rows have a level that the fit did not know.
        """
        part = part_of_fit(self, TreePart, model)
        bins, gaps = part.bins, part.codes(self)
        check_openings(self, bins.layout, n_sides)
        stated = self.to_aligned(self.table.frame[bins.columns].notna().to_numpy(), False)
        unknown = (gaps == np.array(bins.layout.n_bins)) & stated
        return {"unknown": int(unknown.any(axis=1).sum())}

    @step
    def sides(
        self,
        model: Annotated[str, Within(1, 200)],
        names: Annotated[Integers32, OWN, Shape(None, 2), Within(0, 2**31)],
        split: Annotated[
            npt.NDArray[np.signedinteger[Any]],
            OWN,
            Shape(None, "n_samples"),
            Within(-1, "names - 1"),
        ],
    ) -> dict[str, Any]:
        """Tell on which side of own splits rows are.

        Message: model: name of the model; names (n_splits, 2): number of the tree and of the node;
        split (n_trees, n_samples): number of the split that each row comes to, -1 for none;
        returns ``left``, packed bits of the rows that come to a split, tree by tree.
        """
        part, split = part_of_fit(self, TreePart, model), np.asarray(split)
        codes = part.codes(self)
        layout = part.bins.layout
        kept = {(int(tree), int(node)): rest for tree, node, *rest in part.splits}
        left = np.zeros(split.size, dtype=bool)
        places = np.flatnonzero(split >= 0)
        of_split = split.reshape(-1)[places]
        places = places[np.argsort(of_split, kind="stable")]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(of_split, minlength=len(names)))])
        for i, (tree, node) in enumerate(np.asarray(names).tolist()):
            if (tree, node) not in kept:
                raise DataError(
                    f"party {self.name!r} kept no split of node {node} of tree {tree}; is the "
                    "server's result that of the run named 'fitted'?"
                )
            column, at, missing_left = kept[tree, node]
            own = places[bounds[i] : bounds[i + 1]]
            code = codes[own % split.shape[1], column]
            left[own] = layout.goes_left(code, column, at, missing_left > 0)
        content = hashlib.blake2b(np.asarray(names).tobytes() + split.tobytes()).digest()
        count_sides(self, (split >= 0).sum(axis=0), layout, content)
        return {"left": np.packbits(left[split.reshape(-1) >= 0])}


class TreesPredictions(Predictions):
    """Predict with trees of `VerticalGBDT`; each party looks its own splits up.

    A sample that a party lacks, or whose party has left, takes at its splits the side that was
    learned for missing cells. One round and one for each level, after greeting and alignment.
    """

    party = TreesPredictParty
    protocol: ClassVar[Protocol] = Protocol(
        Round("open_trees", "how many rows have a level that the fit did not know", tells=FACTS),
        Repeat(
            Round("sides", "on which side of its splits rows are", tells=BITS, ask=SOME),
            at_most=4096,
        ),
    )
    contributions_had = FORMS
    disclosure = (
        (
            "server",
            "for each sample and tree, which side of the splits on its way it is on; of a party's "
            "row no more than its columns' bins",
        ),
        ("server", "of each party, how many rows have a level that the fit did not know"),
        (
            "server",
            "with contributions='shapley', also at which side it is of each split that it would "
            "come to if some of the parties lacked it; counted by the ledger, and limited by "
            "policy.openings, as the others are",
        ),
        (
            "a party that owns a split",
            "which samples come to it, or with 'shapley' could come to it",
        ),
        ("nobody", "a value within a bin; another party's splits"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Send all samples down all trees, level by level."""
        model: TreesModel = self.model
        n_parties, by_shapley = len(model.parties), self.contributions == "shapley"
        if by_shapley and n_parties > MOST_PARTIES:
            raise ConfigError(
                f"contributions='shapley' is for {MOST_PARTIES} parties at most, and the fit had "
                f"{n_parties}; use 'path'"
            )
        names = list(federation.parties)
        absent = np.ones((alignment.n_samples, n_parties), dtype=bool)
        absent[:, [model.parties.index(name) for name in names]] = alignment.mask
        n_sides = model.longest_way
        present = np.ones((1, n_parties), dtype=bool)
        if by_shapley:  # a sample takes a way for each set of parties
            n_sides = min(n_sides * 2**n_parties, int((model.party >= 0).sum()))
            sets = coalitions(n_parties)
            present = np.array([[k in chosen for k in range(n_parties)] for chosen in sets])
        told = federation.call("open_trees", {"model": model.name, "n_sides": n_sides})
        for name, reply in told.items():
            if reply["unknown"]:
                result.notes.append(
                    f"party {name!r}: {counted(reply['unknown'], 'row has', 'rows have')} a "
                    "level that the fit did not know; it counts as a missing cell"
                )
        index = sample_index(alignment, result.labels, np.arange(alignment.n_samples))
        alone: dict[str, pd.DataFrame] = {}
        ways, note = descend(federation, model, absent, present, progress)
        raw, parts = model.raw(ways[-1]), path_contributions(model, ways[-1])
        if by_shapley:
            result.notes.append(note)
            values = np.stack([model.raw(leaves) for leaves in ways])
            parts = shapley_contributions(values, n_parties)
            for name, own in zip(model.parties, values[1:], strict=False):
                alone[f"{name}, others missing"] = prediction_table(model.loss, own).set_axis(index)
        found = prediction_table(model.loss, raw)
        result.predictions = found.set_axis(index)
        if self.contributions != "none":
            result.contributions = contributions_table(model, parts, index)
        if federation.labels is not None:
            labels = np.asarray(federation.labels, dtype=float)
            if not np.isnan(labels).all():
                truth = pd.Series(labels, index).dropna()
                what = "predicted samples whose label is known"
                result.compare(truth, beside=alone, what=what, prefix="")
                result.metrics |= figures(model.loss, labels, raw, found["prediction"].to_numpy())


Lines = Integers32


def descend(
    federation: Federation, model: TreesModel, absent: Flags, present: Flags, progress: Progress
) -> tuple[Lines, str]:
    """Return the leaves of ways down the trees, and how many sides were told; a round a level.

    All ways of a sample go level by level together, so that a split is asked about it once. At a
    split of a party that is left out, or lacks the sample, a way goes on to the side of missing
    cells, unasked.

    Shapes: absent (n_samples, n_parties): which parties lack which samples; present (n_ways,
    n_parties): whom a way asks, the last one all; returns (n_ways, n_trees, n_samples).
    """
    at = np.stack([model.starts(~absent & row) for row in present])
    told = own_way = 0
    while ((owner := np.where(at >= 0, model.party[at], LEAF)) >= 0).any():
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
            for name, sides in _ask(federation, model, asked).items():
                for way in ways[name]:
                    for layer, side in zip(asked[name], sides, strict=True):
                        here = (at[way] == layer) & (layer >= 0)
                        left[way][here] = side[here]
            progress.step("level")
        at = np.where(owner >= 0, np.where(left, model.left[at], model.right[at]), at)
    return at, (
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


def _ask(federation: Federation, model: TreesModel, asked: dict[str, Lines]) -> dict[str, Flags]:
    """Have owners tell the sides of splits; returns whether rows go to the left."""
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
        sides[comes] = np.unpackbits(replies[name]["left"], count=int(comes.sum())) == 1
        found[name] = sides
    return found
