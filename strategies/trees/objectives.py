"""What trees are grown for: gradients of a loss, where it starts, what a prediction is.

Losses are those of Friedman (2001) and of `sklearn.ensemble`'s histogram boosters: half the squared
error, the Poisson deviance with a log link, the log loss of two and of several classes, the pinball
loss of a quantile (Koenker and Bassett, 1978). That of Tweedie's distributions, whose variance is a
power p of the mean between 1 and 2, is as in Yang, Qian and Zou (2018), Eq. 8, with a log link.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables.codes import level_text

OBJECTIVES = ("binary", "multiclass", "regression", "poisson", "quantile", "tweedie")
LOG_LINK = ("poisson", "tweedie")
_LEAST_WEIGHT = 1e-4  # of a sample on average: leaves of ten samples have the least weight
_SQUARED = 480  # binary digits


@dataclass(frozen=True)
class Objective:
    """A loss of labels and raw predictions."""

    name: str  # One of `OBJECTIVES`; of a forest ``mean``, ``share`` (of class 1) or ``shares``
    n_classes: int = 1  # Of classes; 1 otherwise
    parameter: float = 0.0  # Which quantile; of Tweedie, the power of the variance

    @classmethod
    def of(cls, name: str, labels: Array, parameter: float = 0.0) -> "Objective":
        """Check the known labels of all samples, and count classes."""
        if not len(labels):
            raise DataError("no sample has a label; trees are grown on labelled samples")
        if not np.isfinite(labels).all():
            raise DataError("labels are infinite; they must be finite, or NaN where unknown")
        if name in ("binary", "multiclass"):
            return cls(name, _count_classes(name, labels))
        if labels.min() == labels.max():
            raise DataError(f"all {len(labels):,} labels are {labels[0]:g}: nothing to fit")
        if name in LOG_LINK and labels.min() < 0:
            raise DataError(
                f"objective {name!r} needs labels of 0 and above, got {labels.min():g}; use "
                "'regression'"
            )
        largest = float(np.abs(labels).max())
        if name == "regression" and not 2.0**-_SQUARED < largest < 2.0**_SQUARED:
            raise DataError(
                f"labels are as large as {largest:.2g}, and squares of such numbers cannot be told "
                "from 0 or from infinity; give labels in other units"
            )
        found, mean = cls(name, parameter=parameter), labels.mean(keepdims=True)
        # Counts may be rare, and then leaves do count as empty.
        if name in LOG_LINK and (labels != np.rint(labels)).any():
            weight = float(found.gradients(mean, np.log(mean))[1][0])
            if weight < _LEAST_WEIGHT:
                raise DataError(
                    f"the labels' mean is {mean[0]:.2g}, so small that leaves of objective "
                    f"{name!r} would count as empty; give labels in smaller units"
                )
        return found

    @classmethod
    def of_votes(cls, classes: bool, labels: Array) -> "Objective":
        """Return that of a forest, whose raw predictions are means of labels or shares."""
        if not classes:
            return cls.of("mean", labels)
        found = cls.of("multiclass", labels).n_classes
        return cls("share" if found == 2 else "shares", found)

    @property
    def width(self) -> int:
        """Raw predictions of a sample, and trees of an iteration."""
        return self.n_classes if self.name in ("multiclass", "shares") else 1

    def start(self, labels: Array, weights: Array) -> Array:
        """Return the raw prediction that all samples begin with, shape (width,)."""
        mean = np.average(labels, weights=weights)
        if self.name == "regression":
            return np.array([mean])
        if self.name == "quantile":
            return np.array([np.quantile(labels, self.parameter)])
        if self.name in LOG_LINK:
            return np.array([np.log(mean)])
        if self.name == "binary":
            return np.array([np.log(mean / (1 - mean))])
        shares = np.bincount(labels.astype(np.int64), weights, self.n_classes) / weights.sum()
        if (shares == 0).any():
            raise DataError(
                f"no sample that is fitted has the class {int(shares.argmin())}; lower "
                "validation_share, or give more labels of it"
            )
        logs = np.log(shares)
        return np.asarray(logs - logs.mean())

    def mean(self, raw: Array) -> Array:
        """Return expectations, or probabilities of classes; shape of `raw`, (width, n_samples)."""
        if self.name in ("regression", "quantile", "mean"):
            return raw
        if self.name == "share":
            return np.clip(raw, 0.0, 1.0)  # but for rounding it is
        if self.name == "shares":  # each class has trees of its own
            votes = np.maximum(raw, 0.0)
            return np.asarray(votes / np.maximum(votes.sum(axis=0), 1e-12))
        if self.name in LOG_LINK:
            return np.exp(raw)
        if self.name == "binary":
            return np.asarray(0.5 * (1.0 + np.tanh(raw / 2.0)))
        shares = np.exp(raw - raw.max(axis=0))
        return np.asarray(shares / shares.sum(axis=0))

    def gradients(self, labels: Array, raw: Array) -> tuple[Array, Array]:
        """Return first and second derivatives of the loss, shape (width, n_samples) each."""
        mean = self.mean(raw)
        if self.name == "multiclass":
            return mean - (labels == np.arange(self.width)[:, None]), mean * (1.0 - mean)
        if self.name == "binary":
            return mean - labels, mean * (1.0 - mean)
        if self.name == "quantile":
            return np.asarray((labels < raw) - self.parameter), np.ones_like(raw)
        if self.name == "tweedie":
            left, right = self._tweedie(labels, raw)
            power = self.parameter
            return right - left, (power - 1.0) * left + (2.0 - power) * right
        return mean - labels, np.ones_like(mean) if self.name == "regression" else mean

    def loss(self, labels: Array, raw: Array, weights: Array | None = None) -> float:
        """Return the mean loss: log loss, half squared or pinball error, Brier score, deviance."""
        return float(np.average(self._losses(labels, raw), weights=weights))

    def _losses(self, labels: Array, raw: Array) -> Array:
        if self.name == "shares":
            wrong = raw - (labels == np.arange(self.width)[:, None])
            return np.asarray((wrong**2).sum(axis=0) / 2.0)
        if self.name in ("regression", "mean", "share"):
            return np.asarray((raw[0] - labels) ** 2 / 2.0)
        if self.name == "poisson":
            return np.asarray(np.exp(raw[0]) - labels * raw[0])
        if self.name == "quantile":
            over = labels - raw[0]
            return np.asarray(np.maximum(self.parameter * over, (self.parameter - 1.0) * over))
        if self.name == "tweedie":
            left, right = self._tweedie(labels, raw[0])
            return np.asarray(left / (self.parameter - 1.0) + right / (2.0 - self.parameter))
        if self.name == "binary":
            return np.asarray(np.logaddexp(0.0, raw[0]) - labels * raw[0])
        own = np.take_along_axis(raw, labels.astype(np.int64)[None], axis=0)[0]
        top = raw.max(axis=0)
        return np.asarray(np.log(np.exp(raw - top).sum(axis=0)) + top - own)

    def _tweedie(self, labels: Array, raw: Array) -> tuple[Array, Array]:
        """Return both terms of the gradient: of labels, of the mean."""
        power = self.parameter
        return labels * np.exp((1.0 - power) * raw), np.exp((2.0 - power) * raw)


def labels_of(federation: Federation, min_child: int) -> Array:
    """Return the labels, NaN where unknown, if trees can be grown in this federation."""
    names = list(federation.parties)
    if len(names) < 2:
        raise DataError(
            "vertical trees need two parties or more, since each one's sums are shared with "
            f"another, and {names[0]!r} is alone; use trees of scikit-learn on its table"
        )
    if federation.aggregation == "ckks":
        raise ConfigError(
            "trees add whole numbers modulo 2^64, which 'ckks' sums do not carry; use "
            "aggregation='masked' (the arbiter is asked for all the same)"
        )
    labels = np.asarray(federation.labels, dtype=float)
    known = int((~np.isnan(labels)).sum())
    if 0 < known < 2 * min_child:
        raise DataError(
            f"{known} samples have a label, and min_child={min_child} samples on each side of a "
            "split need twice as many; lower min_child"
        )
    return labels


def no_split(min_child: int) -> str:
    """Say why no tree has a split."""
    return (
        f"no tree has a split, so all predictions are alike: none lowers the loss with {min_child} "
        "samples (min_child) and what nodes state as min-rows on each side"
    )


def weights_of(stated: str, objective: Objective, labels: Array) -> Array:
    """Return the weight of each sample by its class, (n_samples,); 1 on average where balanced."""
    if not stated:
        return np.ones(len(labels))
    if objective.name not in ("binary", "multiclass"):
        raise ConfigError(
            f"class_weights={stated!r}: objective {objective.name!r} has no classes; leave "
            "class_weights out"
        )
    known = labels[~np.isnan(labels)].astype(np.int64)
    if stated == "balanced":
        by_class = len(known) / (objective.n_classes * np.bincount(known))
    else:
        by_class = np.array(_numbers(stated))
    if len(by_class) != objective.n_classes or not (by_class > 0).all():
        raise ConfigError(
            f"class_weights must be 'balanced' or {objective.n_classes} numbers above 0, one for "
            f"each class, got {stated!r}"
        )
    own, told = by_class[known], known.astype(np.float64)
    raw = np.tile(objective.start(told, own)[:, None], len(told))
    if (own * objective.gradients(told, raw)[1]).mean(axis=1).max() < _LEAST_WEIGHT:
        raise ConfigError(
            f"class_weights={stated!r} are so small that leaves would count as empty; multiply "
            "them by a number, which changes nothing but that (and what l2 is beside them)"
        )
    return np.where(np.isnan(labels), 1.0, by_class[np.nan_to_num(labels).astype(np.int64)])


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return []


def _count_classes(name: str, labels: Array) -> int:
    classes = np.unique(labels)
    wanted = np.arange(len(classes))
    if len(classes) == 1:
        raise DataError(
            f"all {len(labels):,} labels are {classes[0]:g}: there is one class only; give labels "
            "of two classes or more"
        )
    if name == "binary" and len(classes) > 2:
        raise DataError(
            f"objective 'binary' needs labels 0 and 1, got {len(classes)} distinct ones; use "
            "'multiclass' for classes, 'regression' for numbers"
        )
    if not np.array_equal(classes, wanted):
        shown = ", ".join(level_text(value) for value in classes[:5])
        raise DataError(
            f"labels of classes must be 0 to {len(classes) - 1}, each of them used, got {shown}"
            f"{', ...' if len(classes) > 5 else ''}; code them by "
            "pandas.factorize(labels, sort=True)[0], and NaN where unknown; for labels that are "
            "numbers set objective='regression'"
        )
    return len(classes)
