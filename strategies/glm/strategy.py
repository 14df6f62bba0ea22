"""VerticalGLM: sparse generalised linear models over parties, by sharing ADMM (VFL-GLM-VS).

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Section 4. What `solver` and `block` compute travels as follows, for n samples that all
parties hold and L values of lambda that are still iterated:

=================  ==============================================================================
round              what travels
=================  ==============================================================================
prepare            up: names of columns, number of rows
begin              down: n numbers (the labels' residuals); summed: one number
admm, once an      down: n numbers for each lambda, and for each that is tested n more; summed: n
iteration          for each lambda (the fits) and one more, for each that is tested two more; in
                   the first eight rounds n more both ways
finish             up: the chosen coefficients; summed: one number for each sample without a label
pair_key,          with standard errors: keys; down: n numbers; up: for each other party, the
rotate_selected    selected columns times a random rotation, n numbers each
=================  ==============================================================================

All values of lambda and all LLA weights are columns of the same messages, so a path takes about as
many rounds as its slowest lambda.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.results import Progress
from strategies.glm.families import family_named
from strategies.glm.fit import fit_federated
from strategies.glm.outcome import fill_result
from strategies.glm.party import GLMParty
from strategies.glm.path import parse_lambdas
from strategies.glm.penalties import check_penalty
from strategies.glm.samples import names_by_party, used_samples
from strategies.regression import LABEL_POLICIES, check_design_settings, open_problem

STANDARD_ERRORS = ("gram", "none")
PROTECTIONS = ("admm", "none")


class VerticalGLM(Strategy):
    """A generalised linear model whose columns lie at several parties, with variable selection.

    Minimises ``mean of psi(eta) - y eta + sum of P_lambda(|beta_j|)`` with ``eta = intercept + sum
    over parties of x_k' beta_k`` on the labelled samples that all parties hold.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson"}, default "gaussian"
        Of the labels, with the canonical link: any numbers; 0 and 1; counts.
    penalty : {"scad", "mcp", "lasso", None}, default "scad"
        ``"none"`` is None.
    lambdas : "bic", float or sequence of float, default "bic"
        Strength of the penalty in label units per standard deviation of a column (with
        `standardize`); of several, BIC chooses. ``"bic"`` makes the values itself, and does not
        iterate to the end those far from the best. Text with commas is a sequence.
    n_lambdas : int, default 50
        How many values ``"bic"`` compares.
    lambda_ratio : float, default 0.01
        The smallest of them over the largest, at which no column is selected.
    intercept : bool, default True
        Whether there is one. Without, columns are not centred; parties whose columns have a common
        level then overlap, which takes many more rounds.
    unpenalized : str or sequence, default ""
        Columns without penalty, as ``"party:column"``; text with commas, or a sequence.
    penalty_shape : float, default 0
        The ``a`` of SCAD or MCP; 0 is the usual, 3.7 and 3.
    lla_steps : int, default 3
        How often the tangents of a concave penalty are drawn again (local linear approximation),
        beginning with a lasso. Two reach the oracle solution with high probability (Fan, Xue and
        Zou, 2014).
    standard_errors : {"gram", None}, default "gram"
        On the selected columns, from the Fisher information; the server then learns second moments
        of the selected columns. ``"none"`` is None.
    standardize : bool, default True
        Whether a penalty treats columns in units of their standard deviation. Results are in the
        units given.
    max_iter : int, default 500
        Most rounds of iterations.
    tol : float, default 1e-3
        The paper's absolute and relative tolerance of primal and dual residuals.
    kkt_tol : float, default 1e-4
        How far the optimality conditions may be violated, in units of the labels' standard
        deviation.
    encoding : {"none", "one-hot"}, default "none"
        What becomes of columns of levels: an error, or a column for each level but the first.
    missing_cells : {"error", "drop-row"}, default "error"
        What becomes of rows with single missing cells: an error, or a missing block.
    missing_labels : {"drop", "error"}, default "drop"
        Samples without a label are not used but predicted, or refused.
    dp : {"admm", None}, default None
        Add noise to every party's coefficients in every round: the baseline VFL-ADMM-DP after Hu
        et al. (2020). ``release`` says what it promises. ``"none"`` is None.
    epsilon, delta : float, default 1 and 1e-5
        Privacy of one round of one lambda, with `dp`; the ledger holds all rounds together.
    dp_rounds : int, default 20
        Rounds with `dp`, which has no other end.

    Notes
    -----
    Samples that some party lacks are left out of the fit. `Result.coefficients` is indexed by
    (party, variable), the intercept under ``server``; `Result.predictions` has, for samples without
    a label that all parties hold, ``prediction`` (the expected label) and ``linear_predictor``.
    ``model.outcome`` is ``converged``, ``max iterations`` or ``separated`` (a logistic fit that has
    no finite estimate).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame(rng.normal(size=(500, 3)), columns=["a", "b", "c"])
    >>> court = pd.DataFrame(rng.normal(size=(500, 2)), columns=["d", "e"])
    >>> y = 1 + 2 * bank["a"] - court["e"] + rng.normal(scale=0.1, size=500)
    >>> result = simulate(VerticalGLM(), {"bank": bank, "court": court}, y, progress=False)
    >>> result.coefficients["estimate"].round(1).to_list()
    [1.0, 2.0, 0.0, 0.0, 0.0, -1.0]
    """

    name: ClassVar[str] = "glm"
    party = GLMParty
    disclosure = (
        ("server", "names of the parties' columns, which are constant, and rows left out"),
        (
            "server, and arbiter in ckks mode",
            "for each sample of the fit, each lambda and each iteration, the sum of the parties' "
            "fits; for each sample without a label, the last one. Together these span what the "
            "columns span: the server could come to know all parties' columns but for a linear map",
        ),
        (
            "server, and arbiter in ckks mode",
            "for each lambda and iteration, the sum of the parties' penalties",
        ),
        (
            "server, and arbiter in ckks mode",
            "for eight vectors of the server, the sum of their projections on the parties' columns",
        ),
        (
            "server",
            "a bound on the largest correlation of a column with the labels; for each lambda how "
            "many columns are selected, and how far the fit is from optimal (sums over parties)",
        ),
        ("server", "each party's coefficients for the chosen lambda; of several stated, for all"),
        (
            "server, with standard errors",
            "second moments of the selected columns, also across parties, weighted; the same over "
            "groups of some 1,000 samples in an order that it does not know",
        ),
        (
            "every party",
            "which samples that it holds all parties hold, and which have a label",
        ),
        (
            "every party",
            "for each sample of the fit, each lambda and each iteration, label less expectation "
            "(or that and a multiple of what the fits lack): the first shows the labels",
        ),
        (
            "every party, with standard errors",
            "the variance of each label under the model, which shows the size of its predictor",
        ),
        ("nobody", "a value of another party's columns, unless it has as many fits as columns"),
    )

    def __init__(
        self,
        family: str = "gaussian",
        penalty: str | None = "scad",
        lambdas: "str | float | Sequence[float]" = "bic",
        n_lambdas: int = 50,
        lambda_ratio: float = 0.01,
        intercept: bool = True,
        unpenalized: "str | Sequence[str]" = "",
        penalty_shape: float = 0.0,
        lla_steps: int = 3,
        standard_errors: str | None = "gram",
        standardize: bool = True,
        max_iter: int = 500,
        tol: float = 1e-3,
        kkt_tol: float = 1e-4,
        encoding: str = "none",
        missing_cells: str = "error",
        missing_labels: str = "drop",
        dp: str | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        dp_rounds: int = 20,
    ) -> None:
        family_named(family)
        self.penalty, _ = check_penalty(penalty, penalty_shape)
        self.lambdas = parse_lambdas(lambdas)
        check_design_settings(encoding, missing_cells)
        self.standard_errors, self.dp = standard_errors or "none", dp or "none"
        for name, value, known in (
            ("standard_errors", self.standard_errors, STANDARD_ERRORS),
            ("dp", self.dp, PROTECTIONS),
            ("missing_labels", missing_labels, LABEL_POLICIES),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; expected one of {list(known)}")
        for name, count in (
            ("n_lambdas", n_lambdas),
            ("lla_steps", lla_steps),
            ("max_iter", max_iter),
            ("dp_rounds", dp_rounds),
        ):
            whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
            if not whole or count < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {count!r}")
        for name, flag in (("intercept", intercept), ("standardize", standardize)):
            if not isinstance(flag, bool):  # bool("false") is True
                raise ConfigError(f"{name} must be true or false, got {flag!r}")
        for name, number, most in (
            ("lambda_ratio", lambda_ratio, 1.0),
            ("tol", tol, 1.0),
            ("kkt_tol", kkt_tol, 1.0),
            ("epsilon", epsilon, np.inf),
            ("delta", delta, 1.0),
        ):
            if isinstance(number, bool) or not 0 < number < most:
                limit = "" if most == np.inf else f" and below {most:g}"
                raise ConfigError(f"{name} must be above 0{limit}, got {number!r}")
        self.family = family
        self.n_lambdas = int(n_lambdas)
        self.lambda_ratio = float(lambda_ratio)
        self.intercept = intercept
        self.unpenalized = unpenalized if isinstance(unpenalized, str) else ",".join(unpenalized)
        self.penalty_shape = float(penalty_shape)
        self.lla_steps = int(lla_steps)
        self.standardize = standardize
        self.max_iter = int(max_iter)
        self.tol = float(tol)
        self.kkt_tol = float(kkt_tol)
        self.encoding = encoding
        self.missing_cells = missing_cells
        self.missing_labels = missing_labels
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.dp_rounds = int(dp_rounds)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Iterate all values of lambda, let BIC choose, and fill in the result."""
        free = names_by_party(self.unpenalized, federation.parties)
        problem = open_problem(
            federation,
            alignment,
            result,
            encoding=self.encoding,
            missing_cells=self.missing_cells,
            missing_labels=self.missing_labels,
            standardize=self.standardize,
            intercept=self.intercept,
        )
        used = used_samples(problem, result, self.penalty)
        y = np.asarray(federation.labels)[problem.labelled][used]
        fit = fit_federated(self, federation, problem, used, y, free, result, progress)
        fill_result(self, federation, alignment, problem, fit, y, result, progress)
