"""The squared hinge over columns of several parties, nothing of a sample opened.

The derivative of a sample's loss depends on its label. Parties need not know it: the server makes
the features that they evaluate of the label as well (`ByClass`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import max_vectors
from flwr_vertical.products import Moments, PrivateProducts
from strategies.linear.masked_means.columns import EvaluatedColumns
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans
from strategies.linear.masked_means.fit import check_vectors
from strategies.linear.masked_means.fixed_point import ByClass
from strategies.linear.masked_means.fourier import Expansion, expand
from strategies.linear.masked_means.solver import OutOfReachError
from strategies.svm.margin_solver import LabelledMoments, Minimum, hinge_slope, minimise

_TOLERANCE = 1e-4
"""Largest error of a derivative, which is 2 at a margin of 0."""
_MOST_TERMS = 96
"""A wider corner costs less than more terms."""
_LEAST_RADIUS = 0.5
_FIRST_WIDTH = 0.1
_MARGIN = 1.1
"""How much farther decision values may reach with a narrower corner."""
_NAMED = 3


@dataclass(frozen=True)
class MarginFit:
    """A fitted support vector machine."""

    intercept: float  # Decision value where all offered columns are 0; 0 if there is none
    beta: Array  # (n_columns,): of the offered columns of all parties; 0 of one that does not vary
    follows: Flags  # (n_columns,): columns that are left out since they follow from others
    evaluations: int  # How often sums of derivatives were opened, two rounds each
    distance: float  # Length of the last step; see `Minimum`
    width: float  # Of the corner that could be evaluated


def fit_margins(
    federation: Federation,
    products: PrivateProducts,
    second_class: Flags,
    group: Indices,
    columns: Mapping[str, Sequence[str]],
    moments: Moments,
    *,
    ridge: float,
    width: float,
    intercept: bool = True,
    units: Array | None = None,
    max_evaluations: int = 40,
    allowed: Callable[[int], int] = max_vectors,
) -> MarginFit:
    """Fit a linear machine with the smooth squared hinge; two rounds for each evaluation, and one.

    Shapes: second_class (n_labelled,): which labelled samples are of the second class; group
    (n_labelled,): 0 for samples of the fit, which all parties hold, else -1; units (n_columns,): in
    which the ridge treats coefficients; by default each column's standard deviation. `allowed`:
    with how many vectors every party multiplies a set of so many rows.
    """
    group = np.asarray(group, dtype=np.int64)
    means = MaskedMeans(federation, products.group_key)
    first = max(width, _FIRST_WIDTH)
    names = [f"{party}:{n}" for party in federation.parties for n in columns[party]]
    evaluated = _Evaluated(means, second_class[group >= 0], moments, ridge, first, intercept, units)
    n_rows = int((group >= 0).sum())
    reserved = 2  # The labels, and the first decision values placed
    check_vectors(reserved + 1, allowed(n_rows), n_rows)
    means.send(group)
    most = min(max_evaluations, allowed(n_rows) - reserved)
    try:
        found = _within_reach(evaluated, most)
        if found is None:
            raise evaluated.refusal(names)
        fit = evaluated.fit(found)
        narrow = evaluated.narrowest(width)
        if narrow < evaluated.width and evaluated.evaluations < most:
            evaluated.width = narrow
            start = np.append(found.level, found.slopes)
            found = _within_reach(evaluated, most, start, fit.width)
            fit = fit if found is None else evaluated.fit(found)
        return fit
    finally:
        means.close()


def _within_reach(
    evaluated: "_Evaluated", most: int, start: Array | None = None, below: float = 2.0
) -> Minimum | None:
    """Find the minimum, the corner's width doubled while decision values reach too far for it."""
    while evaluated.width < below:
        left = most - evaluated.evaluations
        if left < 1:
            return None
        try:
            return minimise(
                evaluated.moments,
                evaluated.ridge,
                evaluated.width,
                evaluated,
                start=start,
                max_evaluations=left,
            )
        except OutOfReachError as error:
            evaluated.width *= 2.0
            start = error.evaluated if error.evaluated is not None else start
    return None


class _Evaluated(EvaluatedColumns):
    """Sums of derivatives in units of the columns' standard deviations, varying columns only."""

    def __init__(
        self,
        means: MaskedMeans,
        second_class: Flags,
        opened: Moments,
        ridge: float,
        width: float,
        intercept: bool,
        units: Array | None,
    ) -> None:
        n = len(second_class)
        super().__init__(means, opened, n, intercept, ridge, units)
        self._second_class, self.width = second_class, width
        kept, labels = self._kept, np.where(second_class, 1.0, -1.0)
        # Parties centre their columns over the samples of the fit.
        self._centred = opened.with_vectors[0, :, 0] - self._mean * labels.sum()
        with_labels = self._centred if intercept else opened.with_vectors[0, :, 0]
        self._labels = float(labels.sum())
        self.moments = LabelledMoments(
            float(n),
            self._labels,
            self._second,
            opened.sums[0][kept] / self._scale * (not intercept),
            with_labels[kept] / self._scale,
            intercept,
        )
        self._last, self._place_of_last = np.zeros(len(kept)), (0.0, _LEAST_RADIUS)

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Have the parties evaluate the derivative; None where decision values are out of reach."""
        self._last = slopes
        level, placed = self._place(level, slopes)
        radius = max((placed.high - placed.low) / 2.0, _LEAST_RADIUS)
        expansions = _expand(level + placed.centre, radius, self.width)
        if expansions is None:
            return None
        self.evaluations += 1
        self._place_of_last = level + placed.centre, radius
        functions = ByClass(*expansions, self._second_class)
        ends = np.array([level + placed.low, level + placed.high])
        largest = max(float(np.abs(hinge_slope(s * ends, self.width)).max()) for s in (-1.0, 1.0))
        largest += abs(functions.half_difference)
        n = len(self._second_class)
        (total,), (columns,) = self.means.open_sums(
            placed, placed.centre, functions, Bound(n * largest, largest)
        )
        total += functions.half_difference * self._labels
        columns = columns + functions.half_difference * self._centred
        if not self._intercept:
            columns = columns + self._mean * total
        return total, columns[self._kept] / self._scale

    def narrowest(self, width: float) -> float:
        """Return the narrowest corner that can be evaluated about where the last one was."""
        middle, radius = self._place_of_last
        while width < self.width and _expand(middle, _MARGIN * radius, width) is None:
            width *= 2.0
        return min(width, self.width)

    def fit(self, found: Minimum) -> MarginFit:
        """Return the fit in the units of the offered columns."""
        beta = self._raw(found.slopes)
        level = found.level - float(self._mean @ beta) if self._intercept else 0.0
        return MarginFit(level, beta, self.follows, self.evaluations, found.distance, self.width)

    def refusal(self, names: list[str]) -> DataError:
        """Say that decision values reach too far."""
        largest = self._kept[np.argsort(-np.abs(self._last))[:_NAMED]]
        shown = ", ".join(names[j] for j in largest)
        return DataError(
            "decision values reach so far that the hinge's derivative cannot be evaluated with a "
            f"corner of {self.width:g}; the largest coefficients are those of {shown}. Raise "
            "l2, transform columns with values far out (log, winsorise), or use "
            "loss='squared'"
        )


def _expand(middle: float, radius: float, width: float) -> tuple[Expansion, Expansion] | None:
    """Return the derivatives of both classes about a decision value; None where out of reach."""
    try:
        first, second = expand(
            [
                lambda t: -hinge_slope(-(middle + t), width),
                lambda t: hinge_slope(middle + t, width),
            ],
            radius,
            _TOLERANCE,
            most_terms=_MOST_TERMS,
        )
    except DataError:
        return None
    return first, second
