"""The server half of FALSE-VFL: both stages and predictions, as rounds over a federation."""

from typing import ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result
from flwr_vertical.arrays import Indices
from flwr_vertical.protocol.declaration import BITS, FACTS, If, Protocol, Repeat, Round
from strategies.false_vfl.networks import FalseVFLModel, ServerNets
from strategies.false_vfl.party import FalseVFLParty
from strategies.false_vfl.predict import (
    FalseVFLPredictions,
    note_precision,
    predict_rows,
    take_part,
)
from strategies.false_vfl.rounds import Rounds
from strategies.false_vfl.settings import FalseVFLSettings
from strategies.false_vfl.training import SCORING_ROUNDS, HeadTraining, Pretraining, fit_head
from strategies.linear.problem import sample_index
from strategies.neural.hardware import device_of
from strategies.neural.networks import to_arrays
from strategies.neural.training import LabelTargets

_SCORED = Repeat(
    Round("encode", "summed, embeddings of a block of rows", tells=BITS),
    Round("score", "summed, likelihoods of its columns under draws", tells=BITS),
    at_most="ceil(n_samples / prediction_rows)",
)


class FalseVFL(FalseVFLSettings):
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
    `NetworkSettings`, or for images those of `strategies.neural.images`; columns are
    standardised by the rows that take part (an image's by channel), a missing cell of a row is 0
    for the encoder and absent from the likelihood, and log deviations lie between bounds.

    Parties of a simulation share the cores: PyTorch has as many threads at each as there are cores
    for it, one where there are more parties than cores. Draws are made on the CPU, so that nodes
    with a GPU and without one agree. ``precision="mixed"`` halves the time of a step where the
    processor has instructions for bfloat16; a node without them computes in float32, and the
    result's notes say so.
    """

    name: ClassVar[str] = "false-vfl"
    party = FalseVFLParty
    protocol = Protocol(
        Round("prepare", "whether rows that it alone holds take part", tells=(FACTS, BITS)),
        Repeat(
            Repeat(
                Round("encode", "summed, embeddings of a batch", tells=BITS),
                Round("log_terms", "summed, likelihoods of its columns under draws", tells=BITS),
                Round("go_backward", "summed, gradients in the posterior", tells=BITS),
                at_most="ceil(n_samples / pretrain_batch_size)",
            ),
            If("validation_share", _SCORED),
            at_most="pretrain_epochs",
        ),
        Round("encode", "summed, embeddings of rows with a label", tells=BITS),
        Repeat(
            Round("score", "summed, likelihoods under draws of several epochs", tells=BITS),
            at_most=SCORING_ROUNDS,
        ),
        Round("keep"),
        _SCORED,
    )
    predictions = FalseVFLPredictions

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Train both stages, and predict samples without a label."""
        labels = np.asarray(federation.labels, dtype=float)
        seed = int(federation.rng.integers(2**62))
        targets = LabelTargets.of(labels, self.task)
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

    def _prepare(self, rounds: Rounds, seed: int, result: Result) -> Indices:
        """Hand out settings; return which samples take part."""
        arguments = {
            "networks": self.network_settings.to_text(), "variant": self.variant, "seed": seed,
            "precision": self.precision, "device": self.device,
            "learning_rate": self.pretrain_learning_rate, "weight_decay": self.weight_decay,
            "n_draws": self.importance_samples,
        }  # fmt: skip
        replies = rounds.federation.call("prepare", arguments)
        note_precision(self.precision, device_of(self.device), replies, result)
        return take_part(rounds, replies, seed, self.dtype, result)

    def _keep(self, rounds: Rounds, nets: ServerNets, head: HeadTraining) -> FalseVFLModel:
        """Have each party keep its part; return the server's."""
        own = {"weights": to_arrays(nets), "prediction_samples": self.prediction_samples}
        model = self.fitted(
            FalseVFLModel, rounds, head.targets, head.net, variant=self.variant, **own
        )
        rounds.federation.call("keep", {"model": model.name})
        return model
