"""CompleteCase and MeanImpute: least squares where blocks of columns are missing.

Two preliminary methods of Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using Multiple
Data Sources with Missing Values through Vertical Federated Learning", Section 2.2, by federated
least squares (`solver` has the derivation):

=====================  ===========================================================================
round                  what travels
=====================  ===========================================================================
prepare                up: names of columns, number of rows
ls_step, once an       down: the residual at the rows each party holds; up, summed: one number for
iteration              each sample of the fit, and one more
ls_finish              down: how the directions combine; up: coefficients and standard errors;
                       summed: two numbers for each sample without a label (three without an
                       intercept)
=====================  ===========================================================================

A run takes two rounds more than iterations, after greeting and alignment.
"""

from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.regression.least_squares.baseline import Baseline, note
from strategies.regression.least_squares.inference import joint_leverage, variance_correction
from strategies.regression.least_squares.party import LeastSquaresParty
from strategies.regression.least_squares.solver import LeastSquares, power_of_two, solve


class _Federated(Baseline):
    """Least squares over all parties' columns."""

    max_iter: int = setting(200, "Most iterations, each of one round.", at_least=1)
    tol: float = setting(
        1e-10,
        "Stop once the gradient is as short, relative to the first one.",
        at_least=0,
        below=1,
    )

    rows: ClassVar[str]
    party = LeastSquaresParty
    disclosure: ClassVar[tuple[tuple[str, str], ...]] = (
        ("server", "the names of every party's columns, and which of them are collinear"),
        ("server", "which rows a party leaves out because of missing cells"),
        (
            "server, and arbiter in ckks mode",
            "in every iteration one number for each sample of the fit: a linear combination of the "
            "columns, summed over parties (of one party's columns, where the others lack the "
            "sample); likewise of the columns' means; and without an intercept how far these are "
            "from zero, summed over parties",
        ),
        (
            "server",
            "every party's coefficients, standard errors, the variance of its fit, and the fit of "
            "its columns' means",
        ),
        (
            "server, and arbiter in ckks mode",
            "for each sample without a label the prediction, and how uncertain it is",
        ),
        ("every party", "which samples have a label"),
        (
            "every party",
            "the residual of the samples of the fit that it holds, in every iteration; the first "
            "is the label less the mean, in standardised units",
        ),
        (
            "every party",
            "from differences of residuals, the sum of all parties' fits for these samples: with "
            "two parties, the other's",
        ),
        (
            "every party",
            "the number of samples of the fit, the shares in which the iterations add up, and "
            "without an intercept how far all parties' columns are from mean zero, in one number",
        ),
        ("nobody", "a value of another party, unless its fits are so many that they tell it"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Solve, then have the parties hand over their coefficients."""
        problem = self._open(federation, alignment, result)
        progress.step("prepare")
        fit = solve(
            federation,
            problem,
            self.rows,
            max_iter=self.max_iter,
            tol=self.tol,
            intercept=self.intercept,
            progress=progress,
        )
        result.history = fit.history
        if not fit.converged:
            note(
                result,
                f"not converged after {fit.iterations} iterations: the gradient is "
                f"{fit.history[-1]['gradient']:.1e} of the first; raise max_iter",
            )
        unit = power_of_two(1.0 / np.sqrt(fit.tss / fit.n_samples))
        n_free = len(problem.free)
        summands = ["fit"]
        if self.standard_errors:
            summands += ["leverage"] if self.intercept else ["leverage", "pull"]
        total = federation.sum(
            "ls_finish",
            {
                "unit": unit,
                "std_errors": self.standard_errors,
                "mean_weight": fit.mean_weight,
            },
            per_party={name: {"correction": self._correction(fit, name)} for name in fit.ranks},
            shapes=dict.fromkeys(summands, (n_free,)) if n_free else {},
        )
        progress.step("finish")
        self._fill_in(result, problem, fit, total.public, fit.iterations, fit.converged)
        if n_free:
            explained = np.array([total.public[name]["explained"] for name in federation.parties])
            # Rows with imputed blocks are among those that the noise was measured on.
            unseen = problem.free_mask @ explained * float(self.rows == "complete")
            leverage = None
            if self.standard_errors:
                pull = total.values.get("pull")
                leverage = joint_leverage(total["leverage"], pull, fit.mean_weight)
            values = total["fit"] / unit, leverage, unseen
            self._predict(federation, alignment, result, problem, fit, *values)

    def _correction(self, fit: LeastSquares, name: str) -> float:
        return variance_correction(fit.n_samples, fit.ranks[name], fit.n_parameters, self.intercept)


class CompleteCase(_Federated):
    """Least squares over all parties' columns, on the labelled samples that every party holds.

    Notes
    -----
    Of a sample without a label that a party lacks, the party's mean is taken, and the variance of
    its fit is added to the noise. Standard errors take columns of different parties to be
    independent (see `inference`): too small where these are correlated, and right on average only
    where there are few more samples than columns.
    """

    name = "complete-case"
    rows = "complete"
    disclosure = (
        *_Federated.disclosure,
        ("every party", "which labelled samples that it holds all other parties hold, too"),
    )


class MeanImpute(_Federated):
    """Least squares over all parties' columns, a missing row being its party's mean.

    Notes
    -----
    Standard errors are those of least squares on the imputed table (as if columns of different
    parties were independent); they know nothing of the imputation.
    """

    name = "mean-impute"
    rows = "imputed"
    disclosure = (
        *_Federated.disclosure,
        (
            "every party",
            "without an intercept: the sum of the residuals of the labelled samples it lacks",
        ),
    )
