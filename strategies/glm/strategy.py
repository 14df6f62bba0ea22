"""VerticalGLM: sparse generalised linear models over parties, by sums over rows.

Sums of products of columns with each other and with the labels determine the likelihood of normal
labels. Private products open these sums and nothing of a row; the server computes the whole path of
penalties, BIC and standard errors from them. Labels 0 and 1 and counts need the sums of columns
times means as well: masked means open these at coefficients of the server's choice, a few times,
until the maximum of the likelihood is found; penalties go on the quadratic there (Wang and Leng,
2007), which is then drawn again about the fit that they choose. With ``rows="all"`` and labels 0
and 1, or counts, rows are completed before (`normal.labelled_server`).

The paper's own iterations, which open a number of each sample in each round, are `glm-admm`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.errors import ConfigError
from strategies.glm.fitting import Fitting
from strategies.glm.party import EVALUATES, OPENED_ROWS, TOLD_COMPLETING, GLMParty
from strategies.glm.penalties import GCV, SELECTING, parse_l2, parse_lambdas
from strategies.linear import settings as shared
from strategies.linear.families import FAMILIES
from strategies.linear.formula import read_formulas
from strategies.linear.moment_party import (
    PRIVATE,
    RECOGNISED,
    SEED_OF_COLUMNS,
    TERMS_TO_A_GRID,
    MomentArbiter,
    moments_protocol,
)
from strategies.linear.moments.dp_opening import check_budget

OF_ITERATIONS = "the paper's iterations are strategy 'glm-admm'"
OF_PATH = "state lambdas=[...]; 'bic' compares 50 values down to 1 % of the largest"


def _with_commas(columns: "str | Sequence[str]") -> str:
    return columns if isinstance(columns, str) else ",".join(columns)


class VerticalGLM(Strategy):
    """A generalised linear model whose columns lie at several parties, with variable selection.

    Minimises ``mean of psi(eta) - y eta + sum of P_lambda(|beta_j|)`` with ``eta = intercept + sum
    over parties of x_k' beta_k`` on the labelled samples that all parties hold, or with `rows` on
    all labelled ones. With ``penalty="ridge"`` it minimises ``sum of psi(eta) - y eta + l2 * sum of
    beta_j^2``: estimates of labels 0 and 1 are those of `sklearn.linear_model.LogisticRegression`
    with ``C = 1 / (2 l2)`` on the pooled table, of numbers those of its `Ridge` with
    ``alpha = 2 l2``.

    Notes
    -----
    `Result.coefficients` is indexed by (party, variable), the intercept under ``server``.
    ``model.path`` and ``model.path_coefficients`` hold the fits of all values of lambda. With
    gaussian labels they are exact: those of the pooled table. With others, the fit without a
    penalty is that of maximum likelihood, and with one the chosen fit is that of the penalised
    likelihood; the rest of the path goes by the quadratic approximation of the likelihood about the
    chosen fit. These need a second party and ``masked`` sums. Standard errors, also of predictions,
    are given but with a ridge, which biases.

    A value of a column with labels of one kind alone (quasi-separation) leaves the column's
    coefficient without a finite estimate: it has a small ridge then and no standard error, as a
    note and ``model.ridged`` say. Columns that tell all labels apart are refused by name without a
    penalty; with one that selects, all columns have this ridge beside it.

    With ``rows="all"`` and labels 0 and 1, or counts, each party is told the means of its columns
    in labelled samples that it lacks, given the others' columns. Coefficients and standard errors
    are corrected for that these are means, but with a ridge; deviance, BIC and path are of the
    completed rows. Blocks may be missing by another party's columns; with three parties or more
    that is made up for as far as columns of two parties tell. Where they are missing by the label
    or by own values, coefficients are biased. With gaussian labels blocks may be missing by all
    that is observed.

    `Result.predictions` has the samples without a label, of labels 0 and 1 the probability of 1;
    where a party lacks one, its columns are expected given those of the others. A sum over few rows
    is never opened: a fit needs ``max(100, 3 (p + 1))`` rows of p columns, or what the nodes state
    as ``min-rows``.

    With ``epsilon`` the whole path and its standard errors come from one release of noisy sums;
    `Result.privacy` says what it promises. Standard errors include the noise, BIC does not know of
    it: columns whose coefficients are of the size of the noise may be selected.

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
        "What keeps coefficients zero, or with ``ridge`` small; without one, the estimates of "
        "maximum likelihood.",
        choices=(*SELECTING, "ridge", "none"),
    )
    lambdas: str | float | Sequence[float] = setting(
        "bic",
        "Strength of a penalty that selects, in label units per standard deviation of a column "
        "(with `standardize`); of several, BIC chooses. ``bic`` makes 50 values itself. Any number "
        "of them takes no more rounds than one.",
        parse=parse_lambdas,
    )
    l2: str | float = setting(
        0.5,
        "Strength of ``ridge``: what the sum of squared coefficients is multiplied by, beside the "
        "sum of losses; scikit-learn's ``1 / (2 C)``. ``gcv`` chooses it in the run by generalised "
        "cross-validation (labels 0 and 1, and counts: by the unbiased estimate of risk).",
        parse=parse_l2,
    )
    intercept: bool = setting(True, "Whether there is one. Without, columns are not centred.")
    unpenalized: str | Sequence[str] = setting(
        "",
        "Columns without a penalty: ``bank:age, court:cases``, or a sequence of such texts.",
        parse=_with_commas,
    )
    standardize: bool = setting(
        True,
        "Whether a penalty treats columns in units of their standard deviation. Results are in "
        "the units given.",
    )
    rows: str = setting(
        "complete",
        "Which labelled samples are fitted: those that all parties hold, or ``all``, with columns "
        "taken as jointly normal, together with the label if it is gaussian.",
        choices=("complete", "all"),
    )
    standard_errors: str = setting(
        "model",
        "From the model's variance, or ``robust``: the sandwich of White (1982), right where the "
        "variance is another (statsmodels' ``HC0``). Robust ones need complete rows.",
        choices=("model", "robust"),
    )
    dispersion: str = setting(
        "model",
        "The family's own (estimated of gaussian labels, else 1), or ``pearson``: Pearson's "
        "chi-squared over the degrees of freedom, which standard errors count (quasi-likelihood), "
        "with a test of overdispersion of counts. Needs complete rows.",
        choices=("model", "pearson"),
    )
    formula: str | Mapping[str, str] | None = setting(
        "",
        "By party, the terms that take the place of its columns, as a mapping or JSON text: "
        '``{"bank": "income * owner + bs(age, 4)"}``. Columns, ``+ - : *``, sums to a power, and '
        "``bs``, ``cr``, ``cc``, ``poly``, ``center``, ``scale``, ``log``, ``sqrt``, ``C`` of a "
        "column.",
        parse=read_formulas,
    )
    missing_labels: str = shared.missing_labels()
    epsilon: float | None = setting(
        None,
        "Differential privacy of the values of a row, over all parties and its label: noise on all "
        "sums that are opened (gaussian labels, complete rows, no ridge). Needs `bounds`; none by "
        "default.",
        above=0,
    )
    delta: float = shared.delta()
    bounds: str | Mapping[str, Sequence[float]] | None = shared.bounds()
    row_norm: float = shared.row_norm()

    removed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            **dict.fromkeys(
                ("exchange", "max_iter", "tol", "kkt_tol", "lla_steps", "dp_rounds"), OF_ITERATIONS
            ),
            "dp": "set epsilon and bounds; VFL-ADMM-DP is strategy 'glm-admm' with epsilon",
            "n_lambdas": OF_PATH,
            "lambda_ratio": OF_PATH,
            "penalty_shape": "the a of SCAD is 3.7, that of MCP is 3",
        }
    )

    name: ClassVar[str] = "glm"
    needs_labels = True
    uses_weights = True
    demo = shared.demo(0.1, more={"glm.rows": "all"})
    party = GLMParty
    protocol = moments_protocol(EVALUATES, opening=OPENED_ROWS)
    arbiter = MomentArbiter
    disclosure = (
        (
            "server",
            "names of the parties' columns, or of those that a formula makes; knots of splines, "
            "means over rows, follow from sums of products; which rows a party leaves out for "
            "missing cells, and whether these differ from others; with a formula, the "
            "fewest rows of a set that a party tells of",
        ),
        (
            "server",
            "a rough unit and level of each column; sums over groups of rows with the same blocks "
            "present (at least max(100, 3 (columns + 1)) rows, or what a node states) of the "
            "columns, of products of two columns, also of different parties, and of columns with "
            "the labels; which columns have a value too rare for that. From these follow the "
            "coefficients for every lambda",
        ),
        (
            "server, with labels 0 and 1, or counts",
            "for each evaluation, at coefficients of the server's choice, the sum of the means and "
            "of each column times them, and how far linear predictors reach, to a grid; at the "
            "maximum, or the fit that a penalty chooses, also products of two columns "
            "weighted by the labels' variance, and the sum of the cumulants",
        ),
        (
            "server, with weights, robust errors or Pearson's chi-squared",
            "products of two columns weighted by its weights, by variances times these, and by "
            "squared residuals times their squares; sums of squared residuals, of these over the "
            "variance, and of squared means, and of each column times what is summed",
        ),
        (
            "every party, with weights, robust errors or Pearson's chi-squared",
            "of the largest factor of a row, powers of two that it does not exceed; of weights, "
            "offset and labels, random numbers only",
        ),
        TERMS_TO_A_GRID,
        *TOLD_COMPLETING,
        *RECOGNISED,
        PRIVATE,
        SEED_OF_COLUMNS,
        (
            "a party and its helper together",
            "the labels: one has these under a mask, the other the seed of the mask; of labels 0 "
            "and 1, or counts, also their expectations",
        ),
        (
            "arbiter in ckks mode",
            "products of columns under a mask of the server, and sums of predictions",
        ),
        (
            "every party",
            "which samples have a label; of the labelled ones, which are in the fit and, with "
            "rows='all', which have the same parties present; its own coefficients, with labels 0 "
            "and 1 or counts at each evaluation. Of the labels, random numbers only",
        ),
        (
            "nobody",
            "a value of another party's columns, or a fitted value; of the parties, a label",
        ),
    )

    @property
    def needs_parties(self) -> int:  # type: ignore[override]
        """The fewest parties that it can work with: sums beside those of moments take two."""
        return 2 if self.family != "gaussian" or self.standard_errors == "robust" else 1

    def check(self) -> None:
        """Raise if settings do not go together."""
        check_budget(self)
        if self.rows == "all" and not self.intercept:
            raise ConfigError(
                "rows='all' models columns as jointly normal, with means; it needs intercept=True"
            )
        if self.formula and self.epsilon is not None:
            raise ConfigError("formula makes columns that have no bounds; it needs no epsilon")
        more = self.standard_errors != "model" or self.dispersion != "model"
        plain = self.rows == "complete" and self.penalty != "ridge" and self.epsilon is None
        if more and not plain:
            raise ConfigError(
                "standard_errors='robust' and dispersion='pearson' need rows='complete', no ridge "
                "and no epsilon"
            )
        if self.l2 == GCV and (self.family, self.rows) == ("gaussian", "all"):
            raise ConfigError("l2='gcv' needs rows='complete' with gaussian labels")
        private = self.family, self.rows, self.penalty == "ridge"
        if self.epsilon is not None and private != ("gaussian", "complete", False):
            raise ConfigError(
                "epsilon puts noise on the sums of gaussian labels and complete rows, and a ridge "
                "does not know of it; it needs family='gaussian', rows='complete' and another "
                f"penalty, got {self.family!r}, {self.rows!r} and {self.penalty!r}"
            )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open sums, select at the server, and have the parties keep their coefficients."""
        Fitting(self, federation, alignment, result).run(progress)
