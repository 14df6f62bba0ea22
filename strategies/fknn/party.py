"""The party half of FKNN: blinded distances, local imputation from ranked donors."""

from typing import Annotated, Any, TypeAlias, Unpack

import numpy as np

from flwr_vertical import Summands, Uses, step
from flwr_vertical.arrays import AnyArray, Array, Bytes, Flags, Indices, Integers32
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.privacy_ledger.budgets import bits_of_row
from flwr_vertical.privacy_ledger.ledger import HELD_BY_ALL
from flwr_vertical.products import GroupKeySteps, PairKeySteps
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.protocol.arguments import DISTINCT, OWN, AddsUpTo, Is, Shape, Within
from flwr_vertical.tables.codes import fill_values
from strategies.common.imputing_party import ImputingParty
from strategies.fknn.blinding import FEWEST, Blinding, Units, halves, kinds_of_donors, secret_order
from strategies.fknn.distances import (
    DistanceFeatures,
    PartyTerms,
    check_units,
    magnitude,
    make_features,
)
from strategies.fknn.neighbours import impute_column, listed_donors

Numbers: TypeAlias = Integers32
Weights: TypeAlias = AnyArray

_MOST_COLUMNS = 2**16 - 1
_SETTINGS, _PUBLIC = "fknn.settings", "fknn.public"
_LISTED, _LACKING = "fknn.listed", "fknn.lacking"


class FKNNParty(ImputingParty):
    """Sends its share of the blinded distances; fills its own cells from ranked donors.

    The server names rows by their places in an order that only the parties know.
    """

    pair_keys = Uses(
        PairKeySteps, sends="blinded distances", without="a run in which nobody is pinned"
    )
    group_key = Uses(GroupKeySteps)

    @step
    def prepare(
        self,
        n_neighbors: Annotated[int, Is("n_neighbors")],
        weighting: Annotated[str, Is("weighting")],
        weights: Annotated[str, Is("weights")],
        standardize: Annotated[bool, Is("standardize")],
        complete_blocks: Annotated[bool, Is("complete_blocks")],
        max_donors: Annotated[int, Is("max_donors")],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[PairKeyFields],
    ) -> Summands:
        """Check the donors and say, into a sum, which rows this party needs and which it offers.

        Message: the settings of `FKNN`; owner, sealed, **keys: see `GroupKeySteps.take`; returns
        ``needs`` and ``donor`` of shape (n_samples,), in the secret order: 1 where a row has cells
        missing here, or serves as donor here; ``magnitude`` as `magnitude` tells it.
        """
        if weights == "distance":
            self.open_exchange("distances", "distances of each sample, but for one factor")
        told = {
            "n_neighbors": n_neighbors, "weighting": weighting, "weights": weights,
            "standardize": standardize, "complete_blocks": complete_blocks,
            "max_donors": max_donors,
        }  # fmt: skip
        if self.state.get(_SETTINGS, str(told)) != str(told):
            # The same blinding of two kinds of distances would show it.
            raise ProtocolError(
                f"party {self.name!r}: settings cannot change within a run, from "
                f"{self.state[_SETTINGS]} to {told}; start another run"
            )
        for name, value in {**told, _SETTINGS: str(told)}.items():
            self.state[name] = value
        self.state["turn"] = [len(keys["names"]), keys["names"].index(self.name)]
        self.group_key.take(owner, sealed, keys)
        donor = self.is_donor
        missing = self.missing_cells(complete_blocks)
        lacking = np.isnan(self.codes).any(axis=1)  # also of fitted donors
        for j, name in enumerate(self.table.columns):
            available = int((~np.isnan(self.codes[donor, j])).sum())
            if missing[:, j].any() and available < n_neighbors:
                raise DataError(
                    f"party {self.name!r}, column {name!r}: n_neighbors = {n_neighbors} but only "
                    f"{available} donors have a value; use a smaller n_neighbors or leave the "
                    "column out"
                )
        if self._features.n_columns > _MOST_COLUMNS:
            raise DataError(
                f"party {self.name!r} has {self._features.n_columns} columns; shared columns are "
                f"counted in 16 bits, so at most {_MOST_COLUMNS} can take part"
            )
        return Summands(
            {
                "needs": (missing.any(axis=1) | (donor & lacking))[self._order],
                "donor": donor[self._order],
                "magnitude": self._magnitude(),
            },
            public={"fitted": self.fitted is not None},
        )

    @step
    def impute(
        self,
        rows: Annotated[Indices, DISTINCT, Within(0, "n_samples - 1")],
        units: Annotated[list[int], Within(2, 3)],
        donors: Annotated[Indices | None, DISTINCT, Within(0, "n_samples - 1")] = None,
        lacking: Annotated[Indices | None, DISTINCT, Within(0, "n_samples - 1")] = None,
        split: bool = False,
        n_listed: Annotated[int, Within(0, "2 * n_neighbors + 2")] = 0,
        planned: Annotated[Indices | None, DISTINCT, Within(0, "n_samples - 1")] = None,
        done: Annotated[Indices | None, DISTINCT, Within(0, "n_samples - 1")] = None,
        neighbours: Annotated[Numbers | None, Within(0, "n_samples - 1")] = None,
        ranks: Annotated[Numbers | None, Shape("neighbours"), Within(0, "n_samples - 1")] = None,
        counts: Annotated[
            Numbers | None, Shape("done"), Within(0, "n_samples"), AddsUpTo("neighbours")
        ] = None,
        weights: Weights | None = None,
        width: Annotated[int, Within(0, "4 * n_neighbors + 20")] = 0,
        shown: Annotated[int, Within(0, "width")] = 0,
    ) -> Summands:
        """Impute the previous block from its ranked donors and send distances of the next one.

        Message: rows (n_rows,): places of the rows of the next block, empty at the end; units: see
        `Units`; two numbers if none is shifted; donors (n_donors,): places of the donors, if not
        all rows are; lacking (n_lacking,): places of donors that lack cells at some party, in the
        first message; split: whether distances travel in two halves, as ciphertexts need; n_listed:
        how many donors will be listed, beside those at the same distance as the last; planned
        (n_planned,): places of all rows that will be asked for, in the first message; done
        (n_done,): places of the rows of the previous block; neighbours, ranks, weights (n_listed,):
        their ranked donors, by place in the row's own order, and relative weights; counts
        (n_done,): how many donors are listed of each row; width: how many donors count; shown: how
        many are listed of a row at least that has so many; returns ``distance`` (or ``high`` and
        ``low``) of shape (n_rows, n_donors), ``weight`` of shape (n_rows, 1 + n_lacking), the first
        of them of all complete donors; ``short`` of shape (n_done,), 1 where the list was too short
        for some cell here.
        """
        agreed = self._keep_public(units, donors, lacking)
        summands: dict[str, Any] = {}
        if done is not None:
            if neighbours is None or ranks is None or counts is None or not width:
                raise ProtocolError(
                    f"party {self.name!r}: the rows of a block came without their ranked donors"
                )
            self._admit_ranks(np.asarray(done), np.asarray(counts))
            orders = self._orders(done, agreed)
            listed, entries = listed_donors(
                orders, self._donors[0], neighbours, ranks, counts, width
            )
            relative = None if weights is None else np.asarray(weights)[entries]
            complete = (np.asarray(counts) < shown) | (shown >= width)
            summands["short"] = self._fill(self._order[done], listed, relative, complete)
        if len(rows):
            # All rows at once: writing a large table's ledger for every block would take longest.
            counted = np.asarray(rows if planned is None else np.union1d(rows, planned))
            self._admit_ranks(counted, np.full(len(counted), n_listed))
            distance, weight = self._blinded(np.asarray(rows), agreed)
            if split:
                summands["high"], summands["low"] = halves(distance)
                summands["weight"] = weight.astype(np.float64)
            else:
                summands["distance"], summands["weight"] = distance, weight
        return Summands(summands)

    @step
    def finish(
        self,
        units: Annotated[list[int], Within(2, 3)],
        donors: Annotated[Indices | None, DISTINCT, Within(0, "n_samples - 1")] = None,
    ) -> dict[str, Any]:
        """Write the imputed table, and forget what rows and distances were hidden by.

        Message: units, donors: as in `impute`; returns how many cells were imputed, how many of
        them from fewer than `n_neighbors` donors, and how many from none.
        """
        self._keep_public(units, donors)
        self.group_key.erase_group_seed()
        for hidden in ("orders", "order", "donors", "terms"):
            self.cache.pop(hidden, None)
        told = {
            "cells_imputed": len(self._cells),
            "cells_with_fewer_donors": int(self.state.get("n_fewer", 0)),
            "cells_without_neighbour": int(self.state.get("n_fallback", 0)),
        }
        filled = self.codes.copy()
        filled.reshape(-1)[self._cells] = self._imputed
        return told | self.accuracy(self.write(filled, bool(self.state["complete_blocks"])))

    def _keep_public(
        self, units: list[int], donors: Indices | None, lacking: Indices | None = None
    ) -> Units:
        """Keep units and donors when they come first, and refuse others.

        Two answers for one row in other units, or about other donors, would show its blinding.
        """
        shifted = self.state["weights"] != "distance"
        told = np.concatenate([units, [] if donors is None else donors]).astype(np.int64)
        agreed = Units(units[0], units[2] if shifted and len(units) > 2 else None, units[1])
        if _PUBLIC not in self.state:
            check_units(agreed, self._magnitude(), shifted, self.name)
            if donors is not None:
                self.state["donors"] = np.sort(self._order[np.asarray(donors)])
            self.state[_LACKING] = np.array([] if lacking is None else lacking, dtype=np.int64)
            self.state[_PUBLIC] = told
        same = lacking is None or np.array_equal(self.state[_LACKING], lacking)
        if not same or not np.array_equal(self.state[_PUBLIC], told):
            raise ProtocolError(
                f"party {self.name!r}: units and donors cannot change within a run; two answers "
                "for one row would show what hides it"
            )
        return agreed

    def _blinded(self, rows: Indices, units: Units) -> tuple[Indices, Indices]:
        """Return this party's blinded distances and weights, by place in each row's own order."""
        aligned, (donors, n_complete) = self._order[rows], self._donors
        found = self._terms.each(aligned)
        blinding = self._blinding(units)
        terms = np.empty((len(rows), len(donors)), dtype=np.int64)
        weights = np.zeros((len(rows), 1 + len(donors) - n_complete), dtype=np.int64)
        orders = np.empty(terms.shape, dtype=np.int32)
        for i, (distance, weight) in enumerate(found):
            orders[i] = blinding.blind(int(rows[i]), distance, weight, terms[i], weights[i])
        self.cache["orders"] = rows, orders
        return terms, weights

    def _admit_ranks(self, rows: Indices, counts: AnyArray) -> None:
        """Write down what the other parties are told of own rows; or refuse.

        A list of the nearest of n donors has at most log2(n) bits for each that it names. They are
        counted for the row whose list it is, not once more for the donors. Of a list that grows,
        the donors that are new are counted.

        Shapes: rows (n_rows,): places of rows to impute; counts (n_rows,): how many donors the
        lists name.
        """
        if self.state["turn"][0] == 1 or self.state["weights"] == "distance":
            return  # nobody else, or counted as a whole
        lengths = self.state.get(_LISTED, np.zeros(self.n_samples, dtype=np.int64))
        longer = counts - lengths[rows]
        if not (longer > 0).any():
            return
        for n_more in np.unique(longer[longer > 0]).tolist():
            self._admit_more(rows[longer == n_more], n_more)
        lengths = lengths.copy()
        lengths[rows] = np.maximum(lengths[rows], counts)
        self.state[_LISTED] = lengths

    def _admit_more(self, rows: Indices, n_more: int) -> None:
        _, own = self.rows_of(self._order[rows])
        held = np.zeros(len(self.positions), dtype=bool)
        held[own] = True
        bits = n_more * np.log2(max(len(self._donors[0]), 1))
        self.open_bits(
            held,
            float(np.ceil(min(bits, bits_of_row(self.table)))),
            content=self.secret_bytes(f"ranks {n_more}"),
            agreed=True,
            what=f"which {n_more} donors are nearest, in order",
            receiver="the other parties",
            colluding=HELD_BY_ALL,
        )

    def _orders(self, rows: Indices, units: Units) -> Integers32:
        """Return the donors' order of each row of a block, as made with its distances or anew."""
        known, orders = self.cache.get("orders", (None, None))
        if not np.array_equal(known, rows):
            blinding = self._blinding(units)
            drawn = [blinding.order(place) for place in rows.tolist()]
            orders = np.array(drawn, dtype=np.int32).reshape(len(rows), -1)
        return np.asarray(orders, dtype=np.int32)

    def _blinding(self, units: Units) -> Blinding:
        (donors, n_complete), turn = self._donors, self.state["turn"]
        seed, n_samples = self.group_key.seed, self.n_samples
        return Blinding(seed, n_samples, len(donors), n_complete, units, *turn)

    def _magnitude(self) -> Bytes:
        columns = list(self.table.columns)
        return magnitude(self._features, self.state["weighting"], columns, self.name)

    def _fill(
        self, rows: Indices, neighbours: Integers32, weights: Array | None, complete: Flags
    ) -> Bytes:
        """Impute the open cells of some rows; return 1 where a row needs a longer list."""
        still_open = np.array(self.state.get("open", np.ones(len(self._cells), dtype=bool)))
        imputed = self._imputed.copy()
        short = np.zeros(len(rows), dtype=bool)
        kinds, fallback = list(self.table.kinds.values()), self._fallback
        for j, kind in enumerate(kinds if len(self._cells) else ()):
            cells = rows * len(kinds) + j
            at = np.minimum(np.searchsorted(self._cells, cells), len(self._cells) - 1)
            here = np.flatnonzero((self._cells[at] == cells) & still_open[at])
            if not len(here):
                continue
            values, used = impute_column(
                self.codes[:, j],
                kind,
                neighbours[here],
                None if weights is None else weights[here],
                self.state["n_neighbors"],
            )
            settled = (used >= self.state["n_neighbors"]) | complete[here]
            unknown = settled & (used == 0)
            values = np.where(unknown, fallback[j], values)
            imputed[at[here[settled]]] = values[settled]
            still_open[at[here[settled]]] = False
            short[here[~settled]] = True
            fewer = settled & ~unknown & (used < self.state["n_neighbors"])
            for name, cells in (("n_fallback", unknown), ("n_fewer", fewer)):
                self.state[name] = int(self.state.get(name, 0)) + int(cells.sum())
        self.state["imputed"], self.state["open"] = imputed, still_open
        return short.view(np.uint8)

    @kept("cells")
    def _cells(self) -> Indices:
        """Cells to impute, as ``row * n_columns + column``, in ascending order."""
        return np.flatnonzero(self.missing_cells(bool(self.state["complete_blocks"])))

    @property
    def _imputed(self) -> Array:
        return np.asarray(self.state.get("imputed", np.full(len(self._cells), np.nan)))

    @kept("fallback")
    def _fallback(self) -> Array:
        donors = slice(None) if self._donor_rows is None else self._donor_rows
        return fill_values(self.codes[donors], self.table.kinds)

    @kept("order")
    def _order(self) -> Indices:
        """The aligned row at each place of the secret order, array of shape (n_samples,)."""
        return secret_order(self.group_key.seed, self.n_samples)

    @kept("donors")
    def _donors(self) -> tuple[Indices, int]:
        """Aligned rows of the donors, complete ones first, and how many are complete.

        Of each kind the first that there may be in the secret order.
        """
        rows, order = self._donor_rows, self._order
        offered = np.isin(order, rows) if rows is not None else np.ones(len(order), bool)
        lacking = np.zeros(len(order), dtype=bool)
        lacking[self.state[_LACKING]] = True
        complete, others = order[offered & ~lacking], order[offered & lacking]
        most = int(self.state["max_donors"])
        n_complete, n_donors = kinds_of_donors(len(complete), len(others), most)
        if len(complete) and not n_complete:
            raise ProtocolError(
                f"party {self.name!r}: {len(complete)} donors count as complete and "
                f"{len(others)} as lacking cells; each kind has {FEWEST} or none"
            )
        return np.concatenate([complete, others])[:n_donors], n_complete

    @property
    def _donor_rows(self) -> Indices | None:
        """Rows of the donors among the aligned ones; None for all."""
        rows: Indices | None = self.state.get("donors")
        return rows

    @kept("terms")
    def _terms(self) -> PartyTerms:
        return PartyTerms(self._features, *self._donors, self.state["weighting"], self.name)

    @kept("features")
    def _features(self) -> DistanceFeatures:
        kinds, standardize = list(self.table.kinds.values()), bool(self.state["standardize"])
        return make_features(self.codes, kinds, self.level_counts, standardize, self.is_donor)
