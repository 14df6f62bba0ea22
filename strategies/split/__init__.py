"""Split learning: the methods that FALSE-VFL is compared with.

Each party k has an extractor f_k of its own columns, the server a discriminator and the labels. The
server gets the **sum** over parties of the embeddings of a batch's samples, which is all it needs
both where embeddings are averaged and where they are concatenated: a linear layer on a
concatenation is a sum of one linear map for each party, which the party keeps::

    mean     g( sum_k f_k(x_k) / number of parties )
    concat   g( sum_k W_k f_k(x_k) )

FinalNet, a classifier by itself, is split likewise at its first layer (`final`).

The modules named `networks`, `final`, `tasks`, `simsiam`, `hybrid`, `head` and `central` know
PyTorch and neither Flower nor the protocol.
"""

from flwr_vertical.optional import needing

with needing("torch", __name__):
    from strategies.split.final_net import FinalNet
    from strategies.split.strategies import FedHSSL, LaserVFL, PlugVFL, VanillaVFL

__all__ = ["FedHSSL", "FinalNet", "LaserVFL", "PlugVFL", "VanillaVFL"]
