"""Binomial and Poisson models by maximum likelihood, nothing of a sample opened.

An evaluation takes two rounds, the information one. Under a penalty that shrinks coefficients, the
likelihood is evaluated where these end, one time after the other (`follow`), and the information is
opened where they stay, if parties allow enough vectors.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.counted import counted
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
from strategies.linear.masked_means.solver import Expansions, MeanMaximum, OutOfReachError, maximise

_STAYS = 0.01
"""Standard errors to the next coefficients at which these are the last: they are a step of Newton's
method, which leaves about the square."""
_NEAR = 0.1
"""Standard errors from where the information was asked for within which it is not asked anew."""
_NOTE_ON_PREDICTED = (
    "parties allow too few vectors (policy key 'vectors', one for ten rows where an owner states "
    "none) for products of columns weighted by the labels' variance, so standard errors go by what "
    "normal columns would have"
)
MORE = {
    "pearson": ResidualSums.pearson,
    "squares": ResidualSums.squares,
    "squared means": ResidualSums.squared_means,
}
"""Sums over squared residuals, beside ``middle``, that of robust errors."""


Follow = Callable[[MeanFit, bool | None], tuple[float, Array]]
"""What a penalty makes of a fit, and whether it keeps its choices from now on; None: it forgets
them."""


def fit_mean_model(
    problem: MeanProblem,
    group: Indices,
    *,
    max_evaluations: int = 40,
    follow: Follow | None = None,
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
        fit = search.fit(search.maximum()) if follow is None else search.followed(follow)
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
            f"a fit multiplies columns with {counted(needed, 'vector')} at least, the labels "
            "among them, and "
            f"parties allow {allowed} with a set of {n_rows:,} of their rows: align more samples, "
            "or have every party raise 'vectors' in its policy, which is one for ten rows where "
            "an owner states none"
        )


def _with_residuals(
    problem: MeanProblem, fit: MeanFit, follow: Follow | None, more: Collection[str], spare: int
) -> MeanFit:
    """Open sums over squared residuals at the last coefficients, and the information there.

    `spare`: with so many vectors more the parties multiply columns: for the information, which else
    stays that of a step before, and for more digits.
    """
    last = problem.own(*((fit.level, fit.beta) if follow is None else follow(fit, False)))
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
        self.notes: list[str] = []

    def _left(self, more: int) -> int:
        """How many evaluations may follow, so many other vectors beside them."""
        problem = self._problem
        vectors = self._vectors - problem.vectors - more
        return min(self._evaluations - problem.evaluations, vectors)

    def maximum(self) -> MeanMaximum:
        """Find the maximum of the likelihood, with a ridge on slopes that have none."""
        problem, start = self._problem, None
        watch, at_end = Watch(problem, self.notes), problem.of_products + 1
        while True:
            try:
                found = maximise(
                    problem.family,
                    problem.moments,
                    problem,
                    max_evaluations=max(self._left(at_end), 1),
                    ridge=problem.ridge,
                    start=start,
                    watch=watch,
                )
                slopes, lost = found.slopes, without_maximum(problem, found)
                if not len(lost):
                    return found
                apart = all_apart(problem, found)
            except OutOfReachError as error:
                slopes, apart = error.tried[1:], True
            if self._left(at_end) < 1:
                raise DataError(
                    f"{refusal(problem, slopes, self._cure)}; to go on without it takes more "
                    "vectors than parties allow (policy key 'vectors')"
                )
            if apart:
                raise DataError(refusal(problem, slopes, self._cure))
            watch.bound(lost)
            start = replace(found, slopes=np.where(problem.bounded, slopes / 2.0, slopes))

    def followed(self, follow: Follow) -> MeanFit:
        """Expand the likelihood about what a penalty makes of it until that stays."""
        problem, watch = self._problem, Watch(self._problem, self.notes)
        expansions, found = self._begun()
        told: Array | None = None  # Where the information was asked for
        anew = False  # Whether a ridge came since
        while True:
            fit = self.fit(found)
            # By the exact information the choice of a penalty is final.
            to = problem.own(*follow(fit, None if anew else found.exact))
            distance = self._errors(to - found.around, found)
            stays, more = distance < _STAYS, self._left(2) >= 1
            near = told is not None and self._errors(found.around - told, found) < _NEAR
            if (stays or not more) and not near and self._affords_information:
                found, told, anew = expansions.inform(), found.around, False
                continue
            bounded, following = problem.bounded.sum(), None
            if stays or not more:
                break
            whole = found.whole and not problem.bounded.all()
            if not (whole and all_apart(problem, found)):
                ridge = watch(to)
                if problem.bounded.sum() == bounded:
                    following = expansions.about(to, ridge)
            if following is None and problem.bounded.sum() == bounded:
                if problem.family.name != "binomial" or problem.bounded.all():
                    break
                # A penalty that is flat for large slopes does not bind them.
                slopes = np.maximum(np.abs(to), np.abs(found.around))[1:]
                self.notes[:] = [note_on_all(problem, slopes)]
                problem.bound(np.arange(len(slopes)), RIDGE)
            if anew := following is None:  # What was known without the ridge leads astray.
                if self._left(2) < 1:
                    break
                (expansions, following), told = self._begun(), None
            found = following
        fit = replace(self.fit(expansions.finish(found)), distance=distance)
        return fit if found.exact else replace(fit, notes=(*fit.notes, _NOTE_ON_PREDICTED))

    def _begun(self) -> tuple[Expansions, MeanMaximum]:
        """Expand the likelihood about least squares."""
        problem = self._problem
        expansions = Expansions(problem.family, problem.moments, problem)
        try:
            return expansions, expansions.start(problem.ridge, RIDGE, self._left(1))
        except OutOfReachError as error:
            raise DataError(refusal(problem, error.tried[1:], self._cure)) from error

    def _errors(self, step: Array, found: MeanMaximum) -> float:
        """Return the length of a step in standard errors."""
        curved = found.information + np.diag(np.append(0.0, 2.0 * self._problem.ridge))
        return float(np.sqrt(max(float(step @ curved @ step), 0.0)))

    @property
    def _affords_information(self) -> bool:
        problem = self._problem
        return self._vectors - problem.vectors >= problem.of_products + 1

    def fit(self, found: MeanMaximum) -> MeanFit:
        """Return the fit in the columns' own units."""
        fit = self._problem.fit(found)
        return replace(fit, evaluations=self._problem.evaluations, notes=tuple(self.notes))
