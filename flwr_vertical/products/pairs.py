"""Pairwise moments: products of two parties' columns over the rows that both hold.

Columns are 0 in rows that a party lacks. So one opening over all rows gives, for each pair of
parties, the sums over the rows that both hold, whatever the pattern of rows is; a party's own
products are over its own rows. Each number that is opened is a sum over one set of rows, and no
group of rows with one pattern is told of.

=============  ====================================================================================
round          what travels
=============  ====================================================================================
send_masked    see `masked`
open_pairs     down: which rows take part, and who holds them; up: a private sum of small matrices,
               and each party's own moments
=============  ====================================================================================

A party's rules (`ToldRows.admit_pairs`): its own rows, those that it shares with each other party,
and the differences of any two of these sets, are none or enough, within a run; with what was told
before, its own rows and those shared with one party are, over all runs. No sums over these sets
together are over fewer rows, in a run and over all runs. Relations between columns
of three other parties are not looked at.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Integers, Ring
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node import Summands, step
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.privacy_ledger.row_sets import told_alone
from flwr_vertical.products import arithmetic
from flwr_vertical.products.columns import own_moments
from flwr_vertical.products.group_key import GroupKeySteps
from flwr_vertical.products.masked import PrivateProducts, PrivateProductSteps
from flwr_vertical.products.moments import Moments
from flwr_vertical.products.pair_keys import Widths
from flwr_vertical.products.row_groups import distinct_rows
from flwr_vertical.products.sent_rows import SENDING
from flwr_vertical.products.streams import KeyStream, cancelling_pad
from flwr_vertical.protocol.arguments import DISTINCT, Shape, Within
from flwr_vertical.protocol.declaration import ONE, ROWS, Protocol, Round

PAIRS_OPENING = Protocol(
    Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
    SENDING,
    Round("open_pairs", "sums of products of columns, over own and over shared rows", tells=ROWS),
)
"""What pairwise moments exchange, once the parties' public keys are known."""


class PairProductSteps(PrivateProductSteps):
    """A party's half of pairwise moments."""

    @step
    def open_pairs(
        self,
        limbs: Annotated[int, Within(1, 2)],
        names: Annotated[list[str], Within(2, "n_parties"), DISTINCT],
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        taken: Annotated[Flags, Shape("n_samples")],
        held: Annotated[Flags, Shape("n_samples", "names")],
        together: Annotated[Flags, Shape("names", "names")],
    ) -> Summands:
        """Send what lets the server open pairwise moments, and nothing else.

        Message: limbs, names, widths, tags: as of `open_products`; taken (n_samples,): the rows
        that take part; held (n_samples, n_parties): which parties hold each row; together
        (n_parties, n_parties): products of which parties are wanted; returns, summed,
        ``corrections`` (1, limbs, n_columns, n_columns), uint64; publicly the ``sums`` (1, n_own)
        and ``products`` (1, n_own, n_own) of the own columns over the own rows, which of them are
        ``withheld`` (1, n_own), their ``scale``, and ``apart`` (n_parties, n_own): those of which
        nothing is told with a party's columns.
        """
        seed = self.other(GroupKeySteps).seed
        encoded, tag = self._encoded(limbs)
        place = arithmetic.own_place(self.name, names, widths, len(encoded.scale))
        if tags[place] != tag:
            raise ProtocolError(
                f"party {self.name!r}: the server asks for products of other columns than those "
                f"that this party sent for {self._purpose!r}"
            )
        others = np.asarray(together)[place] | np.asarray(together)[:, place]
        widths_of = dict(zip(names, widths, strict=True))
        withheld, _, apart = self._told.admit_pairs(encoded.held, widths_of, taken, held, others)
        layout = arithmetic.Layout(widths_of, limbs)
        streams = {
            name: KeyStream(seed, self._label(name), (len(taken), limbs * width), tag)
            for name, width, tag in zip(names, widths, tags, strict=True)
        }
        group, total = np.where(taken, 0, -1), layout.zeros(1)
        for start, stop, groups in arithmetic.blocks_by_group(group, 1):
            masks = {name: stream.rows(start, stop) for name, stream in streams.items()}
            own = encoded.rows(start, stop)
            total += arithmetic.corrections(self.name, own, masks, layout, groups, place == 0)
        asked = repr((limbs, names, widths, tags)).encode()
        asked += b"".join(np.asarray(flags).tobytes() for flags in (taken, held, together))
        self._blind(total, layout, withheld, seed, asked, apart)
        public = {
            **own_moments(encoded.held, group, withheld),
            "withheld": withheld,
            "scale": np.where(withheld.all(axis=0), 1.0, encoded.scale),
            "apart": apart,
        }
        return Summands({"corrections": total}, public, modular=("corrections",))

    def bound_to(self, label: str, shape: tuple[int, ...], arguments: Mapping[str, Any]) -> Ring:
        """Return a pad that cancels in the sum over the parties if all were asked the same.

        label: names what is hidden; arguments: of `open_pairs`.
        """
        names = arguments["names"]
        asked = hashlib.sha256(
            repr([arguments[key] for key in ("names", "widths", "tags")]).encode()
        )
        for key in ("taken", "held", "together"):
            asked.update(np.ascontiguousarray(arguments[key]).tobytes())
        seed, digest = self.other(GroupKeySteps).seed, asked.hexdigest()
        return cancelling_pad(seed, label, digest, names, self.name, shape)


@dataclass(frozen=True)
class PairMoments:
    """Sums over own rows, and over rows that two parties share."""

    sums: Array  # (n_columns,): of each column, over the rows of its party
    # (n_columns, n_columns): of products of two, over the rows that both parties hold; else 0
    products: Array
    n_rows: Integers  # (n_parties, n_parties): rows that two share; on the diagonal, of each
    withheld: Flags  # (n_columns,): columns of which nothing is told
    # (n_columns, n_parties): columns whose products with those of a party are not known
    apart: Flags
    n_left_out: int  # Rows that take no part: what sets differ by would be few
    # All that was summed, and told by each party, also what a strategy's own step added
    summed: dict[str, Any] = field(default_factory=dict)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))  # See `rows_beside`


class PairProducts(PrivateProducts):
    """Pairwise moments of the parties' columns; parameters as of `PrivateProducts`."""

    @property
    def widths(self) -> dict[str, int]:
        """How many columns each party sent."""
        return {name: self._n_columns[name] for name in self.federation.parties}

    @property
    def tags(self) -> list[bytes]:
        """Of each party, the tag of what it sent."""
        return [self._tags[name] for name in self.federation.parties]

    def pairs(
        self, held: Flags, beside: Flags | None = None, n_beside: Sequence[int] = ()
    ) -> PairMoments:
        """Open products over all rows that two parties share; one round.

        Shapes: held (n_samples, n_parties): which parties hold each row; beside (n_samples,): rows
        over which, and over the others, `n_beside` sums of each party will be told, see
        `rows_beside`. Where that leaves less than half of them, the others take no part at all.
        """
        names = self.federation.parties
        widths = np.array(list(self.widths.values()))
        most = [int(widths[k] + np.delete(widths, k).max()) for k in range(len(names))]
        own = np.array([self._fewest(name, most[k]) for k, name in enumerate(names)])
        if n_beside:
            fewest = [self._fewest(name, n) for name, n in zip(names, n_beside, strict=True)]
            own = np.maximum(own, fewest)
        both = np.maximum(own[:, None], own)
        for a, b in np.ndindex(both.shape):
            needed = (self._fewest(names[k], int(widths[a] + widths[b])) for k in (a, b))
            both[a, b] = max(*needed, 10 * int(widths[a]), 10 * int(widths[b]))
        taken, together = plan_pairs(held, own, both)
        alone = np.eye(len(names), dtype=bool)
        rows = np.zeros(len(held), dtype=bool)
        if beside is not None and together.any():
            rows = rows_beside(held & taken[:, None], own, together | alone, beside)
            n_others = int((held.any(axis=1) & ~beside).sum())
            if 2 * (rows & beside).sum() < beside.sum() and 0 < n_others < beside.sum():
                return self.pairs(held & beside[:, None], beside, n_beside)
        if not together.any():
            shared = np.where(alone, 0, held.T.astype(np.int64) @ held.astype(np.int64))
            a, b = np.unravel_index((shared / both).argmax(), shared.shape)
            each = "; each level of a text is a column" if widths.max() > 10 else ""
            raise DataError(
                "no two parties share enough rows for products of their columns: they share at "
                f"most {int(shared[a, b]):,}, and need {int(both[a, b]):,} (of {names[a]!r} with "
                f"{counted(int(widths[a]), 'column')} and {names[b]!r} with {int(widths[b]):,}"
                f"{each}; sets of few rows that the same parties hold are left out). Check that "
                "sample IDs match, leave out columns, such as texts of many levels, or lower "
                "'min-rows' in the node configs, if the parties agree"
            )
        counts = held[taken].T.astype(np.int64) @ held[taken].astype(np.int64)
        layout = arithmetic.Layout(self.widths, self.limbs)
        common = {
            "limbs": self.limbs,
            "names": names,
            "widths": widths.tolist(),
            "tags": self.tags,
            "taken": taken,
            "held": held,
            "together": together,
        }
        total = self.federation.sum("open_pairs", common)
        self._ask_again_if_resumed()
        group, bits = np.where(taken, 0, -1), arithmetic.fraction_bits(len(taken))
        found = self.federation.keep(
            "pairs", lambda: self._open(total, group, 1, layout, bits, {}, {}, np.zeros(0))
        )
        opened = Moments(**found)
        said = [np.asarray(total.public[name]["apart"], dtype=bool).T for name in names]
        party = np.repeat(np.arange(len(names)), widths)
        apart = np.concatenate(said) | ~(together | alone)[party]
        products = np.where(unknown_products(party, apart), 0.0, opened.products[0])
        return PairMoments(
            opened.sums[0], products, counts, opened.withheld[0], apart, int((~taken).sum()),
            total.values, dict(total.public), rows,
        )  # fmt: skip

    def _fewest(self, name: str, n_columns: int) -> int:
        from_policy = self._minima.get(name)
        return min_rows(n_columns, 0) if from_policy is None else from_policy


def unknown_products(party: Indices, apart: Flags) -> Flags:
    """Tell which products of two columns are not known, as one is apart from the other's party.

    Shapes: party (n_columns,): whose each column is; apart (n_columns, n_parties); returns
    (n_columns, n_columns).
    """
    found = apart[:, party]
    return np.asarray(found | found.T)


def plan_pairs(held: Flags, own: Integers, both: Integers) -> tuple[Flags, Flags]:
    """Choose rows and pairs so that no party tells of few rows by what two sets of rows differ in.

    Where such a difference is small, its rows are left out, or a pair of parties is not opened:
    whichever loses less. A pair counts 1, rows count their share of each pair that is opened.

    Shapes: held (n_samples, n_parties): which parties hold each row; own (n_parties,): the fewest
    rows of a difference, of each party; both (n_parties, n_parties): of a set that two share;
    returns (n_samples,): rows that take part; returns (n_parties, n_parties): which pairs are
    opened, False on the diagonal.
    """
    n_parties = held.shape[1]
    kinds, kind, counts = distinct_rows(held)
    kept: Flags = np.asarray(kinds.any(axis=1))
    together = ~np.eye(n_parties, dtype=bool)
    while True:
        shared = np.einsum("gk,gl,g->kl", kinds, kinds, counts * kept)
        together &= shared >= both
        smallest: tuple[int, Flags, list[tuple[int, int]]] | None = None
        for k in range(n_parties):
            others = np.flatnonzero(together[k]).tolist()
            for j, m in itertools.product([k, *others], others):
                few = np.asarray(kinds[:, k] & kinds[:, j] & ~kinds[:, m] & kept)
                size = int(counts[few].sum())
                if 0 < size < own[k] and (smallest is None or size < smallest[0]):
                    smallest = size, few, [(k, i) for i in {j, m} - {k}]
        for k in np.flatnonzero(together.any(axis=1)).tolist() if smallest is None else ():
            others, mine = np.flatnonzero(together[k]).tolist(), kinds[:, k] & kept
            size, few = told_alone(kinds[:, [k, *others]], counts * mine, int(own[k]))
            if size and (smallest is None or size < smallest[0]):
                smallest = size, few & mine, [(k, i) for i in others]
        if smallest is None:
            return kept[kind], together
        _, lone, pairs = smallest
        lost = sum(
            counts[lone & kinds[:, a] & kinds[:, b]].sum() / shared[a, b]
            for a, b in np.argwhere(np.triu(together))
        )
        if lost < 1.0:
            kept &= ~lone
        else:
            a, b = min(pairs, key=lambda pair: shared[pair])
            together[a, b] = together[b, a] = False


def rows_beside(held: Flags, own: Integers, known: Flags, marked: Flags) -> Flags:
    """Choose rows over which sums may be told of those marked, and of those not, beside products.

    Of the rows that a party holds, or shares with another, and not with a third, the marked, the
    others and those not chosen are none or enough. All rows that the same parties hold are chosen
    or none: products are over all of them.

    Shapes: held (n_samples, n_parties): which parties hold each row that takes part; own
    (n_parties,): as of `plan_pairs`; known (n_parties, n_parties): whose products are opened;
    marked (n_samples,); returns (n_samples,).
    """
    kinds, kind, counts = distinct_rows(held)
    with_mark = np.bincount(kind, marked, len(kinds)).astype(np.int64)
    without = np.column_stack([~kinds, np.ones(len(kinds), dtype=bool)])
    chosen, before = np.asarray(kinds.any(axis=1)), -1
    while before != (before := int(chosen.sum())):
        for k, j in np.argwhere(known):
            for m in [*np.flatnonzero(known[k] & (np.arange(len(own)) != k)), -1]:
                rows = kinds[:, k] & kinds[:, j] & without[:, m]
                for number in (with_mark, counts - with_mark):
                    if 0 < number[rows & chosen].sum() < own[k]:
                        chosen &= ~(rows & (number > 0))
                if 0 < counts[rows & ~chosen].sum() < own[k]:
                    chosen &= ~rows
    return np.asarray(chosen[kind])
