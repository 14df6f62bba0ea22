"""The same fits without messages: all blocks in one process, for studies and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from strategies.glm.lambda_path import BIC, grid, information_criterion, parse_lambdas, stated
from strategies.glm.penalties import check_penalty
from strategies.glm.sums.block import Block, Request, combined, largest_correlation
from strategies.glm.sums.fits import CONVERGED, Fits, Settings
from strategies.glm.sums.solver import Solver
from strategies.linear.families import Family, check_labels, family_named


@dataclass(frozen=True)
class CentralFit:
    """A fit of all blocks.

    Parameters
    ----------
    beta : numpy.ndarray of shape (n_columns,)
        Coefficients of the chosen lambda, per unit of the columns.
    intercept : float
        0 if there is none.
    lambdas : numpy.ndarray of shape (n_lambdas,)
    path : numpy.ndarray of shape (n_columns, n_lambdas)
    intercepts : numpy.ndarray of shape (n_lambdas,)
    chosen : int
        Number of the chosen lambda.
    bic : numpy.ndarray of shape (n_lambdas,)
        Of a fit that did not converge, where it ended.
    fits : Fits
        Of the solver, in standardised units.
    """

    beta: Array
    intercept: float
    lambdas: Array
    path: Array
    intercepts: Array
    chosen: int
    bic: Array
    fits: Fits


def fit_glm(
    blocks: Sequence[Array],
    y: Array,
    family: str = "gaussian",
    penalty: str | None = "scad",
    lambdas: "str | float | Sequence[float]" = "bic",
    *,
    intercept: bool = True,
    standardize: bool = True,
    penalty_shape: float = 0.0,
    unpenalized: npt.NDArray[np.bool_] | None = None,
    n_lambdas: int = 50,
    lambda_ratio: float = 0.01,
    lla_steps: int = 3,
    tol: float = 1e-3,
    kkt_tol: float = 1e-4,
    max_iter: int = 500,
    seed: int = 0,
) -> CentralFit:
    """Fit a GLM by the numerics of `VerticalGLM`, all blocks in this process.

    Parameters
    ----------
    blocks : sequence of numpy.ndarray, each of shape (n_samples, n_columns_k)
        The parties' columns; one block is a fit on a single table.
    y : numpy.ndarray of shape (n_samples,)
    unpenalized : numpy.ndarray of shape (n_columns,), optional
        True for columns that are never penalised.
    family, penalty, lambdas, intercept, standardize, penalty_shape, n_lambdas, lambda_ratio
        See `VerticalGLM`.
    lla_steps, tol, kkt_tol, max_iter
        See `VerticalGLM`.
    seed : int
        Of the probe that measures how far the blocks overlap.

    Returns
    -------
    CentralFit
    """
    model, labels = family_named(family), np.asarray(y, dtype=np.float64)
    name, shape = check_penalty(penalty, penalty_shape)
    check_labels(model, labels)
    unit = label_unit(labels, model.has_dispersion, intercept)
    x = np.concatenate(list(blocks), axis=1)
    center = x.mean(axis=0) if intercept else np.zeros(x.shape[1])
    spread = x.std(axis=0)
    scale = np.where(spread > 1e-12, spread, 1.0) if standardize else np.ones(x.shape[1])
    z = (x - center) / scale
    free = np.zeros(x.shape[1], dtype=bool) if unpenalized is None else unpenalized
    starts = np.cumsum([0, *(block.shape[1] for block in blocks)])
    parts = [slice(a, b) for a, b in pairwise(starts)]

    setting = parse_lambdas(lambdas)
    settings = Settings(name, intercept, tol, kkt_tol, lla_steps, max_iter, by_bic=setting == BIC)
    residual = model.mean(np.full(len(labels), null_level(model, labels / unit, intercept)))
    reach = largest_correlation(z, ~free, labels / unit - residual)
    values = choose_lambdas(setting, name, reach, unit, n_lambdas, lambda_ratio)
    held = [Block(z[:, part], values, ~free[part], name, shape) for part in parts]
    kept = [block.start() for block in held]

    def exchange(request: Request) -> dict[str, Array]:
        terms = []
        for k, block in enumerate(held):
            kept[k], told = block.advance(kept[k], request)
            terms.append(told)
        return combined(terms)

    solver = Solver(
        model, labels / unit, len(values), len(held), x.shape[1], settings, exchange, seed
    )
    fits = solver.run()
    beta = np.concatenate([one.beta for one in kept])
    selected = np.count_nonzero(beta, axis=0)
    bic = information_criterion(model, labels / unit, fits.fit + fits.level, selected)
    done = np.array([outcome == CONVERGED for outcome in fits.outcomes])
    chosen = int(np.argmin(np.where(done | ~done.any(), bic, np.inf)))
    path = unit * beta / scale[:, None]
    intercepts = unit * fits.level - center @ path if intercept else np.zeros(len(values))
    return CentralFit(
        path[:, chosen],
        float(intercepts[chosen]),
        values * unit,
        path,
        intercepts,
        chosen,
        bic,
        fits,
    )


def label_unit(y: Array, has_dispersion: bool, intercept: bool) -> float:
    """Return what labels are divided by: their spread where the family has a scale, else 1."""
    if not has_dispersion:
        return 1.0
    return float(y.std() if intercept else np.sqrt(np.mean(y**2))) or 1.0


def null_level(family: Family, y: Array, intercept: bool) -> float:
    """Return the predictor of a model without columns."""
    return float(family.link(float(y.mean()))) if intercept else 0.0


def choose_lambdas(
    setting: str | float, penalty: str, reach: float, unit: float, count: int, ratio: float
) -> Array:
    """Return the values of lambda in standardised units."""
    if penalty == "none":
        return np.zeros(1)
    values = stated(setting)
    return grid(max(reach, 1e-12), count, ratio) if values is None else values / unit
