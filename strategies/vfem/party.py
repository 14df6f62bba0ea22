"""The party half of VFEM: its own coefficients, and the moments of its own rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, Summands, Uses, step
from flwr_vertical.arrays import Array
from flwr_vertical.node.steps import steps_of
from flwr_vertical.products import (
    EncryptedProductSteps,
    HeldColumns,
    ProductKeySteps,
    RankSketchSteps,
    SketchSteps,
)
from strategies.least_squares import LeastSquaresSteps
from strategies.linear.data import RIDGE, constant_or_collinear
from strategies.linear.moment_party import MomentParty
from strategies.vfem.block import (
    Block,
    Coupling,
    MissingSums,
    Movable,
    gradient_step,
    scoring_step,
    weighted_gram,
)
from strategies.vfem.information import directions
from strategies.vfem.parameters import BlockParameters

_LONGEST = 1e3
_WITHOUT_PRODUCTS = "check_correlation=False and standard_errors='expected'"


_GROUPS = (LeastSquaresSteps, RankSketchSteps, SketchSteps, EncryptedProductSteps)


class VFEMArbiter(Arbiter):
    """Opens products of different parties' columns."""

    products = Uses(ProductKeySteps)


class VFEMParty(MomentParty):
    """Takes part in moments; in the paper's iterations, if the node agrees to them.

    There it keeps ``beta_k``, ``mu_k`` and ``Sigma_k``, and sends its share of each sample's fit
    into a sum. Its state holds vectors of `BlockParameters.coordinates`: ``current``; ``base``,
    from which the last step was taken; ``older``, the base before; ``fallback``, where an
    extrapolation started.
    """

    least_squares = Uses(LeastSquaresSteps)
    rank_sketches = Uses(RankSketchSteps, purpose="vfem rank check")
    sketches = Uses(SketchSteps, purpose="vfem information")
    encrypted = Uses(EncryptedProductSteps, without=_WITHOUT_PRODUCTS)

    def take(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Take a step; those of the iterations only if the node agrees to them."""
        if name in _OF_ITERATIONS:
            self.open_exchange("sums", "fits of each sample, summed over parties, in each round")
        return super().take(name, arguments)

    @step
    def prepare(self, **settings: Any) -> Summands:
        """Prepare the table and set out from zero coefficients.

        Message: **settings: see `RegressionData.prepare`; returns as there, and to be summed:
        ``margin``, the log likelihood of the rows held, over the number of samples; ``curvature``,
        the root of the largest eigenvalue of the columns' second moments (the root, since it is no
        larger than a fit may be).
        """
        told = self.data.prepare(**settings)
        start = self._block.start()
        self.state["current"] = start.coordinates
        x = self.data.x
        second = x.T @ x / len(x)
        values = {
            "margin": np.array(self._margin(start)),
            "curvature": np.sqrt(np.array(np.linalg.eigvalsh(second)[-1])),
        }
        return Summands(values, told.public)

    @step
    def begin(self, from_least_squares: bool) -> Summands:
        """Take coefficients over from the least-squares start, and send the first fit."""
        if from_least_squares:
            theta = self._at("current")
            beta = self.least_squares.solution()
            self.state["current"] = BlockParameters(beta, theta.mean, theta.covariance).coordinates
        return self._contribution()

    @step
    def gradient(
        self,
        r: Array,
        missing: Array,
        sigma2: float,
        learning_rate: float,
        restore: bool = False,
        share: float = 1.0,
        again: bool = False,
    ) -> Summands:
        """Take the paper's M-step and send what the next E-step needs.

        Message: r (n_observed,): ``r_i`` of the rows held; missing (4,): `MissingSums` of the
        samples that this party lacks; sigma2: current noise variance; learning_rate: the paper's
        eta; restore: go back to where the last extrapolation started, first; share: of the step to
        take; again: take the last step again, from where it was taken; returns see
        `_contribution`.
        """
        theta = self._at("base") if again else self._step_from(restore)
        sums = MissingSums(*map(float, missing))
        proposal = gradient_step(self._block, theta, r, sums, sigma2, learning_rate)
        self._advance(proposal, share, again)
        return self._contribution()

    @step
    def scoring(
        self,
        r: Array,
        weight: Array,
        missing: Array,
        coupling: Array,
        group: npt.NDArray[np.int64] | None = None,
        restore: bool = False,
        share: float = 1.0,
        again: bool = False,
    ) -> Summands:
        """Take a scoring step and send what the next E-step needs.

        Message: r, missing, restore, share, again: as in `gradient`; weight (n_groups,): ``1 / d``
        of each missingness pattern; coupling (2,): see `Coupling`; group (n_observed,): pattern of
        each row held; sent once; returns see `_contribution`.
        """
        if group is not None:
            self.state["group"] = group
        theta = self._at("base") if again else self._step_from(restore)
        weights = weight[np.asarray(self.state["group"])]
        sums = MissingSums(*map(float, missing))
        proposal, movable = scoring_step(
            self._block,
            theta,
            r,
            weights,
            sums,
            Coupling(*map(float, coupling)),
            centred=self.data.intercept,
        )
        self._advance(proposal, share, again)
        return self._contribution(movable)

    @step
    def shorten(self, share: float) -> Summands:
        """Take only a share of the last step, since the whole was no improvement."""
        base, current = np.asarray(self.state["base"]), np.asarray(self.state["current"])
        self.state["current"] = base + share * (current - base)
        return self._contribution()

    @step
    def extrapolate(self, length: float) -> Summands:
        """Extrapolate along the last two steps (SQUAREM, Varadhan and Roland, 2008).

        Message: length: their ``-alpha``: ``theta_0 + 2 length (theta_1 - theta_0) + length^2
        (theta_2 - 2 theta_1 + theta_0)``.
        """
        older, base = np.asarray(self.state["older"]), np.asarray(self.state["base"])
        current = np.asarray(self.state["current"])
        self.state["fallback"] = current
        first, second = base - older, current - 2.0 * base + older
        self.state["current"] = older + 2.0 * length * first + length**2 * second
        return self._contribution()

    # -- standard errors and predictions ----

    @step
    def information(self, weight: Array) -> dict[str, Any]:
        """Tell how far this party's coefficients act on the other parties' standard errors.

        Message: weight (n_observed,): ``1 / d_i`` of the rows held; returns ``cross`` of shape (2,
        2), see `expected_reductions`.
        """
        gram, sides = self._information(weight)
        solved = np.linalg.solve(gram, sides)
        self.state["gram"] = gram
        return {"cross": sides.T @ solved}

    @step
    def parts(
        self,
        group: npt.NDArray[np.int64],
        weight: Array,
        missing: npt.NDArray[np.uint8],
    ) -> dict[str, Any]:
        """Hand over what the own columns say, where products across parties are wanted.

        Message: group (n_observed,): missingness pattern of each row held; weight (n_groups,): ``1
        / d`` of each pattern; missing (n_groups, n_parties): 1 where a party lacks the samples of
        a pattern; returns the fields of `information.Parts`.
        """
        per_row = weight[group]
        gram, sides = self._information(per_row)
        indicators = np.column_stack([np.ones(len(missing)), missing])[group]
        return {
            "gram": gram,
            "loading": sides[:, 0] / 2.0,
            "mean": sides[:, 1],
            "sums": self.columns_to_multiply().values.T @ (indicators * per_row[:, None]),
        }

    def columns_to_rank(self) -> HeldColumns:
        """Return the columns whose rank correlations with other parties' are checked."""
        return HeldColumns(self.data.x, self.data.rows, self.data.n_labelled)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns less their mean under the model; before iterations, those offered."""
        if "current" not in self.state:
            return super().columns_to_multiply()
        centred = self.data.x - self._at("current").mean
        return HeldColumns(centred, self.data.rows, self.data.n_labelled)

    @step
    def finish(self, reduction: Array | None = None, covariance: Array | None = None) -> Summands:
        """Hand over the estimates.

        Message: reduction (2, 2): from `expected_reductions`; the party works out its own
        covariance; covariance (n_columns, n_columns): the covariance itself, where the server
        knows it; without both there are no standard errors; returns public: ``beta`` and
        ``std_error`` in label units per unit of the column (of standardised labels), ``offset``
        (what centring adds to the intercept), ``mean_fit``, ``explained``, and ``spread``, the
        variance of the fit through the coefficients, on average over rows.
        """
        theta = self._at("current")
        if reduction is not None:
            _, sides = self._directions()
            solved = np.linalg.solve(np.asarray(self.state["gram"]), sides)
            covariance = np.linalg.inv(np.asarray(self.state["gram"]))
            covariance = covariance - solved @ reduction @ solved.T
        data = self.data
        public: dict[str, Any] = {
            "beta": theta.beta / data.scale,
            "offset": float(data.center @ (theta.beta / data.scale)),
            "mean_fit": theta.mean_fit,
            "explained": theta.explained,
        }
        if covariance is not None:
            std_error = np.sqrt(np.maximum(np.diag(covariance), 0.0)) / data.scale
            public["std_error"] = np.where(data.collinear, np.nan, std_error)
            public["spread"] = float(np.sum(covariance * theta.covariance))
        return Summands({}, public)

    def _directions(self) -> tuple[BlockParameters, Array]:
        theta = self._at("current")
        return theta, directions(theta.loading, theta.mean + self.data.center / self.data.scale)

    def _information(self, weight: Array) -> tuple[Array, Array]:
        theta, sides = self._directions()
        return weighted_gram(self._block, theta, weight), sides

    # -- pieces ----------------------------------------------------------------------------

    def _step_from(self, restore: bool) -> BlockParameters:
        if restore:
            self.state["current"] = np.asarray(self.state["fallback"])
        return self._at("current")

    def _advance(self, proposal: BlockParameters, share: float, again: bool) -> None:
        if not again:
            if "base" in self.state:
                self.state["older"] = np.asarray(self.state["base"])
            self.state["base"] = np.asarray(self.state["current"])
        step = proposal.coordinates
        if share < 1.0:
            base = np.asarray(self.state["base"])
            step = base + share * (step - base)
        self.state["current"] = step

    def _contribution(self, movable: Movable | None = None) -> Summands:
        """Return what the server's E-step needs of this party at its current parameters."""
        theta = self._at("current")
        fit = np.full(self.data.n_labelled, theta.mean_fit)
        fit[self.data.rows] = self.data.x @ theta.beta
        public: dict[str, Any] = {"explained": theta.explained}
        if movable is not None:
            public |= {
                "mean_gap": movable.mean_gap,
                "variance_gap": movable.variance_gap,
                "variance_gain": movable.variance_gain,
            }
        margin = np.array(self._margin(theta))
        return Summands({"fit": fit, "margin": margin, "lengths": self._lengths()}, public)

    def _lengths(self) -> Array:
        """Lengths of the step before, of the last step and of their difference, shape (3,).

        Relative to the parameters, whatever the units; lengths and not their squares, whose
        digits fixed point would lose near the end.
        """
        if "base" not in self.state:
            return np.zeros(3)
        current, base = np.asarray(self.state["current"]), np.asarray(self.state["base"])
        older = np.asarray(self.state.get("older", base))
        first, last = base - older, current - base
        lengths = [np.linalg.norm(vector) for vector in (first, last, last - first)]
        relative: Array = np.array(lengths) / (1.0 + float(np.linalg.norm(base)))
        return np.asarray(np.minimum(relative, _LONGEST))

    def _at(self, name: str) -> BlockParameters:
        coordinates = np.asarray(self.state[name])
        return BlockParameters.from_coordinates(coordinates, self.data.x.shape[1])

    def _margin(self, theta: BlockParameters) -> float:
        """Log likelihood of the rows held, in their own units, over the number of samples."""
        units = len(self.data.x) * float(np.log(self.data.scale).sum())
        return (self._block.margin_log_likelihood(theta) - units) / self.data.n_labelled

    @property
    def _block(self) -> Block:
        if "block" not in self.cache:
            x, ridge = self.data.x, self.data.ridge
            # Rows have a covariance to invert, where a constant column has none of its own.
            if not ridge and constant_or_collinear(x).any():
                ridge = RIDGE * (float(np.mean(x**2)) or 1.0)
            self.cache["block"] = Block.of(x, self.data.n_labelled, ridge)
        block: Block = self.cache["block"]
        return block


_OF_ITERATIONS = frozenset().union(
    ["prepare"],
    (name for name in vars(VFEMParty) if name in steps_of(VFEMParty)),
    *(steps_of(group) for group in _GROUPS),
)
"""Steps that tell something of single samples, or prepare to."""
