"""Both stages at the server: the generative model of all samples, then the discriminator."""

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Progress, Result
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.tables.codes import level_text
from strategies.false_vfl.networks import Discriminator, ServerNets
from strategies.false_vfl.posterior import log_bound
from strategies.false_vfl.predict import drawn_step
from strategies.false_vfl.rounds import Rounds, ServerStep
from strategies.false_vfl.settings import FalseVFLSettings
from strategies.neural.hardware import device_of
from strategies.neural.networks import descend
from strategies.neural.training import EarlyStop, LabelTargets, split_off

SCORING_ROUNDS = 58
"""Rounds of likelihoods at most: with the one that encodes, fewer than 60 for any epochs."""


class Pretraining:
    """Both sides' generative parameters, trained by the bound of the marginal likelihood."""

    def __init__(
        self,
        strategy: FalseVFLSettings,
        rounds: Rounds,
        rows: Indices,
        seed: int,
        result: Result,
        progress: Progress,
    ) -> None:
        self._strategy, self.rounds = strategy, rounds
        self._result, self._progress = result, progress
        self._rng = rounds.federation.rng
        share = strategy.validation_share
        self._rows, self._validated = split_off(rows, share, self._rng)
        device = device_of(strategy.device)
        self.nets = ServerNets(strategy.network_settings, seed).to(device, strategy.dtype)
        self._optimiser = torch.optim.Adam(
            self.nets.parameters(),
            lr=strategy.pretrain_learning_rate,
            weight_decay=strategy.weight_decay,
        )
        self.carried: dict[str, Any] = {}
        self._losses: list[float] = []
        self._stop = EarlyStop(strategy.patience)
        self._best: dict[str, Tensor] = {}
        # The same draws in each validation, so that epochs differ by what was learned.
        self._seed = seed
        self._steps = math.ceil(len(self._rows) / strategy.pretrain_batch_size)

    def run(self) -> None:
        """Take all steps, or those until validation says to stop; end with the best networks."""
        live = {
            "nets": self.nets, "optimiser": self._optimiser, "carried": self.carried,
            "losses": self._losses, "stop": self._stop, "best": self._best,
            "history": self._result.history,
        }  # fmt: skip
        total = self._steps * self._strategy.pretrain_epochs
        self.rounds.federation.loop(total, self._step, live)
        last = self._result.history[-1]
        self._result.metrics["bound"] = -float(last["loss"])
        self._result.metrics["pretrain_epochs"] = float(last["epoch"])
        if self._stop.best_epoch:
            self._result.metrics["validation_bound"] = -self._stop.best
            self._result.metrics["pretrain_best_epoch"] = float(self._stop.best_epoch)
            self._recall()

    def _step(self, i: int) -> bool:
        """Take one step; return whether it was the last one."""
        place, epoch = i % self._steps, i // self._steps + 1
        if place == 0:
            self.carried["order"] = self._rng.permutation(self._rows)
            self._losses.clear()
        batch = np.array_split(self.carried["order"], self._steps)[place]
        try:
            loss = self._learn(batch, i)
        except PartyError as error:
            if type(error) is not PartyError:
                raise  # a loss, from which the run may go back to a snapshot
            cause = f"{error.cause} (epoch {epoch}, step {i + 1} of the first stage)"
            raise PartyError(error.party, error.step, cause) from error
        self._losses.append(loss * len(batch))
        self._progress.step(i + 1, self._steps * self._strategy.pretrain_epochs, loss=loss)
        if place < self._steps - 1:
            return False
        line = {"stage": 1, "epoch": epoch, "loss": math.fsum(self._losses) / len(self._rows)}
        if len(self._validated) and epoch % self._strategy.validate_every == 0:
            line["validation"] = self._validate()
            if self._stop.is_better(epoch, line["validation"]):
                # Parties hear of it with the next message.
                self._best.update({name: v.clone() for name, v in self.nets.state_dict().items()})
                self.carried["remember"] = True
        self._result.history.append(line)
        return self._stop.is_over(epoch)

    def _learn(self, batch: Indices, i: int) -> float:
        """Take the three rounds of a step; return the batch's mean loss."""
        seed = int(self._rng.integers(2**62))
        sums = self.rounds.encode(batch, self.carried)
        counts, n_draws = self.rounds.counts[batch], self._strategy.importance_samples
        step = ServerStep(self.nets, sums, counts, seed, n_draws)
        terms = self.rounds.log_terms(batch, step.mean, step.log_sigma, seed)
        loss, weights = step.weigh(terms)
        if not math.isfinite(loss):
            raise DataError(
                f"step {i + 1} of the first stage: the loss is {loss}; lower "
                "pretrain_learning_rate, and look for extreme values in the parties' columns"
            )
        self._optimiser.zero_grad(set_to_none=True)
        gradients = step.go_backward(*self.rounds.go_backward(batch, weights))
        self._optimiser.step()
        self.rounds.carry(batch, *gradients, self.carried)
        return loss

    def _recall(self) -> None:
        """Go back to the best networks; parties hear of it with the second stage's first message.

        Nothing is to be done if these are the best: parties have not heard of them yet. What the
        encoders have yet to learn from belongs to the networks that are given up.
        """
        if not self._best or self.carried.pop("remember", False):
            return
        self.nets.load_state_dict(self._best)
        self.carried.clear()
        self.carried["recall"] = True

    def _validate(self) -> float:
        """Return the mean loss of the samples that validate, by two rounds for a block of them."""
        total, at_once = 0.0, self._strategy.prediction_rows
        n_draws = self._strategy.importance_samples
        for first in range(0, len(self._validated), at_once):
            block = self._validated[first : first + at_once]
            sums = self.rounds.encode(block, self.carried)
            step = drawn_step(self.nets, sums, self.rounds.counts[block], self._seed, n_draws)
            terms = self.rounds.score(block, step, [self._seed], n_draws, tell=True)
            total -= float(log_bound(step.log_weights(terms[0])).sum())
        return total / len(self._validated)


class HeadTraining:
    """The discriminator and its optimiser."""

    def __init__(self, strategy: FalseVFLSettings, targets: LabelTargets, seed: int) -> None:
        self.targets = targets
        self._best: dict[str, Tensor] | None = None
        self._dtype, self._batch_size = strategy.dtype, strategy.batch_size
        self._device = device_of(strategy.device)
        net = Discriminator(strategy.network_settings, targets.n_classes, seed)
        self.net = net.to(self._device, self._dtype)
        self._optimiser = torch.optim.Adam(
            self.net.parameters(), lr=strategy.learning_rate, weight_decay=strategy.weight_decay
        )

    def epoch(self, h: Tensor, logs: Tensor, rows: Indices, rng: np.random.Generator) -> float:
        """Go once through the labelled samples; return the mean loss.

        Shapes: h (n_rows, n_draws, h_dim); logs (n_rows, n_draws): log weights of the draws,
        without the labels' part; rows (n_rows,): which samples they are.
        """
        y = self.targets.tensor(rows, self._device, self._dtype)
        total = 0.0
        order = torch.from_numpy(rng.permutation(len(rows)))
        for batch in torch.split(order, self._batch_size):
            loss = -log_bound(logs[batch] + self.net.log_density(h[batch], y[batch])).mean()
            descend(self._optimiser, [loss])
            total += float(loss.detach()) * len(batch)
        return total / len(rows)

    def loss(self, h: Tensor, logs: Tensor, rows: Indices) -> float:
        """Return the mean loss of samples that are not trained on; parameters as of `epoch`."""
        with torch.no_grad():
            y = self.targets.tensor(rows, self._device, self._dtype)
            return -float(log_bound(logs + self.net.log_density(h, y)).mean())

    def remember(self) -> None:
        """Note the weights as the best ones so far."""
        self._best = copy.deepcopy(self.net.state_dict())

    def recall(self) -> None:
        """Go back to the best weights, if some were noted."""
        if self._best is not None:
            self.net.load_state_dict(self._best)


def fit_head(
    strategy: FalseVFLSettings,
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
        drawn = [drawn_step(first.nets, sums, rounds.counts[rows], s, n_draws) for s in seeds]
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


def _check_classes(targets: LabelTargets, rows: Indices) -> None:
    """Raise `DataError` if no sample of a class takes part: it could never be predicted."""
    for number, label in enumerate(targets.classes):
        n_labels = int((targets.y[targets.known] == number).sum())
        if not (targets.y[rows] == number).any():
            raise DataError(
                f"none of the {n_labels} samples with the label {level_text(label)} takes part, so "
                "that the class would never be predicted: each is held by one party alone, which "
                "does not agree to the exchange 'lone-embeddings'; leave these labels out, or "
                "align samples of that class that several parties hold"
            )
