"""The server half of labelled rows that others complete: who holds them, and their means.

Rows are put into sets held by the same parties, those with a label apart from those without. A set
that is too small to be told of takes no part, since F differs by set.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.products.masked import OPENING
from flwr_vertical.products.pairs import PAIRS_OPENING, PairProducts
from flwr_vertical.products.row_groups import RowGroups, distinct_rows
from flwr_vertical.protocol.declaration import BITS, NOTHING, ROWS, Round
from strategies.linear.masked_means.fit import vectors_of_fit
from strategies.linear.moments.groups import MinimumRows, too_few
from strategies.linear.problem import Problem, note
from strategies.normal.all_rows import LackedRows
from strategies.normal.completion import ask_for_means, notes_apart, slices_of
from strategies.normal.equations import JointModel, fit_model
from strategies.normal.shared import SharedMoments

COMPLETING = (
    PAIRS_OPENING,
    Round(
        "complete",
        "summed under the recipient's pad, terms of labelled rows that another party lacks",
        tells=(NOTHING, BITS, ROWS),
    ),
    OPENING.parts[1],  # once more, now over completed rows
    OPENING.parts[2],
)
"""What completing exchanges, and then opens."""


def large_sets(mask: Flags, fewest: int) -> Flags:
    """Tell which rows somebody has, and enough are held by the same parties; shape (n_rows,)."""
    kinds, member, counts = distinct_rows(mask)
    return np.asarray((~kinds.all(axis=1) & (counts >= fewest))[member])


def rows_of_large_sets(
    mask: Flags,
    widths: Integers,
    minimum: MinimumRows,
    n_labels: int = 1,
    n_vectors: int | None = None,
) -> RowGroups:
    """Take as one group the rows of which enough are held by the same parties.

    Enough for sums with `n_labels` vectors, and for parties to multiply with `n_vectors` in all; by
    default as many as evaluations and information take.

    Shapes: mask (n_rows, n_parties): true where a party has no row; widths (n_parties,).
    """
    n_columns, some = int(widths.sum()), ~mask.all(axis=1)
    for_vectors = minimum.rows_for(n_vectors or vectors_of_fit(n_columns))
    needed = max(minimum.of(n_columns, n_labels), for_vectors)
    taken = large_sets(mask, needed)
    if not taken.any():
        counts = distinct_rows(mask[some])[2]
        raise too_few(int(counts.max(initial=0)), needed, n_columns)
    none = np.zeros((1, mask.shape[1]), dtype=bool)
    return RowGroups(none, np.where(taken, 0, -1), 0, int((some & ~taken).sum()))


class HandingOn(GroupKey):
    """Hands further arguments on, once, with the sealed seed."""

    further: dict[str, dict[str, Any]]

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Return what opens the seed, and what else there is, by party."""
        further, self.further = self.further, {}
        return {name: own | further.get(name, {}) for name, own in super().arguments().items()}


class LabelledCompletion:
    """Has every party complete the labelled rows that it lacks."""

    model: JointModel  # Of the columns that parties offer
    lacking: LackedRows  # Their means and covariances in the rows that a party lacks
    n_labels = 1  # Vectors that the server commits to
    n_vectors: int | None = None  # In all; None: as many as evaluations and information take
    fewest: int  # Rows of the smallest set with which evaluations count as vectors
    _minimum: int  # Rows of a set that may be told of, at least

    def rows(self, mask: Flags, widths: Integers, minimum: MinimumRows) -> RowGroups:
        """Take the rows of large sets, and note how large these are."""
        self._minimum = minimum.of(int(widths.sum()), self.n_labels)
        groups = rows_of_large_sets(mask, widths, minimum, self.n_labels, self.n_vectors)
        # A party counts its rows that another one has, and those that it lacks, by themselves.
        held = (~mask[groups.group >= 0]).astype(np.int64)
        sets = [held.T @ held, held.T @ (1 - held)]
        self.fewest = min(int(n) for part in sets for n in part.ravel() if n)
        return groups

    def __call__(
        self,
        federation: Federation,
        pairs: PairKeys,
        problem: Problem,
        groups: RowGroups,
        result: Result,
    ) -> GroupKey:
        """Have the rows completed; four rounds. Returns the key that the completed columns take."""
        names = federation.parties
        key = HandingOn(federation, pairs)
        key.further = {name: {"completing": True} for name in names}
        products = PairProducts(federation, key, limbs=1)
        sent = products.send()
        mask = np.empty((len(problem.labelled) + len(problem.free), len(names)), dtype=bool)
        mask[problem.labelled], mask[problem.free] = problem.mask, problem.free_mask
        taken = np.empty(len(mask), dtype=bool)
        taken[problem.labelled] = groups.group >= 0
        taken[problem.free] = large_sets(problem.free_mask, self._minimum)
        held = ~mask & taken[:, None]
        moments = products.pairs(held)
        told = [np.asarray(moments.told[name]["unshown"], dtype=bool).T for name in names]
        shared = SharedMoments.of(moments, products.widths)
        slices = slices_of(products.widths)
        model = fit_model(moments, slices, shared=shared)
        self.lacking = LackedRows(moments, shared, slices)
        n_alone = [int(sent[name]["n_alone"]) for name in names]
        self.model = replace(model, unshown=np.concatenate(told), n_alone=n_alone)
        _, own = ask_for_means(federation, products, self.model, held, sent)
        key.further = {
            name: {part: own[name][part] for part in ("total", "offset", "unit")} for name in names
        }
        independent = "these columns count as independent given all others"
        for text in notes_apart(products.widths, moments.apart, independent):
            note(result, text)
        lacking = problem.mask[groups.group >= 0]
        if none := [name for name, gone in zip(names, lacking.T, strict=True) if gone.all()]:
            note(
                result,
                f"{none} have no labelled sample of the fit (sets of few rows are left out): their "
                "columns have no coefficient",
            )
        result.metrics["samples_completed"] = float(lacking.any(axis=1).sum())
        return key
