"""The server half: pretraining, training with labels and predictions, as rounds."""

import copy
import math
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from flwr_vertical import Alignment, Federation, Progress, Result, setting
from flwr_vertical.arrays import AnyArray, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.declaration import BITS, FACTS, If, Protocol, Repeat, Round
from flwr_vertical.results.evaluation import evaluate
from flwr_vertical.tables.codes import level_text
from strategies.linear.problem import sample_index
from strategies.neural.hardware import device_of, to_tensor
from strategies.neural.networks import descend, from_arrays, to_arrays
from strategies.neural.strategy import NeuralStrategy
from strategies.neural.training import EarlyStop, LabelTargets, split_off
from strategies.split.methods import (
    METHODS,
    Method,
    SplitNetworks,
    Tasks,
    TrainingSettings,
    draw_tasks,
)
from strategies.split.networks import SplitModel, make_head
from strategies.split.party import SplitParty
from strategies.split.rounds import SplitPredictions, SplitRounds, predict_rows, table_of

_TRAINED = "(iterations if iterations else epochs * ceil(n_samples / batch_size))"
_VALIDATED = "(((iterations or epochs) // validate_every) if validation_share else 0)"


class SplitNetwork(NeuralStrategy):
    """What all methods have: a step is one round, the last gradient riding with the next batch."""

    latent_dim: int = setting(128, "Numbers of an embedding.", at_least=1)
    layers: int = setting(2, "Layers with weights of an extractor.", at_least=1)

    kind: ClassVar[str]
    party = SplitParty
    protocol = Protocol(
        Round("prepare", "whether rows that it alone holds take part", tells=(FACTS, BITS)),
        If(
            "hybrid",
            Repeat(
                Round("project", "summed, projections of a batch, a loss, weights", tells=BITS),
                at_most="pretrain_epochs * ceil(n_samples / pretrain_batch_size) + 1",
            ),
        ),
        Repeat(
            Round("embed", "summed, embeddings of a batch or a block of rows", tells=BITS),
            at_most=f"{_TRAINED} + {_VALIDATED} + ceil(n_samples / prediction_rows)",
        ),
        Round("keep"),
    )
    predictions = SplitPredictions
    exchanges_asked: ClassVar[tuple[str, ...]] = ("embeddings",)

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Pretrain, train, and predict samples without a label."""
        targets = LabelTargets.of(np.asarray(federation.labels, dtype=float), self.task)
        seed = int(federation.rng.integers(2**62))
        rounds = SplitRounds(federation, alignment.mask)
        usable = self._prepare(rounds, seed, result)
        rows = self._trained_on(rounds, targets, usable, result)
        if self.training.pretrain != "none" and self.method.hybrid:
            aligned = usable[rounds.held[usable].all(axis=1)]
            pretrain_across(self, rounds, aligned, result, progress)
        fitted = LabelTraining(self, rounds, targets, rows, seed, result, progress)
        fitted.run()
        result.predictor = model = self.fitted(SplitModel, rounds, targets, fitted.head)
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

    @property
    def agreed(self) -> dict[str, Any]:
        """See `NeuralStrategy.agreed`."""
        training = self.training
        return {
            **super().agreed,
            "training": training.to_text(),
            "subsets": self.method.tasks != "observed",
            "hybrid": self.training.pretrain != "none" and self.method.hybrid,
            "epochs": training.epochs,
            "iterations": training.iterations,
        }

    @property
    def method(self) -> Method:
        """What tells this method from the others."""
        return METHODS[self.kind]

    @property
    def training(self) -> TrainingSettings:
        """Settings of training, as parties and the central form have them."""
        return TrainingSettings(**self.shared_with(TrainingSettings))

    @property
    def network_settings(self) -> SplitNetworks:
        """Sizes of all networks."""
        return SplitNetworks(
            **self.shared_with(SplitNetworks),
            fusion=self.method.fusion,
            hybrid=self.method.hybrid,
            mixed=self.precision == "mixed",
        )

    def _prepare(self, rounds: SplitRounds, seed: int, result: Result) -> Indices:
        """Hand out settings; return which samples take part."""
        agreed = self.agreed
        arguments = {
            "networks": agreed["network_sizes"], "training": agreed["training"],
            "n_parties": len(rounds.parties), "shared_seed": seed, "precision": self.precision,
            "device": self.device, "subsets": agreed["subsets"],
        }  # fmt: skip
        return rounds.agreed(rounds.federation.call("prepare", arguments), result)

    def _trained_on(
        self, rounds: SplitRounds, targets: LabelTargets, usable: Indices, result: Result
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
            labels = [level_text(targets.classes[int(c)]) for c in sorted(absent)]
            result.notes.append(
                f"no sample that is trained on is of class {', '.join(labels)}: these are hardly "
                f"ever predicted ({self.name} trains on samples that have {which})"
            )
        return rows


class LabelTraining:
    """Discriminator and extractors learn from labelled samples, `rows`, or validate by them."""

    def __init__(
        self,
        strategy: SplitNetwork,
        rounds: SplitRounds,
        targets: LabelTargets,
        rows: Indices,
        seed: int,
        result: Result,
        progress: Progress,
    ) -> None:
        self._strategy, self._rounds, self._targets = strategy, rounds, targets
        self._result, self._progress = result, progress
        self._rng = rounds.federation.rng
        self._rows, self._validated = split_off(rows, strategy.validation_share, self._rng)
        sizes, k = strategy.network_settings, len(rounds.parties)
        head = make_head(sizes, targets.n_classes, k, seed)
        self.head = head.to(device_of(strategy.device), strategy.dtype)
        self._optimiser = torch.optim.Adam(
            self.head.parameters(), lr=strategy.learning_rate, weight_decay=strategy.weight_decay
        )
        self._order: dict[str, Indices] = {}
        self._best: dict[str, Any] = {}
        self._held_out: dict[str, Any] = {}
        self._losses: list[float] = []
        self._stop = EarlyStop(strategy.patience)
        self._steps = math.ceil(len(self._rows) / strategy.batch_size)
        self._total = strategy.training.steps(self._steps)

    def run(self) -> None:
        """Take all steps, or those until validation says to stop."""
        live = {
            "head": self.head, "optimiser": self._optimiser, "carried": self._rounds.carried,
            "order": self._order, "best": self._best, "held_out": self._held_out,
            "losses": self._losses, "stop": self._stop, "history": self._result.history,
        }  # fmt: skip
        self._rounds.federation.loop(self._total, self._step, live)
        last = int(self._result.history[-1]["epoch"])
        self._result.metrics["epochs"] = float(last)
        self._result.metrics["loss"] = float(self._result.history[-1]["loss"])
        if 0 < self._stop.best_epoch < last:
            self.head.load_state_dict(from_arrays(self._best))
            self._rounds.carried["recall"] = True

    def held_out(self) -> tuple[Indices, torch.Tensor] | None:
        """Return the samples that validate, and what the networks that are kept say of them."""
        if "given" not in self._held_out:
            return None
        return self._validated, torch.from_numpy(np.array(self._held_out["given"]))

    def _step(self, i: int) -> bool:
        """Take one step; return whether it was the last one."""
        place, epoch = i % self._steps, i // self._steps + 1
        if place == 0:
            self._order["rows"] = self._rng.permutation(len(self._rows))
            self._losses.clear()
        parts = np.array_split(self._order["rows"], self._steps)
        part = parts[place]
        loss = self._learn(self._rows[part], i)
        self._losses.append(loss * len(part))
        self._progress.step(i + 1, self._total, loss=loss)
        if place < self._steps - 1 and i + 1 < self._total:
            return False
        seen = sum(len(one) for one in parts[: place + 1])
        line = {"stage": 2, "epoch": epoch, "loss": math.fsum(self._losses) / seen}
        if len(self._validated) and epoch % self._strategy.validate_every == 0:
            line["validation"], given = self._validate()
            if self._stop.is_better(epoch, line["validation"]):
                self._held_out["given"] = given
                self._best.update(copy.deepcopy(to_arrays(self.head)))
                self._rounds.carried["remember"] = True
        self._result.history.append(line)
        return self._stop.is_over(epoch)

    def _learn(self, batch: Indices, i: int) -> float:
        """Take the round of a step; return the batch's mean loss."""
        held, drop = self._rounds.held[batch], self._strategy.training.drop
        tasks = draw_tasks(self._strategy.method.tasks, held, drop, self._rng)
        sums, counts, weights = self._asked(batch, tasks)
        losses = self.head.losses(sums.requires_grad_(), counts, self._labels(batch))
        loss = (weights * losses).sum() / len(batch)
        told = float(loss.detach())
        if not math.isfinite(told):
            raise DataError(
                f"step {i + 1} of training with labels: the loss is {told}; lower learning_rate, "
                "and look for extreme values in the parties' columns"
            )
        descend(self._optimiser, [loss])
        assert sums.grad is not None
        self._rounds.carry(batch, tasks.takes, sums.grad)
        return told

    def _validate(self) -> tuple[float, AnyArray]:
        """Return the mean loss of samples that validate, and what the head says; one round."""
        sums, counts, _ = self._asked(self._validated, None)
        with torch.no_grad():
            losses = self.head.losses(sums, counts, self._labels(self._validated))
            given = self.head(sums[0], counts[0])
        return float(losses.mean()), given.cpu().numpy()

    def _asked(
        self, batch: Indices, tasks: Tasks | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ask for sums; return them, how many embeddings they are of, and their weights."""
        sums, counts = self._rounds.embed(batch, tasks)
        weights = np.ones(counts.shape) if tasks is None else tasks.weights
        like = next(self.head.parameters()).detach()
        return to_tensor(sums, like), to_tensor(counts, like), to_tensor(weights, like)

    def _labels(self, rows: Indices) -> torch.Tensor:
        strategy = self._strategy
        return self._targets.tensor(rows, device_of(strategy.device), strategy.dtype)


def pretrain_across(
    strategy: SplitNetwork,
    rounds: SplitRounds,
    aligned: Indices,
    result: Result,
    progress: Progress,
) -> None:
    """Run FedHSSL's pretraining: a round for each batch of rows that all hold, and a last one."""
    n_parties, training = len(rounds.parties), strategy.training
    if n_parties < 2 or len(aligned) < 2:
        raise DataError(
            f"FedHSSL pretrains on samples that all parties hold, two or more of each; there are "
            f"{n_parties} parties and {len(aligned)} such samples. Set pretrain='none', or align "
            "other samples"
        )
    rng, carried = rounds.federation.rng, rounds.carried
    steps = math.ceil(len(aligned) / training.pretrain_batch_size)
    total, losses, order = steps * training.pretrain_epochs, [], {}

    def body(i: int) -> None:
        """Take a step; the last one has no batch."""
        place, epoch = i % steps, i // steps
        if place == 0 and i < total:
            order["rows"] = rng.permutation(aligned)
        batch = np.array_split(order["rows"], steps)[place] if i < total else None
        of_last = {
            "epoch": (i - 1) // steps if i else None,
            "total": carried.pop("total", None),
            "mean": carried.pop("mean", None),
            "ends": True if i and place == 0 else None,
        }
        sums = rounds.project(batch=batch, **of_last)
        if batch is not None:
            carried["total"] = sums["projections"]
        if "shared" in sums:
            carried["mean"] = sums["shared"] / n_parties
        if i:
            losses.append(float(sums["loss"][0]) / n_parties)
        if i and place == 0:
            line = {"stage": 1, "epoch": epoch, "loss": math.fsum(losses) / steps}
            result.history.append(line)
            losses.clear()
        progress.step(i + 1, total + 1)

    live = {"carried": carried, "losses": losses, "order": order, "history": result.history}
    rounds.federation.loop(total + 1, body, live)
