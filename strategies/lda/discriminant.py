"""Linear discriminants from moments and class sums, for any set of columns at hand.

Columns of all parties are normal in each class, with one covariance: ``x | c ~ N(mu_c, W)``. Of a
row that has the columns o, the log odds of its class are, but for what all classes share,

    eta_c = log pi_c + mu_co' W_oo^-1 x_o - mu_co' W_oo^-1 mu_co / 2

(Anderson, 2003, section 6.6), whichever columns it lacks: the observed columns of a normal vector
are normal, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Integers

_FLAT = 1e-6
"""Of smaller variance, a column is constant."""

_LEAST = 1e-3
"""Of a column's variance, what is within classes at least: more than rounding of completed rows."""

_EXACT, _COUNTS = 1e-6, 1e-3
"""Of the variance of a class's flag, what rounding leaves; and slopes that are not rounding."""


@dataclass(frozen=True)
class Discriminant:
    """Classes as normal distributions with one covariance."""

    mean: Array  # (n_columns,): of all rows
    shift: Array  # (n_classes, n_columns): of the mean of each class from it
    covariance: Array  # (n_columns, n_columns): within classes, positive definite
    prior: Array  # (n_classes,): share of each class
    shrinkage: float  # Weight of the diagonal in the covariance


def fit_discriminant(
    sums: Array, products: Array, class_sums: Array, n_rows: Integers
) -> Discriminant:
    """Estimate means of classes and the covariance within classes.

    All sums are over the same rows: a covariance over more rows, less that of the class means,
    would be too small along what these means have by chance, and discriminants divide by it.

    With p columns that vary and n rows the covariance is ``(n W + p diag(W)) / (n + p)``, as if p
    rows more had shown uncorrelated columns. Each column's class means are shrunk towards the mean
    of all rows by how much they differ beyond chance (Efron and Morris, 1973):
    ``t / (t + w / n_c)``, with t the variance of the true class means and w that within classes.

    Columns are in units of about their standard deviation; constant ones have no say.

    Shapes: sums (n_columns,); products (n_columns, n_columns); class_sums (n_columns, n_classes):
    sums over the rows of each class; n_rows (n_classes,): how many these are, none 0.
    """
    n = float(n_rows.sum())
    mean, prior = sums / n, n_rows / n
    found = (class_sums / n_rows).T - mean
    total = np.asarray(products / n - np.outer(mean, mean), dtype=np.float64)
    within = total - (found * prior[:, None]).T @ found
    varies = np.diag(total) > _FLAT
    variance = np.where(varies, np.maximum(np.diag(within), _LEAST * np.diag(total)), 1.0)
    p = float(varies.sum())
    weight = p / (p + n)
    within *= (1.0 - weight) * np.outer(varies, varies)
    np.fill_diagonal(within, variance)
    chance = variance * (len(n_rows) - 1) / n
    true = np.maximum((prior[:, None] * found**2).sum(axis=0) - chance, 0.0) * varies
    shift = found * true / (true + variance / n_rows[:, None])
    return Discriminant(mean, shift, within, prior, weight)


def telling(sums: Array, products: Array, class_sums: Array, n_rows: Integers) -> Flags:
    """Tell which columns give a class exactly, (n_columns,), alone or by a linear function.

    Shapes: as in `fit_discriminant`.
    """
    n, p = float(n_rows.sum()), len(sums)
    if p + 1 >= n:
        return np.zeros(p, dtype=bool)
    gram = products / n - np.outer(sums, sums) / n**2
    along = class_sums / n - np.outer(sums, n_rows) / n**2
    of_class = n_rows / n * (1.0 - n_rows / n)
    slopes = np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ along
    left = of_class - np.einsum("jc,jc->c", slopes, along)
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    given = left <= _EXACT * of_class
    by_slope = (np.abs(slopes) * size[:, None] > _COUNTS)[:, given].any(axis=1)
    # A column that is the same throughout each class, as numbers of several classes are.
    between = (class_sums**2 / n_rows).sum(axis=1) / n - (sums / n) ** 2
    varies = np.diag(gram) > _FLAT
    return np.asarray(by_slope | (varies & (np.diag(gram) - between <= _EXACT * np.diag(gram))))


def log_odds(fit: Discriminant, widths: Sequence[int], present: Flags) -> tuple[Array, Array]:
    """Return log odds of each class but the first against it, for each set of parties.

    Shapes: widths (n_parties,): columns of each party; present (n_patterns, n_parties); returns
    (n_patterns, n_classes - 1, n_columns): what columns less their means are multiplied with, 0 of
    absent parties; returns (n_patterns, n_classes - 1): the log odds where all of these are 0.
    """
    n_classes, n_columns = fit.shift.shape
    coefficients = np.zeros((len(present), n_classes - 1, n_columns))
    level = np.zeros((len(present), n_classes - 1))
    for number, parties in enumerate(present):
        o = np.flatnonzero(np.repeat(parties, widths))
        shift = fit.shift[:, o]
        slope = np.linalg.solve(fit.covariance[np.ix_(o, o)], shift.T).T
        coefficients[number][:, o] = slope[1:] - slope[0]
        odds = np.log(fit.prior) - np.einsum("co,co->c", shift, slope) / 2.0
        level[number] = odds[1:] - odds[0]
    return coefficients, level
