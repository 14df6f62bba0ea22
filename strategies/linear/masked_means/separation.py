"""Columns that tell the labels apart: which slopes have no maximum, and what a user is told.

One value of a column with labels of one kind alone (quasi-separation) makes the slope of this
column grow without end and leaves all others alone: it gets a ridge, and the fit goes on. Columns
that tell all labels apart (perfect separation) mostly give the label away.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices
from strategies.linear.masked_means.problem import REACH, RIDGE, MeanProblem
from strategies.linear.masked_means.solver import MeanMaximum

NOTE_ON_WIDE = (
    "there are as many columns as rows, or more, so the likelihood has no maximum without a "
    f"penalty: all columns have a ridge of {RIDGE:g} on the square of each coefficient in standard "
    "deviations, beside the penalty; no standard errors are given"
)
_LOST = 1e3
"""How many times larger the variance of a slope that grows without end is than at no effect."""
_APART = 1e-3
"""Share of the deviance without columns that is left where nearly all labels are told apart."""
_WHOLE = 1e-5
_GROWS, _FROM = 0.3, 4
"""A predictor without a maximum grows by about 1 with each step of Newton's method; that others
still move by so much after so many evaluations is rare."""
_NAMED = 3
_CANCEL, _USUAL = 0.2, 5.0
"""Predictors whose spread is below this share of the slopes' length, and below this, are no labels
told apart: large slopes cancel each other."""


@dataclass(frozen=True)
class SeparatingLevel:
    """One of two values of a column, with labels of one kind alone."""

    slope: int  # Number of the column's slope
    kind: int  # Of the labels
    value: float  # Of the column, in standard deviations from its mean
    other: float  # Of the column, in standard deviations from its mean
    count: int  # How many rows have it

    def rises(self, step: Array) -> float:
        """Return by how much a step, of level and slopes, moves these rows towards their label."""
        moved = float(step[1 + self.slope]) * (self.value - self.other)
        return moved if self.kind else -moved

    def said(self, problem: MeanProblem) -> str:
        """Say it."""
        side = "higher" if self.value > self.other else "lower"
        return (
            f"the label is {self.kind} in all {self.count:,} samples with the {side} value of "
            f"{problem.named(np.array([self.slope]))[0]}"
        )


def levels_of_one_kind(problem: MeanProblem) -> list[SeparatingLevel]:
    """Return the levels whose labels are of one kind, as far as moments show them.

    If a column of mean 0 and variance 1 has values a and b, and all labels are 0 where it is b, its
    covariance with the labels is a times their mean. Then ``b = -1 / a``, and a share of ``a^2 / (1
    + a^2)`` of the rows has it: a whole number of rows. With more values it hardly ever is one; and
    then the coefficient does not go on to grow (`Watch`).
    """
    moments, found = problem.moments, []
    if not moments.intercept or problem.beside.weighted:  # moments then count no rows
        return []
    n, mean = moments.n_rows, moments.labels / moments.n_rows
    for j, covariance in enumerate(moments.with_labels / n):
        for kind, usual in ((0, mean), (1, 1.0 - mean)):
            if kind and problem.family.name != "binomial":
                continue
            other = covariance / usual * (-1.0 if kind else 1.0)
            count = n * other**2 / (1.0 + other**2)
            if round(count) > 0 and abs(count - round(count)) < _WHOLE:
                rows = round(count)
                found.append(SeparatingLevel(j, kind, -1.0 / other, other, rows))
    return found


class Watch:
    """Puts a ridge on slopes that are seen to grow without end, long before they have gone far."""

    def __init__(self, problem: MeanProblem, notes: list[str]) -> None:
        self._problem, self._notes = problem, notes
        self.levels = levels_of_one_kind(problem)
        self._past: list[Array] = []

    def __call__(self, here: Array) -> Array:
        """Return the ridge from level and slopes on."""
        self._past.append(here)
        if len(self._past) >= _FROM:
            before, last, now = self._past[-3:]
            steps = last - before, now - last
            for level in self.levels:
                grows = all(level.rises(step) > _GROWS for step in steps)
                if grows and not self._problem.ridge[level.slope]:
                    self.bound(np.array([level.slope]))
        return self._problem.ridge

    def bound(self, slopes: Indices) -> None:
        """Put a ridge on slopes, with a note."""
        self._notes.append(note_on(self._problem, slopes, self.levels))
        self._problem.bound(slopes, RIDGE)
        self._past.clear()


def without_maximum(problem: MeanProblem, found: MeanMaximum) -> Indices:
    """Return which slopes grow without end within reach (Hauck and Donner, 1977)."""
    if problem.ridge.all():  # keeps all slopes finite
        return np.zeros(0, dtype=np.int64)
    moments, family = problem.moments, problem.family
    free = slice(None) if moments.intercept else slice(1, None)
    weighted = found.information + np.diag(np.append(0.0, 2.0 * problem.ridge))
    inner = weighted[free, free]
    scale = 1.0 / np.sqrt(np.diag(inner))
    inverse = np.linalg.inv(inner * np.outer(scale, scale)) * np.outer(scale, scale)
    variance = np.diag(inverse)[-len(found.slopes) :]
    mean = float(problem.labels.mean())
    null = family.variance(np.array([family.link(mean)]))[0]
    at_none = np.diag(np.linalg.inv(moments.covariance)) / (moments.n_rows * null)
    lost = (variance > _LOST * at_none) & (found.slopes**2 < variance) & (problem.ridge == 0.0)
    return np.flatnonzero(lost)


def all_apart(problem: MeanProblem, found: MeanMaximum) -> bool:
    """Tell whether the columns leave (almost) nothing of the labels open."""
    if problem.family.name != "binomial":
        return False
    return problem.fit(found).deviance < _APART * problem.null_deviance


def refusal(problem: MeanProblem, slopes: Array, cure: str) -> str:
    """Say why there is no maximum within reach; `slopes`: the last that were tried."""
    size, shown = np.abs(slopes), _largest(problem, slopes)
    spread = float(np.sqrt(max(float(slopes @ problem.moments.covariance @ slopes), 0.0)))
    if spread < min(_CANCEL * float(np.linalg.norm(size)), _USUAL):
        cancelling = ", ".join(problem.named(np.flatnonzero(size > size.max() / 3.0)))
        return (
            f"coefficients of {cancelling} cancel each other: these columns nearly follow from "
            "each other, and what they differ by has a large effect, so that their parts of linear "
            "predictors reach farther than can be evaluated. Leave one of them out, give their "
            f"difference in its place where one party has both, or {cure}"
        )
    if problem.family.name == "binomial":
        return (
            "perfect separation: the columns tell the labels 0 and 1 apart (almost) without error, "
            "so that the estimates grow without end (or have values far out); the largest are "
            f"those of {shown}. Remove or merge the column that gives the label away, or {cure}"
        )
    return (
        f"linear predictors spread over more than {2 * REACH[problem.family.name]:g} units, where "
        f"counts cannot be evaluated; the largest coefficients are those of {shown}. Transform "
        "columns with values far out (log, winsorise), or use strategy 'glm-admm'"
    )


def note_on_all(problem: MeanProblem, slopes: Array) -> str:
    """Say that all columns got a ridge, since together they tell the labels apart."""
    return (
        "the columns tell the labels 0 and 1 apart (almost) without error (perfect separation), "
        f"mostly {_largest(problem, slopes)}: does one give the label away? The likelihood has no "
        f"maximum, so all columns have a ridge of {RIDGE:g} on the square of each coefficient in "
        "standard deviations, beside the penalty; no standard errors are given"
    )


def note_on(problem: MeanProblem, slopes: Indices, levels: "list[SeparatingLevel]") -> str:
    """Say which columns got a ridge, and why."""
    told = [level.said(problem) for level in levels if level.slope in slopes]
    if not told:
        told = ["some of their values have labels of one kind alone"]
    names = ", ".join(problem.named(slopes))
    return (
        f"quasi-separation by {names}: {'; '.join(told)}. The coefficient would grow without end "
        f"(no other does), so it has a ridge of {RIDGE:g} on its square in standard deviations of "
        "the column, and no standard error. To do without, leave the column out or merge the level"
    )


def _largest(problem: MeanProblem, slopes: Array) -> str:
    return ", ".join(problem.named(np.argsort(-np.abs(slopes))[:_NAMED]))
