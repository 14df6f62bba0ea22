"""FedHSSL's pretraining: across parties, at each party, and of what all parties share.

He, Kang, Luo, Fan and Yang, *A Hybrid Self-Supervised Learning Framework for Vertical Federated
Learning* (2022). An epoch has three parts:

1. *Across parties*, on aligned samples: a party's prediction of its cross-party encoder shall agree
   with the projections z_j of the other parties. Minus the mean cosine with each of them is linear
   in ``z_j / |z_j|``, so a party needs their sum only, and the server opens no party's own. (In the
   paper one party exchanges projections with each other one; here all are alike.)
2. *At each party*, on all its rows: SimSiam of its local encoder, guided by the cross-party one.
3. *Of what they share*: the upper layers of local encoders, projectors and predictors become their
   mean over parties.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from strategies.false_vfl.gaussian import draw_seed
from strategies.false_vfl.hardware import to_numpy
from strategies.false_vfl.networks import apply, new_generator
from strategies.split.encoders import TwoEncoders
from strategies.split.methods import Training
from strategies.split.simsiam import (
    FallingRates,
    SimSiamHeads,
    batches_of,
    check_loss,
    check_rows,
    distance,
    unit,
)
from strategies.split.sizes import SplitNetworks
from strategies.split.views import views_of


class HybridPretraining:
    """One party's part of it; belongs to the snapshots of a run.

    Shapes: x (n_rows, n_columns): all rows that take part.
    """

    def __init__(
        self,
        encoder: TwoEncoders,
        x: Tensor,
        networks: SplitNetworks,
        training: Training,
        shared_seed: int,
        seed: int,
        name: str,
    ) -> None:
        check_rows(len(x), name)
        self._encoder, self._x, self._training = encoder, x, training
        self._seed, self._name = seed, name
        own, shared = new_generator(seed, "projector"), new_generator(shared_seed, "projector")
        self.cross = SimSiamHeads(networks, own).to(x.device, x.dtype)
        self.local = SimSiamHeads(networks, shared).to(x.device, x.dtype)
        self._views = views_of(x, training.corrupted, networks.image_of(name))
        across = encoder.cross, self.cross.projector
        self._across = FallingRates(across, [self.cross.predictor], training)
        within = encoder.bottom, encoder.top, self.local.projector
        self._mixed = networks.mixed
        # What gives projections; what is trained is the same.
        self._cross_net = nn.Sequential(encoder.cross, self.cross.projector)
        self._local_net = nn.Sequential(*within)
        self._within = FallingRates(within, [self.local.predictor], training)

    def project(self, x: Tensor) -> Tensor:
        """Return projections of aligned rows, of length 1; shape (n_rows, projected)."""
        with torch.no_grad():
            return unit(apply(self._cross_net, x, self._mixed))

    def learn_across(self, x: Tensor, total: Tensor, n_parties: int, epoch: int) -> float:
        """Take a step towards the other parties' projections; return the loss.

        Shapes: x (n_rows, n_columns): the rows that `project` was given; total (n_rows,
        projected): sum over all parties of what `project` returned.
        """
        self._across.at(epoch)
        z = apply(self._cross_net, x, self._mixed)
        others = (total - unit(z.detach())) / (n_parties - 1)
        loss = -(unit(self.cross.predictor(z)) * others).sum(-1).mean()
        told = self._across.step(loss)
        check_loss(told, self._name)
        return told

    def learn_within(self, epoch: int) -> float:
        """Go once through the own rows; return the mean loss."""
        self._within.at(epoch)
        rng = np.random.default_rng(draw_seed(self._seed, f"views of epoch {epoch}"))
        total, guide = 0.0, self._training.guide
        for batch in batches_of(len(self._x), self._training.pretrain_batch_size, rng):
            views = self._views.pair(self._x[batch], rng)
            z = [apply(self._local_net, v, self._mixed) for v in views]
            p = [self.local.predictor(values) for values in z]
            loss = 0.5 * (distance(p[0], z[1]) + distance(p[1], z[0]))
            if guide:
                with torch.no_grad():
                    across = [apply(self._cross_net, v, self._mixed) for v in views]
                loss = loss + guide * (distance(p[0], across[0]) + distance(p[1], across[1]))
            total += self._within.step(loss) * len(batch)
        check_loss(total, self._name)
        return total / len(self._x)

    @property
    def shared(self) -> Tensor:
        """The weights that are averaged over parties, shape (n_weights,)."""
        return parameters_to_vector(self._shared()).detach()

    @shared.setter
    def shared(self, weights: Tensor) -> None:
        # A copy: else the parties of one process would share the memory of what they average.
        vector_to_parameters(weights.clone(), self._shared())

    def _shared(self) -> list[nn.Parameter]:
        nets = self._encoder.top, self.local.projector, self.local.predictor
        return [parameter for net in nets for parameter in net.parameters()]

    def pack(self) -> dict[str, Any]:
        """Return what a snapshot needs beside the encoder."""
        return {
            "cross": _arrays(self.cross.state_dict()),
            "local": _arrays(self.local.state_dict()),
            "across": _momenta(self._across),
            "within": _momenta(self._within),
        }

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what a snapshot has."""
        for heads, name in ((self.cross, "cross"), (self.local, "local")):
            heads.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in tree[name].items()})
        for descent, name in ((self._across, "across"), (self._within, "within")):
            _take_up(descent, tree[name])


def _arrays(state: dict[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {name: to_numpy(value).copy() for name, value in state.items()}


def _momenta(descent: FallingRates) -> dict[str, npt.NDArray[Any]]:
    groups = descent.optimiser.param_groups
    parameters = [p for group in groups for p in group["params"]]
    state = descent.optimiser.state
    return {
        str(i): to_numpy(state[p]["momentum_buffer"]).copy()
        for i, p in enumerate(parameters)
        if p in state
    }


def _take_up(descent: FallingRates, momenta: dict[str, npt.NDArray[Any]]) -> None:
    groups = descent.optimiser.param_groups
    descent.optimiser.state.clear()
    for i, p in enumerate(p for group in groups for p in group["params"]):
        if str(i) in momenta:
            buffer = torch.from_numpy(np.array(momenta[str(i)])).to(p.device)
            descent.optimiser.state[p]["momentum_buffer"] = buffer
