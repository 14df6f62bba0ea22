"""The regressions of the label that predictions use: one for each set of parties that have a row.

Under a joint normal model the label's regression depends on the columns at hand: where a party
lacks a row, the coefficients of the others change, since correlated columns take over. So there is
a regression for each pattern of parties. Where coefficients do not depend on the pattern (columns
of different parties uncorrelated, or no joint model), one regression on all columns is enough: an
absent party counts with the mean of its fit, and the variance of its fit is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, ndtri

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.tables.codes import level_text

LEVEL = 0.95
HAZARD = "hazard"
"""Family of hazards relative to the mean sample, whose labels are times."""

MEANS = {"gaussian": lambda eta: eta, "binomial": expit, "poisson": np.exp, HAZARD: np.exp}
"""By family, the expectation of the label for a linear predictor."""

MARGIN = "margin"
"""Family of classifiers with decision values."""

CLASSES = "classes"
"""Family of classifiers with log odds of each class against the first."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)


def prediction_table(
    family: str, eta: Array, unseen: Array, estimated: Array, noise: Array | float
) -> pd.DataFrame:
    """Make the table of predictions.

    Shapes: eta (n_rows,): linear predictor, absent parties at their mean; unseen (n_rows,): its
    variance through the absent parties' columns; estimated (n_rows,): its variance through the
    estimates and the rounding of terms, NaN where it is not known; if it is of no row, there is no
    standard error, and of numbers an interval by their noise alone; noise (n_rows,): variance of a
    number.
    """
    if family == MARGIN:
        return pd.DataFrame({"prediction": (eta > 0.0).astype(float), "decision": eta})
    z = float(ndtri(0.5 + LEVEL / 2))
    spread = unseen + estimated
    unknown = bool(len(eta) and np.isnan(estimated).all())
    if family == "gaussian":
        half = z * np.sqrt(unseen + np.nan_to_num(estimated) + noise)
        columns = {
            "prediction": eta,
            "std_error": np.sqrt(spread),
            "lower": eta - half,
            "upper": eta + half,
        }
        return pd.DataFrame(columns).drop(columns=["std_error"] if unknown else [])
    mean = MEANS[family]
    prediction, square = _expectation(mean, eta, unseen)
    # The estimates' errors move the mean; to first order by its slope.
    step = 1e-4
    slope = (_expectation(mean, eta + step, unseen)[0] - prediction) / step
    half = z * np.sqrt(spread)
    columns = {
        "prediction": prediction,
        "std_error": np.sqrt(np.maximum(square - prediction**2, 0.0) + slope**2 * estimated),
        "lower": mean(eta - half),
        "upper": mean(eta + half),
        "linear_predictor": eta,
    }
    own = {"hazard_ratio": prediction} if family == HAZARD else {}
    without = ["std_error", "lower", "upper"] if unknown else []
    return pd.DataFrame(columns | own).drop(columns=without)


def class_table(probabilities: AnyArray, classes: Sequence[float]) -> pd.DataFrame:
    """Return ``prediction`` and ``probability_<class>``; probabilities (n_rows, n_classes)."""
    columns = {"prediction": np.asarray(classes)[probabilities.argmax(axis=1)]}
    for value, own in zip(classes, probabilities.T, strict=True):
        columns[f"probability_{level_text(value)}"] = own
    return pd.DataFrame(columns)


def _expectation(mean: object, eta: Array, variance: Array) -> tuple[Array, Array]:
    """Return expectations of a mean and of its square where eta is normal (Gauss and Hermite)."""
    assert callable(mean)
    values = mean(eta[:, None] + np.sqrt(variance)[:, None] * _NODES)
    weights = _WEIGHTS / _WEIGHTS.sum()
    return np.asarray(values @ weights), np.asarray(values**2 @ weights)


GRID = 0.01
"""Step to which a party rounds its term, as a share of the residual standard deviation."""

ODDS = 1.0 / 16.0
"""Step to which a party rounds its term of log odds."""


MANY_PARTIES = 6
"""Up to so many parties every pattern has its regression."""


@dataclass(frozen=True)
class Regressions:
    """Regressions of the label (or of its linear predictor) on the columns of several parties.

    Of pattern p: ``level[p] + sum over parties k of (x_k' coefficients[p, k] - offsets[p, k])``.
    """

    present: Flags  # (n_patterns, n_parties): parties whose columns a regression uses
    # (n_patterns,): prediction of a row whose terms are 0; with `offsets` at the columns' means,
    # the mean
    level: Array
    # (n_patterns, n_columns): of all parties' columns in the order of the parties; 0 for those of
    # absent parties
    coefficients: Array
    offsets: Array  # (n_patterns, n_parties): what each party subtracts from its term
    # (n_patterns,): variance of the label's expectation that the absent parties' columns would
    # explain
    unseen: Array
    # (n_patterns,): variance of a prediction through the estimates, on average over rows; NaN
    # where it is not known
    leverage: Array
    # Variance of the label about its regression on all columns; for other families, that of the
    # working response. It decides the grid, and for gaussian labels the intervals.
    noise: float
    widths: tuple[int, ...]  # Number of columns of each party
    # How the linear predictor becomes a prediction; see `prediction_table`
    family: str = "gaussian"
    # Of the family `CLASSES`; then each pattern has ``len(classes) - 1`` lines of `level`,
    # `coefficients` and `offsets`, of the log odds of each class but the first
    classes: tuple[float, ...] = ()
    # Of the family `HAZARD`: how many times its stratum is added to a label's time
    stratum_span: float = 0.0
    # (n_parties,): where there is one regression only: variance of each party's fit, for rows
    # that it lacks
    absent_variance: Array | None = None
    # (n_parties,): likewise what its coefficients add to `leverage`
    absent_leverage: Array | None = None

    @classmethod
    def additive(
        cls,
        widths: Sequence[int],
        intercept: float,
        beta: Array,
        mean_fit: Array,
        explained: Array,
        noise: float,
        *,
        leverage: float = 0.0,
        absent_leverage: Array | None = None,
        family: str = "gaussian",
    ) -> "Regressions":
        """Return one regression on all columns, in which absent parties count with their mean.

        Shapes: beta (n_columns,); mean_fit, explained (n_parties,): mean and variance of each
        party's ``x_k' beta_k``.
        """
        n = len(widths)
        return cls(
            np.ones((1, n), dtype=bool),
            np.array([intercept + float(np.sum(mean_fit))]),
            np.asarray(beta, dtype=np.float64)[None, :],
            np.asarray(mean_fit, dtype=np.float64)[None, :],
            np.zeros(1),
            np.array([leverage]),
            noise,
            tuple(widths),
            family,
            absent_variance=np.asarray(explained, dtype=np.float64),
            absent_leverage=np.zeros(n) if absent_leverage is None else np.asarray(absent_leverage),
        )

    def __post_init__(self) -> None:
        for name in ("level", "coefficients", "offsets", "unseen"):
            if not np.isfinite(getattr(self, name)).all():
                raise DataError(f"{name} of the regressions must be finite")

    def own(self, party: int) -> Array:
        """Return the coefficients of one party, shape (n_patterns * n_outputs, n_own_columns)."""
        start = sum(self.widths[:party])
        return self.coefficients[:, start : start + self.widths[party]]

    def in_units(self, center: float, scale: float) -> "Regressions":
        """Return them for labels in other units: ``center + scale * label``."""
        return replace(
            self,
            level=center + scale * self.level,
            coefficients=scale * self.coefficients,
            offsets=scale * self.offsets,
            unseen=scale**2 * self.unseen,
            leverage=scale**2 * self.leverage,
            noise=scale**2 * self.noise,
            absent_variance=_times(scale**2, self.absent_variance),
            absent_leverage=_times(scale**2, self.absent_leverage),
        )

    def of_columns(self, center: Array, unit: Array) -> "Regressions":
        """Return them for columns in other units: ``center + unit * column``, of all columns."""
        coefficients = self.coefficients / unit
        owner = np.repeat(np.arange(len(self.widths)), self.widths)
        by_party = owner[:, None] == np.arange(len(self.widths))
        return replace(
            self,
            coefficients=coefficients,
            offsets=self.offsets + (coefficients * center) @ by_party,
        )

    def compact(self) -> "Regressions":
        """Return a single regression if the pattern does not matter, and so need not be told."""
        k = len(self.widths)
        if len(self.present) == 1 or not self.present[0].all():
            return self
        for party in range(k):
            own = self.own(party)[self.present[:, party]]
            largest = np.abs(own).max(initial=0.0)
            if np.abs(own - own[0]).max(initial=0.0) > 1e-9 * largest:
                return self
        lacking_one = [self._number(np.arange(k) != party) for party in range(k)]
        if any(number is None for number in lacking_one):
            return self
        rows = np.array(lacking_one, dtype=np.int64)
        return Regressions(
            self.present[:1],
            self.level[:1],
            self.coefficients[:1],
            self.offsets[:1],
            self.unseen[:1],
            self.leverage[:1],
            self.noise,
            self.widths,
            self.family,
            absent_variance=self.unseen[rows],
            absent_leverage=np.maximum(self.leverage[0] - self.leverage[rows], 0.0),
        )

    def _number(self, present: Flags) -> int | None:
        found = np.flatnonzero((self.present == present).all(axis=1))
        return int(found[0]) if len(found) else None


def pattern_list(n_parties: int, occurring: Flags | None = None) -> Flags:
    """List patterns of parties to have a regression for, each once.

    Shapes: occurring (n, n_parties): patterns to have where there are more than `MANY_PARTIES`
    parties; returns (n_patterns, n_parties): all parties first.
    """
    if n_parties <= MANY_PARTIES:
        every = np.array(list(product((True, False), repeat=n_parties)), dtype=bool)
        return every.reshape(-1, n_parties)
    alone = np.eye(n_parties, dtype=bool)
    always = [np.ones((1, n_parties), dtype=bool), alone, ~alone, np.zeros((1, n_parties), bool)]
    rows = np.vstack([*always, *([] if occurring is None else [occurring])])
    first = np.unique(rows, axis=0, return_index=True)[1]
    return np.asarray(rows[np.sort(first)])


def find_patterns(present: Flags, unseen: Array, held: Flags) -> Indices:
    """Return the regression of each row, (n_rows,): of just its parties, else the best on fewer.

    Shapes: present (n_patterns, n_parties): parties that each regression uses; unseen
    (n_patterns,): what the absent ones would explain; held (n_rows, n_parties): parties that have
    each row.
    """
    if len(present) == 1:
        return np.zeros(len(held), dtype=np.int64)
    kinds, member = np.unique(held, axis=0, return_inverse=True)
    chosen = np.empty(len(kinds), dtype=np.int64)
    for i, kind in enumerate(kinds):
        usable = np.flatnonzero(~(present & ~kind).any(axis=1))
        if not len(usable):
            raise DataError(
                "no regression of this model does without the parties that lack a row; fit it again"
            )
        chosen[i] = usable[np.argmin(unseen[usable])]
    return np.asarray(chosen[member.reshape(-1)])


def _times(factor: float, values: Any) -> Any:
    return None if values is None else factor * values
