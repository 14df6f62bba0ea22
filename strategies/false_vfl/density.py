"""The log density of rows under normal distributions that a network gives, in one operation.

Composed of PyTorch's own operations, `log_density` and `bounded` pass over as many numbers as a
network gives about twenty times, forward and backward; these passes cost as much as the network.
Here forward and backward are written out, with few passes and little memory between them.

With ``s = sigmoid(4 raw / w + log(-lower / upper))`` and ``w = upper - lower``, the log standard
deviation is ``lower + w s`` (`bounded`), the residual ``r = (x - mean) exp(-log_sigma)``, and a
cell's log density ``-r^2 / 2 - w s - lower - log(2 pi) / 2``. Its derivatives are

- in the mean ``r exp(-log_sigma)``, in x minus that,
- in the raw scale ``(r^2 - 1) * 4 s (1 - s)``, for ``d log_sigma / d raw = 4 s (1 - s)``.
"""

import math
from typing import Any

import torch
from torch import Tensor

from strategies.false_vfl.gaussian import HALF_LOG_TWO_PI


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
