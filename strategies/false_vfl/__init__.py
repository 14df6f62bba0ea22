"""FALSE-VFL: a deep latent-variable model over parties that hold any part of the samples.

Hong, Park and Hwang: *Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios*. Each party k has an encoder and a decoder of its own columns, the
server has those of the latent variables and a discriminator for the labels::

    z  ~  N(0, 1)                        prior
    h  ~  N(mean(z), sigma(z)^2)         global decoder, server
    x_k ~  N(mean_k(h), sigma_k(h)^2)    decoder of party k
    y  ~  p(y | h)                       discriminator, server
"""

from flwr_vertical.optional import needing

with needing("torch", __name__):
    from strategies.false_vfl.strategy import FalseVFL

__all__ = ["FalseVFL"]
