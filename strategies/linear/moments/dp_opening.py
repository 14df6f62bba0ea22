"""What opening moments has to do with noise: the budget, public ranges, the server's own part.

The server half reads the label's range, a party half those of its columns. Ranges, column names,
numbers of rows, and who holds which row are public; values are not.

The parties' noise hides their columns from the server. Towards everybody else, the parties
included, the coefficients must hide the labels as well, and each party knows its own noise. So the
server adds the full noise to every sum with labels in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import (
    KEY_BYTES,
    fresh_keystream,
    gaussian_integers,
    parse_bounds,
    read_bounds,
)
from flwr_vertical.products import Moments
from flwr_vertical.products.noise import PRODUCTS, VECTORS, PrivateRows
from flwr_vertical.products.row_groups import RowGroups

LABEL = "label"


@dataclass(frozen=True)
class FitBudget:
    """Settings of a differentially private fit."""

    epsilon: float  # Of all that a run opens, for the values of one row over all parties
    delta: float
    row_norm: float  # Largest root mean square of a party's values of a row, in half ranges
    bounds: str  # Public ranges, JSON

    @classmethod
    def of(cls, settings: Any) -> "FitBudget | None":
        """Return what a strategy's settings say; None if sums are opened as they are."""
        if settings.epsilon is None:
            return None
        bounds = read_bounds(settings.bounds)
        return cls(settings.epsilon, settings.delta, settings.row_norm, bounds)

    @property
    def rule(self) -> PrivateRows:
        """The noise that it takes."""
        return PrivateRows(self.epsilon, self.delta, self.row_norm)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the parties are told."""
        return dict(vars(self))

    def label_range(self, name: object) -> tuple[float, float]:
        """Return the range of the labels."""
        stated = parse_bounds(self.bounds)
        names = dict.fromkeys((str(name), LABEL))
        for key in names:
            if key in stated:
                return stated[key]
        raise ConfigError(
            "epsilon needs public bounds of the label, and bounds has none named "
            f"{' or '.join(map(repr, names))}; add bounds={{{LABEL!r}: [low, high]}}, from general "
            "knowledge and not from these data"
        )


def check_budget(settings: Any) -> None:
    """Refuse settings of a strategy that do not go together."""
    idle = {"bounds": bool(settings.bounds), "row_norm": settings.row_norm != 1.0}
    given = [name for name, stated in idle.items() if stated]
    if settings.epsilon is None and given:
        raise ConfigError(f"{', '.join(given)}: only with epsilon; state both, or neither")


def column_ranges(bounds: str, columns: Sequence[str], party: str) -> tuple[Array, Array]:
    """Return lowest and highest values of a party's columns."""
    stated = parse_bounds(bounds)
    missing = [name for name in columns if name not in stated]
    if missing:
        raise ConfigError(
            f"party {party!r}: epsilon needs public bounds of each column, and {missing} have "
            f"none; add bounds={{{missing[0]!r}: [low, high]}}, from general knowledge and not "
            "from these data"
        )
    found = np.array([stated[name] for name in columns], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def middle_and_half(low: Array, high: Array, intercept: bool) -> tuple[Array, Array]:
    """Return centre and unit of columns in which they go from -1 to 1.

    Without an intercept the centre is 0, since the fit is to columns as they are.
    """
    center = (low + high) / 2.0 if intercept else np.zeros_like(low)
    return center, np.maximum(high - center, center - low)


def brought_in(raw: Array, low: Array, high: Array, row_norm: float, intercept: bool) -> Array:
    """Return columns in half ranges, none beyond its range and no row beyond the norm.

    Shapes: raw (n_rows, n_columns); low, high (n_columns,).
    """
    center, unit = middle_and_half(low, high, intercept)
    inside = (np.clip(raw, low, high) - center) / unit
    size = np.sqrt(np.mean(inside**2, axis=1, keepdims=True))
    return np.asarray(inside * np.minimum(1.0, row_norm / np.maximum(size, 1e-300)))


_GRID = 40
"""Binary digits of a standard deviation: noise is in whole numbers of that share of it."""


@dataclass(frozen=True)
class LabelMoments:
    """Sums of the labels of one group of rows."""

    with_columns: Array  # (n_columns,): products with each column
    total: float
    square: float  # Sum of squares
    variances: tuple[float, float, float]  # Of the noise on each of the three


def server_noise(label: str, key: bytes) -> Callable[[float, float], float]:
    """Return what adds noise of a standard deviation to a number."""
    stream = fresh_keystream(label, key)

    def noisy(value: float, sigma: float) -> float:
        unit = sigma * 2.0**-_GRID
        (drawn,) = gaussian_integers(2**_GRID, 1, stream)
        return (round(value / unit) + drawn) * unit

    return noisy


def noisy_label_sums(
    rule: PrivateRows,
    widths: Sequence[int],
    present: Flags,
    with_columns: Array,
    totals: Array,
    squares: Array,
    key: bytes,
) -> list[LabelMoments]:
    """Add the server's noise.

    Shapes: present (n_groups, n_parties): whose columns are in the sums of a group; with_columns
    (n_groups, n_columns): as opened, with the parties' noise; totals, squares (n_groups,): of
    labels brought to [-1, 1].
    """
    noisy = server_noise("server labels", key)
    levels = rule.levels(widths, present, 1)[:, VECTORS]
    of_total, of_square = rule.of_vectors(widths, present, 1)
    return [
        LabelMoments(
            np.array([noisy(float(value), level) for value in with_columns[g]]),
            noisy(float(totals[g]), float(of_total[g])),
            noisy(float(squares[g]), float(of_square[g])),
            (float(level) ** 2, float(of_total[g]) ** 2, float(of_square[g]) ** 2),
        )
        for g, level in enumerate(levels)
    ]


@dataclass(frozen=True)
class GroupNoise:
    """Noise on the moments of one group of rows."""

    # (n_z, n_z): of the elements of E, over (1, observed columns, label); symmetric, 0 for the
    # number of rows
    variance: Array
    # (n_columns + 2, n_z): A row of the fit is ``turn @ z``: columns about their means, 0 where
    # missing
    turn: Array

    def of_products(self, vector: Array) -> Array:
        """Return the covariance of ``turn E turn' vector``."""
        own = self.turn.T @ vector
        inner = self.variance * np.outer(own, own)
        inner[np.diag_indices_from(inner)] = self.variance @ own**2
        return np.asarray(self.turn @ inner @ self.turn.T)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Return draws of ``turn E turn'``, shape (count, n_columns + 2, n_columns + 2)."""
        drawn = np.triu(rng.normal(size=(count, *self.variance.shape)) * np.sqrt(self.variance))
        symmetric = drawn + np.triu(drawn, 1).swapaxes(1, 2)
        return np.asarray(self.turn @ symmetric @ self.turn.T)


def label_sums(
    federation: Federation,
    budget: FitBudget,
    moments: Moments,
    groups: RowGroups,
    y: Array,
    widths: list[int],
) -> list[LabelMoments]:
    """Add the server's noise to the labels' sums, of each group and of the rows that tell nothing.

    The last are those in no group, and in groups of which no column is told.
    """
    told = [not withheld.all() for withheld in moments.withheld]
    rows = [y[(groups.group == g) & told[g]] for g in range(len(groups.mask))]
    rows.append(y[~np.isin(groups.group, np.flatnonzero(told))])
    nobody = np.zeros((1, groups.mask.shape[1]), dtype=bool)
    return noisy_label_sums(
        budget.rule,
        widths,
        np.concatenate([~groups.mask, nobody]),
        np.concatenate([moments.with_vectors[:, :, 0], np.zeros((1, sum(widths)))]),
        np.array([own.sum() for own in rows]),
        np.array([own @ own for own in rows]),
        federation.random_bytes(KEY_BYTES),
    )


def with_server_noise(
    federation: Federation,
    budget: FitBudget,
    moments: Moments,
    groups: RowGroups,
    widths: list[int],
) -> Moments:
    """Add the server's noise to products of two parties' columns, where these have that of one.

    From ciphertexts the later party alone adds noise, and knows it.
    """
    key = federation.random_bytes(KEY_BYTES)
    owner = np.repeat(np.arange(len(widths)), widths)
    pairs = np.argwhere(owner[:, None] < owner[None, :])
    levels = budget.rule.levels(widths, ~groups.mask, 1)[:, PRODUCTS]
    products = moments.products.copy()
    noise = server_noise("server products", key)
    for g, level in enumerate(levels):
        for i, j in pairs:
            if not (moments.withheld[g, i] or moments.withheld[g, j]):
                products[g, i, j] = products[g, j, i] = noise(products[g, i, j], float(level))
    return replace(moments, products=products)


def group_noise(
    moments: Moments, labels: list[LabelMoments] | None, mean: Array, spread: Array
) -> list[GroupNoise] | None:
    """Return the noise on the moments of each group that is told of, of standardised columns."""
    sums, products, vectors = (
        moments.sums_variance,
        moments.products_variance,
        moments.vectors_variance,
    )
    if labels is None or sums is None or products is None or vectors is None:
        return None
    found = []
    for g, withheld in enumerate(moments.withheld):
        columns = np.flatnonzero(~withheld)
        if not len(columns):
            continue
        variance = np.zeros((len(columns) + 2, len(columns) + 2))
        inner, last = slice(1, len(columns) + 1), len(columns) + 1
        variance[0, inner] = variance[inner, 0] = sums[g][columns]
        variance[inner, inner] = products[g][np.ix_(columns, columns)]
        variance[last, inner] = variance[inner, last] = vectors[g][columns, 0]
        of_product, of_total, of_square = labels[g].variances
        variance[last, inner] += of_product
        variance[inner, last] += of_product
        variance[0, last] = variance[last, 0] = of_total
        variance[last, last] = of_square
        turn = np.zeros((len(mean) + 2, len(columns) + 2))
        turn[0, 0] = turn[-1, -1] = 1.0
        turn[1 + columns, 1 + np.arange(len(columns))] = 1.0 / spread[columns]
        turn[1 + columns, 0] = -mean[columns] / spread[columns]
        found.append(GroupNoise(variance, turn))
    _, of_total, of_square = labels[-1].variances
    turn = np.zeros((len(mean) + 2, 2))
    turn[0, 0] = turn[-1, -1] = 1.0
    found.append(GroupNoise(np.array([[0.0, of_total], [of_total, of_square]]), turn))
    return found
