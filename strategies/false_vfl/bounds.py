"""Bounds of the log likelihood by several draws, and the weights of the draws.

A draw's log weight is ``log p(x, h, z) - log q(h, z | x)``: the parties' terms and the server's
(`party_model`, `server_model`). The mean of kappa weights is an unbiased estimate of the likelihood
p(x), so the expected logarithm of it is a bound from below, which rises with kappa (Theorem C.1
of the paper, after Burda, Grosse and Salakhutdinov, 2016, Theorem 1).
"""

import math

import torch
from torch import Tensor


def log_bound(log_weights: Tensor) -> Tensor:
    """Return the logarithm of the mean weight of each row: log R_kappa, shape (n_rows,).

    Shapes: log_weights (n_rows, kappa): for the second stage, with log p(y | h) added (R'_kappa).
    """
    return torch.logsumexp(log_weights, dim=-1) - math.log(log_weights.shape[-1])


def normalised_weights(log_weights: Tensor) -> Tensor:
    """Return the weights of each row's draws, adding up to 1; shape (n_rows, n_draws).

    They are the gradient of `log_bound` in the log weights, which is all that a party needs for
    its own gradient, and what predictions are averaged by.
    """
    return torch.softmax(log_weights, dim=-1)
