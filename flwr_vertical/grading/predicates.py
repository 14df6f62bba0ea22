"""Predicates on the columns of a table, such as "income >= 5,200 and job = nurse"."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Integers
from flwr_vertical.grading.gower import is_number

_TRIES = 20  # for each predicate that is sought


class Term(NamedTuple):
    """A comparison of one column with a value: ``relation`` is ``<=``, ``>=`` or ``==``."""

    column: str
    relation: str
    value: Any


Predicate = tuple[Term, ...]


def counts_of(predicates: Sequence[Predicate], table: pd.DataFrame) -> Integers:
    """Return for how many rows of a table each predicate holds."""
    columns = _columns_of(table)
    return np.array([_count(predicate, columns) for predicate in predicates], dtype=np.int64)


def rare_predicates(table: pd.DataFrame, most: int, rng: np.random.Generator) -> list[Predicate]:
    """Return predicates on one column that hold for one row: extreme values, and unique ones."""
    found: list[Predicate] = []
    columns = _columns_of(table)
    for name, column in table.items():
        if is_number(column):
            ends = (("<=", column.min()), (">=", column.max()))
            terms = [Term(str(name), relation, value) for relation, value in ends]
            found += [(term,) for term in terms if _count((term,), columns) == 1]
        _, first, counts = np.unique(columns[str(name)], return_index=True, return_counts=True)
        lone = np.sort(first[counts == 1])
        found += [(Term(str(name), "==", value),) for value in columns[str(name)][lone]]
    chosen = rng.permutation(len(found))[:most]
    return [found[i] for i in chosen]


def random_predicates(
    table: pd.DataFrame, n_columns: int, most: int, rng: np.random.Generator, unique: bool = True
) -> list[Predicate]:
    """Return predicates on columns of random rows: ``>=`` above the median, ``==`` of levels."""
    names = np.array([str(name) for name in table])
    medians = {n: float(table[n].median()) for n in names if is_number(table[n])}
    values = _columns_of(table)
    found: dict[Predicate, None] = {}
    for _ in range(_TRIES * most):
        if len(found) >= most:
            break
        row = int(rng.integers(len(table)))
        terms = []
        for name in sorted(rng.choice(names, n_columns, replace=False).tolist()):
            value = values[name][row if unique else int(rng.integers(len(table)))]
            if name not in medians:
                relation = "=="
            elif unique:
                relation = ">=" if value > medians[name] else "<="
            else:
                relation = str(rng.choice(["<=", ">=", "=="]))
            terms.append(Term(name, relation, value))
        predicate = tuple(terms)
        if not unique or _count(predicate, values) == 1:
            found[predicate] = None
    return list(found)


def with_codes(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return tables whose levels are categories, the same ones in all; they compare much faster."""
    found = [table.copy(deep=False) for table in tables]
    for name in tables[0]:
        columns = [table[name] for table in tables]
        if all(is_number(column) for column in columns):
            continue
        codes, _ = pd.factorize(pd.concat([c.astype(object) for c in columns], ignore_index=True))
        ends = np.cumsum([len(column) for column in columns])[:-1]
        for table, own in zip(found, np.split(codes, ends), strict=True):
            table[name] = pd.Categorical.from_codes(own, pd.RangeIndex(codes.max() + 1))
    return found


def _columns_of(table: pd.DataFrame) -> dict[str, AnyArray]:
    """Return each column's values, of categories their codes."""
    return {
        str(name): (
            column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
        ).to_numpy()
        for name, column in table.items()
    }


def _count(predicate: Predicate, columns: Mapping[str, AnyArray]) -> int:
    """Return for how many rows a predicate holds; columns by name, shape (n_rows,) each."""
    found: Any = True
    for name, relation, value in predicate:
        values = columns[name]
        if relation == "<=":
            found = found & (values <= value)
        elif relation == ">=":
            found = found & (values >= value)
        else:
            found = found & (values == value)
    return int(np.count_nonzero(found))
