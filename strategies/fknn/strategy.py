"""FKNN: impute by the nearest donors over all parties' columns.

Du, Wang, Meng and Guo (2024), "Privacy-Preserving Vertical Federated KNN Feature Imputation
Method", Electronics 13(2), 381.

The only cross-party quantity is the sum of the parties' distances (Eqs. 8-10), for the rows that
need imputing. It is streamed in blocks of rows; nothing of size n x n is ever held. The server
ranks what it cannot read: see `blinding`.

A donor may lack the cell, so a donor list holds more donors than are needed. But lists tell every
party which samples are alike in columns of others, and the more, the longer they are. So the server
ranks ``4 k + 20`` donors of a row and hands out ``2 k + 2`` of them, the others only of rows that
some party finds too short, which it learns by a sum over parties. That costs one round, since no
distances travel.
"""

from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Indices
from flwr_vertical.counted import counted
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import GroupKey
from flwr_vertical.protocol.declaration import BITS, FACTS, NOTHING, ONE, Protocol, Repeat, Round
from flwr_vertical.server import Total
from strategies.common.imputing_party import numbers_told
from strategies.fknn.arbiter import FKNNArbiter
from strategies.fknn.blinding import HALF, WEIGHT_BITS, Units, kinds_of_donors, lowest
from strategies.fknn.distances import N_EXPONENTS, common_units
from strategies.fknn.neighbours import Block, joined
from strategies.fknn.party import FKNNParty

# Settings that parties are told.
TOLD = ("n_neighbors", "weighting", "weights", "standardize", "complete_blocks", "max_donors")


@dataclass(frozen=True)
class _Plan:
    """What `prepare` tells: places of rows to impute and of donors, and units."""

    rows: Indices
    donors: Indices
    all_donate: bool
    units: Units
    lacking: Indices  # Donors that lack cells at some party; all where there are few of a kind
    n_donors: int  # How many of the donors rows are compared with
    n_complete: int  # How many of these lack no cell
    n_ranked: int  # How many donors the server ranks of a row: the longest list
    n_shown: int  # How many of them are listed at first, since some lack the cell

    @property
    def public(self) -> dict[str, Any]:
        """What every party is told of it: the same in each round."""
        shift = () if self.units.shift is None else (self.units.shift,)
        units = [self.units.distance, self.units.weight, *shift]
        return {"units": units} | ({} if self.all_donate else {"donors": self.donors})


class FKNN(Strategy):
    """Vertical federated k-nearest-neighbour imputation.

    Every party's missing cells are imputed, and blocks it lacks altogether. A row's donors are
    the samples nearest to it over all parties' columns; each party takes the values from its own
    table, so no value leaves its party.

    Notes
    -----
    Numeric cells get the mean, ordinal ones the median, binary and categorical ones the most
    frequent level of their donors (Eq. 13). A cell none of whose donors is comparable gets the
    column's mean or most frequent level; the party metric ``cells_without_neighbour`` counts them.
    Of donors at the same distance the earlier rows come first. Distances count as the same if they
    differ by less than about 2^-40 of the largest at any party, so columns in very different units
    should stay standardised.

    With ``fitted`` (an earlier result) the donors are that run's imputed rows, and the tables
    given are new rows (the paper's test-time use).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> bank = pd.DataFrame({"income": [1.0, 2.0, np.nan, 4.0]}, index=list("abcd"))
    >>> court = pd.DataFrame({"debts": [1.0, 2.1, 2.2, 4.0]}, index=list("abcd"))
    >>> result = simulate(FKNN(n_neighbors=1), {"bank": bank, "court": court}, progress=False)
    >>> float(result.tables["bank"].loc["c", "income"])
    2.0
    """

    n_neighbors: int = setting(5, "Number of donors for a cell.", at_least=1)
    weighting: str = setting(
        "party-mean",
        "How columns enter the distance. ``party-mean`` (the paper's Eqs. 6 and 10): the mean "
        "squared difference at each party, summed, so that every party weighs the same; parties "
        "that share no column of a pair are left out and the rest scaled up. ``exact``: the mean "
        "squared difference over all columns, so that the result equals "
        "``sklearn.impute.KNNImputer`` on the pooled table (of standardised columns).",
        choices=("party-mean", "exact"),
    )
    weights: str = setting(
        "uniform", "Equal donors, or inversely to the distance.", choices=("uniform", "distance")
    )
    standardize: bool = setting(
        True,
        "Divide numeric columns by their standard deviation first (each party its own); without, "
        "columns count in the units given, as in the paper.",
    )
    complete_blocks: bool = setting(True, "Also impute samples of which a party has no row.")
    max_donors: int = setting(
        262_144,
        "Most donors that rows are compared with: of more rows, so many are drawn at random, "
        "complete ones first, in an order that only the parties know. Time grows with rows to "
        "impute times donors.",
        at_least=1,
    )
    block_pairs: int = setting(
        0,
        "Pairs of row and donor in one round; 0 chooses 2,000,000 (500,000 in ``ckks`` mode). "
        "Memory is about 60 bytes a pair and party.",
        at_least=0,
    )

    name: ClassVar[str] = "fknn"
    demo = MappingProxyType(
        {"demo.dataset": "breast-cancer", "demo.missing-cells": 0.1, "demo.missing-blocks": 0.05}
    )
    party = FKNNParty
    protocol = Protocol(
        Round("pair_key", "a public key", tells=FACTS),
        Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
        Round(
            "prepare",
            "summed, which rows need donors, and which are donors, in a secret order",
            tells=(FACTS, BITS),
        ),
        Repeat(
            Round(
                "impute",
                "summed, blinded distances of a block of rows from all donors",
                tells=(NOTHING, BITS),
                release="rank",
            ),
            at_most="n_samples + 3",
        ),
        Round("finish", "how many cells it imputed", tells=FACTS),
    )
    arbiter = FKNNArbiter
    disclosure = (
        (
            "server",
            "how many parties miss a cell of a row (a sum), of rows in an order that only the "
            "parties know",
        ),
        (
            "server",
            "the parties' largest and mean distances and numbers of columns to a power of two, "
            "not whose is which",
        ),
        (
            "server, or arbiter in ckks mode",
            "for each such nameless row to be imputed, its distances to nameless donors, summed "
            "over parties, multiplied by one random number and shifted by another; which donors "
            "lack cells at some party, and which are not comparable with it",
        ),
        (
            "server, or arbiter in ckks mode",
            "with weights='distance', which each node must allow, distances are not shifted",
        ),
        (
            "server",
            "the ranked nameless donors of each such row, and for which rows the list was too "
            "short",
        ),
        (
            "every party",
            "which rows are imputed and which donors lack cells, since some party misses a cell of "
            "them or the row, and for which rows the list was too short; with fitted donors, which "
            "rows are donors at some party",
        ),
        (
            "every party",
            "the ranked donors of each such row, and which of them are at the same distance (with "
            "weights='distance', weights too); the largest and mean distances of all parties to a "
            "power of two",
        ),
        (
            "server",
            "how many cells each party imputed, for how many of them fewer than n_neighbors of the "
            "listed donors had a value, and for how many none",
        ),
        (
            "server (or arbiter in ckks mode) together with any one party",
            "which rows the server ranked, and their distances, summed over parties",
        ),
        ("nobody", "a value of another party"),
    )

    def check(self) -> None:
        """Refuse fewer donors than neighbours."""
        if self.max_donors < self.n_neighbors:
            raise ConfigError(
                f"max_donors = {self.max_donors} is below n_neighbors = {self.n_neighbors}; "
                "compare rows with more donors, or impute from fewer"
            )

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """Distances are not shifted where donors are weighted by them: nodes must agree."""
        return ("distances",) if self.weights == "distance" else ()

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Impute block after block; a block's ranked donors travel with the next one."""
        plan = self._prepare(federation, alignment.n_samples)
        pairs = self.block_pairs or (500_000 if federation.aggregation == "ckks" else 2_000_000)
        size = max(1, pairs // max(1, plan.n_donors))
        rows = plan.rows
        queue = deque(Block(rows[i : i + size], plan.n_shown) for i in range(0, len(rows), size))
        reserve: list[Block] = []
        progress.total = len(queue) + 3
        progress.step("prepare")
        rounds = 1
        ranked: Block | None = None
        while queue or ranked is not None:
            block = queue.popleft() if queue else None
            total = self._round(federation, plan, block, ranked)
            if ranked is not None and (short := total["short"] > 0).any():
                reserve.append(ranked.of_rows(short, plan.n_ranked))
            if block is not None:
                names = ("neighbours", "ranks", "counts", "weights")
                block.ranked = {name: total[name] for name in names if name in total.values}
            elif reserve:
                # No distances travel: the donors that follow are ranked already.
                block, reserve = joined(reserve), []
            ranked = block
            rounds += 1
            progress.total = rounds + len(queue) + (ranked is not None) + bool(reserve) + 1
            progress.step("impute", detail=f"{len(queue)} blocks of up to {size} rows to go")
        told = federation.call("finish", plan.public)
        progress.step("finish")
        self._report(result, told, plan)

    def _prepare(self, federation: Federation, n_samples: int) -> _Plan:
        """Learn which rows need imputing and which serve as donors, by place."""
        shape = (n_samples,)
        flags = federation.sum(
            "prepare",
            {name: getattr(self, name) for name in TOLD},
            per_party=GroupKey(federation).arguments(),
            shapes={"needs": shape, "donor": shape, "magnitude": (3, N_EXPONENTS)},
        )
        shifted = self.weights != "distance"
        units = common_units(flags["magnitude"], len(federation.parties), shifted)
        needs, donor = flags["needs"] > 0, flags["donor"] > 0
        fitted = {name: bool(values["fitted"]) for name, values in flags.public.items()}
        if len(set(fitted.values())) > 1:
            without = [name for name, has in fitted.items() if not has]
            raise DataError(
                f"parties {without} have no fitted table although others have; every party needs "
                "what the earlier run left it"
            )
        complete = ~needs & (flags["donor"] == len(federation.parties))
        if any(fitted.values()):
            needs &= ~donor
        of_kinds = int(complete.sum()), int((donor & ~complete).sum())
        n_complete, n_donors = kinds_of_donors(*of_kinds, self.max_donors)
        lacking = donor & ~complete if n_complete else donor
        return _Plan(
            np.flatnonzero(needs),
            np.flatnonzero(donor),
            not any(fitted.values()),
            units,
            np.flatnonzero(lacking),
            n_donors=n_donors,
            n_complete=n_complete,
            n_ranked=min(n_donors, 4 * self.n_neighbors + 20),
            n_shown=min(n_donors, 2 * self.n_neighbors + 2),
        )

    def _round(
        self, federation: Federation, plan: _Plan, block: Block | None, ranked: Block | None
    ) -> Total:
        """Hand out the ranked donors of the block before and learn those of this block."""
        rows = plan.rows[:0] if block is None else block.rows
        split, parties = federation.aggregation == "ckks", len(federation.parties)
        shapes: dict[str, tuple[int, ...]] = {}
        scale: dict[str, float] = {}
        if ranked is not None:
            shapes["short"] = (len(ranked.rows),)
        if block is not None:
            names = ("high", "low") if split else ("distance",)
            shapes |= dict.fromkeys(names, (len(rows), plan.n_donors))
            shapes["weight"] = (len(rows), 1 + plan.n_donors - plan.n_complete)
            if split:
                scale = {"high": HALF, "low": HALF, "weight": 2.0**WEIGHT_BITS}
        rounding = float(parties + lowest(parties))
        weight_error = rounding
        if split:
            weight_error += 2 * federation.resolution_of(scale=2.0**WEIGHT_BITS)
        least = 2.0**plan.units.weight
        first = {"planned": plan.rows, "lacking": plan.lacking}
        # Low bits reach to 4 units per unit of a pair's factor (`blinding`), rounding to 1 a party.
        errors = [rounding, weight_error, least, (4.0 + parties) / least]
        return federation.sum(
            "impute",
            {
                "rows": rows,
                "split": split,
                "n_listed": 0 if block is None else block.shown,
                **plan.public,
                **(first if ranked is None else ranked.arguments(plan.n_ranked)),
            },
            shapes=shapes,
            scale=scale,
            release="rank",
            release_arguments={
                "width": 0 if block is None else plan.n_ranked,
                "errors": errors,
                "weighted": self.weights == "distance",
            },
        )

    def _report(self, result: Result, public: dict[str, dict[str, Any]], plan: _Plan) -> None:
        result.party_metrics = numbers_told(public)
        cells = {
            name: float(sum(values.get(name, 0) for values in public.values()))
            for name in ("cells_imputed", "cells_with_fewer_donors", "cells_without_neighbour")
        }
        of = {"rows_imputed": float(len(plan.rows)), "donors": float(plan.n_donors)}
        result.metrics.update(cells | of)
        if plan.n_donors < len(plan.donors):
            result.notes.append(
                f"rows were compared with {plan.n_donors} of {len(plan.donors)} donors, drawn at "
                "random: a larger max_donors lowers errors and takes longer"
            )
        if fewer := int(cells["cells_with_fewer_donors"]):
            result.notes.append(
                f"{counted(fewer, 'cell was', 'cells were')} imputed from fewer than "
                f"{self.n_neighbors} donors: of the {plan.n_ranked} nearest, no more had a value"
            )
        if without := int(cells["cells_without_neighbour"]):
            result.notes.append(
                f"{counted(without, 'cell')} got the column's mean or most frequent level: no "
                f"donor was comparable, or none of the {plan.n_ranked} nearest had a value"
            )
