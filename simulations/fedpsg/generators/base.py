"""What all local generators share: one training loop, and one way to draw rows."""

from abc import ABC, abstractmethod
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flwr_vertical.arrays import Array
from simulations.fedpsg.generators.encodings import Encoding

_DRAWN_AT_ONCE = 8192


class LocalGenerator(ABC):
    """Learns the distribution of one table and draws rows of it, given nothing."""

    learning_rate = 1e-3
    encodes: type[Encoding]
    encoding: Encoding

    def __init__(self, iterations: int, seed: int = 0, batch: int = 256) -> None:
        self.iterations, self.seed, self.batch = iterations, seed, batch

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Fit the encoding to a table and return it; shape (n, width)."""
        self.encoding = self.encodes(self.seed)
        return torch.as_tensor(self.encoding.fit(frame)).float()

    def decode(self, values: Array) -> pd.DataFrame:
        """Return encoded rows as a table of valid values."""
        return self.encoding.decode(values)

    @abstractmethod
    def build(self, width: int) -> None:
        """Make networks and optimisers for encoded rows of this width."""

    @abstractmethod
    def step(self, x: Tensor) -> float:
        """Train on a batch of encoded rows, and return a loss."""

    @abstractmethod
    def draw(self, count: int) -> Tensor:
        """Draw encoded rows; shape (count, width)."""

    def fit(self, frame: pd.DataFrame) -> list[float]:
        """Train on a table without missing cells, and return the loss of each step."""
        # Layers' weights, dropout and noise come from the global generator, which is put back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            x = self.encode(frame)
            self.build(x.shape[1])
            rows = np.random.default_rng(self.seed)
            losses = []
            for _ in range(self.iterations):
                chosen = torch.as_tensor(rows.integers(len(x), size=self.batch))
                losses.append(self.step(x[chosen]))
            return losses

    def sample(self, count: int) -> pd.DataFrame:
        """Draw rows of the table that `fit` saw."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self.seed + 1)
            starts = range(0, count, _DRAWN_AT_ONCE)
            parts = [self.draw(min(_DRAWN_AT_ONCE, count - at)).numpy() for at in starts]
        return self.decode(np.concatenate(parts).astype(np.float64))


def multilayer(sizes: list[int], *, leak: float | None = None, dropout: float = 0.0) -> nn.Module:
    """Return linear layers with ReLU (or leaky ReLU, and dropout) between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        if i:
            layers.append(nn.ReLU() if leak is None else nn.LeakyReLU(leak))
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers)
