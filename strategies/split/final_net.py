"""FinalNet as a strategy: what it says of itself, and its settings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings import setting
from strategies.split.methods import FINAL_NET, Training
from strategies.split.networks import SplitNetworks
from strategies.split.strategies import GRADIENTS, SECRET, SUMS
from strategies.split.strategy import SplitNetwork, batch_size, learning_rate


class FinalNet(SplitNetwork):
    """Factorised interactions of all parties' columns, on all samples that some party holds.

    Zhu, Jia, Cai et al. (*FINAL: Factorized Interaction Layer for CTR Prediction*, SIGIR 2023), one
    of the classifiers of FedPSG-AR's experiments, whose width, learning rate, batches and
    regularisation are the defaults. Each column is a field with an embedding; two blocks of layers
    multiply them, the fields of the first being gated within each party. There is no batch
    normalisation. Parties send their part of the first layer of both blocks, and the server has the
    sum; a missing block adds nothing, in training and in predictions.

    One round, one for each step, one for each `prediction_rows` samples without a label, and one.
    Each node must agree to the exchange ``embeddings``, and to ``lone-embeddings`` if samples that
    it alone holds shall take part.

    `Result.predictions` has ``prediction``, and of classes ``probability_<class>``.
    """

    batch_size: int = batch_size(FINAL_NET.batch_size)
    learning_rate: float = learning_rate(FINAL_NET.learning_rate)
    latent_dim: int = setting(10, "Numbers of a column's embedding.", at_least=1)
    width: int = setting(128, "Units of each layer of interactions, an even number.", at_least=2)
    layers: int = setting(2, "Layers of interactions of each block.", at_least=1)
    iterations: int = setting(1000, "Steps of training with labels.", at_least=1)

    name: ClassVar[str] = "final-net"
    kind: ClassVar[str] = "final"
    exchanges_asked: ClassVar[tuple[str, ...]] = ("embeddings",)
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "labels": "demo",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.2,
            "demo.missing-labels": 0.3,
            "final-net.iterations": 300,
            "final-net.width": 32,
        }
    )
    disclosure = (SUMS, GRADIENTS, SECRET)

    def check(self) -> None:
        """Raise if settings do not go together."""
        if self.width % 2:
            raise ConfigError(
                f"width must be even, since a layer multiplies the halves of its units, got "
                f"{self.width}"
            )
        if self.precision == "mixed":
            raise ConfigError(
                "precision='mixed' is for extractors of several layers; use 'float32' or 'float64'"
            )

    @property
    def training(self) -> Training:
        """Settings of training, as parties and the central form have them."""
        return Training(
            epochs=0,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            pretrain="none",
            iterations=self.iterations,
        )

    @property
    def network_settings(self) -> SplitNetworks:
        """Sizes of all networks."""
        return SplitNetworks(
            fusion=self.method.fusion,
            latent_dim=self.latent_dim,
            width=self.width,
            layers=self.layers,
        )
