"""Pretraining without labels: SimSiam at one party, and FedHSSL's across parties.

In SimSiam (Chen and He, 2021) two views of a row go through encoder and projector; a predictor
shall find one view's projection from the other's, through which no gradient goes. A party does this
with its own rows alone, so it takes no round.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from flwr_vertical.arrays import Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.arguments import Shape, check_fits
from strategies.neural.images import ImageShape
from strategies.neural.networks import (
    ACTIVATIONS,
    Packed,
    apply,
    descend,
    draw_seed,
    new_generator,
    perceptron,
)
from strategies.split.methods import SplitNetworks, TrainingSettings
from strategies.split.networks import TwoEncoders

MOMENTUM = 0.9


class TableViews:
    """The row itself, and one with some columns replaced, between least and largest value of x."""

    def __init__(self, x: Tensor, share: float) -> None:
        self._least, self._range = x.amin(0), x.amax(0) - x.amin(0)
        self._count = int(share * x.shape[1])

    def pair(self, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the rows, and rows with some columns replaced, others in each."""
        uniform = torch.from_numpy(rng.random(x.shape)).to(x.device, x.dtype)
        places = torch.from_numpy(rng.random(x.shape).argsort(axis=1).argsort(axis=1))
        chosen = (places < self._count).to(x.device)
        return x, torch.where(chosen, self._least + uniform * self._range, x)


class ImageViews:
    """Images moved by an eighth of a side at most, mirrored or not (Chen and He, Section 4)."""

    def __init__(self, image: ImageShape) -> None:
        self._image = image

    def pair(self, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return images moved and mirrored, each in another way."""
        return self._view(x, rng), self._view(x, rng)

    def _view(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        image, n = self._image, len(x)
        pad_y, pad_x = -(-image.height // 8), -(-image.width // 8)
        pixels = x.reshape(n, image.channels, image.height, image.width)
        padded = torch.nn.functional.pad(pixels, (pad_x, pad_x, pad_y, pad_y))
        rows = _places(image.height, pad_y, n, rng)
        columns = _places(image.width, pad_x, n, rng)
        mirrored = rng.random(n) < 0.5
        columns[mirrored] = columns[mirrored, ::-1]
        y, z = (torch.from_numpy(found).to(x.device) for found in (rows, columns))
        each = torch.arange(n, device=x.device)[:, None, None, None]
        channel = torch.arange(image.channels, device=x.device)[:, None, None]
        return padded[each, channel, y[:, None, :, None], z[:, None, None, :]].reshape(x.shape)


def _places(side: int, pad: int, n: int, rng: np.random.Generator) -> Integers:
    """Draw which pixels along a padded side each image takes, shape (n, side)."""
    return rng.integers(0, 2 * pad + 1, size=n)[:, None] + np.arange(side)


def views_of(x: Tensor, share: float, image: ImageShape | None) -> TableViews | ImageViews:
    """Return how views of a party's rows are made."""
    return TableViews(x, share) if image is None else ImageViews(image)


class SimSiamHeads(nn.Module):
    """Projector of three layers and predictor of two (Table 3), normalised over the batch."""

    def __init__(self, networks: SplitNetworks, generator: torch.Generator) -> None:
        super().__init__()
        d, k, hidden = networks.latent_dim, networks.projected, networks.predictor_width
        how = networks.activation, generator
        self.projector = nn.Sequential(
            *_normalised(d, k, *how), *_normalised(k, k, *how), *_normalised(k, k, "", generator)
        )
        self.predictor = nn.Sequential(
            *_normalised(k, hidden, *how), *perceptron(hidden, k, hidden, 1, *how)
        )


def _normalised(
    n_in: int, n_out: int, activation: str, generator: torch.Generator
) -> Iterator[nn.Module]:
    """Make a layer with batch normalisation; the last one of a projector has no activation."""
    yield from perceptron(n_in, n_out, n_out, 1, "relu", generator)
    # Only batches are ever normalised, so nothing is kept of earlier ones.
    yield nn.BatchNorm1d(n_out, affine=bool(activation), track_running_stats=False)
    if activation:
        yield ACTIVATIONS[activation]()


def unit(x: Tensor) -> Tensor:
    """Return rows of length 1."""
    return nn.functional.normalize(x, dim=-1)


def distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return minus the mean cosine of rows; no gradient goes through the target (Eq. 1 there)."""
    return -(unit(prediction) * unit(target.detach())).sum(-1).mean()


def compare_views(
    projected: nn.Module, predictor: nn.Module, views: Sequence[Tensor], mixed: bool
) -> tuple[list[Tensor], Tensor]:
    """Return predictions from two views, and SimSiam's loss of them."""
    z = [apply(projected, view, mixed) for view in views]
    p = [predictor(values) for values in z]
    return p, 0.5 * (distance(p[0], z[1]) + distance(p[1], z[0]))


class FallingRates:
    """Gradient descent with momentum whose rate falls along a cosine, but for predictors."""

    def __init__(
        self, falling: Sequence[nn.Module], fixed: Sequence[nn.Module], training: TrainingSettings
    ):
        self._training = training
        groups = [
            {"params": [p for net in nets for p in net.parameters()]} for nets in (falling, fixed)
        ]
        self.optimiser = torch.optim.SGD(
            groups,
            lr=training.pretrain_learning_rate,
            momentum=MOMENTUM,
            weight_decay=training.pretrain_weight_decay,
        )

    def at(self, epoch: int) -> None:
        """Set the rates of an epoch, counted from 0."""
        share = 0.5 * (1.0 + math.cos(math.pi * epoch / self._training.pretrain_epochs))
        self.optimiser.param_groups[0]["lr"] = self._training.pretrain_learning_rate * share

    def step(self, loss: Tensor) -> float:
        """Take a step down a loss; return it."""
        descend(self.optimiser, [loss])
        return float(loss.detach())


def batches_of(n_rows: int, size: int, rng: np.random.Generator) -> list[Tensor]:
    """Draw an order of rows, and cut it into batches of about one size, none of a single row."""
    order = rng.permutation(n_rows)
    return [torch.from_numpy(part) for part in np.array_split(order, max(1, -(-n_rows // size)))]


def pretrain(
    encoder: nn.Module,
    x: Tensor,
    networks: SplitNetworks,
    training: TrainingSettings,
    seed: int,
    name: str,
) -> list[float]:
    """Train an encoder on a party's own standardised rows that take part."""
    check_rows(len(x), name)
    heads = SimSiamHeads(networks, new_generator(seed, "projector")).to(x.device, x.dtype)
    rng = np.random.default_rng(draw_seed(seed, "views"))
    descent = FallingRates([encoder, heads.projector], [heads.predictor], training)
    views_from = views_of(x, training.corrupted, networks.image_of(name))
    projected = nn.Sequential(encoder, heads.projector)
    losses = []
    for epoch in range(training.pretrain_epochs):
        descent.at(epoch)
        total = 0.0
        for batch in batches_of(len(x), training.pretrain_batch_size, rng):
            views = views_from.pair(x[batch], rng)
            _, loss = compare_views(projected, heads.predictor, views, networks.mixed)
            total += descent.step(loss) * len(batch)
        losses.append(total / len(x))
        check_loss(losses[-1], name)
    return losses


def check_rows(n_rows: int, name: str) -> None:
    """Refuse to pretrain on fewer rows than a batch can be normalised over."""
    if n_rows < 2:
        raise DataError(
            f"party {name!r} has {counted(n_rows, 'row')} to pretrain on; expected 2 or more. Set "
            "pretrain='none', or align samples that it holds"
        )


def check_loss(loss: float, name: str) -> None:
    """Refuse to go on where the loss is not a number."""
    if not math.isfinite(loss):
        raise DataError(
            f"party {name!r}: the loss of pretraining is {loss}; lower pretrain_learning_rate, and "
            "look for extreme values in its columns"
        )


class HybridPretraining(Packed):
    """One party's part of FedHSSL's pretraining; belongs to the snapshots of a run.

    He, Kang, Luo, Fan and Yang, *A Hybrid Self-Supervised Learning Framework for Vertical Federated
    Learning* (2022). An epoch has three parts:

    1. *Across parties*, on aligned samples: a cross-party encoder's prediction shall agree with the
       projections z_j of the others. Minus the mean cosine with each is linear in ``z_j / |z_j|``,
       so a party needs their sum only (in the paper one party exchanges with each other one).
    2. *At each party*, on all its rows, x: SimSiam of its local encoder, guided by the other one.
    3. *Of what they share*: upper layers of local encoders, projectors, predictors become means.
    """

    def __init__(
        self,
        encoder: TwoEncoders,
        x: Tensor,
        networks: SplitNetworks,
        training: TrainingSettings,
        shared_seed: int,
        seed: int,
        name: str,
    ) -> None:
        check_rows(len(x), name)
        self._encoder, self._x, self._training = encoder, x, training
        self._seed, self._name = seed, name
        own, shared = new_generator(seed, "projector"), new_generator(shared_seed, "projector")
        self.cross = SimSiamHeads(networks, own).to(x.device, x.dtype)
        self.local = SimSiamHeads(networks, shared).to(x.device, x.dtype)
        self._views = views_of(x, training.corrupted, networks.image_of(name))
        across = encoder.cross, self.cross.projector
        self._across = FallingRates(across, [self.cross.predictor], training)
        within = encoder.bottom, encoder.top, self.local.projector
        self._mixed = networks.mixed
        # What gives projections; what is trained is the same.
        self._cross_net = nn.Sequential(encoder.cross, self.cross.projector)
        self._local_net = nn.Sequential(*within)
        self._within = FallingRates(within, [self.local.predictor], training)

    def project(self, x: Tensor) -> Tensor:
        """Return projections of aligned rows, of length 1; shape (n_rows, projected)."""
        with torch.no_grad():
            return unit(apply(self._cross_net, x, self._mixed))

    def learn_across(self, x: Tensor, total: Tensor, n_parties: int, epoch: int) -> float:
        """Take a step towards the other parties' projections; return the loss.

        Shapes: x (n_rows, n_columns): the rows that `project` was given; total (n_rows,
        projected): sum over all parties of what `project` returned.
        """
        self._across.at(epoch)
        z = apply(self._cross_net, x, self._mixed)
        check_fits(self._name, "total", total, Shape(*z.shape))
        others = (total - unit(z.detach())) / (n_parties - 1)
        loss = -(unit(self.cross.predictor(z)) * others).sum(-1).mean()
        told = self._across.step(loss)
        check_loss(told, self._name)
        return told

    def learn_within(self, epoch: int) -> float:
        """Go once through the own rows; return the mean loss."""
        self._within.at(epoch)
        rng = np.random.default_rng(draw_seed(self._seed, f"views of epoch {epoch}"))
        total, guide = 0.0, self._training.guide
        for batch in batches_of(len(self._x), self._training.pretrain_batch_size, rng):
            views = self._views.pair(self._x[batch], rng)
            p, loss = compare_views(self._local_net, self.local.predictor, views, self._mixed)
            if guide:
                with torch.no_grad():
                    across = [apply(self._cross_net, v, self._mixed) for v in views]
                loss = loss + guide * (distance(p[0], across[0]) + distance(p[1], across[1]))
            total += self._within.step(loss) * len(batch)
        check_loss(total, self._name)
        return total / len(self._x)

    @property
    def shared(self) -> Tensor:
        """The weights that are averaged over parties, shape (n_weights,)."""
        return parameters_to_vector(self._shared()).detach()

    @shared.setter
    def shared(self, weights: Tensor) -> None:
        check_fits(self._name, "mean", weights, Shape(*self.shared.shape))
        # A copy: else the parties of one process would share the memory of what they average.
        vector_to_parameters(weights.clone(), self._shared())

    def _shared(self) -> list[nn.Parameter]:
        nets = self._encoder.top, self.local.projector, self.local.predictor
        return [parameter for net in nets for parameter in net.parameters()]

    def _parts(self) -> dict[str, Any]:
        own = {"across": self._across.optimiser, "within": self._within.optimiser}
        return {"cross": self.cross, "local": self.local, **own}
