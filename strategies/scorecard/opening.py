"""The server half up to the fit: label sums by bin, merged bins, which rows take part."""

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.products.labels import Commitment
from flwr_vertical.products.row_groups import RowGroups, distinct_rows
from strategies.binning.label_sums import LabelSums
from strategies.linear.moments.collect import limbs_for
from strategies.linear.moments.groups import MinimumRows
from strategies.linear.problem import Problem
from strategies.normal.labelled_server import HandingOn, rows_of_large_sets
from strategies.scorecard.card import CardColumns


class BinnedColumns:
    """Has every party bin its columns, and tells it the weights of evidence.

    `commitment` is to the labels, that of all products of the run; `bins` are those of a column
    before they are merged; `share` is the smallest share of the rows in a merged bin.
    """

    columns: dict[str, CardColumns]  # By party
    fewest: int  # Rows of the smallest set with which evaluations count as vectors
    _who: Flags  # (n_labelled, n_parties): whose rows take part

    def __init__(
        self,
        commitment: Commitment,
        bins: int,
        special: tuple[float, ...],
        share: float,
        points_to_double: float,
    ) -> None:
        self._commitment, self._bins, self._special = commitment, bins, special
        self._share, self._double = share, points_to_double

    def rows(self, mask: Flags, widths: Integers, minimum: MinimumRows) -> RowGroups:
        """Take the rows of sets of parties that are large enough."""
        groups = rows_of_large_sets(mask, widths, minimum)
        taken = groups.group >= 0
        self._who = ~mask & taken[:, None]
        self.fewest = int(distinct_rows(mask[taken])[2].min())
        return groups

    def __call__(
        self,
        federation: Federation,
        pairs: PairKeys,
        problem: Problem,
        groups: RowGroups,
        result: Result,
    ) -> GroupKey:
        """Have bins opened; three rounds. Returns the key that hands on what is made of them."""
        y, names = problem.y, federation.parties
        labels = np.full(len(problem.labelled) + len(problem.free), np.nan)
        labels[problem.labelled] = y
        key = HandingOn(federation, pairs)
        key.further = {}
        limbs = limbs_for(len(y), problem.n_columns)
        sums = LabelSums(federation, key, limbs)
        sums.commitment = self._commitment
        left_out = np.zeros(len(labels), dtype=bool)
        left_out[problem.labelled] = groups.group < 0
        sums.send_bins(labels, self._bins, self._special, left_out=left_out)
        opened, event = sums.open_bins(), y == y.max()
        self.columns, further = {}, {}
        taken = groups.group >= 0
        for k, name in enumerate(names):
            own = opened[name]
            events = np.rint((own.sums - y.min() * own.counts) / (y.max() - y.min()))
            sets = [self._who[:, k], taken & ~self._who[:, k]]
            held, lacked = ((float(rows.sum()), float(event[rows].sum())) for rows in sets)
            lacks = bool(problem.mask[:, k].any())
            card = CardColumns.of(
                own, events, self._share, held=held, lacked=lacked, has_block=lacks
            )
            if card.names != problem.columns[name]:
                raise DataError(
                    f"party {name!r} has the columns {card.names}, and said {problem.columns[name]}"
                )
            self.columns[name] = card
            further[name] = {
                "who": self._who.view(np.uint8),
                "evidence": card.evidence,
                "merged": np.concatenate(card.merged).astype(np.int64),
                "block": card.block,
                "points_to_double": self._double,
            }
            self._note_withheld(name, card, result)
        self._check_points()
        key.further = further
        return key

    def _check_points(self) -> None:
        """Refuse where no column, nor who holds a row, tells of the labels."""
        cards = self.columns.values()
        if any(card.evidence.any() or card.block.any() for card in cards):
            return
        withheld = [gone for card in cards for gone in card.opened.withheld]
        hidden = sum(withheld)
        why = []
        if hidden:
            why.append(
                f"{hidden} of {len(withheld)} are withheld, since too few labelled rows to be "
                "told of are in one of their bins, and what earlier runs told of these rows "
                "counts (strategy 'explore' with labels tells of bins, too)"
            )
        if hidden < len(withheld):
            why.append(
                f"{len(withheld) - hidden} have one bin, as bins of few rows or events are merged"
            )
        raise DataError(
            f"no column has points: {'; '.join(why)}. Fit on more rows or with fewer bins, "
            "explore without labels, or have the nodes lower 'min-rows' in their node configs "
            "(simulate(min_rows=...))"
        )

    def _note_withheld(self, name: str, card: CardColumns, result: Result) -> None:
        columns = zip(card.opened.columns, card.opened.withheld, strict=True)
        hidden = [column for column, gone in columns if gone]
        if hidden:
            result.notes.append(
                f"party {name!r}: columns {hidden} have no points: too few labelled rows to be "
                "told of are in one of their bins, or at the party at all"
            )
