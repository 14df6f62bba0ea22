"""Diagonal normal distributions: densities, the posterior over observed parties, their draws.

The posterior of h given what is observed of a sample is normal (Eq. 1 of the paper): its mean is
the plain average of the means that the observed parties' encoders give, its precision the sum of
their precisions. Both are sums over parties, with zeros from a party that lacks the sample.
"""

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def log_density(x: Tensor, mean: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log density of each number, without summing over the last axis."""
    standardised = (x - mean) * torch.exp(-log_sigma)
    return -0.5 * standardised.square() - log_sigma - HALF_LOG_TWO_PI


def log_density_of_draw(noise: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log density of ``mean + exp(log_sigma) * noise`` at itself, number by number.

    In this form the mean drops out, as it does from the value: its gradient is exactly zero.
    """
    return -0.5 * noise.square() - log_sigma - HALF_LOG_TWO_PI


def posterior(mean_sum: Tensor, precision_sum: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log standard deviation of h given the observed parties (Eq. 1).

    Shapes: mean_sum (n_rows, d): sum over the parties that hold a row of their encoders' means;
    precision_sum (n_rows, d): sum of their precisions, ``exp(-2 log_sigma_k)``; counts (n_rows,):
    how many parties hold each row, at least one; returns (n_rows, d).
    """
    return mean_sum / counts[:, None], -0.5 * torch.log(precision_sum)


def posterior_gradients(
    grad_mean: Tensor, grad_log_sigma: Tensor, precision_sum: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what each observed party needs to go back through `posterior`.

    Shapes: grad_mean, grad_log_sigma (n_rows, d): gradients of the loss in what `posterior`
    returns; returns (n_rows, d): gradients in a party's own mean and in its own precision: the
    same for all of them, since both enter sums.
    """
    return grad_mean / counts[:, None], -0.5 * grad_log_sigma / precision_sum


def draw_normals(
    seed: int, purpose: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw standard normal numbers that follow from a seed, the same at every node.

    NumPy's generator draws them, on the CPU: PyTorch's numbers depend on the device.
    """
    kind: Any = np.float64 if dtype == torch.float64 else np.float32
    generator = np.random.Generator(np.random.PCG64(draw_seed(seed, purpose)))
    drawn: npt.NDArray[Any] = generator.standard_normal(shape, dtype=kind)
    return torch.from_numpy(drawn)


def draw_seed(seed: int, purpose: str) -> int:
    """Return another seed, below 2^63, that follows from one and what it is for."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
