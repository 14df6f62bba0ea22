"""The server's half of training and imputing: two exchanges a step, four with joint generators."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_vertical import Federation, Progress
from flwr_vertical.arrays import Array, Bytes, Floats32, Indices
from flwr_vertical.errors import DataError
from strategies.fedpsg.blinding import pad_of
from strategies.fedpsg.gan.steps import BACK
from strategies.fedpsg.messages import MOST_CLASSES

if TYPE_CHECKING:
    from torch import Tensor

    from strategies.fedpsg.gan.halves import GanShape, TopNets


IMPUTE_ROWS = 8192
NOTED_EVERY = 50
LOSS_LIMIT = 4096.0
"""Largest reconstruction loss of a sample at a party; each level costs 14 at most."""


@dataclass
class GanTraining:
    """Trains the networks of all parties."""

    federation: Federation
    shape: "GanShape"
    widths: dict[str, Indices]  # (n_columns,): by party, encoded columns of each attribute
    # (n_samples, n_columns): by party, which cells are to be imputed
    missing: dict[str, Bytes]
    labels: Floats32  # (n_samples, n_labels): for CGAIN; no column otherwise
    top: "TopNets" = field(init=False)

    def __post_init__(self) -> None:
        from strategies.fedpsg.gan.halves import TopNets

        self.top = TopNets(self.shape, {n: int(w.sum()) for n, w in self.widths.items()})

    @property
    def n_samples(self) -> int:
        """Aligned samples."""
        return len(self.labels)

    def run(
        self, iterations: int, batch: int, history: list[dict[str, Any]], progress: Progress
    ) -> None:
        """Take training steps; each draws its own batch."""

        def body(i: int) -> None:
            rows = self.federation.rng.integers(0, self.n_samples, size=batch)
            seed = int(self.federation.rng.integers(2**62))
            told = self.step(rows, seed)
            if i % NOTED_EVERY == 0 or i == iterations - 1:
                history.append({"iteration": i + 1, **told})
            progress.step("train", detail=f"step {i + 1}")

        self.federation.loop(iterations, body, {"top": self.top, "history": history})

    def step(self, rows: Indices, seed: int) -> dict[str, float]:
        """Train on one batch."""
        import torch

        given = self._given(rows, seed)
        total = self.federation.sum("forward", given, scale={"loss": LOSS_LIMIT})
        labels = self.labels[rows]
        at_top = labels if labels.shape[1] else np.zeros((len(rows), 1), dtype=np.float32)
        back, told = self.top.update(
            torch.as_tensor(np.array(total["top"])).float(),
            torch.as_tensor(np.array(total["loss"])).float(),
            self._shown(rows, seed),
            torch.as_tensor(at_top),
            seed,
        )
        given |= {name: getattr(back, name).numpy() for name in BACK}
        if self.shape.joint:
            found = self.federation.sum("by_others", given)
            given |= {"by_embedding": found["gradient"], "gradient_pad": pad_of(found)}
        self.federation.call("update", given)
        return told

    def impute(self) -> None:
        """Have the parties fill what is missing, some samples at a time."""
        gone = np.zeros(self.n_samples, dtype=bool)
        for flags in self.missing.values():
            gone |= flags.any(axis=1)
        rows = np.flatnonzero(gone)
        for start in range(0, len(rows), IMPUTE_ROWS):
            some = rows[start : start + IMPUTE_ROWS]
            seed = int(self.federation.rng.integers(2**62))
            self.federation.call("impute", self._given(some, seed))

    def _given(self, rows: Indices, seed: int) -> dict[str, Any]:
        given: dict[str, Any] = {"batch": rows, "seed": seed}
        if self.shape.n_labels:
            given["labels"] = self.labels[rows]
        if self.shape.joint:
            embedded = self.federation.sum("embed", {"batch": rows})
            given |= {"others": embedded["embedded"], "pad": pad_of(embedded)}
        return given

    def _shown(self, rows: Indices, seed: int) -> "Tensor":
        """Return which encoded entries of a batch the networks are shown."""
        import torch

        from strategies.fedpsg.gan.networks import draw_shown

        parts = []
        for name, widths in self.widths.items():
            gone = self.missing[name]
            mask = torch.as_tensor(np.repeat(1 - gone[rows], widths, axis=1)).float()
            hideable = torch.as_tensor(np.repeat(gone.any(axis=0), widths)).float()
            parts.append(draw_shown(seed, name, mask, hideable, self.shape.hidden))
        return torch.cat(parts, dim=1)


def one_hot(labels: Array) -> Floats32:
    """Return a column for each different label; zeros where there is none (NaN)."""
    classes = np.unique(labels[~np.isnan(labels)])
    return np.asarray((labels[:, None] == classes).astype(np.float32))


def class_columns(federation: Federation) -> Floats32:
    """Return what CGAIN is given of the labels: a column for each class."""
    if federation.labels is None or np.isnan(federation.labels).all():
        raise DataError("imputer 'cgain' needs labels, and none are given; take 'gain'")
    columns = one_hot(federation.labels)
    if columns.shape[1] > MOST_CLASSES:
        raise DataError(
            f"imputer 'cgain' is given labels of {columns.shape[1]} different values, and takes at "
            f"most {MOST_CLASSES} classes; group the labels, or take 'gain'"
        )
    return columns


def train_and_impute(
    federation: Federation,
    settings: Any,  # Of `FedPSGAR`
    common: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    history: list[dict[str, Any]],
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Train the networks, and have them fill what rules did not."""
    from strategies.fedpsg.gan.halves import GanShape

    labels = class_columns(federation) if settings.imputer == "cgain" else None
    shape = GanShape(
        settings.imputer,
        settings.generator == "joint",
        0 if labels is None else labels.shape[1],
        int(federation.rng.integers(2**31)),
        settings.learning_rate,
        settings.alpha,
        settings.hidden,
    )
    told = federation.call("receive", {**common, **asdict(shape)}, per_party=targets)
    widths = {name: np.asarray(of["widths"], dtype=np.int64) for name, of in told.items()}
    missing = {name: np.asarray(of["missing"], dtype=np.uint8) for name, of in told.items()}
    if labels is None:
        labels = np.zeros((len(next(iter(missing.values()))), 0), dtype=np.float32)
    progress.total = (progress.total or 0) + settings.iterations
    training = GanTraining(federation, shape, widths, missing, labels)
    training.run(settings.iterations, settings.batch, history, progress)
    training.impute()
    return federation.call("finish")
