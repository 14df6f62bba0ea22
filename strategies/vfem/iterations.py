"""The paper's iterations (``exchange="sums"``), which open a sum for each sample in each round.

The paper's Algorithm 1 exchanges messages four times an iteration. Written in sums over parties, an
iteration is one round (the derivation is in `block` and `expectation`):

=====================  ===========================================================================
round                  what travels
=====================  ===========================================================================
prepare                up: names of columns, number of rows; summed: two numbers
an iteration           down: one number for each row the party holds, one for each missingness
                       pattern, six more; up, summed: one number for each labelled sample (the
                       fits), four more; up, from each party: four numbers
information            down: one number for each row the party holds; up: four numbers
finish                 down: four numbers; up: coefficients and standard errors
keep_model             down: the own coefficients; up, summed: a rounded term for each sample
                       without a label
=====================  ===========================================================================

The default step is Fisher scoring with each party's own Gram matrix, steps coupled by the server,
which needs some ten rounds where the paper's gradient iteration needs hundreds. Every round shows
the observed-data likelihood, and a step that lowers it is mended.
"""

import logging
from dataclasses import dataclass

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.products import PairKeys
from flwr_vertical.results import Progress
from strategies.least_squares.solver import solve
from strategies.linear import open_problem
from strategies.vfem.inference import check_ranks, infer
from strategies.vfem.outcome import VFEMModel, fill_result, note_ranks
from strategies.vfem.solver import CONVERGED, DIVERGED, EXHAUSTED, STALLED, Settings, Solver

logger = logging.getLogger("flwr_vertical")

_START_TOL = 1e-4  # a start need not be exact, and digits cost rounds


@dataclass(frozen=True)
class IterationSettings:
    """Settings of `VFEM` that the iterations read."""

    step: str
    learning_rate: float
    acceleration: str | None
    initial: str
    standard_errors: str | None
    max_iter: int
    tol: float
    noise_prior: float
    standardize: bool
    sketch_size: int
    n_sketches: int
    intercept: bool
    check_correlation: bool


def iterate(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    progress: Progress,
    settings: IterationSettings,
    *,
    encoding: str,
    missing_cells: str,
    missing_labels: str,
) -> None:
    """Iterate to the estimates, then work out their standard errors."""
    problem = open_problem(
        federation,
        alignment,
        result,
        encoding=encoding,
        missing_cells=missing_cells,
        missing_labels=missing_labels,
        standardize=settings.standardize,
        intercept=settings.intercept,
        with_unheld=True,
    )
    keys = PairKeys(federation)
    if settings.check_correlation and len(federation.parties) > 1:
        progress.step("rank correlations")
        note_ranks(check_ranks(federation, problem, keys), result)
    solver = Solver(
        federation,
        problem,
        Settings(
            settings.step,
            settings.learning_rate,
            settings.acceleration == "squarem",
            settings.intercept,
            settings.max_iter,
            settings.tol,
            settings.noise_prior,
        ),
        progress,
        result.history,
    )
    if settings.initial == "zeros":
        solver.start_from_zero()
    else:
        rows = "complete" if settings.initial == "complete-case" else "imputed"
        start = solve(
            federation,
            problem,
            rows=rows,
            tol=_START_TOL,
            intercept=settings.intercept,
            progress=progress,
        )
        solver.start_from_least_squares(start.intercept)
    outcome = solver.run()
    _note_outcome(outcome, solver, result, settings)
    result.metrics["iterations"] = float(len(result.history))
    result.metrics["converged"] = float(outcome == CONVERGED)
    if outcome == DIVERGED:
        result.model = VFEMModel(outcome)
        return
    progress.step("standard errors" if settings.standard_errors else "finish")
    estimates = infer(
        federation,
        problem,
        solver.estep,
        result,
        kind=settings.standard_errors,
        intercept=settings.intercept,
        keys=keys,
        sketch_rows=settings.sketch_size * settings.n_sketches,
    )
    fill_result(result, federation, alignment, problem, solver, estimates, settings.intercept)


def _note_outcome(
    outcome: str, solver: Solver, result: Result, settings: IterationSettings
) -> None:
    text = ""
    if outcome == EXHAUSTED:
        text = (
            f"not converged after {settings.max_iter} rounds; raise max_iter, or use "
            "step='preconditioned' with acceleration='squarem'"
        )
    elif outcome == DIVERGED:
        curvature = float(solver.problem.total["curvature"]) ** 2 + float(settings.intercept)
        text = (
            f"diverged: learning_rate = {settings.learning_rate:g} is too large for these columns; "
            f"{1.0 / curvature:.2g} would do, or step='preconditioned', which needs none"
        )
    elif outcome == STALLED:
        text = (
            "stalled: no step raises the likelihood any further, though the parameters still "
            "move; the estimates are as good as the sums' resolution allows"
        )
    if solver.estep.sigma2 <= 1.01 * solver.floor and outcome != DIVERGED:
        text += ("; " if text else "") + (
            "the noise variance is at its lower bound: too few samples are held by enough "
            "parties to tell it from the variance of missing blocks. Coefficients can still be "
            "used, standard errors and intervals should not; noise_prior=2 steadies the fit"
        )
    if text:
        logger.warning("%s", text)
        result.notes.append(text)
