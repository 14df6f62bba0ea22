"""Runs of VFEM's iterations on the oracle's data: tables, messages, what the parties hold."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from oracles.vfem import Pooled, Theta, generate
from transcripts import decoded

from flwr_vertical import LocalGrid, MemoryStorage, RecordingGrid, Table, party_app, simulate
from flwr_vertical.node.state import State
from flwr_vertical.protocol.messages import ARBITER
from strategies.vfem_iterations import VFEMIterations


def data(*args, **kwargs):
    """Data of the oracle without samples that no party holds: they drop out of the alignment."""
    pooled, truth = generate(*args, **kwargs)
    rows = ~pooled.mask.all(axis=1)
    return Pooled([x[rows] for x in pooled.X], pooled.y[rows], pooled.mask[rows]), truth


def party_tables(pooled, shuffle=None):
    """Each party's table and the labels; rows in an order of their own if a seed is given."""
    ids = np.array([f"s{i:05}" for i in range(len(pooled.y))])
    rng = np.random.default_rng(shuffle)
    tables = {}
    for k, x in enumerate(pooled.X):
        frame = pd.DataFrame(x, columns=[f"x{k}{j}" for j in range(x.shape[1])], index=ids)
        frame = frame[~pooled.mask[:, k]]
        tables[f"p{k}"] = frame if shuffle is None else frame.iloc[rng.permutation(len(frame))]
    labels = pd.Series(pooled.y, index=ids, name="y")
    return tables, labels if shuffle is None else labels.iloc[rng.permutation(len(labels))]


def fit(pooled, mode="plain", shuffle=None, alignment="plain", **settings):
    """Run the iterations on the oracle's data."""
    if mode == "ckks":
        pytest.importorskip("tenseal")
    tables, labels = party_tables(pooled, shuffle)
    strategy = VFEMIterations(**settings)
    return simulate(strategy, tables, labels, mode, alignment=alignment)


def coefficients(theta):
    """The oracle's in the order of the result's table."""
    return np.concatenate([[theta.beta0], *theta.beta])


def estimates(result):
    return result.coefficients["estimate"].to_numpy()


def std_errors(result):
    return result.coefficients["std_error"].to_numpy()


# -- with messages and states ----------------------------------------------------------------


def recorded(tables, labels, mode="masked", configs=None, app=None, strategy=None, **settings):
    """Run them, or another strategy, on a local grid; result, messages, what nodes remember."""
    if mode == "ckks":
        pytest.importorskip("tenseal")
    start = {key: settings.pop(key) for key in list(settings) if key in STARTED}
    run_config = settings.pop("run_config", None)
    strategy = strategy or VFEMIterations(**settings)
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    if app is None:
        app = party_app(strategy.party, arbiter=strategy.arbiter, storage=storage)
    nodes = [{"party": name} for name in tables]
    if mode == "ckks" or strategy.needs_arbiter:
        nodes.append({"role": "arbiter"})
    for node in nodes:
        node.update((configs or {}).get(node.get("party", ARBITER), {"exchanges": "sums"}))
    with LocalGrid(app, nodes, run_config, storage=storage) as grid:
        carrier = RecordingGrid(grid)
        result = strategy.start(
            grid=carrier,
            labels=labels,
            aggregation=mode,
            **({"alignment": "plain"} | start),
            retries=0,
        )
        states = {node_id: dict(State(context)) for node_id, context in grid.contexts.items()}
    who = {node_id: state["node.name"] for node_id, state in states.items()}
    messages = decoded(carrier.transcript, who)
    return SimpleNamespace(
        result=result,
        messages=messages,
        states={who[node_id]: state for node_id, state in states.items()},
        tables=tables,
        labels=labels,
        outputs=storage.outputs,
    )


STARTED = {"alignment", "align_rows", "label_holder", "seed"}


def theta_of(run):
    """All parameters in the units of the data, from the parties' states and the server's model.

    Standardised columns are undone by mean and deviation of the rows that have a label.
    """
    standardize, model = run.result.settings["standardize"], run.result.model
    known = run.labels.dropna()
    unit = known.std(ddof=0) if standardize else 1.0
    beta, mean, covariance = [], [], []
    for name in sorted(run.tables):
        state, table = run.states[name], run.tables[name]
        x = table.loc[table.index.isin(known.index)].to_numpy()
        scale = x.std(axis=0) if standardize else np.ones(x.shape[1])
        center = x.mean(axis=0) if standardize else np.zeros(x.shape[1])
        beta.append(unit * np.asarray(state["beta"]) / scale)
        mean.append(center + scale * np.asarray(state["mean"]))
        covariance.append(np.asarray(state["covariance"]) * np.outer(scale, scale))
    return Theta(model.intercept, beta, mean, covariance, model.sigma2)


def rounds_of(result):
    """By step, in how many rounds it was taken."""
    frame = result.ledger.to_frame()
    return frame.groupby("step")["round"].nunique().to_dict()
