"""Regressions for rows that some parties lack, from coefficients and the columns' moments.

A row's linear predictor is ``b_0 + x'b``. Where the columns m are absent, these are expected to be
``mean_m + S_mo S_oo^-1 (x_o - mean_o)``, which makes the coefficients of the others
``b_o + S_oo^-1 S_om b_m`` and leaves a variance of ``b_m' (S_mm - S_mo S_oo^-1 S_om) b_m``.
"""

from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array
from strategies.linear.prediction import Regressions
from strategies.linear.prediction.regressions import pattern_list


def conditional_regressions(
    mean: Array,
    covariance: Array,
    intercept: float,
    beta: Array,
    of_estimates: Array | None,
    noise: float,
    widths: Sequence[int],
    family: str = "gaussian",
) -> Regressions:
    """Return the regression on the columns of each set of parties.

    Shapes: mean, covariance (n_columns,): of the columns, in their units; of_estimates (1 +
    n_selected, 1 + n_selected): covariance of the intercept and the coefficients that are not
    zero.
    """
    present = pattern_list(len(widths))
    owner = np.repeat(np.arange(len(widths)), widths)
    n, p = len(present), len(beta)
    chosen = np.flatnonzero(beta)
    coefficients, offsets = np.zeros((n, p)), np.zeros((n, len(widths)))
    unseen, leverage = np.zeros(n), np.zeros(n)
    at_mean = np.append(1.0, mean[chosen])
    for i, parties in enumerate(present):
        o = np.flatnonzero(parties[owner])
        # Columns that determine each other, or do not vary, share what there is.
        inner = np.linalg.pinv(covariance[np.ix_(o, o)], rcond=1e-10, hermitian=True)
        expected = np.eye(p)[:, o]
        absent = np.setdiff1d(np.arange(p), o)
        expected[absent] = covariance[np.ix_(absent, o)] @ inner
        coefficients[i, o] = beta @ expected
        offsets[i] = np.bincount(owner, weights=coefficients[i] * mean, minlength=len(widths))
        seen = expected @ covariance[np.ix_(o, o)] @ expected.T
        unseen[i] = max(float(beta @ (covariance - seen) @ beta), 0.0)
        if of_estimates is not None:
            inside = of_estimates[1:, 1:] * seen[np.ix_(chosen, chosen)]
            leverage[i] = max(float(at_mean @ of_estimates @ at_mean + inside.sum()), 0.0)
    return Regressions(
        present,
        np.full(n, intercept + float(mean @ beta)),
        coefficients,
        offsets,
        unseen,
        leverage,
        noise,
        tuple(widths),
        family,
    ).compact()
