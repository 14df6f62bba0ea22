"""Predictions by trees that were grown before: as many rounds as there are levels, for all trees.

=============  =================================================================================
round          what travels
=============  =================================================================================
open_trees     down: the model's name; the parties look for what they kept
sides          once a level; down: which own split each sample comes to in each tree; up: one bit
               for each of these
=============  =================================================================================
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Federation, Party, Result, step
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.predictions import Predictions
from flwr_vertical.results import Progress
from strategies.linear.problem import sample_index
from strategies.trees.binning import Codes, narrowest
from strategies.trees.contributions import (
    FORMS,
    MOST_PARTIES,
    contributions_table,
    path_contributions,
    shapley_contributions,
)
from strategies.trees.model import LEAF, TreePart, TreesModel, prediction_table
from strategies.trees.monotone import NODE_KEY
from strategies.trees.node_sums import Indices
from strategies.trees.routing import check_openings, count_sides
from strategies.trees.shapley import descend_without


class TreesPredictParty(Party):
    """Has its own splits from the run named ``fitted``; no step takes any."""

    node_keys = (NODE_KEY,)  # of the fit: a node need not change its config

    @step
    def open_trees(self, model: str, n_sides: int) -> None:
        """Look for what this party kept.

        Message: model: name of the model; n_sides: to how many splits a row comes at most, in all
        trees.
        """
        self.codes(model)
        check_openings(self, self._part(model).bins.layout, n_sides)

    @step
    def sides(self, model: str, names: Indices, split: Indices) -> dict[str, Any]:
        """Tell on which side of own splits rows are.

        Message: model: name of the model; names (n_splits, 2): number of the tree and of the node;
        split (n_trees, n_samples): number of the split that each row comes to, -1 for none;
        returns ``left``, packed bits of the rows that come to a split, tree by tree.
        """
        part, codes, split = self._part(model), self.codes(model), np.asarray(split)
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

    def codes(self, model: str) -> Codes:
        """Return codes in aligned order; rows that this party lacks are missing in all columns."""
        if "trees.codes" not in self.cache:
            part = self._part(model)
            own = part.codes(self.table, self.name)
            bins = np.array(part.bins.layout.n_bins, dtype=np.uint8)
            codes = np.tile(bins, (self.n_samples, 1))
            held = self.positions >= 0
            codes[self.positions[held]] = own[held]
            self.cache["trees.codes"] = codes
        found: Codes = self.cache["trees.codes"]
        return found

    def _part(self, model: str) -> TreePart:
        if "trees.part" not in self.cache:
            part = self.load_model(TreePart)
            if part is None or part.model != model:
                raise DataError(
                    f"party {self.name!r} kept no trees of the model that is asked for; name the "
                    "run of that fit as 'fitted'"
                )
            self.cache["trees.part"] = part
        found: TreePart = self.cache["trees.part"]
        return found


class TreesPredictions(Predictions):
    """Predict with trees of `VerticalGBDT`; each party looks its own splits up.

    A sample that a party lacks, or whose party has left, takes at its splits the side that was
    learned for missing cells. One round and one for each level, after greeting and alignment.
    """

    party = TreesPredictParty
    contributions_had = FORMS
    disclosure = (
        (
            "server",
            "for each sample and tree, which side of the splits on its way it is on; of a party's "
            "row no more than its columns' bins",
        ),
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
        if self.contributions == "shapley" and len(model.parties) > MOST_PARTIES:
            raise ConfigError(
                f"contributions='shapley' is for {MOST_PARTIES} parties at most, and the fit had "
                f"{len(model.parties)}; use 'path'"
            )
        names = list(federation.parties)
        absent = np.ones((alignment.n_samples, len(model.parties)), dtype=bool)
        absent[:, [model.parties.index(name) for name in names]] = alignment.mask
        n_sides = model.longest_way
        if self.contributions == "shapley":  # a sample takes a way for each set of parties
            n_sides = min(n_sides * 2 ** len(model.parties), int((model.party >= 0).sum()))
        federation.call("open_trees", {"model": model.name, "n_sides": n_sides})
        index = sample_index(alignment, result.labels, np.arange(alignment.n_samples))
        alone: dict[str, pd.DataFrame] = {}
        if self.contributions == "shapley":
            values, note = descend_without(federation, model, absent, progress)
            result.notes.append(note)
            raw = values[-1]
            parts = shapley_contributions(values, len(model.parties))
            for k, name in enumerate(model.parties):
                alone[f"{name}, others missing"] = prediction_table(
                    model.loss, values[1 + k]
                ).set_axis(index)
        else:
            leaves = self._descend(federation, model, absent, progress)
            raw = model.raw(leaves)
            parts = path_contributions(model, leaves)
        found = prediction_table(model.loss, raw)
        result.predictions = found.set_axis(index)
        if self.contributions != "none":
            result.contributions = contributions_table(model, parts, index)
        if federation.labels is not None:
            labels = np.asarray(federation.labels, dtype=float)
            known = ~np.isnan(labels)
            if known.any():
                truth = pd.Series(labels, index).dropna()
                what = "predicted samples whose label is known"
                result.compare(truth, beside=alone, what=what, prefix="")
                loss = model.loss
                result.metrics["loss"] = loss.loss(labels[known], raw[:, known])
                guessed = found["prediction"].to_numpy()[known]
                if loss.name in ("binary", "multiclass", "share", "shares"):
                    result.metrics["accuracy"] = float(np.mean(guessed == labels[known]))
                else:
                    result.metrics["rmse"] = float(np.sqrt(np.mean((guessed - labels[known]) ** 2)))

    def _descend(
        self,
        federation: Federation,
        model: TreesModel,
        absent: npt.NDArray[np.bool_],
        progress: Progress,
    ) -> npt.NDArray[np.int32]:
        """Return the leaf of each sample in each tree, shape (n_trees, n_samples)."""
        at = model.starts(~absent)
        while True:
            at = _past_absent(model, at, absent)
            owner = _owners(model, at)
            own: dict[str, dict[str, Any]] = {}
            for k, name in enumerate(model.parties):
                lines = np.unique(at[owner == k])
                if not len(lines):
                    continue
                number = np.full(len(model.party) + 1, -1, dtype=np.int64)
                number[lines] = np.arange(len(lines))
                own[name] = {
                    "names": np.stack([model.tree[lines], model.number[lines]], axis=1),
                    "split": narrowest(number[np.where(owner == k, at, -1)]),
                }
            if not own:
                return at
            replies = federation.call(
                "sides", {"model": model.name}, per_party=own, parties=list(own)
            )
            for name, told in replies.items():
                comes = own[name]["split"] >= 0
                left = np.unpackbits(told["left"], count=int(comes.sum())) == 1
                lines = at[comes]
                at[comes] = np.where(left, model.left[lines], model.right[lines])
            progress.step("level")


def _owners(model: TreesModel, at: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return whose split each sample is at in each tree; -1 at a leaf, or where it is nowhere."""
    return np.where(at >= 0, model.party[at], LEAF)


def _past_absent(
    model: TreesModel, at: npt.NDArray[np.int32], absent: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """Send samples past the splits of parties that lack them."""
    rows = np.broadcast_to(np.arange(len(absent)), at.shape)
    while True:
        owner = _owners(model, at)
        passes = (owner >= 0) & absent[rows, owner]
        if not passes.any():
            return at
        lines = at[passes]
        at = at.copy()
        left = model.missing_left[lines] > 0
        at[passes] = np.where(left, model.left[lines], model.right[lines])
