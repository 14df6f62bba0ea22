"""Predictions: who may take part, two rounds for a block of rows, and what `predict` runs."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from flwr_vertical import Alignment, Federation, Progress, Result
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.declaration import BITS, FACTS, Protocol, Repeat, Round
from strategies.false_vfl.networks import FalseVFLModel, ServerNets
from strategies.false_vfl.party import FalseVFLParty
from strategies.false_vfl.posterior import draw_normals
from strategies.false_vfl.rounds import Rounds, ServerStep
from strategies.linear.problem import sample_index
from strategies.neural.hardware import device_of, precision_on
from strategies.neural.party import EMBEDDINGS
from strategies.neural.training import compare


class FalseVFLPredictions(Predictions):
    """Predict with a model that `FalseVFL` fitted, whichever parties hold the samples.

    In variant II a party that has left says nothing of whether its block is missing, either. One
    round, and two for each block of rows, after greeting and alignment.
    """

    party = FalseVFLParty
    protocol: ClassVar[Protocol] = Protocol(
        Round("open_networks", "whether rows that it alone holds take part", tells=(FACTS, BITS)),
        Repeat(
            Round("encode", "summed, embeddings of a block of rows", tells=BITS),
            Round("score", "summed, likelihoods of its columns under draws", tells=BITS),
            at_most="n_samples",
        ),
    )
    exchanges_asked: ClassVar[tuple[str, ...]] = (EMBEDDINGS,)
    disclosure = (
        (
            "server",
            "by sample: the sums over the parties of the means and precisions of their embeddings "
            "and of the log likelihoods of their columns; of a sample that one party alone holds "
            "(and agreed to) that party's own. That no other sample of a party is alone is the "
            "server's word",
        ),
        (
            "every party",
            "of the samples it holds (in variant II: of all): mean and deviation of the posterior "
            "of h. With two parties that hold a sample: the other's embedding of it",
        ),
        ("nobody else", "the discriminator, and so the predictions, which stay at the server"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have parties take up their parts, and predict all samples."""
        model: FalseVFLModel = self.model
        rounds = Rounds(federation, alignment.mask, per_party=model.variant == "I")
        seed = int(federation.rng.integers(2**62))
        arguments = {"model": model.name, "seed": seed, "device": "auto"}
        replies = federation.call("open_networks", arguments)
        device = device_of("auto")
        dtype = next(model.nets().parameters()).dtype
        rows = take_part(rounds, replies, seed, dtype, result)
        note_precision(model.precision, device, replies, result)
        found = predict_rows(rounds, model, rows, progress, device)
        result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))
        if federation.labels is not None:
            compare(np.asarray(federation.labels)[rows], result, model.classes)


def take_part(
    rounds: Rounds,
    replies: Mapping[str, Mapping[str, Any]],
    seed: int,
    dtype: torch.dtype,
    result: Result,
) -> Indices:
    """Return which samples take part, given what parties agreed to; shape (n_usable,)."""
    own = draw_normals(seed, "check", (8,), dtype).numpy()
    for name, reply in replies.items():
        if not np.array_equal(reply["drawn"], own):
            raise ConfigError(
                f"party {name!r} draws other numbers from a seed than the server: parties and "
                f"server must run the same version of NumPy (the server has {np.__version__})"
            )
    return rounds.agreed(replies, result)


def note_precision(
    asked: str, device: torch.device, replies: Mapping[str, Mapping[str, Any]], result: Result
) -> None:
    """Note who computes in another precision than was asked for."""
    found = {name: str(reply["precision"]) for name, reply in replies.items()}
    found["the server"] = precision_on(device, asked)
    if others := [name for name, precision in found.items() if precision != asked]:
        result.notes.append(
            f"precision={asked!r}, but {', '.join(others)} computed in float32: no instructions "
            "for bfloat16 there, which would be slower without"
        )


def predict_rows(
    rounds: Rounds, model: FalseVFLModel, rows: Indices, progress: Progress, device: torch.device
) -> pd.DataFrame:
    """Predict samples, by two rounds for each block of them; a line for each of `rows`."""
    nets, head = model.nets().to(device), model.discriminator().to(device)
    tables = []
    for first in range(0, len(rows), model.prediction_rows):
        block = rows[first : first + model.prediction_rows]
        seed = int(rounds.federation.rng.integers(2**62))
        n_draws = model.prediction_samples
        step = drawn_step(nets, rounds.encode(block, {}), rounds.counts[block], seed, n_draws)
        terms = rounds.score(block, step, [seed], n_draws, tell=True)
        tables.append(model.table(head, step.h, step.log_weights(terms[0])))
        progress.step(first + len(block), len(rows))
    return pd.concat(tables, ignore_index=True)


def drawn_step(
    nets: ServerNets, sums: tuple[Any, Any], counts: Indices, seed: int, n_draws: int
) -> ServerStep:
    """Draw h and z where nothing is trained any more."""
    with torch.no_grad():
        return ServerStep(nets, sums, counts, seed, n_draws)
