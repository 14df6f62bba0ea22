"""VerticalGLM: sparse generalised linear models over parties, by sums over rows.

Sums of products of columns with each other and with the labels determine the likelihood of normal
labels. Private products open these sums and nothing of a row; the server computes the whole path of
penalties, BIC and standard errors from them (`fit`). Labels 0 and 1 and counts need the sums of
columns times means as well: masked means open these at coefficients of the server's choice, a few
times, until the maximum of the likelihood is found; penalties go on the quadratic there (Wang and
Leng, 2007), which is then drawn again about the fit that they choose. What travels, with p columns
of all parties:

===============  ===================================================================================
round            what travels
===============  ===================================================================================
prepare_moments  up: names of columns, number of rows, rough units of the columns, public keys
seal_group_seed  up, of one party: the group seed, sealed for each other one
send_masked      up: each party's columns under the group's key stream
open_products    down: the group of each row, labels under a mask; up: a private sum of p^2 numbers
                 for each group, a party's own moments, its shares of products with the labels
send_digits,     with labels 0 and 1, or counts (`mean_fit`): columns in digits, under a key stream;
place_fits,      for each evaluation, down: each party's coefficients, masked sines and cosines of
open_means       angles; summed: an angle for each row under key streams, and small matrices. With a
                 penalty up to eight evaluations more, at the coefficients that BIC chooses
finish_moments   down: each party's coefficients; summed: one whole number for each sample without
                 a label
===============  ===================================================================================

The paper's method (VFL-GLM-VS: Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated
Learning with Client-wise Missing Problem", Section 4) is ``exchange="sums"``: sharing ADMM, one
round an iteration, in which the sum of the parties' fits is opened for every sample and lambda.

===============  ===================================================================================
round            what travels with ``exchange="sums"``, for L values of lambda still iterated
===============  ===================================================================================
prepare          up: names of columns, number of rows
begin            down: n numbers (the labels' residuals); summed: one number
admm, once an    down: n numbers for each lambda, and for each that is tested n more; summed: n for
iteration        each lambda (the fits) and one more, for each that is tested two more; in the
                 first eight rounds n more both ways
finish           up: the chosen coefficients; summed: one number for each sample without a label
pair_key,        with standard errors: keys; down: n numbers; up: for each other party, the
rotate_selected  selected columns times a random rotation, n numbers each
===============  ===================================================================================
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import read_bounds
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting, settings_of
from strategies.glm.fit import fit_on_moments
from strategies.glm.lambda_path import parse_lambdas
from strategies.glm.party import GLMParty
from strategies.glm.penalties import PENALTIES, check_penalty
from strategies.glm.samples import names_by_party, used_samples
from strategies.glm.sums import EXCHANGE
from strategies.glm.sums.fit import fit_federated
from strategies.glm.sums.outcome import fill_result
from strategies.linear import open_problem
from strategies.linear import settings as shared
from strategies.linear.families import FAMILIES
from strategies.linear.moment_party import MomentArbiter
from strategies.linear.moments import Budget, check_budget
from strategies.linear.moments.disclosure import PRIVATE, RECOGNISED

STANDARD_ERRORS = ("gram", "none")
PROTECTIONS = ("moments", "admm", "none")
EXCHANGES = ("moments", EXCHANGE)
ROWS = ("complete", "all")

EXACT = ("gaussian", "complete", "moments")
"""What noisy sums are for."""

OF_SUMS = ("lla_steps", "max_iter", "tol", "kkt_tol", "dp", "epsilon", "delta", "dp_rounds")
"""Settings that say how the iterations of exchange 'sums' go."""


def _with_commas(columns: "str | Sequence[str]") -> str:
    return columns if isinstance(columns, str) else ",".join(columns)


class VerticalGLM(Strategy):
    """A generalised linear model whose columns lie at several parties, with variable selection.

    Minimises ``mean of psi(eta) - y eta + sum of P_lambda(|beta_j|)`` with ``eta = intercept + sum
    over parties of x_k' beta_k`` on the labelled samples that all parties hold, or with `rows` on
    all labelled ones.

    Notes
    -----
    `Result.coefficients` is indexed by (party, variable), the intercept under ``server``.
    ``model.path`` and ``model.path_coefficients`` hold the fits of all values of lambda. With
    gaussian labels they are exact: those of the pooled table. With others, the fit without a
    penalty is that of maximum likelihood, and with one the chosen fit is that of the penalised
    likelihood; the rest of the path goes by the quadratic approximation of the likelihood about the
    chosen fit. These need a second party and ``masked`` sums.

    A value of a column with labels of one kind alone (quasi-separation) leaves the column's
    coefficient without a finite estimate: it has a small ridge then and no standard error, as a
    note and ``model.ridged`` say. Columns that tell all labels apart are refused by name without a
    penalty; with one, all columns have this ridge beside it.

    `Result.predictions` has the samples without a label; where a party lacks one, its columns are
    expected given those of the others. A sum over few rows is never opened: a fit needs ``max(100,
    3 (p + 1))`` rows of p columns, or what the nodes state as ``min-rows``.

    With ``dp="moments"`` the whole path and its standard errors come from one release of noisy
    sums; `Result.privacy` says what it promises. Standard errors include the noise, BIC does not
    know of it: columns whose coefficients are of the size of the noise may be selected.

    With ``exchange="sums"`` ``model.outcome`` may also be ``max iterations`` or ``separated`` (a
    logistic fit that has no finite estimate), and predictions are of samples that all parties hold:
    ``prediction`` (the expected label) and ``linear_predictor``.

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

    family: str = setting(
        "gaussian",
        "Of the labels, with the canonical link: any numbers; 0 and 1; counts.",
        choices=tuple(FAMILIES),
    )
    penalty: str | None = setting(
        "scad",
        "What keeps coefficients zero; without one, the estimates of maximum likelihood.",
        choices=PENALTIES,
    )
    lambdas: str | float | Sequence[float] = setting(
        "bic",
        "Strength of the penalty in label units per standard deviation of a column (with "
        "`standardize`); of several, BIC chooses. ``bic`` makes the values itself. Any number of "
        "them takes no more rounds than one.",
        parse=parse_lambdas,
    )
    n_lambdas: int = setting(50, "How many values ``bic`` compares.", at_least=1)
    lambda_ratio: float = setting(
        0.01,
        "The smallest of them over the largest, at which no column is selected.",
        above=0,
        below=1,
    )
    intercept: bool = setting(
        True,
        "Whether there is one. Without, columns are not centred; parties whose columns have a "
        "common level then overlap, which takes many more rounds.",
    )
    unpenalized: str | Sequence[str] = setting(
        "",
        "Columns that always stay: ``bank:age, court:cases``, or a sequence of such texts.",
        parse=_with_commas,
    )
    penalty_shape: float = setting(0.0, "The ``a`` of SCAD or MCP; 0 is the usual, 3.7 and 3.")
    lla_steps: int = setting(
        3,
        "Of ``sums``, where each takes rounds: how often the tangents of a concave penalty are "
        "drawn again (local linear approximation), beginning with a lasso. Two reach the oracle "
        "solution with high probability (Fan, Xue and Zou, 2014). With ``moments`` they are drawn "
        "until nothing changes.",
        at_least=1,
    )
    standard_errors: str | None = setting(
        "gram",
        "On the selected columns, from the Fisher information; with ``sums`` the server then "
        "learns second moments of these columns.",
        choices=STANDARD_ERRORS,
    )
    standardize: bool = setting(
        True,
        "Whether a penalty treats columns in units of their standard deviation. Results are in "
        "the units given.",
    )
    max_iter: int = setting(500, "Most rounds of the iterations of ``sums``.", at_least=1)
    tol: float = setting(
        1e-3,
        "Of ``sums``: the paper's absolute and relative tolerance of primal and dual residuals.",
        above=0,
        below=1,
    )
    kkt_tol: float = setting(
        1e-4,
        "Of ``sums``: how far the optimality conditions may be violated, in units of the labels' "
        "standard deviation.",
        above=0,
        below=1,
    )
    exchange: str = setting(
        "moments",
        "What parties and server do. ``moments``: private products open sums over rows, and the "
        "server computes the whole path from them. ``sums``: the iterations of the paper, which "
        "open the sum of fits of every sample in every round; every node must agree to it in its "
        'node config (``exchanges = "sums"``).',
        choices=EXCHANGES,
    )
    rows: str = setting(
        "complete",
        "With gaussian labels and ``moments``: labelled samples that all parties hold, or ``all`` "
        "labelled samples, columns and label being jointly normal (maximum likelihood).",
        choices=ROWS,
    )
    encoding: str = shared.encoding()
    missing_cells: str = shared.missing_cells()
    missing_labels: str = shared.missing_labels()
    dp: str | None = setting(
        None,
        "Differential privacy. ``moments``: of the values of a row over all parties and its label, "
        "by noise on all sums that are opened (gaussian labels, complete rows, `bounds`); the "
        "whole path of lambda comes from one release. ``admm``, of ``sums``: the baseline "
        "VFL-ADMM-DP after Hu et al. (2020), noise on every party's coefficients in every round, "
        "which costs most of the accuracy and protects no row against who knows others.",
        choices=PROTECTIONS,
    )
    epsilon: float = setting(
        1.0,
        "With `dp`: of the whole run; with ``admm``, of one round of one lambda (the ledger holds "
        "all rounds together).",
        above=0,
    )
    delta: float = setting(
        1e-5, "As `epsilon`; to be well below one over the number of rows.", above=0, below=1
    )
    dp_rounds: int = setting(20, "Rounds with ``admm``, which has no other end.", at_least=1)
    bounds: str | Mapping[str, Sequence[float]] | None = shared.bounds("dp='moments'")
    row_norm: float = shared.row_norm("dp='moments'")

    name: ClassVar[str] = "glm"
    needs_labels = True
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.dataset": "blood-pressure",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.1,
            "glm.rows": "all",
        }
    )
    party = GLMParty
    arbiter = MomentArbiter
    disclosure = (
        (
            "server",
            "names of the parties' columns, and which rows a party leaves out for missing cells",
        ),
        (
            "server, with exchange='moments'",
            "a rough unit and level of each column; sums over groups of rows with the same blocks "
            "present (at least max(100, 3 (columns + 1)) rows, or what a node states) of the "
            "columns, of products of two columns, also of different parties, and of columns with "
            "the labels; which columns have a value too rare for that. From these follow the "
            "coefficients for every lambda",
        ),
        (
            "server, with exchange='moments' and labels 0 and 1, or counts",
            "for each evaluation, at coefficients of the server's choice, the sum of the means and "
            "of each column times them, and how far linear predictors reach, to a grid; at the "
            "maximum, and with a penalty at fits that BIC chooses, also products of two columns "
            "weighted by the labels' variance, and the sum of the cumulants",
        ),
        (
            "server, with exchange='moments'",
            "for each sample without a label, the sum of the parties' terms, rounded to a grid: at "
            "most ``bits_per_row`` bits; of each party, how many of these lie out of its bounds",
        ),
        *RECOGNISED,
        PRIVATE,
        (
            "server and a party together, with exchange='moments'",
            "all parties' columns: the party has the seed that hides them from the server",
        ),
        (
            "a party and its helper together, with exchange='moments'",
            "the labels: one has these under a mask, the other the seed of the mask; of labels 0 "
            "and 1, or counts, also their expectations",
        ),
        (
            "arbiter in ckks mode, with exchange='moments'",
            "products of columns under a mask of the server, and sums of predictions",
        ),
        (
            "every party, with exchange='moments'",
            "which samples have a label; of the labelled ones, which are in the fit and, with "
            "rows='all', which have the same parties present; its own coefficients, with labels 0 "
            "and 1 or counts at each evaluation. Of the labels, random numbers only",
        ),
        (
            "server, and arbiter in ckks mode, with exchange='sums'",
            "for each sample of the fit, each lambda and each iteration, the sum of the parties' "
            "fits; for each sample without a label, the last one. Together these span what the "
            "columns span, and with coefficients or moments they give every cell of every party",
        ),
        (
            "server, and arbiter in ckks mode, with exchange='sums'",
            "for each lambda and iteration, the sum of the parties' penalties; for eight vectors "
            "of the server, the sum of their projections on the parties' columns",
        ),
        (
            "server, with exchange='sums'",
            "which columns are constant; a bound on the largest correlation of a column with the "
            "labels; for each lambda how many columns are selected, and how far the fit is from "
            "optimal (sums over parties); each party's coefficients for the chosen lambda; of "
            "several stated, for all",
        ),
        (
            "server, with exchange='sums' and standard errors",
            "second moments of the selected columns, also across parties, weighted; the same over "
            "groups of some 1,000 samples in an order that it does not know",
        ),
        (
            "every party, with exchange='sums'",
            "which samples that it holds all parties hold, and which have a label; for each sample "
            "of the fit, each lambda and each iteration, label less expectation (or that and a "
            "multiple of what the fits lack): the first shows the labels; with standard errors, "
            "the variance of each label under the model, which shows the size of its predictor",
        ),
        (
            "nobody, with exchange='moments'",
            "a value of another party's columns, or a fitted value; of the parties, a label",
        ),
    )

    def check(self) -> None:
        """Raise if settings do not go together."""
        check_penalty(self.penalty, self.penalty_shape)
        self._check_privacy()
        if self.exchange == EXCHANGE:
            if self.rows != "complete":
                raise ConfigError("rows='all' goes with exchange='moments' only")
            return
        defaults = {item.name: item.default for item in settings_of(type(self))}
        used = ("dp", "epsilon", "delta") if self.dp == "moments" else ()
        idle = [
            f"{name}={getattr(self, name)!r}"
            for name in OF_SUMS
            if name not in used
            and getattr(self, name) not in (defaults[name], defaults[name] or "none")
        ]
        if idle:
            raise ConfigError(
                f"{', '.join(idle)}: only of the iterations of exchange='sums', and exchange is "
                f"{self.exchange!r}; leave it out, or set exchange='sums' (to which every node "
                "must agree)"
            )
        if self.rows == "all" and self.family != "gaussian":
            raise ConfigError(
                f"rows='all' models columns and label as jointly normal; family {self.family!r} "
                "needs rows='complete'"
            )
        if self.rows == "all" and not self.intercept:
            raise ConfigError(
                "rows='all' models columns and label jointly, with means; it needs intercept=True"
            )

    def _check_privacy(self) -> None:
        private = self.dp == "moments"
        defaults = {item.name: item.default for item in settings_of(type(self))}
        if self.dp == "none" and self.exchange != EXCHANGE:
            for name in ("epsilon", "delta"):
                if getattr(self, name) != defaults[name]:
                    raise ConfigError(
                        f"{name}={getattr(self, name)!r}: only with dp; set dp='moments', and "
                        "public bounds of columns and label"
                    )
        idle = {"bounds": bool(self.bounds), "row_norm": self.row_norm != 1.0}
        check_budget(self.epsilon if private else None, self.encoding, idle, "dp='moments'")
        if private and (self.family, self.rows, self.exchange) != EXACT:
            raise ConfigError(
                "dp='moments' puts noise on the sums of gaussian labels and complete rows; it "
                f"needs family, rows and exchange to be {EXACT}, got "
                f"{(self.family, self.rows, self.exchange)}"
            )

    @property
    def budget(self) -> Budget | None:
        """What the fit may spend on noisy sums; None if these are opened as they are."""
        if self.dp != "moments":
            return None
        return Budget(self.epsilon, self.delta, self.row_norm, read_bounds(self.bounds))

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Fit all values of lambda, let BIC choose, and fill in the result."""
        if self.exchange == EXCHANGE:
            self._by_sums(federation, alignment, result, progress)
        else:
            fit_on_moments(self, federation, alignment, result, progress)

    def _by_sums(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Iterate all values of lambda with the parties."""
        free = names_by_party(_with_commas(self.unpenalized), federation.parties)
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
        used = used_samples(problem, result, self.penalty or "none")
        y = np.asarray(federation.labels)[problem.labelled][used]
        fit = fit_federated(self, federation, problem, used, y, free, result, progress)
        fill_result(self, federation, alignment, problem, fit, y, result, progress)
