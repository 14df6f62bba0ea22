"""A party's table as columns whose sums of products tell how its variables go together.

A variable of numbers is offered as its value and as its rank; a variable of levels as an indicator
of each. Where cells are missing, an indicator of those observed, and squares, let correlations be
of the rows in which both variables are observed, as pandas has them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.columns import rank_scores
from flwr_vertical.products.rare_levels import MOST_LEVELS, level_codes
from flwr_vertical.products.row_groups import levels_are_safe
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import fit_levels
from strategies.linear.design import OTHER
from strategies.linear.moments.steps import rough_units

_SINGLE = 100_000
"""From so many rows on, rounding to 32 bits is below that of products in one limb."""


@dataclass
class Variables:
    """What the offered columns of a party are, by variable; -1 where there is no such column."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    value: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    square: list[int] = field(default_factory=list)  # Of the value
    rank_square: list[int] = field(default_factory=list)
    observed: list[int] = field(default_factory=list)  # -1: it counts as observed everywhere
    first_level: list[int] = field(default_factory=list)
    n_levels: list[int] = field(default_factory=list)  # 0 of numbers
    levels: list[str] = field(default_factory=list)  # Of all variables, one after the other
    # A value is ``center + unit * z`` with ``z`` the offered column
    center: list[float] = field(default_factory=list)
    unit: list[float] = field(default_factory=list)
    filled: list[bool] = field(default_factory=list)  # Cells are missing, and are not told of

    def to_plain(self) -> dict[str, Any]:
        """Return what travels."""
        return dict(vars(self))

    @classmethod
    def from_plain(cls, told: Mapping[str, Any], party: str) -> "Variables":
        """Read what a party told, or refuse it."""
        found = cls(**{name: list(told[name]) for name in vars(cls())})
        lengths = {len(v) for name, v in vars(found).items() if name != "levels"}
        if len(lengths) > 1 or sum(found.n_levels) != len(found.levels):
            raise ProtocolError(f"party {party!r} described its columns by lists of other lengths")
        return found

    def levels_of(self, j: int) -> slice:
        """Return the columns that hold the levels of a variable."""
        return slice(self.first_level[j], self.first_level[j] + self.n_levels[j])


@dataclass(frozen=True)
class OfferedVariables:
    """Columns of a party's own rows."""

    # (n_rows, n_columns): 0 in cells that are missing
    values: AnyArray
    variable: Indices  # (n_columns,): of which it holds a level, -1 of other columns
    of: Indices  # (n_columns,): number of the variable that it comes from
    squares: Array  # (n_columns,): sums of squares over the whole table
    variables: Variables


def sizes(table: Table, policy_rows: int | None) -> dict[str, int]:
    """Count what could be offered: levels, numbers, and different sets of missing cells."""
    rare = _Rare(len(table.frame), len(table.columns), policy_rows)
    found, masks = {"levels": 0, "numbers": 0, "gaps": 0}, set()
    for name, kind in table.kinds.items():
        missing = table.frame[name].isna().to_numpy()
        found["levels"] += len(_groups(table.frame[name], kind, missing, rare))
        found["numbers"] += is_numeric(kind) or kind is Kind.ORDINAL
        if missing.any() and not rare(int(missing.sum())):
            masks.add(np.packbits(missing).tobytes())
    return found | {"gaps": len(masks)}


def offer(
    table: Table,
    rows: Indices,
    policy_rows: int | None,
    ranks: bool,
    gaps: bool,
    smallest: int,
    widest: int,
) -> OfferedVariables:
    """Make the columns of the rows that take part, in their order.

    Units, ranks and levels are those of the whole table, which the server does not choose. With
    `gaps` it is told which cells are observed; another party's may be missing, so squares are
    needed, too. Without, missing cells count as the mean, or the most frequent level. So they do in
    a variable of which too few cells are likely to be missing in the `smallest` set over which sums
    are told, with the `widest` other party: all that is told of it would be withheld.

    Shapes: rows (n_rows,): of the table; `policy_rows`: the fewest rows of a set that its owner
    tells of.
    """
    made, columns = Variables(), _Columns(len(table.frame), rows)
    masks: dict[bytes, int] = {}
    rare = _Rare(len(table.frame), len(table.columns), policy_rows)
    rare_in_set = _Rare(smallest, widest, policy_rows)
    for number, (name, kind) in enumerate(table.kinds.items()):
        column = table.frame[name]
        missing = column.isna().to_numpy()
        expected = missing.mean() * smallest
        likely = max(int(expected - 2.0 * math.sqrt(expected)), 1)  # 2 standard deviations
        told = gaps and bool(missing.any()) and not rare_in_set(likely)
        made.names.append(str(name))
        made.kinds.append(kind.value)
        made.filled.append(bool(missing.any()) and not told)
        levels = _levels(column, kind, missing, rare)
        made.n_levels.append(len(levels))
        made.levels += list(levels)
        made.first_level.append(
            columns.add(
                number, *(np.where(missing & told, 0.0, flags) for flags in levels.values())
            )
        )
        value = rank = square = rank_square = -1
        center, unit = 0.0, 1.0
        if len(levels) == 2:  # the second level's indicator is a number, too
            value = rank = made.first_level[-1] + 1
            square = rank_square = value
        elif is_numeric(kind) or kind is Kind.ORDINAL:
            z, center, unit = _value(column, kind, missing)
            z[missing] *= not told
            value, square = columns.add_number(number, z, gaps)
            if ranks:
                scores = rank_scores(np.where(missing, np.nan, z)[:, None])[:, 0]
                rank, rank_square = columns.add_number(number, scores, gaps)
        observed = -1
        if told:
            key = np.packbits(missing).tobytes()
            if key not in masks:
                masks[key] = columns.add(number, (~missing).astype(np.float64))
            observed = masks[key]
        for at, what in zip(
            (made.value, made.rank, made.square, made.rank_square, made.observed),
            (value, rank, square, rank_square, observed),
            strict=True,
        ):
            at.append(what)
        made.center.append(float(center))
        made.unit.append(float(unit))
    of = np.array(columns.variable, dtype=np.int64)
    level = np.zeros(len(of), dtype=bool)
    for j in range(len(made.names)):
        level[made.levels_of(j)] = made.n_levels[j] > 0
    return OfferedVariables(
        columns.values, np.where(level, of, -1), of, np.array(columns.squares), made
    )


def made_again(
    table: Table, policy_rows: int | None, *asked: int
) -> tuple[AnyArray, list[frozenset[str]]]:
    """Return all that `offer` made of a table; `asked`: ranks, gaps, smallest, widest."""
    ranks, gaps, *sets = asked
    rows = np.arange(len(table.frame))
    made = offer(table, rows, policy_rows, bool(ranks), bool(gaps), *sets)
    return made.values, [frozenset([made.variables.names[v]]) for v in made.of]


class _Columns:
    """Columns as they are made: the rows that take part of each, and its sum of squares."""

    def __init__(self, n_own: int, rows: Indices) -> None:
        self._rows = slice(None) if np.array_equal(rows, np.arange(n_own)) else rows
        self._n_rows = len(rows)
        self._dtype = np.float32 if n_own >= _SINGLE else np.float64
        self._made: list[AnyArray] = []
        self.variable: list[int] = []
        self.squares: list[float] = []

    def add(self, variable: int, *columns: Array) -> int:
        """Add columns of a variable; return the number of the first, -1 if there is none."""
        first = len(self._made) if columns else -1
        for column in columns:
            self._made.append(column[self._rows].astype(self._dtype))
            self.variable.append(variable)
            self.squares.append(float(column @ column))
        return first

    def add_number(self, variable: int, column: Array, squared: bool) -> tuple[int, int]:
        """Add a column, and its squares if they are wanted; return their numbers."""
        return self.add(variable, column), self.add(variable, *[column**2] * squared)

    @property
    def values(self) -> AnyArray:
        """All columns side by side; those kept so far are let go."""
        out = np.empty((self._n_rows, len(self._made)), self._dtype)
        for j in range(len(self._made)):
            out[:, j], self._made[j] = self._made[j], out[:0, j]
        return out


def _value(column: "pd.Series[Any]", kind: Kind, missing: Flags) -> tuple[Array, float, float]:
    """Return a variable in rough units, with its mean in missing cells; and centre and unit."""
    if kind is Kind.ORDINAL:
        [levels] = fit_levels([Table(column.to_frame(), {str(column.name): kind})]).values()
        number = {level: float(code) for code, level in enumerate(levels)}
        raw = np.array([number.get(v, np.nan) for v in column.astype(object)], dtype=np.float64)
    else:
        raw = column.to_numpy(dtype=np.float64, na_value=np.nan)
    known = raw[~missing]
    if not len(known):
        return np.zeros(len(raw)), 0.0, 1.0
    few = np.array([level_codes(known) is not None])
    center, unit = (float(x[0]) for x in rough_units(known[:, None], few))
    z = (raw - center) / unit
    z[missing] = z[~missing].mean()
    return z, center, unit


class _Rare:
    """Whether so few rows would be withheld, as sums might tell which they are.

    Counted as products that another party learns of (`ToldRows.admit_pairs`), one with as many
    columns as this one.
    """

    def __init__(self, n_rows: int, n_columns: int, policy_rows: int | None) -> None:
        bits = n_columns * (1.0 + 0.5 * math.log2(max(n_rows, 2)))
        self._n_rows, self._n_vectors = n_rows, math.ceil(bits / 64.0) + 1
        self._policy_rows = policy_rows

    def __call__(self, count: int) -> bool:
        counts = np.array([count, self._n_rows - count])
        return not levels_are_safe(counts, self._n_vectors, self._policy_rows)


def _groups(
    column: "pd.Series[Any]", kind: Kind, missing: Flags, rare: _Rare
) -> dict[str, list[Any]]:
    """Return the levels of a variable, rare ones together; none of numbers, or of one level."""
    if is_numeric(kind) or kind is Kind.ORDINAL:
        return {}
    counts = column[~missing].value_counts()
    levels, rows = list(counts.index), counts.to_numpy()  # The most frequent first
    n = min(sum(not rare(int(count)) for count in rows), MOST_LEVELS)
    if n < len(levels):
        n = min(n, MOST_LEVELS - 1)
        while n and rare(int(rows[n:].sum())):
            n -= 1
    named, rest = sorted(levels[:n], key=lambda v: (str(type(v)), v)), levels[n:]
    groups: dict[str, list[Any]] = {str(level): [level] for level in named}
    if rest:
        label = OTHER
        while label in groups:
            label += "."
        groups[label] = rest
    return groups if len(groups) > 1 else {}


def _levels(column: "pd.Series[Any]", kind: Kind, missing: Flags, rare: _Rare) -> dict[str, Array]:
    """Return an indicator of each level; that of the most frequent one in missing cells."""
    groups = _groups(column, kind, missing, rare)
    found: dict[str, Array] = {
        label: column.isin(of).to_numpy().astype(np.float64) for label, of in groups.items()
    }
    if found:
        largest = max(found, key=lambda label: float(found[label].sum()))
        found[largest] = np.maximum(found[largest], missing)
    return found
