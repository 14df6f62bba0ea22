"""VFEM by the paper's own iterations, as it prints them; `VFEM` finds the same maximum.

Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using Multiple Data Sources with Missing
Values through Vertical Federated Learning", Algorithms 1 and 2. Algorithm 1 exchanges messages four
times an iteration; written in sums over parties, an iteration is one round (`equations`).
"""

from typing import ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.arrays import Array
from flwr_vertical.protocol.declaration import BITS, FACTS, If, Maybe, Protocol, Repeat, Round
from strategies.linear import settings as shared
from strategies.linear.coefficients import by_name, coefficient_table
from strategies.linear.moment_party import NAMES_OF_COLUMNS
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.prediction.server import keep_and_predict
from strategies.linear.problem import Problem, note, open_problem
from strategies.vfem.outcome import WITHOUT_NOISE, VFEMModel, leaves_no_noise
from strategies.vfem_iterations.equations import EStep, Missing, PartyMoments, covariance_of
from strategies.vfem_iterations.party import VFEMIterationsParty
from strategies.vfem_iterations.sketches import sketched_products

_EXPLODED = 1e4


class VFEMIterationsModel(VFEMModel):
    """A `VFEMModel` by the paper's iterations."""

    strategy = "vfem-iterations"


class VFEMIterations(Strategy):
    """The paper's Algorithm 1, one round an iteration, with standard errors.

    The model is that of `VFEM` with ``covariance="block"``, which finds the same maximum in five
    rounds and tells less. Here the server sees, in every iteration, the sum of the parties' fits of
    each sample: with coefficients known these span what the columns span. So each node must agree
    to the exchange ``sums`` in its node config.

    Columns of different parties that follow from each other share their effect, with standard
    errors that are too small: the model takes them for independent. Without sketches no product of
    them is opened that would tell; `VFEM` names such columns.

    Notes
    -----
    A step is that of Eqs. (4) to (8): first-order EM with learning rate eta; it converges where
    eta is below 2 over the largest eigenvalue of the columns' second moments, and takes hundreds of
    rounds. The covariance matrix of the estimates is the inverse of the observed data's Fisher
    information, which Eq. (10) equals in expectation. The differences by which the paper computes
    (10) would move each coefficient by itself, and so show the server every column.

    Results are as of `VFEM`, but ``model.outcome`` may also be ``diverged``.

    Examples
    --------
    >>> from flwr_vertical import load_demo, simulate
    >>> from strategies.vfem_iterations import VFEMIterations
    >>> demo = load_demo("blood-pressure", missing_cells=0.0, missing_blocks=0.3)
    >>> result = simulate(VFEMIterations(), demo.parties, demo.labels, progress=False)
    >>> result.model.outcome
    'converged'
    """

    learning_rate: float = setting(0.3, "The paper's eta, in Eq. (8).", above=0)
    max_iter: int = setting(1000, "The paper's T: most iterations.", at_least=1)
    tol: float = setting(
        1e-8,
        "The paper's epsilon: ends when the loss of an iteration, of standardised labels, changes "
        "by less; 0 never ends before ``max_iter``.",
        at_least=0,
        below=1,
    )
    sketch_size: int = setting(
        0,
        "Rows of Algorithm 2's sketches, the paper's L times m, by which products of different "
        "parties' columns enter the information matrix; 0: by their expectation, which is zero "
        "under the model.",
        at_least=0,
    )
    missing_labels: str = shared.missing_labels()
    standardize: bool = setting(
        True,
        "Compute with standardised labels and columns, so that eta does not depend on units; "
        "results are in the units given.",
    )

    name = "vfem-iterations"
    needs_labels = True
    exchanges_asked: ClassVar[tuple[str, ...]] = ("sums",)
    demo = shared.demo(0.3)
    party = VFEMIterationsParty
    protocol = Protocol(
        Round("prepare", "names of columns, number of rows", tells=(FACTS, BITS)),
        Repeat(
            Round("gradient", "summed, a fit of each sample; the variance of its own", tells=BITS),
            at_most="max_iter",
        ),
        Maybe(
            Round("finish", "its coefficients, and moments of its columns", tells=BITS),
            If(
                "sketch_size > 0",
                Maybe(
                    Round("pair_key", "a public key", tells=FACTS),
                    Round("keep_pair_keys"),
                    Round("sketch_rows", "random projections of its columns", tells=BITS),
                ),
            ),
            Round(
                "keep_model",
                "summed, a rounded term of each sample without a label",
                tells=(FACTS, BITS),
            ),
        ),
    )
    disclosure = (
        NAMES_OF_COLUMNS,
        (
            "server",
            "for each labelled sample and each iteration, the sum of the parties' fits; for each "
            "party the variance of its fit, in the end its coefficients, the means of its columns, "
            "their weighted second moments, and their sums by the parties that lack samples",
        ),
        ("server, with sketches", "products of different parties' columns, as noisy sums"),
        ("server", "for each sample without a label, the sum of the parties' rounded terms"),
        (
            "every party",
            "for each labelled sample that it holds and each iteration, the residual over its "
            "variance: label less everybody's fit. The first is the label itself but for location "
            "and scale",
        ),
        (
            "every party",
            "which labelled samples share a missingness pattern, and which samples have a label",
        ),
        ("server and any one party together, with sketches", "all parties' columns"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Iterate to the estimates, work out their standard errors, and predict."""
        problem = open_problem(
            federation, alignment, result, missing_labels=self.missing_labels,
            standardize=self.standardize, intercept=True, with_unheld=True,
        )  # fmt: skip
        outcome, estep = self._iterate(federation, problem, result, progress)
        result.metrics["iterations"] = float(len(result.history))
        result.metrics["converged"] = float(outcome == "converged")
        if outcome == "diverged":
            result.model = VFEMIterationsModel(outcome)
            return
        progress.step("standard errors")
        parts, covariance = self._infer(federation, problem, estep, result)
        found = self._fill_in(result, outcome, problem, estep, parts, covariance)
        keep_and_predict(federation, alignment, result, found, problem, step="keep_model")

    def _iterate(
        self, federation: Federation, problem: Problem, result: Result, progress: Progress
    ) -> tuple[str, EStep]:
        """Algorithm 1; its line numbers are those of the paper."""
        names, y, eta = federation.parties, problem.y, self.learning_rate
        level, variance = float(y.mean()), float(y.var())
        # Without coefficients the parties' fits are zero (line 5), so the first costs no round.
        none = np.zeros(len(names))
        estep = EStep(Missing.of(problem.mask), y - level, none, level, variance)
        loss, outcome = np.inf, "max iterations"
        for number in range(1, self.max_iter + 1):
            r, sums = estep.r, estep.sums_of_missing()
            total = federation.sum(  # lines 7 to 28, and 5 of the next iteration
                "gradient",
                {"sigma2": estep.sigma2, "learning_rate": eta},
                per_party={
                    name: {"r": r[~problem.mask[:, k]], "missing": sums[k]}
                    for k, name in enumerate(names)
                },
                shapes={"fit": (len(y),)},
            )
            before, loss = loss, estep.loss  # lines 31 and 32
            level += eta * estep.sigma2 * float(estep.r.mean())  # Eq. (8), for a column of ones
            explained = np.array([float(total.public[name]["explained"]) for name in names])
            estep = EStep(estep.missing, y - level - total["fit"], explained, level, loss)
            result.history.append({"iteration": number, "loss": loss * problem.y_scale**2})
            progress.step("gradient", **result.history[-1])
            if not np.mean(estep.gap**2) < _EXPLODED * np.mean(y**2):
                outcome = "diverged"
                break
            if abs(loss - before) < self.tol:  # line 2
                outcome = "converged"
                break
        if outcome == "max iterations":
            note(result, f"not converged after {self.max_iter} rounds; raise max_iter")
        elif outcome == "diverged":
            note(result, f"diverged: learning_rate = {eta:g} is too large; try {eta / 4:g}")
        return outcome, estep

    def _infer(
        self, federation: Federation, problem: Problem, estep: EStep, result: Result
    ) -> tuple[list[PartyMoments], Array]:
        """Collect the parties' moments, and sketches; covariance of the standardised labels' fit.

        Shapes: returns (1 + n_columns, 1 + n_columns): per unit of the columns.
        """
        names, missing, weight = federation.parties, estep.missing, 1.0 / estep.variance
        own = {name: missing.group[~problem.mask[:, k]] for k, name in enumerate(names)}
        arguments = {"weight": weight, "absent": missing.absent.view(np.uint8)}
        groups = {name: {"group": own[name]} for name in names}
        told = federation.call("finish", arguments, per_party=groups)
        parts = [PartyMoments(**told[name]) for name in names]
        per_row = {name: weight[own[name]] for name in names}
        for name, part in zip(names, parts, strict=True):
            columns, told_of = problem.columns[name], problem.collinear[name]
            left_out = [columns[j] for j in np.flatnonzero(part.left_out)]
            if unsaid := [column for column in left_out if column not in told_of]:
                text = f"party {name!r}: columns {unsaid} are constant or follow from others of its"
                note(
                    result,
                    f"{text} columns in the labelled rows; they are left out and have no "
                    "coefficient",
                )
        products = sketched_products(federation, per_row, self.sketch_size)
        covariance, share = covariance_of(estep, parts, products)
        n_taken = sum(int(np.count_nonzero(~part.left_out)) for part in parts)
        if len(problem.y) <= 1 + n_taken or leaves_no_noise(estep.sigma2, problem.y):
            note(result, WITHOUT_NOISE)
            covariance[:] = np.nan
        elif share < 1.0:
            text = f"the sketches' products were shrunk by {1 - share:.0%} to give standard errors"
            why = "they are too small, or columns of different parties nearly determine each other"
            why = why if products else "columns of a party nearly determine each other"
            note(result, f"{text if share else 'no standard errors'}: {why}")
        return parts, covariance

    def _fill_in(
        self,
        result: Result,
        outcome: str,
        problem: Problem,
        estep: EStep,
        parts: list[PartyMoments],
        covariance: Array,
    ) -> Regressions:
        """Put coefficients, metrics and model into the result; returns what predicts."""
        names, unit = list(problem.columns), problem.y_scale
        mean_fit = unit * np.array([part.mean @ part.beta for part in parts])
        explained = unit**2 * np.array([part.loading @ part.beta for part in parts])
        offset = sum(part.offset for part in parts)  # the intercept takes back what was centred
        level = problem.y_center + unit * (estep.intercept - offset)
        starts = np.cumsum([1, *(len(part.beta) for part in parts)])
        beta = unit * np.concatenate([part.beta for part in parts])
        left_out = np.concatenate([part.left_out for part in parts])
        leverage = unit**2 * float(covariance[0, 0])
        # The intercept is the level less the sum of mean fits.
        back = np.eye(len(covariance))
        back[0, 1:] = -np.concatenate([part.mean for part in parts])
        covariance = back @ covariance @ back.T
        errors = unit * np.sqrt(np.maximum(np.diag(covariance), 0.0))
        spread = np.zeros(len(names))
        rows = (estep.missing.total() / estep.variance) @ ~estep.missing.absent
        for k, part in enumerate(parts):
            here = slice(starts[k], starts[k + 1])
            # Variance of a party's fit through its coefficients, on average over its rows.
            spread[k] = unit**2 * np.sum(covariance[here, here] * part.gram) / rows[k]
        estimates, errors[1:][left_out] = np.where(left_out, np.nan, beta), np.nan
        result.coefficients = coefficient_table(
            problem.columns, estimates, errors[1:], level, float(errors[0])
        )
        size, p = len(problem.y), int(np.isfinite(estimates).sum())
        r2 = 1.0 - estep.sigma2 / float(problem.y.var())
        result.metrics = {
            "r2": r2,
            "adjusted_r2": 1.0 - (1.0 - r2) * (size - 1) / max(size - p - 1, 1),
            "sigma2": estep.sigma2 * unit**2,
            "n_samples": float(size),
            **result.metrics,
        }
        held = (~problem.mask).sum(axis=0).astype(float)
        for name, *told in zip(names, held, mean_fit, explained, strict=True):
            kinds = ("rows_held", "fit_mean", "fit_variance")
            result.party_metrics[name] = dict(zip(kinds, told, strict=True))
        result.model = VFEMIterationsModel(
            outcome,
            level,
            estep.sigma2 * unit**2,
            by_name(problem.columns, estimates),
            dict(zip(names, mean_fit.tolist(), strict=True)),
            dict(zip(names, explained.tolist(), strict=True)),
            leverage,
            unit**2 * covariance,
        )
        return Regressions.additive(
            [len(part.beta) for part in parts],
            level,
            beta,
            mean_fit,
            explained,
            estep.sigma2 * unit**2,
            leverage=leverage + float(spread.sum()),
            absent_leverage=spread,
        )
