"""Attacks on labels, and on columns roughly: do messages tell them better than own tables do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict

from flwr_vertical.arrays import AnyArray, Array
from flwr_vertical.products.streams import SEED_BYTES, stream
from simulations.attacks.vectors import Family, basis, families, restrict
from simulations.attacks.views import GOT, View

_FOLDS, _HALVES = 5, 2  # for labels; for columns, of which half of the cells are known
_SURE = 3.0  # standard errors by which predictions must be nearer: the best of many families counts
_MOST = 0.2  # directions of a family by rows: more are noise, of which the first are tried
_STREAM = "rho"  # label of the stream whose seed a party is sent


@dataclass(frozen=True)
class Telling:
    """How well labels follow, out of the sample, from a party's columns and from all it has."""

    own: float  # R squared of numbers, AUC of classes, at least 0 and 0.5
    all: float  # R squared of numbers, AUC of classes, at least 0 and 0.5

    @property
    def gain(self) -> float:
        """What the messages add."""
        return max(0.0, self.all - self.own)


def labels_from(view: View, labels: Array) -> Telling:
    """Predict labels from a party's columns, and from these with what it received.

    Every family of vectors is tried with the party's columns, also numbers modulo 2^64 as they are
    and less the streams whose seeds the party has; the best counts.

    Shapes: labels (n_samples,): the truth, NaN where there is none.
    """
    assert view.own is not None
    return told_by(received_by(view), labels, view.own.to_numpy(dtype=float))


def received_by(view: View) -> list[Family]:
    """Return all vectors of a view: also numbers modulo 2^64, as they are and less known streams.

    A stream is known to a party that its seed was sent to.
    """
    return [*families(view), *families(view, rings=True), *_unmasked(view)]


def told_by(
    received: Sequence[Family],
    target: Array,
    own: Array,
    *,
    classes: bool = True,
    reduced: dict[tuple[int, bytes], Array] | None = None,
) -> Telling:
    """Predict numbers of samples from own columns, and from these with what was received.

    Shapes: target (n_samples,): the truth, NaN where there is none; own (n_samples, n_own).
    """
    reduced = {} if reduced is None else reduced
    folds = _FOLDS if classes else _HALVES
    usable = ~np.isnan(target) & ~np.isnan(own).any(axis=1)
    if usable.sum() < 2 * folds or np.ptp(target[usable]) == 0.0:
        return Telling(0.0, 0.0)

    def predict(design: Array, rows: AnyArray) -> Array:
        return _held_out(design, target[rows], folds, classes)

    alone = predict(own[usable], usable)
    best = figure(target[usable], alone, classes)
    without = best
    for k, family in enumerate(received):
        rows = family.rows[usable[family.rows]]
        part = restrict(family, rows)
        if part is None or len(rows) < 0.5 * usable.sum() or np.ptp(target[rows]) == 0.0:
            continue
        # Own columns over the same rows: another set of rows may be easier or harder.
        here = alone if len(rows) == usable.sum() else predict(own[rows], rows)
        key = k, rows.tobytes()
        if key not in reduced:
            reduced[key] = _directions(part)
        for vectors in (reduced[key], part[:, -1:]):
            told = predict(np.column_stack([own[rows], vectors]), rows)
            nearer = (target[rows] - here) ** 2 - (target[rows] - told) ** 2
            if nearer.mean() > _SURE * nearer.std() / np.sqrt(len(rows)):
                gain = figure(target[rows], told, classes) - figure(target[rows], here, classes)
                best = max(best, without + gain)
    return Telling(without, min(best, 1.0))


def columns_from(view: View, truth: Mapping[str, pd.DataFrame]) -> Telling:
    """Predict others' columns from what a node has of its own, and from this with its messages.

    The attacks of `suite` count cells that are found to a thousandth. What networks make of columns
    tells these less exactly, and is no less dangerous for it. Here the attacker knows half of the
    samples, and learns what the vectors of a view say of the columns of the others.
    """
    own = np.zeros((view.n_samples, 0)) if view.own is None else view.own.to_numpy(dtype=float)
    received = received_by(view)
    reduced: dict[tuple[int, bytes], Array] = {}
    found = [
        told_by(received, frame[name].to_numpy(float), own, classes=False, reduced=reduced)
        for party, frame in truth.items()
        if party != view.who
        for name in frame
    ]
    return Telling(*(float(np.mean([getattr(t, name) for t in found])) for name in ("own", "all")))


def figure(labels: Array, said: Array, classes: bool = True) -> float:
    """Return R squared of numbers, at least 0, or AUC of labels of two values, at least 0.5."""
    if classes and len(np.unique(labels)) == 2:
        return max(0.5, float(roc_auc_score(labels == labels.max(), said)))
    return max(0.0, float(r2_score(labels, said)))


def _held_out(design: Array, labels: Array, n_folds: int, classes: bool) -> Array:
    """Return predictions of labels by models that have not seen them."""
    folds = KFold(n_folds, shuffle=True, random_state=0)
    if not design.shape[1]:
        design = np.zeros((len(labels), 1))
    scale = design.std(axis=0)
    design = (design - design.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    levels = np.unique(labels)
    if classes and len(levels) == 2:
        model = LogisticRegression(C=100.0, max_iter=200)
        binary = labels == levels[1]
        chance = cross_val_predict(model, design, binary, cv=folds, method="predict_proba")
        return np.asarray(levels[0] + np.ptp(levels) * chance[:, 1])
    # As scikit-learn's LinearRegression in cross_val_predict, whose checks take most of the time.
    design = np.column_stack([np.ones(len(design)), design])
    said = np.empty(len(labels))
    for train, test in folds.split(design):
        weights = np.linalg.lstsq(design[train], labels[train], rcond=None)[0]
        said[test] = design[test] @ weights
    return said


def _directions(part: Array) -> Array:
    most = max(1, int(_MOST * len(part)))
    reduced = basis(part)
    return reduced[:, :most] if reduced.shape[1] > most else reduced


def _unmasked(view: View) -> list[Family]:
    """Take streams whose seeds the party was sent off the numbers that it received."""
    seeds = {
        item.value
        for item in view.items
        if item.way == GOT and isinstance(item.value, bytes) and len(item.value) == SEED_BYTES
    }
    found = []
    for item in view.items:
        value = item.value
        if not item.ring or item.way != GOT or not isinstance(value, np.ndarray):
            continue
        if value.dtype != np.uint64 or value.ndim != 2 or len(value) != view.n_samples:
            continue
        for seed in seeds:
            bare = (value - stream(seed, _STREAM, value.shape)).view(np.int64).astype(float)
            found.append(Family(f"{item.name} less {_STREAM}", np.arange(len(value)), bare))
    return found
