"""Shares of the sums that splits are judged by, made at the owners of columns and their helpers.

The server sends ``v + rho`` to the owner of the columns X and the seed of rho to a helper. It has
``U = X + R``, and the helper knows the key stream R. With a pad s of the two,

    A = X'(v + rho) - s    goes to the server,    B = R'rho + s    stays with the helper,

and ``A - U'rho`` at the server and B are shares of ``X'v``. B travels to the arbiter alone, blinded
and under pads that the server does not know; with open histograms it goes to the server as it is.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flwr_vertical import StepGroup, step
from flwr_vertical.crypto.sealed_box import seal
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.record import key_of
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.arithmetic import helpers, own_place
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.streams import SEED_BYTES, KeyStream, stream
from flwr_vertical.protocol.arguments import DISTINCT, OWN, AddsUpTo, Is, Shape, Within, check_fits
from strategies.trees.arbiter import PADS, ParcelSteps, pack, place_of, under_cancelling_bits
from strategies.trees.blinding import Factors, coarse, noise, to_wire
from strategies.trees.gain import candidates, of_slots
from strategies.trees.node_sums import (
    Blocks,
    Indices,
    InMemory,
    Ring,
    Streamed,
    code_sums,
    dense_sums,
    legal_of,
    to_slots,
)
from strategies.trees.routing import count_order, count_winners

Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]
UnsignedRing: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

HISTOGRAMS = "histograms"
"""The exchange in which the server sees sums of gradients over the slots of every node."""

HIDING = "hiding histograms (histograms='open' shows them to the server, if every node agrees)"
"""What needs an arbiter, as errors say it."""

# Under a prefix that the server may not write to.
_MASKED_H, _RHO_H, _BELOW_H = (f"node.trees.{what}" for what in ("masked-h", "rho-h", "helped-h"))
_HOLD_BYTES = 1 << 29  # of key streams that a helper keeps in memory


class ShareSteps(StepGroup):
    """A party's shares, as owner and as helper; the party has `codes`, `layout` and `tag`."""

    party: Any

    @step
    def share(
        self,
        names: Names,
        widths: Annotated[Widths, AddsUpTo("observed")],
        tags: Annotated[list[bytes], Within("names", "names")],
        observed: Annotated[Indices, Within(0, "observed - 1")],
        node: Annotated[Numbers, Shape(None, "n_samples"), Within(-1, "direct - 1")],
        direct: Annotated[Indices, Within(-1, "direct - 1")],
        parent: Annotated[Indices, Shape("direct"), Within(-1, 2**31)],
        active: Annotated[Indices, DISTINCT, Within(0, "direct - 1")],
        usable: Annotated[npt.NDArray[np.uint8], Shape(None, "observed"), Within(0, 1)],
        min_child: Annotated[int, Is("min_child")],
        masked_v: Annotated[UnsignedRing, OWN, Shape("node", "n_samples")],
        rho_v: Annotated[bytes, OWN] = b"",
        masked_h: Annotated[UnsignedRing | None, OWN, Shape("node", "n_samples")] = None,
        rho_h: Annotated[bytes, OWN] = b"",
        limits: Annotated[npt.NDArray[np.float64] | None, Shape(2, "active")] = None,
        order: bytes = b"",
        ranked: bool = False,
    ) -> dict[str, Any]:
        """Make the shares of one level.

        Message: names, widths, tags: every party's name, number of slots, and tag of its codes;
        observed (n_slots,): of each slot of all parties, that of its column's observed rows; node
        (n_trees, n_samples): number of the node that each row of the fit is in, -1 for none;
        direct (n_nodes,): numbers of the nodes whose sums of h are made; -1 where they follow from
        those of the parent and of the sibling, the node next to it; parent (n_nodes,): place of
        each node's parent in the level before; -1 at the roots; active (n_active,): nodes that may
        be split; usable (n_trees, n_slots): slots of all parties whose columns each tree may use;
        one line if all trees may use the same; min_child: the fewest rows of a node; masked_v,
        masked_h (n_trees, n_samples): v and h under rho; h comes with the first level of a tree;
        rho_v, rho_h: at a helper, the seed of the rho of those that it helps; limits, order: see
        `Factors`; without them histograms are opened; ranked: whether the arbiter is to learn
        ratios of v and h over single levels, in place of gains; returns ``number`` of the message;
        ``owner_v`` of shape (n_active, n_own) and ``owner_h`` of shape (n_direct, n_own), the own
        shares; and either ``parcel``, sealed for the arbiter: a share of the marks of legal
        candidates, and the seed of the pads; and at a helper ``blinded`` of shape (3, n_active,
        2 * n_helped, 5), see `blinding`; or ``legal`` of shape (n_active, n_own, 2), and at a
        helper ``helper_v`` and ``helper_h`` of shape (n_active, n_helped).
        """
        if limits is None:
            self.party.open_exchange(
                HISTOGRAMS, "sums of gradients over the bins of its columns, in every node"
            )
        own = own_place(self.name, names, widths, self.party.layout.n_slots)
        check_tag(self.party, tags[own])
        check_fits(self.name, "usable", usable, Shape(len(node) if len(usable) > 1 else 1, None))
        helper = helpers(names)
        if masked_h is not None:
            self.state[_MASKED_H] = np.asarray(masked_h)
            self.state[_RHO_H] = rho_h
            self.state[_BELOW_H] = np.zeros((0, 0), dtype=masked_h.dtype)
        places = Places.of(np.asarray(node), direct, active, np.asarray(usable), widths)
        if masked_h is not None:
            self._check_rows(places, own)
        if limits is not None:
            count_winners(self.party, places.node, self.party.layout, sum(widths))
            if ranked:
                count_order(self.party, places.node, self.party.layout)
        parcels, seed = self.other(ParcelSteps), self.other(GroupKeySteps).seed
        number, asked = parcels.number, self.party.services.binding().hex()

        def pad(what: str, owner: str, shape: tuple[int, int]) -> Ring:
            # An owner and a helper who are told different things draw pads that do not cancel.
            label = f"tree pad {what} {owner!r} {helper[owner]!r} {number} {asked}"
            return stream(seed, label, shape).astype(masked_v.dtype, copy=False)

        told: dict[str, Any] = {"number": number}
        least = max(min_child, self.party.policy.min_rows or 1)
        sums_v, sums_h, legal = self._own_sums(places, own, np.asarray(masked_v), least)
        told["owner_v"] = sums_v - pad("v", self.name, sums_v.shape)
        told["owner_h"] = sums_h - pad("h", self.name, sums_h.shape)
        helped = self._help(names, widths, tags, helper, places, rho_v, pad)
        if helped is not None:
            above = np.asarray(self.state[_BELOW_H])
            self.state[_BELOW_H] = with_siblings(helped[1], direct, parent, above)
            helped = helped[0], np.asarray(self.state[_BELOW_H])[active]
        starts = np.concatenate([[0], np.cumsum(widths)])
        place = slice(int(starts[own]), int(starts[own + 1]))
        if limits is None:
            told["legal"] = legal
            if helped is not None:
                told["helper_v"], told["helper_h"] = helped
            return told
        factors = Factors.of(order, limits, 2 * int(starts[-1]))
        every = np.zeros((len(legal), int(starts[-1]), 2), dtype=bool)
        every[:, place] = legal
        placed = factors.placed(every.reshape(len(legal), -1))
        marks = under_cancelling_bits(placed, seed, "tree marks", number, own, len(names))
        # The arbiter refuses to compare where parties were told different things.
        pads = stream(seed, f"tree parcels {number} {asked}", (SEED_BYTES // 8,))
        if helped is not None:
            mine = np.flatnonzero(np.repeat([helper[n] == self.name for n in names], widths))
            blinded = self._blinded(mine, helped, observed, factors, limits, ranked)
            every_pad = stream(pads.tobytes(), PADS, (3, *factors.order.shape))
            blinded += factors.unplaced(every_pad)[:, :, of_slots(mine)]
            told["blinded"] = to_wire(coarse(blinded))
        told["parcel"] = seal(parcels.shared, pack(marks, pads), place_of(self.name, number))
        return told

    def forget(self) -> None:
        """Drop what is kept between the levels of a tree."""
        for key in (_MASKED_H, _RHO_H, _BELOW_H):
            self.state.pop(key, None)

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
        self, places: "Places", own: int, masked_v: Ring, least: int
    ) -> tuple[Ring, Ring, npt.NDArray[np.bool_]]:
        """Return sums of v by active node, of h by direct node, and which splits are legal."""
        layout, codes = self.party.layout, self.party.codes
        masked_h = np.asarray(self.state[_MASKED_H])
        width, n_nodes, dtype = layout.n_slots, places.n_nodes, masked_v.dtype
        v = np.zeros((n_nodes, width), dtype=dtype)
        h, legal = np.zeros_like(v), np.zeros((n_nodes, width, 2), dtype=bool)
        ones = np.ones(codes.shape[0], dtype=dtype)
        for t in places.trees(own):
            vectors = np.stack([masked_v[t], masked_h[t], ones], axis=1)
            sums = code_sums(layout, codes, places.node[t], vectors, n_nodes)
            # Trees do not share nodes.
            v += to_slots(layout, sums[..., 0])
            h += to_slots(layout, sums[..., 1])
            legal |= legal_of(layout, sums[..., 2], least) & places.usable(t, own)[:, None]
        return v[places.active], h[places.direct], legal[places.active]

    # -- as helper ---------------------------------------------------------------------------

    def _help(
        self,
        names: list[str],
        widths: list[int],
        tags: list[bytes],
        helper: dict[str, str],
        places: "Places",
        rho_v: bytes,
        pad: Any,
    ) -> tuple[Ring, Ring] | None:
        """Return the shares of the slots of those that this party helps; None if it helps none."""
        if not rho_v:
            return None
        n_rows, dtype = places.node.shape[1], np.asarray(self.state[_MASKED_H]).dtype
        rho = [
            stream(seed, "rho", places.node.shape).astype(dtype, copy=False)
            for seed in (rho_v, bytes(self.state[_RHO_H]))
        ]
        found: tuple[list[Ring], list[Ring]] = [], []
        for k, (name, width, tag) in enumerate(zip(names, widths, tags, strict=True)):
            if helper[name] != self.name:
                continue
            if name == self.name:
                raise ProtocolError(f"party {self.name!r} cannot help itself")
            blocks = self._stream_of(name, n_rows, width, tag, dtype)
            sums = dense_sums(blocks, width, places.parts(k, rho[0], rho[1]))
            for what, own, out in zip("vh", sums, found, strict=True):
                out.append(own + pad(what, name, own.shape))
        return np.concatenate(found[0], axis=1), np.concatenate(found[1], axis=1)

    def _stream_of(
        self, name: str, n_rows: int, width: int, tag: bytes, dtype: npt.DTypeLike
    ) -> Blocks:
        """Return the key stream of a party's slots, kept in memory where there is room."""
        keys = KeyStream(self.other(GroupKeySteps).seed, stream_label(name), (n_rows, width), tag)
        streamed = Streamed(keys, dtype).rows
        if n_rows * width * np.dtype(dtype).itemsize > _HOLD_BYTES:
            return streamed
        key, content = f"trees.stream {name}", (tag, np.dtype(dtype))
        if self.cache.get(key, (None,))[0] != content:
            self.cache[key] = content, InMemory(streamed(0, n_rows))
        held: InMemory = self.cache[key][1]
        return held.rows

    def _blinded(
        self,
        mine: Indices,
        helped: tuple[Ring, Ring],
        observed: Indices,
        factors: Factors,
        limits: npt.NDArray[np.float64],
        ranked: bool,
    ) -> Ring:
        """Return blinded shares of the candidates of `mine`, (n_helped,): slots that it helps."""
        inside = np.minimum(np.searchsorted(mine, observed[mine]), len(mine) - 1)
        if (mine[inside] != observed[mine]).any():
            raise ProtocolError(
                f"party {self.name!r}: argument 'observed' takes the slots of a party apart; "
                "expected, of each slot, the last one of its column"
            )
        left, at = candidates(helped[1], inside), of_slots(mine)
        numerator = candidates(helped[0], inside)
        blinded = factors.blinded(numerator, left, left if ranked else -left, at)
        seed = self.party.secret_bytes("noise of gains")
        return np.asarray(blinded + noise(seed, limits, len(at)))


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


@dataclass(frozen=True)
class Places:
    """Where rows are summed up: their nodes, and which trees may use a party's columns."""

    node: Indices  # (n_trees, n_rows): number of each row's node, -1 for none
    n_nodes: int
    active: Indices  # (n_active,): nodes of which there are sums of v
    direct: Indices  # (n_direct,): nodes of which there are sums of h
    # (n_trees or 1, n_own_slots): of each party, which of its slots each tree may use
    slots: list[npt.NDArray[np.bool_]]

    @classmethod
    def of(
        cls,
        node: Indices,
        direct: Indices,
        active: Indices,
        usable: npt.NDArray[np.uint8],
        widths: list[int],
    ) -> "Places":
        """Take the arguments of `ShareSteps.share`."""
        slots = np.split(usable.astype(bool), np.cumsum(widths)[:-1], axis=1)
        return cls(node, len(direct), active, np.flatnonzero(direct >= 0), slots)

    def usable(self, tree: int, party: int) -> npt.NDArray[np.bool_]:
        """Return which of a party's slots a tree may use."""
        own = self.slots[party]
        return np.asarray(own[tree % len(own)])

    def trees(self, party: int) -> list[int]:
        """Return the trees that may use any column of a party: no others have sums of its slots."""
        return [t for t in range(len(self.node)) if self.usable(t, party).any()]

    def parts(self, party: int, v: Ring, h: Ring) -> list[tuple[Indices, Ring, int]]:
        """Return what `dense_sums` makes for a party's slots of vectors, (n_trees, n_rows) each."""
        trees = self.trees(party)
        return [
            (renumbered(self.node[trees], kept, self.n_nodes), vector[trees], len(kept))
            for kept, vector in ((self.active, v), (self.direct, h))
        ]


def renumbered(node: Indices, kept: Indices, n_nodes: int) -> npt.NDArray[np.int32]:
    """Return the place of each row's node among `kept`, -1 for rows in none of these."""
    number = np.full(n_nodes + 1, -1, dtype=np.int32)  # the last entry is that of -1
    number[kept] = np.arange(len(kept))
    return number[node]
