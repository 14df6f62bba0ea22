"""The server half of least squares: combine the parties' regressions of a common residual.

In each round the server hands out the residual, every party regresses it on its own columns alone,
and the server learns the sum of the fits: a direction. It then chooses the best combination of all
directions so far, which is least squares with as many columns as there were rounds, and goes on
with the residual of that. In exact arithmetic these are conjugate gradients on the normal
equations with each party's own Gram matrix as preconditioner (the combination replaces their
recurrences, and does not suffer from rounding): at most as many rounds as columns, few if columns
of different parties are little correlated, one if a single party has all columns.

The length of the gradient that decides when to stop costs nothing: it is the product of the
residual with the direction it gave.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import Progress
from strategies.least_squares.directions import Directions
from strategies.least_squares.moments import Moments
from strategies.linear import Problem

ROWS = ("complete", "imputed")
# In exact arithmetic, as many rounds as columns suffice; some more mend what rounding spoiled.
_SPARE = 3


@dataclass(frozen=True)
class LeastSquares(Moments):
    """A least-squares fit; the parties hold the coefficients as ``ls.beta``.

    They do so from the next step on: how the directions combine rides with the next message.

    Parameters
    ----------
    n_samples, n_parameters, rss, tss, level, has_intercept
        See `Moments`.
    ranks : dict[str, int]
        By party, its columns less those that are constant or follow from others of its own.
    mean_weight : float
        See `LocalBlock.covariance`; 0 with an intercept.
    intercept : float
        Of standardised labels, for the parties' columns as in `RegressionData.x`; 0 if there is
        none.
    converged : bool
        Whether the gradient vanished as far as asked for, or as far as sums can tell.
    history : list of dict
        By iteration: residual sum of squares in label units after it, and length of the gradient
        before it, relative to the first.
    """

    ranks: dict[str, int]
    mean_weight: float
    intercept: float
    converged: bool
    history: list[dict[str, Any]]

    @property
    def iterations(self) -> int:
        """Number of rounds."""
        return len(self.history)


def solve(
    federation: Federation,
    problem: Problem,
    rows: str = "complete",
    *,
    max_iter: int = 200,
    tol: float = 1e-10,
    intercept: bool = True,
    progress: Progress | None = None,
) -> LeastSquares:
    """Fit all parties' columns; one round an iteration.

    Parameters
    ----------
    federation : Federation
        Its parties use `LeastSquaresSteps` and have taken the step ``prepare``.
    problem : Problem
        Of `open_problem`.
    rows : {"complete", "imputed"}, default "complete"
        Use labelled samples that all parties hold, or all labelled samples, a missing row being
        the mean of those that its party holds.
    max_iter : int, default 200
        Most rounds.
    tol : float, default 1e-10
        Stop once the gradient is as short, relative to the first, or as short as the resolution
        of private sums can tell.
    intercept : bool, default True
        Whether there is one; as given to `open_problem`.
    progress : Progress, optional

    Returns
    -------
    LeastSquares

    Raises
    ------
    DataError
        If there are too few samples.

    Notes
    -----
    Memory is 8 bytes for each iteration and sample used.
    """
    if rows not in ROWS:
        raise ConfigError(f"unknown rows {rows!r} to fit; expected one of {list(ROWS)}")
    used = _samples(problem, rows)
    mask, complete = problem.mask[used], ~np.asarray(problem.mask.any(axis=1))
    y = problem.y[used]
    level = float(y.mean()) if intercept else 0.0
    if np.ptp(y) == 0:
        raise DataError(f"the labels of all {len(used)} samples of the fit are the same")
    directions = Directions(y - level)
    unit = power_of_two(1.0 / np.sqrt(directions.tss / len(used)))
    arguments: dict[str, Any] = {"unit": unit, "rows": rows}
    shapes: dict[str, tuple[int, ...]] = {"fit": (len(used),), "mean_fit": (), "mean_weight": ()}
    first_messages = {
        name: {"used": complete[~problem.mask[:, k]].view(np.uint8)}
        for k, name in enumerate(federation.parties)
        if rows == "complete"
    }
    ranks: dict[str, int] = {}
    history: list[dict[str, Any]] = []
    mean_fits: list[float] = []
    mean_weight, steepest, converged = 0.0, 0.0, False
    while len(history) < max_iter and not converged:
        r = directions.residual
        length = float(np.linalg.norm(r))
        # A party's fit is no longer than the residual, so no summand is too large.
        scale = _scale(federation.summand_limit, length)
        per_party = {
            name: {
                "r": r[~mask[:, k]],
                "rest": 0.0 if intercept else float(r[mask[:, k]].sum()),
                **first_messages.get(name, {}),
            }
            for k, name in enumerate(federation.parties)
        }
        total = federation.sum(
            "ls_step", {**arguments, "scale": scale}, per_party=per_party, shapes=shapes
        )
        if not history:
            mean_weight = float(total["mean_weight"])
        ranks |= {name: int(told["rank"]) for name, told in total.public.items() if "rank" in told}
        arguments, first_messages = {"unit": unit}, {}
        shapes = {"fit": (len(used),), "mean_fit": ()}
        mean_fits.append(float(total["mean_fit"]) / unit)
        direction = total["fit"] / scale
        if intercept:  # columns are centred, so this takes out rounding alone
            direction = direction - direction.mean()
        noise = resolution(federation) / scale
        gradient = np.sqrt(max(float(r @ direction), 0.0))  # in the preconditioner's metric
        steepest = steepest or gradient
        new = gradient**2 > 4.0 * noise * length and directions.add(direction, noise)
        if not new:
            directions.skip()
        n_columns = sum(ranks.values())
        alone = n_columns == max(ranks.values()) == problem.n_columns
        converged = (
            not new
            or gradient <= tol * steepest
            or alone  # its own regression is the fit
            or len(history) + 1 >= n_columns + _SPARE
        )
        history.append(
            {
                "iteration": len(history) + 1,
                "residual_sum_of_squares": directions.rss * problem.y_scale**2,
                "gradient": float(gradient / steepest) if steepest else 0.0,
            }
        )
        if progress is not None:
            progress.step("least squares", relative_gradient=history[-1]["gradient"])
    combination = directions.combination()
    for name in federation.parties:
        federation.update(name, {"ls.combination": combination})
    return LeastSquares(
        n_samples=len(used),
        n_parameters=sum(ranks.values()) + intercept,
        rss=directions.rss,
        tss=directions.tss,
        level=level,
        has_intercept=intercept,
        ranks=ranks,
        mean_weight=mean_weight,
        intercept=level - float(combination @ mean_fits) if intercept else 0.0,
        converged=converged,
        history=history,
    )


def resolution(federation: Federation) -> float:
    """Largest error of a value of a private sum; 0 in ``plain`` mode."""
    if federation.aggregation == "masked":
        return float(2.0**-federation.fraction_bits * max(len(federation.parties) / 2, 1.0))
    return 2.0**-24 if federation.aggregation == "ckks" else 0.0


def power_of_two(value: float) -> float:
    """Return the power of two at or below a positive value."""
    return float(2.0 ** np.floor(np.log2(value)))


def _scale(limit: float, length: float) -> float:
    return power_of_two(limit / (2.0 * length)) if np.isfinite(limit) and length > 0 else 1.0


def _samples(problem: Problem, rows: str) -> Indices:
    """Choose the samples of the fit, or raise `DataError` if they are too few."""
    if rows == "imputed":
        used = np.arange(len(problem.y))
    else:
        used = np.flatnonzero(~problem.mask.any(axis=1))
    needed = problem.n_columns + 2
    if len(used) >= needed:
        return used
    if rows == "imputed":
        raise DataError(
            f"{len(used)} samples have a label, but the {problem.n_columns} columns of all parties "
            f"need at least {needed}; leave out columns or a party"
        )
    held = dict(zip(problem.columns, (~problem.mask).sum(axis=0).tolist(), strict=True))
    raise DataError(
        f"all parties hold {len(used)} of the {len(problem.y)} labelled samples in common (each by "
        f"itself: {held}), but their {problem.n_columns} columns need at least {needed}; use what "
        "fits on incomplete samples too (strategies 'vfem', 'mean-impute'), one party alone "
        "('single'), or leave out columns or the party that holds the fewest"
    )
