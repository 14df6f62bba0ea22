"""Grading synthetic tables: attack them, and compare them with the real ones.

Privacy is judged by the attacks of `flwr_vertical.grading.risks`, utility by `quality_score` and,
if a column is named, by models that predict it. A grade compares with real rows and no budget of
differential privacy covers it, so it is for whoever holds these rows: a party for its own columns,
a user of `simulate` for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.grading import risks as rk
from flwr_vertical.grading.proportions import Risk
from flwr_vertical.grading.quality import downstream_fit, is_synthetic
from flwr_vertical.grading.quality_score import quality_score
from flwr_vertical.grading.record import Grade

_FEWEST = 20  # complete rows
_MOST_ROWS = 20_000
_CELLS = 8_000_000  # distances for each column
_PREDICATES = 500  # most of them are found in vain
_MODELS = ("linear", "trees")


def grade(
    originals: Mapping[str, pd.DataFrame],
    tables: Mapping[str, pd.DataFrame],
    others: Mapping[str, pd.DataFrame] | None = None,
    *,
    target: str | tuple[str, str] | None = None,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Grade:
    """Attack synthetic tables with what is known of real people, and compare them with real ones.

    Arguments are as of `Result.grade`. Attacks take the samples that all parties have without a
    missing cell, 20,000 at most; rows of synthetic tables belong together by their position. Models
    that predict `target` are judged on others or on every third real row. `DataError` if no table
    is synthetic, or there are too few complete rows.
    """
    parties = [
        name
        for name, table in originals.items()
        if name in tables and is_synthetic(table, tables[name])
    ]
    if not parties:
        raise DataError(
            "there is no synthetic table to grade: expected real tables and the synthetic ones of "
            f"the same parties, got {list(originals)} and {list(tables)}"
        )
    names = [(p, c) for p in parties for c in originals[p] if c in tables[p]]
    rng = np.random.default_rng(seed)
    origins = _first_days(originals, names)
    members = _joined("originals", originals, names, origins, rng)
    beside = None if others is None else _joined("others", others, names, origins, rng)
    synthetic = _joined("tables", tables, names, origins, rng, real=False)
    if beside is None and len(synthetic) > len(members):
        # As many rows as the attacker has of other members.
        synthetic = rk.some_rows(synthetic, len(members), rng)
    risks, skipped = _attacked(members, beside, synthetic, names, n_attacks, seed)
    score = quality_score(originals, tables)
    found = Grade(
        risks,
        float(score.shapes.mean()),
        float(score.trends.mean()) if score.trends.notna().any() else float("nan"),
        len(members),
        0 if beside is None else len(beside),
        len(synthetic),
        parties,
        skipped=skipped,
    )
    if target is None:
        return found
    column = _column_of(target, names)
    models = {model: downstream_fit(members, synthetic, column, beside, model) for model in _MODELS}
    return replace(found, models=models, target=column)


def _attacked(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    names: Sequence[tuple[str, Any]],
    n_attacks: int,
    seed: int,
) -> tuple[list[Risk], list[str]]:
    """Return what attacks find, and what could not be tried."""
    columns = list(members.columns)
    larger = max(len(synthetic), len(members) if others is None else 0)
    people = min(n_attacks, max(100, _CELLS // larger))
    risks, skipped = [], []
    for k in (1, 3):
        if k > len(columns):
            continue
        try:
            most = min(n_attacks, _PREDICATES)
            risks.append(rk.singling_out(members, others, synthetic, k, most, seed))
        except DataError as error:
            skipped.append(f"Singling out is not tried: {error}.")
    if len(columns) > 1:
        left, right = _parts(columns, names)
        risks.append(
            rk.linkability(members, others, synthetic, left, right, n_attacks=people, seed=seed)
        )
    risks.append(rk.membership(members, others, synthetic, people, seed))
    if len(columns) > 1:
        risks += rk.inferences(members, others, synthetic, n_attacks=people, seed=seed)
    return risks, skipped


def _parts(columns: list[str], names: Sequence[tuple[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the columns of some parties and of the others; of one party, halves of its columns."""
    parties = list(dict.fromkeys(party for party, _ in names))
    if len(parties) == 1:
        return columns[: len(columns) // 2], columns[len(columns) // 2 :]
    first = set(parties[: (len(parties) + 1) // 2])
    at = [party in first for party, _ in names]
    return (
        [column for column, own in zip(columns, at, strict=True) if own],
        [column for column, own in zip(columns, at, strict=True) if not own],
    )


def _joined(
    what: str,
    tables: Mapping[str, pd.DataFrame],
    names: Sequence[tuple[str, Any]],
    origins: Mapping[tuple[str, Any], Any],
    rng: np.random.Generator,
    real: bool = True,
) -> pd.DataFrame:
    """Return complete rows over all parties' columns; a column's name has its party if needed."""
    columns = []
    for party, name in names:
        if party not in tables or name not in tables[party]:
            raise DataError(f"{what} lack the column {name!r} of party {party!r}")
        columns.append(_plain(tables[party][name], origins.get((party, name))))
    if not real:
        columns = [column.reset_index(drop=True) for column in columns]
    joined = pd.concat(columns, axis=1, join="inner", keys=_titles(names)).dropna()
    if len(joined) < _FEWEST:
        raise DataError(
            f"{what}: attacks need {_FEWEST} rows or more that all parties have without a missing "
            f"cell, got {len(joined)}"
        )
    return rk.some_rows(joined, _MOST_ROWS, rng).reset_index(drop=True)


def _titles(names: Sequence[tuple[str, Any]]) -> list[str]:
    several = len({party for party, _ in names}) > 1
    return [f"{party} · {name}" if several else str(name) for party, name in names]


def _column_of(target: str | tuple[str, str], names: Sequence[tuple[str, Any]]) -> str:
    fitting = [
        title
        for (party, name), title in zip(names, _titles(names), strict=True)
        if target in (name, (party, name))
    ]
    if len(fitting) != 1:
        raise DataError(
            f"target {target!r} must name one column of the synthetic tables, got {len(fitting)} "
            f"of that name; columns are {_titles(names)}"
        )
    return fitting[0]


def _first_days(
    tables: Mapping[str, pd.DataFrame], names: Sequence[tuple[str, Any]]
) -> dict[tuple[str, Any], Any]:
    """Return the first day of each column of dates."""
    return {
        (party, name): tables[party][name].min()
        for party, name in names
        if pd.api.types.is_datetime64_any_dtype(tables[party][name])
    }


def _plain(column: pd.Series, first: Any = None) -> pd.Series:
    """Return a column as plain numbers or levels: dates as days since the first one."""
    if first is not None and pd.api.types.is_datetime64_any_dtype(column):
        return pd.Series((column - first) / pd.Timedelta(days=1))
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column.astype(object)
    return pd.Series(column.to_numpy(dtype=float, na_value=np.nan), column.index)
