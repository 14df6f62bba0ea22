"""The party half of a forest: batches of trees, and the votes of their leaves."""

import hashlib
from typing import Annotated, Any, TypeAlias

import numpy as np

from flwr_vertical import StepGroup, Uses, step
from flwr_vertical.arrays import Bytes, Flags
from flwr_vertical.crypto.sealed_box import open_sealed, seal
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.arguments import DISTINCT, OWN, AddsUpTo, Is, Shape, Within, check_fits
from strategies.forest.arbiter import ReleaseSteps, place, unpack_places
from strategies.forest.batch import PARTY, TREE, WEIGHT, Batch, Comers, weights_of
from strategies.forest.gain_messages import Sums, Used, factors_of, limits_of, marks, parcel
from strategies.forest.model import GrowingForest, VotesPart, coefficients_of
from strategies.forest.share_arithmetic import DealtSteps, node_sums
from strategies.trees.arbiter import ParcelSteps, pack
from strategies.trees.node_sums import Indices, legal_splits, slot_sums
from strategies.trees.party import BinnedParty
from strategies.trees.routing import check_sizes, count_sides
from strategies.trees.secret_shares import with_siblings

_BATCH, _KEPT = "votes.batch", "votes.kept"  # live objects

FitBits: TypeAlias = Annotated[Bytes, Shape("ceil(n_samples / 8)")]
"""Packed bits of shape (n_samples,): which rows have a label."""


class GrowthSteps(StepGroup):
    """Grows trees; the party has `codes`, `layout` and `tag`."""

    party: Any

    @step
    def begin_batch(
        self,
        deal: bytes,
        names: Names,
        seed: Annotated[int, Within(0, 2**62)],
        draws: Annotated[Indices, DISTINCT, Within(0, "n_trees - 1")],
        trees: Annotated[Indices, DISTINCT, Shape("draws"), Within(0, "n_trees * n_classes - 1")],
        n_classes: Annotated[int, Within(1, 1000)],
        bootstrap: Annotated[bool, Is("bootstrap")],
        fit: FitBits,
        min_child: Annotated[int, Is("min_child")],
    ) -> dict[str, Any]:
        """Draw the rows of some trees, which begin to grow.

        Message: deal: what must have been dealt; names: of all parties; seed: of all draws; draws,
        trees (n_trees,): number of each tree's draw, and of each tree in the model; n_classes:
        that have trees of their own; bootstrap: see `sampling.weights_of`; fit: packed bits of
        shape (n_samples,): which rows have a label; min_child: the fewest distinct rows of a node;
        returns ``holds``: whether this party has the shares; if not, they are dealt again.
        ``grid``: how many bits of a row a prediction may tell.
        """
        grid = self.party.policy.grid
        if not self.other(DealtSteps).holds(deal):
            return {"holds": False, "grid": grid}
        # Of one class, one after the other.
        check_fits(self.name, "trees", np.diff(trees), Within(n_classes, n_classes))
        n_rows = self.party.n_samples
        labelled = np.unpackbits(np.asarray(fit), count=n_rows)
        fitted = np.flatnonzero(labelled)
        weight = np.zeros((len(draws), n_rows), dtype=np.int64)
        for t, draw in enumerate(np.asarray(draws).tolist()):
            weight[t, fitted] = weights_of(int(seed), draw, len(fitted), bootstrap)
        batch = Batch.start(weight, np.asarray(trees).tolist(), int(min_child))
        self.party.live.put(_BATCH, batch)
        self.forest.begin_batch(names.index(self.name), int(n_classes), n_rows - len(fitted))
        return {"holds": True, "grid": grid}

    @step
    def offer(
        self,
        names: Names,
        widths: Annotated[Widths, AddsUpTo("observed")],
        observed: Annotated[Indices, Within(0, "observed - 1")],
        usable: Annotated[Bytes, Shape("observed"), Within(0, 1)],
        target_bits: Annotated[int, Within(0, 62)],
        sides: Annotated[list[bytes] | None, Within("names", "names")] = None,
    ) -> dict[str, Any]:
        """Seal, for the arbiter, what it compares the splits of a level by.

        Message: names, widths: as in `take_shares`; observed (n_slots,): of each slot of all
        parties, that of its column's observed rows; usable (n_slots,): slots of all parties whose
        columns the trees may use; target_bits: no target exceeds 2^bits; sides: what each party
        sealed in `split`, of the level above; returns ``number`` of the message, ``shape`` (nodes
        and candidates), and the ``parcel``, which is empty if no node can be split.
        """
        self._follow(names, sides)
        batch, forest = self.batch(changes=False), self.forest
        number = self.other(ParcelSteps).number
        if not len(batch.active):
            return {"number": number, "shape": [0, 0], "parcel": b""}
        used = Used.of(
            names, self.party.layout, widths, np.asarray(observed), np.asarray(usable), self.name
        )
        sums, seed = self._sums(batch, used), self.other(GroupKeySteps).seed
        noise = self.party.secret_bytes("noise of gains")
        limits = limits_of(sums.total, target_bits)
        factors = factors_of(seed, number, limits, len(used.slots))
        values = parcel(sums, used, factors, limits, seed, number, noise)
        share = marks(self._legal(batch, used), used, factors, seed, number)
        forest.level |= {"number": number, "order": factors.order}
        forest.level |= {"slots": used.slots, "starts": used.starts}
        sealed = seal(self.other(ParcelSteps).shared, pack(share, values), place(self.name, number))
        return {"number": number, "shape": list(factors.order.shape), "parcel": sealed}

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def split(self, won: Annotated[bytes, OWN]) -> dict[str, Any]:
        """Split nodes by own columns, and tell the other parties the sides of rows.

        Message: won: what the arbiter sealed for this party; returns ``sides``, sealed under the
        group seed: a bit for each row and tree, and one for each node, whoever splits it, so that
        its size tells nothing.
        """
        batch, forest = self.batch(changes=False), self.forest
        number, order = forest.level["number"], forest.level["order"]
        slots, starts = forest.level["slots"], forest.level["starts"]
        content = open_sealed(
            self.other(ParcelSteps).shared, won, place(self.name, number, True), "arbiter"
        )
        best = [
            int(order[q, at].min()) if len(at) else -1
            for q, at in enumerate(unpack_places(content, len(batch.active)))
        ]
        chosen = np.array([slots[c // 2] if c >= 0 else -1 for c in best])
        forest.level["won"] = np.searchsorted(starts, chosen, side="right") - 1
        left = np.zeros(batch.node.shape, dtype=bool)
        missing_left = np.zeros(len(best), dtype=bool)
        layout = self.party.layout
        own = np.flatnonzero(forest.level["won"] == forest.own)
        lines = batch.level[batch.active[own]]
        at = [layout.locate(int(slot - starts[forest.own])) for slot in chosen[own]]
        column, bin_ = np.array(at, dtype=np.int64).reshape(-1, 2).T
        of_line = np.full(len(batch.table), -1, dtype=np.int64)
        of_line[lines] = np.arange(len(lines))
        comes = of_line[batch.node] >= 0
        trees, rows = np.nonzero(comes)
        split = of_line[batch.node[trees, rows]]
        comers = Comers.of(layout, self.party.codes, rows, split, column, bin_)
        asked = np.array([best[q] % 2 == 1 for q in own], dtype=bool)
        settled = comers.settled(asked, batch.weight[trees, rows] > 0)
        left[trees, rows], missing_left[own] = comers.sides(settled), settled
        n_left = np.bincount(split, left[trees, rows], len(lines))
        for few, size in zip(n_left, np.bincount(split, minlength=len(lines)), strict=True):
            check_sizes(self.party, int(few), int(size))
        forest.add_splits(lines, column, bin_)
        told = np.packbits(left).tobytes() + np.packbits(missing_left).tobytes()
        digest = hashlib.blake2b(told + np.packbits(comes).tobytes(), digest_size=16).digest()
        count_sides(self.party, comes.sum(axis=0), layout, digest, receiver="other parties")
        return {"sides": seal(self._sides_key, told, _sides_place(self.name, number))}

    @step
    def end_batch(
        self,
        names: Names,
        fit: FitBits,
        model_trees: Annotated[int, Is("n_trees")],
        target_bits: Annotated[int, Within(0, 62)],
        sides: Annotated[list[bytes] | None, Within("names", "names")] = None,
    ) -> None:
        """Add the trees to the model, and their votes to those of rows without a label.

        Message: names, target_bits, sides: as in `offer`; fit: as in `begin_batch`; model_trees:
        trees whose votes a prediction is the mean of.
        """
        self._follow(names, sides)
        batch, forest = self.batch(), self.forest
        leaf = np.zeros(len(batch.table), dtype=np.uint64)
        half = self.other(DealtSteps).half(forest.own)
        if half is not None:
            lines = np.flatnonzero(batch.table[:, PARTY] < 0)
            lines = lines[np.argsort(batch.table[lines, TREE], kind="stable")]
            at, counts = batch.places(lines)
            leaf[lines] = node_sums(half, 1, at, batch.weight, counts)[:, 0]
        coefficients = coefficients_of(batch.table, model_trees, target_bits)
        forest.end_batch(batch, leaf, coefficients, self._unlabelled(fit))
        self.party.live.drop(_BATCH)

    @step
    def votes(
        self,
        model: Annotated[str, Within(1, 200)],
        fit: FitBits,
        bits: Annotated[int, Within(1, 30)],
    ) -> dict[str, Any]:
        """Seal the own share of the votes for samples without a label; see `ReleaseSteps.release`.

        Message: model: names the model; fit: as in `begin_batch`; bits: of each class.
        """
        forest = self.forest
        release, free = self.other(ReleaseSteps).release, self._unlabelled(fit)
        return release(forest.own, forest.votes, free, int(bits), model.encode())

    @step
    def finish_votes(
        self,
        model: Annotated[str, Within(1, 200)],
        names: Names,
        target_bits: Annotated[int, Within(0, 62)],
    ) -> dict[str, Any]:
        """Keep the own part of the model, on the own disk, and erase all keys and shares.

        Message: model: names the model; names, target_bits: as in `offer`; returns ``splits`` and
        ``cover``: how many own splits the forest has, and how many rows of the fit come to them.
        """
        forest = self.forest
        self.party.save_model(
            VotesPart(
                model=model,
                parties=names,
                **VotesPart.fields_of(self.party.bins),
                table=forest.table,
                splits=forest.splits,
                leaf=forest.leaf,
                n_classes=len(forest.votes),
                target_bits=int(target_bits),
            )
        )
        own = forest.table[:, PARTY] == forest.own
        told = {"splits": int(own.sum()), "cover": int(forest.table[own, WEIGHT].sum())}
        self.other(GroupKeySteps).erase_group_seed()
        self.other(ParcelSteps).forget()
        self.other(DealtSteps).forget()
        self.party.live.drop(_KEPT)
        return told

    # -- what is kept between messages -----------------------------------------------------------

    def batch(self, changes: bool = True) -> Batch:
        """Return the trees that grow."""
        found: Batch = self.party.live.get(_BATCH, Batch.empty, changes=changes)
        return found

    @property
    def forest(self) -> GrowingForest:
        """What there is of the forest."""
        found: GrowingForest = self.party.live.get(_KEPT, GrowingForest)
        return found

    def _unlabelled(self, fit: Bytes) -> Indices:
        """Return the rows without a label, as many as votes were begun for."""
        free = np.flatnonzero(np.unpackbits(np.asarray(fit), count=self.party.n_samples) == 0)
        check_fits(self.name, "fit", free, Shape(self.forest.votes.shape[1]))
        return free

    # -- sums --------------------------------------------------------------------------------------

    def _sums(self, batch: Batch, used: Used) -> Sums:
        """Return sums over the active nodes, and keep those of the level."""
        known = batch.level[batch.direct >= 0]
        at, counts = batch.places(known)
        own, helped = self.other(DealtSteps).in_use(used)
        layout, codes = used.layout(self.party.layout), self.party.codes[:, used.columns]
        weight = batch.weight.astype(np.uint32)
        made = {
            "counts": np.concatenate(
                [
                    slot_sums(layout, codes, at[t], weight[t], count).astype(np.uint64)
                    for t, count in enumerate(counts)
                    if count
                ]
            ),
            "own": node_sums(own, own.shape[1], at, batch.weight, counts),
            "helped": node_sums(helped, helped.shape[1], at, batch.weight, counts),
        }
        above = self.forest.level.get("sums", {})
        whole = {
            name: with_siblings(values, batch.direct, batch.parent, above.get(name, values[:0]))
            for name, values in made.items()
        }
        self.forest.level = {"sums": whole}
        total = batch.table[batch.level[batch.active], WEIGHT].astype(np.uint64)
        active = {name: values[batch.active] for name, values in whole.items()}
        return Sums(active["counts"], total, active["own"], active["helped"])

    def _legal(self, batch: Batch, used: Used) -> Flags:
        at, counts = batch.places(batch.level[batch.active])
        layout, codes = used.layout(self.party.layout), self.party.codes[:, used.columns]
        least = max(batch.min_child, self.party.policy.min_rows or 1)
        return np.concatenate(
            [
                legal_splits(layout, codes, at[t], count, least)
                for t, count in enumerate(counts)
                if count
            ]
        )

    # -- sides -------------------------------------------------------------------------------------

    def _follow(self, names: list[str], sides: list[bytes] | None) -> None:
        """Send rows down the splits that the owners told."""
        if sides is None:
            return
        batch, level = self.batch(), self.forest.level
        if "won" not in level:
            raise ProtocolError(
                f"party {self.name!r}: argument 'sides' comes after step 'split' of this level"
            )
        left = np.zeros(batch.node.shape, dtype=bool)
        missing_left = np.zeros(len(batch.active), dtype=np.int64)
        for k, (name, sealed) in enumerate(zip(names, sides, strict=True)):
            told = open_sealed(self._sides_key, sealed, _sides_place(name, level["number"]), name)
            words = np.frombuffer(told, dtype=np.uint8)
            head = (left.size + 7) // 8
            if len(words) != head + (len(missing_left) + 7) // 8:
                raise ProtocolError(
                    f"party {name!r} told the sides of another number of rows or nodes than party "
                    f"{self.name!r} has; do all nodes run the same version of the strategy?"
                )
            bits = np.unpackbits(words[:head], count=left.size).astype(bool)
            left |= bits.reshape(left.shape)
            own = level["won"] == k
            missing_left[own] = np.unpackbits(words[head:], count=len(own))[own]
        batch.divide(level["won"], missing_left, left)

    @property
    def _sides_key(self) -> bytes:
        return stream(self.other(GroupKeySteps).seed, "votes sides", (4,)).tobytes()


class ForestParty(BinnedParty):
    """A party whose columns the trees of a forest split."""

    dealt = Uses(DealtSteps)
    growing = Uses(GrowthSteps)
    releasing = Uses(ReleaseSteps)


def _sides_place(name: str, number: int) -> bytes:
    return b"votes sides " + number.to_bytes(8, "big") + name.encode()
