"""The server half of predictions: hand out coefficients once, and read sums of terms.

At the end of a fit `keep_and_predict` sends each party its own coefficients, which stay on its
disk, and nothing that anybody sends later can change them. A prediction is the sum of the parties'
terms, each rounded to a grid; what depends on the parties that lack a row (level, variance) is the
server's own.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax

from flwr_vertical import Alignment, Federation, Model, Result
from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from flwr_vertical.server import Total
from strategies.linear.prediction.regressions import (
    GRID,
    ODDS,
    Regressions,
    class_table,
    find_patterns,
    prediction_table,
)
from strategies.linear.problem import Problem, sample_index


def completed_labels(
    alignment: Alignment,
    labels: "pd.Series[Any] | None",
    known: Array,
    predicted: pd.DataFrame | None,
    free: Indices,
) -> "pd.Series[Any] | None":
    """Complete the server's labels with predictions.

    Shapes: known (n_samples,): labels in aligned order, NaN where there is none; predicted
    (n_unlabelled, 4): of the samples without a label; free (n_unlabelled,): their aligned row
    numbers.
    """
    if predicted is None:
        return labels
    values = known.copy()
    values[free] = predicted["prediction"].to_numpy()
    if labels is None or alignment.label_rows is None:
        names = sample_index(alignment, None, np.arange(alignment.n_samples))
        return pd.Series(values, index=names, name="label")
    rows = alignment.label_rows
    given = labels.astype(float)
    completed = pd.Series(
        np.where(rows >= 0, values[rows], given.to_numpy()), index=labels.index, name=labels.name
    )
    new = ~np.isin(free, rows)
    if not new.any() or isinstance(labels.index, pd.MultiIndex):
        return completed
    index = labels.index.append(predicted.index[new]).rename(labels.index.name)
    both = np.concatenate([completed.to_numpy(), values[free[new]]])
    return pd.Series(both, index=index, name=labels.name)


@dataclass
class Predictor(Model):
    """What the server needs to turn sums of terms into predictions; it has no row and no term."""

    strategy = "predict"
    version = 3

    digest: str  # Names the model at the parties
    family: str  # See `Regressions`
    parties: list[str]  # Parties of the fit
    present: Flags  # See `Regressions`
    level: Array  # See `Regressions`
    unseen: Array  # See `Regressions`
    leverage: Array  # See `Regressions`
    noise: float  # See `Regressions`
    # absent_variance, absent_leverage: (n_parties,): see `Regressions`; zeros where there are
    # several regressions
    absent_variance: Array
    absent_leverage: Array
    grid: float  # Unit of the terms
    # coarser, bits: by party, see `LinearPart`; of those that have told a term
    coarser: dict[str, int]
    bits: dict[str, int]
    classes: list[float]  # See `Regressions`
    stratum_span: float  # See `Regressions`

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Read models from before there were classes, and strata."""
        return {"classes": [], "stratum_span": 0.0, **fields}

    @property
    def scores(self) -> tuple[int, ...]:
        """What shape the sum of terms of a row has: one number, or a score of each class but one.

        Scores are log odds against the first class.
        """
        return (len(self.classes) - 1,) if len(self.classes) > 2 else ()

    @property
    def rounding_variance(self) -> dict[str, float]:
        """Variance that each party's rounding adds to a prediction."""
        return {name: (self.grid * 2.0**c) ** 2 / 12.0 for name, c in self.coarser.items()}

    @property
    def bits_of_sum(self) -> int:
        """How many bits the sum of the parties' terms of one row can tell at most."""
        finest = min(self.coarser.values(), default=0)
        values = sum(2.0 ** (self.bits[name] + c - finest) for name, c in self.coarser.items())
        return math.ceil(math.log2(max(values, 1.0))) * (self.scores or (1,))[0]

    def told_how_coarse(self, told: dict[str, dict[str, Any]]) -> "Predictor":
        """Return the model with what parties said of the terms that they sent."""
        coarser, bits = (
            {name: int(values[of]) for name, values in told.items() if of in values}
            for of in ("coarser", "bits")
        )
        return replace(self, coarser=coarser, bits=bits)

    def patterns_of(self, held: Flags) -> Indices:
        """Choose the regression of each row; see `find_patterns`."""
        return find_patterns(self.present, self.unseen, held)

    def table(
        self, held: Flags, term: AnyArray, shift: Array | float = 0.0, weights: Array | float = 1.0
    ) -> pd.DataFrame:
        """Turn sums of terms into predictions.

        Shapes: held (n_rows, n_parties): which of `parties` have each row; term (n_rows,), with
        classes (n_rows, *scores): sum of the parties' terms in units of the grid; shift (n_rows,):
        what the server adds; weights (n_rows,): by what the noise is divided.
        """
        chosen = self.patterns_of(held)
        if self.classes:
            n = len(self.classes) - 1
            level = self.level.reshape(-1, n)[chosen]
            scores = level + self.grid * np.asarray(term, dtype=np.float64).reshape(-1, n)
            odds = np.column_stack([np.zeros(len(scores)), scores])  # against the first class
            return class_table(softmax(odds, axis=1), self.classes)
        absent = ~held & self.present[chosen]
        rounding = held.astype(float) @ np.array(
            [self.rounding_variance.get(name, 0.0) for name in self.parties]
        )
        found = prediction_table(
            self.family,
            self.level[chosen] + self.grid * np.asarray(term, dtype=np.float64) + shift,
            self.unseen[chosen] + absent @ self.absent_variance,
            np.maximum(self.leverage[chosen] - absent @ self.absent_leverage, 0.0) + rounding,
            self.noise / weights,
        )
        return found.assign(stratum_span=self.stratum_span) if self.stratum_span else found


def keep_and_predict(
    federation: Federation,
    alignment: Alignment,
    result: Result,
    regressions: Regressions,
    problem: Problem,
    *,
    predicts: bool = True,
    step: str = "finish_moments",
    shift: Array | float = 0.0,
    weights: Array | float = 1.0,
) -> Total:
    """Give each party its coefficients to keep, and predict the samples without a label; one round.

    Fills in ``result.predictor``, ``result.predictions`` and ``result.labels``, and of the metrics
    ``bits_per_row``; with `predicts` false, the first alone.

    Shapes: shift, weights (n_unlabelled,): what the server adds to linear predictors, and by what
    the noise is divided.
    """
    free, free_mask = problem.free, problem.free_mask
    # A stage of a pipeline that selects columns predicts nothing either.
    if not (predicts and getattr(federation, "predicts", True)):
        free, free_mask = free[:0], free_mask[:0]
    names = list(federation.parties)
    grid = _grid(regressions)
    digest = _digest(names, regressions, grid)
    chosen = find_patterns(regressions.present, regressions.unseen, ~free_mask)
    own: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names):
        own[name] = {
            "own": k,
            "coefficients": regressions.own(k),
            "offsets": regressions.offsets[:, k],
        }
        if len(regressions.present) > 1 and len(free):
            own[name]["pattern"] = narrow(chosen[~free_mask[:, k]])
    n_outputs = max(len(regressions.classes) - 1, 1)
    arguments = {
        "model": digest,
        "parties": names,
        "present": regressions.present.astype(np.uint8),
        "grid": grid,
        "n_unlabelled": len(free),
        "n_outputs": n_outputs,
    }
    tail = (n_outputs,) if n_outputs > 1 else ()
    shapes = {"term": (len(free), *tail)} if len(free) else {}
    total = federation.sum(step, arguments, per_party=own, shapes=shapes)
    told = total.public
    none = np.zeros(len(names))
    predictor = Predictor(
        digest,
        regressions.family,
        names,
        regressions.present,
        regressions.level,
        regressions.unseen,
        regressions.leverage,
        regressions.noise,
        none if regressions.absent_variance is None else regressions.absent_variance,
        none if regressions.absent_leverage is None else regressions.absent_leverage,
        grid,
        {},
        {},
        list(regressions.classes),
        regressions.stratum_span,
    ).told_how_coarse(told)
    result.predictor = predictor
    if len(free):
        note_bits(result, predictor, told)
        result.predictions = predictor.table(~free_mask, total["term"], shift, weights).set_axis(
            sample_index(alignment, result.labels, free)
        )
        result.labels = completed_labels(
            alignment, result.labels, federation.labels, result.predictions, free
        )
    return total


def note_bits(result: Result, predictor: Predictor, told: dict[str, dict[str, Any]]) -> None:
    """Report what predictions tell of a row, and terms that lay out of bounds."""
    result.metrics["bits_per_row"] = float(predictor.bits_of_sum)
    for name, values in told.items():
        if values["outside"]:
            result.notes.append(
                f"party {name!r}: {int(values['outside']):,} rows lie far outside those of the "
                "fit; their terms were brought to the bound, and their predictions are unreliable"
            )


def narrow(numbers: Indices) -> AnyArray:
    """Return numbers of regressions in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _grid(regressions: Regressions) -> float:
    """Return the step of the terms: `GRID` residual standard deviations; of classes, `ODDS`."""
    if regressions.classes:
        return ODDS
    explained = float(regressions.unseen.max(initial=0.0))
    if regressions.absent_variance is not None:
        explained = max(explained, float(regressions.absent_variance.max(initial=0.0)))
    # A fit without noise has no step of its own; parties bound the number of steps anyway.
    floor = 1e-6 * float(np.sqrt(explained))
    return max(GRID * float(np.sqrt(max(regressions.noise, 0.0))), floor, 1e-150)


def _digest(names: list[str], regressions: Regressions, grid: float) -> str:
    """Return the digest of a model. It follows from the fit, so that a resumed run has it again."""
    found = hashlib.blake2b("\0".join(names).encode(), digest_size=16)
    for values in (regressions.coefficients, regressions.level, regressions.offsets):
        found.update(np.ascontiguousarray(values).tobytes())
    found.update(np.float64(grid).tobytes())
    return found.hexdigest()
