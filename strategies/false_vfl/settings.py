"""The settings of FALSE-VFL, and who learns what."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from flwr_vertical.settings import setting
from strategies.false_vfl.networks import NetworkSettings
from strategies.neural.party import EMBEDDINGS
from strategies.neural.strategy import ImageStrategy, epochs, pretrain_epochs


class FalseVFLSettings(ImageStrategy):
    """What its strategy and both stages of training read."""

    variant: str = setting(
        "I",
        "I assumes that blocks are missing at random; II models whether a block is missing by its "
        "own columns.",
        choices=("I", "II"),
    )
    pretrain_epochs: int = pretrain_epochs(300)
    epochs: int = epochs(300)
    pretrain_batch_size: int = setting(512, "Samples of a step of pretraining.", at_least=1)
    pretrain_learning_rate: float = setting(5e-4, "Adam's, in pretraining.", above=0)
    importance_samples: int = setting(10, "Draws of a sample in training (kappa).", at_least=1)
    prediction_samples: int = setting(50, "Draws of a sample in prediction (L).", at_least=1)
    h_dim: int = setting(128, "Dimension of h, which parties and server share.", at_least=1)
    z_dim: int = setting(64, "Dimension of z.", at_least=1)
    party_layers: int = setting(
        2,
        "Layers with weights of a party's encoder and of its decoder. A single one is linear: who "
        "knows a few rows then finds all others exactly.",
        at_least=1,
    )

    exchanges_asked: ClassVar[tuple[str, ...]] = (EMBEDDINGS,)
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType({
        "labels": "demo", "demo.missing-cells": 0.0, "demo.missing-blocks": 0.3,
        "demo.missing-labels": 0.3, "false-vfl.pretrain-epochs": 60, "false-vfl.epochs": 60,
        "false-vfl.h-dim": 16, "false-vfl.z-dim": 8, "false-vfl.width": 64,
        "false-vfl.pretrain-batch-size": 128, "false-vfl.pretrain-learning-rate": 0.002,
        "false-vfl.learning-rate": 0.002,
    })  # fmt: skip
    disclosure = (
        (
            "server",
            "by sample, in every step: the sums over the parties of the means and precisions of "
            "their embeddings, of the log likelihoods of their columns, and of the gradients of "
            "these; of a sample that one party alone holds (and agreed to) that party's own. That "
            "no other sample of a party is alone is the server's word",
        ),
        (
            "every party",
            "of the samples it holds (in variant II: of all): mean and deviation of the posterior "
            "of h, which all parties' embeddings make up; the weights of draws; gradients of the "
            "first stage, which no label enters. With two parties that hold a sample: the other's "
            "embedding of it",
        ),
        ("every party", "which samples have a label: they are encoded together"),
        ("nobody else", "the labels, and the discriminator, which stay at the server"),
        ("nobody else", "a party's networks, also how they begin: it draws their weights itself"),
    )

    @property
    def network_settings(self) -> NetworkSettings:
        """Sizes and bounds of all networks."""
        return NetworkSettings(
            **self.shared_with(NetworkSettings),
            party_width=self.width,
            global_width=self.width,
            mixed=self.precision == "mixed",
        )
