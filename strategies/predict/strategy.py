"""Predict: predict new samples with a fitted linear model, whatever blocks they lack.

=============  =================================================================================
round          what travels
=============  =================================================================================
open_model     with several regressions only; down: the model's digest; up: rows that have a
               missing cell
predict_kept   down: the digest, and with several regressions the number of each row's; summed:
               one whole number for each sample
=============  =================================================================================
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Flags
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import Progress
from strategies.linear.prediction.base import BuildsOnAFit, check_parties
from strategies.linear.prediction.server import Predictor, narrow, note_bits
from strategies.linear.prediction.table import MARGIN
from strategies.linear.problem import sample_index
from strategies.predict.party import PredictParty


class Predict(BuildsOnAFit):
    """Predict samples with a fitted linear model; one or two rounds after greeting and alignment.

    Notes
    -----
    Of every linear model: `VFEM`, `CompleteCase`, `MeanImpute`, `Single`, `VerticalGLM`,
    `VerticalSVM`. Each party multiplies by the coefficients that it kept of the fit,
    on its own disk: the server names the model and can neither send nor change one. In an app the
    run config names the run of the fit as ``fitted``; a simulation takes the parties' parts from
    the result.

    A party that lacks a sample, or took part in the fit and has left, counts as a missing block.
    Each party rounds its term to 1 % of the residual standard deviation, coarser where that would
    tell more than ``prediction-bits`` of its node config (12); the rounding is part of the
    intervals, and ``metrics["bits_per_row"]`` is what a prediction tells at most.

    `Result.predictions` has ``prediction``, ``std_error`` of the label's expectation through absent
    columns and estimated coefficients (on average over rows with the same parties), ``lower`` and
    ``upper``: 95 % of gaussian labels; for other families, with ``linear_predictor``, the label's
    expectation. Of classifiers it has the columns of their own predictions. No labels are needed;
    where some are given, the metrics say how far off predictions are.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> from strategies.vfem import VFEM
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> labels = bank["a"] + 1 + 0.01 * rng.normal(size=500)
    >>> fitted = simulate(VFEM(), {"bank": bank, "court": court}, labels, progress=False)
    >>> new = {"bank": pd.DataFrame({"a": [2.0]}), "court": pd.DataFrame({"b": [0.0]})}
    >>> found = simulate(Predict(fitted), new, progress=False)
    >>> found.predictions["prediction"].round(2).to_list()
    [3.0]
    """

    name: ClassVar[str] = "predict"
    party = PredictParty
    disclosure = (
        (
            "server",
            "for each sample, the sum of the parties' terms (columns times the coefficients that "
            "each party kept), rounded to a grid: at most ``bits_per_row`` bits. Of a sample that "
            "one of the parties of this run holds alone, this is that party's own term",
        ),
        (
            "server",
            "of each party, which rows have a missing cell or a level that the fit did not know, "
            "and how many terms lie far outside those of the fit",
        ),
        (
            "every party",
            "which model is used; where coefficients depend on the parties at hand, which of its "
            "rows have the same parties",
        ),
        (
            "nobody",
            "a value of another party's columns, but for what bits of a term tell of them; another "
            "party's coefficients",
        ),
    )

    @classmethod
    def server_part(cls, fitted: Result) -> Predictor:
        """Return what the server kept of a fit."""
        if not isinstance(fitted.predictor, Predictor):
            raise ConfigError(
                f"a result of {fitted.strategy!r} holds no linear model to predict with; expected "
                "that of a fit that came to estimates (vfem, complete-case, mean-impute, single, "
                "glm, lr or svm), made by this version of the library"
            )
        return fitted.predictor

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have every party multiply, and add up."""
        predictor: Predictor = self.fitted_part()
        names = list(federation.parties)
        check_parties(federation.parties, predictor.parties, result)
        column = [predictor.parties.index(name) for name in names]
        held = np.zeros((alignment.n_samples, len(predictor.parties)), dtype=bool)
        held[:, column] = ~alignment.mask
        several = len(predictor.present) > 1
        progress.total = 1 + several
        arguments: dict[str, Any] = {"model": predictor.digest}
        per_party: dict[str, dict[str, Any]] = {}
        if several:
            told = federation.call("open_model", arguments)
            progress.step("rows")
            _drop(held, told, predictor)
            chosen = predictor.patterns_of(held)
            per_party = {
                name: {"pattern": narrow(chosen[held[:, k]])}
                for name, k in zip(names, column, strict=True)
            }
        total = federation.sum(
            "predict_kept",
            arguments,
            per_party=per_party,
            shapes={"term": (alignment.n_samples,)},
        )
        progress.step("predict")
        _drop(held, total.public, predictor)
        note_bits(result, predictor, total.public)
        index = sample_index(alignment, result.labels, np.arange(alignment.n_samples))
        result.predictions = predictor.table(held, total["term"]).set_axis(index)
        result.party_metrics = {
            name: {"rows_held": float(held[:, k].sum())}
            for name, k in zip(names, column, strict=True)
        }
        result.metrics["n_samples"] = float(alignment.n_samples)
        if federation.labels is not None:
            self._compare(federation.labels, result, predictor.family)

    def _compare(self, labels: npt.NDArray[np.float64], result: Result, family: str) -> None:
        """Say how far predictions are from the labels that are known."""
        known = np.isfinite(labels)
        if not known.any() or result.predictions is None:
            return
        found, y = result.predictions[known], labels[known]
        if family == MARGIN:
            result.metrics["accuracy"] = float(np.mean(found["prediction"].to_numpy() == y))
            return
        errors = y - found["prediction"].to_numpy()
        result.metrics["rmse"] = float(np.sqrt(np.mean(errors**2)))
        if family == "gaussian":
            inside = (y >= found["lower"].to_numpy()) & (y <= found["upper"].to_numpy())
            result.metrics["coverage"] = float(np.mean(inside))
        elif family == "binomial":
            p = np.clip(found["prediction"].to_numpy(), 1e-15, 1 - 1e-15)
            result.metrics["log_loss"] = float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _drop(held: Flags, told: dict[str, dict[str, Any]], predictor: Predictor) -> None:
    """Take out the rows that parties do not use."""
    for name, values in told.items():
        dropped = np.asarray(values["dropped"], dtype=np.int64)
        if len(dropped) and (dropped.min() < 0 or dropped.max() >= len(held)):
            raise DataError(f"party {name!r} named rows that are not among the aligned ones")
        held[dropped, predictor.parties.index(name)] = False
