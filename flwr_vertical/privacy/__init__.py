"""Differential privacy: where its noise comes from, and what a release spends.

Attacks on synthetic tables are in `flwr_vertical.privacy.attacks`.
"""

from flwr_vertical.privacy.accounting import (
    ColumnSpending,
    PrivacyStatement,
    count_columns,
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
from flwr_vertical.privacy.laplace import laplace_integers, rational

__all__ = [
    "KEY_BYTES",
    "ColumnSpending",
    "Keystream",
    "PrivacyStatement",
    "count_columns",
    "fresh_keystream",
    "laplace_integers",
    "noise_is_seeded",
    "rank_error",
    "rational",
    "seeded_noise",
    "split_budget",
]
