"""A party's half of the imputing networks, as steps. PyTorch is imported where it is used."""

from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np

from flwr_vertical import StepGroup, Summands, step
from flwr_vertical.arrays import Array, Floats32, Indices, Integers
from flwr_vertical.node.kept import kept
from flwr_vertical.protocol.arguments import Shape, Within, check_fits
from strategies.common.imputing_party import ImputingParty
from strategies.fedpsg.blinding import BlindingSteps
from strategies.fedpsg.gan.encoding import Encoding
from strategies.fedpsg.messages import (
    EMBEDDING,
    BackFields,
    Batch,
    Embedded,
    Labels,
    Pad,
    Rows,
    Seed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from strategies.fedpsg.gan.halves import GanNets


BACK = ("by_discriminator", "by_generator", "by_loss")
"""What the server answers a forward pass: the fields of `halves.Back`."""

_CODES, _NETS, _SHAPE, _NAMES = "fedpsg.codes", "fedpsg.nets", "gan.shape", "gan.names"
_PENDING, _HIDEABLE = "fedpsg.gan pending", "gan.hideable"


class GanSteps(StepGroup):
    """Trains a party's generator and bottom discriminator, and imputes by the generator.

    What all parties are given of each other's samples in ``generator="joint"`` passes the server
    under a key stream of the group: it adds up what it cannot read.
    """

    party: ImputingParty

    def start(self, codes: Array, shape: dict[str, Any], names: list[str]) -> dict[str, Any]:
        """Keep the table that is to be completed, and tell what the server needs of it.

        Shapes: codes (n_samples, n_columns): NaN where a value is to be imputed.
        """
        # The server reads a number of each sample in each step: the sum of 128 neurons' inputs.
        self.party.open_exchange("sums", "inputs of 128 neurons, summed over parties")
        if shape["n_labels"]:
            self.party.check_exchange("labels")
        for key, value in shape.items():
            self.state[f"{_SHAPE}.{key}"] = value
        self.state[_NAMES] = list(names)
        self.state[_HIDEABLE] = np.isnan(codes).any(axis=0)
        self.party.live.get(_CODES, dict[str, Any])["codes"] = codes
        self.cache.pop("fedpsg.gan data", None)
        self._nets()  # made here: a sum only reads them, so that it can be asked for again
        return {"widths": self._encoding.widths, "missing": np.isnan(codes).astype(np.uint8)}

    @step
    def embed(self, batch: Annotated[Indices, Shape(None), Within(0, "n_samples - 1")]) -> Summands:
        """Send the embedding of a batch under a key stream that the server lacks.

        Message: returns ``embedded`` of shape (n, EMBEDDING), modulo 2^64; publicly the stream's
        ``pad``.
        """
        import torch

        nets, (x, mask) = self._nets(changes=False), self._batch(batch)
        with torch.no_grad():
            return self._blinding.blinded({"embedded": nets.embed(x, mask).numpy()})

    @step
    def forward(
        self,
        batch: Batch,
        seed: Seed,
        labels: Labels | None = None,
        others: Embedded | None = None,
        pad: Pad = b"",
    ) -> Summands:
        """Send a party's term of the top discriminator's first layer, and its losses.

        Message: batch (n,): aligned samples; seed: of the step; labels (n, n_labels): for CGAIN;
        others (n, EMBEDDING): the blinded sum of `embed`; pad: names its streams.
        """
        made = self._forward(batch, seed, labels, others, pad)
        self.cache[_PENDING] = (seed, self._nets(changes=False)), made
        forward, _ = made
        return Summands(
            {"top": forward.top.detach().numpy(), "loss": forward.loss.detach().numpy()}
        )

    @step
    def by_others(
        self, batch: Batch, seed: Seed, others: Embedded, pad: Pad, **message: Unpack[BackFields]
    ) -> Summands:
        """Send the gradient by the others' embedding under a key stream that the server lacks."""
        given = {"others": others, "pad": pad, **message}
        made, back = self._pending(batch, seed, given, keep=True)
        gradient = self._nets(changes=False).gradient_of_others(made[0], back)
        return self._blinding.blinded({"gradient": gradient.numpy() * len(gradient)})

    @step
    def update(
        self,
        batch: Batch,
        seed: Seed,
        others: Embedded | None = None,
        pad: Pad = b"",
        by_embedding: Embedded | None = None,
        gradient_pad: Pad = b"",
        **message: Unpack[BackFields],
    ) -> None:
        """Move generator and bottom discriminator.

        Message: batch, seed, others, pad: of `forward`; by_embedding (n, EMBEDDING): the blinded
        sum of `by_others`; gradient_pad: names its streams; **message: the labels that `forward`
        was given, and the fields of `halves.Back`.
        """
        import torch

        nets = self._nets()
        given = {"others": others, "pad": pad, **message}
        made, back = self._pending(batch, seed, given, keep=False)
        forward, own = made
        if by_embedding is None:
            nets.update(forward, back)
            return
        owners = self.state[_NAMES]
        total = self._blinding.unblinded("gradient", by_embedding, gradient_pad, owners)
        total /= len(batch)
        mine = nets.gradient_of_others(forward, back)
        nets.update(forward, back, own, torch.as_tensor(total).float() - mine)

    @step
    def impute(
        self,
        batch: Rows,
        seed: Seed,
        labels: Annotated[Floats32 | None, Shape(None, None), Within(0, 1)] = None,
        others: Annotated[Integers | None, Shape(None, EMBEDDING)] = None,
        pad: Pad = b"",
    ) -> dict[str, Any]:
        """Fill what is missing in some samples by the generator; arguments as of `forward`."""
        import torch

        with torch.no_grad():
            nets, (x, mask, told, given), _ = self._given(batch, labels, others, pad)
            made, _ = nets.generated(x, mask, seed, told, given)
        kept = self.party.live.get(_CODES, dict[str, Any])["codes"]
        decoded = self._encoding.decode(made.numpy().astype(np.float64))
        rows = np.asarray(batch)
        gone = np.isnan(kept[rows])
        kept[rows] = np.where(gone, decoded, kept[rows])
        return {"cells": int(gone.sum())}

    @property
    def codes(self) -> Array:
        """The table as it is now; shape (n_samples, n_columns)."""
        return np.asarray(self.party.live.get(_CODES, dict[str, Any], changes=False)["codes"])

    @property
    def _blinding(self) -> BlindingSteps:
        return self.other(BlindingSteps)

    @kept("fedpsg.encoding")
    def _encoding(self) -> Encoding:
        return Encoding.fit(self.party.codes, self.party.level_counts)

    def _nets(self, changes: bool = True) -> "GanNets":
        return self.party.live.get(_NETS, self._new_nets, changes=changes)

    def _new_nets(self) -> "GanNets":
        import torch

        from strategies.fedpsg.gan.halves import GanNets, GanShape

        names = GanShape.__dataclass_fields__
        shape = GanShape(**{name: self.state[f"{_SHAPE}.{name}"] for name in names})
        gone = np.asarray(self.state[_HIDEABLE], dtype=bool)
        hideable = torch.as_tensor(np.repeat(gone, self._encoding.widths)).float()
        return GanNets(shape, self.name, torch.as_tensor(self._encoding.is_level), hideable)

    def _batch(self, batch: Integers) -> "tuple[Tensor, Tensor]":
        import torch

        key = "fedpsg.gan data"
        if key not in self.cache:
            x, mask = self._encoding.encode(self.codes)
            self.cache[key] = torch.as_tensor(x).float(), torch.as_tensor(mask).float()
        x, mask = self.cache[key]
        rows = torch.as_tensor(np.array(batch, dtype=np.int64))
        return x[rows], mask[rows]

    def _given(
        self, batch: Integers, labels: Floats32 | None, others: Integers | None, pad: bytes
    ) -> "tuple[GanNets, tuple[Tensor, Tensor, Tensor, Tensor], Tensor | None]":
        """Return the networks; a batch, its labels and the others' embedding; the own one."""
        import torch

        nets, (x, mask), count = self._nets(changes=False), self._batch(batch), len(batch)
        # `None` has no axes.
        n_labels, joint = nets.shape.n_labels, nets.shape.joint
        check_fits(self.name, "labels", labels, Shape(*([count, n_labels] if n_labels else [])))
        check_fits(self.name, "others", others, Shape(*([count, EMBEDDING] if joint else [])))
        told = torch.zeros(count, 0) if labels is None else torch.as_tensor(np.array(labels))
        if others is None:
            return nets, (x, mask, told, torch.zeros(count, 0)), None
        own = nets.embed(x, mask)
        whole = self._blinding.unblinded("embedded", others, pad, self.state[_NAMES])
        return nets, (x, mask, told, torch.as_tensor(whole).float() - own.detach()), own

    def _forward(
        self,
        batch: Integers,
        seed: int,
        labels: Floats32 | None,
        others: Integers | None,
        pad: bytes,
    ) -> tuple[Any, Any]:
        nets, (x, mask, told, given), own = self._given(batch, labels, others, pad)
        return nets.forward(x, mask, seed, told, given), own

    def _pending(
        self, batch: Integers, seed: int, given: dict[str, Any], keep: bool
    ) -> tuple[Any, Any]:
        """Return the forward pass of a step, made again in another process, and what came back."""
        import torch

        from strategies.fedpsg.gan.halves import Back

        fields = {name: torch.as_tensor(np.array(given.pop(name))) for name in BACK}
        kept = self.cache.get(_PENDING) if keep else self.cache.pop(_PENDING, None)
        pending = seed, self._nets(changes=False)
        if kept is None or kept[0] != pending:
            options = {"labels": None, "others": None, "pad": b"", **given}
            kept = pending, self._forward(batch, seed, **options)
        return kept[1], Back(**fields)
