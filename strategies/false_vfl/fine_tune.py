"""The second stage: the discriminator learns from labels; parties only tell likelihoods."""

import math
from typing import TYPE_CHECKING

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import DataError
from flwr_vertical.results import Progress
from strategies.false_vfl.discriminator import HeadTraining, Targets
from strategies.false_vfl.early_stopping import EarlyStop, split_off
from strategies.false_vfl.predict import drawn_step
from strategies.false_vfl.pretraining import Pretraining

if TYPE_CHECKING:
    from strategies.false_vfl.strategy import FalseVFL


SCORING_ROUNDS = 58
"""Rounds of likelihoods at most: with the one that encodes, fewer than 60 for any epochs."""


def fit_head(
    strategy: "FalseVFL",
    first: Pretraining,
    head: HeadTraining,
    usable: Indices,
    result: Result,
    progress: Progress,
) -> None:
    """Train the discriminator; everything else is fixed.

    Parties hear mean and deviation of the labelled samples' posterior once, then seeds for several
    epochs at a time.

    Shapes: usable (n_usable,): samples that take part.
    """
    rows = usable[head.targets.known[usable]]
    needed = 2 if strategy.validation_share else 1
    if len(rows) < needed:
        raise DataError(
            f"{len(rows)} samples that take part have a label; expected at least {needed}"
        )
    rounds = first.rounds
    rng = rounds.federation.rng
    _check_classes(head.targets, rows)
    _, kept_out = split_off(rows, strategy.validation_share, rng)
    validates = np.isin(rows, kept_out)
    if head.targets.classes:
        # Of a class with few samples all may have been drawn: then they train, and none validates.
        y = head.targets.y[rows]
        validates &= np.isin(y, y[~validates])
    sums = rounds.encode(rows, first.carried)
    n_draws, at_once = strategy.importance_samples, math.ceil(strategy.epochs / SCORING_ROUNDS)
    stop, told = EarlyStop(strategy.patience), False
    for done in range(0, strategy.epochs, at_once):
        seeds = [int(s) for s in rng.integers(2**62, size=min(at_once, strategy.epochs - done))]
        settings = strategy.network_settings
        drawn = [drawn_step(first.nets, settings, sums, rounds, rows, s, n_draws) for s in seeds]
        terms = rounds.score(rows, drawn[0], seeds, n_draws, tell=not told)
        told = True
        for k, step in enumerate(drawn):
            epoch, logs = done + k + 1, step.log_weights(terms[k])
            loss = head.epoch(step.h[~validates], logs[~validates], rows[~validates], rng)
            line = {"stage": 2, "epoch": epoch, "loss": loss}
            if validates.any():
                line["validation"] = head.loss(step.h[validates], logs[validates], rows[validates])
                if stop.is_better(epoch, line["validation"]):
                    head.remember()
            result.history.append(line)
            if stop.is_over(epoch):
                break
        progress.step(epoch, strategy.epochs, loss=loss)
        if stop.is_over(epoch):
            break
    head.recall()
    result.metrics["epochs"] = float(epoch)


def _check_classes(targets: Targets, rows: Indices) -> None:
    """Raise `DataError` if no sample of a class takes part: it could never be predicted."""
    for number, label in enumerate(targets.classes):
        n_labels = int((targets.y[targets.known] == number).sum())
        if not (targets.y[rows] == number).any():
            raise DataError(
                f"none of the {n_labels} samples with the label {label:g} takes part, so that the "
                "class would never be predicted: each is held by one party alone, which does not "
                "agree to the exchange 'lone-embeddings'; leave these labels out, or align samples "
                "of that class that several parties hold"
            )
