"""FALSE-VFL over a federation: its gradients are those of one central graph."""

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
    asked,
    flat,
    flat_gradients,
    make_data,
    settings_of,
    small,
)
from ledgered import Nodes
from oracles import false_vfl as oracle

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError
from flwr_vertical.node.steps import bytes_in_memory
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.party import NOISE, WEIGHTS
from strategies.false_vfl.posterior import draw_normals
from strategies.false_vfl.strategy import FalseVFL
from strategies.neural.networks import draw_weights

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


@pytest.mark.parametrize("variant", ["I", "II"])
def test_gradients_and_parameters_are_those_of_one_central_graph(variant):
    tables, labels, _ = make_data(seed=3)
    settings = SMALL | {"pretrain_batch_size": 25, "precision": "float64", "epochs": 2}
    strategy = OpenFalseVFL(variant=variant, pretrain_epochs=2, **settings)
    result = simulate(strategy, tables, labels)
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


@pytest.mark.parametrize("variant", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_one_party_and_batches_without_a_row_of_a_party(variant):
    """The limits: a party alone with all columns; a party that holds two samples."""
    tables, labels, _ = make_data(seed=3, held=2.0)
    tables["shop"] = tables["shop"].iloc[[4, 50]]
    settings = SMALL | {"precision": "float64", "epochs": 1, "pretrain_epochs": 1}
    strategy = OpenFalseVFL(variant=variant, pretrain_batch_size=10, **settings)
    alone = OpenFalseVFL(variant=variant, pretrain_batch_size=30, **settings)
    for chosen, parties in ((strategy, tables), (alone, {"bank": tables["bank"]})):
        simulate(chosen, parties, labels, aggregation="plain")
        told = TOLD.pop()
        central = Central(chosen, parties, len(labels))
        central.train(1)
        for name in [*parties, "server"]:
            expected = flat(central.of(name))
            np.testing.assert_allclose(told[name]["parameters"], expected, atol=1e-7)


def test_rounds_and_bytes():
    """Three rounds a pretraining step, one for all the second stage's likelihoods of two epochs."""
    tables, labels, _ = make_data(n=160, seed=2)
    strategy = small(FalseVFL, pretrain_epochs=10, epochs=60, pretrain_batch_size=54)
    ledger = simulate(strategy, tables, labels).ledger.to_frame()
    rounds = ledger.groupby("step")["round"].nunique()
    steps = 10 * 3
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
        pretrain_epochs=200, epochs=200, validation_share=0.3, validate_every=2, patience=6, **fast
    )
    result = simulate(strategy, tables, labels, aggregation="plain")
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


def test_missing_cells_and_levels_are_taken_as_they_are():
    tables, labels, _ = make_data(seed=5)
    tables["bank"].iloc[::4, 0] = np.nan
    tables["court"]["kind"] = np.where(tables["court"]["court0"] > 3, "new", "old")
    strategy = FalseVFL(pretrain_epochs=2, epochs=2, variant="II", **SMALL)
    result = simulate(strategy, tables, labels)
    assert np.isfinite(result.predictions["probability_1"]).all()


# -- consent -----------------------------------------------------------------------------------


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
    here = [simulate(short, tables, labels).history[0]["loss"] for _ in range(2)]
    assert here[0] == here[1]
    assert len({*losses, *here}) == 3


# -- what parties are told ---------------------------------------------------------------------

ROUNDS = ("prepare", "encode", "log_terms", "go_backward", "score", "keep")


def messages_of(variant, labels, tables):
    transcript = []
    strategy = small(FalseVFL, variant=variant, pretrain_epochs=2, epochs=6)
    simulate(strategy, tables, labels, aggregation="plain", transcript=transcript)
    return [(node, step, values) for node, step, values in asked(transcript) if step in ROUNDS]


@pytest.mark.parametrize("variant", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_no_message_to_a_party_depends_on_a_label(variant):
    tables, labels, _ = make_data(seed=6, held=0.5)
    other = 1 - labels  # every label is another one; the samples that have one are the same
    messages = [messages_of(variant, y, tables) for y in (labels, other)]
    assert len(messages[0]) == len(messages[1]) > 3 * 20
    for (node, step, one), (again, same, two) in zip(*messages, strict=True):
        assert (node, step, set(one)) == (again, same, set(two))
        for name, value in one.items():
            if (step, name) != ("keep", "model"):  # a random name
                np.testing.assert_array_equal(value, two[name])


def test_a_party_is_told_of_samples_that_it_holds_and_of_no_other():
    tables, labels, _ = make_data(seed=6, held=0.5)
    ids = list(dict.fromkeys(i for table in tables.values() for i in table.index))
    holds = {node: np.isin(ids, table.index) for node, table in enumerate(tables.values(), start=1)}
    seen, batch, told = set(), {}, {}
    for node, step, values in messages_of("I", labels, tables):
        if step == "encode":
            told[node], batch[node] = batch.get(node), values["batch"]
            rows = None if told[node] is None else holds[node][told[node]].sum()
        else:
            rows = holds[node][batch[node]].sum() if node in batch else None
        for name in ("mean", "log_sigma", "weights", "in_mean", "in_precision"):
            if name in values:
                seen.add(name)
                assert len(values[name]) == rows
    assert seen == {"mean", "log_sigma", "weights", "in_mean", "in_precision"}


SHORT = SMALL | {"epochs": 1, "prediction_samples": 2}


def test_the_first_stage_ends_with_the_networks_that_validated_best():
    """Those of a run that ends at that epoch; parties are told by messages that go in any case."""
    tables, labels, _ = make_data(n=80, seed=2)
    how = SHORT | {
        "pretrain_learning_rate": 0.1, "validation_share": 0.3, "validate_every": 2, "patience": 6,
    }  # fmt: skip
    long = OpenFalseVFL(variant="II", pretrain_epochs=200, **how)
    whole = simulate(long, tables, labels, aggregation="plain")
    found = TOLD.pop()
    best = int(whole.metrics["pretrain_best_epoch"])
    assert 0 < best < whole.metrics["pretrain_epochs"]
    short = OpenFalseVFL(variant="II", pretrain_epochs=best, **how)
    simulate(short, tables, labels, aggregation="plain")
    expected = TOLD.pop()
    for name in [*COLUMNS, "server"]:
        np.testing.assert_array_equal(found[name]["parameters"], expected[name]["parameters"])


@pytest.mark.parametrize("rate", [1e4, 1e20])
def test_a_training_that_diverges_names_party_and_step_and_keeps_its_snapshot(rate, tmp_path):
    """Embeddings leave their range, or are no numbers any more."""
    tables, labels, _ = make_data(n=40)
    kept = {"checkpoint": tmp_path, "checkpoint_every": 1, "progress": False}
    strategy = FalseVFL(pretrain_epochs=20, **SHORT | {"pretrain_learning_rate": rate})
    messages = []
    for resume in (False, True):
        with pytest.raises(PartyError) as caught:
            simulate(strategy, tables, labels, resume=resume, **kept)
        messages.append(str(caught.value))
        assert "pretrain_learning_rate" in messages[-1]
    # It goes on from the last snapshot, to the same end.
    assert messages[0] == messages[1]
    assert any(f"party '{name}' failed in step 'encode'" in messages[0] for name in COLUMNS)
    assert "epoch 2, step 2 of the first stage" in messages[0]
    other = FalseVFL(pretrain_epochs=20, **SHORT | {"h_dim": 6})
    with pytest.raises((ConfigError, ProtocolError), match=r"another run.*h_dim|h_dim"):
        simulate(other, tables, labels, resume=True, **kept)


def test_a_class_whose_samples_all_were_left_out_is_refused():
    tables, labels, classes = make_data(n=40, seed=6, held=0.5)
    holders = pd.DataFrame({k: pd.Series(1, index=t.index) for k, t in tables.items()})
    alone = holders.index[holders.sum(axis=1) == 1]
    labels = classes.copy()
    labels[alone[:2]] = 7.0
    strategy = FalseVFL(pretrain_epochs=1, **SHORT)
    agreed = {"exchanges": "embeddings", "modules": f"{FalseVFL.__module__}:FalseVFL"}
    with pytest.raises(
        DataError, match=r"none of the 2 samples with the label 7 takes part.*'lone-embeddings'"
    ):
        simulate(strategy, tables, labels, policy=agreed)


def test_a_class_of_one_sample_trains_even_where_half_validate():
    tables, labels, _ = make_data(n=40, held=2.0)
    labels.iloc[3] = 5.0
    for seed in range(3):
        strategy = FalseVFL(pretrain_epochs=1, validation_share=0.5, **SHORT)
        result = simulate(strategy, tables, labels, seed=seed)
        assert "probability_5" in result.predictions
        assert np.isfinite([line["loss"] for line in result.history]).all()
        assert not {"validation_bound", "pretrain_best_epoch"} & set(result.metrics)  # none was


def test_labels_that_the_fit_did_not_have_are_told_of():
    tables, labels, classes = make_data(n=40)
    result = simulate(FalseVFL(pretrain_epochs=1, **SHORT), tables, labels)
    classes.iloc[:3] = 9.0
    again = result.predict(tables, classes)
    assert again.metrics["accuracy"] <= 37 / 40
    assert "3 samples have labels [9.0], of which the fit had none" in again.notes[-1]


def test_a_sample_that_no_party_holds_takes_no_part():
    tables, labels, _ = make_data(n=40)
    labels["nobody"] = 1.0
    labels["nothing"] = np.nan
    result = simulate(FalseVFL(pretrain_epochs=1, **SHORT), tables, labels)
    assert not {"nobody", "nothing"} & set(result.predictions.index)
    assert len(result.predictions) == labels.iloc[:40].isna().sum()
