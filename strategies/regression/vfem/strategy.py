"""VFEM: linear regression where whole blocks of covariates are missing, with standard errors.

Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using Multiple Data Sources with Missing
Values through Vertical Federated Learning".

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
finish                 down: four numbers; up: coefficients and standard errors; summed: two
                       numbers for each sample without a label
=====================  ===========================================================================

The default step is Fisher scoring with each party's own Gram matrix, steps coupled by the server,
which needs some ten rounds where the paper's gradient iteration needs hundreds. Every round shows
the observed-data likelihood, and a step that lowers it is mended.
"""

import logging
from types import MappingProxyType
from typing import ClassVar

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.products import PairKeys
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.regression import (
    open_problem,
)
from strategies.regression import settings as shared
from strategies.regression.least_squares.solver import solve
from strategies.regression.vfem.inference import check_ranks, infer
from strategies.regression.vfem.outcome import VFEMModel, fill_result, note_ranks
from strategies.regression.vfem.party import VFEMArbiter, VFEMParty
from strategies.regression.vfem.solver import (
    CONVERGED,
    DIVERGED,
    EXHAUSTED,
    STALLED,
    Settings,
    Solver,
)

logger = logging.getLogger("flwr_vertical")

STEPS = ("preconditioned", "gradient")
ACCELERATIONS = ("squarem",)
INITIALS = ("zeros", "complete-case", "mean-imputed")
_START_TOL = 1e-4  # a start need not be exact, and digits cost rounds
STANDARD_ERRORS = ("expected", "gram", "sketch")


class VFEM(Strategy):
    """Linear regression over parties that lack whole blocks of covariates.

    ``label = intercept + sum over parties of x_k' beta_k + noise``, rows of party k normal and
    uncorrelated with those of other parties; estimates are those of maximum likelihood, given
    that blocks are missing at random (also depending on labels and on what is observed).

    Notes
    -----
    `Result.coefficients` is indexed by (party, variable), the intercept under ``server``. Samples
    without a label are in `Result.predictions`: conditional mean, standard error of the mean for
    known noise, and a 95 % prediction interval. ``metrics["converged"]`` and ``model.outcome`` tell
    how the iterations ended.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> y = 1 + 2 * bank["a"] - court["b"] + rng.normal(scale=0.1, size=500)
    >>> result = simulate(VFEM(), {"bank": bank[:400], "court": court[100:]}, y, progress=False)
    >>> result.coefficients["estimate"].round(1).to_list()
    [1.0, 2.0, -1.0]
    """

    step: str = setting(
        "preconditioned",
        "How coefficients move: Fisher scoring with each party's own Gram matrix, or the paper's "
        "gradient step (Eqs. 7 and 8).",
        choices=STEPS,
    )
    learning_rate: float = setting(0.3, "The paper's eta; only for ``gradient``.", above=0)
    acceleration: str | None = setting(
        "squarem",
        "Extrapolation of all parameters (Varadhan and Roland, 2008), where steps leave it "
        "something to gain.",
        choices=ACCELERATIONS,
    )
    initial: str = setting(
        "zeros",
        "Coefficients to start from: none, those of the complete rows (the paper's CC-VFEM), "
        "those after imputing means (Impute-VFEM), both by federated least squares.",
        choices=INITIALS,
    )
    intercept: bool = setting(True, "Whether there is one.")
    standard_errors: str | None = setting(
        "expected",
        "How products of different parties' columns enter the information matrix: by their "
        "expectation, zero under the model; exactly, from ciphertexts that the arbiter opens "
        "(needs an arbiter, and the parties' own second moments go to the server); by sketches. "
        "The last two hold when parties are correlated, too.",
        choices=STANDARD_ERRORS,
    )
    max_iter: int = setting(1000, "Most rounds of iterations.", at_least=1)
    tol: float = setting(
        1e-5,
        "Converged when a step changes the parameters by no more than this share, and the log "
        "likelihood of a sample by no more than this; 0 never stops.",
        at_least=0,
        below=1,
    )
    noise_prior: float = setting(
        0.0,
        "Weight of a prior on the noise variance, in samples for each column; its level is half "
        "of the labels' variance. 0 is maximum likelihood, whose noise variance is too small, or "
        "0, where hardly a sample is held by enough parties; 2 steadies the fit there and does "
        "little elsewhere. Where the columns explain nearly all of the labels it pulls the wrong "
        "way.",
        at_least=0,
    )
    encoding: str = shared.encoding()
    missing_cells: str = shared.missing_cells()
    missing_labels: str = shared.missing_labels()
    standardize: bool = setting(
        True,
        "Compute with standardised labels and columns; results are in the units given. With "
        "``gradient`` it makes the learning rate independent of units.",
    )
    check_correlation: bool = setting(
        True,
        "Estimate rank correlations between parties from sketches and warn if the model's "
        "assumption is far off; two rounds.",
    )
    sketch_size: int = setting(
        200, "The paper's m: rows of a sketch; only for ``sketch``.", at_least=1
    )
    n_sketches: int = setting(
        20, "The paper's L: how many sketches are averaged; only for ``sketch``.", at_least=1
    )

    name: ClassVar[str] = "vfem"
    needs_labels = True
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.dataset": "diabetes",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.3,
        }
    )
    party = VFEMParty
    arbiter = VFEMArbiter
    disclosure = (
        ("server", "names of the parties' columns, which are collinear, and rows left out"),
        (
            "server",
            "for each labelled sample and each iteration, the sum of the parties' fits; for each "
            "sample without a label, the last one",
        ),
        (
            "server",
            "for each party and iteration, the variance of its fit and three numbers on how it "
            "responds; the sum of the parties' log likelihoods; in the end, mean and variance of "
            "its fit, and the offset of centring",
        ),
        ("server", "each party's coefficients and standard errors"),
        (
            "every party",
            "for each labelled sample that it holds and each iteration, the residual over its "
            "variance: label less everybody's fit. From zeros, the first is the label itself but "
            "for location and scale",
        ),
        (
            "every party",
            "which of its samples share a missingness pattern, and each pattern's variance; how "
            "many labelled samples there are, and which of its own",
        ),
        (
            "server, if correlations are checked",
            "sketches of each party's rank scores: rank correlations of its own columns, and with "
            "those of others, to a few hundredths",
        ),
        (
            "server, with standard errors 'gram' or 'sketch'",
            "each party's second moments, weighted, the direction of its fit, and the weighted "
            "sums of its centred columns by the parties that lack samples",
        ),
        ("server, or arbiter with 'gram'", "products of different parties' columns, as sums"),
        ("nobody", "a value of another party's columns"),
    )

    @property
    def needs_arbiter(self) -> str | None:
        """Why an arbiter must take part, whatever the mode of the sums."""
        return "standard_errors 'gram'" if self.standard_errors == "gram" else None

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Iterate to the estimates, then work out their standard errors."""
        problem = open_problem(
            federation,
            alignment,
            result,
            encoding=self.encoding,
            missing_cells=self.missing_cells,
            missing_labels=self.missing_labels,
            standardize=self.standardize,
            intercept=self.intercept,
            with_unheld=True,
        )
        keys = PairKeys(federation)
        if self.check_correlation and len(federation.parties) > 1:
            progress.step("rank correlations")
            note_ranks(check_ranks(federation, problem, keys), result)
        solver = Solver(
            federation,
            problem,
            Settings(
                self.step,
                self.learning_rate,
                self.acceleration == "squarem",
                self.intercept,
                self.max_iter,
                self.tol,
                self.noise_prior,
            ),
            progress,
            result.history,
        )
        if self.initial == "zeros":
            solver.start_from_zero()
        else:
            rows = "complete" if self.initial == "complete-case" else "imputed"
            start = solve(
                federation,
                problem,
                rows=rows,
                tol=_START_TOL,
                intercept=self.intercept,
                progress=progress,
            )
            solver.start_from_least_squares(start.intercept)
        outcome = solver.run()
        self._note_outcome(outcome, solver, result)
        result.metrics["iterations"] = float(len(result.history))
        result.metrics["converged"] = float(outcome == CONVERGED)
        if outcome == DIVERGED:
            result.model = VFEMModel(outcome)
            return
        progress.step("standard errors" if self.standard_errors else "finish")
        estimates = infer(
            federation,
            problem,
            solver.estep,
            result,
            kind=self.standard_errors,
            intercept=self.intercept,
            keys=keys,
            sketch_rows=self.sketch_size * self.n_sketches,
        )
        fill_result(result, federation, alignment, problem, solver, estimates, self.intercept)

    def _note_outcome(self, outcome: str, solver: Solver, result: Result) -> None:
        text = ""
        if outcome == EXHAUSTED:
            text = (
                f"not converged after {self.max_iter} rounds; raise max_iter, or use "
                "step='preconditioned' with acceleration='squarem'"
            )
        elif outcome == DIVERGED:
            curvature = float(solver.problem.total["curvature"]) ** 2 + float(self.intercept)
            text = (
                f"diverged: learning_rate = {self.learning_rate:g} is too large for these columns; "
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
