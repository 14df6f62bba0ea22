"""SimSiam at one party: an encoder learns from rows without labels (Chen and He, 2021).

Two views of a row go through encoder and projector; a predictor shall find one view's projection
from the other's, through which no gradient goes. A party does this with its own rows alone, so it
takes no round.

What views are is in `views`.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flwr_vertical.errors import DataError
from strategies.false_vfl.gaussian import draw_seed
from strategies.false_vfl.networks import ACTIVATIONS, apply, new_generator, perceptron
from strategies.split.methods import Training
from strategies.split.sizes import SplitNetworks
from strategies.split.views import views_of

MOMENTUM = 0.9


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


class FallingRates:
    """Gradient descent with momentum whose rate falls along a cosine, but for predictors."""

    def __init__(
        self, falling: Sequence[nn.Module], fixed: Sequence[nn.Module], training: Training
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
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([loss])
        self.optimiser.step()
        return float(loss.detach())


def batches_of(n_rows: int, size: int, rng: np.random.Generator) -> list[Tensor]:
    """Draw an order of rows, and cut it into batches of about one size, none of a single row."""
    order = rng.permutation(n_rows)
    return [torch.from_numpy(part) for part in np.array_split(order, max(1, -(-n_rows // size)))]


def pretrain(
    encoder: nn.Module,
    x: Tensor,
    networks: SplitNetworks,
    training: Training,
    seed: int,
    name: str,
) -> list[float]:
    """Train an encoder on a party's own rows.

    Shapes: x (n_rows, n_columns): standardised columns, of all rows that take part.
    """
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
            z = [apply(projected, view, networks.mixed) for view in views]
            p = [heads.predictor(values) for values in z]
            loss = 0.5 * (distance(p[0], z[1]) + distance(p[1], z[0]))
            total += descent.step(loss) * len(batch)
        losses.append(total / len(x))
        check_loss(losses[-1], name)
    return losses


def check_rows(n_rows: int, name: str) -> None:
    """Refuse to pretrain on fewer rows than a batch can be normalised over."""
    if n_rows < 2:
        raise DataError(
            f"party {name!r} has {n_rows} rows to pretrain on; expected 2 or more. Set "
            "pretrain='none', or align samples that it holds"
        )


def check_loss(loss: float, name: str) -> None:
    """Refuse to go on where the loss is not a number."""
    if not math.isfinite(loss):
        raise DataError(
            f"party {name!r}: the loss of pretraining is {loss}; lower pretrain_learning_rate, and "
            "look for extreme values in its columns"
        )
