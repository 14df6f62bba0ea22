"""What means in place of missing columns do to coefficients and errors, and its correction.

Of a row that the parties o hold, the model sees ``x^ = m + F_o (x - m)``: their columns, and of
others the means that were told. With ``x ~ N(m, Sigma)`` it is normal, and given it, ``eta = level
+ beta'(x - m)`` still varies. So labels 0 and 1 have coefficients b that are too small, counts an
intercept that is too large. ``x^ - m`` has the mean d_o and the covariance S_o in these rows, 0 and
``V_o = F_o Sigma F_o'`` where they are missing by chance alone; x has there the covariance ``Sigma
+ S_o - V_o``, and ``A_o = F_o Sigma + S_o - V_o`` with x^. Stein's lemma gives the equations that b
solves on average, with the numbers n_o of rows,

    sum of n_o E[1, x^ - m] mu(N(level + beta'd_o, beta' (Sigma + S_o - V_o) beta))
    = sum of n_o E[1, x^ - m] mu(N(level_b + b'd_o, b' S_o b));

they are solved for level and beta (indirect inference: Gourieroux, Monfort and Renault, 1993).
Errors are those of b by a sandwich (White, 1982) whose middle follows from the model, times the
derivative of the solution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy

from flwr_vertical.arrays import Array, Flags
from strategies.linear.families import Family
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.linear import dependent_columns
from strategies.normal.equations import Conditioner, JointModel
from strategies.normal.labelled_server import LabelledCompletion

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_STEP = 1e-3  # of derivatives, in standard errors
_COPIED = 2e-3
"""Of a column's variance over rows that two parties hold: less is the error of taking away as many
completed rows."""


@dataclass(frozen=True)
class Unseen:
    """Rows of a fit by who holds them, and the distribution of the columns.

    Shapes: mean (n_columns,); covariance (n_columns, n_columns): in the units of the coefficients;
    maps (n_patterns, n_columns, n_columns): F of each; n_rows (n_patterns,); moved (n_patterns,
    n_columns), seen (n_patterns, n_columns, n_columns): d and S of each.
    """

    family: Family
    mean: Array
    covariance: Array
    maps: Array
    n_rows: Array
    moved: Array
    seen: Array

    @property
    def any(self) -> bool:
        """Whether some column is missing somewhere."""
        return bool((self.maps != np.eye(len(self.mean))).any())

    def corrected(
        self, intercept: float, beta: Array, covariance: Array
    ) -> tuple[Array, float, Array] | None:
        """Return coefficients, intercept and their covariance without the error of means.

        Shapes: beta (n_columns,): 0 of columns that are not in the model; covariance (1 + n_chosen,
        1 + n_chosen): of intercept and the others, if rows were complete; returns the same; None
        where there is no solution.
        """
        chosen = np.flatnonzero(beta)
        at = _Chosen(self, chosen)
        center = np.eye(1 + len(chosen))
        center[0, 1:] = at.mean  # of the level at the mean, not at 0
        plugged = center @ np.append(intercept, beta[chosen])
        found = at.solve(plugged)
        if found is None:
            return None
        back = np.linalg.inv(center)
        told = np.zeros_like(beta)
        level, told[chosen] = (back @ found)[0], found[1:]
        inner = center @ covariance @ center.T
        steps = _STEP * np.sqrt(np.maximum(np.diag(inner), 1e-300))
        of_found, of_plugged = at.slopes(found, steps, True), at.slopes(plugged, steps, False)
        try:
            turn = back @ np.linalg.solve(of_found, of_plugged) @ inner
        except np.linalg.LinAlgError:
            return None
        return told, float(level), np.asarray(turn @ at.middle(plugged, found) @ turn.T)


def maps_of(model: JointModel, slices: Sequence[slice], held: Flags) -> tuple[Array, Array]:
    """Return F of each set of rows: what columns are given those of the parties that hold it.

    Shapes: held (n_patterns, n_parties); returns (n_patterns, n_columns, n_columns), and the
    variance of rounding, (n_patterns, n_columns).
    """
    conditioner = Conditioner(model, slices)
    maps = np.zeros((len(held), *model.covariance.shape))
    rounding = np.zeros((len(held), len(model.mean)))
    for own, found, rounded in zip(held, maps, rounding, strict=True):
        helpers, lacking = np.flatnonzero(own).tolist(), np.flatnonzero(~own).tolist()
        for h in helpers:
            found[slices[h], slices[h]] = np.eye(slices[h].stop - slices[h].start)
        for k, part in conditioner.given(helpers, lacking).items() if lacking else ():
            for h, coefficients in part.coefficients.items():
                found[slices[k], slices[h]] = coefficients.T
            rounded[slices[k]] = len(helpers) * part.unit**2 / 12.0
    return maps, rounding


def moments_of_sets(
    completing: LabelledCompletion, maps: Array, held: Flags
) -> tuple[Array, Array]:
    """Return d and S of each set of rows: where completed columns lie, about the model's mean.

    Shapes: maps (n_patterns, n_columns, n_columns), held (n_patterns, n_parties): of `maps_of`;
    returns (n_patterns, n_columns) and (n_patterns, n_columns, n_columns).
    """
    model = completing.model
    moved, seen = np.zeros(maps.shape[:2]), np.zeros_like(maps)
    for p, (own, turn) in enumerate(zip(held, maps, strict=True)):
        mean, covariance = completing.lacking.of(own, model.mean, model.covariance)
        moved[p], seen[p] = turn @ (mean - model.mean), turn @ covariance @ turn.T
    return moved, seen


def copied(opened: OpenedMoments, model: JointModel) -> Flags:
    """Tell which columns follow from an earlier party's, over the rows that both hold.

    Completed rows hide that. With the shares w_o of rows and the covariance V_o of ``x^``, rounding
    included, the covariance over these rows is that of all rows, less the sum of ``w_o V_o`` over
    the others, divided by the share of these.

    Shapes: returns (n_columns,).
    """
    inside = opened.groups.group >= 0
    held, counts = np.unique(~opened.problem.mask[inside], axis=0, return_counts=True)
    moments = opened.offered.moments
    sums, products = moments.sums[0] / counts.sum(), moments.products[0] / counts.sum()
    slices, share = list(opened.parties.values()), counts / counts.sum()
    maps, rounding = maps_of(model, slices, held)
    seen = maps @ model.covariance @ maps.swapaxes(1, 2)
    weighted = share[:, None, None] * (seen + rounding[:, None] * np.eye(len(model.mean)))
    found = np.zeros(len(model.mean), dtype=bool)
    for first, second in combinations(range(len(slices)), 2):
        both = held[:, first] & held[:, second]
        if not both.any() or both.all():
            continue
        whole = products - np.outer(sums, sums) - weighted[~both].sum(axis=0)
        varies = np.flatnonzero(np.diag(whole) > 0.0)
        size = np.sqrt(np.diag(whole)[varies])
        correlation = whole[np.ix_(varies, varies)] / np.outer(size, size)
        lacking = float(share[~both].sum())
        least = _COPIED * min(lacking / (1.0 - lacking), 1.0)
        of_first, of_second = (
            np.flatnonzero((own.start <= varies) & (varies < own.stop))
            for own in (slices[first], slices[second])
        )
        together = np.append(of_first, of_second)
        follows, alone = (
            dependent_columns(correlation[np.ix_(at, at)], np.ones(len(at)), least)
            for at in (together, of_second)
        )
        found[varies[of_second]] |= follows[len(of_first) :] & ~alone
    return found


class _Chosen:
    """The same for the columns that a model has."""

    def __init__(self, rows: Unseen, chosen: Any) -> None:
        self.mean, self._n_rows = rows.mean[chosen], rows.n_rows
        self._family, at = rows.family, np.ix_(chosen, chosen)
        self._size = np.sqrt(np.diag(rows.covariance)[chosen])
        across = rows.maps[:, chosen] @ rows.covariance
        by_chance = across @ rows.maps[:, chosen].swapaxes(1, 2)  # V of each
        self._moved, self._seen = rows.moved[:, chosen], rows.seen[:, *at]
        self._across = across[:, :, chosen] + self._seen - by_chance  # A of each
        self._whole = rows.covariance[at] + self._seen - by_chance

    def sums(self, at: Array, whole: bool) -> Array:
        """Return expected sums of means, and of columns less their mean times means.

        Shapes: at (1 + n_chosen,): level and coefficients, of the columns if `whole`, else of what
        the model sees; returns the same.
        """
        b, out = at[1:], np.zeros(len(at))
        patterns = self._n_rows, self._moved, self._whole if whole else self._seen
        for n, moved, spread, along in zip(
            *patterns, self._across if whole else self._seen, strict=True
        ):
            eta = at[0] + moved @ b + np.sqrt(max(float(b @ spread @ b), 0.0)) * _NODES
            mean = n * float(_WEIGHTS @ self._family.mean(eta))
            slope = n * float(_WEIGHTS @ self._family.variance(eta))  # of the canonical link
            out[0] += mean
            out[1:] += mean * moved + slope * (along @ b)
        return out

    @np.errstate(all="ignore")  # steps may go far
    def solve(self, plugged: Array) -> Array | None:
        """Return level and coefficients for those of means in place of columns."""
        target, unit = self.sums(plugged, False), np.append(1.0, self._size)
        if not (len(self._size) and np.isfinite(target).all()):
            return None if len(self._size) else plugged

        def missed(at: Array) -> Array:  # in units of standard deviations
            return np.asarray((self.sums(at / unit, True) - target) / (unit * target[0]))

        found = scipy.optimize.root(missed, plugged * unit, tol=1e-12)
        return found.x / unit if np.abs(found.fun).max() < 1e-8 else None

    def slopes(self, at: Array, steps: Array, whole: bool) -> Array:
        """Return the derivative of `sums`; steps (1 + n_chosen,)."""
        moved = np.diag(steps)
        with np.errstate(all="ignore"):
            changes = [self.sums(at + d, whole) - self.sums(at - d, whole) for d in moved]
        return np.asarray(np.stack(changes, axis=1) / (2.0 * steps))

    def middle(self, plugged: Array, found: Array) -> Array:
        """Return the covariance of the score at `plugged`; (1 + n_chosen, 1 + n_chosen)."""
        mean, b, beta = self._family.mean, plugged[1:], found[1:]
        out = np.zeros((1 + len(b), 1 + len(b)))
        patterns = self._n_rows, self._moved, self._seen, self._across, self._whole
        for n, center, part, across, whole in zip(*patterns, strict=True):
            spread = max(float(b @ part @ b), 1e-300)
            moved = np.sqrt(spread) * _NODES  # b'(x^ - m - d)
            along = part @ b / spread
            # Linear predictors of rows with these means, and how far they vary.
            slope = float(b @ across @ beta) / spread
            eta = found[0] + float(beta @ center) + slope * moved
            left = float(beta @ whole @ beta) - slope**2 * spread
            each = np.asarray(mean(eta[:, None] + np.sqrt(max(left, 0.0)) * _NODES))
            told = each @ _WEIGHTS
            square = told if self._family.name == "binomial" else told + each**2 @ _WEIGHTS
            fitted = mean(plugged[0] + float(b @ center) + moved)
            error = _WEIGHTS * (square - 2.0 * told * fitted + fitted**2)  # E (y - fitted)^2
            columns = np.column_stack([np.ones(len(moved)), center + np.outer(moved, along)])
            out += n * columns.T @ (error[:, None] * columns)
            out[1:, 1:] += n * error.sum() * (part - np.outer(along, along) * spread)
        return out
