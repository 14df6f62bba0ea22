"""How good predictions are on samples whose label is known: figures of merit, beside others'.

The values are those of `sklearn.metrics`. Of several classes, each one is taken against the rest,
and the mean over classes is reported ("macro").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from sklearn import metrics as sk

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.pages.page import format_value
from flwr_vertical.results.survival import concordance_index, read_times
from flwr_vertical.tables.codes import level_text
from flwr_vertical.tables.ids import with_joined_ids

PROBABILITY = "probability_"
DECISION = "decision"
HAZARD_RATIO, STRATUM_SPAN = "hazard_ratio", "stratum_span"
CONSTANT = "constant"
TASKS, TIMES = ("classes", "numbers"), "times"
YOUDEN = "youden"

_MOST_LISTED = 10  # classes that a message names


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Predictions beside the true labels of the same samples; `evaluate` makes it."""

    # Index sample; ``label``, ``prediction``, and of classes ``probability_<class>``, or of the
    # classes 0 and 1 ``decision``, which is above 0 for 1
    samples: pd.DataFrame
    task: str  # What labels are
    what: str = "test samples"  # Which samples these are, in words
    # Of two classes: the probability of the second one from which it is predicted
    threshold: float = 0.5
    rule: str = "as given"  # How the threshold came about, in words
    # Other predictions of the same samples, in the same form: of the constant, of single parties
    beside: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # What a reader should know

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {format_value(v)}" for name, v in self.metrics().items())
        return f"Evaluation({len(self):,} {self.what}: {values})"

    @property
    def labels(self) -> Array:
        """True labels, shape (n_samples,)."""
        return self.samples["label"].to_numpy(dtype=float)

    @property
    def classes(self) -> list[float]:
        """Labels of the classes that the predictions know, ascending; none of numbers or times."""
        if self.task != "classes":
            return []
        if named := _probability_classes(self.samples):
            return named
        if DECISION in self.samples:
            return [0.0, 1.0]
        return [float(c) for c in np.unique(self.samples[["label", "prediction"]].to_numpy(float))]

    def probabilities(self, name: str = "") -> Array | None:
        """Return probabilities of the classes, shape (n_samples, n_classes); None without any."""
        frame = self._of(name)
        columns = [column for column in frame if str(column).startswith(PROBABILITY)]
        return frame[columns].to_numpy(dtype=float) if columns else None

    def predicted(self, name: str = "") -> Array:
        """Return predicted labels (n_samples,), of two classes by the threshold."""
        p = self.probabilities(name)
        if p is None or p.shape[1] != 2 or name == CONSTANT:
            return self._of(name)["prediction"].to_numpy(dtype=float)
        return np.where(p[:, 1] >= self.threshold, self.classes[1], self.classes[0])

    def confusion(self) -> pd.DataFrame:
        """Return how many samples of each class (index) are predicted to be of each (columns)."""
        known, given, found = _numbered(self.classes, self.labels, self.predicted())
        counts = sk.confusion_matrix(given, found, labels=range(len(known)))
        names = [level_text(c) for c in known]
        return pd.DataFrame(
            counts, pd.Index(names, name="label"), pd.Index(names, name="predicted")
        )

    def times(self) -> tuple[Array, Flags, Indices]:
        """Return what labels of times say; see `read_times`."""
        return read_times(self.labels, self.samples.get(STRATUM_SPAN, pd.Series([0.0])).iloc[0])

    def metrics(self, name: str = "") -> dict[str, float]:
        """Return figures of merit."""
        y = self.labels
        if self.task == TIMES:
            index = concordance_index(*self.times(), self._of(name)[HAZARD_RATIO].to_numpy())
            return {} if np.isnan(index) else {"concordance": index}
        if self.task == "numbers":
            found = self.predicted(name)
            out = {
                "rmse": float(sk.root_mean_squared_error(y, found)),
                "mae": float(sk.mean_absolute_error(y, found)),
                "bias": float(np.mean(found - y)),
            }
            return {"r2": float(sk.r2_score(y, found)), **out} if np.ptp(y) > 0 else out
        found, p = self.predicted(name), self.probabilities(name)
        average = "binary" if len(self.classes) == 2 else "macro"
        out = {"accuracy": float(np.mean(y == found)), "f1": _f1(y, found, self.classes, average)}
        if p is not None:
            return {**_of_probabilities(y, p, self.classes), **out}
        if DECISION not in self._of(name):
            return out
        return {**_of_ranks(y == self.classes[-1], self._of(name)[DECISION].to_numpy()), **out}

    def table(self) -> pd.DataFrame:
        """Return figures of merit of all predictions; index ``predictions``."""
        rows = {"this run": self.metrics(), **{name: self.metrics(name) for name in self.beside}}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("predictions")

    def by_class(self) -> pd.DataFrame:
        """Return precision, recall, F1 and AUC of each class against the rest; index ``class``."""
        y, found, p = self.labels, self.predicted(), self.probabilities()
        classes = self.classes
        known, given, told = _numbered(classes, y, found)
        precision, recall, f1, count = sk.precision_recall_fscore_support(
            given, told, labels=np.searchsorted(known, classes), zero_division=0.0
        )
        frame = pd.DataFrame(
            {"samples": count, "precision": precision, "recall": recall, "f1": f1},
            index=pd.Index([level_text(c) for c in classes], name="class"),
        )
        if p is not None:
            frame["auc"] = [_auc(y == c, p[:, j]) for j, c in enumerate(classes)]
        return frame

    def to_frame(self) -> pd.DataFrame:
        """Return all predictions in one table, index (predictions, sample); see `from_frame`."""
        parts = {"": self.samples, **self.beside}
        return pd.concat(parts, names=["predictions"])

    def to_plain(self) -> dict[str, Any]:
        """Return the rest of what `from_frame` takes: plain values."""
        return {
            "task": self.task, "what": self.what, "threshold": self.threshold, "rule": self.rule,
            "notes": list(self.notes),
        }  # fmt: skip

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, plain: Mapping[str, Any]) -> "Evaluation":
        """Put together what `to_frame` and `to_plain` gave."""
        names = list(dict.fromkeys(frame.index.get_level_values(0)))
        parts = {str(name): frame.loc[name].dropna(axis="columns", how="all") for name in names}
        return cls(parts.pop(""), beside=parts, **plain)

    def _of(self, name: str) -> pd.DataFrame:
        return self.beside[name] if name else self.samples


def evaluate(
    predictions: pd.DataFrame,
    labels: pd.Series,
    *,
    known: pd.Series | None = None,
    task: str | None = None,
    threshold: float | str = 0.5,
    beside: Mapping[str, pd.DataFrame] | None = None,
    what: str = "test samples",
) -> Evaluation:
    """Compare predictions with true labels."""
    hazards = HAZARD_RATIO in predictions
    if task is not None and (task not in TASKS or hazards):
        why = ", and predictions are relative hazards, whose labels are times" if hazards else ""
        raise ConfigError(f"task must be one of {list(TASKS)}, or be left out, got {task!r}{why}")
    y = _labels_of(predictions, labels)
    own = predictions.loc[y.index]
    source = y if known is None else known.dropna().astype(float)
    task = task or _task_of(own, pd.concat([y, source]), known is None)
    own = with_probabilities(own) if task == "classes" else own
    samples = own.assign(label=y.to_numpy(dtype=float))
    samples = samples[["label", *own.columns]]
    if hazards:
        Evaluation(samples, task).times()  # refuses labels that are none
    classes = Evaluation(samples, task).classes
    notes = []
    if strange := sorted(set(samples["label"]) - set(classes)) if task == "classes" else []:
        if broken := [label for label in strange if not float(label).is_integer()]:
            raise DataError(
                f"labels such as {broken[:_MOST_LISTED]} are no classes; the predictions know "
                f"{classes[:_MOST_LISTED]}; give labels as they were in the fit"
            )
        notes.append(
            f"{int(samples['label'].isin(strange).sum())} samples have labels "
            f"{strange[:_MOST_LISTED]} that the fit did not know: their predictions are wrong in "
            "any case, and log_loss is left out"
        )
    if known is None and task != TIMES:
        notes.append("the constant is made of the labels that are compared with")
    constant = _constant(samples, source, task, classes)
    others = {CONSTANT: constant}
    for name, frame in (beside or {}).items():
        found = with_probabilities(frame) if task == "classes" else frame
        if not set(constant.columns) - {"label"} <= set(found.columns):
            raise DataError(
                f"predictions {name!r} have columns {list(found)}; expected {list(own.columns)}"
            )
        filled = found.reindex(samples.index)[[c for c in constant if c != "label"]]
        lacks = int(filled["prediction"].isna().sum())
        if lacks:
            notes.append(f"{name}: {lacks} of {len(samples)} samples have the constant prediction")
        others[name] = filled.assign(label=samples["label"])[list(constant)].fillna(constant)
    cut, rule = _threshold(samples, classes, threshold)
    return Evaluation(samples, task, what, cut, rule, others, notes)


def with_probabilities(frame: pd.DataFrame) -> pd.DataFrame:
    """Return predictions with probabilities, made of the expectation of a label that is 0 or 1."""
    if _probability_classes(frame) or not {"linear_predictor", "score"} & set(frame):
        return frame
    p = frame["prediction"].to_numpy(dtype=float)
    own = {f"{PROBABILITY}0": 1.0 - p, f"{PROBABILITY}1": p}
    return frame.assign(prediction=(p > 0.5).astype(float), **own)


def _labels_of(predictions: pd.DataFrame, labels: pd.Series) -> pd.Series:
    if not isinstance(labels, pd.Series):
        raise DataError(
            f"labels must be a pandas Series indexed by sample ID, got {type(labels).__name__}"
        )
    labels = with_joined_ids(labels)
    if not labels.index.is_unique:
        twice = labels.index[labels.index.duplicated()][0]
        raise DataError(f"labels to compare with: sample {twice!r} stands twice; keep one")
    try:
        y = labels.astype(float)
    except (TypeError, ValueError):
        raise DataError(
            f"labels to compare with must be numbers, got dtype {labels.dtype}; code classes as in "
            "the fit"
        ) from None
    y = y[np.isfinite(y.to_numpy())]
    told = predictions[np.isfinite(predictions["prediction"].to_numpy(dtype=float))]
    shared = told.index[told.index.isin(y.index)]
    if not len(shared):
        nameless = all(str(name).startswith("aligned-") for name in predictions.index)
        hint = "; list these samples, without a label, among the run's labels, too: the server "
        hint += "knows no other IDs"
        raise DataError(
            f"none of the {len(y):,} samples to compare with is predicted; predicted are "
            f"{len(predictions):,} samples such as {_some(predictions.index)}, labels are of "
            f"{_some(y.index)}{hint * nameless}"
        )
    found: pd.Series = y.loc[shared]
    return found


def _some(index: pd.Index) -> str:
    return ", ".join(repr(i) for i in index[:3])


def _task_of(frame: pd.DataFrame, labels: pd.Series, may_be_counts: bool) -> str:
    """Tell what labels are, those of the fit among them unless they `may_be_counts`."""
    if HAZARD_RATIO in frame:
        return TIMES
    if _probability_classes(frame) or DECISION in frame:
        return "classes"
    p = frame["prediction"].to_numpy(dtype=float)
    if not (set(labels.unique()) <= {0.0, 1.0} and bool(((p >= 0.0) & (p <= 1.0)).all())):
        return "numbers"
    if may_be_counts and "linear_predictor" in frame:
        # A Poisson mean; that of a label 0 or 1 is below exp(eta).
        log_link = np.exp(frame["linear_predictor"].to_numpy(dtype=float))
        return "numbers" if (p > (1.0 - 1e-9) * log_link).all() else "classes"
    return "classes" if {"linear_predictor", "score"} & set(frame) else "numbers"


def _probability_classes(frame: pd.DataFrame) -> list[float]:
    names = [str(name) for name in frame]
    return [float(n.removeprefix(PROBABILITY)) for n in names if n.startswith(PROBABILITY)]


def _constant(
    samples: pd.DataFrame, known: pd.Series, task: str, classes: Sequence[float]
) -> pd.DataFrame:
    """Return what would be predicted without any column: class shares, or the mean."""
    if task == TIMES:
        columns = {name: np.ones(len(samples)) for name in ("prediction", HAZARD_RATIO)}
    elif task == "numbers":
        columns = {"prediction": np.full(len(samples), known.mean())}
    else:
        shares = np.array([float((known == c).mean()) for c in classes])
        columns = {"prediction": np.full(len(samples), classes[int(shares.argmax())])}
        if DECISION in samples:
            columns[DECISION] = np.zeros(len(samples))
        if _probability_classes(samples):
            total = max(shares.sum(), 1e-12)
            for c, share in zip(classes, shares / total, strict=True):
                columns[PROBABILITY + level_text(c)] = np.full(len(samples), share)
    return pd.DataFrame({"label": samples["label"], **columns}, index=samples.index)


def _threshold(
    samples: pd.DataFrame, classes: Sequence[float], threshold: float | str
) -> tuple[float, str]:
    if threshold != YOUDEN:
        if isinstance(threshold, str) or not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"threshold must be between 0 and 1, or {YOUDEN!r}, got {threshold}")
        return float(threshold), "as given"
    positive = (samples["label"] == classes[-1]).to_numpy() if classes else np.zeros(0, dtype=bool)
    if len(classes) != 2 or not _probability_classes(samples):
        raise ConfigError(f"threshold={YOUDEN!r} needs probabilities of two classes")
    if positive.all() or not positive.any():
        raise DataError(f"threshold={YOUDEN!r} needs samples of both classes, got one")
    score = samples[PROBABILITY + level_text(classes[1])].to_numpy(dtype=float)
    wrong, right, cuts = sk.roc_curve(positive, score)
    best = int(np.argmax(right - wrong))
    return float(min(cuts[best], 1.0)), "Youden's, chosen on these samples"


def _f1(y: Array, found: Array, classes: Sequence[float], average: str) -> float:
    if average == "binary":
        return float(sk.f1_score(y == classes[1], found == classes[1], zero_division=0.0))
    _, given, told = _numbered([], y, found)
    return float(sk.f1_score(given, told, average="macro", zero_division=0.0))


def _numbered(classes: Sequence[float], y: Array, found: Array) -> tuple[Array, AnyArray, AnyArray]:
    """Return all classes, and labels as their numbers: scikit-learn takes no class such as 0.5."""
    known = np.unique(np.concatenate([classes, y, found]))
    return known, np.searchsorted(known, y), np.searchsorted(known, found)


def _of_probabilities(y: Array, p: Array, classes: Sequence[float]) -> dict[str, float]:
    """Return what is judged by probabilities; what the samples do not define is left out."""
    judged = [1] if len(classes) == 2 else range(len(classes))
    defined = [j for j in judged if (y == classes[j]).any() and not (y == classes[j]).all()]
    out: dict[str, float] = {}
    if defined:
        ranks = [_of_ranks(y == classes[j], p[:, j]) for j in defined]
        out = {name: float(np.mean([own[name] for own in ranks])) for name in ranks[0]}
    hit = y[:, None] == np.asarray(classes)
    if hit.any(axis=1).all():
        shares = p / np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
        out["log_loss"] = float(sk.log_loss(hit.argmax(axis=1), shares, labels=range(len(classes))))
    square = (p - hit) ** 2
    out["brier"] = float(square[:, 1].mean() if len(classes) == 2 else square.sum(axis=1).mean())
    return out


def _of_ranks(positive: Flags, score: Array) -> dict[str, float]:
    """Return what is judged by the order of samples; nothing if they are all of one class."""
    if positive.all() or not positive.any():
        return {}
    found = sk.average_precision_score(positive, score)
    return {"auc": _auc(positive, score), "average_precision": float(found)}


def _auc(positive: Flags, score: Array) -> float:
    if positive.all() or not positive.any():
        return float("nan")
    return float(sk.roc_auc_score(positive, score))
