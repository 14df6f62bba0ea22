"""The server half: pretraining, training with labels and predictions, as rounds."""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import Progress
from flwr_vertical.results.evaluation import evaluate
from flwr_vertical.settings import setting
from strategies.false_vfl.discriminator import Targets
from strategies.false_vfl.hardware import DEVICES
from strategies.false_vfl.images import NETWORKS, parse_shapes
from strategies.false_vfl.model import to_arrays
from strategies.false_vfl.predict import told_of
from strategies.linear.problem import sample_index
from strategies.split.methods import METHODS, PRETRAININGS, Method, Training
from strategies.split.model import SplitModel
from strategies.split.networks import SplitNetworks
from strategies.split.party import SplitParty
from strategies.split.party_networks import to_text
from strategies.split.predict import SplitPredictions, predict_rows, table_of
from strategies.split.rounds import SplitRounds
from strategies.split.training import LabelTraining, pretrain_across


def epochs(default: int) -> Any:
    """Return the setting of that name with a method's own default; so do those below."""
    return setting(default, "Epochs of training with labels.", at_least=1)


def batch_size(default: int) -> Any:
    """See `epochs`."""
    return setting(default, "Labelled samples of a step.", at_least=1)


def learning_rate(default: float) -> Any:
    """See `epochs`."""
    return setting(default, "Adam's, in training with labels.", above=0)


def pretrain_epochs(default: int) -> Any:
    """See `epochs`."""
    return setting(default, "Epochs of pretraining.", at_least=1)


class SplitNetwork(Strategy):
    """Split learning with a private sum of embeddings: what all methods have, and their course.

    A step takes one round: the gradient in a party's embeddings rides with the next batch.
    """

    batch_size: int = batch_size(32)
    learning_rate: float = learning_rate(1e-4)
    weight_decay: float = setting(1e-4, "Adam's, in training with labels.", at_least=0)
    task: str = setting(
        "classification",
        "What labels are: classes, or numbers.",
        choices=("classification", "regression"),
    )
    validation_share: float = setting(
        0.0,
        "Share of the labelled samples that validate instead of being trained on; 0 trains all "
        "epochs on all.",
        at_least=0,
        below=1,
    )
    validate_every: int = setting(
        5, "Epochs between two validations, of one round each.", at_least=1
    )
    patience: int = setting(
        30, "Epochs without a better validation after which training ends.", at_least=1
    )
    latent_dim: int = setting(128, "Numbers of an embedding.", at_least=1)
    width: int = setting(128, "Units of each hidden layer.", at_least=1)
    layers: int = setting(2, "Layers with weights of an extractor.", at_least=1)
    encoding: str = setting(
        "none", "What becomes of columns of levels.", choices=("none", "one-hot")
    )
    precision: str = setting(
        "float32",
        "What networks compute in. mixed is float32 with extractors' matrix products in bfloat16, "
        "where the processor has instructions for them.",
        choices=("float32", "mixed", "float64"),
    )
    device: str = setting(
        "auto",
        "Where server and parties compute: auto takes a GPU at those that have one.",
        choices=DEVICES,
    )
    prediction_rows: int = setting(1024, "Samples predicted by one round.", at_least=1)

    kind: ClassVar[str]
    party = SplitParty
    predictions = SplitPredictions
    needs_labels: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("torch",)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Pretrain, train, and predict samples without a label."""
        targets = Targets.of(np.asarray(federation.labels, dtype=float), self.task)
        seed = int(federation.rng.integers(2**62))
        rounds = SplitRounds(federation, alignment.mask)
        usable = self._prepare(rounds, seed, result)
        rows = self._trained_on(rounds, targets, usable, result)
        if self.training.pretrain != "none" and self.method.hybrid:
            aligned = usable[rounds.held[usable].all(axis=1)]
            pretrain_across(self, rounds, aligned, result, progress)
        fitted = LabelTraining(self, rounds, targets, rows, seed, result, progress)
        fitted.run()
        result.predictor = model = self._model(rounds, targets, fitted)
        asked = usable[~targets.known[usable]]
        if len(asked):
            found = predict_rows(rounds, model, fitted.head, asked, progress)
            result.predictions = found.set_axis(sample_index(alignment, result.labels, asked))
        if (validated := fitted.held_out()) is not None:
            rows, given = validated
            told = table_of(given, model)
            index = sample_index(alignment, result.labels, rows)
            labels = np.asarray(federation.labels, dtype=float)
            result.evaluation = evaluate(
                told.set_axis(index),
                pd.Series(labels[rows], index),
                known=pd.Series(np.delete(labels, rows)),
                what="held-out samples (validation_share)",
            )
        rounds.keep(model.name)

    # -- settings ----------------------------------------------------------------------------

    @property
    def method(self) -> Method:
        """What tells this method from the others."""
        return METHODS[self.kind]

    @property
    @abstractmethod
    def training(self) -> Training:
        """Settings of training, as parties and the central form have them."""

    @property
    @abstractmethod
    def network_settings(self) -> SplitNetworks:
        """Sizes of all networks."""

    @property
    def dtype(self) -> torch.dtype:
        """What networks compute in."""
        return torch.float64 if self.precision == "float64" else torch.float32

    # -- before and after training -----------------------------------------------------------

    def _prepare(self, rounds: SplitRounds, seed: int, result: Result) -> Indices:
        """Hand out settings; return which samples take part."""
        arguments = {
            "networks": self.network_settings.to_text(),
            "training": to_text(self.training),
            "n_parties": len(rounds.parties),
            "shared_seed": seed,
            "precision": self.precision,
            "encoding": self.encoding,
            "device": self.device,
            "subsets": self.method.tasks != "observed",
        }
        replies = rounds.federation.call("prepare", arguments)
        lone = np.array([bool(replies[name]["lone"]) for name in rounds.parties])
        return told_of(rounds.usable(lone), len(rounds.held), result)

    def _trained_on(
        self, rounds: SplitRounds, targets: Targets, usable: Indices, result: Result
    ) -> Indices:
        """Return the labelled samples that the method trains on or validates with."""
        rows = usable[targets.known[usable]]
        which = "a label"
        if self.method.aligned_only:
            rows = rows[rounds.held[rows].all(axis=1)]
            which = "a label and are held by all parties"
        if len(rows) < (needed := 2 if self.validation_share else 1):
            raise DataError(
                f"{len(rows)} samples that take part have {which}; expected at least {needed}"
            )
        absent = set(range(len(targets.classes))) - set(targets.y[rows])
        if absent:
            labels = [f"{targets.classes[int(c)]:g}" for c in sorted(absent)]
            result.notes.append(
                f"no sample that is trained on is of class {', '.join(labels)}: these are hardly "
                f"ever predicted ({self.name} trains on samples that have {which})"
            )
        return rows

    def _model(self, rounds: SplitRounds, targets: Targets, fitted: LabelTraining) -> SplitModel:
        """Return the server's part of the model."""
        return SplitModel(
            rounds.federation.random_bytes(16).hex(),
            self.network_settings.to_text(),
            self.precision,
            rounds.parties,
            targets.classes,
            targets.centre,
            targets.unit,
            to_arrays(fitted.head),
            self.prediction_rows,
        )


class SplitLearning(SplitNetwork):
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
    activation: str = setting("relu", "Of hidden layers.", choices=("relu", "elu", "silu", "tanh"))
    networks: str = setting(
        "mlp",
        "Extractors of parties: for tables, or for images of the shape `image_shape`.",
        choices=NETWORKS,
    )
    image_shape: str = setting(
        "",
        "Height and width of the parties' images such as 14x7, channels before them such as "
        "3x32x32; of some parties, while others have tables: left=14x7, right=14x14.",
    )
    image_channels: int = setting(16, "Channels of cnn's first layer; resnet18 has 64.", at_least=4)

    def check(self) -> None:
        """Raise if settings do not go together."""
        if bool(parse_shapes(self.image_shape)) != (self.networks != "mlp"):
            raise ConfigError(
                f"networks={self.networks!r} with image_shape={self.image_shape!r}: cnn and "
                "resnet18 are for images and need their shape, such as '14x7'; mlp has none"
            )

    @property
    def training(self) -> Training:
        """Settings of training, as parties and the central form have them."""
        own = Training(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            pretrain=self.pretrain,
            pretrain_epochs=self.pretrain_epochs,
            pretrain_batch_size=self.pretrain_batch_size,
            pretrain_learning_rate=self.pretrain_learning_rate,
            pretrain_weight_decay=self.pretrain_weight_decay,
            corrupted=self.corrupted,
        )
        return self._with_own(own)

    def _with_own(self, training: Training) -> Training:
        """Return settings with those that this method alone has."""
        return training

    @property
    def network_settings(self) -> SplitNetworks:
        """Sizes of all networks."""
        return SplitNetworks(
            fusion=self.method.fusion,
            hybrid=self.method.hybrid,
            latent_dim=self.latent_dim,
            width=self.width,
            layers=self.layers,
            activation=self.activation,
            networks=self.networks,
            image_shape=self.image_shape,
            image_channels=self.image_channels,
            mixed=self.precision == "mixed",
        )
