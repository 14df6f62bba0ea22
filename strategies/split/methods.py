"""The four methods, and their settings in the paper of FALSE-VFL.

Hong, Park and Hwang, *Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios*, Appendix D; settings of Tables 6 to 9.
"""

from dataclasses import dataclass

PRETRAININGS = ("none", "simsiam")
FUSIONS = ("concat", "mean", "final")
TASKS = ("observed", "dropped", "subsets")


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
class Training:
    """How long and how fast; see `ISOLET` for the numbers."""

    epochs: int  # Of training with labels
    batch_size: int  # Of training with labels
    learning_rate: float  # Adam's
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
    "vanilla": Training(epochs=500, batch_size=32, learning_rate=5e-4),
    "laser": Training(epochs=200, batch_size=64, learning_rate=5e-5),
    "plug": Training(epochs=100, batch_size=32, learning_rate=5e-5),
    "fedhssl": Training(epochs=300, batch_size=64, learning_rate=2e-3, pretrain_epochs=150),
}
"""By method: Tables 6 to 9, columns of Isolet."""

FINAL_NET = Training(
    epochs=0, batch_size=64, learning_rate=1e-3, weight_decay=1e-4, pretrain="none", iterations=1000
)
"""Liu, He, Tan et al., "FedPSG-AR", Experiment 3."""

DEFAULTS = ISOLET | {"final": FINAL_NET}
"""By method, settings of its paper."""
