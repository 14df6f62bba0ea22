"""The strategies: what each says of itself, and its settings (Tables 6 to 9 of the paper)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings import setting
from strategies.neural.strategy import (
    ImageStrategy,
    batch_size,
    epochs,
    learning_rate,
    pretrain_epochs,
)
from strategies.split.methods import FINAL_NET, ISOLET, PRETRAININGS
from strategies.split.strategy import SplitNetwork


def _demo(name: str) -> Mapping[str, Any]:
    """Return settings of the demonstration: small networks, a minute at most."""
    own = {
        "epochs": 40, "pretrain-epochs": 20, "latent-dim": 16, "width": 64,
        "pretrain-batch-size": 128, "learning-rate": 0.002,
    }  # fmt: skip
    data = {"labels": "demo", "demo.missing-cells": 0.0}
    data |= {"demo.missing-blocks": 0.3, "demo.missing-labels": 0.3}
    return MappingProxyType(data | {f"{name}.{key}": value for key, value in own.items()})


GRADIENTS = (
    "every party",
    "of the labelled samples that are trained on and that it holds: the gradients of the loss in "
    "its embeddings, from which labels can be guessed",
)
SECRET = ("nobody else", "the labels themselves, and the discriminator, which stay at the server")
SUMS = (
    "server",
    "by sample, in every step: the sum over the parties of their embeddings; of a sample that one "
    "party alone holds (and agreed to) that party's own",
)
_SUBSETS = (
    "server",
    "by sample, in every step: sums over some of the parties, drawn anew, of their embeddings. Two "
    "of them differ by one party's own, so nodes must agree to lone embeddings",
)


class SplitLearning(SplitNetwork, ImageStrategy):
    """The methods that FALSE-VFL is compared with: perceptrons or images, and pretraining."""

    epochs: int = epochs(100)
    pretrain: str = setting(
        "simsiam",
        "Whether extractors first learn from all samples, without labels, by SimSiam.",
        choices=PRETRAININGS,
    )
    pretrain_epochs: int = pretrain_epochs(100)
    pretrain_batch_size: int = setting(512, "Samples of a step of pretraining.", at_least=2)
    pretrain_learning_rate: float = setting(
        0.025, "Of gradient descent with momentum 0.9 in pretraining.", above=0
    )
    pretrain_weight_decay: float = setting(3e-5, "In pretraining.", at_least=0)
    corrupted: float = setting(
        0.3,
        "Share of a row's columns that are replaced in its second view, by numbers between the "
        "column's least and largest value.",
        above=0,
        at_most=1,
    )


class VanillaVFL(SplitLearning):
    """Split learning on aligned labelled samples; zeros stand for a missing block in predictions.

    The plain baseline of Hong, Park and Hwang (*Deep Latent Variable Model based Vertical Federated
    Learning with Flexible Alignment and Labeling Scenarios*, Appendix D.1). Each party has an
    extractor; embeddings are concatenated. Before that, each party may learn from all its rows by
    SimSiam (Chen and He, 2021), which takes no round.

    One round, one for each step, one for each `prediction_rows` samples without a label, and one.
    Each node must agree to the exchange ``embeddings``, and to ``lone-embeddings`` if samples that
    it alone holds shall be predicted.
    """

    epochs: int = epochs(ISOLET["vanilla"].epochs)
    batch_size: int = batch_size(ISOLET["vanilla"].batch_size)
    learning_rate: float = learning_rate(ISOLET["vanilla"].learning_rate)

    name: ClassVar[str] = "vanilla-vfl"
    demo: ClassVar[Mapping[str, Any]] = _demo("vanilla-vfl")
    kind: ClassVar[str] = "vanilla"
    disclosure = (SUMS, GRADIENTS, SECRET)


class PlugVFL(SplitLearning):
    """Split learning that leaves parties out at random, so that it predicts without them.

    Sun et al. (*PlugVFL: Robust and IP-Protecting Vertical Federated Learning against Unexpected
    Quitting of Parties*, 2024), as Hong, Park and Hwang have it: zeros stand for a missing block in
    training and in predictions, and the objective that hides labels is off. Which parties are left
    out is drawn for each sample; the last one that holds it stays. (In the reference that the paper
    took, parties are left out of a whole batch, and the active one never is.)

    Rounds are those of `VanillaVFL`. Each node must agree to the exchanges ``embeddings`` and
    ``lone-embeddings``.
    """

    epochs: int = epochs(ISOLET["plug"].epochs)
    batch_size: int = batch_size(ISOLET["plug"].batch_size)
    learning_rate: float = learning_rate(ISOLET["plug"].learning_rate)
    drop: float = setting(
        0.5, "Probability with which a party that holds a sample is left out.", at_least=0, below=1
    )

    name: ClassVar[str] = "plug-vfl"
    demo: ClassVar[Mapping[str, Any]] = _demo("plug-vfl")
    kind: ClassVar[str] = "plug"
    exchanges_asked: ClassVar[tuple[str, ...]] = ("embeddings", "lone-embeddings")
    disclosure = (_SUBSETS, GRADIENTS, SECRET)


class LaserVFL(SplitLearning):
    """A predictor for every subset of parties, all with the same weights.

    Valdeira, Wang and Chi (*Vertical Federated Learning with Missing Features During Training and
    Inference*, 2025), as Hong, Park and Hwang have it: one fusion model, at the server. Embeddings
    of a subset are averaged. The loss of a sample is the mean over all subsets of the parties that
    hold it; of each size one is drawn in each step. (The reference has one pattern of missing
    blocks in a batch, and adds the subsets' losses up; here each sample has its own, and the same
    weight as any other.)

    Rounds are those of `VanillaVFL`; a step sums as many embeddings of a sample as there are
    parties. Each node must agree to the exchanges ``embeddings`` and ``lone-embeddings``.
    """

    epochs: int = epochs(ISOLET["laser"].epochs)
    batch_size: int = batch_size(ISOLET["laser"].batch_size)
    learning_rate: float = learning_rate(ISOLET["laser"].learning_rate)

    name: ClassVar[str] = "laser-vfl"
    demo: ClassVar[Mapping[str, Any]] = _demo("laser-vfl")
    kind: ClassVar[str] = "laser"
    exchanges_asked: ClassVar[tuple[str, ...]] = ("embeddings", "lone-embeddings")
    disclosure = (_SUBSETS, GRADIENTS, SECRET)


class FedHSSL(SplitLearning):
    """Pretraining across parties and at each, then split learning on aligned labelled samples.

    He et al. (*A Hybrid Self-Supervised Learning Framework for Vertical Federated Learning*, 2022)
    with SimSiam; see `strategies.split.pretraining`. A party's embedding is the mean of what its
    two encoders give. Zeros stand for a missing block in predictions.

    Pretraining takes one round for each batch of aligned samples and epoch, and one; the rest is as
    of `VanillaVFL`. Each node must agree to the exchange ``embeddings``, and to ``lone-embeddings``
    if samples that it alone holds shall be predicted.
    """

    epochs: int = epochs(ISOLET["fedhssl"].epochs)
    batch_size: int = batch_size(ISOLET["fedhssl"].batch_size)
    learning_rate: float = learning_rate(ISOLET["fedhssl"].learning_rate)
    pretrain_epochs: int = pretrain_epochs(ISOLET["fedhssl"].pretrain_epochs)
    guide: float = setting(
        0.5,
        "Weight of agreement with the encoder trained across parties, in pretraining at a party.",
        at_least=0,
    )

    name: ClassVar[str] = "fedhssl"
    demo: ClassVar[Mapping[str, Any]] = _demo("fedhssl")
    kind: ClassVar[str] = "fedhssl"
    disclosure = (
        SUMS,
        (
            "server",
            "in pretraining, by sample that all parties hold: the sum over the parties of "
            "projections of their embeddings; and the mean of the parties' upper layers and losses",
        ),
        (
            "every party",
            "the same sums and means. With two parties: the other's projections and layers",
        ),
        GRADIENTS,
        SECRET,
    )

    def check(self) -> None:
        """Refuse an extractor that cannot be split into a lower and an upper part."""
        super().check()
        if self.layers < 2:
            raise ConfigError(f"fedhssl.layers must be 2 or more, got {self.layers}")


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
    pretrain: ClassVar[str] = "none"
    kind: ClassVar[str] = "final"
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType({
        "labels": "demo", "demo.missing-cells": 0.0, "demo.missing-blocks": 0.2,
        "demo.missing-labels": 0.3, "final-net.iterations": 300, "final-net.width": 32,
    })  # fmt: skip
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
