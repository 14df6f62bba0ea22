"""FALSE-VFL's bounds by the paper's formulas: one graph, dense arrays, PyTorch's distributions.

Written from the paper (Section 3.3, Appendix A.2) beside the project's code: every party decodes
every row, sums run over an explicit loop of parties, and densities are PyTorch's own. Only the
parameters and the random numbers come from the code under test.
"""

import math

import torch
from torch.distributions import Bernoulli, Normal

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": torch.nn.functional.silu}


def mlp(net, x, activation):
    layers = [module for module in net if hasattr(module, "weight")]
    for layer in layers[:-1]:
        x = ACTIVATIONS[activation](x @ layer.weight.T + layer.bias)
    return x @ layers[-1].weight.T + layers[-1].bias


def gaussian(net, x, activation):
    """The normal distribution that a network gives; its log deviation lies between two bounds."""
    mean, raw = mlp(net.net, x, activation).tensor_split(2, dim=-1)
    low, high = net.bounds
    share = 1 / (1 + torch.exp(-(4 * raw / (high - low) + math.log(-low / high))))
    return Normal(mean, torch.exp(low * (1 - share) + high * share))


def log_ratios(model, x, observed, noise, activation="relu"):
    """log r_ij of every row and draw, and the draws of h.

    Shapes: x (n, p_k): anything where a row is not observed; observed (n,).
    """
    n, kappa, _ = noise["h"].shape
    means, precisions, count = 0, 0, 0
    for name, nets in model.parties.items():
        own = gaussian(nets.encoder, torch.nan_to_num(x[name]), activation)
        here = observed[name][:, None].to(own.mean.dtype)
        means = means + here * own.mean
        precisions = precisions + here * own.stddev**-2
        count = count + here
    q_h = Normal((means / count)[:, None], precisions[:, None] ** -0.5)
    h = q_h.mean + q_h.stddev * noise["h"]
    q_z = gaussian(model.server.encoder, h, activation)
    z = q_z.mean + q_z.stddev * noise["z"]
    ratio = (
        gaussian(model.server.decoder, z, activation).log_prob(h).sum(-1)
        + Normal(torch.zeros_like(z), torch.ones_like(z)).log_prob(z).sum(-1)
        - q_h.log_prob(h).sum(-1)
        - q_z.log_prob(z).sum(-1)
    )
    for name, nets in model.parties.items():
        p_x = gaussian(nets.decoder, h, activation)
        seen = observed[name][:, None, None]
        filled = torch.where(
            seen, torch.nan_to_num(x[name])[:, None], torch.zeros(1, dtype=h.dtype)
        )
        ratio = ratio + torch.where(seen, p_x.log_prob(filled), 0.0).sum(-1)
        if nets.indicator is not None:
            drawn = p_x.mean + p_x.stddev * noise[name]
            both = torch.where(seen, filled, drawn)
            logit = mlp(nets.indicator, both, activation)[..., 0]
            missing = (~observed[name]).to(h.dtype)[:, None].expand(n, kappa)
            ratio = ratio + Bernoulli(logits=logit).log_prob(missing)
    return ratio, h


def bound(ratios):
    """The mean over rows of log R_kappa."""
    return torch.log(torch.exp(ratios - ratios.detach().amax(1, keepdim=True)).mean(1)).mean() + (
        ratios.detach().amax(1).mean()
    )
