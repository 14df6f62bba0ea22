"""Differential privacy: where its noise comes from, and what a release spends.

Attacks on synthetic tables are in `flwr_vertical.grading.risks`.
"""

from flwr_vertical.privacy.accounting import (
    ColumnSpending,
    PrivacyStatement,
    rank_error,
    split_budget,
)
from flwr_vertical.privacy.keystream import (
    KEY_BYTES,
    Keystream,
    fresh_keystream,
    noise_is_seeded,
    seeded_noise,
)
from flwr_vertical.privacy.noise import (
    MOST_DELTA,
    gaussian_delta,
    gaussian_integers,
    gaussian_sigma,
    laplace_integers,
    rational,
)
from flwr_vertical.privacy.statement import (
    MomentStatement,
    TableStatement,
    parse_bounds,
    read_bounds,
)

__all__ = [
    "KEY_BYTES",
    "MOST_DELTA",
    "ColumnSpending",
    "Keystream",
    "MomentStatement",
    "PrivacyStatement",
    "TableStatement",
    "fresh_keystream",
    "gaussian_delta",
    "gaussian_integers",
    "gaussian_sigma",
    "laplace_integers",
    "noise_is_seeded",
    "parse_bounds",
    "rank_error",
    "rational",
    "read_bounds",
    "seeded_noise",
    "split_budget",
]
