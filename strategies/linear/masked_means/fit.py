"""Binomial and Poisson models by maximum likelihood, nothing of a sample opened.

An evaluation takes two rounds, the information one. Under a penalty that shrinks coefficients, the
likelihood is evaluated again where these end, with the information there (`follow`). Where parties
allow few vectors, the cumulant alone is opened there, and the information where the coefficients
stay.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import max_vectors, vectors_of_products
from strategies.linear.masked_means.problem import RIDGE, MeanFit, MeanProblem
from strategies.linear.masked_means.residuals import ResidualSums
from strategies.linear.masked_means.separation import (
    NOTE_ON_WIDE,
    Watch,
    all_apart,
    note_on_all,
    refusal,
    without_maximum,
)
from strategies.linear.masked_means.solver import MeanMaximum, OutOfReachError, expanded, maximise

_STAYS = 0.01
"""Standard errors to the next coefficients at which these are the last: they are a step of Newton's
method, which leaves about the square."""
_MOST_OF_MAXIMUM = 8
"""Evaluations that the maximum of most likelihoods takes."""
_TIMES = 3
"""For so many informations the vectors are to suffice where one is opened before the last."""
_NOTE_ON_PREDICTED = (
    "parties allow too few vectors (policy key 'vectors', one for ten rows where an owner states "
    "none) for products of columns weighted by the labels' variance, so selection and standard "
    "errors go by what normal columns would have"
)
MORE = {
    "pearson": ResidualSums.pearson,
    "squares": ResidualSums.squares,
    "squared means": ResidualSums.squared_means,
}
"""Sums over squared residuals, beside ``middle``, that of robust errors."""


def fit_mean_model(
    problem: MeanProblem,
    group: Indices,
    *,
    max_evaluations: int = 40,
    follow: Callable[[MeanFit], tuple[float, Array]] | None = None,
    cure: str = "set a penalty",
    fewest: int | None = None,
    allowed: Callable[[int], int] = max_vectors,
    more: Collection[str] | None = None,
) -> MeanFit:
    """Fit a binomial or Poisson model to columns of several parties.

    `fewest`: rows of the smallest set that a party counts vectors for; by default all of the fit.
    `allowed`: with how many vectors every party multiplies a set of so many rows.
    `more`: sums over squared residuals to open at the end, ``middle`` or of `MORE`, beside the
    information anew: a round for each, and two.

    Shapes: group (n_samples,): 0 for samples of the fit, which all parties hold, else -1.
    """
    # Labels, weights, an offset and the first fits placed are vectors.
    of_products = problem.of_products
    reserved = 2 + len(problem.beside.known)
    if more is not None:
        reserved += sum(of_products if name == "middle" else 1 for name in more) + 1
    counted = len(problem.labels) if fewest is None else fewest
    least = 2 if follow is not None else of_products + 2
    check_vectors(reserved + least, allowed(counted), counted)
    problem.means.send(group)
    try:
        search = _Search(problem, max_evaluations, allowed(counted) - reserved, cure)
        if problem.wide:
            search.notes.append(NOTE_ON_WIDE)
        search.predicts = follow is not None and not search.affords(_TIMES)
        found = search.maximum(penalised=follow is not None)
        fit = search.fit(found) if follow is None else search.followed(found, follow)
        if more is not None:
            spare = allowed(counted) - reserved - problem.vectors
            fit = _with_residuals(problem, fit, follow, more, spare)
        return fit
    finally:
        problem.means.close()


def vectors_of_fit(n_columns: int) -> int:
    """Return how many vectors suffice for most fits: labels, information, and 13 evaluations."""
    return 15 + vectors_of_products(n_columns)


def check_vectors(needed: int, allowed: int, n_rows: int) -> None:
    """Refuse a fit before its first evaluation if parties would refuse it in the midst."""
    if allowed < needed:
        raise DataError(
            f"a fit multiplies columns with {needed} vectors at least, the labels among them, and "
            f"parties allow {allowed} with a set of {n_rows:,} of their rows: align more samples, "
            "or have every party raise 'vectors' in its policy, which is one for ten rows where "
            "an owner states none"
        )


def _with_residuals(
    problem: MeanProblem,
    fit: MeanFit,
    follow: Callable[[MeanFit], tuple[float, Array]] | None,
    more: Collection[str],
    spare: int,
) -> MeanFit:
    """Open sums over squared residuals at the last coefficients, and the information there.

    `spare`: with so many vectors more the parties multiply columns: for the information, which else
    stays that of a step before, and for more digits.
    """
    last = problem.own(*((fit.level, fit.beta) if follow is None else follow(fit)))
    residuals = problem.residuals(float(last[0]), last[1:])
    information, of_products = fit.information, problem.of_products
    if spare >= of_products:
        information, spare = residuals.information(information), spare - of_products
    middle = residuals.middle(again=spare >= of_products) if "middle" in more else None
    if middle is not None:
        unused = np.append(False, ~fit.varies)
        middle = np.where(np.logical_or.outer(unused, unused), 0.0, middle)
    sums = {name: MORE[name](residuals) for name in more if name != "middle"}
    return replace(fit, information=information, middle=middle, sums=sums)


class _Search:
    """Evaluations one after the other, within what rounds and parties allow."""

    def __init__(self, problem: MeanProblem, evaluations: int, vectors: int, cure: str) -> None:
        self._problem, self._cure = problem, cure
        self._evaluations, self._vectors = evaluations, vectors
        self.predicts = False  # Whether the information is asked for at the end alone
        self.notes: list[str] = []

    def affords(self, times: int, after: int = 0) -> bool:
        """Tell whether an evaluation and so many informations may follow, or all evaluations.

        `after`: so many other vectors.
        """
        problem = self._problem
        evaluations = 1 if problem.evaluations else _MOST_OF_MAXIMUM
        needed = evaluations + times * (problem.of_products + 1)
        return self._vectors - problem.vectors - after >= needed

    @property
    def _left(self) -> int:
        """How many evaluations may follow, what is opened at the last not forgotten."""
        problem = self._problem
        vectors = self._vectors - problem.vectors - 1
        if not self.predicts:
            vectors -= problem.of_products
        return min(self._evaluations - problem.evaluations, vectors)

    def maximum(self, penalised: bool) -> MeanMaximum:
        """Find the maximum of the likelihood, with a ridge on slopes that have none."""
        problem, start = self._problem, None
        watch = Watch(problem, self.notes)
        while True:
            try:
                found = maximise(
                    problem.family,
                    problem.moments,
                    problem,
                    max_evaluations=max(self._left, 1),
                    ridge=problem.ridge,
                    start=start,
                    watch=watch,
                    exact=not self.predicts,
                )
                slopes, lost = found.slopes, without_maximum(problem, found)
                if not len(lost):
                    return found
                apart = all_apart(problem, found)
            except OutOfReachError as error:
                slopes, apart = error.tried[1:], True
            if self._left < 1:
                raise DataError(
                    f"{refusal(problem, slopes, self._cure)}; to go on without it takes more "
                    "vectors than parties allow (policy key 'vectors')"
                )
            if not apart:
                watch.bound(lost)
                start = replace(found, slopes=np.where(problem.bounded, slopes / 2.0, slopes))
            elif penalised and problem.family.name == "binomial" and not problem.bounded.all():
                self.notes = [note_on_all(problem, slopes)]
                problem.bound(np.arange(len(slopes)), RIDGE)
                start = None
            else:
                raise DataError(refusal(problem, slopes, self._cure))

    def followed(
        self, found: MeanMaximum, follow: Callable[[MeanFit], tuple[float, Array]]
    ) -> MeanFit:
        """Expand the likelihood about what a penalty makes of it until that stays."""
        problem = self._problem
        while True:
            fit = self.fit(found)
            to = problem.own(*follow(fit))
            step = to - found.around
            curved = found.information + np.diag(np.append(0.0, 2.0 * problem.ridge))
            fit = replace(fit, distance=float(np.sqrt(max(float(step @ curved @ step), 0.0))))
            stays = fit.distance < _STAYS
            if stays and found.exact:
                return fit
            # Not yet, if it may be asked for later, after an evaluation and the cumulant.
            exact = self.affords(1) and (stays or self.affords(2) or not self.affords(1, after=2))
            self.predicts = not exact
            following = None
            if self._left >= 1 and (exact or not stays):
                following = expanded(
                    problem.family, problem.moments, problem, to, problem.ridge, exact
                )
            if following is None:
                notes = () if found.exact else (_NOTE_ON_PREDICTED,)
                return replace(fit, notes=fit.notes + notes)
            found = following

    def fit(self, found: MeanMaximum) -> MeanFit:
        """Return the fit in the columns' own units."""
        fit = self._problem.fit(found)
        return replace(fit, evaluations=self._problem.evaluations, notes=tuple(self.notes))
