"""MST and AIM: synthetic tables with differential privacy of a person, over all parties.

A run takes six rounds after greeting and alignment, whatever the number of rows, columns, parties
or chosen pairs; one party alone takes five. A table of two parties' columns is a product of
indicators of levels (`flwr_vertical.products`): each party masks its indicators once, and small
corrections open as many tables as are asked for. Each owner adds the whole noise to what is opened
of two, so that none comes nearer to the counts by knowing its own.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array, Ring
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import MOST_DELTA, TableStatement, read_bounds
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.products.arithmetic import BLOCK_ROWS
from flwr_vertical.protocol.declaration import EPSILON, FACTS, ONE, If, Protocol, Round
from strategies.common.synthesis_columns import read_resolution, read_stated
from strategies.marginals.budget import UNIT, Budget
from strategies.marginals.graphical import Clique, Counted, GraphicalModel, average
from strategies.marginals.party import MarginalsParty
from strategies.marginals.selection import Opened, chosen_pairs, corrected, one_way, smoothed
from strategies.marginals.tables import PairTables

ALL = "rows, over all parties"
_PUBLIC = ("resolution", "bounds", "levels")


class _Marginals(Strategy):
    """What MST and AIM share."""

    epsilon: float = setting(
        1.0,
        "Privacy of a person: of one row's values at all parties together, over all that the run "
        "tells.",
        above=0,
    )
    delta: float = setting(
        1e-5,
        "As `epsilon`; to be well below one over the number of rows.",
        above=0,
        at_most=MOST_DELTA,
    )
    rows: int | None = setting(
        0,
        "Synthetic rows to make (0: as many as there are aligned samples).",
        at_least=0,
        parse=lambda rows: 0 if rows is None else rows,
    )
    resolution: str | Mapping[str, float] | None = setting(
        "",
        "Public resolutions of numeric columns, of which all values are multiples: a mapping of "
        "column name to step, or the same as JSON text. Whole numbers need none.",
        parse=read_resolution,
    )
    bounds: str | Mapping[str, Sequence[float]] | None = setting(
        "",
        "Public ranges of numeric columns: a mapping of column name to (low, high), or the same "
        "as JSON text; values beyond count as the ends. Without, -1e8 to 1e8.",
        parse=read_bounds,
    )
    levels: str | Mapping[str, Sequence[Any]] | None = setting(
        "",
        "Public levels of columns: a mapping of column name to all its levels, or the same as "
        "JSON text; other values count as missing. Without, a level is named if many rows have it.",
        parse=read_stated,
    )

    adaptive: ClassVar[bool]
    party = MarginalsParty
    protocol = Protocol(
        Round("prepare_marginals", "a public key, numbers of columns", tells=FACTS),
        If("n_parties > 1", Round("seal_group_seed", "the group seed, sealed", ask=ONE)),
        Round(
            "send_levels",
            "counts of levels with noise; levels of rows under the group's key stream",
            tells=EPSILON,
            again=True,
        ),
        Round("open_counts", "counts of two levels with noise: all pairs", tells=EPSILON),
        Round("open_counts", "counts of two levels with noise: chosen pairs", tells=EPSILON),
        Round("synthesise"),
    )
    demo = MappingProxyType({"demo.missing-cells": 0.0, "demo.missing-blocks": 0.1})
    disclosure = (
        (
            "server",
            "of each column, how many levels it is counted in, and of every two columns, how many "
            "rows have which levels, with noise; all of it together has the epsilon and delta of "
            "the run",
        ),
        (
            "server",
            "how many columns of numbers and of levels a party has, and how many of these "
            "`bounds`, `resolution` and `levels` name",
        ),
        (
            "every party",
            "its own columns of the synthetic rows; how many columns the others have, and how many "
            "levels each is counted in; which pairs of columns were chosen",
        ),
        (
            "a reader of the synthetic tables",
            "what follows from these counts; names of levels that are not rare by a noisy count",
        ),
        (
            "server together with any one party",
            "all parties' levels: the party has the seed that hides them from the server",
        ),
        ("nobody", "a value of another party, or a count without noise"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open noisy tables of pairs, fit a graphical model, hand each party its columns."""
        names = federation.parties
        if federation.aggregation == "ckks":
            raise ConfigError(
                f"{self.name} opens whole numbers modulo 2^64, which sums under 'ckks' do not "
                "carry; use aggregation='masked'"
            )
        progress.total = 4
        rng = federation.rng.spawn(1)[0]
        keys = PairKeys(federation)
        known = {"resolution": self.resolution, "bounds": self.bounds, "levels": self.levels}
        prepared = federation.call("prepare_marginals", {"nonce": keys.nonce, **known})
        keys.collect(prepared)
        self._check_stated(sum(int(prepared[name]["n_stated"]) for name in names))
        n_columns = [int(prepared[name]["n_columns"]) for name in names]
        progress.step("keys")
        tables = _Tables(federation, keys, n_columns, Budget(self.epsilon, self.delta))
        tables.send(
            {
                "epsilon": self.epsilon,
                "delta": self.delta,
                "n_tables": sum(int(prepared[name]["n_tables"]) for name in names),
            }
        )
        progress.step("levels")
        opened = Opened(tables.sizes, tables.owner, ~alignment.mask, tables.columns)
        every = tables.open(opened, [*combinations(range(sum(n_columns)), 2)], chosen=False)
        pairs = corrected(opened, every)
        columns = one_way(opened, pairs)
        chosen = chosen_pairs(opened, pairs, columns, self.adaptive)
        # With no pair to choose, the budget left is for the first one: a table must be asked for.
        again = tables.open(opened, chosen or list(every)[:1], chosen=True)
        progress.step("pairs")
        better = corrected(
            opened, {p: average([t, again[p]]) if p in again else t for p, t in every.items()}
        )
        columns = one_way(opened, better)
        cliques: dict[Clique, Counted] = {(v,): table for v, table in columns.items()}
        cliques |= {pair: smoothed(better[pair], [columns[v] for v in pair]) for pair in chosen}
        model = GraphicalModel(opened.sizes, chosen).fit(cliques)
        codes = model.sample(self.rows or alignment.n_samples, rng)
        ends = np.cumsum([0, *n_columns])
        parts = {
            name: {"codes": np.ascontiguousarray(codes[:, first:last])}
            for name, first, last in zip(names, ends[:-1], ends[1:], strict=True)
        }
        federation.call("synthesise", per_party=parts)
        progress.step("synthesise")
        self._report(result, tables, chosen, alignment, len(codes))

    def _check_stated(self, found: int) -> None:
        of = {setting: json.loads(str(getattr(self, setting)) or "{}") for setting in _PUBLIC}
        names = sorted({name for own in of.values() for name in own})
        if found < len(names):
            raise ConfigError(
                f"the parties have {found} of the {len(names)} columns that settings name: "
                f"{names}. levels is for columns of levels, bounds and resolution for "
                "columns of numbers: check names and kinds"
            )

    def _report(
        self,
        result: Result,
        tables: "_Tables",
        chosen: Sequence[Clique],
        alignment: Alignment,
        rows: int,
    ) -> None:
        warnings = []
        n = alignment.n_samples
        if self.delta * n > 0.1:
            warnings.append(
                f"Delta times the {n:,} rows is {self.delta * n:.2g}: that many rows may be told "
                "of without any protection. Delta should be well below one over the rows."
            )
        if tables.seeded:
            warnings.append(
                "The noise was drawn from a known seed: nothing of this run is private."
            )
        budget = Budget(self.epsilon, self.delta)
        noise = budget.pair_sigma(max(len(chosen), 1), chosen=True)
        result.privacy = TableStatement(
            epsilon=self.epsilon, delta=self.delta, n_rows=n, parties=list(tables.names),
            noise=noise, warnings=warnings,
        )  # fmt: skip
        result.ledger.spend(ALL, self.epsilon, f"noisy counts (delta {self.delta:g})")
        result.notes += result.privacy.sentences
        result.metrics |= {
            "rows": float(rows),
            "columns": float(len(tables.sizes)),
            "levels": float(sum(tables.sizes)),
            "chosen_pairs": float(len(chosen)),
        }


class _Tables:
    """The server's half of noisy tables of counts."""

    def __init__(
        self, federation: Federation, keys: PairKeys, n_columns: list[int], budget: Budget
    ) -> None:
        self._federation, self._keys, self._budget = federation, keys, budget
        self.names, self.n_columns = federation.parties, n_columns
        self.owner = np.repeat(np.arange(len(n_columns)), n_columns).tolist()
        self.sizes: list[int] = []
        self.columns: dict[int, tuple[Array, float]] = {}
        self.seeded = False
        self._masked: dict[str, Ring] = {}
        self._tags: list[bytes] = []
        self._asked: tuple[int, dict[str, Any], dict[str, dict[str, Any]]] = (0, {}, {})

    def send(self, arguments: dict[str, Any]) -> None:
        """Have every party find levels, and hand over its rows' under a key stream; two rounds."""
        arguments |= {"n_columns": self.n_columns}
        own: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        if len(self.names) > 1:
            own = GroupKey(self._federation, self._keys).arguments()
        else:
            arguments |= self._keys.arguments()
        self._asked = self._federation.course, arguments, own
        replies = self._ask()
        self.sizes = [int(size) for name in self.names for size in replies[name]["sizes"]]
        self.seeded = any(bool(reply["seeded"]) for reply in replies.values())
        counts, sigmas = (
            np.concatenate([replies[name][told] for name in self.names])
            for told in ("counts", "sigmas")
        )
        ends = np.cumsum([0, *self.sizes])
        for v, (first, last) in enumerate(pairwise(ends)):
            self.columns[v] = counts[first:last], float(sigmas[v])
        self._tags = [bytes(replies[name].get("tag", b"")) for name in self.names]

    def open(self, opened: Opened, pairs: Sequence[Clique], chosen: bool) -> dict[Clique, Counted]:
        """Open tables of pairs, as shares of the rows that both parties hold; one round."""
        places = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        total = self._federation.sum(
            "open_counts",
            {
                "names": self.names,
                "n_columns": self.n_columns,
                "sizes": np.array(self.sizes, dtype=np.int64),
                "tags": self._tags,
                "pairs": places,
                "chosen": chosen,
            },
        )
        tables = PairTables.of(places, self.sizes, self.n_columns)
        own = [np.asarray(total.public[name]["own"]) for name in self.names]
        counts = self._federation.keep(
            f"tables {chosen}", lambda: {"across": self._counts(total["corrections"], tables)}
        )["across"]
        sigma = self._budget.pair_sigma(len(pairs), chosen)
        found: dict[Clique, Counted] = {}
        for (i, j), table in tables.split(own, counts).items():
            owners = 1 if self.owner[i] == self.owner[j] else 2
            found[i, j] = opened.shares((i, j), table, sigma * owners**0.5)
        return found

    def _counts(self, corrections: Ring, tables: PairTables) -> Array:
        """Open the tables of two parties' columns, array of shape (n_cells,)."""
        total = np.zeros(tables.n_cells, dtype=np.uint64)
        if tables.n_cells:
            self._ask_again_if_resumed()
            n = len(next(iter(self._masked.values())))
            for start in range(0, n, BLOCK_ROWS):
                rows = [self._masked[name][start : start + BLOCK_ROWS] for name in self.names]
                total += tables.opened(np.concatenate(rows, axis=1))
        total *= np.uint64(UNIT)
        total -= np.asarray(corrections).view(np.uint64)
        return total.view(np.int64).astype(np.float64) / UNIT

    def _ask(self) -> dict[str, dict[str, Any]]:
        _, arguments, own = self._asked
        replies = self._federation.call("send_levels", arguments, per_party=own, unkept=["masked"])
        for name, reply in replies.items():
            if "masked" in reply:
                self._masked[name] = reply["masked"]
        return replies

    def _ask_again_if_resumed(self) -> None:
        # A resumed run has the sums, but not what they are opened with.
        while not self._masked and self._federation.next_step() in (None, "send_levels"):
            with self._federation.asking_again(self._asked[0]):
                self._ask()


class MST(_Marginals):
    """Synthetic tables from a tree of pairs of columns, with differential privacy of a person.

    The winner of the NIST contest of 2018 (McKenna, Miklau and Sheldon 2021), over parties: counts
    of every pair of columns with much noise choose a spanning tree, whose pairs are counted again
    with less; a graphical model of these is drawn from. Fast and robust; prefer `AIM`, which also
    keeps what a tree cannot.

    Notes
    -----
    Epsilon and delta hold for replacing one row's values at all parties together, and everything
    that the run tells. Numbers are counted in bins, found from noisy counts, missing cells in a
    level of their own. A pair's rows are those that both parties hold; where rows are missing by
    what another party observes, tables are weighted to stand for all rows (`selection`). Labels are
    a column of whoever holds them: leave them in its table.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> income = rng.normal(50, 10, size=2000)
    >>> bank = pd.DataFrame({"income": income})
    >>> court = pd.DataFrame({"cases": rng.poisson(income / 25)})
    >>> result = simulate(MST(epsilon=2.0), {"bank": bank, "court": court}, progress=False)
    >>> result.tables["court"].shape
    (2000, 1)
    """

    name: ClassVar[str] = "mst"
    adaptive = False


class AIM(_Marginals):
    """MST that adds the pairs of columns which its model gets most wrong.

    After McKenna, Mullins, Sheldon and Miklau (2022). Pairs are added while noise does not explain
    what the model gets wrong and its cliques have at most 100,000 cells together; then all are
    counted again in one round.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"grade": rng.choice(["a", "b", "c"], size=2000)})
    >>> court = pd.DataFrame({"cases": rng.poisson(1, size=2000)})
    >>> result = simulate(AIM(epsilon=2.0), {"bank": bank, "court": court}, progress=False)
    >>> result.metrics["levels"] > 4
    True
    """

    name: ClassVar[str] = "aim"
    adaptive = True
