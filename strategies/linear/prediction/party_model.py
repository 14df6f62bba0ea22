"""What a party keeps of a linear model: its own coefficients, and how its rows become numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Model, Table
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.tables.codes import fit_levels, level_numbers, level_text
from strategies.linear.design import fitted_numbers
from strategies.linear.formula_design import new_columns


@dataclass
class LinearPart(Model):
    """A party's own coefficients; enough to multiply new rows without any other party."""

    strategy = "predict"
    version = 4

    model: str  # Which model it belongs to: the digest by which the server names it
    parties: list[str]  # Parties of the fit
    present: Flags  # (n_patterns, n_parties): parties that each of the regressions uses
    columns: list[str]  # Own columns of the fit, ``column=level`` for a level
    sources: list[str]  # Column of the table that each comes from
    levels: list[str]  # The level that each is 1 for; empty for a numeric column
    # By column of levels, all that the fit knew, the baseline included
    known_levels: dict[str, list[str]]
    # By column of levels, those that were too rare and count as one level
    other: dict[str, list[str]]
    # (n_patterns * n_outputs, n_own_columns): per unit of the columns; all scores of a pattern
    # stand together
    coefficients: Array
    offsets: Array  # (n_patterns * n_outputs,): subtracted from the row's terms
    grid: float  # Terms are counted in this unit
    coarser: int  # Terms are rounded to ``2**coarser`` units
    # lowest, highest: (n_patterns * n_outputs,): what terms may be, in these units; others are
    # brought to the nearer
    lowest: Indices
    highest: Indices
    bits: int  # What one term tells at most
    n_outputs: int = 1  # Scores of a row
    formula: str = ""  # What makes the columns, if a formula does; see `formula_design.Kept`

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Read parts from before rare levels counted as one, of one score, and without formula."""
        if version not in (1, 2, 3):
            return super().upgrade(version, fields)
        return {"other": {}, "n_outputs": 1, "formula": "", **fields}

    def features(self, table: Table, party: str) -> Array:
        """Return the columns of the fit from a new table, NaN where a cell is missing or new."""
        if self.formula:
            return new_columns(self.formula, table, party)
        of = self.sources, self.levels, self.known_levels, self.other
        return fitted_features(table, *of, party)

    def terms(self, rows: Array, pattern: Indices) -> tuple[Indices, int]:
        """Return what these rows add to the prediction, in units of the grid.

        Shapes: rows (n_rows, n_own_columns): finite values, as from `features`; pattern (n_rows,):
        number of the regression of each row; returns (n_rows, n_outputs), or (n_rows,) of one.
        """
        unit, outside = 2.0**self.coarser, 0
        found = np.zeros((len(rows), self.n_outputs), dtype=np.int64)
        for number in np.unique(pattern):
            own = slice(number * self.n_outputs, (number + 1) * self.n_outputs)
            chosen = pattern == number
            exact = rows[chosen] @ self.coefficients[own].T - self.offsets[own]
            rounded = np.rint(exact / self.grid / unit) * unit
            low, high = self.lowest[own], self.highest[own]
            outside += int(((rounded < low) | (rounded > high)).any(axis=1).sum())
            found[chosen] = np.clip(rounded, low, high)
        return (found if self.n_outputs > 1 else found[:, 0]), outside


def fitted_features(
    table: Table,
    sources: list[str],
    levels: list[str],
    known_levels: dict[str, list[str]],
    other: dict[str, list[str]],
    party: str,
) -> Array:
    """Return the columns of a fit from a new table, NaN where a cell is missing or unknown."""
    found = np.empty((len(table.frame), len(sources)))
    numbers: dict[str, Indices] = {}
    for j, (source, level) in enumerate(zip(sources, levels, strict=True)):
        if source not in table.frame.columns:
            raise DataError(
                f"party {party!r} has no column {source!r}, which the model uses; its columns "
                f"are {table.columns}"
            )
        column = table.frame[source]
        if source in known_levels:
            known = known_levels[source]
            if source not in numbers:
                numbers[source] = level_numbers(column, known, party)
            own = numbers[source]
            of = [known.index(text) for text in ([level] if level in known else other[source])]
            found[:, j] = np.where(own < 0, np.nan, np.isin(own, of))
            continue
        found[:, j] = fitted_numbers(column, party)
    return found


def column_sources(table: Table, origins: Mapping[str, tuple[str, list[Any]]]) -> dict[str, Any]:
    """Say where the columns of a fit come from."""
    sources, levels = [], []
    known: dict[str, list[str]] = {}
    other: dict[str, list[str]] = {}
    for column, (name, of) in origins.items():
        sources.append(name)
        if not of:
            levels.append("")
            continue
        if name not in known:
            found = fit_levels([Table(table.frame[[name]], {name: table.kinds[name]})])[name]
            known[name] = [level_text(level) for level in found]
        if len(of) > 1 or column != f"{name}={of[0]}":
            other[name] = [level_text(level) for level in of]
            levels.append(column.removeprefix(f"{name}="))
        else:
            levels.append(level_text(of[0]))
    return {"sources": sources, "levels": levels, "known_levels": known, "other": other}
