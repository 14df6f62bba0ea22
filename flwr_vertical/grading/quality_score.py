"""One number for synthetic tables: column shapes and pair trends, defined as by SDMetrics.

A column's shape is 1 less the distance of its two margins: Kolmogorov and Smirnov's of numbers,
total variation of levels. A pair's trend is 1 less half the difference of its two correlations
(Pearson's), or, where levels are in it, 1 less the total variation of its two contingency tables,
numbers being cut into ten parts of equal width between the smallest and largest real value. The
score is the mean of the mean shape and the mean trend. Definitions are those of the metrics
KSComplement, TVComplement, CorrelationSimilarity and ContingencySimilarity of SDMetrics (DataCebo);
every pair counts, however weakly it is associated.

It compares with real tables, so it is for whoever holds these.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.grading.quality import ColumnPair, bin_edges, synthetic_pairs

_BINS = 10
_MOST_COLUMNS = 60


class QualityScore(NamedTuple):
    """How like the real tables the synthetic ones are, from 0 to 1."""

    score: float  # Mean of both means; NaN without a column
    shapes: pd.Series  # Of each column; index (party, column)
    # Of each pair of the first 60 columns; index (party, column, other party, other column). A pair
    # without a correlation, since a column is constant, has none
    trends: pd.Series


def quality_score(
    originals: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> QualityScore:
    """Score synthetic tables beside the real ones.

    Parameters
    ----------
    originals, tables : mapping of party to pandas.DataFrame
        Real tables, as far as values are observed, and synthetic ones. Rows of synthetic tables
        belong together by their position. Numbers with three values at most count as levels.
    """
    pairs = synthetic_pairs(originals, tables)
    shapes = {(pair.party, pair.column): column_shape(pair) for pair in pairs}
    trends = {
        (one.party, one.column, other.party, other.column): pair_trend(one, other)
        for one, other in combinations(pairs[:_MOST_COLUMNS], 2)
    }
    own = _series(shapes, ["party", "column"])
    joint = _series(trends, ["party", "column", "other party", "other column"])
    parts = [series.mean() for series in (own, joint) if series.notna().any()]
    return QualityScore(float(np.mean(parts)) if parts else float("nan"), own, joint)


def column_shape(pair: ColumnPair) -> float:
    """Return 1 less the distance of a column's real and synthetic margins."""
    pair = pair._replace(made=pair.made.dropna())
    if not len(pair.made):
        return 0.0
    if pair.numeric:
        from scipy.stats import ks_2samp  # parties import this package with every message

        real, made = (s.to_numpy(dtype=float) for s in (pair.real, pair.made))
        return 1.0 - float(ks_2samp(real, made, method="asymp").statistic)
    real_codes, made_codes, n = _codes(pair)
    return 1.0 - _variation(real_codes, made_codes[made_codes >= 0], n)


def pair_trend(one: ColumnPair, other: ColumnPair) -> float:
    """Return how alike two columns' associations are, in rows that have both values."""
    both = one.real.index.intersection(other.real.index)
    real = [pair.real.loc[both] for pair in (one, other)]
    known = one.made.notna().to_numpy() & other.made.notna().to_numpy()
    one, other = (pair._replace(made=pair.made[known]) for pair in (one, other))
    if one.numeric and other.numeric:
        made = [pair.made.to_numpy(dtype=float) for pair in (one, other)]
        found = [_correlation(*(s.to_numpy(dtype=float) for s in real)), _correlation(*made)]
        return 1.0 - abs(found[0] - found[1]) / 2
    codes, width = [], 1
    for pair, column in zip((one, other), real, strict=True):
        observed, synthetic, n = _codes(pair._replace(real=column))
        codes.append((observed * width, synthetic * width))
        width *= n
    first, second = codes
    return 1.0 - _variation(first[0] + second[0], first[1] + second[1], width)


def _series(found: Mapping[Any, float], names: list[str]) -> pd.Series:
    index = pd.MultiIndex.from_tuples(list(found), names=names) if found else None
    return pd.Series(list(found.values()), index=index, dtype=float)


def _correlation(one: Array, other: Array) -> float:
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return float("nan")
    with np.errstate(invalid="ignore", divide="ignore"):  # a variance may be lost to rounding
        return float(np.corrcoef(one, other)[0, 1])


def _codes(pair: ColumnPair) -> tuple[Integers, Integers, int]:
    """Return the numbers of levels, or of ten parts: real, synthetic, and how many there are."""
    if pair.numeric:
        real, made = (s.to_numpy(dtype=float) for s in (pair.real, pair.made))
        inner = bin_edges(real, _BINS)[1:-1]
        return np.digitize(real, inner), np.digitize(made, inner), _BINS
    both = [pair.real, pair.made]
    if all(pd.api.types.is_numeric_dtype(s) for s in both):
        both = [s.astype(float) for s in both]  # 1 and 1.0 are one level
    joined = pd.concat([s.astype(object) for s in both]).map(str)
    codes, levels = pd.factorize(joined)
    n = len(pair.real)
    return codes[:n].astype(np.int64), codes[n:].astype(np.int64), len(levels)


def _variation(real: Integers, made: Integers, n: int) -> float:
    shares = [np.bincount(codes, minlength=n) / max(len(codes), 1) for codes in (real, made)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)
