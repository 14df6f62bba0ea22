"""Mechanisms that count: integer noise itself, and the margins of synthetic tables."""

from collections.abc import Callable
from functools import partial
from math import ceil

import numpy as np

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.privacy import (
    Keystream,
    gaussian_integers,
    gaussian_sigma,
    laplace_integers,
    rational,
)
from simulations.audits.mechanism import Mechanism, each_run, laplace_loss
from strategies.copula.margins import (
    Domain,
    Margin,
    continuous_margin,
    discrete_margin,
    level_margin,
    noisy_counts,
)
from strategies.copula.tree import tree_margin

EPSILON = 1.0
DELTA = 0.05  # so large that outcomes which attain epsilon are not rare

_FEW, _MANY = 20, 2_000  # counts of levels; beside many rows, noise hardly moves the total
_LEVELS = ([_FEW, _FEW, _MANY], [_FEW + 1, _FEW - 1, _MANY])
_KNOTS = 2


def mechanisms() -> list[Mechanism]:
    """Return them all."""
    moved = "a row of the second level has the first"
    found = [
        Mechanism("a count with integer Laplace noise", "a row is there", EPSILON, _laplace,
                  tight=True),
        Mechanism("a sum with integer Gaussian noise", "a row adds 10", EPSILON, _gaussian,
                  DELTA, tight=True),
        Mechanism("level_margin", moved, EPSILON, partial(_levels, _level_margin), tight=True,
                  cost=3),
        Mechanism("level_margin, rare levels merged", "a row of a rare level has the other",
                  EPSILON, _rare, cost=4),
        Mechanism("discrete_margin", moved, EPSILON, partial(_levels, _discrete_margin),
                  tight=True, cost=3),
    ]  # fmt: skip
    # Of the l + 1 coefficients the last is always n: what the paper counts cannot be attained.
    found += [
        Mechanism(f"counts of a Bernstein margin, {noise}", "the lowest value is the highest",
                  EPSILON, partial(_bernstein, noise), tight=noise == "increments")
        for noise in ("increments", "coefficients")
    ]  # fmt: skip
    found += [
        Mechanism(name, "the odd one of seven values, half of them 0 and half 3", EPSILON,
                  partial(_margin, estimate, low), cost=8)
        for name, estimate, low in MARGINS
    ]  # fmt: skip
    return found


def _laplace(table: int, n_runs: int, stream: Keystream) -> Array:
    return table + laplace_integers(1 / rational(EPSILON), n_runs, stream).astype(float)


def _gaussian(table: int, n_runs: int, stream: Keystream) -> Array:
    sigma = ceil(10 * gaussian_sigma(EPSILON, DELTA))
    return 10 * table + np.array(gaussian_integers(sigma, n_runs, stream), dtype=float)


def _level_margin(codes: Integers, stream: Keystream) -> Margin:
    return level_margin(codes, 3, EPSILON, stream, least=0, other=None).margin


def _discrete_margin(codes: Integers, stream: Keystream) -> Margin:
    return discrete_margin(codes, 0, 3, EPSILON, stream)


@each_run
def _levels(
    estimate: Callable[[Integers, Keystream], Margin], table: int, stream: Keystream
) -> float:
    """Read the two small noisy counts from the shares, whose total noise hardly moves."""
    codes = np.repeat(np.arange(3), _LEVELS[table])
    shares = np.diff(estimate(codes, stream).cumulative, prepend=0.0)
    noisy = np.rint(shares[:2] * len(codes))
    return laplace_loss(noisy, *(counts[:2] for counts in _LEVELS))


@each_run
def _rare(table: int, stream: Keystream) -> float:
    """Count which names of levels are told: one row has the rare level, or none."""
    codes = np.repeat(np.arange(3), [30, 1 - table, 30 + table])
    made = level_margin(codes, 3, EPSILON, stream, least=4, other=None)
    return float(1.0 in made.margin.values) + float(made.margin.cumulative[0])


@each_run
def _bernstein(noise: str, table: int, stream: Keystream) -> float:
    """Compare noisy counts below knots; all that follows is made of them."""
    exact = [np.arange(1, _KNOTS + 2) * 10, np.arange(1, _KNOTS + 2) * 10]
    exact[1][:-1] -= 1
    parts = [noisy_counts(exact[table].astype(np.int64), EPSILON, stream, noise), *exact]
    if noise == "increments":
        parts = [np.diff(part, prepend=0) for part in parts]
    return laplace_loss(*parts)


def _tree(domain: Domain, values: Array, stream: Keystream) -> Margin:
    return tree_margin(values, domain, EPSILON, stream)


def _polynomial(noise: str, values: Array, stream: Keystream) -> Margin:
    return continuous_margin(values, 0.0, 3.0, EPSILON, stream, noise=noise, l=4)


MARGINS: list[tuple[str, Callable[[Array, Keystream], Margin], float]] = [
    ("tree_margin, whole numbers", partial(_tree, Domain(0.0, 3.0, 1.0)), 0.5),
    ("tree_margin, fractions", partial(_tree, Domain(0.0, 3.0)), 0.5),
    ("continuous_margin, increments", partial(_polynomial, "increments"), 0.5),
    ("continuous_margin, coefficients", partial(_polynomial, "coefficients"), 0.5),
]
"""Margins of numbers from 0 to 3: name, estimate, and the value whose share tells tables apart."""


@each_run
def _margin(
    estimate: Callable[[Array, Keystream], Margin], at: float, table: int, stream: Keystream
) -> float:
    """Compare the share below a value."""
    values = np.array([0.0] * 3 + [3.0] * 3 + [0.0 if table == 0 else 3.0])
    margin = estimate(values, stream)
    return float(np.interp(at, margin.values, margin.cumulative))
