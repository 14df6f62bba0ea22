"""Shares of the sums that splits are judged by, made at the owners of columns and their helpers.

Once a tree, the server gives the first party ``w = v + rho``, v being g and h, and the others the
seed of rho: two halves of v, w and ``-rho``. Of the columns X of an owner it has ``U = X + R``; the
owner has one half, and its helper, who knows the key stream R, the other. With a pad s of the two,

    A = X'half - s    goes to the server,    B = s - R'other    stays with the helper,

and ``A + U'other`` at the server and B are shares of ``X'v``. Sums over one of two siblings are
made; those of the other follow, and so all later arithmetic is on sums of slots.

Of each node the gains need ``N = scale G - slope H`` (`gain`), and only the server knows the slope.
It is in halves as well, t at the owner and ``slope - t`` at the helper. The server can multiply its
own share of H, the helper B by its half; of ``t B`` helper and server get shares: with pads f and z
of owner and helper, the server, who knows t, gets ``B + f`` of the helper and ``t f + z`` of the
owner, and the helper has z (Beaver, 1991, with the owner as dealer). Of siblings f follows as B
does, so ``B + f`` is sent of one of two; z is drawn for each node, as each has a slope of its own.

The helper's share of N and H travels to the arbiter alone, blinded and under pads that the server
does not know; with open histograms, B goes to the server as it is.
"""

from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flwr_vertical import StepGroup, step
from flwr_vertical.arrays import Array, Bytes, Flags
from flwr_vertical.crypto.sealed_box import seal
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.record import key_of
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.arithmetic import helpers
from flwr_vertical.products.pair_keys import Names
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, stream
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Is, Shape, Within, check_fits
from strategies.trees.arbiter import PADS, ParcelSteps, pack, place_of, under_cancelling_bits
from strategies.trees.binning import SlotLayout
from strategies.trees.blinding import Factors, coarse, noise, to_wire
from strategies.trees.gain import N_NOISE, Candidates, checked_layouts
from strategies.trees.node_sums import (
    Indices,
    KnownNodes,
    Matrix,
    Places,
    Ring,
    code_sums,
    legal_of,
    renumbered,
    to_sent,
)
from strategies.trees.routing import count_order, count_winners

Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]
UnsignedRing: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

HISTOGRAMS = "histograms"
"""The exchange in which the server sees sums of gradients over the slots of every node."""

HIDING = "hiding histograms (histograms='open' shows them to the server, if every node agrees)"
"""What needs an arbiter, as errors say it."""

# Under a prefix that the server may not write to.
_HALF, _BELOW = "node.trees.half", "node.trees.helped"
_COUNTS, _PADS = "node.trees.counts", "node.trees.pads"
_HOLD_BYTES = 1 << 29  # of key streams that a helper keeps in memory


class ShareSteps(StepGroup):
    """A party's shares, as owner and as helper; the party has `codes`, `layout` and `tag`."""

    party: Any

    @step
    def share(
        self,
        names: Names,
        columns: Annotated[Indices, Shape(None, 4), Within(0, 2**20)],
        tags: Annotated[list[bytes], Within("names", "names")],
        sides: Annotated[Bytes, Shape(None, "ceil(n_samples / 8)")],
        direct: Annotated[Indices, Within(-1, "direct - 1")],
        parent: Annotated[Indices, Shape("direct"), Within(-1, 2**31)],
        active: Annotated[Indices, DISTINCT, Within(0, "direct - 1")],
        usable: Annotated[Bytes, Shape(None, "columns"), Within(0, 1)],
        min_child: Annotated[int, Is("min_child")],
        masked_gradients: Annotated[
            UnsignedRing | None, OWN, Shape(2, "sides", "n_samples")
        ] = None,
        rho: Annotated[bytes, OWN] = b"",
        slopes: Annotated[UnsignedRing | None, OWN, Shape("active")] = None,
        scale: Annotated[Numbers | None, Shape("active"), Within(0, 2**52)] = None,
        limits: Annotated[Array | None, Shape(2, "active")] = None,
        order: bytes = b"",
        ranked: bool = False,
    ) -> dict[str, Any]:
        """Make the shares of one level.

        Message: names, tags: every party's name, and tag of its codes; columns (n_columns, 4): of
        all parties, see `layouts_of`; sides (n_trees, n_samples), packed: which rows are of the
        fit, and below the roots which went to the right, see `node_sums`;
        direct (n_nodes,): numbers of the nodes whose sums are made; -1 where they follow from those
        of the parent and of the sibling, the node next to it; parent (n_nodes,): place of each
        node's parent in the level before; -1 at the roots; active (n_active,): nodes that may be
        split; usable (n_trees, n_columns): columns of all parties that each tree may use; one line
        if all trees may use the same; min_child: the fewest rows of a node; with the first
        level of a tree, at the first party masked_gradients (2, n_trees, n_samples): g and h under
        rho, and at the others the seed rho; slopes (n_active,): the own half of slopes; scale
        (n_active,): see `LevelGradients`; limits, order: see `Factors`; without them histograms are
        opened; ranked: whether the arbiter is to learn ratios of N and h over single levels, in
        place of gains; returns ``number`` of the message; ``owner`` of shape (2, n_direct, n_own),
        the own shares of sums of g and h; and either ``parcel``, sealed for the arbiter: a share of
        the marks of legal candidates, and the seed of the pads; ``owned_slopes`` of shape
        (n_active, n_own), and at a helper ``helped_slopes`` of shape (n_direct, n_helped) and
        ``blinded`` of shape (3, n_active, n_candidates that it helps with, 5), see `blinding`; or
        ``legal`` of shape (n_active, n_own_slots, 2), and at a helper ``helper`` of shape (2,
        n_direct, n_helped). n_own and n_helped are slots whose rows were sent.
        """
        if limits is None:
            self.party.open_exchange(
                HISTOGRAMS, "sums of gradients over the bins of its columns, in every node"
            )
        own, layouts = checked_layouts(np.asarray(columns), names, self.name, self.party.layout)
        check_tag(self.party, tags[own])
        check_fits(self.name, "usable", usable, Shape(len(sides) if len(usable) > 1 else 1, None))
        helper = helpers(names)
        begins = self._begin(names, masked_gradients, rho)
        node = KnownNodes(self.party).take(np.asarray(parent), np.asarray(sides))
        check_fits(self.name, "parent", node, Within(-1, len(direct) - 1))
        places = Places.of(node, direct, active, np.asarray(usable), layouts)
        every = Candidates.of(layouts)
        if begins:
            self._check_rows(places, own)
        parcels, seed = self.other(ParcelSteps), self.other(GroupKeySteps).seed
        number, binding = parcels.number, self.party.services.binding()
        if limits is not None:
            if ranked:
                count_order(self.party, places.node, self.party.layout, binding)
            count_winners(self.party, places.node, self.party.layout, len(every.numbers), binding)
        n_direct, n_active, asked = len(places.direct), len(active), binding.hex()
        hides = limits is not None and slopes is not None and scale is not None

        def pads_of(owner: str, width: int) -> list[Ring]:
            # Of g and h, and unless histograms are opened f and z. An owner and a helper who are
            # told different things draw pads that do not cancel.
            label = f"tree pads {owner!r} {helper[owner]!r} {number} {asked}"
            n_rows = 3 * n_direct + n_active if hides else 2 * n_direct
            words = stream(seed, label, (n_rows, width))
            return np.split(words, np.arange(1, 4 if hides else 2) * n_direct)

        half = self._half(places.node.shape)
        told: dict[str, Any] = {"number": number}
        least = max(min_child, self.party.policy.min_rows or 1)
        sums, legal = self._own_sums(places, own, half, least, direct, parent)
        if ranked:
            legal &= self.party.layout.single_levels[:, None]
        own_g, own_h, *own_slopes = pads_of(self.name, sums.shape[2])
        told["owner"] = sums - np.stack([own_g, own_h])
        helps = [k for k, name in enumerate(names) if helper[name] == self.name]
        if helps:
            drawn = [pads_of(names[k], layouts[k].n_sent) for k in helps]
            pad_g, pad_h, *pad_slopes = (
                np.concatenate(parts, axis=1) for parts in zip(*drawn, strict=True)
            )
            helped = np.stack([pad_g, pad_h]) - self._help(
                names, layouts, tags, helps, places, half
            )
        if limits is None or slopes is None or scale is None:
            told["legal"] = legal
            if helps:
                told["helper"] = helped
            return told
        t = np.asarray(slopes)[:, None]
        pad_f, pad_z = own_slopes
        self.state[_PADS] = with_siblings(pad_f, direct, parent, np.asarray(self.state[_PADS]))
        told["owned_slopes"] = t * np.asarray(self.state[_PADS])[active] + pad_z
        factors = Factors.of(order, limits, len(every.numbers))
        slots = np.concatenate([[0], np.cumsum([of.n_slots for of in layouts])])
        marks = np.zeros((len(legal), int(slots[-1]), 2), dtype=bool)
        marks[:, slots[own] : slots[own + 1]] = legal
        placed = factors.placed(marks.reshape(len(legal), -1)[:, every.numbers])
        share = under_cancelling_bits(placed, seed, "tree marks", number, own, len(names))
        # The arbiter refuses to compare where parties were told different things.
        pads = stream(seed, f"tree parcels {number} {asked}", (SEED_BYTES // 8,))
        if helps:
            pad_f, pad_z = pad_slopes
            told["helped_slopes"] = helped[1] + pad_f
            above = np.asarray(self.state[_BELOW])
            flat = np.concatenate(list(helped), axis=1)
            self.state[_BELOW] = with_siblings(flat, direct, parent, above)
            share_g, share_h = np.split(np.asarray(self.state[_BELOW])[active], 2, axis=1)
            share_v = np.asarray(scale).astype(np.uint64)[:, None] * share_g - t * share_h - pad_z
            at = every.places(np.concatenate([np.arange(slots[k], slots[k + 1]) for k in helps]))
            mine = Candidates.of([layouts[k] for k in helps])
            blinded = self._blinded(mine, share_v, share_h, at, factors, limits, ranked)
            every_pad = stream(pads.tobytes(), PADS, (3, *factors.order.shape))
            blinded += factors.unplaced(every_pad)[:, :, at]
            told["blinded"] = to_wire(coarse(blinded))
        told["parcel"] = seal(parcels.shared, pack(share, pads), place_of(self.name, number))
        return told

    def forget(self) -> None:
        """Drop what is kept between the levels of a tree."""
        KnownNodes(self.party).forget()
        for key in (_HALF, _BELOW, _COUNTS, _PADS):
            self.state.pop(key, None)
        self.cache.pop("trees.rho", None)

    def _begin(self, names: list[str], masked: UnsignedRing | None, rho: bytes) -> bool:
        """Keep the own half of the gradients of trees that begin; return whether any do."""
        begins = masked is not None or bool(rho)
        if begins and ((masked is None) == (self.name == names[0]) or (masked is not None and rho)):
            raise ProtocolError(
                f"party {self.name!r}: the first party gets gradients under a mask, and the others "
                "its seed: each gets one of the two; who runs the server?"
            )
        if begins:
            self.state[_HALF] = rho if masked is None else np.asarray(masked)
            for key in (_BELOW, _COUNTS, _PADS):
                self.state[key] = np.zeros((0, 0), dtype=np.uint64)
        return begins

    def _half(self, shape: tuple[int, ...]) -> Ring:
        """Return the own half of g and h, (2, n_trees, n_samples)."""
        kept, key = self.state[_HALF], "trees.rho"
        if not isinstance(kept, bytes):
            return np.asarray(kept)
        if self.cache.get(key, (None,))[0] != kept:
            self.cache[key] = kept, -stream(kept, "rho", (2, *shape))
        return np.asarray(self.cache[key][1])

    # -- as owner ----------------------------------------------------------------------------

    def _check_rows(self, places: "Places", own: int) -> None:
        """Refuse trees in which no split by own columns could ever be legal."""
        least = self.party.policy.min_rows or 0
        rows = [int((places.node[t] >= 0).sum()) for t in places.trees(own)]
        n_rows = min(rows, default=2 * least)
        if n_rows < 2 * least:
            raise PolicyError(
                f"party {self.name!r}",
                key_of("min_rows"),
                f"splits of {n_rows:,} samples by its columns",
                f"{least:,} samples on each side of a split",
                "grow trees on more labelled samples (or a larger subsample), leave the party out, "
                f"or its owner would have to set {key_of('min_rows')}={n_rows // 2} or less",
            )

    def _own_sums(
        self, places: "Places", own: int, half: Ring, least: int, direct: Indices, parent: Indices
    ) -> tuple[Ring, Flags]:
        """Return sums of the half of g and h by direct node, and which splits are legal."""
        layout, codes, n_direct = self.party.layout, self.party.codes, len(places.direct)
        n_codes = sum(bins + 1 for bins in layout.n_bins)
        sums = np.zeros((n_direct, n_codes, 3), dtype=np.uint64)
        may = np.zeros((places.n_nodes, layout.n_slots), dtype=bool)
        for t in places.trees(own):
            # Trees do not share nodes.
            at = renumbered(places.node[t], places.direct, places.n_nodes)
            sums += code_sums(layout, codes, at, half[:, t], n_direct)
            inside = np.bincount(places.node[t] + 1, minlength=places.n_nodes + 1)[1:] > 0
            may[inside] = np.repeat(places.usable(t, own), layout.widths)
        counts = with_siblings(sums[..., 2], direct, parent, np.asarray(self.state[_COUNTS]))
        self.state[_COUNTS] = counts
        legal = legal_of(layout, counts[places.active], least) & may[places.active][..., None]
        return np.stack([to_sent(layout, sums[..., what]) for what in (0, 1)]), legal

    # -- as helper ---------------------------------------------------------------------------

    def _help(
        self,
        names: list[str],
        layouts: list[SlotLayout],
        tags: list[bytes],
        helps: list[int],
        places: "Places",
        half: Ring,
    ) -> Ring:
        """Return what the slots of those that it helps are short of, (2, n_direct, n_helped)."""
        found = []
        for k in helps:
            name, width = names[k], layouts[k].n_sent
            if name == self.name:
                raise ProtocolError(f"party {self.name!r} cannot help itself")
            blocks = self._stream_of(name, half.shape[-1], width, tags[k])
            found.append(places.dense(k, half, blocks, width))
        return np.concatenate(found, axis=2)

    def _stream_of(self, name: str, n_rows: int, width: int, tag: bytes) -> Matrix:
        """Return the key stream of a party's slots, kept in memory where there is room."""
        keys = KeyStream(self.other(GroupKeySteps).seed, stream_label(name), (n_rows, width), tag)
        if 8 * n_rows * width > _HOLD_BYTES:
            return keys
        key = f"trees.stream {name}"
        if self.cache.get(key, (None,))[0] != tag:
            self.cache[key] = tag, keys.rows(0, n_rows)
        return np.asarray(self.cache[key][1])

    def _blinded(
        self,
        mine: Candidates,
        share_v: Ring,
        share_h: Ring,
        at: Indices,
        factors: Factors,
        limits: Array,
        ranked: bool,
    ) -> Ring:
        """Return blinded shares of the candidates of those that it helps, at their places."""
        none = np.zeros(len(share_h), dtype=np.uint64)
        numerator, left = mine.sums(share_v, none), mine.sums(share_h, none)
        blinded = factors.blinded(numerator, left, left if ranked else -left, at)
        seed = self.party.secret_bytes("noise of gains")
        least = np.array([[N_NOISE], [1.0]])
        return np.asarray(blinded + noise(seed, limits * least, len(at)))


def check_tag(party: Any, tag: bytes) -> None:
    """Refuse to work for columns that changed after they were sent."""
    if tag != party.tag:
        raise ProtocolError(
            f"party {party.name!r}: its columns are no longer those that it sent; a key stream "
            "hides one content only, so start again"
        )


def with_siblings(direct_sums: Ring, direct: Indices, parent: Indices, above: Ring) -> Ring:
    """Return sums of all nodes of a level from those of one child of each parent.

    Shapes: direct_sums (n_direct, n_slots); above (n_parents, n_slots): of the level before.
    """
    out = np.empty((len(parent), direct_sums.shape[1]), dtype=direct_sums.dtype)
    known = np.flatnonzero(direct >= 0)
    out[known] = direct_sums
    rest = np.flatnonzero(direct < 0)
    if len(rest):
        of_rest = parent[rest]
        fits = of_rest.min() >= 0 and of_rest.max() < len(above)
        if not (fits and rest.max() ^ 1 < len(parent) and (direct[rest ^ 1] >= 0).all()):
            raise ProtocolError(
                f"sums of nodes {rest.tolist()[:5]} do not follow from a level of {len(above)} "
                f"nodes: their parents are {of_rest.tolist()[:5]}, and each needs a sibling whose "
                "sums are made"
            )
        out[rest] = above[parent[rest]] - out[rest ^ 1]
    return out


def stream_label(owner: str) -> str:
    """Return the label of the key stream of a party's slots."""
    return f"tree slots of {owner}"
