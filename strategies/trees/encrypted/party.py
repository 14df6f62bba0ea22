"""A party's end of encrypted histograms: it adds up what it cannot read."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import StepGroup, step
from flwr_vertical.errors import DataError, StateLostError
from strategies.trees.binning import Layout
from strategies.trees.encrypted.scheme import Adder
from strategies.trees.node_sums import Indices, legal_splits
from strategies.trees.secret_shares import HISTOGRAMS, renumbered

MOST_BINS = 126
"""The library numbers bins by 8 bits with a sign, and missing cells need one."""

_ROWS = "trees.encrypted"  # in the cache: of one batch of trees


class EncryptedSteps(StepGroup):
    """The party has `codes` and `layout`."""

    party: Any

    @step
    def cut(self, n_bins: int, n_sides: int) -> dict[str, Any]:
        """Cut the own columns into bins; no keys are needed.

        Message: n_bins: bins of a column at most; n_sides: to how many splits a row comes at most,
        in all trees; returns ``n_bins``, ``nominal`` and ``monotone`` of each column, without
        names.
        """
        told: dict[str, Any] = self.party.cut_columns(n_bins, n_sides)
        if (most := int(max(told["n_bins"]))) > MOST_BINS:
            raise DataError(
                f"party {self.name!r}: products='encrypted' allows {MOST_BINS} bins of a column, "
                f"got {most}; lower n_bins"
            )
        return told

    @step(repeatable=False)  # ciphertexts of 0 are drawn
    def add_up(
        self,
        node: Indices,
        n_nodes: int,
        direct: Indices,
        active: Indices,
        usable: npt.NDArray[np.uint8],
        min_child: int,
        public: bytes = b"",
        gradients: list[bytes] | None = None,
    ) -> dict[str, Any]:
        """Add the gradients of a level's rows up, bin by bin and node by node.

        Message: node (n_trees, n_samples): number of the node that each row of the fit is in, -1
        for none; direct, active: as in `ShareSteps.share`; usable (n_trees or 1, n_own_slots): own
        slots whose columns each tree may use; min_child: the fewest rows of a node; public: with
        the first level of trees, the server's public key; gradients: with the first level, of each
        tree the ciphertexts of the rows of its fit; returns ``sums``, of each direct node the
        ciphertexts of its bins that have rows; ``full`` of shape (n_direct, n_own_bins), which
        these are; ``legal`` as in `ShareSteps.share`.
        """
        self.party.open_exchange(
            HISTOGRAMS, "sums of gradients over the bins of its columns, in every node"
        )
        node = np.asarray(node)
        if gradients is not None:
            rows = [np.flatnonzero(own >= 0) for own in node]
            adders = [
                Adder(public, content, len(at)) for content, at in zip(gradients, rows, strict=True)
            ]
            self.cache[_ROWS] = rows, adders
        if _ROWS not in self.cache:
            raise StateLostError(
                f"party {self.name!r}: the encrypted gradients of these trees ended with its "
                "process; the run goes back to its last snapshot"
            )
        layout: Layout = self.party.layout
        codes = self.party.codes
        may_use = np.broadcast_to(np.asarray(usable, dtype=bool), (len(node), layout.n_slots))
        known = np.flatnonzero(direct >= 0)
        at = renumbered(node, known, n_nodes)
        sums: list[bytes] = [b""] * len(known)
        n_codes = max(layout.n_bins) + 1
        full = np.zeros((len(known), len(layout.n_bins), n_codes), dtype=bool)
        for t, (own, rows, adder) in enumerate(zip(at, *self.cache[_ROWS], strict=True)):
            numbers, used = np.unique(own[own >= 0]), np.flatnonzero(may_use[t, layout.starts])
            if not len(numbers) or not len(used):
                continue
            mine, wanted = codes[rows][:, used], np.zeros((len(numbers), len(used), n_codes), bool)
            nodes = [(own[rows] == q).astype(np.int8) for q in numbers]
            for i, inside in enumerate(nodes):
                for j, column in enumerate(used):
                    count = np.bincount(mine[inside > 0, j], minlength=n_codes)
                    wanted[i, j] = count > 0
                    wanted[i, j, layout.n_bins[column]] = False  # they follow from the others
            found = adder.bin_sums(mine.astype(np.int8), nodes, wanted)
            for q, content, own_wanted in zip(numbers, found, wanted, strict=True):
                sums[q], full[q, used] = content, own_wanted
        of_v = renumbered(node, active, n_nodes)
        least = max(min_child, self.party.policy.min_rows or 1)
        legal = np.zeros((len(active), layout.n_slots, 2), dtype=bool)
        for t, own in enumerate(of_v):  # trees do not share nodes
            splits = legal_splits(layout, codes, own, len(active), least)
            legal |= splits & may_use[t][:, None]
        bins = np.concatenate([full[:, j, :b] for j, b in enumerate(layout.n_bins)], axis=1)
        return {"sums": sums, "full": bins, "legal": legal}

    def forget(self) -> None:
        """Drop the ciphertexts."""
        self.cache.pop(_ROWS, None)
