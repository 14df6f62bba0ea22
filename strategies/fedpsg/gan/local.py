"""The networks of one party alone: the paper's local imputation, with the same losses and draws."""

import numpy as np
import torch

from flwr_vertical.arrays import Array
from strategies.fedpsg.gan.draws import draw_shown
from strategies.fedpsg.gan.encoding import Encoding
from strategies.fedpsg.gan.halves import PartyNets, Shape, TopNets


def impute_alone(
    codes: Array,
    encoding: Encoding,
    shape: Shape,
    iterations: int,
    batch: int,
    rng: np.random.Generator,
    name: str = "alone",
) -> Array:
    """Train a generator and a discriminator on one party's table, and fill what is missing in it.

    Shapes: codes (n_samples, n_columns): NaN = missing; returns (n_samples, n_columns).
    """
    values, known = encoding.encode(codes)
    x, mask = torch.as_tensor(values).float(), torch.as_tensor(known).float()
    gone = np.repeat(np.isnan(codes).any(axis=0), encoding.widths)
    nets = PartyNets(shape, name, torch.as_tensor(encoding.is_level), torch.as_tensor(gone).float())
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
