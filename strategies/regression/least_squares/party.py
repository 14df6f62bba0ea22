"""The party half of least squares: regress the common residual on the own columns."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Party, StepGroup, Summands, Uses, step
from strategies.regression import RegressionData
from strategies.regression.least_squares.block import Array, LocalBlock, quadratic

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

    @step
    def ls_finish(
        self, unit: float, std_errors: bool, correction: float, mean_weight: float
    ) -> Summands:
        """Hand over the estimates, and fits of the samples without a label.

        Parameters
        ----------
        unit : float
            Multiplies the fits.
        std_errors : bool
            Whether standard errors are wanted.
        correction, mean_weight : float
            See `LocalBlock.covariance`.

        Returns
        -------
        Summands
            Summed, of shape (n_unlabelled,), left out if there are none: ``fit``; with standard
            errors, ``leverage`` and without an intercept ``pull``, see `joint_leverage`; all of a
            row that is missing here as of one at the party's mean. Public: see `estimates`.
        """
        beta, block = self.solution(), self._block
        inverse = block.covariance(correction, mean_weight) if std_errors else None
        public = estimates(self._data, block, beta, inverse)
        x, held, n_free = self._data.unlabelled
        if not n_free:
            return Summands({}, public)
        rows = np.tile(block.fill, (n_free, 1))
        rows[held] = block.rows_of(x)
        values = {"fit": unit * (rows @ beta)}
        if inverse is not None:
            values["leverage"] = quadratic(rows, inverse)
            if not self._data.intercept:
                pulls = block.pulls(rows, correction)
                values["leverage"] += pulls**2 / (1.0 + mean_weight)
                values["pull"] = pulls
        return Summands(values, public)

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


def estimates(
    data: RegressionData, block: LocalBlock, beta: Array, inverse: Array | None
) -> dict[str, Any]:
    """Return what the server reads of a party in the end.

    Parameters
    ----------
    data : RegressionData
        The party's columns.
    block : LocalBlock
        These over the rows of the fit.
    beta : numpy.ndarray of shape (n_columns,)
        The solution for the columns of ``data.x``.
    inverse : numpy.ndarray of shape (n_columns, n_columns), optional
        Its covariance over the noise variance.

    Returns
    -------
    dict
        ``beta``, in standardised labels per unit of the column; ``offset``, the fit of the
        columns' means; ``explained``, the variance of the fit; ``dependent``, names of columns
        that are constant or follow from others over the rows of the fit. With `inverse`:
        ``std_error`` of beta and ``offset_variance``, over the noise; NaN where the rows leave
        a coefficient open.
    """
    # The mean that was subtracted in all, in units of the scaled columns.
    mean = np.where(block.varies, block.center + data.center / data.scale, 0.0)
    names = zip(data.design.columns, block.dependent, strict=True)
    public: dict[str, Any] = {
        "beta": beta / data.scale,
        "offset": float(mean @ beta),
        "explained": block.explained(beta),
        "dependent": [name for name, found in names if found],
    }
    if inverse is not None:
        std_error = np.sqrt(np.maximum(np.diag(inverse), 0.0)) / data.scale
        public["std_error"] = np.where(block.unknown, np.nan, std_error)
        public["offset_variance"] = float(mean @ inverse @ mean)
    return public


class LeastSquaresParty(Party):
    """Regresses the common residual on its own columns."""

    data = Uses(RegressionData)
    least_squares = Uses(LeastSquaresSteps)


class SingleParty(Party):
    """One party fits its own columns; the others take no part."""

    data = Uses(RegressionData)

    @step
    def prepare(
        self,
        encoding: str,
        missing_cells: str,
        standardize: bool,
        intercept: bool,
        labelled: Flags | None = None,
        n_unheld: int = 0,
        party_name: str = "",
    ) -> Summands:
        """Prepare the table (see `RegressionData.prepare`) if this party is the one named."""
        if party_name == self.name:
            return self.data.prepare(
                encoding, missing_cells, standardize, intercept, labelled, n_unheld
            )
        held = self.positions[self.positions >= 0]
        n_observed = len(held) if labelled is None else int(labelled[held].astype(bool).sum())
        dropped = np.zeros(0, dtype=np.int64)
        public = {"columns": [], "n_observed": n_observed, "dropped": dropped, "collinear": []}
        return Summands({}, public)

    @step
    def ls_single(self, y: Array, std_errors: bool) -> dict[str, Any]:
        """Fit the own columns to labels.

        Parameters
        ----------
        y : numpy.ndarray of shape (n_observed,)
            Labels of the rows held, less their mean if there is an intercept.
        std_errors : bool
            Whether standard errors are wanted.

        Returns
        -------
        dict
            What `estimates` tells, ``rank`` of the columns, ``rss`` (residual sum of squares);
            for the rows held without a label ``fit`` and ``leverage`` (see
            `LeastSquaresSteps.ls_finish`), and for a row at the mean ``mean_fit`` and
            ``mean_leverage``.
        """
        block = LocalBlock.of(self.data.x, 0, self.data.intercept)
        beta = block.regress_fully(y)
        inverse = block.inverse()
        x = block.rows_of(self.data.unlabelled[0])
        return {
            **estimates(self.data, block, beta, inverse if std_errors else None),
            "rank": block.rank,
            "rss": float(((y - block.z @ beta) ** 2).sum()),
            "fit": x @ beta,
            "leverage": quadratic(x, inverse),
            "mean_fit": float(block.fill @ beta),
            "mean_leverage": float(block.fill @ inverse @ block.fill),
        }
