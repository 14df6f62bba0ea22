"""What the server knows of a fitted model, and how it is read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy

from flwr_vertical import Model
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from flwr_vertical.pages.page import Section, dataframe_html

_NODES = np.linspace(-9.0, 9.0, 2001)
_WEIGHTS = np.exp(-(_NODES**2) / 2.0)


@dataclass
class CoxModel(Model):
    """What the server knows of a fitted model.

    Parameters
    ----------
    coefficients : pandas.DataFrame
        As `Result.coefficients`: index (party, variable).
    covariance : numpy.ndarray
        Of the coefficients, in the table's order; 0 for columns that do not vary.
    baseline : pandas.DataFrame
        By stratum and event time, ``cumulative_hazard`` and ``survival`` of a sample whose columns
        all have their mean.
    means : pandas.Series
        Of the columns over the samples of the fit.
    proportional : pandas.DataFrame, optional
        By column, test that its hazard ratio does not change with the rank of time: ``chi2``,
        ``p_value`` (Grambsch and Therneau, 1994).
    """

    strategy = "cox"

    coefficients: pd.DataFrame
    covariance: Any
    baseline: pd.DataFrame
    means: pd.DataFrame
    log_likelihood: float
    log_likelihood_null: float
    n_samples: float
    n_events: float
    columns: dict[str, list[str]] = field(default_factory=dict)
    proportional: pd.DataFrame | None = None

    @np.errstate(over="ignore", divide="ignore")
    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return the table of coefficients with the columns of lifelines' `CoxPHFitter`."""
        frame = self.coefficients
        z = float(np.sqrt(scipy.stats.chi2.ppf(level, 1)))
        b, half = frame["estimate"], z * frame["std_error"]
        ends, percent = {"lower": b - half, "upper": b + half}, f"{100 * level:g}%"
        columns = {"coef": b, "exp(coef)": np.exp(b), "se(coef)": frame["std_error"]}
        columns |= {f"coef {end} {percent}": at for end, at in ends.items()}
        columns |= {f"exp(coef) {end} {percent}": np.exp(at) for end, at in ends.items()}
        columns |= {
            "cmp to": 0.0,
            "z": frame["z"],
            "p": frame["p_value"],
            "-log2(p)": -np.log2(frame["p_value"]),
        }
        return pd.DataFrame(columns)

    def survival(self, values: pd.DataFrame, stratum: int = 0) -> pd.DataFrame:
        """Return survival curves, a row for each event time and a column for each row of values.

        Shapes: values (n_rows, n_columns): columns by name, or by party and name; numbered ones in
        the order of `means`.
        """
        own = self.baseline[self.baseline["stratum"] == stratum].set_index("time")
        if own.empty:
            known = sorted(set(self.baseline["stratum"]))
            raise DataError(f"the fit has no stratum {stratum}; its strata are {known}")
        beta = self.coefficients["estimate"].fillna(0.0).to_numpy()
        eta = (self._ordered(values) - self.means["mean"].to_numpy()) @ beta
        hazard = np.outer(own["cumulative_hazard"].to_numpy(), np.exp(eta))
        return pd.DataFrame(np.exp(-hazard), index=own.index, columns=values.index)

    def _ordered(self, values: pd.DataFrame) -> Array:
        """Return the columns of the fit in their order, (n_rows, n_columns)."""
        given: pd.Index[Any] = values.columns
        names: pd.Index[Any] = self.means.index
        if isinstance(given, pd.RangeIndex) and len(given) == len(names):
            return values.to_numpy(dtype=float)
        names = names if given.nlevels == 2 else names.get_level_values(1)
        if not (names.is_unique and given.is_unique and names.isin(given).all()):
            raise DataError(
                f"rows need the columns of the fit, {list(names)}, each once (two parties' columns "
                f"of one name as (party, name)), and have {list(given)}"
            )
        return values[list(names)].to_numpy(dtype=float)

    def sections(self) -> Iterator[Section]:
        """Return the report's sections: hazard ratios, survival, proportionality."""
        from flwr_vertical.pages import figures as fg  # imports matplotlib

        figure, axes = fg.new_figure(3.0, 1, 1)
        for number, (stratum, own) in enumerate(self.baseline.groupby("stratum")):
            times, share = own["time"].to_numpy(), own["survival"].to_numpy()
            axes[0].step(
                np.append(0.0, times), np.append(1.0, share), where="post",
                color=fg.colour(number), label=f"stratum {stratum}",
            )  # fmt: skip
        fg.label(axes[0], "Survival where all columns have their mean", "time", "share")
        if self.baseline["stratum"].nunique() > 1:
            fg.legend(axes[0])
        yield Section("Survival", fg.to_svg(figure))
        ratios = self.summary().filter(like="exp(coef)").join(self.summary()[["z", "p"]])
        yield Section("Hazard ratios", dataframe_html(ratios, max_rows=1000))
        if self.proportional is not None:
            yield Section(
                "Proportional hazards",
                dataframe_html(self.proportional, max_rows=1000),
                "Small p-values: the hazard ratio of the column changes with time.",
            )


def proportional_test(
    residuals: Array, covariance: Array, count: Array, ranks: Array, index: Any
) -> pd.DataFrame:
    """Test whether hazard ratios change with the rank of time (Grambsch and Therneau, 1994).

    Shapes: residuals (n_columns,): sum of Schoenfeld's residuals by rank of time; count, ranks
    (n_times,): of events.
    """
    moved, variance = covariance @ residuals, np.diag(covariance)
    size = float(count.sum()) / float(count @ ranks**2)
    known = variance > 0.0
    value = np.divide(size * moved**2, variance, out=np.full(len(moved), np.nan), where=known)
    return pd.DataFrame({"chi2": value, "p_value": scipy.stats.chi2.sf(value, 1)}, index=index)


def concordance(spread: float) -> float:
    """Return the probability that of two samples the one of larger hazard ends first.

    Gönen and Heller (2005), with linear predictors that are normal of this standard deviation.
    """
    gap = np.abs(np.sqrt(2.0) * spread * _NODES)
    return float(_WEIGHTS @ (1.0 / (1.0 + np.exp(-gap))) / _WEIGHTS.sum())
