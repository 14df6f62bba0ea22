"""The party half of least squares: regress the common residual on the own columns."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import Array
from strategies.least_squares.block import LocalBlock
from strategies.linear import RegressionData

Flags = npt.NDArray[np.uint8]


class LeastSquaresSteps(StepGroup):
    """Least squares over all parties' columns; the party also uses `RegressionData`.

    Its state holds ``ls.directions``, the coefficients of every iteration, shape (n_iterations,
    n_columns), until the server says how they combine; then ``ls.beta``, the solution for the
    columns of ``RegressionData.x``.
    """

    party: Party

    @property
    def _data(self) -> RegressionData:
        return self.other(RegressionData)

    def solution(self) -> Array:
        """Return the coefficients of the last fit, shape (n_columns,).

        The combination that makes them of the directions came with the server's last message.
        """
        self._combine()
        return np.asarray(self.state["ls.beta"])

    def _combine(self) -> None:
        if "ls.combination" in self.state:
            directions = np.asarray(self.state["ls.directions"])
            self.state["ls.beta"] = np.asarray(self.state["ls.combination"]) @ directions
            del self.state["ls.combination"], self.state["ls.directions"]

    @step
    def ls_step(
        self,
        r: Array,
        rest: float,
        scale: float,
        unit: float,
        rows: str = "",
        used: Flags | None = None,
    ) -> Summands:
        """Regress the residual on the own columns; the fit is one direction of the solver's.

        Parameters
        ----------
        r : numpy.ndarray of shape (n_held,)
            Residual at the rows held, of the samples that the fit uses.
        rest : float
            Sum of the residual over the samples that the fit uses and the party lacks; 0 with an
            intercept.
        scale, unit : float
            Multiply the fit and the mean fit, so that they fill the range of the private sum.
        rows : {"", "complete", "imputed"}
            With the first message of a fit, which samples it uses.
        used : numpy.ndarray of shape (n_observed,), optional
            With ``"complete"``: 1 where all parties hold a row that this party holds.

        Returns
        -------
        Summands
            Summed: ``fit`` of shape (n_rows,); ``mean_fit``, the coefficients times the mean that
            was subtracted from `x`. With the first message also ``mean_weight``, see `LocalBlock`,
            and publicly the ``rank`` of the own columns.
        """
        public: dict[str, Any] = {}
        if rows:
            self._combine()  # of a fit before this one
            self.state["ls.rows"] = rows
            if used is not None:
                self.state["ls.used"] = used
            self.state["ls.directions"] = np.zeros((0, self._data.x.shape[1]))
            public["rank"] = self._block.rank
        block = self._block
        weight = {"mean_weight": np.array(block.mean_weight)} if rows else {}
        direction = block.regress(r, rest)
        self.state["ls.directions"] = np.vstack([self.state["ls.directions"], direction])
        if self.state["ls.rows"] == "complete":
            fit = block.z @ direction
        else:
            fit = np.full(self._data.n_labelled, float(block.fill @ direction))
            fit[self._data.rows] = block.z @ direction
        mean_fit = np.array(block.center @ direction)
        return Summands({"fit": scale * fit, "mean_fit": unit * mean_fit, **weight}, public)

    @property
    def _block(self) -> LocalBlock:
        """The own columns over the rows of the fit; computed again in a new process."""
        rows = str(self.state["ls.rows"])
        key = f"ls.block.{rows}"
        if key not in self.cache:
            x, lacking = self._data.x, 0
            if rows == "complete":
                x = x[np.asarray(self.state["ls.used"], dtype=bool)]
            else:
                lacking = self._data.n_labelled - len(x)
            self.cache[key] = LocalBlock.of(x, lacking, self._data.intercept)
        block: LocalBlock = self.cache[key]
        return block
