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
from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.results import Progress
from strategies.least_squares.solver import solve
from strategies.regression import (
    LABEL_POLICIES,
    check_design_settings,
    open_problem,
)
from strategies.regression.pairs import PairKeys
from strategies.vfem.cross import VFEMArbiter
from strategies.vfem.inference import check_ranks, infer
from strategies.vfem.outcome import VFEMModel, fill_result, note_ranks
from strategies.vfem.party import VFEMParty
from strategies.vfem.solver import CONVERGED, DIVERGED, EXHAUSTED, STALLED, Settings, Solver

logger = logging.getLogger("flwr_vertical")

STEPS = ("preconditioned", "gradient")
ACCELERATIONS = (None, "none", "squarem")
INITIALS = ("zeros", "complete-case", "mean-imputed")
_START_TOL = 1e-4  # a start need not be exact, and digits cost rounds
STANDARD_ERRORS = ("expected", "gram", "sketch", None, "none")


class VFEM(Strategy):
    """Linear regression over parties that lack whole blocks of covariates.

    ``label = intercept + sum over parties of x_k' beta_k + noise``, rows of party k normal and
    uncorrelated with those of other parties; estimates are those of maximum likelihood, given
    that blocks are missing at random (also depending on labels and on what is observed).

    Parameters
    ----------
    step : {"preconditioned", "gradient"}, default "preconditioned"
        How coefficients move: Fisher scoring with each party's own Gram matrix, or the paper's
        gradient step (Eqs. 7 and 8).
    learning_rate : float, default 0.3
        The paper's eta; only for ``gradient``.
    acceleration : {"squarem", None}, default "squarem"
        Extrapolation of all parameters (Varadhan and Roland, 2008), where steps leave it
        something to gain. ``"none"`` is None.
    initial : {"zeros", "complete-case", "mean-imputed"}, default "zeros"
        Coefficients to start from: none, those of the complete rows (the paper's CC-VFEM), those
        after imputing means (Impute-VFEM), both by federated least squares.
    intercept : bool, default True
        Whether there is one.
    standard_errors : {"expected", "gram", "sketch", None}, default "expected"
        How products of different parties' columns enter the information matrix: by their
        expectation, zero under the model; exactly, from ciphertexts that the arbiter opens (needs
        an arbiter, and the parties' own second moments go to the server); by sketches. The last
        two hold when parties are correlated, too. ``"none"`` is None.
    max_iter : int, default 1000
        Most rounds of iterations.
    tol : float, default 1e-5
        Converged when a step changes the parameters by no more than this share, and the log
        likelihood of a sample by no more than this; 0 never stops.
    noise_prior : float, default 0
        Weight of a prior on the noise variance, in samples for each column; its level is half of
        the labels' variance. 0 is maximum likelihood, whose noise variance is too small, or 0,
        where hardly a sample is held by enough parties; 2 steadies the fit there and does little
        elsewhere. Where the columns explain nearly all of the labels it pulls the wrong way.
    encoding : {"none", "one-hot"}, default "none"
        What becomes of columns of levels: an error, or a column for each level but the first.
    missing_cells : {"error", "drop-row"}, default "error"
        What becomes of rows with single missing cells: an error, or a missing block.
    missing_labels : {"drop", "error"}, default "drop"
        Samples without a label are not used but predicted, or refused.
    standardize : bool, default True
        Compute with standardised labels and columns; results are in the units given. With
        ``gradient`` it makes the learning rate independent of units.
    check_correlation : bool, default True
        Estimate rank correlations between parties from sketches and warn if the model's
        assumption is far off; two rounds.
    sketch_size, n_sketches : int, default 200 and 20
        The paper's m and L: rows of a sketch, and how many are averaged; only for ``sketch``.

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

    name: ClassVar[str] = "vfem"
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

    def __init__(
        self,
        step: str = "preconditioned",
        learning_rate: float = 0.3,
        acceleration: str | None = "squarem",
        initial: str = "zeros",
        intercept: bool = True,
        standard_errors: str | None = "expected",
        max_iter: int = 1000,
        tol: float = 1e-5,
        noise_prior: float = 0.0,
        encoding: str = "none",
        missing_cells: str = "error",
        missing_labels: str = "drop",
        standardize: bool = True,
        check_correlation: bool = True,
        sketch_size: int = 200,
        n_sketches: int = 20,
    ) -> None:
        for name, value, known in (
            ("step", step, STEPS),
            ("acceleration", acceleration, ACCELERATIONS),
            ("initial", initial, INITIALS),
            ("standard_errors", standard_errors, STANDARD_ERRORS),
            ("missing_labels", missing_labels, LABEL_POLICIES),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; expected one of {list(known)}")
        check_design_settings(encoding, missing_cells)
        for name, count in (
            ("max_iter", max_iter), ("sketch_size", sketch_size), ("n_sketches", n_sketches)
        ):  # fmt: skip
            whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
            if not whole or count < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {count!r}")
        for name, flag in (
            ("intercept", intercept),
            ("standardize", standardize),
            ("check_correlation", check_correlation),
        ):
            if not isinstance(flag, bool):  # bool("false") is True
                raise ConfigError(f"{name} must be true or false, got {flag!r}")
        if not learning_rate > 0 or not np.isfinite(learning_rate):
            raise ConfigError(f"learning_rate must be a positive number, got {learning_rate!r}")
        if not 0 <= noise_prior < np.inf:
            raise ConfigError(f"noise_prior must be at least 0, got {noise_prior!r}")
        if not 0 <= tol < 1:
            raise ConfigError(f"tol must be at least 0 and below 1, got {tol!r}")
        self.step = step
        self.learning_rate = float(learning_rate)
        self.acceleration = None if acceleration == "none" else acceleration
        self.initial = initial
        self.intercept = bool(intercept)
        self.standard_errors = None if standard_errors == "none" else standard_errors
        self.max_iter = int(max_iter)
        self.tol = float(tol)
        self.noise_prior = float(noise_prior)
        self.encoding = encoding
        self.missing_cells = missing_cells
        self.missing_labels = missing_labels
        self.standardize = bool(standardize)
        self.check_correlation = bool(check_correlation)
        self.sketch_size = int(sketch_size)
        self.n_sketches = int(n_sketches)

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
