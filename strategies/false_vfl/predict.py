"""Predictions: who may take part, two rounds for a block of rows, and what `predict` runs."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.predictions import Predictions
from flwr_vertical.results import Progress
from strategies.false_vfl.discriminator import prediction_table
from strategies.false_vfl.gaussian import draw_normals
from strategies.false_vfl.hardware import device_of, precision_on
from strategies.false_vfl.model import FalseVFLModel
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party import FalseVFLParty
from strategies.false_vfl.party_networks import EMBEDDINGS
from strategies.false_vfl.rounds import Rounds
from strategies.false_vfl.server_model import ServerNets
from strategies.false_vfl.server_training import ServerStep
from strategies.linear.problem import sample_index


class FalseVFLPredictions(Predictions):
    """Predict with a model that `FalseVFL` fitted, whichever parties hold the samples.

    In variant II a party that has left says nothing of whether its block is missing, either. One
    round, and two for each block of rows, after greeting and alignment.
    """

    party = FalseVFLParty
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
    usable = rounds.usable(np.array([bool(replies[name]["lone"]) for name in rounds.parties]))
    return told_of(usable, rounds.n_samples, result)


def told_of(usable: Indices, n_samples: int, result: Result) -> Indices:
    """Return the samples that take part, after noting how many others there are."""
    if left_out := n_samples - len(usable):
        result.notes.append(
            f"{left_out} samples that one party alone holds were left out: a sum would not hide "
            "them, and that party does not agree to the exchange 'lone-embeddings'"
        )
    if not len(usable):
        raise DataError(
            "no sample takes part: each is held by one party alone, and none of these parties "
            "agrees to the exchange 'lone-embeddings'; align samples that several parties hold"
        )
    return usable


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
    rounds: Rounds,
    model: FalseVFLModel,
    rows: Indices,
    progress: Progress,
    device: torch.device,
) -> pd.DataFrame:
    """Predict samples, by two rounds for each block of them; a line for each of `rows`."""
    nets, head = model.nets().to(device), model.discriminator().to(device)
    settings = model.settings
    tables = []
    for first in range(0, len(rows), model.prediction_rows):
        block = rows[first : first + model.prediction_rows]
        seed = int(rounds.federation.rng.integers(2**62))
        n_draws = model.prediction_samples
        step = drawn_step(nets, settings, rounds.encode(block, {}), rounds, block, seed, n_draws)
        terms = rounds.score(block, step, [seed], n_draws, tell=True)
        logs = step.log_weights(terms[0])
        of_labels = model.classes, model.centre, model.unit
        tables.append(prediction_table(head, step.h, logs, *of_labels))
        progress.step(first + len(block), len(rows))
    return pd.concat(tables, ignore_index=True)


def drawn_step(
    nets: ServerNets,
    settings: NetworkSettings,
    sums: tuple[Any, Any],
    rounds: Rounds,
    rows: Indices,
    seed: int,
    n_draws: int,
) -> ServerStep:
    """Draw h and z where nothing is trained any more."""
    with torch.no_grad():
        return ServerStep(nets, settings, *sums, rounds.counts[rows], seed, n_draws)


def compare(labels: npt.NDArray[np.float64], result: Result, classes: Collection[float]) -> None:
    """Say how far predictions are from the labels that are known.

    Shapes: labels (n_rows,): of the predicted samples, NaN where one is not known.
    """
    known = np.isfinite(labels)
    if not known.any() or result.predictions is None:
        return
    found = result.predictions["prediction"].to_numpy()[known]
    if classes:
        result.metrics["accuracy"] = float(np.mean(found == labels[known]))
        new = ~np.isin(labels[known], list(classes))
        if new.any():
            result.notes.append(
                f"{new.sum()} samples have labels {np.unique(labels[known][new]).tolist()[:10]}, "
                "of which the fit had none: their predictions are wrong in any case"
            )
    else:
        result.metrics["rmse"] = float(np.sqrt(np.mean((found - labels[known]) ** 2)))
