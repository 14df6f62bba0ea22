"""Mechanisms of regressions: noise on sums of columns and labels, and on fits of a party."""

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.privacy import Keystream, seeded_noise
from flwr_vertical.products.arithmetic import Layout
from flwr_vertical.products.noise import SUMS, PrivateRows, draw
from simulations.audits.mechanism import Mechanism, each_run
from strategies.glm_admm.admm import BOUND, ColumnBlock, composed, noise_scale
from strategies.linear.moments.dp_opening import noisy_label_sums

EPSILON, DELTA = 2.0, 0.05

_RULE = PrivateRows(EPSILON, DELTA)
_BITS = 20
_ROWS = np.array([[1.0, 1.0], [-1.0, -1.0]])
"""The replaced row at both parties, in half ranges: as far apart as the bounds allow."""

_FIT_EPSILON = 1.0
_DESIGN = np.array([1.0, -1.0, 2.0, -2.0])[:, None]


def mechanisms() -> list[Mechanism]:
    """Return them all."""
    promised = composed(noise_scale(_FIT_EPSILON, DELTA), DELTA, 1)
    return [
        Mechanism("noisy sums: one party's noise", "a value goes from bound to bound", EPSILON,
                  _own_sums, DELTA, tight=True),
        Mechanism("noisy sums: what a party sees that takes its own noise off",
                  "all columns and the label change sign", EPSILON, _seen_by_a_party, DELTA,
                  cost=4),
        Mechanism('VFL-ADMM-DP: a fit, the columns being known', "the fit of a row, by the bound",
                  promised, _fit_of_known_columns, DELTA, cost=4),
        Mechanism('VFL-ADMM-DP: a fit, other rows being known', "a row of the columns", promised,
                  _fit_of_other_columns, DELTA, cost=4, holds=False),
    ]  # fmt: skip


@each_run
def _own_sums(table: int, stream: Keystream) -> float:
    """Draw noise of a party with one column, whose sum moves by the width of the bounds."""
    levels = _RULE.levels([1], np.ones((1, 1), dtype=bool), 0)
    drawn = draw(levels, _BITS, "a", Layout({"a": 1}), 0, [stream])
    return float(_ROWS[table, 0] + _float(drawn.sums[0], _BITS)[0])


@each_run
def _seen_by_a_party(table: int, stream: Keystream) -> float:
    """Two parties with a column each, and labels: b sees all sums, and knows its own noise.

    So a's noise is on the product of both columns, the server's as well on that of a's and labels.
    """
    layout = Layout({"a": 1, "b": 1})
    present = np.ones((1, 2), dtype=bool)
    levels = _RULE.levels([1, 1], present, 1)
    of_total, _ = _RULE.of_vectors([1, 1], present, 1)
    (a, b), y = _ROWS[table], (1.0, -1.0)[table]
    drawn = draw(levels, _BITS, "a", layout, 1, [stream])
    sums = a + _float(drawn.sums[0], _BITS)[0]
    with_a = a * y + _float(drawn.vectors[0], 2 * _BITS)[0, 0]
    key = stream.below(2**128).to_bytes(16, "little")
    with seeded_noise(stream.below(2**62)):
        (labels,) = noisy_label_sums(
            _RULE, [1, 1], present, np.array([[with_a, b * y]]), np.array([y]), np.array([y * y]),
            key,
        )  # fmt: skip
    return float(sums / levels[0, SUMS] ** 2 + labels.total / of_total[0] ** 2)


def _float(ring: Array, bits: int) -> Array:
    return np.asarray(ring).view(np.int64).astype(float) * 2.0**-bits


def _fit_of_known_columns(table: int, n_runs: int, stream: Keystream) -> Array:
    """Noise a fit that differs by twice the bound in the direction of the columns."""
    size = BOUND / float(np.linalg.norm(_DESIGN))
    found = _fits(_DESIGN, (1.0, -1.0)[table] * size, n_runs, stream)
    return np.asarray(found @ _DESIGN[:, 0])


def _fit_of_other_columns(table: int, n_runs: int, stream: Keystream) -> Array:
    """Solve the fits of known rows for the coefficient; it tells the last row's value."""
    design = _DESIGN.copy()
    design[-1] *= (1.0, -1.0)[table]
    fits = _fits(design, 0.1, n_runs, stream)
    return np.asarray(fits[:, -1] / (fits[:, 0] / design[0, 0]))


def _fits(design: Array, beta: float, n_runs: int, stream: Keystream) -> Array:
    block, sigma = ColumnBlock(design, np.zeros(1), "lasso"), noise_scale(_FIT_EPSILON, DELTA)
    found = []
    for _ in range(n_runs):
        key = stream.below(2**256).to_bytes(32, "little")
        found.append((design @ block.with_noise(np.array([[beta]]), sigma, key))[:, 0])
    return np.array(found)
