"""VFEMPredict: predict new samples with a fitted VFEM, whatever blocks they lack."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri

from flwr_vertical import Federation, Party, Result, Strategy, Summands, step
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from flwr_vertical.tables import Table
from strategies.regression.coefficients import INTERCEPT, SERVER
from strategies.regression.problem import sample_index
from strategies.regression.vfem.party_model import VFEMPart

Array = npt.NDArray[np.float64]

LEVEL = 0.95


class VFEMPredictParty(Party):
    """Multiplies its own columns by the coefficients of an earlier fit."""

    @step
    def predict(self, names: list[str], beta: Array) -> Summands:
        """Send the fits of the rows held into a sum.

        Parameters
        ----------
        names : list of str
            Columns of the fit, ``column=level`` for a level.
        beta : numpy.ndarray of shape (n_columns,)
            Their coefficients.

        Returns
        -------
        Summands
            ``fit`` of shape (n_samples,), 0 where the row is missing; publicly the aligned numbers
            of rows ``dropped`` because of a missing cell.

        Raises
        ------
        DataError
            If the run names the fit (``fitted``) and these are not the coefficients that this
            party found in it: with coefficients of its own choice a server could read columns.
        """
        own = self.load_model(VFEMPart)
        if own is not None and not own.is_behind(names, np.asarray(beta)):
            raise DataError(
                f"party {self.name!r}: the coefficients sent for {names} are not those that it "
                f"fitted itself in the run named as 'fitted', for {own.columns}; predict with the "
                "result of that run"
            )
        x = features(self.table, names, self.name)
        whole = ~np.isnan(x).any(axis=1)
        used = whole & (self.positions >= 0)
        fit = np.zeros(len(x))
        fit[used] = x[used] @ beta
        dropped = np.flatnonzero(self.to_aligned(~whole, False))
        return Summands({"fit": self.to_aligned(fit, 0.0)}, {"dropped": dropped})


def features(table: Table, names: list[str], party: str) -> Array:
    """Return the columns of a fit from a new table, shape (n_rows, n_columns), NaN = missing.

    Raises
    ------
    DataError
        If a column is absent or holds no numbers.
    """
    parts = []
    for name in names:
        column, _, level = name.partition("=")
        if name in table.frame.columns:
            try:
                parts.append(table.frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
            except (TypeError, ValueError):
                raise DataError(
                    f"party {party!r}, column {name!r} held numbers when the model was fitted, "
                    f"but has type {table.frame[name].dtype} now"
                ) from None
        elif level and column in table.frame.columns:
            values = table.frame[column]
            flags = (values.astype(str) == level).to_numpy(dtype=np.float64)
            parts.append(np.where(values.isna().to_numpy(), np.nan, flags))
        else:
            raise DataError(
                f"party {party!r} has no column {column!r}, which the model uses; its columns are "
                f"{table.columns}"
            )
    return np.column_stack(parts)


@dataclass(frozen=True)
class FittedModel:
    """What prediction needs of a fit, in label units; see `FittedModel.of`.

    Parameters
    ----------
    intercept, sigma2, level_variance : float
        Intercept, variance of the noise, variance of the estimated level.
    names : dict[str, list[str]]
        By party, its variables.
    beta : dict[str, numpy.ndarray]
        By party, its coefficients.
    mean_fit, explained : dict[str, float]
        By party, mean and variance of its fit: what stands in for a missing block.
    """

    intercept: float
    sigma2: float
    level_variance: float
    names: dict[str, list[str]]
    beta: dict[str, Array]
    mean_fit: dict[str, float]
    explained: dict[str, float]

    @classmethod
    def of(cls, result: Result) -> "FittedModel":
        """Read it from the result of a VFEM run, as returned or loaded."""
        if result.strategy != "vfem" or result.coefficients is None:
            raise ConfigError(
                f"VFEMPredict needs the result of a 'vfem' run with coefficients, got that of "
                f"{result.strategy!r}" + ("" if result.strategy != "vfem" else ", which diverged")
            )
        table = result.coefficients["estimate"]
        parties = list(result.party_metrics)
        known = table.index.get_level_values(0)
        has_intercept = (SERVER, INTERCEPT) in table.index
        return cls(
            float(table[SERVER, INTERCEPT]) if has_intercept else 0.0,
            result.metrics["sigma2"],
            result.metrics["level_variance"],
            {
                name: list(map(str, table[known == name].index.get_level_values(1)))
                for name in parties
            },
            {name: table[known == name].to_numpy(dtype=np.float64) for name in parties},
            {name: result.party_metrics[name]["fit_mean"] for name in parties},
            {name: result.party_metrics[name]["fit_variance"] for name in parties},
        )


def _result_or_folder(model: object) -> Result | str:
    if not isinstance(model, Result | str | Path):
        raise ConfigError(
            f"model must be a Result or the folder of a saved one, got {type(model).__name__}"
        )
    return model if isinstance(model, Result) else str(model)


class VFEMPredict(Strategy):
    """Predict samples with a fitted VFEM; one round after greeting and alignment.

    A missing block counts with the mean of its party's fit, and widens the interval. No labels
    are needed; where some are given, the result says how far off the predictions are. Where the
    run names the fit (``fitted``), each party makes sure that it is asked for the coefficients that
    it found itself: it kept them on its own disk.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> from strategies.vfem import VFEM
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> fitted = simulate(VFEM(), {"bank": bank, "court": court}, bank["a"] + 1, progress=False)
    >>> new = {"bank": pd.DataFrame({"a": [2.0]}), "court": pd.DataFrame({"b": [0.0]})}
    >>> found = simulate(VFEMPredict(fitted), new, progress=False)
    >>> found.predictions["prediction"].round(3).to_list()
    [3.0]
    """

    model: Result | str | Path = setting(
        "",
        "The result of a `VFEM` run, or the folder where it was saved.",
        parse=_result_or_folder,
        plain=lambda model: str(model.where or "") if isinstance(model, Result) else model,
    )

    name: ClassVar[str] = "vfem-predict"
    uses_labels = True
    party = VFEMPredictParty
    disclosure = (
        ("server", "for each sample, the sum of the parties' fits; rows with a missing cell"),
        ("every party", "its own coefficients of the earlier fit"),
        ("nobody", "a value of another party's columns"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have every party multiply, and add up."""
        if not isinstance(self.model, Result) and not self.model:
            raise ConfigError(
                "no model: name the folder of a saved VFEM result (vfem-predict.model='/srv/...')"
            )
        progress.total = 1
        model = self.model
        fitted = FittedModel.of(model if isinstance(model, Result) else Result.load(Path(model)))
        if set(fitted.names) != set(federation.parties):
            raise ConfigError(
                f"the model was fitted with the parties {sorted(fitted.names)}, but "
                f"{federation.parties} take part; all of them are needed, if only with one row"
            )
        own: dict[str, dict[str, Any]] = {
            name: {"names": fitted.names[name], "beta": fitted.beta[name]}
            for name in federation.parties
        }
        total = federation.sum("predict", per_party=own)
        progress.step("predict")
        missing = alignment.mask.copy()
        for k, name in enumerate(federation.parties):
            missing[total.public[name]["dropped"], k] = True
        mean_fit = np.array([fitted.mean_fit[name] for name in federation.parties])
        explained = np.array([fitted.explained[name] for name in federation.parties])
        prediction = fitted.intercept + total["fit"] + missing @ mean_fit
        uncertain = missing @ explained + fitted.level_variance
        half = ndtri(0.5 + LEVEL / 2) * np.sqrt(uncertain + fitted.sigma2)
        result.predictions = pd.DataFrame(
            {
                "prediction": prediction,
                "std_error": np.sqrt(uncertain),
                "lower": prediction - half,
                "upper": prediction + half,
            },
            index=sample_index(alignment, result.labels, np.arange(alignment.n_samples)),
        )
        result.party_metrics = {
            name: {"rows_held": float(held)}
            for name, held in zip(federation.parties, (~missing).sum(axis=0), strict=True)
        }
        result.metrics["n_samples"] = float(alignment.n_samples)
        if federation.labels is not None and np.isfinite(federation.labels).any():
            known = np.isfinite(federation.labels)
            errors = federation.labels[known] - prediction[known]
            result.metrics["rmse"] = float(np.sqrt(np.mean(errors**2)))
            result.metrics["coverage"] = float(np.mean(np.abs(errors) <= half[known]))
