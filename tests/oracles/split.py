"""The methods' losses written out: concatenations, loops over subsets, cosines of pairs.

Nothing of `strategies.split` is used but the weights of its networks.
"""

import itertools

import torch
from torch.nn.functional import cross_entropy

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


def perceptron(net, x, activation):
    """Apply the linear layers of a network, with an activation between them."""
    layers = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    for i, layer in enumerate(layers):
        x = x @ layer.weight.T + layer.bias
        if i < len(layers) - 1:
            x = ACTIVATIONS[activation](x)
    return x


def concatenated(model, x, enters, activation):
    """Class odds from embeddings side by side, zeros where a party does not enter.

    `x` has each party's columns of all rows, `enters` a flag for each row.
    """
    embeddings, weights = [], []
    for name, extractor in model.parties.items():
        encoder = extractor.encoder
        if hasattr(encoder, "cross"):
            local = ACTIVATIONS[activation](perceptron(encoder.bottom, x[name], activation))
            found = perceptron(encoder.cross, x[name], activation)
            found = (found + perceptron(encoder.top, local, activation)) / 2
        else:
            found = perceptron(encoder, x[name], activation)
        embeddings.append(torch.where(enters[name][:, None], found, torch.zeros_like(found)))
        weights.append(extractor.layer.weight)
    first = torch.cat(embeddings, 1) @ torch.cat(weights, 1).T + model.head.bias
    return perceptron(model.head.net, ACTIVATIONS[activation](first), activation)


def of_all_subsets(model, x, enters, y, activation):
    """The mean over rows of the mean loss over all subsets of the parties that hold the row."""
    names, total = list(x), 0.0
    embeddings = {n: perceptron(model.parties[n].encoder, x[n], activation) for n in names}
    for i in range(len(y)):
        holders = [n for n in names if enters[n][i]]
        losses = []
        for size in range(1, len(holders) + 1):
            for subset in itertools.combinations(holders, size):
                fused = sum(embeddings[n][i] for n in subset) / size
                odds = perceptron(model.head.net, fused[None], activation)
                losses.append(cross_entropy(odds, y[i : i + 1]))
        assert len(losses) == 2 ** len(holders) - 1
        total = total + sum(losses) / len(losses)
    return total / len(y)


def normalised(layers, x):
    """Apply linear layers, normalisations over the batch, and activations, one by one."""
    for layer in layers:
        if isinstance(layer, torch.nn.BatchNorm1d):
            x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + layer.eps)
            if layer.affine:
                x = x * layer.weight + layer.bias
        elif isinstance(layer, torch.nn.Linear):
            x = x @ layer.weight.T + layer.bias
        else:
            x = layer(x)
    return x


def minus_cosine(p, z):
    """Minus the mean cosine of rows."""
    rows = [(a @ b) / ((a @ a) * (b @ b)).sqrt() for a, b in zip(p, z.detach(), strict=True)]
    return -sum(rows) / len(rows)


def across(prediction, projections):
    """FedHSSL's loss of a party: the mean over the other parties of minus the mean cosine."""
    return sum(minus_cosine(prediction, z) for z in projections) / len(projections)
