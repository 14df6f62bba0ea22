"""A partitioner for ``flwr-datasets``: columns split over parties, and rows that some lack.

A vertical partitioner of ``flwr-datasets`` deals the columns; every partition has all rows then,
in the same order and without IDs. `MissingBlockPartitioner` puts it inside: partitions get sample
IDs, and rows are removed from them completely at random.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete import Mask, at_least_one_party
from flwr_vertical.optional import require

if TYPE_CHECKING:
    from datasets import Dataset

try:
    from flwr_datasets.partitioner import Partitioner
except ModuleNotFoundError:  # said in words as soon as a partitioner is made
    Partitioner = object

_WHAT = "MissingBlockPartitioner"


class MissingBlockPartitioner(Partitioner):  # type: ignore[misc]
    """Gives each party some columns, sample IDs, and not all of the rows.

    Each partition has an order of rows of its own, as tables of different organisations have.

    Examples
    --------
    >>> from flwr_datasets.partitioner import VerticalSizePartitioner  # doctest: +SKIP
    >>> columns = VerticalSizePartitioner([4, 2], active_party_columns="income")  # doctest: +SKIP
    >>> partitioner = MissingBlockPartitioner(columns, missing=[0.3, 0.1])  # doctest: +SKIP
    """

    def __init__(
        self,
        columns: Partitioner,
        *,
        missing: float | Sequence[float] = 0.2,
        overlap: float = 0.0,
        id_column: str | None = None,
        seed: int = 0,
    ) -> None:
        require("flwr_datasets", _WHAT)
        super().__init__()
        if not isinstance(columns, Partitioner) or columns.is_dataset_assigned():
            raise ConfigError(
                f"{_WHAT}: columns = {columns!r}; expected a partitioner of flwr-datasets that "
                "deals columns and has no dataset yet"
            )
        rates = [missing] if isinstance(missing, int | float) else list(missing)
        if not rates or not all(0 <= rate < 1 for rate in rates):
            raise ConfigError(f"{_WHAT}: missing = {missing!r}; expected shares in [0, 1)")
        if not 0 <= overlap <= 1:
            raise ConfigError(f"{_WHAT}: overlap = {overlap!r}; expected a share in [0, 1]")
        if max(rates) > 1 - overlap:
            raise ConfigError(
                f"{_WHAT}: a party lacks the share {max(rates)} of the rows, but all have the "
                f"share {overlap} of them; missing + overlap must be 1 at most"
            )
        self._columns, self._missing, self._rates = columns, missing, rates
        self._overlap, self._id_column, self._seed = overlap, id_column, seed
        self._mask: Mask | None = None
        self._ids: list[Any] = []

    @property
    def num_partitions(self) -> int:
        """Number of parties."""
        self._prepare()
        return int(self._columns.num_partitions)

    @property
    def mask(self) -> Mask:
        """The missing blocks: an array of bool, of shape (n_samples, n_parties), True = missing."""
        self._prepare()
        assert self._mask is not None
        return self._mask

    def load_partition(self, partition_id: int) -> "Dataset":
        """Return a party's columns and IDs, of the rows that it has, in an order of its own."""
        self._prepare()
        if not 0 <= partition_id < self.num_partitions:
            raise IndexError(
                f"partition {partition_id} of {self.num_partitions}; they are counted from 0"
            )
        name = self._id_column or "id"
        found = self._columns.load_partition(partition_id)
        if len(found) != len(self._ids):
            raise ConfigError(
                f"{_WHAT}: {type(self._columns).__name__} deals rows, not columns; expected a "
                "VerticalEvenPartitioner or VerticalSizePartitioner"
            )
        found = found.add_column(name, self._ids)
        rows = np.flatnonzero(~self.mask[:, partition_id])
        order = np.random.default_rng([self._seed, partition_id]).permutation(rows)
        others = [column for column in found.column_names if column != name]
        return found.select_columns([name, *others]).select(order)

    def load_table(self, partition_id: int) -> pd.DataFrame:
        """Return the same as a table indexed by sample ID, as `simulate` and `Table` take it."""
        found: pd.DataFrame = self.load_partition(partition_id).to_pandas()
        return found.set_index(self._id_column or "id")

    def _prepare(self) -> None:
        if self._mask is not None:
            return
        data, name = self.dataset, self._id_column
        if name is None:
            if "id" in data.column_names:
                raise ConfigError(
                    f"{_WHAT}: the dataset has a column 'id'; say id_column='id' if it has the "
                    "sample IDs, or rename it"
                )
            self._ids = [f"sample-{number:06d}" for number in range(len(data))]
        else:
            self._ids = self._read_ids(data, name)
            data = data.remove_columns(name)
        if not self._columns.is_dataset_assigned():
            self._columns.dataset = data
        count = int(self._columns.num_partitions)
        if len(self._rates) not in (1, count):
            raise ConfigError(
                f"{_WHAT}: missing has {len(self._rates)} values for {count} partitions"
            )
        self._mask = self._make_mask(len(data), count)

    def _read_ids(self, data: "Dataset", name: str) -> list[Any]:
        if name not in data.column_names:
            raise ConfigError(
                f"{_WHAT}: no column {name!r} in the dataset; it has {data.column_names}"
            )
        ids = list(data[name])
        absent = sum(value is None for value in ids)
        if absent or len(set(ids)) < len(ids):
            twice = len(ids) - absent - len(set(ids) - {None})
            raise ConfigError(
                f"{_WHAT}: the column {name!r} has {absent} empty IDs and {twice} that occur "
                "before; a sample ID must be there and be unique"
            )
        return ids

    def _make_mask(self, n_samples: int, n_parties: int) -> Mask:
        """Draw the rows that each party lacks: so many as asked for, and none that all lack."""
        rng = np.random.default_rng(self._seed)
        each = self._rates * (n_parties if len(self._rates) == 1 else 1)
        lacks = [round(rate * n_samples) for rate in each]
        rest = rng.permutation(n_samples)[round(self._overlap * n_samples) :]
        if sum(lacks) > (n_parties - 1) * len(rest):
            raise ConfigError(
                f"{_WHAT}: missing = {self._missing!r} and overlap = {self._overlap} leave rows "
                "that no party has; lower one of them"
            )
        mask = np.zeros((n_samples, n_parties), dtype=bool)
        for k, count in enumerate(lacks):
            mask[rng.permutation(rest)[: min(count, len(rest))], k] = True
        mask = at_least_one_party(mask, seed=rng)
        # What was given back is taken from rows that others have, so that the shares stay.
        for k, count in enumerate(lacks):
            spare = rest[~mask[rest, k] & (mask[rest].sum(axis=1) < n_parties - 1)]
            mask[rng.permutation(spare)[: count - int(mask[:, k].sum())], k] = True
        return mask


def tables_of(
    partitioner: MissingBlockPartitioner, names: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Return all partitions as tables by party, ready for `flwr_vertical.simulate`."""
    if len(names) != partitioner.num_partitions or len(set(names)) < len(names):
        raise ConfigError(
            f"{list(names)} are not the names of {partitioner.num_partitions} different parties"
        )
    return {name: partitioner.load_table(k) for k, name in enumerate(names)}
