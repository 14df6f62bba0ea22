"""How good synthetic tables are: margins, pairwise correlations, and models fitted on them.

Every function compares with real tables, so it is for whoever holds these: a party for its own
columns, a study for all. None of it goes to a server.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError

_MOST_COLUMNS = 60


class ColumnPair(NamedTuple):
    """One column of a party, real (as far as observed) and synthetic."""

    party: str
    column: str
    real: pd.Series
    made: pd.Series

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, and not only two or three of them on both sides."""
        both = self.real, self.made
        numbers = all(pd.api.types.is_numeric_dtype(s) and s.dtype != bool for s in both)
        return bool(numbers and max(s.nunique() for s in both) > 3)


def is_synthetic(original: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Whether none of a table's rows belongs to a sample of the original one."""
    return len(table) > 0 and not table.index.isin(original.index).any()


def synthetic_pairs(
    originals: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> list[ColumnPair]:
    """Return the columns of all parties whose table is synthetic."""
    return [
        ColumnPair(
            party, str(column), *map(_days, (original[column].dropna(), tables[party][column]))
        )
        for party, original in originals.items()
        if party in tables and is_synthetic(original, tables[party])
        for column in original
        if column in tables[party]
    ]


def _days(column: pd.Series) -> pd.Series:
    """Return points in time as days, other columns as they are."""
    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column
    clock = column if column.dt.tz is None else column.dt.tz_localize(None)
    return (clock - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)


def margin_quality(
    originals: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Return how far each synthetic margin is from the real one.

    Returns
    -------
    pandas.DataFrame
        Index (party, column). ``distance`` is Kolmogorov and Smirnov's (the largest difference of
        distribution functions) for numbers and the total variation for levels, both in [0, 1];
        for numbers also means and standard deviations. Of values that are not missing, which under
        missing at random are not like the whole.
    """
    from scipy.stats import ks_2samp  # parties import this package with every message

    rows = []
    for pair in synthetic_pairs(originals, tables):
        row: dict[str, object] = {"party": pair.party, "column": pair.column}
        both = [pair.real, pair.made.dropna()]
        if pair.numeric and len(both[1]):
            real, made = (s.to_numpy(dtype=float) for s in both)
            row |= {
                "measure": "KS",
                "distance": float(ks_2samp(real, made, method="asymp").statistic),
            }
            row |= {"mean": real.mean(), "synthetic mean": made.mean()}
            row |= {"sd": real.std(), "synthetic sd": made.std()}
        else:
            if all(pd.api.types.is_numeric_dtype(s) for s in both):
                both = [s.astype(float) for s in both]  # 1 and 1.0 are one level.
            shares = [level_shares(s) for s in both]
            gap = shares[0].sub(shares[1], fill_value=0.0).abs().sum() / 2
            gap = gap if len(both[1]) else 1.0
            row |= {"measure": "total variation", "distance": float(gap)}
        rows.append(row)
    names = ["party", "column", "measure", "distance"]
    frame = pd.DataFrame(rows, columns=None if rows else names)
    return frame.set_index(["party", "column"])


def bin_edges(values: Array, count: int) -> Array:
    """Return ends of parts of equal width; fewer, at least 2, where values are too close."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if low == high:
        half = max(0.5, 1e-9 * abs(low))
        low, high = low - half, high + half
    return np.unique(np.linspace(low, high, count + 1))


def level_shares(column: pd.Series) -> pd.Series:
    """Return the share of each level, as text, the most frequent first."""
    return column.astype(str).value_counts(normalize=True)


class Correlations(NamedTuple):
    """Rank correlations of all columns, real and synthetic."""

    names: list[tuple[str, str]]
    real: Array
    made: Array

    @property
    def differences(self) -> Array:
        """Synthetic less real, of each pair once; array of shape (p (p - 1) / 2,)."""
        upper = np.triu_indices(len(self.names), k=1)
        found: Array = (self.made - self.real)[upper]
        return found[np.isfinite(found)]


def correlation_quality(
    originals: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> Correlations:
    """Compare Spearman's correlations of pairs, of what is observed; levels by their order."""
    pairs = synthetic_pairs(originals, tables)[:_MOST_COLUMNS]
    names = [(pair.party, pair.column) for pair in pairs]
    real = pd.DataFrame({name: _codes(pair.real) for name, pair in zip(names, pairs, strict=True)})
    made = pd.DataFrame(
        {
            name: _codes(pair.made, like=pair.real).to_numpy()
            for name, pair in zip(names, pairs, strict=True)
        }
    )
    matrices = [frame.corr(method="spearman").to_numpy() for frame in (real, made)]
    return Correlations(names, *matrices)


def _codes(column: pd.Series, like: pd.Series | None = None) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.astype(float)
    like = column if like is None else like
    dtype = like.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = list(dtype.categories)
    else:
        levels = sorted(like.dropna().unique())
    return column.map({level: float(i) for i, level in enumerate(levels)}).astype(float)


def downstream_fit(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    target: str,
    judged: pd.DataFrame | None = None,
    model: str = "linear",
) -> dict[str, float]:
    """Fit a model on synthetic rows and on real ones, and judge both on real rows.

    Rows are complete and have the same columns; without `judged` every third real one is kept for
    judging and fits nothing. A target with levels or two values is judged by accuracy, else by R2;
    ``linear`` models are logistic regression or least squares, ``trees`` scikit-learn's boosted
    trees at their defaults. Returns the scores of a model fitted on ``real`` and on ``synthetic``
    rows.
    """
    if target not in real or target not in synthetic:
        raise DataError(f"there is no column {target!r} to predict; columns are {list(real)}")
    columns = list(real.columns)
    tables = [real, synthetic[columns], *([] if judged is None else [judged[columns]])]
    both = pd.concat(tables, ignore_index=True)
    x = pd.get_dummies(both.drop(columns=target), drop_first=True).to_numpy(dtype=float)
    x = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    y = both[target]
    levels = y.nunique() == 2 or not pd.api.types.is_numeric_dtype(y)
    values = y.astype("category").cat.codes.to_numpy() if levels else y.to_numpy(dtype=float)
    row = np.arange(len(both))
    end = len(real) + len(synthetic)
    of_real = row < len(real)
    kept = of_real & (row % 3 == 0) if judged is None else row >= end
    fitted = {"real": of_real & ~kept, "synthetic": (row >= len(real)) & (row < end)}
    scores = {}
    for name, rows in fitted.items():
        if len(np.unique(values[rows])) < 2:
            raise DataError(f"the {name} rows have one value of {target!r} only: nothing to fit")
        found = _estimator(model, levels).fit(x[rows], values[rows])
        scores[name] = float(found.score(x[kept], values[kept]))
    return scores


def _estimator(model: str, levels: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression

    if model == "trees":
        kind = HistGradientBoostingClassifier if levels else HistGradientBoostingRegressor
        return kind(random_state=0)
    return LogisticRegression(max_iter=1000) if levels else LinearRegression()


def downstream_quality(
    originals: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame], most: int = 12
) -> pd.DataFrame:
    """Predict each column from all others by models fitted on synthetic and on real rows.

    Parameters
    ----------
    originals, tables : mapping of party to pandas.DataFrame
        Rows are those that all parties have completely; columns of more than 20 levels are left
        out.
    most : int, default 12
        Columns predicted at most; the first ones win.

    Returns
    -------
    pandas.DataFrame
        Index (party, column), columns ``real`` and ``synthetic`` (see `downstream_fit`); empty
        with fewer than two columns or 60 complete rows of either.
    """
    pairs = [p for p in synthetic_pairs(originals, tables) if p.numeric or p.real.nunique() <= 20]
    names = [f"{pair.party} · {pair.column}" for pair in pairs]
    empty = pd.DataFrame(columns=["real", "synthetic"])
    if len(pairs) < 2:
        return empty
    real = pd.concat([p.real.rename(n) for p, n in zip(pairs, names, strict=True)], axis=1).dropna()
    made = pd.concat([p.made.rename(n) for p, n in zip(pairs, names, strict=True)], axis=1).dropna()
    if min(len(real), len(made)) < 60:
        return empty
    rows = {}
    for pair, name in list(zip(pairs, names, strict=True))[:most]:
        try:
            rows[pair.party, pair.column] = downstream_fit(real, made, name)
        except DataError:  # one value only: nothing to fit
            continue
    if not rows:
        return empty
    found = pd.DataFrame.from_dict(rows, orient="index")
    return found.set_axis(pd.MultiIndex.from_tuples(list(rows), names=["party", "column"]))
