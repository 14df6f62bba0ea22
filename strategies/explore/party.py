"""The party half of exploration: what it offers of its variables, and its own page."""

from typing import Annotated, Any, Unpack

import numpy as np
import pandas as pd

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.arrays import Array, Flags, Indices, Integers
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps
from flwr_vertical.products.arithmetic import Layout
from flwr_vertical.products.masked import SendFields
from flwr_vertical.products.pair_keys import Nonce
from flwr_vertical.products.pairs import PairProductSteps
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits, takes_as
from strategies.binning.bins import fit_column_bins
from strategies.binning.steps import MOST_BINS, BinSteps
from strategies.explore.columns import OfferedVariables, made_again, offer, sizes
from strategies.linear.told_columns import EXPLORE, beside_earlier, words_of

CORRELATIONS = "correlations"
"""What a party keeps its page's table as, beside its own."""

MEASURES = ("correlation", "rank correlation", "cramers v", "eta", "gaps")
"""How two variables go together: numbers, their ranks, levels, numbers by level, missing cells."""

_OFFERED = "explore.offered"
_ROWS = 65_536  # at a time


class ExploreParty(Party):
    """Offers values, ranks and levels of its variables for products."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    products = Uses(PairProductSteps, purpose="explore")
    bins = Uses(BinSteps, purpose="explore")
    made_again = staticmethod(made_again)  # See `told_columns`

    def columns_to_multiply(self) -> HeldColumns:
        """Return what is offered of the rows that take part."""
        return self._columns

    @kept("explore.columns")
    def _columns(self) -> HeldColumns:
        offered, rows = self._offered, np.flatnonzero(self._held)
        names = tuple(offered.variables.names[v] for v in offered.of)
        held = HeldColumns(
            offered.values, rows, self.n_samples, names,
            squares=offered.squares, variable=offered.variable,
            sources=tuple(frozenset([name]) for name in names),
        )  # fmt: skip
        words = words_of(EXPLORE, self.table.columns, *self.state[_OFFERED])
        return beside_earlier(self, held, words)

    @step(repeatable=False)  # a key pair is drawn
    def prepare_exploration(
        self, nonce: Nonce, most: Annotated[int, Within(0, MOST_BINS)]
    ) -> dict[str, Any]:
        """Make the key pair of this run, and say how many columns could be offered.

        Message: nonce: of this run; most: bins of a variable, 0 for none; returns what
        `PairKeySteps.pair_key` does, `sizes`, and how many ``bins`` there are of all variables.
        """
        fewest, bins = self.policy.min_rows, 0
        if most:
            bins = sum(fit_column_bins(self.table, most, (), fewest, self.name).n_bins)
        return {**self.pair_keys.pair_key(nonce), **sizes(self.table, fewest), "bins": bins}

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        ranks: bool,
        gaps: bool,
        shared: Annotated[Integers, Within(0, "n_samples")],
        widest: Annotated[int, Within(1, 2**31)],
        **keys: Unpack[SendFields],
    ) -> dict[str, Any]:
        """Hand over the offered columns under a key stream, and say what they are.

        Message: limbs, owner, sealed, **keys: see `PrivateProductSteps.send_masked`; ranks, gaps:
        what is offered, see `offer`; shared (n_parties, n_parties): how many rows two parties hold;
        widest: the most columns of a party; returns as there, and ``variables.*``, see `Variables`.
        """
        names = keys["names"]
        check_fits(self.name, "shared", shared, Shape(len(names), len(names)))
        with_others = np.asarray(shared)[names.index(self.name)]
        n_own = int(with_others.max())
        sets, fewest = np.append(with_others, n_own - with_others), self.policy.min_rows
        fewest = min_rows(0, 0) if fewest is None else fewest
        smallest = int(sets[sets >= fewest].min(initial=n_own))
        self.state[_OFFERED] = [int(ranks), int(gaps), smallest, widest]
        self.cache.pop(_OFFERED, None), self.cache.pop("explore.columns", None)
        told = self.products.send_masked(limbs, owner, sealed, **keys)
        about = self._offered.variables.to_plain()
        return told | {f"variables.{name}": values for name, values in about.items()}

    @step
    @takes_as(PairProductSteps.open_pairs)
    def open_pairs(self, **arguments: Any) -> Summands:
        """Send what opens pairwise moments, and own sums over the rows that others hold, too.

        Message: see `PairProductSteps.open_pairs`; returns as there; summed also ``shared``
        (n_parties, 2, n_columns), the bits of sums and sums of squares of all offered columns over
        the rows that each party holds, too; 0 of those apart from that party. They open
        only if all parties were told the same of who holds which rows, and each checks its own.
        """
        told = self.products.open_pairs(**arguments)
        columns, withheld = self.columns_to_multiply(), told.public["withheld"][0]
        shared = np.asarray(arguments["held"]) & np.asarray(arguments["taken"])[:, None]
        apart = told.public["apart"]
        shared = shared[columns.rows].T
        sums = np.zeros((len(shared), 2, columns.values.shape[1]))
        for start in range(0, len(columns.rows), _ROWS):
            rows = slice(start, start + _ROWS)
            block = np.asarray(columns.values[rows], dtype=np.float64)
            flags = shared[:, rows].astype(np.float64)
            sums += np.stack([flags @ block, flags @ block**2], axis=1)
        sums = np.where(apart[:, None] | withheld, 0.0, sums)
        names = arguments["names"]
        layout = Layout(dict(zip(names, arguments["widths"], strict=True)))
        bits = np.zeros((len(names), 2, layout.total), dtype=np.uint64)
        bits[..., layout.slices[self.name]] = sums.view(np.uint64)
        bits += self.products.bound_to("shared sums", bits.shape, arguments)
        modular = (*told.modular, "shared")
        return Summands({**told.values, "shared": bits}, told.public, modular=modular)

    @step
    def finish_exploration(
        self,
        own: Annotated[Indices, Within(0, 2**31), OWN],
        others: Annotated[list[str], Within(0, 2**31), OWN],
        other: Annotated[Indices, Shape("own"), OWN],
        measure: Annotated[Indices, Shape("own"), Within(0, len(MEASURES) - 1), OWN],
        value: Annotated[Array, Shape("own"), Within(-1.0, 1.0), OWN],
    ) -> dict[str, Any]:
        """Keep how the own variables go with the others', and forget the seed.

        Message: own (n_pairs,): number of the own variable; others: names of the others'
        variables; other (n_pairs,): number among these; measure (n_pairs,): number in `MEASURES`;
        value (n_pairs,): rounded to n^-1/2; returns nothing.
        """
        check_fits(self.name, "own", own, Within(0, len(self.table.columns) - 1))
        check_fits(self.name, "other", other, Within(0, len(others) - 1))
        self.group_key.erase_group_seed()
        frame = pd.DataFrame(
            {
                "variable": np.array(self.table.columns, dtype=object)[own],
                "other": np.array(others, dtype=object)[other],
                "measure": np.array(MEASURES, dtype=object)[measure],
                "value": value,
            },
            index=pd.RangeIndex(len(value), name="row"),  # no samples
        )
        self.save_output(frame, CORRELATIONS)
        return {}

    @property
    def _held(self) -> Flags:
        return np.asarray(self.to_aligned(np.ones(len(self.positions), dtype=bool), False))

    @kept(_OFFERED)
    def _offered(self) -> OfferedVariables:
        rows = self.rows_of(np.flatnonzero(self._held))[1]
        ranks, gaps, *sets = self.state[_OFFERED]
        return offer(self.table, rows, self.policy.min_rows, bool(ranks), bool(gaps), *sets)
