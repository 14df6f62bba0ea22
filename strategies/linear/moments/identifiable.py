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


def made_of(patterns: Patterns, kept: Indices, follows: Indices) -> Array:
    """Return columns as a level and a sum of those in `kept`, times weights.

    Shapes: kept (n_kept,): columns none of which follows from others; follows (n_follows,): those
    that do; returns (n_columns - 1, 1 + n_kept): without the label; 0 of all other columns, and
    where no pattern tells.
    """
    found = np.zeros((patterns.n_columns - 1, 1 + len(kept)))
    found[kept, 1 + np.arange(len(kept))] = 1.0
    by_rows = sorted(patterns.patterns, key=lambda p: -p.n_rows)
    for j in follows:
        for p in by_rows:
            own = np.flatnonzero(np.isin(kept, p.observed))
            columns = np.append(kept[own], j)
            if j not in p.observed or not _dependent(p, columns)[-1]:
                continue
            gram = _centred(p, columns)
            beta = np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=1e-12)[0]
            beta[np.abs(beta) <= _COUNTS] = 0.0
            mean = p.sums[np.searchsorted(p.observed, columns)] / p.n_rows
            found[j, 0], found[j, 1 + own] = mean[-1] - mean[:-1] @ beta, beta
            break
    return found


def without_redundant(patterns: Patterns) -> tuple[Patterns, Indices, Array]:
    """Choose columns of which none follows from others, and put copies where rows lack them.

    A copy in place of a column may show that a third one follows from that, where no row has both.

    Shapes: returns (n_kept,): the columns; returns (n_columns - 1, 1 + n_kept): see `made_of`.
    """
    seen = ~unobserved(patterns)[:-1]
    follows, told_of = redundant(patterns), np.zeros(len(seen), dtype=bool)
    while True:
        kept = np.flatnonzero(seen & ~follows)
        parts = made_of(patterns, kept, np.flatnonzero(seen & follows))
        patterns = _with_copies(patterns, kept, parts)
        more, found = follows | redundant(patterns), (parts != 0.0).sum(axis=1) > 0
        if (more == follows).all() and (found == told_of).all():
            return patterns, kept, parts
        follows, told_of = more, found


def _with_copies(patterns: Patterns, kept: Indices, parts: Array) -> Patterns:
    """Put the only column that another one is made of in its place, where rows lack that one.

    Shapes: parts (n_columns - 1, 1 + n_kept): see `made_of`.
    """
    copies = {
        int(j): int(np.flatnonzero(parts[j, 1:])[0])
        for j in np.flatnonzero((parts[:, 1:] != 0).sum(axis=1) == 1)
        if j not in kept
    }
    found = []
    for p in patterns.patterns:
        numbers, level = p.observed.copy(), np.zeros(patterns.n_columns)
        scale = np.ones(len(numbers))
        for at, j in enumerate(p.observed.tolist()):
            if j in copies and kept[copies[j]] not in numbers:
                numbers[at], level[j] = kept[copies[j]], parts[j, 0]
                scale[at] = 1.0 / parts[j, 1 + copies[j]]
        sums, products = p.about(level)
        order = np.argsort(numbers)
        sums, products = sums * scale, products * np.outer(scale, scale)
        found.append(Pattern(numbers[order], p.n_rows, sums[order], products[np.ix_(order, order)]))
    return Patterns(patterns.n_columns, found)


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
