"""Rows as numbers for a network, and back to valid values."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.preprocessing import QuantileTransformer

from flwr_vertical.arrays import Array

_MODES = 10
_WEIGHT = 0.005  # of a mode that is kept (Xu et al., the authors' code)
_FITTED = 3000  # rows that a mixture is fitted to


@dataclass(frozen=True)
class Block:
    """Which encoded columns belong to an attribute."""

    name: str
    start: int
    width: int
    levels: npt.NDArray[np.object_] | None  # None of a number
    whole: bool  # Whether a number is whole

    @property
    def place(self) -> slice:
        """Its columns."""
        return slice(self.start, self.start + self.width)

    def one_hot(self, column: "pd.Series[Any]") -> Array:
        """Return a column of 0 and 1 for each level."""
        assert self.levels is not None
        return np.asarray((column.to_numpy(dtype=object)[:, None] == self.levels).astype(float))

    def numbers(self, values: Array, low: float, high: float) -> Array:
        """Return numbers within the range that was seen, whole ones rounded."""
        kept = np.clip(values, low, high)
        return np.round(kept) if self.whole else kept


def block_of(name: str, column: "pd.Series[Any]", start: int, width: int) -> Block:
    """Return the block of an attribute; ``width`` counts where it is a number."""
    if not pd.api.types.is_numeric_dtype(column):
        levels = np.array(sorted(column.unique()), dtype=object)
        return Block(name, start, len(levels), levels, False)
    values = column.to_numpy(dtype=float)
    return Block(name, start, width, None, bool(np.array_equal(values, values.round())))


@dataclass
class Encoding(ABC):
    """Attributes side by side, levels one-hot."""

    seed: int = 0
    blocks: list[Block] = field(default_factory=list)
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    def fit(self, frame: pd.DataFrame) -> Array:
        """Learn the encoding of a table and return it encoded."""
        parts, start = [], 0
        rng = np.random.default_rng(self.seed)
        for name in frame:
            column, own = frame[name], np.zeros((len(frame), 0))
            if pd.api.types.is_numeric_dtype(column):
                values = column.to_numpy(dtype=float)
                own = self.encode(str(name), values, rng)
                self.ends[str(name)] = float(values.min()), float(values.max())
            block = block_of(str(name), column, start, own.shape[1])
            parts.append(own if block.levels is None else block.one_hot(column))
            self.blocks.append(block)
            start += block.width
        return np.hstack(parts)

    def decode(self, x: Array) -> pd.DataFrame:
        """Return encoded rows as a table."""
        out: dict[str, object] = {}
        for block in self.blocks:
            part = x[:, block.place]
            if block.levels is not None:
                out[block.name] = block.levels[part.argmax(axis=1)]
            else:
                values = self.values(block.name, part)
                out[block.name] = block.numbers(values, *self.ends[block.name])
        return pd.DataFrame(out)

    @abstractmethod
    def encode(self, name: str, values: Array, rng: np.random.Generator) -> Array:
        """Learn how numbers of an attribute are encoded, and encode them; shape (n, width)."""

    @abstractmethod
    def values(self, name: str, part: Array) -> Array:
        """Return the numbers that `encode` made this of."""


@dataclass
class Quantiles(Encoding):
    """Numbers as normal scores of their ranks: TabDDPM's encoding."""

    scores: dict[str, QuantileTransformer] = field(default_factory=dict)

    def encode(self, name: str, values: Array, rng: np.random.Generator) -> Array:
        """Return scores; equal values are spread over their ranks."""
        self.scores[name] = QuantileTransformer(
            n_quantiles=min(1000, len(values)), output_distribution="normal",
            random_state=self.seed,
        )  # fmt: skip
        # Extremes are at 5.2 otherwise, far from all other scores.
        return np.asarray(self.scores[name].fit_transform(values[:, None])).clip(-3.5, 3.5)

    def values(self, name: str, part: Array) -> Array:
        """Return the numbers of scores."""
        return np.asarray(self.scores[name].inverse_transform(part)[:, 0])


@dataclass
class Modes(Encoding):
    """Numbers as a mode and the distance from it: CTGAN's encoding.

    Xu, Skoularidou, Cuesta-Infante and Veeramachaneni (2019), Section 4.2: a number is
    (value - mean of its mode) / (4 standard deviations), and which mode it is of; modes are those
    of a Bayesian Gaussian mixture, and each value's is drawn.
    """

    means: dict[str, Array] = field(default_factory=dict)
    widths: dict[str, Array] = field(default_factory=dict)

    def encode(self, name: str, values: Array, rng: np.random.Generator) -> Array:
        """Return distances from modes, and which mode each is of."""
        chosen = rng.permutation(len(values))[:_FITTED]
        scale = max(float(values.std()), 1e-12)
        count = min(_MODES, len(np.unique(values[chosen])), len(chosen))
        mixture = BayesianGaussianMixture(
            n_components=count, weight_concentration_prior=1e-3, max_iter=100,
            reg_covar=1e-4, random_state=self.seed,
        )  # fmt: skip
        # Without convergence in so many rounds it is a mixture all the same.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(values[chosen, None] / scale)
        kept = mixture.weights_ > _WEIGHT
        means = mixture.means_[kept, 0] * scale
        widths = 4.0 * np.sqrt(mixture.covariances_[kept, 0, 0]) * scale
        shares = mixture.predict_proba(values[:, None] / scale)[:, kept] + 1e-9
        ends = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
        mode = (rng.random((len(values), 1)) > ends).sum(axis=1).clip(0, len(means) - 1)
        distance = np.clip((values - means[mode]) / widths[mode], -1.0, 1.0)
        self.means[name], self.widths[name] = means, widths
        return np.column_stack([distance, mode[:, None] == np.arange(len(means))])

    @property
    def choices(self) -> list[slice]:
        """Encoded columns of each choice, of a mode or a level, in order."""
        return [
            block.place if block.levels is not None else slice(block.start + 1, block.place.stop)
            for block in self.blocks
        ]

    @property
    def distances(self) -> list[int]:
        """Encoded columns of distances from modes."""
        return [block.start for block in self.blocks if block.levels is None]

    def values(self, name: str, part: Array) -> Array:
        """Return the numbers of distances and modes."""
        mode = part[:, 1:].argmax(axis=1)
        distance = np.clip(part[:, 0], -1.0, 1.0)
        return np.asarray(self.means[name][mode] + distance * self.widths[name][mode])
