"""The party half of moments: its standardised columns enter private products, and nothing else."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Summands, step
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.products import HeldColumns, PairKeySteps, PrivateProductSteps
from flwr_vertical.products.row_groups import min_rows
from strategies.regression.data import RegressionData

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LEFT_OUT = "moments.left-out"
# Under a prefix that the server may not write to.
_FIXED = "node.moments.rows"
_OFFERED = "moments.offered"
_ROUNDING = 1e-12


class MomentSteps(PrivateProductSteps):
    """Offers a party's columns for products, on the rows that the server groups.

    The party also uses `RegressionData`, `PairKeySteps` and `GroupKeySteps`. Columns are
    standardised over the rows that take part: their mean and standard deviation there are functions
    of the sums that are opened, so they tell nothing more.
    """

    @step
    def prepare_moments(
        self,
        nonce: bytes,
        columns_of: str = "",
        labelled: npt.NDArray[np.uint8] | None = None,
        **settings: Any,
    ) -> Summands:
        """Prepare the table, and make the key pair of this run.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        columns_of : str
            The only party whose columns are wanted; all parties' if empty.
        labelled, **settings
            See `RegressionData.prepare`.

        Returns
        -------
        Summands
            Nothing to be summed; publicly what `RegressionData.prepare` and
            `PairKeySteps.pair_key` tell, and ``min_rows``, if the node config states it.
        """
        offered = columns_of in ("", self.name)
        self.state[_OFFERED] = offered
        if offered:
            told = dict(self.other(RegressionData).prepare(labelled=labelled, **settings).public)
        else:
            told = self._nothing_offered(labelled)
        told |= self.other(PairKeySteps).pair_key(nonce)
        if self._own_minimum is not None:
            told["min_rows"] = self._own_minimum
        return Summands({}, told)

    def _nothing_offered(self, labelled: npt.NDArray[np.uint8] | None) -> dict[str, Any]:
        held = self.party.positions[self.party.positions >= 0]
        if labelled is None:
            labelled = np.ones(self.party.n_samples, dtype=np.uint8)
        self.state["moments.n-labelled"] = int(np.sum(labelled))
        return {
            "columns": [],
            "n_observed": int(np.asarray(labelled)[held].astype(bool).sum()),
            "dropped": np.zeros(0, dtype=np.int64),
            "collinear": [],
        }

    def send_masked(self, limbs: int, owner: str, sealed: bytes, **keys: Any) -> dict[str, Any]:
        """Hand over the masked columns, and what they were standardised by.

        Which rows the server leaves out of this party's is fixed from now on.

        Parameters
        ----------
        limbs, owner, sealed, **keys
            See `PrivateProductSteps.send_masked`.

        Returns
        -------
        dict[str, numpy.ndarray or bytes]
            As there, and ``center`` and ``unit`` of each column, shape (n_columns,).

        Raises
        ------
        DataError
            If too few rows are left to tell their mean.
        ProtocolError
            If other rows took part before.
        """
        columns = self._columns()
        n_rows, n_columns = columns.values.shape
        needed = self._own_minimum or min_rows(n_columns, 1)
        if 0 < n_rows < needed:
            raise DataError(
                f"party {self.name!r}: {n_rows} of its rows take part, and of fewer than {needed} "
                "nothing is told; leave them out"
            )
        told = super().send_masked(limbs, owner, sealed, **keys)
        center, unit = self._standard
        return told | {"center": center, "unit": unit}

    # -- the columns -----------------------------------------------------------------------

    def _columns(self) -> HeldColumns:
        if "moments.columns" not in self.cache:
            raw, rows, n_labelled = self._kept
            self._fix(rows, n_labelled)
            center, unit = self._standard
            # Rounding leaves a constant column with tiny values: these are zero.
            small = np.abs(raw - center).max(axis=0, initial=0.0) <= _ROUNDING * np.abs(center)
            values = np.where(small, 0.0, (raw - center) / unit)
            self.cache["moments.columns"] = HeldColumns(values, rows, n_labelled)
        columns: HeldColumns = self.cache["moments.columns"]
        return columns

    def _fix(self, rows: Indices, n_labelled: int) -> None:
        """Refuse other rows than those that took part before."""
        labelled = np.asarray(self.state.get("labelled", np.zeros(0, dtype=np.uint8)))
        parts = (rows.astype(np.int64), np.int64(n_labelled), labelled.astype(np.uint8))
        chosen = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if self.state.setdefault(_FIXED, chosen) != chosen:
            raise ProtocolError(
                f"party {self.name!r}: other rows are to take part than when its columns were sent "
                "first; the difference would tell of single rows"
            )

    @property
    def _kept(self) -> tuple[Array, Indices, int]:
        """Own rows that take part, their numbers among labelled samples, and how many these are."""
        if not self.state[_OFFERED]:
            n_labelled = int(self.state["moments.n-labelled"])
            return np.zeros((0, 0)), np.zeros(0, dtype=np.int64), n_labelled
        data = self.other(RegressionData)
        left_out = np.asarray(self.state.get(LEFT_OUT, np.zeros(0, dtype=np.int64)))
        kept = ~np.isin(data.rows, left_out)
        return data.raw[kept], data.rows[kept], data.n_labelled

    @property
    def _standard(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each column over the rows that take part."""
        if "moments.standard" not in self.cache:
            raw = self._kept[0]
            center, unit = np.zeros(raw.shape[1]), np.ones(raw.shape[1])
            if len(raw):
                center, spread = raw.mean(axis=0), raw.std(axis=0)
                varies = spread > _ROUNDING * np.abs(raw).max(axis=0)
                unit = np.where(varies, spread, 1.0)
            self.cache["moments.standard"] = center, unit
        standard: tuple[Array, Array] = self.cache["moments.standard"]
        return standard
