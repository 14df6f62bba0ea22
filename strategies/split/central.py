"""The methods in one process, where all columns lie together: one graph, one optimiser.

For studies of the methods, and what the protocol between parties and server is measured against:
from the same seeds both compute the same, to rounding.

::

    model = CentralSplit(blocks, "plug", n_classes=26, seed=0)
    model.fit(rows, y)                 # labelled samples: numbers, and their classes
    found = model.predict(new_blocks, new_rows)
    found.value                        # classes, shape (n_rows,); found.probabilities
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from flwr_vertical.arrays import Array, Flags
from strategies.neural.networks import Prediction, descend, draw_seed
from strategies.neural.party import PartyBlock
from strategies.split.methods import DEFAULTS, METHODS, SplitNetworks, TrainingSettings, draw_tasks
from strategies.split.networks import Extractor, TwoEncoders, make_head
from strategies.split.pretraining import HybridPretraining, pretrain

Weights = dict[str, dict[str, Tensor]]


class CentralSplit(nn.Module):
    """A method's networks, of all parties and of the server."""

    def __init__(
        self,
        blocks: Mapping[str, PartyBlock],
        method: str,
        n_classes: int | None,
        seed: int,
        training: TrainingSettings | None = None,
        networks: SplitNetworks | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.method = METHODS[method]
        self.training_settings = training or DEFAULTS[method]
        chosen = networks or SplitNetworks()
        self.networks = replace(chosen, fusion=self.method.fusion, hybrid=self.method.hybrid)
        self.blocks, self.dtype = dict(blocks), dtype
        self._rng = np.random.default_rng(seed)
        self.seed = int(self._rng.integers(2**62))
        k = len(self.blocks)
        self.parties = nn.ModuleDict(
            {
                name: Extractor(block.x.shape[1], self.networks, k, self.seed, name)
                for name, block in self.blocks.items()
            }
        )
        self.head = make_head(self.networks, n_classes, k, self.seed)
        self.to(dtype)
        self.seeds = {name: draw_seed(self.seed, f"pretraining of {name}") for name in self.blocks}
        self.losses: list[float] = []
        self._pretrained = self.training_settings.pretrain == "none"

    def fit(self, rows: Tensor, y: Tensor) -> None:
        """Pretrain, unless that was done or is not wanted, and train with labels.

        Shapes: rows (n_labelled,): samples with a label, numbered as in the blocks; y
        (n_labelled,): their classes 0, 1, ..., or standardised numbers.
        """
        if not self._pretrained:
            self.pretrain()
        held = self._held(self.blocks, rows)
        if self.method.aligned_only:
            chosen = torch.from_numpy(held.all(axis=1))
            rows, y, held = rows[chosen], y[chosen], held[chosen.numpy()]
        if not len(rows):
            raise ValueError("no labelled sample that the method trains on")
        training = self.training_settings
        optimiser = torch.optim.Adam(
            [p for net in (self.parties, self.head) for p in net.parameters()],
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
        )
        steps = math.ceil(len(rows) / training.batch_size)
        left = training.steps(steps)
        while left > 0:
            order = self._rng.permutation(len(rows))
            total, seen = 0.0, 0
            for part in np.array_split(order, steps)[:left]:
                batch = torch.from_numpy(part)
                tasks = draw_tasks(self.method.tasks, held[part], training.drop, self._rng)
                loss = self._loss(rows[batch], y[batch], tasks.takes, tasks.weights)
                descend(optimiser, [loss])
                total, seen = total + float(loss.detach()) * len(batch), seen + len(batch)
            self.losses.append(total / seen)
            left -= steps

    def pretrain(self) -> Weights:
        """Train the encoders without labels; return their weights, by party: see `take_up`."""
        if self.method.hybrid:
            self._pretrain_hybrid()
        else:
            for name, block in self.blocks.items():
                encoder = self._extractor(name).encoder
                seed = self.seeds[name]
                pretrain(encoder, block.x, self.networks, self.training_settings, seed, name)
        self._pretrained = True
        return {
            name: copy.deepcopy(self._extractor(name).encoder.state_dict()) for name in self.parties
        }

    def take_up(self, weights: Weights) -> None:
        """Take encoders that another model's `pretrain` returned."""
        for name, state in weights.items():
            self._extractor(name).encoder.load_state_dict(state)
        self._pretrained = True

    def predict(self, blocks: Mapping[str, PartyBlock], rows: Tensor) -> Prediction:
        """Predict samples, whichever parties hold them; a party without one counts as zeros."""
        held = self._held(blocks, rows)
        with torch.no_grad():
            takes = np.zeros((1, len(rows), len(self.parties)), dtype=bool)
            for k, name in enumerate(self.parties):
                if name in blocks:
                    takes[0, :, k] = held[:, list(blocks).index(name)]
            given = self.head(*self._sums(blocks, rows, takes))[0]
        if self.head.n_classes is None:
            return Prediction(given, None, None)
        return Prediction(given.argmax(-1), given.softmax(-1), None)

    def _loss(self, rows: Tensor, y: Tensor, takes: Flags, weights: Array) -> Tensor:
        """Return the mean over rows of their tasks' weighted losses."""
        losses = self.head.losses(*self._sums(self.blocks, rows, takes), y)
        return (torch.from_numpy(weights).to(self.dtype) * losses).sum() / len(rows)

    def _sums(
        self, blocks: Mapping[str, PartyBlock], rows: Tensor, takes: Flags
    ) -> tuple[Tensor, Tensor]:
        """Return sums of embeddings, shape (n_tasks, n_rows, sent), and how many these are of."""
        flags = torch.from_numpy(takes).to(self.dtype)
        sums = torch.zeros(*takes.shape[:2], self.networks.sent, dtype=self.dtype)
        for k, name in enumerate(self.parties):
            if name in blocks:
                x, _, places = blocks[name].select(rows)
                own = self._extractor(name)(x)
                sums = sums.index_add(1, places, flags[:, places, k, None] * own)
        return sums, flags.sum(-1)

    def _held(self, blocks: Mapping[str, PartyBlock], rows: Tensor) -> Flags:
        """Return who holds which of some samples, shape (n_rows, n_blocks)."""
        return np.stack([(block.row[rows] >= 0).numpy() for block in blocks.values()], axis=1)

    def _pretrain_hybrid(self) -> None:
        """Run FedHSSL's pretraining, on samples that all parties hold and on each one's own."""
        training, n_parties = self.training_settings, len(self.parties)
        own = {}
        for name, block in self.blocks.items():
            encoder = self._extractor(name).encoder
            assert isinstance(encoder, TwoEncoders)
            how = self.networks, training, self.seed, self.seeds[name], name
            own[name] = HybridPretraining(encoder, block.x, *how)
        n_samples = len(next(iter(self.blocks.values())).row)
        everything = self._held(self.blocks, torch.arange(n_samples))
        aligned = np.flatnonzero(everything.all(axis=1))
        steps = math.ceil(len(aligned) / training.pretrain_batch_size)
        for epoch in range(training.pretrain_epochs):
            for part in np.array_split(self._rng.permutation(aligned), steps):
                batch = torch.from_numpy(part)
                x = {name: block.select(batch)[0] for name, block in self.blocks.items()}
                total = torch.stack([own[name].project(x[name]) for name in own]).sum(0)
                for name in own:
                    own[name].learn_across(x[name], total, n_parties, epoch)
            for one in own.values():
                one.learn_within(epoch)
            mean = torch.stack([one.shared for one in own.values()]).mean(0)
            for one in own.values():
                one.shared = mean

    def _extractor(self, name: str) -> Extractor:
        found = self.parties[name]
        assert isinstance(found, Extractor)
        return found
