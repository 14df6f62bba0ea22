"""Small runs of FALSE-VFL whose gradients and parameters can be looked at afterwards."""

import numpy as np
import pandas as pd
import torch

from flwr_vertical import step
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party import FalseVFLParty
from strategies.false_vfl.party_networks import Networks
from strategies.false_vfl.strategy import FalseVFL

COLUMNS = {"bank": 3, "court": 4, "shop": 2}
SMALL = {
    "h_dim": 5,
    "z_dim": 3,
    "width": 8,
    "activation": "tanh",
    "importance_samples": 4,
    "prediction_samples": 20,
    "pretrain_learning_rate": 1e-2,
    "learning_rate": 2e-2,
}


def flat(parameters):
    return np.concatenate([p.detach().numpy().ravel() for p in parameters]).astype(float)


def flat_gradients(parameters):
    return np.concatenate([p.grad.numpy().ravel() for p in parameters]).astype(float)


class OpenParty(FalseVFLParty):
    """Tells what no party tells: its parameters and the gradients that its last steps left."""

    @step
    def tell(self):
        parameters = list(self.find_group(Networks).get(changes=False).parameters())
        return {"parameters": flat(parameters), "gradients": flat_gradients(parameters)}


TOLD = []
"""By party and for the server: what all networks were after the last run of `OpenFalseVFL`."""


class OpenFalseVFL(FalseVFL):
    """Notes in `TOLD` what all networks are in the end."""

    party = OpenParty

    def _keep(self, rounds, nets, head):
        own = list(nets.parameters())
        told = rounds.federation.call("tell")
        told["server"] = {"parameters": flat(own), "gradients": flat_gradients(own)}
        TOLD.append(told)
        return super()._keep(rounds, nets, head)


def make_data(n=60, seed=0, held=0.6, labelled=0.7):
    """Tables whose columns follow from two numbers of each sample; labels are the sign of one."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 2))
    ids = [f"p{i:03}" for i in range(n)]
    flags = rng.random((n, len(COLUMNS))) < held
    flags[~flags.any(1), 1] = True
    tables = {}
    for k, (name, p) in enumerate(COLUMNS.items()):
        x = z @ rng.normal(size=(2, p)) + 0.4 * rng.normal(size=(n, p)) + 3.0
        frame = pd.DataFrame(x, index=ids, columns=[f"{name}{j}" for j in range(p)])
        tables[name] = frame[flags[:, k]]
    classes = pd.Series((z[:, 0] > 0).astype(float), index=ids)
    return tables, classes.where(rng.random(n) < labelled), classes


def aligned(tables, ids):
    """Standardised columns in the order of the aligned rows, and which rows are observed."""
    x, observed = {}, {}
    for name, table in tables.items():
        own = (table - table.mean()) / table.std(ddof=0)
        x[name] = torch.tensor(own.reindex(ids).to_numpy())
        observed[name] = torch.tensor(pd.Index(ids).isin(table.index))
    return x, observed


def settings_of(strategy):
    return NetworkSettings(
        h_dim=strategy.h_dim,
        z_dim=strategy.z_dim,
        party_width=strategy.width,
        global_width=strategy.width,
        party_layers=strategy.party_layers,
        activation=strategy.activation,
    )
