"""What trees are grown for: gradients of a loss, where it starts, what a prediction is.

Losses are those of Friedman (2001) and of `sklearn.ensemble`'s histogram boosters: half the squared
error, the Poisson deviance with a log link, the log loss of two and of several classes.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError

OBJECTIVES = ("binary", "multiclass", "regression", "poisson")


@dataclass(frozen=True)
class Objective:
    """A loss of labels and raw predictions."""

    name: str  # One of `OBJECTIVES`; of a forest ``mean``, ``share`` (of class 1) or ``shares``
    n_classes: int = 1  # Of classes; 1 otherwise

    @classmethod
    def of(cls, name: str, labels: Array) -> "Objective":
        """Check the known labels of all samples, and count classes."""
        if not len(labels):
            raise DataError("no sample has a label; trees are grown on labelled samples")
        if not np.isfinite(labels).all():
            raise DataError("labels are infinite; they must be finite, or NaN where unknown")
        if name in ("binary", "multiclass"):
            return cls(name, _count_classes(name, labels))
        if labels.min() == labels.max():
            raise DataError(f"all {len(labels):,} labels are {labels[0]:g}: nothing to fit")
        if name == "poisson" and labels.min() < 0:
            raise DataError(
                f"objective 'poisson' needs labels of 0 and above, got {labels.min():g}; use "
                "'regression'"
            )
        return cls(name)

    @classmethod
    def of_votes(cls, classes: bool, labels: Array) -> "Objective":
        """Return that of a forest, whose raw predictions are means of labels or shares."""
        if not classes:
            cls.of("regression", labels)
            return cls("mean")
        found = cls.of("multiclass", labels).n_classes
        return cls("share" if found == 2 else "shares", found)

    @property
    def width(self) -> int:
        """Raw predictions of a sample, and trees of an iteration."""
        return self.n_classes if self.name in ("multiclass", "shares") else 1

    def start(self, labels: Array) -> Array:
        """Return the raw prediction that all samples begin with, shape (width,)."""
        mean = labels.mean()
        if self.name == "regression":
            return np.array([mean])
        if self.name == "poisson":
            return np.array([np.log(mean)])
        if self.name == "binary":
            return np.array([np.log(mean / (1 - mean))])
        shares = np.bincount(labels.astype(np.int64), minlength=self.n_classes) / len(labels)
        if (shares == 0).any():
            raise DataError(
                f"no sample that is fitted has the class {int(shares.argmin())}; lower "
                "validation_share, or give more labels of it"
            )
        logs = np.log(shares)
        return np.asarray(logs - logs.mean())

    def mean(self, raw: Array) -> Array:
        """Return expectations, or probabilities of classes; shape of `raw`, (width, n_samples)."""
        if self.name in ("regression", "mean"):
            return raw
        if self.name == "share":
            return np.clip(raw, 0.0, 1.0)  # but for rounding it is
        if self.name == "shares":  # each class has trees of its own
            votes = np.maximum(raw, 0.0)
            return np.asarray(votes / np.maximum(votes.sum(axis=0), 1e-12))
        if self.name == "poisson":
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
        return mean - labels, np.ones_like(mean) if self.name == "regression" else mean

    def loss(self, labels: Array, raw: Array) -> float:
        """Return the mean loss: log loss, half the squared error (or Brier score), or deviance."""
        if self.name == "shares":
            wrong = raw - (labels == np.arange(self.width)[:, None])
            return float(np.mean((wrong**2).sum(axis=0)) / 2.0)
        if self.name in ("regression", "mean", "share"):
            return float(np.mean((raw[0] - labels) ** 2) / 2.0)
        if self.name == "poisson":
            return float(np.mean(np.exp(raw[0]) - labels * raw[0]))
        if self.name == "binary":
            return float(np.mean(np.logaddexp(0.0, raw[0]) - labels * raw[0]))
        own = np.take_along_axis(raw, labels.astype(np.int64)[None], axis=0)[0]
        top = raw.max(axis=0)
        return float(np.mean(np.log(np.exp(raw - top).sum(axis=0)) + top - own))


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
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise DataError(
            f"labels of classes must be 0 to {len(classes) - 1}, each of them used, got {shown}"
            f"{', ...' if len(classes) > 5 else ''}; code them by "
            "pandas.factorize(labels, sort=True)[0], and NaN where unknown"
        )
    return len(classes)
