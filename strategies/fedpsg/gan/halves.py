"""Both halves of the split networks: what a party computes, and what the server does.

A step works on one batch, and both players move at once, from the same forward pass: so it takes
two exchanges. A party gives its term of the top discriminator's first layer and the reconstruction
loss of each sample; back come the gradients of both players' losses with regard to these. The paper
draws a batch for each player; gradients are the same otherwise, and equal those of one graph.

With an embedding (``generator="joint"``) a generator is also given the sum of what the other
parties' samples are mapped to. That takes two exchanges more, one each way.

The networks of one party alone: the paper's local imputation, with the same losses and draws.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_vertical.arrays import Array
from strategies.fedpsg.gan.encoding import Encoding
from strategies.fedpsg.gan.networks import (
    ALPHA,
    DIVERGENCE,
    adversarial_loss,
    dense,
    discriminate,
    discriminator_loss,
    draw_noise,
    draw_open,
    draw_shown,
    generate,
    hint_of,
    joint_reconstruction,
    layers_of,
    make_bottom,
    make_generator,
    make_top,
    reconstruction,
    set_gradients,
    top_input,
)
from strategies.fedpsg.messages import EMBEDDING
from strategies.neural.networks import Packed


@dataclass(frozen=True)
class GanShape:
    """What all nodes agree on before training."""

    kind: str = "gain"  # Of the generators
    joint: bool = False  # Whether generators are given an embedding of the other parties
    n_labels: int = 0  # Columns of labels (CGAIN), or 0
    seed: int = 0  # Of the weights
    learning_rate: float = 1e-3  # Of Adam
    alpha: float = ALPHA  # Weight of the reconstruction
    # Share of a party's samples in a step whose values have to be generated although it has them.
    # They count in the reconstruction, so that generators are also trained on what they are for;
    # the paper has none.
    hidden: float = 0.0


@dataclass(frozen=True)
class Forward:
    """A party's forward pass, with its graph."""

    top: Tensor  # (n, 128): its term of the top discriminator's first layer
    loss: Tensor  # (n,): its reconstruction loss of each sample
    divergence: Tensor  # (n,): of its code (VGAIN)
    others: Tensor  # (n, EMBEDDING): embedding of the others, a leaf


class GanNets(Packed):
    """A party's networks and their optimisers.

    Shapes: is_level (width,): which encoded columns are of levels; hideable (width,): see
    `networks.draw_shown`; all by default.
    """

    def __init__(
        self, shape: GanShape, party: str, is_level: Tensor, hideable: Tensor | None = None
    ) -> None:
        self.shape, self.party, self.is_level = shape, party, is_level
        self.hideable = torch.ones(len(is_level)) if hideable is None else hideable
        width = len(is_level)
        more = shape.n_labels + (EMBEDDING if shape.joint else 0)
        self.generator = make_generator(width, more, shape.kind, shape.seed, party)
        self.bottom = make_bottom(width, shape.seed, party)
        self.embedder = nn.ModuleDict()
        if shape.joint:
            sizes = [2 * width, 2 * EMBEDDING, EMBEDDING]
            self.embedder["layers"] = dense(sizes, shape.seed, f"embedder {party}")
        generating = [*self.generator.parameters(), *self.embedder.parameters()]
        self.for_generator = torch.optim.Adam(generating, lr=shape.learning_rate)
        self.for_bottom = torch.optim.Adam(self.bottom.parameters(), lr=shape.learning_rate)

    def _parts(self) -> dict[str, Any]:
        return {
            "generator": self.generator,
            "bottom": self.bottom,
            "embedder": self.embedder,
            "for generator": self.for_generator,
            "for bottom": self.for_bottom,
        }

    def embed(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map a batch to an embedding; shape (n, EMBEDDING)."""
        first, second = layers_of(self.embedder, "layers")
        found: Tensor = second(torch.relu(first(torch.cat([mask * x, mask], dim=1))))
        return found

    def generated(
        self, x: Tensor, mask: Tensor, seed: int, labels: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Generate a batch, and the divergence of its code; see `networks.generate`."""
        noise = draw_noise(seed, self.party, (len(x), len(self.is_level)))
        parts = [labels] if self.shape.n_labels else []
        more = torch.cat([*parts, others], dim=1) if self.shape.joint or parts else x[:, :0]
        return generate(self.generator, x, mask, noise, more, seed, self.party)

    def forward(
        self, x: Tensor, mask: Tensor, seed: int, labels: Tensor, others: Tensor | None = None
    ) -> Forward:
        """Return what the party tells of a batch.

        Shapes: x, mask (n, width); labels (n, n_labels); others (n, EMBEDDING): embedding of the
        other parties.
        """
        width = EMBEDDING if self.shape.joint else 0
        others = torch.zeros(len(x), width) if others is None else others.clone()
        others.requires_grad_(self.shape.joint)
        shown = draw_shown(seed, self.party, mask, self.hideable, self.shape.hidden)
        made, divergence = self.generated(x, shown, seed, labels, others)
        imputed = shown * x + (1.0 - shown) * made
        hint = hint_of(shown, draw_open(seed, self.party, (len(x), x.shape[1])))
        top = top_input(self.bottom, imputed, hint, seed, self.party)
        return Forward(top, reconstruction(x, made, mask, self.is_level), divergence, others)

    def gradient_of_others(self, forward: Forward, back: "Back") -> Tensor:
        """Return the gradient of the generators' loss by the others' embedding."""
        outputs, gradients = self._generator_loss(forward, back)
        (found,) = torch.autograd.grad(outputs, [forward.others], gradients, retain_graph=True)
        return found

    def update(
        self,
        forward: Forward,
        back: "Back",
        own: Tensor | None = None,
        by_own: Tensor | None = None,
    ) -> None:
        """Move both players of this party.

        Shapes: own, by_own (n, EMBEDDING): the own embedding with its graph, and the gradient by
        it from the other parties.
        """
        by_weights = torch.autograd.grad(
            [forward.top],
            list(self.bottom.parameters()),
            [back.by_discriminator],
            retain_graph=True,
        )
        set_gradients(self.bottom, by_weights)
        self.for_generator.zero_grad()
        outputs, gradients = self._generator_loss(forward, back)
        made = list(self.generator.parameters())
        set_gradients(self.generator, torch.autograd.grad(outputs, made, gradients))
        if own is not None and by_own is not None:
            mapped = list(self.embedder.parameters())
            set_gradients(self.embedder, torch.autograd.grad([own], mapped, [by_own]))
        self.for_bottom.step()
        self.for_generator.step()

    def _generator_loss(self, forward: Forward, back: "Back") -> tuple[list[Tensor], list[Tensor]]:
        outputs, gradients = [forward.top, forward.loss], [back.by_generator, back.by_loss]
        if self.shape.kind == "vgain":
            outputs.append(forward.divergence)
            gradients.append(torch.full_like(forward.divergence, DIVERGENCE / len(forward.loss)))
        return outputs, gradients


@dataclass(frozen=True)
class Back:
    """What the server answers."""

    # by_discriminator, by_generator: (n, 128): gradients of both players' losses by the sum of
    # the first layer
    by_discriminator: Tensor
    by_generator: Tensor
    by_loss: Tensor  # (n,): gradient of the generators' loss by the summed reconstruction loss


class TopNets(Packed):
    """The server's part of the top discriminator, and its optimiser."""

    def __init__(self, shape: GanShape, widths: dict[str, int]) -> None:
        self.shape, self.widths = shape, widths
        self.top = make_top(sum(widths.values()), shape.n_labels, shape.seed)
        self.for_top = torch.optim.Adam(self.top.parameters(), lr=shape.learning_rate)

    def _parts(self) -> dict[str, Any]:
        return {"top": self.top, "for": self.for_top}

    def opened(self, seed: int, n: int) -> Tensor:
        """Return which entries of a batch the hints leave open; shape (n, all widths)."""
        parts = [draw_open(seed, name, (n, width)) for name, width in self.widths.items()]
        return torch.cat(parts, dim=1)

    def update(
        self, total: Tensor, loss: Tensor, mask: Tensor, labels: Tensor, seed: int
    ) -> tuple[Back, dict[str, float]]:
        """Return the gradients by what the parties gave, and move the top discriminator.

        Shapes: total (n, 128): sum of the parties' terms; loss (n,): sum of their reconstruction
        losses; mask (n, all widths): which encoded entries are there.
        """
        total, loss = total.clone().requires_grad_(), loss.clone().requires_grad_()
        log_odds = discriminate(self.top, total, labels, seed)
        is_open = self.opened(seed, len(total))
        against = discriminator_loss(log_odds, mask, is_open)
        by = torch.autograd.grad(against, [total, *self.top.parameters()], retain_graph=True)
        fooled = adversarial_loss(log_odds, mask, is_open)
        kept = joint_reconstruction(loss, self.shape.alpha)
        by_generator, by_loss = torch.autograd.grad(fooled + kept, [total, loss])
        set_gradients(self.top, by[1:])
        self.for_top.step()
        told = {
            "discriminator": float(against.detach()),
            "adversarial": float(fooled.detach()),
            "reconstruction": float(kept.detach()),
        }
        return Back(by[0], by_generator, by_loss), told


def impute_alone(
    codes: Array,
    encoding: Encoding,
    shape: GanShape,
    iterations: int,
    batch: int,
    rng: np.random.Generator,
    name: str = "alone",
) -> Array:
    """Train both networks on one party's table, and fill what is missing (NaN) in its codes."""
    values, known = encoding.encode(codes)
    x, mask = torch.as_tensor(values).float(), torch.as_tensor(known).float()
    gone = np.repeat(np.isnan(codes).any(axis=0), encoding.widths)
    nets = GanNets(shape, name, torch.as_tensor(encoding.is_level), torch.as_tensor(gone).float())
    top = TopNets(shape, {name: encoding.width})
    none, at_top = torch.zeros(batch, 0), torch.zeros(batch, 1)
    for _ in range(iterations):
        rows = torch.as_tensor(rng.integers(0, len(codes), size=batch))
        seed = int(rng.integers(2**62))
        forward = nets.forward(x[rows], mask[rows], seed, none)
        shown = draw_shown(seed, name, mask[rows], nets.hideable, shape.hidden)
        back, _ = top.update(forward.top.detach(), forward.loss.detach(), shown, at_top, seed)
        nets.update(forward, back)
    out = codes.copy()
    rest = np.flatnonzero(np.isnan(codes).any(axis=1))
    with torch.no_grad():
        empty = torch.zeros(len(rest), 0)
        made, _ = nets.generated(x[rest], mask[rest], int(rng.integers(2**62)), empty, empty)
    filled = encoding.decode(made.numpy().astype(np.float64))
    out[rest] = np.where(np.isnan(codes[rest]), filled, codes[rest])
    return out
