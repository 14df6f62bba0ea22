"""Predictions tell bits of rows: counted over models and runs, on the grid that the node allows."""

import shutil

import numpy as np
import pandas as pd
import pytest
from ledgered import IDS, N, Nodes, labels_of, tables

from flwr_vertical.privacy_ledger.database import reading
from flwr_vertical.privacy_ledger.stored_arrays import Arrays
from strategies.predict import Predict
from strategies.vfem import VFEM

HIDDEN = 20


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit whose unlabelled samples were predicted, and the nodes afterwards."""
    parties = tables()
    parties["bank"] = parties["bank"].drop(index=IDS[3])
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), parties, **{"min-rows": 20})
    result = nodes.run(VFEM(), labels_of(tables(), unlabelled=HIDDEN))
    return nodes, result


def bits_by_row(nodes, name="bank"):
    """All that predictions told of each row that the ledger knows, sorted."""
    path = nodes.folder / "out" / name / f"{name}.privacy-ledger.sqlite"
    with reading(path, name) as connection:
        return np.sort(Arrays(connection, path, name).get("predictions", np.float64))


@pytest.fixture
def after(fitted, tmp_path):
    """The same nodes, each time as after the fit."""
    nodes, result = fitted
    again = Nodes(tmp_path, tables(), **{"min-rows": 20})
    for path in nodes.folder.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    again.n_runs = nodes.n_runs
    return again, result


def test_a_fit_writes_down_the_rows_that_it_predicts(fitted):
    nodes, result = fitted
    bits = result.predictor.bits["bank"]
    (entry,) = nodes.entries("predictions")
    assert (entry["n_rows"], entry["bits"]) == (HIDDEN - 1, bits)
    assert bits <= 12
    told = bits_by_row(nodes)
    assert told.tolist() == [0.0] * (N - HIDDEN) + [float(bits)] * (HIDDEN - 1)
    assert nodes.ledger().state["prediction_bits"] == bits


def test_predictions_add_up_over_runs_and_the_same_again_are_free(after):
    nodes, result = after
    bits = {name: result.predictor.bits[name] for name in ("bank", "court")}
    nodes.state(policy_predictions=2.0 * max(bits.values()))
    one = nodes.run(Predict(result), fitted="run 1", forgetful=True)
    told = nodes.ledger().state["prediction_bits"]
    assert told == 2 * bits["bank"]  # the fit's own predictions and these
    again = nodes.run(Predict(result), fitted="run 1")
    pd.testing.assert_frame_equal(one.predictions, again.predictions)
    assert nodes.ledger().state["prediction_bits"] == told
    # Of the same rows, another model tells something else.
    other = labels_of(tables(), seed=2, unlabelled=HIDDEN)
    said = nodes.refused("predictions", VFEM(), other)
    assert f"of some of which {told:g} were told before" in said or "court" in said
    assert f"{2 * max(bits.values())} bits of a row over all runs" in said
    assert nodes.ledger().state["prediction_bits"] == told
    nodes.state(policy_predictions=100.0)
    nodes.run(VFEM(), other)


def test_what_is_refused_leaves_no_model(after):
    nodes, _ = after
    nodes.state(policy_predictions=3.0)
    nodes.refused("predictions", VFEM(), labels_of(tables(), seed=2, unlabelled=HIDDEN))
    assert not list(nodes.folder.glob("out/*/run 2/*.model.npz"))


def test_a_model_of_a_finer_grid_than_the_owner_now_allows_is_refused(after):
    nodes, result = after
    nodes.state(policy_grid=4)
    said = nodes.refused("grid", Predict(result), fitted="run 1")
    assert "4 bits of a row in one model's prediction" in said
    coarse = nodes.run(VFEM(), labels_of(tables(), unlabelled=HIDDEN))
    assert set(coarse.predictor.bits.values()) == {4}


def test_a_corrected_row_is_told_of_anew(after):
    nodes, result = after
    nodes.state(policy_predictions=2.0 * max(result.predictor.bits.values()))
    nodes.run(Predict(result), fitted="run 1")
    changed = tables()
    changed["bank"].loc[IDS[60], "income"] += 1.0
    nodes.write(changed)
    nodes.refused("predictions", Predict(result), fitted="run 1")
