"""FedPSG-AR's second stage on one graph: the losses of both players, by autograd alone."""

import torch
from torch import nn


def losses(parties, top, data, seed, alpha, divergence):
    """Return both players' losses of a batch, from the printed equations as corrected."""
    from strategies.fedpsg.gan.networks import draw_noise, draw_open, generator_for

    labels = data["labels"]
    joint = next(iter(parties.values())).shape.joint
    embedded = {}
    if joint:
        for name, nets in parties.items():
            x, mask = data[name]
            a, b = nets.embedder["layers"]
            embedded[name] = b(torch.relu(a(torch.cat([mask * x, mask], 1))))
    inputs, weights, masks, opened = [], [], [], []
    per_sample, code = 0.0, 0.0
    for name, nets in parties.items():
        x, there = data[name]
        n, d = x.shape
        mask = there
        if nets.shape.hidden:
            drawn = torch.rand((n, 1), generator=generator_for(seed, "hidden", name))
            mask = torch.where((drawn < nets.shape.hidden) & (nets.hideable == 1), 0.0, there)
        noise = draw_noise(seed, name, (n, d))
        more = [labels] if nets.shape.n_labels else []
        if joint:
            more.append(sum(e for other, e in embedded.items() if other != name))
        given = torch.cat([mask * x + (1 - mask) * noise, mask, *more], 1)
        if nets.shape.kind == "vgain":
            first, last = nets.generator["encoder"]
            mean, log_variance = last(torch.relu(first(given))).chunk(2, 1)
            draw = torch.randn(mean.shape, generator=generator_for(seed, "code", name))
            code = code + 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
            first, last = nets.generator["decoder"]
            z = mean + torch.exp(0.5 * log_variance) * draw
            made = torch.sigmoid(last(torch.relu(first(torch.cat([z, *more], 1)))))
        else:
            first, second, last = nets.generator["layers"]
            made = torch.sigmoid(last(torch.relu(second(torch.relu(first(given))))))
        level = nets.is_level
        error = torch.zeros(n)
        for j in range(d):
            if level[j]:
                error = error - there[:, j] * x[:, j] * torch.log(made[:, j])
            else:
                error = error + there[:, j] * (made[:, j] - x[:, j]) ** 2
        per_sample = per_sample + error
        is_open = draw_open(seed, name, (n, d))
        hint = torch.where(is_open == 1, torch.tensor(0.5), mask)
        h = torch.cat([mask * x + (1 - mask) * made, hint], 1)
        dropped = generator_for(seed, "bottom", name)
        for layer in nets.bottom["bottom"]:
            h = nn.functional.leaky_relu(layer(h), 0.2)
            h = h * (torch.rand(h.shape, generator=dropped) >= 0.5) * 2
        inputs += [h, hint]
        weights.append(nets.bottom["top"][0].weight)
        masks.append(mask)
        opened.append(is_open)
    # The top discriminator's first layer as one matrix over all parties' outputs and hints.
    h = torch.cat(inputs, 1) @ torch.cat(weights, 1).T
    h = h + top.top["first"][0](labels if labels.shape[1] else torch.zeros(len(h), 1))
    dropped = generator_for(seed, "top")
    h = nn.functional.leaky_relu(h, 0.2)
    h = h * (torch.rand(h.shape, generator=dropped) >= 0.5) * 2
    second, last = top.top["rest"]
    h = nn.functional.leaky_relu(second(h), 0.2)
    h = h * (torch.rand(h.shape, generator=dropped) >= 0.5) * 2
    p = torch.sigmoid(last(h))
    mask, is_open = torch.cat(masks, 1), torch.cat(opened, 1) == 1
    n = len(mask)
    target = mask[is_open]
    q = p[is_open]
    against = -(target * torch.log(q) + (1 - target) * torch.log(1 - q)).sum() / n
    fooled = -torch.log(p[is_open & (mask == 0)]).sum() / n
    kept = alpha * 0.5 * (per_sample**2).mean()
    spread = divergence * code.mean() if torch.is_tensor(code) else 0.0
    return against, fooled + kept + spread
