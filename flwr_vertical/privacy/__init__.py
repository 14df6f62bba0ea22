"""Differential privacy: where its noise comes from, and what a release spends."""

from flwr_vertical.privacy.accounting import (
    ColumnSpending,
    PrivacyStatement,
    rank_error,
    split_budget,
)
from flwr_vertical.privacy.attacks import (
    Advantage,
    attribute_inference,
    membership_inference,
)
from flwr_vertical.privacy.keystream import (
    Keystream,
    fresh_keystream,
    noise_is_seeded,
    seeded_noise,
)
from flwr_vertical.privacy.laplace import laplace_integers, rational

__all__ = [
    "Advantage",
    "ColumnSpending",
    "Keystream",
    "PrivacyStatement",
    "attribute_inference",
    "fresh_keystream",
    "laplace_integers",
    "membership_inference",
    "noise_is_seeded",
    "rank_error",
    "rational",
    "seeded_noise",
    "split_budget",
]
