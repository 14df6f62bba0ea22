"""Small runs of methods with neural networks, and what can be looked at afterwards."""

import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from training import TrainingPlace

from flwr_vertical import simulate, step
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, VALUES, read_envelope
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party import FalseVFLParty, Networks
from strategies.false_vfl.strategy import FalseVFL
from strategies.split import FedHSSL, FinalNet, LaserVFL, PlugVFL, VanillaVFL

COLUMNS = {"bank": 3, "court": 4, "shop": 2}
SMALL = {
    "h_dim": 5, "z_dim": 3, "width": 8, "activation": "tanh", "importance_samples": 4,
    "prediction_samples": 20, "pretrain_learning_rate": 1e-2, "learning_rate": 2e-2,
}  # fmt: skip

SMALL_SPLIT = {
    "latent_dim": 4, "width": 5, "activation": "tanh", "epochs": 3, "batch_size": 9,
    "learning_rate": 1e-2, "pretrain_epochs": 2, "pretrain_batch_size": 20,
}  # fmt: skip
SMALL_FINAL = {
    "latent_dim": 3, "width": 6, "batch_size": 9, "learning_rate": 1e-2, "iterations": 25,
}  # fmt: skip
LEARNING = SMALL_SPLIT | {
    "width": 8, "epochs": 15, "batch_size": 24, "learning_rate": 2e-2, "latent_dim": 6,
}  # fmt: skip
SPLIT = [VanillaVFL, LaserVFL, PlugVFL, FedHSSL]


def small(method, **changes):
    """A method with settings that take a second."""
    if method is FalseVFL:
        few = {"pretrain_epochs": 3, "epochs": 3, "pretrain_batch_size": 20}
        return FalseVFL(**SMALL | few | changes)
    return method(**(SMALL_FINAL if method is FinalNet else SMALL_SPLIT) | changes)


@functools.cache
def trained(method):
    """A run that learns, in float32, what it was given, and what is true of all samples."""
    if method is FalseVFL:
        few = {"pretrain_epochs": 30, "epochs": 60, "pretrain_batch_size": 54}
        data, settings = make_data(n=160, seed=2), SMALL | few | {"prediction_samples": 800}
    else:
        data, settings = make_data(n=120, seed=2, held=0.8), LEARNING
    strategy, (tables, labels, classes) = method(**settings), data
    result = simulate(strategy, tables, labels)
    return SimpleNamespace(
        result=result, tables=tables, labels=labels, classes=classes, strategy=strategy
    )


def place(folder, exchanges, strategy, held=0.6):
    """Three nodes with node configs of their own, and disks on which a run can go on."""
    made = TrainingPlace(folder, "masked", lambda: strategy, every=4)
    made.tables, made.labels, _ = make_data(seed=6, held=held)
    made.configs = {name: {"exchanges": asked} for name, asked in exchanges.items()}
    return made


def asked(transcript):
    """Node, step and arguments of every message to a party, in order."""
    for record in transcript:
        if record.direction == "down":
            name = read_envelope(record.content)["step"]
            yield record.node_id, name, decode(record.content, ARGUMENTS)


def answered(transcript):
    """Step, summands and open values of every answer of a party, in order."""
    last = {}
    for record in transcript:
        if record.direction == "down":
            last[record.node_id] = read_envelope(record.content)["step"]
        else:
            content = record.content
            yield last[record.node_id], decode(content, SUMS), decode(content, VALUES)


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
    protocol = Protocol(
        *FalseVFL.protocol.parts[:-2], Round("tell", tells=FACTS), *FalseVFL.protocol.parts[-2:]
    )

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
