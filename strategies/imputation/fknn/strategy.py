"""FKNN: impute by the nearest donors over all parties' columns.

Du, Wang, Meng and Guo (2024), "Privacy-Preserving Vertical Federated KNN Feature Imputation
Method", Electronics 13(2), 381.

The only cross-party quantity is the sum of the parties' distances (Eqs. 8-10), for the rows that
need imputing. It is streamed in blocks of rows; nothing of size n x n is ever held:

=====================================  ===========================================================
round                                  what travels
=====================================  ===========================================================
prepare                                up, summed: two flags a row, and the size of distances
impute, once a block                   down: the block's rows, and the ranked donors of the block
                                       before; up, summed: two numbers a pair of row and donor
impute, once more                      down: the ranked donors of the last block
=====================================  ===========================================================

So a run costs ``ceil(pairs / block_pairs) + 2`` rounds after greeting and alignment; in ``ckks``
mode each of these rounds costs one more, to the arbiter. A donor list holds more donors than are
needed, since a donor may lack the cell; rows for which it was still too short come again with a
longer one.
"""

from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import DataError
from flwr_vertical.results import Progress
from flwr_vertical.server import Total
from flwr_vertical.settings import setting
from strategies.imputation.fknn.arbiter import FKNNArbiter
from strategies.imputation.fknn.distances import N_EXPONENTS, common_scale
from strategies.imputation.fknn.party import FKNNParty

Indices = npt.NDArray[np.int64]

WEIGHTINGS = ("party-mean", "exact")
WEIGHTS = ("uniform", "distance")


@dataclass
class _Block:
    """A block of rows under way: what was asked, and the ranked donors that came back."""

    rows: Indices
    width: int
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """What `prepare` tells: rows to impute, donors, each row's place among the donors, scale."""

    rows: Indices
    donors: Indices
    own: Indices
    scale: float


class FKNN(Strategy):
    """Vertical federated k-nearest-neighbour imputation.

    Every party's missing cells are imputed, and blocks it lacks altogether. A row's donors are
    the samples nearest to it over all parties' columns; each party takes the values from its own
    table, so no value leaves its party.

    Notes
    -----
    Numeric cells get the mean, ordinal ones the median, binary and categorical ones the most
    frequent level of their donors (Eq. 13). A cell none of whose donors is comparable gets the
    column's mean or most frequent level; the party metric ``cells-without-neighbour`` counts them.
    Of donors at the same distance the earlier rows come first; ``ckks`` noise may tell them apart.

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
        "``sklearn.impute.KNNImputer`` on the pooled table.",
        choices=WEIGHTINGS,
    )
    weights: str = setting(
        "uniform", "Equal donors, or inversely to the distance.", choices=WEIGHTS
    )
    standardize: bool = setting(
        False,
        "Divide numeric columns by their standard deviation first (each party its own).",
        flower_default=True,
    )
    complete_blocks: bool = setting(True, "Also impute samples of which a party has no row.")
    block_pairs: int = setting(
        0,
        "Pairs of row and donor in one round; 0 chooses 4,000,000 (500,000 in ``ckks`` mode). "
        "Memory is about 60 bytes a pair and party.",
        at_least=0,
    )

    name: ClassVar[str] = "fknn"
    demo = MappingProxyType(
        {
            "demo.dataset": "breast-cancer",
            "demo.missing-cells": 0.1,
            "demo.missing-blocks": 0.05,
        }
    )
    party = FKNNParty
    arbiter = FKNNArbiter
    disclosure = (
        ("server", "for each row, how many parties miss a cell of it (a sum)"),
        ("server", "the parties' largest distances to a power of two, not whose is which"),
        (
            "server, or arbiter in ckks mode",
            "distances between rows to be imputed and donors, and how many columns (party-mean: "
            "parties) are comparable, summed over parties",
        ),
        ("server", "the ranked donors of each such row, and for which rows the list was too short"),
        (
            "every party",
            "which rows are imputed, since some party misses a cell of them or the row, and for "
            "which the list was too short; with fitted donors, which rows are donors at some party",
        ),
        (
            "every party",
            "the ranked donors of each such row (with weights='distance', weights too), and the "
            "largest distance of all parties to a power of two",
        ),
        (
            "server",
            "how many cells each party imputed, and for how many of them no donor was comparable",
        ),
        ("nobody", "a value of another party"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Impute block after block; a block's ranked donors travel with the next one."""
        plan = self._prepare(federation, alignment.n_samples)
        pairs = self.block_pairs or (500_000 if federation.aggregation == "ckks" else 4_000_000)
        size = max(1, pairs // max(1, len(plan.donors)))
        # Some donors lack the cell, so the list is longer than n_neighbors.
        width = min(len(plan.donors), 4 * self.n_neighbors + 20)
        rows = plan.rows
        queue = deque(_Block(rows[i : i + size], width) for i in range(0, len(rows), size))
        progress.total = len(queue) + 2
        progress.step("prepare")
        rounds = 1
        ranked: _Block | None = None
        public: dict[str, dict[str, Any]] = {name: {} for name in federation.parties}
        while True:
            block = queue.popleft() if queue else None
            total = self._round(federation, plan, block, ranked)
            for name, values in total.public.items():
                public[name].update(values)
            if ranked is not None and len(short := ranked.rows[total["short"] > 0]):
                # These come again, with a longer list.
                queue.append(_Block(short, min(len(plan.donors), 4 * ranked.width)))
            if block is not None:
                block.arguments = self._ranked(total.values, block, plan.donors)
            ranked = block
            rounds += 1
            progress.total = rounds + len(queue) + (ranked is not None)
            progress.step("impute", detail=f"{len(queue)} blocks of up to {size} rows to go")
            if ranked is None and not queue:
                break
        self._report(result, public, plan)

    def _prepare(self, federation: Federation, n_samples: int) -> _Plan:
        """Learn which rows need imputing and which serve as donors."""
        shape = (n_samples,)
        flags = federation.sum(
            "prepare",
            {
                "n_neighbors": self.n_neighbors,
                "weighting": self.weighting,
                "standardize": self.standardize,
                "complete_blocks": self.complete_blocks,
            },
            shapes={"needs": shape, "donor": shape, "magnitude": (N_EXPONENTS,)},
        )
        scale = common_scale(flags["magnitude"], federation.summand_limit)
        needs, donor = flags["needs"] > 0, flags["donor"] > 0
        donors = np.flatnonzero(donor)
        fitted = {name: bool(values["fitted"]) for name, values in flags.public.items()}
        if len(set(fitted.values())) > 1:
            without = [name for name, has in fitted.items() if not has]
            raise DataError(
                f"parties {without} have no fitted table although others have; every party needs "
                "what the earlier run left it"
            )
        if any(fitted.values()):
            for name in federation.parties:
                federation.update(name, {"donors": donors})
            needs &= ~donor
        own = np.full(n_samples, -1, dtype=np.int64)
        own[donors] = np.arange(len(donors))
        return _Plan(np.flatnonzero(needs), donors, own, scale)

    def _round(
        self, federation: Federation, plan: _Plan, block: _Block | None, ranked: _Block | None
    ) -> Total:
        """Hand out the ranked donors of the block before and learn those of this block."""
        rows = plan.rows[:0] if block is None else block.rows
        shapes: dict[str, tuple[int, ...]] = {}
        if ranked is not None:
            shapes["short"] = (len(ranked.rows),)
        if block is not None:
            shapes["distance"] = shapes["weight"] = (len(rows), len(plan.donors))
        return federation.sum(
            "impute",
            {
                "rows": rows,
                "last": block is None,
                "scale": plan.scale,
                **(ranked.arguments if ranked is not None else {}),
            },
            shapes=shapes,
            release="rank",
            release_arguments={
                "own": plan.own[rows],
                "width": 0 if block is None else block.width,
                "weighted": self.weights == "distance",
            },
        )

    def _ranked(self, released: dict[str, Any], block: _Block, donors: Indices) -> dict[str, Any]:
        """Name the ranked donors by their aligned rows, as the parties know them."""
        columns = released["neighbours"]
        arguments = {
            "done": block.rows,
            "neighbours": np.where(columns >= 0, donors[columns], -1).astype(np.int32),
            "exhausted": block.width >= len(donors),
        }
        if "weights" in released:
            arguments["weights"] = released["weights"]
        return arguments

    def _report(self, result: Result, public: dict[str, dict[str, Any]], plan: _Plan) -> None:
        result.party_metrics = {
            name: {key: float(value) for key, value in values.items()}
            for name, values in public.items()
        }
        imputed = sum(values.get("cells-imputed", 0) for values in public.values())
        without = sum(values.get("cells-without-neighbour", 0) for values in public.values())
        result.metrics.update(
            {
                "cells-imputed": float(imputed),
                "cells-without-neighbour": float(without),
                "rows-imputed": float(len(plan.rows)),
                "donors": float(len(plan.donors)),
            }
        )
        if without:
            result.notes.append(
                f"{int(without)} cells had no comparable donor and got their column's mean or most "
                "frequent level"
            )
