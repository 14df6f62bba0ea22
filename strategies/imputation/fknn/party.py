"""The party half of FKNN: local distances, local imputation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Summands, step
from flwr_vertical.errors import DataError
from flwr_vertical.tables import Kind, is_numeric
from flwr_vertical.tables.codes import fill_values
from strategies.imputation.fknn.distances import (
    Features,
    magnitude,
    make_features,
    party_terms,
    squared_distances,
)
from strategies.imputation.fknn.neighbours import impute_column
from strategies.imputation.party import ImputingParty

Indices = npt.NDArray[np.int64]

_MOST_COLUMNS = 2**16 - 1


class FKNNParty(ImputingParty):
    """Sends its share of the distances; fills its own cells from ranked donors."""

    @step
    def prepare(
        self,
        n_neighbors: int,
        weighting: str,
        standardize: bool,
        complete_blocks: bool,
    ) -> Summands:
        """Check the donors and say, into a sum, which rows this party needs and which it offers.

        Returns
        -------
        Summands
            ``needs``, ``donor``: arrays of shape (n_samples,), 1 where a row has cells missing
            here, or serves as donor here; ``magnitude`` as `magnitude` tells it.
        """
        self.state["n_neighbors"] = n_neighbors
        self.state["weighting"] = weighting
        self.state["standardize"] = standardize
        self.state["complete_blocks"] = complete_blocks
        donor = self.is_donor
        missing = self.missing_cells(complete_blocks)
        self._check_donors(donor, missing, n_neighbors)
        if self._features.n_columns > _MOST_COLUMNS:
            raise DataError(
                f"party {self.name!r} has {self._features.n_columns} columns; shared columns are "
                f"counted in 16 bits, so at most {_MOST_COLUMNS} can take part"
            )
        return Summands(
            {
                "needs": missing.any(axis=1).view(np.uint8),
                "donor": donor.view(np.uint8),
                "magnitude": magnitude(self._features, weighting),
            },
            public={"fitted": self.fitted is not None},
        )

    def _check_donors(
        self, donor: npt.NDArray[np.bool_], missing: npt.NDArray[np.bool_], n_neighbors: int
    ) -> None:
        for j, name in enumerate(self.table.columns):
            available = int((~np.isnan(self.codes[donor, j])).sum())
            if missing[:, j].any() and available < n_neighbors:
                raise DataError(
                    f"party {self.name!r}, column {name!r}: n_neighbors = {n_neighbors} but only "
                    f"{available} donors have a value; use a smaller n_neighbors or leave the "
                    "column out"
                )

    @step
    def impute(
        self,
        rows: Indices,
        last: bool,
        done: Indices | None = None,
        neighbours: npt.NDArray[np.int32] | None = None,
        weights: npt.NDArray[np.float64] | None = None,
        exhausted: bool = False,
        scale: float = 1.0,
    ) -> Summands:
        """Impute the previous block from its ranked donors and send distances of the next one.

        Parameters
        ----------
        rows : numpy.ndarray of shape (n_rows,)
            Rows of the next block, empty at the end.
        last : bool
            No block follows unless some party falls short: write the table if it is complete.
        done : numpy.ndarray of shape (n_done,), optional
            Rows of the previous block.
        neighbours, weights : numpy.ndarray of shape (n_done, width), optional
            Their ranked donors, as aligned rows, and relative weights.
        exhausted : bool
            The lists name every donor there is; what they lack cannot be had.
        scale : float
            Multiplies the distances, so that they fill the range of the private sum.

        Returns
        -------
        Summands
            ``distance``, ``weight`` of shape (n_rows, n_donors); ``short`` of shape (n_done,), 1
            where the list was too short for some cell here.
        """
        summands: dict[str, Any] = {}
        if done is not None and neighbours is not None:
            summands["short"] = self._fill(done, neighbours, weights, exhausted)
        if len(rows):
            sums, shared = squared_distances(self._features, rows, self._donor_rows, scale)
            summands["distance"], summands["weight"] = party_terms(
                sums, shared, self.state["weighting"]
            )
        public: dict[str, Any] = {}
        if last:
            # From every party, done or not: else the server would learn whose lists were short.
            public = {
                "cells-imputed": int(self._needed.sum()),
                "cells-without-neighbour": int(self.state.get("n_fallback", 0)),
            }
            if not self._open.any():
                public |= self._finish()
        return Summands(summands, public)

    def _fill(
        self,
        rows: Indices,
        neighbours: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float64] | None,
        exhausted: bool,
    ) -> npt.NDArray[np.uint8]:
        """Impute the open cells of some rows; return 1 where a row needs a longer list."""
        imputed, still_open = self._imputed.copy(), self._open.copy()
        short = np.zeros(len(rows), dtype=bool)
        kinds = list(self.table.kinds.values())
        complete: npt.NDArray[np.bool_] = np.any(neighbours < 0, axis=1) | exhausted
        fallback = self.cache.setdefault(
            "fallback", fill_values(self._donor_codes, self.table.kinds)
        )
        for j, kind in enumerate(kinds):
            here = np.flatnonzero(still_open[rows, j])
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
            imputed[rows[here[settled]], j] = values[settled]
            still_open[rows[here[settled]], j] = False
            short[here[~settled]] = True
            self.state["n_fallback"] = int(self.state.get("n_fallback", 0)) + int(unknown.sum())
        self.state["imputed"], self.state["open"] = imputed, still_open
        return short.view(np.uint8)

    def _finish(self) -> dict[str, float]:
        filled = np.where(np.isnan(self.codes), self._imputed, self.codes)
        return self.accuracy(self.write(filled, self.state["complete_blocks"]))

    @property
    def _needed(self) -> npt.NDArray[np.bool_]:
        """Cells to impute, array of shape (n_samples, n_columns)."""
        if "needed" not in self.cache:
            self.cache["needed"] = self.missing_cells(bool(self.state["complete_blocks"]))
        needed: npt.NDArray[np.bool_] = self.cache["needed"]
        return needed

    @property
    def _open(self) -> npt.NDArray[np.bool_]:
        opened: npt.NDArray[np.bool_] = self.state.get("open", self._needed)
        return opened

    @property
    def _imputed(self) -> npt.NDArray[np.float64]:
        if "imputed" in self.state:
            imputed: npt.NDArray[np.float64] = self.state["imputed"]
            return imputed
        return np.full(self.codes.shape, np.nan)

    @property
    def _donor_rows(self) -> Indices | None:
        """Rows of the donors among the aligned ones; None for all."""
        rows: Indices | None = self.state.get("donors")
        return rows

    @property
    def _donor_codes(self) -> npt.NDArray[np.float64]:
        rows = self._donor_rows
        return self.codes if rows is None else self.codes[rows]

    @property
    def _features(self) -> Features:
        if "features" not in self.cache:
            kinds: list[Kind] = list(self.table.kinds.values())
            n_levels = [
                0 if is_numeric(kind) else len(self.levels[name])
                for name, kind in self.table.kinds.items()
            ]
            self.cache["features"] = make_features(
                self.codes, kinds, n_levels, bool(self.state["standardize"]), self.is_donor
            )
        features: Features = self.cache["features"]
        return features
