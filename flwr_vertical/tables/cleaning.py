"""What an owner has changed in a table as it is read: missing cells, columns, form of IDs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables.ids import check_normalisation, normal_index

MISSING, MISSING_IN, DROP, IDS = "csv.missing", "missing.", "drop-columns", "normalise-ids"
"""Keys of the node config; the second is the beginning of keys, one for each column."""


@dataclass(frozen=True)
class Cleaning:
    """What is changed in a table as it is read; by default nothing."""

    missing: tuple[str, ...] = ()  # Marks of missing cells in all columns, texts or numbers
    # Further marks, by column
    missing_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: tuple[str, ...] = ()  # Columns that are left out
    # Steps by which sample IDs are written alike, see `flwr_vertical.tables.ids.normal_index`
    ids: tuple[str, ...] = ()

    @classmethod
    def of_node_config(cls, config: Mapping[str, Any]) -> Self:
        """Return what a node config states; raises `ConfigError` for a step that is none."""
        by_column = {
            key.removeprefix(MISSING_IN): _marks(value)
            for key, value in config.items()
            if key.startswith(MISSING_IN)
        }
        try:
            ids = check_normalisation(str(config.get(IDS, "")), at_node=True)
        except ConfigError as error:
            raise ConfigError(f"node config {IDS} = {config[IDS]!r}: {error}") from None
        missing = _marks(config[MISSING]) if MISSING in config else ()
        dropped = [name for name in _marks(config.get(DROP, "")) if name]
        return cls(missing, by_column, tuple(dropped), tuple(ids))

    def marks(self, column: str) -> list[str]:
        """Return the marks of missing cells in a column."""
        return [*self.missing, *self.missing_in.get(column, ())]

    def apply(self, frame: pd.DataFrame, where: str) -> pd.DataFrame:
        """Return the changed table, by sample ID; `DataError` if `where` lacks a column."""
        named = dict.fromkeys(self.drop, DROP) | {n: MISSING_IN + n for n in self.missing_in}
        if lacking := [name for name in named if name not in frame.columns]:
            raise DataError(
                f"{where} has no column {lacking[0]!r}, which {named[lacking[0]]} of the node "
                f"config names; there are {', '.join(map(str, frame.columns))}"
            )
        frame = frame.drop(columns=list(self.drop))
        marked = {name: self.marks(str(name)) for name in frame.columns}
        blanked = {name: _without(frame[name], m) for name, m in marked.items() if m}
        frame = frame.assign(**blanked)
        return frame.set_axis(normal_index(frame.index, self.ids)) if self.ids else frame


def _marks(value: object) -> tuple[str, ...]:
    """Return what stands between commas; nothing is a mark as well, the empty text."""
    return tuple(part.strip() for part in str(value).split(","))


def _without(column: "pd.Series[Any]", marks: Iterable[str]) -> "pd.Series[Any]":
    """Return a column with NaN where a mark was."""
    values: Any = list(marks)
    if pd.api.types.is_numeric_dtype(column.dtype):
        values = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").dropna()
    hit = column.isin(values)
    if not hit.any():
        return column
    blank = column.mask(hit)
    levels = isinstance(column.dtype, pd.CategoricalDtype)
    return (
        blank.cat.remove_categories([v for v in values if v in blank.cat.categories])
        if levels
        else blank
    )
