"""The methods: what tells them apart, their settings in the papers, and whose embeddings they sum.

Hong, Park and Hwang, *Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios*, Appendix D; settings of Tables 6 to 9.

Vanilla VFL and FedHSSL sum a sample's embeddings over all parties that hold it. PlugVFL (Sun et
al., 2024) leaves each out with probability p. LASER-VFL (Valdeira, Wang and Chi, 2025) trains one
predictor for each subset of the parties that hold the sample, all with the same weights, and draws
some of these tasks in each step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import comb

from flwr_vertical.arrays import Array, Flags
from strategies.neural.networks import AsText, NetworkSizes

PRETRAININGS = ("none", "simsiam")


@dataclass(frozen=True)
class Method:
    """What tells a method from the others."""

    # Whether it trains on labelled samples that all parties hold, and on no others
    aligned_only: bool
    tasks: str  # Whose embeddings of a sample enter the sum in training; see `draw_tasks`
    fusion: str  # What the discriminator sees of the embeddings; ``final`` is FinalNet's blocks
    hybrid: bool = False  # Whether parties pretrain together (FedHSSL), and not each for itself


METHODS = {
    "vanilla": Method(aligned_only=True, tasks="observed", fusion="concat"),
    "laser": Method(aligned_only=False, tasks="subsets", fusion="mean"),
    "plug": Method(aligned_only=False, tasks="dropped", fusion="concat"),
    "fedhssl": Method(aligned_only=True, tasks="observed", fusion="concat", hybrid=True),
    "final": Method(aligned_only=False, tasks="observed", fusion="final"),
}


@dataclass(frozen=True)
class TrainingSettings(AsText):
    """How long and how fast; see `ISOLET` for the numbers."""

    batch_size: int  # Of training with labels
    learning_rate: float  # Adam's
    epochs: int = 0  # Of training with labels
    weight_decay: float = 1e-4  # Adam's
    pretrain: str = "simsiam"  # Whether extractors learn from samples without labels first
    pretrain_epochs: int = 100
    pretrain_batch_size: int = 512
    # pretrain_learning_rate, pretrain_weight_decay: Of stochastic gradient descent with momentum
    # 0.9. The rate falls to 0 along a cosine, but for the predictor's, which stays (Chen and He,
    # 2021, Section 4).
    pretrain_learning_rate: float = 0.025
    pretrain_weight_decay: float = 3e-5
    drop: float = 0.5  # Probability with which a party that holds a sample is left out (PlugVFL)
    # Share of a row's columns that are replaced in its second view; see `views`
    corrupted: float = 0.3
    # Weight of the cross-party networks in local pretraining (gamma of FedHSSL)
    guide: float = 0.5
    iterations: int | None = None  # Steps of training with labels, in place of `epochs`

    def steps(self, per_epoch: int) -> int:
        """Return how many steps of training with labels there are, at so many an epoch."""
        return per_epoch * self.epochs if self.iterations is None else self.iterations


ISOLET = {
    "vanilla": TrainingSettings(epochs=500, batch_size=32, learning_rate=5e-4),
    "laser": TrainingSettings(epochs=200, batch_size=64, learning_rate=5e-5),
    "plug": TrainingSettings(epochs=100, batch_size=32, learning_rate=5e-5),
    "fedhssl": TrainingSettings(epochs=300, batch_size=64, learning_rate=2e-3, pretrain_epochs=150),
}
"""By method: Tables 6 to 9, columns of Isolet."""

FINAL_NET = TrainingSettings(
    batch_size=64, learning_rate=1e-3, weight_decay=1e-4, pretrain="none", iterations=1000
)
"""Liu, He, Tan et al., "FedPSG-AR", Experiment 3."""

DEFAULTS = ISOLET | {"final": FINAL_NET}
"""By method, settings of its paper."""


@dataclass(frozen=True)
class SplitNetworks(NetworkSizes):
    """Sizes of all networks; of tables, which the paper does not name, those of FALSE-VFL."""

    fusion: str = "concat"  # See `Method`
    hybrid: bool = False  # Whether an extractor has two encoders (FedHSSL)
    # Numbers of an embedding (Tables 6 to 9: 128 for Isolet and HAPT); in FinalNet of a column
    latent_dim: int = 128
    width: int = 128  # Units of each hidden layer
    layers: int = 2  # Layers with weights of an extractor; of FinalNet, of each block
    # Layers with weights of the discriminator, two at least where embeddings are concatenated:
    # its first one is at the parties
    head_layers: int = 2
    projected: int = 128  # Units of SimSiam's projector, and of its predictor's hidden layer
    predictor_width: int = 32  # Units of SimSiam's projector, and of its predictor's hidden layer

    @property
    def sent(self) -> int:
        """How many numbers of a sample a party sends."""
        if self.fusion == "final":
            return 2 * self.width
        return self.latent_dim if self.fusion == "mean" else self.width


class Tasks(NamedTuple):
    """Sums that are asked for in a step."""

    takes: Flags  # (n_tasks, n_rows, n_parties): whose embedding enters
    # (n_tasks, n_rows): what each sum's loss counts; adding up to 1 in each row
    weights: Array


def draw_tasks(kind: str, held: Flags, drop: float, rng: np.random.Generator) -> Tasks:
    """Draw the tasks of a batch, by who holds what, (n_rows, n_parties): one party at least."""
    if kind == "observed":
        return Tasks(held[None], np.ones((1, len(held))))
    if kind == "dropped":
        keys = rng.random(held.shape)
        takes = held & (keys >= drop)
        # Somebody is always there, as the active party of the paper is: who was nearest to stay.
        last = np.where(held, keys, -1.0).argmax(axis=1)
        takes[np.arange(len(held)), last] = True
        return Tasks(takes[None], np.ones((1, len(held))))
    n_parties, counts = held.shape[1], held.sum(axis=1)
    keys = np.where(held, rng.random((n_parties, *held.shape)), np.inf)
    places = keys.argsort(axis=-1).argsort(axis=-1)
    sizes = np.arange(1, n_parties + 1)
    real = sizes[:, None] <= counts
    takes = held & (places < sizes[:, None, None]) & real[..., None]
    # A sum counts as many subsets as there are of its size, of all that are not empty.
    return Tasks(takes, comb(counts, sizes[:, None]) / (2.0**counts - 1.0))
