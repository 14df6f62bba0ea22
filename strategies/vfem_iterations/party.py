"""The party half of VFEM's iterations: its parameters, its fits, its own M-step."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.arrays import Array, Bytes, Indices
from flwr_vertical.node.kept import kept
from flwr_vertical.products import HeldColumns, PairKeySteps
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within, check_fits
from strategies.linear.data import RegressionData, constant_or_collinear
from strategies.linear.prediction.steps import PredictionSteps
from strategies.vfem_iterations.equations import PartyParameters
from strategies.vfem_iterations.sketches import SketchSteps

_AGREED = ("prepare", "gradient", "finish", "sketch_rows")
"""Steps that tell something of single samples or of columns, or prepare to."""


class VFEMIterationsParty(Party):
    """Keeps ``beta_k``, ``mu_k`` and ``Sigma_k``, and sends its part of each sample's fit."""

    data = Uses(RegressionData)
    pair_keys = Uses(PairKeySteps, sends="sketches of columns", without="sketch_size=0")
    sketches = Uses(SketchSteps)
    prediction = Uses(PredictionSteps)

    def take(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Take a step; those of the iterations only if the node agrees to them."""
        if name in _AGREED:
            self.open_exchange("sums", "fits of each sample, summed over parties, in each round")
        return super().take(name, arguments)

    @step
    def gradient(
        self,
        r: Annotated[Array, OWN, Shape(None)],
        missing: Annotated[Array, OWN, Shape(2)],
        sigma2: Annotated[float, Within(0.0, 1e300)],
        learning_rate: Annotated[float, Is("learning_rate")],
    ) -> Summands:
        """Take the M-step, and send what the next E-step needs.

        Message: r (n_held,): ``r_i`` of the rows held; missing (2,): see `PartyParameters.m_step`;
        returns, summed: ``fit`` (n_samples,), that of a missing row being ``mu_k' beta_k``;
        publicly ``explained``, the variance of the fit.
        """
        data = self.data
        check_fits(self.name, "r", r, Shape(len(self.x)))
        sums = float(missing[0]), float(missing[1])
        theta = self._theta.m_step(self.x, data.n_labelled, r, sums, sigma2, learning_rate)
        self.state["beta"], self.state["mean"] = theta.beta, theta.mean
        self.state["covariance"] = theta.covariance
        fit = np.full(data.n_labelled, float(theta.mean @ theta.beta))
        fit[data.rows] = self.x @ theta.beta
        return Summands({"fit": fit}, {"explained": float(theta.beta @ theta.loading)})

    @step
    def finish(
        self,
        group: Annotated[Indices, OWN, Within(0, "weight - 1")],
        weight: Annotated[Array, Within(0.0, 1e300)],
        absent: Annotated[Bytes, Shape("weight", "n_parties"), Within(0, 1)],
    ) -> dict[str, Any]:
        """Hand over the estimates, and what their standard errors need.

        Message: group (n_held,): pattern of each row held; weight (n_groups,): ``1 / d`` of each
        pattern; absent (n_groups, n_parties): 1 where a party lacks the samples of a pattern;
        returns the fields of `PartyMoments`.
        """
        theta, data = self._theta, self.data
        check_fits(self.name, "group", group, Shape(len(data.rows)))
        per_row = weight[group]
        centred = self.columns_to_multiply().values[:]
        gram = (centred * per_row[:, None]).T @ centred
        return {
            "beta": theta.beta / data.scale,
            "offset": float(data.center @ (theta.beta / data.scale)),
            "mean": np.where(np.diag(gram) > 0, data.center + data.scale * theta.mean, 0.0),
            "loading": data.scale * theta.loading,
            "gram": gram,
            "sums": centred.T @ (np.column_stack([weight, absent * weight[:, None]])[group]),
        }

    @kept("fit-x")
    def x(self) -> Array:
        """Rows held of labelled samples, standardised, shape (n_observed, n_columns).

        Columns that are constant or follow from others here take no part: they are 0.
        """
        x = (self.data.raw - self.data.center) / self.data.scale
        x[:, constant_or_collinear(x, self.data.intercept)] = 0.0
        return x

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns less their mean under the model, in the table's units."""
        data = self.data
        return HeldColumns((self.x - self._theta.mean) * data.scale, data.rows, data.n_labelled)

    @property
    def _theta(self) -> PartyParameters:
        if "beta" not in self.state:
            return PartyParameters.initial(self.x)
        beta, mean, covariance = (self.state[name] for name in ("beta", "mean", "covariance"))
        return PartyParameters(np.asarray(beta), np.asarray(mean), np.asarray(covariance))
