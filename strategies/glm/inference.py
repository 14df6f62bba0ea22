"""Standard errors on the selected support: the Fisher information of what was selected.

Fan and Li (2001) and Theorem 8 of Tang, Feng, Li and Wang: where signals are strong against lambda,
the penalty is flat at the selected coefficients, and these behave as if the support had been known
(the oracle property), with covariance ``a(tau) (X_S' W X_S)^-1`` and ``W = diag psi''(eta)``. For
the lasso, whose penalty is nowhere flat, the same matrix describes the spread but not the bias.
Neither accounts for the selection itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flwr_vertical.arrays import Array

_RESOLUTION = 2.0**-30


def assemble_information(
    total: float,
    sums: Sequence[Array],
    grams: Sequence[Array],
    crosses: Mapping[tuple[int, int], Array],
) -> Array:
    """Put the information of the intercept and all selected columns together.

    Shapes: sums (n_selected_k,): by party, ``X_k' w``; grams (n_selected_k, n_selected_k): ``X_k'
    W X_k``; crosses (k, l): ``X_k' W X_l``; returns (1 + n_selected, 1 + n_selected).
    """
    starts = 1 + np.cumsum([0, *(len(values) for values in sums)])
    information = np.zeros((starts[-1], starts[-1]))
    information[0, 0] = total
    for k, values in enumerate(sums):
        here = slice(starts[k], starts[k + 1])
        information[0, here] = information[here, 0] = values
        information[here, here] = grams[k]
    for (k, other), product in crosses.items():
        here, there = slice(starts[k], starts[k + 1]), slice(starts[other], starts[other + 1])
        # The last digits come from the rotation, which is new in every run.
        unit = _RESOLUTION * np.sqrt(np.outer(np.diag(grams[k]), np.diag(grams[other])))
        unit = np.maximum(unit, 1e-300)
        product = np.round(product / unit) * unit
        information[here, there] = product
        information[there, here] = product.T
    return information


def covariance_of(information: Array, dispersion: float, intercept: bool) -> Array | None:
    """Invert the information; None where it is singular.

    Shapes: information (1 + n_selected, 1 + n_selected): of `assemble_information`.
    """
    first = 0 if intercept else 1
    own = information[first:, first:]
    covariance = np.zeros_like(information)
    if not len(own):
        return covariance
    scale = np.sqrt(np.maximum(np.diag(own), 1e-300))
    scaled = own / np.outer(scale, scale)
    if np.linalg.eigvalsh(scaled)[0] < 1e-12:
        return None
    covariance[first:, first:] = dispersion * np.linalg.inv(scaled) / np.outer(scale, scale)
    return covariance
