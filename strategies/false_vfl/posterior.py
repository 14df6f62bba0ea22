"""The posterior of h, draws from it, their log weights, and the bounds that they give.

The posterior of h given what is observed of a sample is normal (Eq. 1 of the paper): its mean is
the plain average of the means that the observed parties' encoders give, its precision the sum of
their precisions. Both are sums over parties, with zeros from a party that lacks the sample.

A draw's log weight is ``log p(x, h, z) - log q(h, z | x)``: the parties' terms and the server's
(`networks`). The mean of kappa weights is an unbiased estimate of the likelihood p(x), so the
expected logarithm of it is a bound from below, which rises with kappa (Theorem C.1 of the paper,
after Burda, Grosse and Salakhutdinov, 2016, Theorem 1).
"""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical.arrays import AnyArray
from strategies.neural.networks import draw_seed

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def log_density(x: Tensor, mean: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log density of each number, without summing over the last axis."""
    standardised = (x - mean) * torch.exp(-log_sigma)
    return -0.5 * standardised.square() - log_sigma - HALF_LOG_TWO_PI


def log_density_of_draw(noise: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log density of ``mean + exp(log_sigma) * noise`` at itself; the mean drops out."""
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
    """Draw normal numbers from a seed, by NumPy: PyTorch's are not the same on every device."""
    kind: Any = np.float64 if dtype == torch.float64 else np.float32
    generator = np.random.Generator(np.random.PCG64(draw_seed(seed, purpose)))
    drawn: AnyArray = generator.standard_normal(shape, dtype=kind)
    return torch.from_numpy(drawn)


def log_bound(log_weights: Tensor) -> Tensor:
    """Return the logarithm of the mean weight of each row: log R_kappa, or log R'_kappa."""
    return torch.logsumexp(log_weights, dim=-1) - math.log(log_weights.shape[-1])


def normalised_weights(log_weights: Tensor) -> Tensor:
    """Return the gradient of `log_bound` in the log weights: weights of each row's draws."""
    return torch.softmax(log_weights, dim=-1)


# -- draws -------------------------------------------------------------------------------------

_KEPT, _MOST_KEPT = 8, 1 << 20
"""Draws that a process keeps, and numbers of each at most: of an epoch or so, at Isolet's size."""

_kept_normals = functools.lru_cache(maxsize=_KEPT)(draw_normals)


def shared_normals(seed: int, purpose: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return what `draw_normals` does, once for all nodes of a process; nobody may change it."""
    draw = _kept_normals if math.prod(shape) <= _MOST_KEPT else draw_normals
    return draw(seed, purpose, shape, dtype)


# -- the density of rows -----------------------------------------------------------------------


def row_log_density(
    given: Tensor, x: Tensor, bounds: tuple[float, float], known: Tensor | None = None
) -> Tensor:
    """Return the log density of x under what a network gave, summed over the columns.

    Gradients go to `given` and `x`, once: they have no gradients of their own.

    Shapes: given (n_rows, n_draws, 2 * n_columns): means, then raw scales; see `GaussianNet`; x
    (n_rows, n_draws or 1, n_columns); known (n_rows, n_columns): 1 where a cell counts, 0 where it
    counts for nothing; without it all cells count; returns (n_rows, n_draws).
    """
    total: Tensor = _RowLogDensity.apply(given, x, known, *bounds)  # type: ignore[no-untyped-call]
    return total


class _RowLogDensity(torch.autograd.Function):
    """The log density of rows under normal distributions that a network gives, in few passes.

    With ``s = sigmoid(4 raw / w + log(-lower / upper))`` and ``w = upper - lower``, the log
    standard deviation is ``lower + w s`` (`bounded`), the residual ``r = (x - mean)
    exp(-log_sigma)``, and a cell's log density ``-r^2 / 2 - w s - lower - log(2 pi) / 2``. Its
    derivatives are

    - in the mean ``r exp(-log_sigma)``, in x minus that,
    - in the raw scale ``(r^2 - 1) * 4 s (1 - s)``, for ``d log_sigma / d raw = 4 s (1 - s)``.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, x: Tensor, known: Tensor | None, lower: float, upper: float
    ) -> Tensor:
        width = upper - lower
        mean, raw = given.chunk(2, dim=-1)
        share = raw.mul(4.0 / width).add_(math.log(-lower / upper)).sigmoid_()
        inverse = share.mul(-width).sub_(lower).exp_()  # exp(-log_sigma)
        residual = torch.sub(x, mean).mul_(inverse)
        cells = residual.square().mul_(-0.5).sub_(share, alpha=width)
        constant = HALF_LOG_TWO_PI + lower
        ctx.one_x = x.shape[1] == 1
        ctx.save_for_backward(share, inverse, residual, known)
        if known is None:
            return cells.sum(-1) - constant * cells.shape[-1]
        return cells.mul_(known[:, None]).sum(-1) - constant * known.sum(-1)[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        share, inverse, residual, known = ctx.saved_tensors
        weight = gradients[0][..., None]
        if known is not None:
            weight = weight * known[:, None]
        n_columns = share.shape[-1]
        of_given = share.new_empty((*share.shape[:-1], 2 * n_columns))
        of_mean, of_raw = of_given.split(n_columns, dim=-1)
        torch.mul(residual, inverse, out=of_mean)
        of_mean.mul_(weight)
        torch.mul(residual, residual, out=of_raw)
        of_raw.sub_(1.0).mul_(weight).mul_(share).mul_((1.0 - share).mul_(4.0))
        of_x = None
        if ctx.needs_input_grad[1]:
            # A row has one x for all draws, or one for each.
            of_x = -of_mean.sum(1, keepdim=True) if ctx.one_x else -of_mean
        return of_given, of_x, None, None, None
