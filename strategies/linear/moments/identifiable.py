"""Which columns a fit can use: observed in some group, no combination of others, not the label."""

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from strategies.linear.moments.linear import dependent_columns
from strategies.linear.moments.patterns import Pattern, Patterns

_TOLERANCE = 1e-9
_COUNTS = 1e-5  # coefficients of standardised columns below this do not explain another column


def unobserved(patterns: Patterns) -> Flags:
    """Tell which columns are in no pattern, shape (n_columns,), the label included."""
    return np.asarray(np.diag(patterns.joint_rows()) == 0.0)


def redundant(patterns: Patterns) -> Flags:
    """Tell which columns are constant or follow from others, over all rows that have them.

    Shapes: returns (n_columns - 1,): without the label.
    """
    d = patterns.n_columns - 1
    found = np.zeros(d, dtype=bool)
    for pattern in patterns.patterns:
        while True:
            columns = np.array([j for j in pattern.observed if j < d and not found[j]], dtype=int)
            flagged = np.flatnonzero(_dependent(pattern, columns))
            if not any(_everywhere(patterns, pattern, columns, int(i), found) for i in flagged):
                break
    return found


def _everywhere(
    patterns: Patterns, pattern: Pattern, columns: Indices, i: int, found: Flags
) -> bool:
    """Check a column that follows from others in one pattern in all rows that have them."""
    before = columns[:i]
    before = before[~_dependent(pattern, before)]
    gram = _centred(pattern, np.append(before, columns[i]))
    beta = np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=1e-12)[0]
    chosen = np.append(before[np.abs(beta) > _COUNTS], columns[i])
    total = _pool([p for p in patterns.patterns if np.isin(chosen, p.observed).all()], chosen)
    if _dependent(total, chosen)[-1]:
        found[columns[i]] = True
        return True
    return False


def _pool(patterns: list[Pattern], columns: Indices) -> Pattern:
    sums, products, n = np.zeros(len(columns)), np.zeros((len(columns), len(columns))), 0.0
    for p in patterns:
        at = np.searchsorted(p.observed, columns)
        sums += p.sums[at]
        products += p.products[np.ix_(at, at)]
        n += p.n_rows
    return Pattern(columns, n, sums, products)


def _centred(pattern: Pattern, columns: Indices) -> Array:
    at = np.searchsorted(pattern.observed, columns)
    mean = pattern.sums[at] / pattern.n_rows
    return np.asarray(
        pattern.products[np.ix_(at, at)] - pattern.n_rows * np.outer(mean, mean), dtype=np.float64
    )


def _dependent(pattern: Pattern, columns: Indices) -> Flags:
    at = np.searchsorted(pattern.observed, columns)
    length = np.diag(pattern.products)[at]
    return dependent_columns(_centred(pattern, columns), length)


def gives_label(patterns: Patterns) -> Indices:
    """Return the columns of which the label is a linear function without noise in some pattern.

    Shapes: returns (n_found,): none where there is noise in all patterns.
    """
    for p in patterns.patterns:
        if not 2 <= len(p.observed) < p.n_rows - 1:
            continue
        gram, length = _centred(p, p.observed), p.products[-1, -1]
        along, total = gram[:-1, -1], gram[-1, -1]
        beta = np.linalg.lstsq(gram[:-1, :-1], along, rcond=1e-12)[0]
        # Where labels hardly vary about their mean, what is left is rounding.
        if total > _TOLERANCE * length and total - beta @ along <= _TOLERANCE * total:
            share = np.abs(beta) * np.sqrt(np.maximum(np.diag(gram)[:-1], 0.0) / total)
            return np.asarray(p.observed[:-1][share > _COUNTS])
    return np.zeros(0, dtype=np.intp)


def restrict(patterns: Patterns, kept: Indices) -> Patterns:
    """Leave columns out.

    Shapes: kept (n_kept,): numbers of the columns that stay, ascending, with the label's.
    """
    number = np.full(patterns.n_columns, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    found = []
    for p in patterns.patterns:
        at = np.flatnonzero(number[p.observed] >= 0)
        if len(at):
            products = p.products[np.ix_(at, at)]
            found.append(Pattern(number[p.observed[at]], p.n_rows, p.sums[at], products))
    return Patterns(len(kept), found)
