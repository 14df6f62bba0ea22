"""The party half: codes, sums under pads, routing, and the splits that stay here."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np

from flwr_vertical import Party, Uses, step
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.products import GroupKeySteps, PairKeySteps
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.products.streams import KeyStream, tag_of_blocks
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within, check_fits
from strategies.trees.arbiter import ParcelSteps
from strategies.trees.binning import Bins, Codes, SlotLayout, fit_bins
from strategies.trees.contributions import dependence_table
from strategies.trees.model import TreePart
from strategies.trees.monotone import NODE_KEY, TOLD, directions_of
from strategies.trees.routing import SIDES, RoutingSteps, check_openings
from strategies.trees.secret_shares import ShareSteps, stream_label

COLUMN_NAMES = "column-names"
"""The exchange in which the server learns which column each split is of, by name."""

DEPENDENCE = "partial-dependence"
"""What a party's table of how predictions depend on its columns is called, beside its output."""

_BINS, _RANKS = "node.trees.bins", "node.trees.ranks"
_ONLY_LEVELS = "node.trees.only_levels"


class BinnedParty(Party):
    """A party whose columns trees split: their bins, and their rows under a key stream."""

    node_keys = (NODE_KEY,)
    winners_are_told: ClassVar[bool] = False
    """Whether the server learns the best split of each node."""
    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    parcels = Uses(ParcelSteps)

    @step(repeatable=False)  # key pairs are drawn
    def prepare(
        self,
        nonce: bytes,
        n_bins: Annotated[int, Is("n_bins")],
        n_sides: Annotated[int, Within("n_trees * max_depth", 2**40)],
    ) -> dict[str, Any]:
        """Cut the own columns into bins, and make the key pairs of this run.

        Message: nonce: of this run; n_bins: bins of a column at most; n_sides: to how many splits
        a row comes at most, in all trees; returns ``n_bins``, ``nominal``, ``complete`` and
        ``monotone`` of each column, without names; the key for other parties, see
        `PairKeySteps.pair_key`; that for the arbiter as ``parcel_*``.
        """
        if self.fitted is not None:
            raise DataError(
                f"party {self.name!r}: the run names an earlier one ('fitted'), and trees are "
                "grown on the rows that are given; leave 'fitted' out, or use the strategy "
                "'predict'"
            )
        self.state[_BINS] = int(n_bins)
        self._sort_levels([])
        layout = self.layout
        check_openings(self, layout, n_sides, growing=self.winners_are_told)
        self.state[SIDES] = int(n_sides)
        directions = directions_of(self.services.node_config, self.bins, self.name)
        self.state[TOLD] = 1
        return {
            "n_bins": np.array(layout.n_bins, dtype=np.int64),
            "nominal": np.array(layout.nominal, dtype=np.uint8),
            "complete": np.array(layout.complete, dtype=np.uint8),
            "monotone": directions,
            **self.pair_keys.pair_key(nonce),
            **self.parcels.new_key(nonce),
        }

    @step
    def send_masked(
        self,
        owner: str,
        sealed: Annotated[bytes, OWN],
        start: Annotated[int, Within(0, "n_samples")],
        stop: Annotated[int, Within("start", "n_samples")],
        arbiter: list[bytes] | None = None,
        ranks: Annotated[list[Annotated[int, Within(0, 254)]], OWN] = [],  # noqa: B006
        only_levels: bool = False,
        **keys: Unpack[PairKeyFields],
    ) -> dict[str, Any]:
        """Hand over the rows of the own slots under the key stream of the group seed.

        Message: owner, sealed, **keys: see `GroupKeySteps.take`; start, stop: which rows, of
        all samples; arbiter: public key, identity and signature of the arbiter,
        where there is one; ranks: of all codes of nominal columns, if their levels were sorted, see
        `Bins.sorted_by`; only_levels: whether nominal columns alone count as own ones, until
        their levels are sorted; returns ``masked`` of shape (stop - start, n_sent); the ``tag`` of
        the whole content.
        """
        if (ranks or only_levels) and not self.winners_are_told:
            raise ProtocolError(f"party {self.name!r}: a forest does not sort levels ('ranks')")
        if [only_levels, *ranks] != [
            self.state.get(_ONLY_LEVELS, False),
            *self.state.get(_RANKS, []),
        ]:
            self._sort_levels(ranks, only_levels)
        self.group_key.take(owner, sealed, keys)
        if arbiter is not None:
            self.parcels.take_arbiter(keys["nonce"], *arbiter)
        codes, layout = self.codes, self.layout
        shape = len(codes), layout.n_sent
        stream = KeyStream(self.group_key.seed, stream_label(self.name), shape, self.tag)
        own = layout.indicators(codes[start:stop]) + stream.rows(start, stop)
        return {"masked": own, "tag": self.tag}

    # -- the own columns ---------------------------------------------------------------------

    def _sort_levels(self, ranks: list[int], only_levels: bool = False) -> None:
        self.state[_RANKS], self.state[_ONLY_LEVELS] = ranks, only_levels
        for key in ("trees.bins", "trees.codes", "trees.tag", "trees.layout"):
            self.cache.pop(key, None)

    @kept("trees.bins")
    def bins(self) -> Bins:
        """How columns become codes."""
        if _BINS not in self.state:
            raise ProtocolError(f"party {self.name!r} has no bins yet: 'prepare' comes first")
        # A bin is told as a whole, so it holds as many rows as a side of a split.
        least = self.policy.min_rows or 1
        made = fit_bins(self.table, int(self.state[_BINS]), least)
        ranks = list(self.state.get(_RANKS, []))
        return made.sorted_by(ranks) if ranks else made

    @property
    def _chosen(self) -> list[int]:
        """Own columns that count: all, or while levels are to be sorted nominal ones."""
        nominal = self.bins.nominal
        return [j for j in range(len(nominal)) if nominal[j] or not self.state.get(_ONLY_LEVELS)]

    @kept("trees.layout")
    def layout(self) -> SlotLayout:
        """Slots of the own columns."""
        return self.bins.layout

    @kept("trees.codes")
    def codes(self) -> Codes:
        """Codes in aligned order; rows that this party lacks are missing in all columns."""
        return self.bins.aligned_codes(self)[:, self._chosen]

    @kept("trees.tag")
    def tag(self) -> bytes:
        """Of the own codes: another content would get another key stream."""
        layout, codes = self.layout, self.codes
        nominal = np.array(layout.nominal) * (1 + layout.are_sorted)
        kinds = np.array([layout.n_bins, nominal], dtype=np.uint64)
        shape = codes.shape[0] + 2, codes.shape[1]
        return tag_of_blocks(self.group_key.seed, shape, (kinds, codes.astype(np.uint64)))


class TreeParty(BinnedParty):
    """A party of boosting: sums under pads, routing, and the splits that stay here."""

    winners_are_told = True

    shares = Uses(ShareSteps)
    routing = Uses(RoutingSteps)

    @kept("trees.layout")
    def layout(self) -> SlotLayout:
        """Slots of the own columns; no slot and no candidate is for cells that nobody lacks."""
        layout = self.bins.layout.of_columns(self._chosen)
        complete = tuple((self.codes != np.array(layout.n_bins)).all(axis=0).tolist())
        return replace(layout, complete=complete)

    @step
    def finish(
        self,
        model: Annotated[str, Within(1, 200)],
        columns: bool = False,
        dependence: Annotated[Array | None, OWN, Shape(None, None)] = None,
    ) -> dict[str, Any]:
        """Keep the own splits of the trees, on the own disk, and erase all keys.

        Message: model: names the model; columns: whether to tell the names of the columns that
        splits are of; dependence: see `partial_dependence`, which this party keeps as a table;
        returns nothing, or what `TreePart.named_splits` returns.
        """
        if columns:
            self.check_exchange(COLUMN_NAMES)
        if dependence is not None:
            n_codes = sum(bins + 1 for bins in self.layout.n_bins)
            check_fits(self.name, "dependence", dependence, Shape(None, n_codes))
            table = dependence_table(self.bins, self.table.frame, dependence)
            self.save_output(table, DEPENDENCE)
        part = TreePart(model, **TreePart.fields_of(self.bins), splits=self.routing.splits)
        self.save_model(part)
        self.group_key.erase_group_seed()
        self.parcels.forget()
        self.shares.forget()
        return part.named_splits() if columns else {}
