"""The server half of FALSE-VFL: both stages and predictions, as rounds over a federation."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.false_vfl.discriminator import HeadTraining, Targets
from strategies.false_vfl.fine_tune import fit_head
from strategies.false_vfl.hardware import DEVICES, device_of
from strategies.false_vfl.images import NETWORKS, parse_shapes
from strategies.false_vfl.model import FalseVFLModel, to_arrays
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party import FalseVFLParty
from strategies.false_vfl.party_networks import EMBEDDINGS
from strategies.false_vfl.predict import (
    FalseVFLPredictions,
    note_precision,
    predict_rows,
    take_part,
)
from strategies.false_vfl.pretraining import Pretraining
from strategies.false_vfl.rounds import Rounds
from strategies.false_vfl.server_model import ServerNets
from strategies.linear.problem import sample_index


class FalseVFL(Strategy):
    """A deep latent-variable model of all parties' columns, and predictions of labels from it.

    Hong, Park and Hwang: *Deep Latent Variable Model based Vertical Federated Learning with
    Flexible Alignment and Labeling Scenarios*. The first stage trains on all samples, with or
    without a label, held by any parties (Section 3.3.2); the second trains the discriminator on
    the labelled ones (3.3.3); samples without a label are predicted (3.3.4).

    A pretraining step takes three rounds, and the encoders' gradient rides with the next step's
    first. The second stage takes 60 rounds at most, whatever its epochs. Predictions take two
    rounds for each `prediction_rows` samples.

    Every sum is by sample, and hides little: with a few samples known, the server reconstructs
    columns from them (``python -m simulations.false_vfl.attacks``). So each node must agree to the
    exchange ``embeddings``, and to ``lone-embeddings`` if samples that it alone holds shall take
    part; else these are left out. A node's privacy ledger counts its rows as told whole.

    `Result.predictions` has ``prediction`` and one column ``probability_<class>`` for each class,
    or ``std_error`` of a regression. `Result.predict` predicts new samples by whichever parties are
    there. The metrics are the ``bound`` of the last epoch (nats a sample), the epochs taken and,
    with validation, its best bound and the epoch of it. With validation the first stage ends with
    the networks of that epoch, whichever was the last one, and the second with the best
    discriminator; no further message is needed for it.

    Where the paper is silent: networks are multilayer perceptrons of the sizes in
    `NetworkSettings`, or for images those of `strategies.false_vfl.images`; columns are
    standardised by the rows that take part (an image's by channel), a missing cell of a row is 0
    for the encoder and absent from the likelihood, and log deviations lie between bounds.

    Parties of a simulation share the cores: PyTorch has as many threads at each as there are cores
    for it, one where there are more parties than cores. Draws are made on the CPU, so that nodes
    with a GPU and without one agree. ``precision="mixed"`` halves the time of a step where the
    processor has instructions for bfloat16; a node without them computes in float32, and the
    result's notes say so.
    """

    variant: str = setting(
        "I",
        "I assumes that blocks are missing at random; II models whether a block is missing by its "
        "own columns.",
        choices=("I", "II"),
    )
    task: str = setting(
        "classification",
        "What labels are: classes, or numbers.",
        choices=("classification", "regression"),
    )
    pretrain_epochs: int = setting(300, "Epochs of the first stage.", at_least=1)
    epochs: int = setting(300, "Epochs of the second stage.", at_least=1)
    pretrain_batch_size: int = setting(512, "Samples of a step of the first stage.", at_least=1)
    batch_size: int = setting(128, "Labelled samples of a step of the second stage.", at_least=1)
    pretrain_learning_rate: float = setting(5e-4, "Adam's, in the first stage.", above=0)
    learning_rate: float = setting(2e-4, "Adam's, in the second stage.", above=0)
    weight_decay: float = setting(1e-4, "Adam's, in both stages.", at_least=0)
    importance_samples: int = setting(10, "Draws of a sample in training (kappa).", at_least=1)
    prediction_samples: int = setting(50, "Draws of a sample in prediction (L).", at_least=1)
    prediction_rows: int = setting(1024, "Samples predicted by two rounds.", at_least=1)
    validation_share: float = setting(
        0.0,
        "Share of the samples that validate instead of being trained on, and of those with a label "
        "in the second stage; 0 trains all epochs on all.",
        at_least=0,
        below=1,
    )
    validate_every: int = setting(
        5, "Epochs of the first stage between two validations, of two rounds each.", at_least=1
    )
    patience: int = setting(
        30, "Epochs without a better validation after which a stage ends.", at_least=1
    )
    h_dim: int = setting(128, "Dimension of h, which parties and server share.", at_least=1)
    z_dim: int = setting(64, "Dimension of z.", at_least=1)
    width: int = setting(128, "Units of each hidden layer.", at_least=1)
    party_layers: int = setting(
        2,
        "Layers with weights of a party's encoder and of its decoder. A single one is linear: who "
        "knows a few rows then finds all others exactly.",
        at_least=1,
    )
    activation: str = setting("relu", "Of hidden layers.", choices=("relu", "elu", "silu", "tanh"))
    encoding: str = setting(
        "none", "What becomes of columns of levels.", choices=("none", "one-hot")
    )
    precision: str = setting(
        "float32",
        "What networks compute in. mixed is float32 with matrix products in bfloat16, where the "
        "processor has instructions for them.",
        choices=("float32", "mixed", "float64"),
    )
    device: str = setting(
        "auto",
        "Where server and parties compute: auto takes a GPU at those that have one.",
        choices=DEVICES,
    )
    networks: str = setting(
        "mlp",
        "Encoders and decoders of parties: for tables, or for images of the shape `image_shape`.",
        choices=NETWORKS,
    )
    image_shape: str = setting(
        "",
        "Height and width of the parties' images such as 14x7, channels before them such as "
        "3x32x32; of some parties, while others have tables: left=14x7, right=14x14.",
    )
    image_channels: int = setting(
        16, "Channels of cnn at the image's full size; resnet18 has 64.", at_least=4
    )

    name: ClassVar[str] = "false-vfl"
    party = FalseVFLParty
    predictions = FalseVFLPredictions
    needs_labels: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("torch",)
    exchanges_asked: ClassVar[tuple[str, ...]] = (EMBEDDINGS,)
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "labels": "demo",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.3,
            "demo.missing-labels": 0.3,
            "false-vfl.pretrain-epochs": 60,
            "false-vfl.epochs": 60,
            "false-vfl.h-dim": 16,
            "false-vfl.z-dim": 8,
            "false-vfl.width": 64,
            "false-vfl.pretrain-batch-size": 128,
            "false-vfl.pretrain-learning-rate": 0.002,
            "false-vfl.learning-rate": 0.002,
        }
    )
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

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Train both stages, and predict samples without a label."""
        labels = np.asarray(federation.labels, dtype=float)
        seed = int(federation.rng.integers(2**62))
        targets = Targets.of(labels, self.task)
        rounds = Rounds(federation, alignment.mask, per_party=self.variant == "I")
        usable = self._prepare(rounds, seed, result)
        first = Pretraining(self, rounds, usable, seed, result, progress)
        first.run()
        second = HeadTraining(self, targets, seed)
        fit_head(self, first, second, usable, result, progress)
        result.predictor = model = self._keep(rounds, first.nets, second)
        rows = usable[~targets.known[usable]]
        if len(rows):
            found = predict_rows(rounds, model, rows, progress, device_of(self.device))
            result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))

    # -- settings ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if settings do not go together."""
        if bool(parse_shapes(self.image_shape)) != (self.networks != "mlp"):
            raise ConfigError(
                f"networks={self.networks!r} with image_shape={self.image_shape!r}: cnn and "
                "resnet18 are for images and need their shape, such as '14x7'; mlp has none"
            )

    @property
    def network_settings(self) -> NetworkSettings:
        """Sizes and bounds of all networks."""
        return NetworkSettings(
            h_dim=self.h_dim,
            z_dim=self.z_dim,
            party_width=self.width,
            party_layers=self.party_layers,
            global_width=self.width,
            activation=self.activation,
            mixed=self.precision == "mixed",
            networks=self.networks,
            image_shape=self.image_shape,
            image_channels=self.image_channels,
        )

    @property
    def dtype(self) -> torch.dtype:
        """What networks compute in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    # -- before training ---------------------------------------------------------------------

    def _prepare(self, rounds: Rounds, seed: int, result: Result) -> Indices:
        """Hand out settings; return which samples take part."""
        arguments = {
            "networks": self.network_settings.to_text(),
            "variant": self.variant,
            "seed": seed,
            "precision": self.precision,
            "encoding": self.encoding,
            "learning_rate": self.pretrain_learning_rate,
            "weight_decay": self.weight_decay,
            "n_draws": self.importance_samples,
            "device": self.device,
        }
        replies = rounds.federation.call("prepare", arguments)
        note_precision(self.precision, device_of(self.device), replies, result)
        return take_part(rounds, replies, seed, self.dtype, result)

    # -- after training ----------------------------------------------------------------------

    def _keep(self, rounds: Rounds, nets: ServerNets, head: HeadTraining) -> FalseVFLModel:
        """Have each party keep its part; return the server's."""
        name = rounds.federation.random_bytes(16).hex()
        rounds.federation.call("keep", {"model": name})
        targets = head.targets
        return FalseVFLModel(
            name,
            self.network_settings.to_text(),
            self.variant,
            self.precision,
            rounds.parties,
            targets.classes,
            targets.centre,
            targets.unit,
            to_arrays(nets),
            to_arrays(head.net),
            self.prediction_samples,
            self.prediction_rows,
        )
