"""Sums of normal labels that moments do not tell: products with weights, squared residuals.

A product of two columns with weights of the server is an information (`masked_means.information`)
where each linear predictor is 0, which one harmonic is exact for. Robust errors evaluate the
squared residuals at the chosen coefficients. Columns are in digits here, labels in units of their
standard deviation, weights of mean 1.
"""

from dataclasses import replace

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array
from flwr_vertical.policy.defaults import vectors_of_products
from flwr_vertical.products import PrivateProducts
from strategies.glm.approximation import Approximation
from strategies.linear.families import family_named
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans
from strategies.linear.masked_means.fit import check_vectors
from strategies.linear.masked_means.fixed_point import ByRow
from strategies.linear.masked_means.fourier import Expansion
from strategies.linear.masked_means.problem import Beside
from strategies.linear.masked_means.residuals import ResidualSums
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.patterns import Pattern

_ONE = Expansion(1, 0.0, np.zeros(1), np.ones(1), 0.0, 0.0)
"""1 where the linear predictor is 0."""


class NormalResiduals:
    """Masked means over the rows of a fit by moments; one round."""

    def __init__(
        self, federation: Federation, opened: OpenedMoments, beside: Beside | None, robust: bool
    ) -> None:
        assert isinstance(opened.products, PrivateProducts)  # see `check_federation`
        self._opened = opened
        inside = opened.groups.group >= 0
        self._y, n = opened.problem.y[inside], int(inside.sum())
        self._beside = beside or Beside.nothing(n)
        of_products, allowed = vectors_of_products(opened.n_columns), opened.allowed(n)
        # Labels, weights and the first fits placed are vectors.
        needed = 2 + len(self._beside.known) + (self._beside.weighted + robust) * of_products
        check_vectors(needed, allowed, n)
        self._again = allowed >= needed + of_products
        self._means = MaskedMeans(federation, opened.products.group_key)
        self._means.send(opened.groups.group)
        moments = opened.offered.moments
        self._n, self._mean = float(n), moments.sums[0] / n  # of the offered columns
        self._about_mean = np.zeros((1 + len(self._mean), 1 + len(self._mean)))
        self._about_mean[0, 0] = n
        self._about_mean[1:, 1:] = moments.products[0] - n * np.outer(self._mean, self._mean)

    def weighted(self, rows: Pattern, vector_unit: float) -> Pattern:
        """Return the moments of the rows times their weights; two rounds, none without weights."""
        weights, y, opened = self._beside.weights, self._y, self._opened
        if not self._beside.weighted:
            return rows
        placed = self._means.place(np.zeros(len(self._mean)))
        most = float(weights.max())
        sums = self._means.open_by_row(
            placed, 0.0, ByRow([_ONE], weights[None]), Bound(self._n * most, most),
            most * self._about_mean,
        )  # fmt: skip
        offered = opened.offered
        unit = opened.unit / offered.unit
        shift = self._mean - (opened.center - offered.center) / offered.unit
        across = np.outer(sums[0, 1:], shift)
        inner = sums[1:, 1:] + across + across.T + self._n * np.outer(shift, shift)
        with_label = vector_unit * offered.moments.with_vectors[0, :, 0]
        with_label = with_label - (self._mean - shift) * float(weights @ y)
        used = np.append(np.diag(rows.products)[:-1] > 0.0, True)
        total = np.append((sums[0, 1:] + self._n * shift) / unit, weights @ y)
        products = np.block(
            [
                [inner / np.outer(unit, unit), (with_label / unit)[:, None]],
                [(with_label / unit)[None], np.array([[weights @ y**2]])],
            ]
        )
        products = np.where(np.logical_and.outer(used, used), products, 0.0)
        # A column that stands for an intercept, see `usable_rows`, must not look like one left out.
        found = np.diag(products)
        products = products + np.diag(np.where(found == 0.0, np.diag(rows.products), 0.0))
        return replace(rows, sums=np.where(used, total, 0.0), products=products)

    def with_middle(self, at: Approximation, beta: Array, level: float) -> Approximation:
        """Return the likelihood with the middle of the sandwich at a fit; mostly three rounds."""
        offered, problem = self._opened.offered, self._opened.problem
        mean = offered.center + offered.unit * self._mean
        placed = self._means.place(beta * offered.unit / problem.y_scale)
        at_mean = (level + float(mean @ beta) - problem.y_center) / problem.y_scale
        weights = self._beside.weights
        middle = ResidualSums(
            self._means, family_named("gaussian"), self._y, weights, np.zeros_like(weights),
            placed, at_mean,
        ).middle(self._again)  # fmt: skip
        turn = np.diag(np.append(1.0, offered.unit))
        turn[0, 1:] = mean - at.center
        middle = problem.y_scale**2 * turn.T @ middle @ turn
        unused = np.append(False, at.scale == 0.0)
        middle[unused] = middle[:, unused] = 0.0
        return replace(at, middle=middle)

    def close(self) -> None:
        """Drop what could be read with the group seed."""
        self._means.close()
