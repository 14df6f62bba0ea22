"""Whether blocks look as if they were missing at random: the fit beside that of complete rows.

Where blocks are missing completely at random, or by what the others hold, the fit on all rows and
that on complete rows both estimate the coefficients, and the first has smaller errors. Then the
difference has covariance ``V_complete - V_all`` (Hausman, 1978, "Specification Tests in
Econometrics", Eq. 2.8), and

    H = d' (V_complete - V_all)^-1 d ~ chi2(rank).

Complete rows are consistent also where a block is missing by its own values, and the fit on all
rows is not; where it is missing by the label it is the other way round. So a large H says that the
two disagree by more than chance. All of it is from sums that are opened anyway.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags
from strategies.linear.moments.patterns import Pattern
from strategies.linear.problem import note
from strategies.vfem.maximum_likelihood import Maximum

LEVEL = 0.01
"""A note is made where a difference as large has a smaller probability."""

_LEAST = 1e-6
"""Directions in which the complete rows have hardly larger errors are left out, as a share."""


@dataclass(frozen=True)
class HausmanTest:
    """The fit on all rows against that on complete rows."""

    statistic: float
    n_directions: int
    p_value: float
    furthest: int  # Column whose coefficient differs by most standard errors of the difference


def compare(
    complete: Pattern, beta: Array, covariance: Array, chosen: Flags, intercept: bool = True
) -> HausmanTest | None:
    """Compare coefficients; None where complete rows are too few, or all there are.

    Shapes: complete: sums over the rows that have all columns, the label last; beta (n_columns,):
    of the fit on all rows, covariance (n_columns, n_columns): theirs; chosen (n_columns,): which
    are compared.
    """
    n, p = complete.n_rows, len(beta)
    free = n - p - intercept
    if free < 2 * p or not chosen.any():
        return None
    mean = complete.sums / n if intercept else np.zeros(p + 1)
    moments = complete.products - n * np.outer(mean, mean)
    inverse = np.linalg.pinv(moments[:p, :p], hermitian=True)
    of_complete = inverse @ moments[:p, p]
    noise = max(float(moments[p, p] - of_complete @ moments[:p, p]), 0.0) / free
    gap = (of_complete - beta)[chosen]
    more = (noise * inverse - covariance)[np.ix_(chosen, chosen)]
    size = np.sqrt(np.diag(noise * inverse)[chosen])
    if not (size > 0).all():
        return None
    values, vectors = np.linalg.eigh(more / np.outer(size, size))
    kept = values > max(_LEAST, 1e-3 * float(values.max()))
    if not kept.any():
        return None
    along = (vectors[:, kept].T @ (gap / size)) ** 2 / values[kept]
    statistic, rank = float(along.sum()), int(kept.sum())
    apart = np.abs(gap) / np.sqrt(np.maximum(np.diag(more), _LEAST * size**2))
    furthest = int(np.flatnonzero(chosen)[apart.argmax()])
    return HausmanTest(statistic, rank, float(scipy.stats.chi2.sf(statistic, rank)), furthest)


def check_missingness(
    result: Result, found: Maximum, names: list[str], unknown: Flags, intercept: bool
) -> None:
    """Compare the fit with that of complete rows, and say so where they disagree.

    Shapes: names (n_kept,): of the columns of the fit; unknown (n_kept,): those whose coefficients
    have no standard error.
    """
    if not found.by_pattern or found.fit.by_em:  # see `Fit.by_em`
        return
    whole = [p for p in found.patterns.patterns if len(p.observed) == found.patterns.n_columns]
    if not whole or len(found.patterns.patterns) == 1:
        return
    told = compare(whole[0], found.fit.beta, found.fit.vcov[1:, 1:], ~unknown, intercept)
    if told is None:
        return
    result.metrics["missingness_p_value"] = told.p_value
    if told.p_value < LEVEL:
        note(
            result,
            f"the {whole[0].n_rows:.0f} complete rows give other coefficients than all rows "
            f"together, most of all {names[told.furthest]!r} (Hausman's test: "
            f"{told.statistic:.1f} with {told.n_directions} degrees of freedom, "
            f"p = {told.p_value:.2g}). So blocks are not missing at random, or the relation is not "
            "linear. Where a block is missing by its own values, `complete-case` is unbiased and "
            "this fit is not; where it is missing by the label, the reverse: report both",
        )
