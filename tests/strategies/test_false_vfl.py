"""FALSE-VFL over a federation: its gradients are those of one central graph."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import (
    COLUMNS,
    SMALL,
    TOLD,
    OpenFalseVFL,
    aligned,
    flat,
    flat_gradients,
    make_data,
    settings_of,
)
from ledgered import Nodes
from oracles import false_vfl as oracle
from training import TrainingPlace

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.steps import bytes_in_memory
from strategies.false_vfl import hardware
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.gaussian import draw_normals
from strategies.false_vfl.party_networks import NOISE, WEIGHTS
from strategies.false_vfl.strategy import FalseVFL
from strategies.false_vfl.weights import draw_weights
from strategies.predict import Predict

F64 = torch.float64


class Central:
    """The same training by the oracle: one graph over all columns, one optimiser."""

    def __init__(self, strategy, tables, n_rows):
        self.ids = list(dict.fromkeys(i for table in tables.values() for i in table.index))
        assert len(self.ids) == n_rows
        self.x, self.observed = aligned(tables, self.ids)
        self.strategy, self.rng = strategy, np.random.default_rng(0)
        blocks = {name: _Shape(values) for name, values in self.x.items()}
        seed = int(self.rng.integers(2**62))
        self.model = CentralModel(blocks, settings_of(strategy), strategy.variant, 2, seed, F64)
        for name, nets in self.model.parties.items():
            draw_weights(nets, bytes_in_memory(0, name, WEIGHTS))
        self.parameters = [*self.model.parties.parameters(), *self.model.server.parameters()]
        self.losses = []

    def train(self, epochs):
        s = self.strategy
        optimiser = torch.optim.Adam(
            self.parameters, lr=s.pretrain_learning_rate, weight_decay=s.weight_decay
        )
        n, kappa = len(self.ids), s.importance_samples
        for _ in range(epochs):
            order = self.rng.permutation(n)
            for batch in np.array_split(order, -(-n // s.pretrain_batch_size)):
                seed, b = int(self.rng.integers(2**62)), len(batch)
                noise = {
                    "h": draw_normals(seed, "h", (b, kappa, s.h_dim), F64),
                    "z": draw_normals(seed, "z", (b, kappa, s.z_dim), F64),
                }
                for name in self.x:
                    p = COLUMNS[name]
                    own = bytes_in_memory(0, name, NOISE, str(seed).encode())
                    of_party = int.from_bytes(own, "little")
                    noise[name] = draw_normals(of_party, "x", (b, kappa, p), F64)
                x = {name: values[batch] for name, values in self.x.items()}
                seen = {name: flags[batch] for name, flags in self.observed.items()}
                ratios, _ = oracle.log_ratios(self.model, x, seen, noise, s.activation)
                loss = -oracle.bound(ratios)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                self.losses.append(loss.item() * b / n)

    def of(self, name):
        nets = self.model.server if name == "server" else self.model.parties[name]
        return list(nets.parameters())


class _Shape:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("variant", ["I", "II"])
def test_gradients_and_parameters_are_those_of_one_central_graph(variant, mode):
    tables, labels, _ = make_data(seed=3)
    settings = SMALL | {"pretrain_batch_size": 25, "precision": "float64", "epochs": 2}
    strategy = OpenFalseVFL(variant=variant, pretrain_epochs=2, **settings)
    result = simulate(strategy, tables, labels, aggregation=mode, progress=False)
    told = TOLD.pop()
    central = Central(strategy, tables, len(labels))
    central.train(2)
    for name in [*COLUMNS, "server"]:
        found = told[name]
        gradients = flat_gradients(central.of(name))
        # Each network has some that count: an optimiser's step hides the size of a gradient.
        assert np.abs(gradients).max() > 1e-2
        np.testing.assert_allclose(found["gradients"], gradients, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(found["parameters"], flat(central.of(name)), atol=1e-5)
    losses = [line["loss"] for line in result.history if line["stage"] == 1]
    expected = [sum(central.losses[:3]), sum(central.losses[3:])]
    np.testing.assert_allclose(losses, expected, rtol=1e-8)


@pytest.mark.parametrize("variant", ["I", "II"])
def test_one_party_and_batches_without_a_row_of_a_party(variant):
    """The limits: a party alone with all columns; a party that holds two samples."""
    tables, labels, _ = make_data(seed=3, held=2.0)
    tables["shop"] = tables["shop"].iloc[[4, 50]]
    settings = SMALL | {"precision": "float64", "epochs": 1, "pretrain_epochs": 1}
    strategy = OpenFalseVFL(variant=variant, pretrain_batch_size=10, **settings)
    alone = OpenFalseVFL(variant=variant, pretrain_batch_size=30, **settings)
    for chosen, parties in ((strategy, tables), (alone, {"bank": tables["bank"]})):
        simulate(chosen, parties, labels, aggregation="plain", progress=False)
        told = TOLD.pop()
        central = Central(chosen, parties, len(labels))
        central.train(1)
        for name in [*parties, "server"]:
            expected = flat(central.of(name))
            np.testing.assert_allclose(told[name]["parameters"], expected, atol=1e-7)


@pytest.fixture(scope="module")
def trained():
    """A run that learns, in float32, and what is true of the samples that it predicts."""
    tables, labels, classes = make_data(n=160, seed=2)
    strategy = FalseVFL(
        pretrain_epochs=30,
        epochs=60,
        pretrain_batch_size=54,
        **SMALL | {"prediction_samples": 800},
    )
    return simulate(strategy, tables, labels, progress=False), classes, strategy


def test_it_learns_and_predicts(trained):
    result, classes, _ = trained
    found = result.predictions
    assert list(found.columns) == ["prediction", "probability_0", "probability_1"]
    np.testing.assert_allclose(found[["probability_0", "probability_1"]].sum(axis=1), 1, rtol=1e-6)
    truth = classes[found.index]
    assert 40 < len(found) < 70  # three standard errors above chance: 0.7
    assert (found["prediction"] == truth).mean() > 0.8
    losses = [line["loss"] for line in result.history if line["stage"] == 1]
    assert losses[-1] < losses[0] - 1.0
    assert result.metrics["bound"] == -losses[-1]
    assert len(losses) == 30


def test_rounds_and_bytes(trained):
    """Three rounds a pretraining step, one for all the second stage's likelihoods of two epochs."""
    result, _, strategy = trained
    ledger = result.ledger.to_frame()
    rounds = ledger.groupby("step")["round"].nunique()
    steps = 30 * 3
    assert rounds["log_terms"] == rounds["go_backward"] == steps
    assert rounds["encode"] == steps + 2  # the second stage's, and one block of predictions
    assert rounds["score"] == -(-60 // 2) + 1
    assert rounds["encode"] + rounds["score"] - steps - 2 <= 60
    assert rounds["prepare"] == 1

    def per_step(name, column):
        return ledger[ledger["step"] == name].groupby("round")[column].sum()

    # Up: float32 in a ring of 4 bytes, for all rows of a batch, from three parties.
    n, d, kappa = 54, strategy.h_dim, strategy.importance_samples
    for name, numbers in (("encode", 2 * d), ("log_terms", kappa), ("go_backward", 2 * d)):
        values = 3 * n * numbers * 4
        assert values <= per_step(name, "bytes_up").iloc[5] <= 1.1 * values + 3 * 200
    # Down: a party gets the rows that it holds, so at most all of them.
    assert per_step("log_terms", "bytes_down").max() <= 3 * (n * 2 * d * 4 + 400)
    assert per_step("log_terms", "bytes_down").mean() <= 0.8 * 3 * (n * 2 * d * 4 + 400)


def test_validation_ends_both_stages_and_keeps_the_best_head():
    tables, labels, _ = make_data(n=80, seed=2)
    fast = SMALL | {"pretrain_learning_rate": 0.1, "learning_rate": 0.2}
    strategy = FalseVFL(
        pretrain_epochs=200,
        epochs=200,
        validation_share=0.3,
        validate_every=2,
        patience=6,
        **fast,
    )
    result = simulate(strategy, tables, labels, aggregation="plain", progress=False)
    first, second = (
        [line for line in result.history if line["stage"] == stage] for stage in (1, 2)
    )
    assert [line["epoch"] for line in first if "validation" in line] == [
        *range(2, len(first) + 1, 2)
    ]
    for lines in (first, second):
        found = {line["epoch"]: line["validation"] for line in lines if "validation" in line}
        best = min(found, key=found.get)
        assert len(lines) == best + 6 < 200
    ledger = result.ledger.to_frame().groupby("step")["round"].nunique()
    # A step an epoch (56 samples), a validation every other epoch, the second stage, predictions.
    assert ledger["encode"] == len(first) + len(first) // 2 + 2
    assert ledger["score"] == len(first) // 2 + -(-len(second) // 4) + 1
    assert result.metrics["pretrain_epochs"] == len(first)
    assert result.metrics["pretrain_best_epoch"] == len(first) - 6
    assert result.metrics["epochs"] == len(second)


def test_masked_sums_train_as_plain_ones():
    tables, labels, _ = make_data(seed=2)
    strategy = FalseVFL(pretrain_epochs=3, epochs=3, pretrain_batch_size=20, **SMALL)
    one, other = (
        simulate(strategy, tables, labels, aggregation=mode, progress=False)
        for mode in ("plain", "masked")
    )
    losses = [[line["loss"] for line in result.history] for result in (one, other)]
    np.testing.assert_allclose(*losses, rtol=1e-3)
    np.testing.assert_allclose(
        one.predictions["probability_1"], other.predictions["probability_1"], atol=1e-3
    )


def test_a_regression_predicts_numbers_with_their_deviations():
    tables, _, _ = make_data(n=150, seed=4, held=0.8)
    ids = sorted(set().union(*(table.index for table in tables.values())))
    wide = pd.concat(tables.values(), axis=1).reindex(ids)
    y = 100 + 20 * (wide - wide.mean()).fillna(0.0).mean(axis=1)
    labels = y.where(np.random.default_rng(0).random(len(y)) < 0.7)
    settings = SMALL | {"task": "regression", "pretrain_batch_size": 150}
    result = simulate(
        FalseVFL(pretrain_epochs=30, epochs=100, **settings), tables, labels, progress=False
    )
    found = result.predictions
    error = found["prediction"] - y[found.index]
    assert np.sqrt((error**2).mean()) < 0.7 * y[found.index].std()
    assert (found["std_error"] > 0).all()
    assert (error.abs() < 2 * found["std_error"]).mean() > 0.8


def test_missing_cells_and_levels_are_taken_as_they_are():
    tables, labels, _ = make_data(seed=5)
    tables["bank"].iloc[::4, 0] = np.nan
    tables["court"]["kind"] = np.where(tables["court"]["court0"] > 3, "new", "old")
    strategy = FalseVFL(pretrain_epochs=2, epochs=2, encoding="one-hot", variant="II", **SMALL)
    result = simulate(strategy, tables, labels, progress=False)
    assert np.isfinite(result.predictions["probability_1"]).all()
    with pytest.raises(PartyError, match=r"column 'kind' holds levels .* encoding='one-hot'"):
        simulate(FalseVFL(pretrain_epochs=1, epochs=1, **SMALL), tables, labels, progress=False)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda y: y * np.nan, "no sample has a label"),
        (lambda y: y * 0 + 3, r"all labels are of class 3; expected two or more"),
        (lambda y: y.replace(1.0, np.inf), "a label is infinite"),
        (lambda y: pd.Series(np.linspace(0, 1, 2000), [f"q{i}" for i in range(2000)]), "no label"),
    ],
)
def test_labels_that_cannot_be_used(change, match):
    tables, labels, _ = make_data()
    with pytest.raises(DataError, match=match):
        simulate(FalseVFL(**SMALL), tables, change(labels), progress=False)


# -- predicting with a kept model --------------------------------------------------------------


def new_samples():
    """Other samples of the same make as those of `trained`."""
    tables, _, classes = make_data(n=160, seed=2, held=2.0, labelled=0.0)
    other, _, _ = make_data(n=160, seed=2)
    assert tables["bank"].loc[other["bank"].index].equals(other["bank"])
    return {name: table.iloc[:90] for name, table in tables.items()}, classes.iloc[:90]


def test_new_samples_are_predicted_by_whoever_is_there(trained):
    result, _, _ = trained
    tables, classes = new_samples()
    full = result.predict(tables, classes, progress=False)
    assert full.metrics["accuracy"] > 0.85  # complete samples; chance is one half
    assert list(full.predictions.columns) == list(result.predictions.columns)
    less = result.predict({k: tables[k] for k in ("bank", "court")}, classes, progress=False)
    assert less.notes == ["parties ['shop'] of the fit take no part; their blocks are missing"]
    assert 0.7 < less.metrics["accuracy"] <= full.metrics["accuracy"] + 0.05
    rounds = full.ledger.to_frame().groupby("step")["round"].nunique()
    assert rounds[["open_networks", "encode", "score"]].tolist() == [1, 1, 1]


def test_a_kept_model_predicts_what_the_fit_did(trained):
    """The same samples again: the draws are others, the networks and scales the same."""
    result, _, _ = trained
    tables, _, _ = make_data(n=160, seed=2)
    rows = result.predictions.index
    tables = {name: table[table.index.isin(rows)] for name, table in tables.items()}
    again = result.predict(tables, progress=False).predictions.loc[rows]
    change = (again["probability_1"] - result.predictions["probability_1"]).abs()
    assert change.mean() < 0.03
    assert (again["prediction"] == result.predictions["prediction"]).mean() > 0.9


def test_a_saved_model_predicts_to_the_bit(trained, tmp_path):
    result, _, _ = trained
    tables, _ = new_samples()
    here = simulate(Predict(result), tables, seed=3, progress=False)
    result.save(tmp_path / "fit")
    there = simulate(Predict(tmp_path / "fit"), tables, seed=3, progress=False)
    pd.testing.assert_frame_equal(here.predictions, there.predictions, check_exact=True)


def test_what_a_kept_model_does_not_know_is_refused(trained):
    result, _, _ = trained
    tables, _ = new_samples()
    with pytest.raises(PartyError, match=r"'bank' has no column 'bank1', which the model uses"):
        result.predict(tables | {"bank": tables["bank"].drop(columns="bank1")}, progress=False)
    with pytest.raises(ConfigError, match=r"parties \['museum'\] took no part in the fit"):
        result.predict(tables | {"museum": tables["shop"]}, progress=False)
    with pytest.raises(ConfigError, match="no model: name the run of the fit"):
        simulate(Predict(), tables, progress=False)


# -- consent -----------------------------------------------------------------------------------


def place(folder, exchanges, strategy):
    """Three nodes with node configs of their own, and disks on which a run can go on."""
    made = TrainingPlace(folder, "masked", lambda: strategy, every=4)
    made.tables, made.labels, _ = make_data(seed=6, held=0.45)
    made.configs = {name: {"exchanges": asked} for name, asked in exchanges.items()}
    return made


def test_a_node_that_does_not_agree_takes_no_part(tmp_path):
    asked = dict.fromkeys(COLUMNS, "embeddings") | {"shop": "sums"}
    with pytest.raises(PartyError, match=r"'shop'.* exchange 'embeddings'"):
        place(tmp_path, asked, FalseVFL(**SMALL)).plain()


def test_samples_that_one_party_alone_holds_need_its_consent(tmp_path):
    short = {"pretrain_epochs": 1, "epochs": 1, **SMALL}
    both = "embeddings,lone-embeddings"
    asked = dict.fromkeys(COLUMNS, "embeddings") | {"court": both}
    here = place(tmp_path, asked, FalseVFL(**short))
    holders = pd.DataFrame(
        {name: pd.Series(1, index=table.index) for name, table in here.tables.items()}
    )
    alone = holders[holders.sum(axis=1) == 1]
    refused = alone.index[alone["court"].isna()]
    unlabelled = here.labels.index[here.labels.isna()]
    assert len(refused.intersection(unlabelled)) > 2
    assert len(alone.index[alone["court"] == 1].intersection(unlabelled)) > 2
    result = here.plain().result
    assert set(result.predictions.index) == set(unlabelled) - set(refused)
    assert f"{len(refused)} samples that one party alone holds were left out" in result.notes[0]


def test_a_node_s_ledger_has_that_its_rows_are_told_whole(tmp_path):
    tables, labels, _ = make_data(seed=6)
    short = FalseVFL(pretrain_epochs=1, epochs=1, **SMALL)
    keys = {"exchanges": "embeddings,lone-embeddings", "policy.alignments": "plain"}
    nodes = Nodes(tmp_path, tables, **keys)
    nodes.run(short, labels)
    for name, p in COLUMNS.items():
        entries = [entry for entry in nodes.entries("bits", name) if entry["bits"]]
        assert [(e["n_rows"], e["bits"]) for e in entries] == [(len(tables[name]), 64.0 * p)]
    (tmp_path / "other").mkdir()
    bounded = Nodes(tmp_path / "other", tables, **keys)
    bounded.state(policy_openings=100.0)
    assert "192 bits of" in bounded.refused("openings", short, labels)


def test_the_server_s_seed_does_not_tell_how_a_node_s_networks_begin(tmp_path):
    tables, labels, _ = make_data(seed=6, held=2.0)
    short = FalseVFL(pretrain_epochs=1, epochs=1, **SMALL)
    keys = {"exchanges": "embeddings,lone-embeddings", "policy.alignments": "plain"}
    losses = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        nodes = Nodes(tmp_path / str(k), tables, **keys)
        losses.append(nodes.run(short, labels).history[0]["loss"])
    here = [simulate(short, tables, labels, progress=False).history[0]["loss"] for _ in range(2)]
    assert here[0] == here[1]
    assert len({*losses, *here}) == 3


# -- going on ----------------------------------------------------------------------------------


def test_a_run_that_is_killed_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    """The server dies in the first stage, then in the second; a party in between.

    In mixed precision, which is float32 with some products rounded.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)
    asked = dict.fromkeys(COLUMNS, "embeddings,lone-embeddings")
    strategy = FalseVFL(
        variant="II",
        pretrain_epochs=4,
        epochs=30,
        pretrain_batch_size=20,
        precision="mixed",
        **SMALL,
    )
    whole = place(tmp_path / "whole", asked, strategy)
    expected = whole.run().result
    steps = expected.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    # In the middle of a step of the loop, then of the last step, then while likelihoods are told.
    early = steps.index("log_terms") + 3 * 6 + 1
    late = len(steps) - 20
    broken = place(tmp_path / "broken", asked, strategy)
    broken.broken(die_after=early)
    broken.broken(resume=True, run_id=2, lose={8: "before"}, die_after=late - early)
    found = broken.run(resume=True, run_id=3).result
    assert found.history == expected.history
    pd.testing.assert_frame_equal(found.predictions, expected.predictions, check_exact=True)
    assert broken.files() == []
