"""The first stage at the server: the generative model of all samples, three rounds a step."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Result
from flwr_vertical.arrays import Indices
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.results import Progress
from strategies.false_vfl.bounds import log_bound
from strategies.false_vfl.early_stopping import EarlyStop, split_off
from strategies.false_vfl.hardware import device_of
from strategies.false_vfl.predict import drawn_step
from strategies.false_vfl.rounds import Rounds
from strategies.false_vfl.server_model import ServerNets
from strategies.false_vfl.server_training import ServerStep

if TYPE_CHECKING:
    from strategies.false_vfl.strategy import FalseVFL


class Pretraining:
    """Both sides' generative parameters, trained by the bound of the marginal likelihood.

    Shapes: rows (n_usable,): samples that take part.
    """

    def __init__(
        self,
        strategy: "FalseVFL",
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
            "nets": self.nets,
            "optimiser": self._optimiser,
            "carried": self.carried,
            "losses": self._losses,
            "stop": self._stop,
            "best": self._best,
            "history": self._result.history,
        }
        total = self._steps * self._strategy.pretrain_epochs
        self.rounds.federation.loop(total, self._step, live)
        last = self._result.history[-1]
        self._result.metrics["bound"] = -float(last["loss"])
        self._result.metrics["pretrain_epochs"] = float(last["epoch"])
        if len(self._validated):
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
                self._remember()
        self._result.history.append(line)
        return self._stop.is_over(epoch)

    def _learn(self, batch: Indices, i: int) -> float:
        """Take the three rounds of a step; return the batch's mean loss."""
        seed = int(self._rng.integers(2**62))
        sums = self.rounds.encode(batch, self.carried)
        settings, n_draws = self._strategy.network_settings, self._strategy.importance_samples
        counts = self.rounds.counts[batch]
        step = ServerStep(self.nets, settings, *sums, counts, seed, n_draws)
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

    def _remember(self) -> None:
        """Note these networks as the best; parties hear of it with the next message."""
        self._best.update({name: v.clone() for name, v in self.nets.state_dict().items()})
        self.carried["remember"] = True

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
        settings, n_draws = self._strategy.network_settings, self._strategy.importance_samples
        for first in range(0, len(self._validated), at_once):
            block = self._validated[first : first + at_once]
            sums = self.rounds.encode(block, self.carried)
            step = drawn_step(self.nets, settings, sums, self.rounds, block, self._seed, n_draws)
            terms = self.rounds.score(block, step, [self._seed], n_draws, tell=True)
            total -= float(log_bound(step.log_weights(terms[0])).sum())
        return total / len(self._validated)
