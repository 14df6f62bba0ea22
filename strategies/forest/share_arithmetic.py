"""Shares of the products of slots with the labels, dealt once: the arithmetic.

A forest's targets never change. So the product of each slot's indicator X (0 or 1 for each row)
with the target y of the row, of which every node's sums are made, can be shared element by element
between the owner of the column and its helper, and the server has no part in what follows. With
R the key stream of all parties, rho and P streams of the server's:

    owner k     knows X, R, P and  y + rho      Z = -R (y + rho) - P
    helper l    knows R, rho   and  W           V = W + R rho
    server      knows U = X + R, y, rho, P      W = U y + P,  sent to the helper

and ``Z + V = X y`` modulo 2^64. Both know which rows are in a node, so each adds its share up over
these rows. A last column has shares of y itself, ``y + rho`` and ``-rho``: totals of nodes, and the
sums of leaves.

Z is hidden from the helper by P, W from it by P, y from the owner by rho; U from the server by R.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import StepGroup, step
from flwr_vertical.errors import ProtocolError, StateLostError
from flwr_vertical.products import GroupKeySteps
from flwr_vertical.products.arithmetic import helpers, own_place
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.streams import KeyStream, stream
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits
from strategies.forest.gain_messages import Used
from strategies.trees.node_sums import BLOCK_BYTES, Indices, Matrix, Ring, block_of, dense_sums
from strategies.trees.secret_shares import check_tag, stream_label


def dealt(masked: Matrix, width: int, target: Ring, pad: Matrix) -> Ring:
    """Return ``W = U y + P``, y being 0 where a row has no label; the server's part."""
    out = np.empty((len(target), width), dtype=np.uint64)
    for start, stop in _blocks(out.shape):
        np.multiply(block_of(masked, start, stop), target[start:stop, None], out=out[start:stop])
        out[start:stop] += block_of(pad, start, stop)
    return out


def owner_matrix(width: int, stream: Matrix, pad: Matrix, masked_target: Ring) -> Ring:
    """Return ``Z``, and ``y + rho`` as its last column, (n_rows, width + 1)."""
    out = np.empty((len(masked_target), width + 1), dtype=np.uint64)
    for start, stop in _blocks(out.shape):
        own = out[start:stop, :width]
        np.multiply(block_of(stream, start, stop), masked_target[start:stop, None], out=own)
        own += block_of(pad, start, stop)
        np.negative(own, out=own)
    out[:, width] = masked_target
    return out


def helper_matrix(dealt: Ring, widths: Sequence[int], streams: Sequence[Matrix], rho: Ring) -> Ring:
    """Return ``V`` of all that a party helps, side by side, and ``-rho`` as the last column.

    Shapes: dealt (n_rows, n_helped): ``W`` of the owners, side by side; rho (n_rows,); returns
    (n_rows, n_helped + 1).
    """
    out = np.empty((len(rho), dealt.shape[1] + 1), dtype=np.uint64)
    at = 0
    for width, key_stream in zip(widths, streams, strict=True):
        for start, stop in _blocks((len(rho), width)):
            own = out[start:stop, at : at + width]
            np.multiply(block_of(key_stream, start, stop), rho[start:stop, None], out=own)
            own += dealt[start:stop, at : at + width]
        at += width
    np.negative(rho, out=out[:, -1])
    return out


def node_sums(
    matrix: Matrix, width: int, node: Indices, weight: npt.NDArray[np.integer], counts: list[int]
) -> Ring:
    """Return weighted sums of a share's rows over the nodes of several trees, tree after tree.

    Shapes: matrix (n_rows, width): A share, uint64; node (n_trees, n_rows): place of each row's
    node among those of its tree, -1 for none; weight (n_trees, n_rows): how often each tree has
    each row; returns (sum of counts, width).
    """
    starts = np.cumsum([0, *counts])
    number = np.where(node >= 0, node + starts[:-1, None], -1)
    vectors = weight.astype(np.uint64)[None]
    return np.asarray(dense_sums(matrix, width, number, vectors, int(starts[-1]))[0])


def _blocks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    rows = max(1, BLOCK_BYTES // (8 * max(shape[1], 1)))
    return [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]


_SHARES, _IN_USE = "votes.shares", "votes.shares in use"  # in the cache: dealt anew where lost


class DealtSteps(StepGroup):
    """The party has `tag`, of its codes.

    Of the first two parties, see `helpers`, the second has ``y + rho`` and the first ``-rho``:
    shares of the targets, and so of leaves and votes.
    """

    party: Any

    @step
    def take_shares(
        self,
        deal: bytes,
        names: Names,
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        pad: Annotated[bytes, OWN],
        masked_target: Annotated[Ring, OWN, Shape("n_samples")],
        rho: Annotated[bytes, OWN] = b"",
        dealt: Annotated[Ring | None, OWN, Shape("n_samples", None)] = None,
    ) -> None:
        """Make the own shares of the products of slots and targets (`share_arithmetic`).

        Message: deal: names what is dealt; names, widths, tags: every party's name, number of
        slots, and tag of its codes; pad: seed of ``P`` for the own slots; masked_target
        (n_samples,): ``y + rho``, of a rho whose seed this party does not get; rho: at a helper,
        the seed of the other rho; dealt (n_samples, n_helped): at a helper, ``W`` of the parties
        that it helps, side by side, in the order of names.
        """
        own = own_place(self.name, names, widths, self.party.layout.n_slots)
        seed = self.other(GroupKeySteps).seed
        check_tag(self.party, tags[own])
        n_rows = len(masked_target)

        def key_stream(k: int) -> KeyStream:
            return KeyStream(seed, stream_label(names[k]), (n_rows, widths[k]), tags[k])

        pads = KeyStream(pad, "P", (n_rows, widths[own]))
        matrix = owner_matrix(widths[own], key_stream(own), pads, masked_target)
        helped = [k for k, name in enumerate(names) if helpers(names)[name] == self.name]
        streams, of = [key_stream(k) for k in helped], [widths[k] for k in helped]
        other = np.zeros((n_rows, 0), dtype=np.uint64) if dealt is None else np.asarray(dealt)
        check_fits(self.name, "dealt", other, Shape(n_rows, sum(of)))
        if helped:
            other = helper_matrix(other, of, streams, stream(rho, "rho", (n_rows,)))
        self.cache[_SHARES] = {"deal": deal, "own": matrix, "helped": other}

    def holds(self, deal: bytes) -> bool:
        """Return whether this party has the shares of that name; it forgets others."""
        self.cache.pop(_IN_USE, None)
        if self.cache.get(_SHARES, {}).get("deal") == deal:
            return True
        self.cache.pop(_SHARES, None)
        return False

    def in_use(self, used: Used) -> tuple[Ring, Ring]:
        """Return the shares as owner and as helper of the slots in use, without gaps."""
        if _IN_USE not in self.cache:
            found = []
            for part, columns in (("own", used.own), ("helped", used.helped)):
                whole = self._share(part)
                check_fits(self.name, "widths", columns, Within(0, whole.shape[1] - 1))
                found.append(whole if len(columns) == whole.shape[1] else whole[:, columns])
            self.cache[_IN_USE] = used, [np.ascontiguousarray(part) for part in found]
        first, (own, helped) = self.cache[_IN_USE]
        same = zip((first.own, first.helped), (used.own, used.helped), strict=True)
        if not all(np.array_equal(before, now) for before, now in same):
            raise ProtocolError(
                f"party {self.name!r}: argument 'usable' names other columns than on the "
                "first level of these trees; expected the same ones on all levels"
            )
        return own, helped

    def half(self, own: int) -> Ring | None:
        """Return the share of the targets, shape (n_samples, 1); None at parties without one."""
        if own > 1:
            return None
        return np.ascontiguousarray(self._share("own" if own else "helped")[:, -1:])

    def forget(self) -> None:
        """Drop the shares."""
        for key in (_SHARES, _IN_USE):
            self.cache.pop(key, None)

    def _share(self, part: str) -> Ring:
        if _SHARES not in self.cache:
            raise StateLostError(
                f"party {self.name!r}: its shares of the labels ended with its process, within a "
                "batch of trees; the run goes back to its last snapshot"
            )
        return np.asarray(self.cache[_SHARES][part])
