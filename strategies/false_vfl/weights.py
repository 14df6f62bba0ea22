"""Weights with which a party's networks begin, from bytes that only the party knows.

PyTorch's generator on the CPU takes 32 bits of a seed: whoever knows one sample, and what a network
gave for it, could try them all. So a party's weights come from a cryptographic key stream.
"""

import math

import numpy as np
import torch
from torch import nn

from flwr_vertical.privacy.keystream import KEY_BYTES, Keystream

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def draw_weights(nets: nn.Module, key: bytes) -> None:
    """Draw the weights and biases of all layers anew, in their order.

    They are uniform within one over the root of a layer's inputs, as PyTorch's own. Layers that
    normalise keep their scales and shifts, which are constants.
    """
    stream = Keystream(key[:KEY_BYTES])
    for layer in nets.modules():
        if not isinstance(layer, _LAYERS):
            continue
        limit = 1.0 / math.sqrt(layer.weight[0].numel())
        for parameter in layer.parameters(recurse=False):
            words = stream.words(np.empty(parameter.numel(), dtype=np.uint64))
            # 24 bits: as many as a float32 has.
            uniform = (words >> np.uint64(40)) * 2.0**-23 - 1.0
            drawn = torch.from_numpy(limit * uniform).reshape(parameter.shape)
            with torch.no_grad():
                parameter.copy_(drawn.to(torch.float32))
