"""A party's table as the columns of a formula, and what new rows need to become the same columns.

Levels, knots, means come from all rows of the table whose cells are known, not from those that take
part, which the server chooses. Splines and polynomials are `formulaic`'s, of a formula written
anew: its names are ``v0``, ``v1``, so that no text of the server reaches what evaluates it.
"""

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.optional import require
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products.row_groups import levels_are_safe
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import fit_levels, level_numbers, level_text
from strategies.linear.design import (
    Design,
    complete_rows,
    encode_levels,
    fitted_numbers,
    holds_numbers,
)
from strategies.linear.formula import CALLS, Factor, Term, parse_formula

# Parties of a simulation are threads, and formulaic does not say that it is safe in several: of two
# at once, one failed in one run of many.
_evaluating = threading.Lock()

MOST_COLUMNS = 500
"""Of a party's formula."""

_SPLINES = ("bs", "cr", "cc")


@dataclass
class Kept:
    """What makes a party's columns of a formula of new rows; plain values alone."""

    formula: str
    # By column or C(column) of levels, those of each category; the first is the baseline
    levels: dict[str, list[list[str]]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)  # Of these, the names to be told
    state: dict[str, Any] = field(default_factory=dict)  # formulaic's, by transform
    # By column of B-splines, its smallest and largest number: new ones beyond count as these
    within: dict[str, list[float]] = field(default_factory=dict)
    chosen: list[int] = field(default_factory=list)  # Which of all made columns are kept

    def to_text(self) -> str:
        """Write it as JSON."""
        return json.dumps(vars(self), default=lambda value: np.asarray(value).tolist())

    @classmethod
    def from_text(cls, text: str) -> "Kept":
        """Read it again."""
        kept = cls(**json.loads(text))
        for state in kept.state.values():
            for key, value in state.items():
                if isinstance(value, dict):  # JSON knows texts as keys
                    state[key] = {int(k): v for k, v in value.items()}
                elif key == "constraints":
                    state[key] = np.array(value)
        return kept


@dataclass(frozen=True)
class Made:
    """The columns of a formula."""

    columns: list[str]
    x: Array  # (n_rows, n_columns): NaN where a cell is missing
    kept: Kept
    left_out: list[str]  # Columns of levels, or of sets of them, that too few rows have
    sources: tuple[frozenset[str], ...]  # By column, the columns of the table behind it
    at_least: int  # The fewest rows of a set whose sums may be told; 0: by the rule of all columns


def make_formula_design(
    table: Table, positions: Indices, party: str, formula: str, smallest: int | None = None
) -> Design:
    """Turn a party's table into the columns of a formula, in aligned order; see `make_design`."""
    made = made_columns(table, party, formula, smallest)
    rest = complete_rows(made.x, positions, party)
    text = made.kept.to_text()
    return Design(made.columns, *rest, {}, made.left_out, made.sources, text, made.at_least)


def made_columns(
    table: Table, party: str, formula: str, smallest: int | None, earlier: Sequence[str] = ()
) -> Made:
    """Make the columns of a formula of a table, and what is needed to make them again.

    With those of `earlier` formulas, to count them together.
    """
    kept = Kept(formula)
    of_all = [term for text in (*earlier, formula) for term in parse_formula(text, party)]
    terms = tuple(sorted({frozenset(term): term for term in of_all}.values(), key=len))
    for factor in (factor for term in terms for factor in term):
        _check_column(table, factor, party)
        if (
            factor.call == "C" or not _is_number(table, factor)
        ) and factor.label not in kept.levels:
            _keep_levels(kept, table, factor, party, smallest)
    single = [name for name, found in kept.levels.items() if len(found) < 2]
    used = _used(terms, kept)
    if not used:
        raise DataError(
            f"party {party!r} has no column left by its formula: columns of levels have a single "
            "level, or levels that are too rare"
        )
    width = sum(math.prod(_width(factor, kept) for factor in term) for term in used)
    if width > MOST_COLUMNS:
        raise ConfigError(
            f"party {party!r}: its formula makes up to {width:,} columns, at most {MOST_COLUMNS}"
        )
    needed = min_rows(1, 1) if smallest is None else smallest
    names, x, term_of = _evaluated(table, used, kept, party, needed)
    chosen, left_out = [], single
    known = x[~np.isnan(x).any(axis=1)]
    least = [_least_rows(term, kept, smallest) for term in used]
    for j, name in enumerate(names):
        n = int(np.count_nonzero(known[:, j]))
        if np.isin(known[:, j], (0.0, 1.0)).all():  # a set of levels: as rare levels are
            if not levels_are_safe(np.array([n, len(known) - n]), 1, smallest):
                left_out = [*left_out, name]
                continue
        elif n < least[term_of[j]]:
            raise _too_few(party, name, "not 0", least[term_of[j]])
        chosen.append(j)
    kept.chosen = chosen
    at_least = _fewest(used, kept, len(chosen)) if smallest is None else 0
    sources = tuple(frozenset(f.column for f in used[term_of[j]]) for j in chosen)
    return Made([names[j] for j in chosen], x[:, chosen], kept, left_out, sources, at_least)


def _too_few(party: str, name: str, where: str, needed: int) -> DataError:
    return DataError(
        f"party {party!r}: {name!r} of its formula: fewer than {needed:,} rows are {where}, "
        "and sums would tell of these alone; take fewer degrees of freedom, or leave out the term"
    )


def _least_rows(term: Term, kept: Kept, smallest: int | None) -> int:
    """Return in how many rows a column of numbers of this term is not 0.

    Within a set of levels there are a few sums for each column: as for all rows in `_fewest`.
    """
    if smallest is not None:
        return smallest
    numbers = [factor for factor in term if _variable(factor) not in kept.levels]
    made = math.prod(factor.width for factor in numbers)
    within = _rows_for(made, len(numbers)) if 0 < len(numbers) < len(term) else 0
    return max(min_rows(1, 1), within)


def _rows_for(n_made: int, n_own: int) -> int:
    """Return how many rows a set needs, so that sums for each cell are as few as of a table.

    Sums of products of p columns go with the square of p, cells with the columns of the table.
    """
    return math.ceil(3 * (n_made + 1) * n_made / n_own)


def _fewest(terms: list[Term], kept: Kept, n_made: int) -> int:
    """Return the fewest rows of a set whose sums may be told; 0: by the rule of all columns."""
    own = {factor.column: factor for term in terms for factor in term}
    n_own = sum(len(kept.levels.get(_variable(factor), "01")) - 1 for factor in own.values())
    return _rows_for(n_made, n_own) if n_made > n_own else 0


def new_columns(text: str, table: Table, party: str) -> Array:
    """Return the columns of a formula that was kept, of a new table, (n_rows, n_columns).

    NaN where a cell is missing, holds a level that the fit did not know, or has no logarithm.
    """
    kept = Kept.from_text(text)
    terms = parse_formula(kept.formula, party)
    for factor in (factor for term in terms for factor in term):
        _check_column(table, factor, party)
    return _evaluated(table, _used(terms, kept), kept, party)[1][:, kept.chosen]


def _variable(factor: Factor) -> str:
    """Name what is computed before formulaic: levels, logarithms and roots are, in words."""
    if factor.call in ("bs", "cc"):  # with ends of their own
        return f"{factor.call}({factor.column})"
    return factor.label if factor.call in ("C", "log", "sqrt") else factor.column


def _used(terms: tuple[Term, ...], kept: Kept) -> list[Term]:
    """Return the terms of which no column has a single level."""
    single = {name for name, found in kept.levels.items() if len(found) < 2}
    return [term for term in terms if not single & {_variable(factor) for factor in term}]


def _width(factor: Factor, kept: Kept) -> int:
    return len(kept.levels.get(_variable(factor), "")) or factor.width


def _check_column(table: Table, factor: Factor, party: str) -> None:
    if factor.column not in table.kinds:
        raise DataError(
            f"party {party!r} has no column {factor.column!r}, which its formula names; its "
            f"columns are {table.columns}"
        )


def _is_number(table: Table, factor: Factor) -> bool:
    kind, column = table.kinds[factor.column], table.frame[factor.column]
    return is_numeric(kind) or (kind is Kind.BINARY and holds_numbers(column))


def _keep_levels(
    kept: Kept, table: Table, factor: Factor, party: str, smallest: int | None
) -> None:
    """Keep which levels of a column are told apart; rare ones count as one."""
    if factor.call not in ("", "C"):
        raise DataError(
            f"party {party!r}, column {factor.column!r} holds levels, not numbers, so its formula "
            f"cannot take {factor.label}"
        )
    column = table.frame[factor.column]
    levels = fit_levels([Table(column.to_frame(), {factor.column: Kind.CATEGORICAL})])
    counts = {level: int((column == level).sum()) for level in levels[factor.column]}
    encoded = encode_levels(factor.label, counts, smallest, party).columns
    named = [level for of in encoded.values() for level in of]
    first = [level for level in counts if level not in named]
    found = [first, *encoded.values()] if encoded else [first]
    kept.levels[factor.label] = [[level_text(level) for level in of] for of in found]
    kept.names[factor.label] = [f"{factor.label}={first[0] if first else ''}", *encoded]


def _values(table: Table, factor: Factor, kept: Kept, party: str, fitting: bool) -> Array:
    """Return a variable of the formula, (n_rows,): categories by number; NaN where missing."""
    column, name = table.frame[factor.column], _variable(factor)
    if name in kept.levels:
        number = {text: float(k) for k, of in enumerate(kept.levels[name]) for text in of}
        found = level_numbers(column, list(number), party)
        return np.array([*number.values(), np.nan], dtype=np.float64)[found]
    values = fitted_numbers(column, party)
    if factor.call == "bs":
        if fitting and not np.isnan(values).all():
            kept.within[factor.column] = [np.nanmin(values).item(), np.nanmax(values).item()]
        values = np.clip(values, *kept.within.get(factor.column, (None, None)))
    if factor.call not in ("log", "sqrt"):
        return np.asarray(values)
    outside = np.asarray(values <= 0.0 if factor.call == "log" else values < 0.0)
    if fitting and outside.any():  # of the whole table, whichever rows take part
        raise DataError(
            f"party {party!r}, column {factor.column!r} has values that {factor.label} does not "
            f"take: it needs numbers {'above' if factor.call == 'log' else 'of at least'} 0"
        )
    function = np.log if factor.call == "log" else np.sqrt
    return np.asarray(function(np.where(outside, np.nan, values)))


def _evaluated(
    table: Table, terms: list[Term], kept: Kept, party: str, between: int | None = None
) -> tuple[list[str], Array, list[int]]:
    """Return all columns of these terms, by formulaic: names, values, numbers of their terms.

    `between`: how many rows lie between knots at least, when they are chosen.

    Shapes: values (n_rows, n_columns): NaN in rows with a missing cell.
    """
    fitting = between is not None
    formulaic = require("formulaic", f"the formula of party {party!r}")
    factors = {_variable(factor): factor for term in terms for factor in term}
    place = {name: j for j, name in enumerate(factors)}
    values = [_values(table, factor, kept, party, fitting) for factor in factors.values()]
    known = np.asarray(~np.isnan(np.column_stack(values)).any(axis=1))
    frame = pd.DataFrame({f"v{j}": column[known] for j, column in enumerate(values)})
    for name, j in place.items():
        if name in kept.levels:
            categories = list(range(len(kept.levels[name])))
            frame[f"v{j}"] = pd.Categorical(frame[f"v{j}"].astype(int), categories=categories)
    if fitting and not len(frame):
        raise DataError(
            f"party {party!r}: no row has all columns of its formula; impute the cells first "
            "(strategy 'fknn') or leave out the columns that are mostly missing"
        )
    codes = {_code(f, place[_variable(f)]): f for term in terms for f in term}
    of_factor = {factor: code for code, factor in codes.items()}
    text = "1 + " + " + ".join(":".join(of_factor[f] for f in term) for term in terms)
    # Of a table without rows there is nothing to compute, but there are columns: of one row of 0.
    given = frame if len(frame) else frame.reindex([0]).fillna(0)
    splines = {code: f for code, f in codes.items() if f.call in _SPLINES and fitting}
    own = {code: values[place[_variable(f)]] for code, f in splines.items()}
    knots = {code: _knots(f, own[code], between or 1, party) for code, f in splines.items()}
    transforms = formulaic.transforms.TRANSFORMS
    try:
        with _evaluating:
            for code, f in splines.items():
                kept.state[code] = _spline_state(transforms[f.call], f, own[code], knots[code])
            formula = formulaic.Formula(text)
            spec = formulaic.ModelSpec(formula, transform_state=kept.state, na_action="ignore")
            made = spec.get_model_matrix(given, context={})
    # Its words may hold cells.
    except (formulaic.errors.FormulaicError, ValueError, ArithmeticError):
        raise DataError(
            f"party {party!r}: its formula cannot be computed; are there columns of few different "
            "values in bs, cr, cc or poly? Take fewer degrees of freedom"
        ) from None
    if between is not None:
        kept.state = made.model_spec.transform_state
        for code, factor in splines.items():
            # Splines have sums of their own between two knots.
            if np.histogram(own[code][known], knots[code])[0].min() < between:
                raise _too_few(party, factor.label, "between two knots", between)
    x = np.full((len(known), made.shape[1] - 1), np.nan)
    if len(frame):
        x[known] = made.to_numpy(dtype=np.float64)[:, 1:]
    if not np.isfinite(x[known]).all():
        raise DataError(f"party {party!r}: its formula makes numbers that are not finite")
    term_of = [t for t, of in enumerate(made.model_spec.structure[1:]) for _ in of.columns]
    return [_name(column, codes, kept) for column in list(made.columns)[1:]], x, term_of


def _knots(factor: Factor, values: Array, at_least: int, party: str) -> list[float]:
    """Return the knots of a spline, from end to end; shapes as of `_means_of_rows`."""
    known = values[~np.isnan(values)]
    means = _means_of_rows(known, at_least, factor.call == "cc")
    df, *degree = factor.numbers
    n_inner = df - degree[0] if degree else df - (factor.call == "cr")
    parts = np.linspace(0.0, 1.0, n_inner + 2)
    found: list[float] = np.quantile(means, parts, method="nearest").tolist()
    if len(set(found)) < len(parts) <= len(np.unique(known)):
        raise _too_few(party, factor.label, "between two knots", at_least)
    return found


def _spline_state(
    transform: Callable[..., Any], factor: Factor, values: Array, knots: list[float]
) -> dict[str, Any]:
    """Return formulaic's state of a spline."""
    state: dict[str, Any] = {}
    low, *inner, high = knots
    how = {"degree": factor.numbers[1]} if factor.call == "bs" else {"constraints": "center"}
    ends = {"lower_bound": low, "upper_bound": high, "extrapolation": "extend"}
    transform(values[~np.isnan(values)], knots=inner, **ends, **how, _state=state)
    return state


def _means_of_rows(values: Array, at_least: int, is_period: bool) -> Array:
    """Return numbers, in their order, as means over so many rows; knots are made of these.

    Knots follow from sums: cells of the table would be told with them. Those of a column are of
    one set, whatever its formulas, so that sums of two formulas differ by no few rows. A period
    reaches from the smallest to the largest number, to a quarter of a rough unit.

    Shapes: values (n_rows,): of cells that are not missing; returns (n_rows,).
    """
    means, order = values.copy(), np.argsort(values, kind="stable")
    for rows in np.array_split(order, max(len(order) // at_least, 1)):
        means[rows] = values[rows].mean()
    spread = float(values.std())
    if is_period and spread > 0.0:
        step = 2.0 ** np.ceil(np.log2(spread)) / 4.0
        means[order[0]] = np.floor(values[order[0]] / step) * step
        means[order[-1]] = np.ceil(values[order[-1]] / step) * step
    return means


def _code(factor: Factor, number: int) -> str:
    """Write a factor for formulaic."""
    if factor.call in ("", "C", "log", "sqrt"):
        return f"v{number}"
    more = [
        f"{name}={value}"
        for (name, *_), value in zip(CALLS[factor.call], factor.numbers, strict=True)
    ]
    if factor.call == "bs":  # knots do not reach as far as the column
        more.append("extrapolation='extend'")
    elif factor.call in ("cr", "cc"):  # else they add up to the intercept
        more.append("constraints='center'")
    return f"{factor.call}({', '.join([f'v{number}', *more])})"


def _name(column: str, codes: dict[str, Factor], kept: Kept) -> str:
    """Name a column of formulaic's in the words of the formula."""
    parts = []
    for part in column.split(":"):
        code, _, suffix = part.partition("[") if part not in codes else (part, "", "")
        factor = codes[code]
        names = kept.names.get(_variable(factor))
        suffix = suffix.removeprefix("T.").removesuffix("]")
        parts.append(names[int(suffix)] if names else factor.label + f"[{suffix}]" * bool(suffix))
    return ":".join(parts)
