"""The assumption of covariance="block", checked: correlations between parties, from moments."""

import logging

import numpy as np

from flwr_vertical import Result
from strategies.linear.moments import OpenedMoments
from strategies.vfem.maximum_likelihood import correlations

logger = logging.getLogger("flwr_vertical")

MAX_ROOT_MEAN_SQUARE = 0.1
MAX_CORRELATION = 0.3
_DEVIATIONS = 5.0


def check_correlations(opened: OpenedMoments, result: Result) -> None:
    """Note how correlated columns of different parties are, and warn where the model is far off.

    The moments have the correlations that the model takes as zero, so nothing more is asked for.
    """
    found = correlations(opened)
    owner = np.repeat(
        np.arange(len(opened.parties)), [own.stop - own.start for own in opened.parties.values()]
    )
    between = np.triu(owner[:, None] != owner[None, :]) & np.isfinite(found)
    if not between.any():
        result.notes.append(
            "correlations between parties were not checked: any two share too few samples"
        )
        return
    rows = opened.patterns.joint_rows()[:-1, :-1]
    chance = 1.0 / rows[between]  # variance of the correlation of independent columns
    mean_square = float(np.mean(found[between] ** 2 - chance))
    root = float(np.sqrt(max(mean_square, 0.0)))
    result.metrics["correlation_rms"] = root
    i, j = np.unravel_index(np.argmax(np.where(between, np.abs(found), 0.0)), found.shape)
    largest = float(found[i, j])
    sure = abs(largest) > max(MAX_CORRELATION, _DEVIATIONS / np.sqrt(rows[i, j]))
    many = root > MAX_ROOT_MEAN_SQUARE and mean_square > _DEVIATIONS * float(
        np.sqrt(2.0) * np.linalg.norm(chance) / len(chance)
    )
    if sure or many:
        a, b = opened.names([i, j])
        text = (
            "covariance='block' assumes that columns of different parties are uncorrelated, which "
            f"is far off here: columns {a!r} and {b!r} have a correlation of {largest:.2f}, and "
            f"the root mean square over {int(between.sum())} pairs of columns is {root:.2f}. Where "
            "blocks are missing, coefficients are biased and standard errors wrong; use "
            "covariance='full'"
        )
        logger.warning("%s", text)
        result.notes.append(text)
