"""What holds for every method with neural networks: FALSE-VFL and split learning."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import COLUMNS, LEARNING, SPLIT, answered, make_data, place, small, trained
from torch import nn

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.policy.requirements import asked_by
from strategies.false_vfl import FalseVFL
from strategies.false_vfl.networks import NetworkSettings, PartyNetworks
from strategies.neural import hardware
from strategies.neural.networks import draw_weights
from strategies.neural.training import LabelTargets
from strategies.predict import Predict
from strategies.split import FedHSSL, LaserVFL, PlugVFL, VanillaVFL
from strategies.split.party import SplitParty

each = pytest.mark.parametrize("method", [FalseVFL, *SPLIT], ids=lambda m: m.name)


# -- learning ----------------------------------------------------------------------------------


@each
def test_it_learns_and_predicts(method):
    run = trained(method)
    result, found = run.result, run.result.predictions
    assert list(found.columns) == ["prediction", "probability_0", "probability_1"]
    assert set(found.index) == set(run.labels.index[run.labels.isna()])
    np.testing.assert_allclose(found[["probability_0", "probability_1"]].sum(axis=1), 1, rtol=1e-6)
    # Chance is one half, a standard error 0.07.
    accuracy = (found["prediction"] == run.classes[found.index]).mean()
    assert accuracy > (0.8 if method is FalseVFL else 0.75)
    stage = 1 if method is FalseVFL else 2
    losses = [line["loss"] for line in result.history if line["stage"] == stage]
    if method is FalseVFL:
        assert losses[-1] < losses[0] - 1.0
        assert result.metrics["bound"] == -losses[-1]
        assert len(losses) == 30
    else:
        assert losses[-1] < 0.6 * losses[0]
        assert result.metrics == {"epochs": 15.0, "loss": losses[-1]}


@pytest.mark.parametrize("method", SPLIT, ids=lambda m: m.name)
def test_rounds_and_bytes_of_split_learning(method):
    """One round a step, and nothing for SimSiam; one for predictions, one before, one after."""
    run = trained(method)
    tables, labels, ledger = run.tables, run.labels, run.result.ledger.to_frame()
    rounds = ledger.groupby("step")["round"].nunique().drop(["hello", "share_ids"]).to_dict()
    aligned = set.intersection(*(set(table.index) for table in tables.values()))
    known = set(labels.dropna().index)
    n = len(known & aligned) if method in (VanillaVFL, FedHSSL) else len(known)
    steps = 15 * -(-n // 24)
    expected = {"prepare": 1, "embed": steps + 1, "keep": 1}
    if method is FedHSSL:
        batches = -(-len(aligned) // 20)
        expected["project"] = 2 * batches + 1
        assert batches > 1
    assert rounds == expected
    # Up: float32 in a ring of 4 bytes, for all rows of a batch, from three parties.
    embed = ledger[ledger["step"] == "embed"].groupby("round")[["bytes_up", "bytes_down"]].sum()
    size = max(len(part) for part in np.array_split(range(n), -(-n // 24)))
    tasks, sent = (3, 6) if method is LaserVFL else (1, 8)
    values = 3 * tasks * size * sent * 4
    assert embed["bytes_up"].iloc[:steps].max() <= values + 3 * 200
    assert embed["bytes_up"].iloc[:steps].max() >= values
    # Down: the gradients of rows that a party holds, and which sums these enter. (The first message
    # has none, and the last mean of FedHSSL's layers.)
    assert embed["bytes_down"].iloc[1:steps].max() <= 3 * (size * (sent * 4 + 8 + tasks) + 900)


@pytest.mark.parametrize(
    "method", [FalseVFL, pytest.param(FedHSSL, marks=pytest.mark.slow)], ids=lambda m: m.name
)
def test_mixed_precision_trains_nearly_alike_repeats_and_is_kept(method, monkeypatch, tmp_path):
    """Products in bfloat16, also where the processor would compute them slowly."""
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)
    tables, labels, _ = make_data(n=60, seed=3, held=0.8)
    runs = [
        simulate(small(method, precision=kind), tables, labels)
        for kind in ("mixed", "mixed", "float32")
    ]
    losses = [[line["loss"] for line in run.history] for run in runs]
    assert losses[0] == losses[1] != losses[2]
    np.testing.assert_allclose(losses[0], losses[2], atol=0.05)
    assert '"mixed": true' in runs[0].predictor.networks
    there = Result.load(runs[0].save(tmp_path / "fit"))
    found = [run.predict(tables).predictions for run in (runs[0], there)]
    pd.testing.assert_frame_equal(*found, check_exact=True)


@pytest.mark.parametrize(
    ("method", "settings", "error"),
    [
        (FalseVFL, {"pretrain_epochs": 30, "epochs": 60, "pretrain_batch_size": 150}, 0.7),
        (PlugVFL, LEARNING | {"pretrain": "none", "epochs": 20}, 0.6),
    ],
    ids=["false-vfl", "plug-vfl"],
)
def test_a_regression_predicts_numbers(method, settings, error):
    """FALSE-VFL with their deviations. Errors are in units of the labels' deviation."""
    tables, _, _ = make_data(n=150, seed=4, held=0.8)
    ids = sorted(set().union(*(table.index for table in tables.values())))
    wide = pd.concat(tables.values(), axis=1).reindex(ids)
    y = 100 + 20 * (wide - wide.mean()).fillna(0.0).mean(axis=1)
    labels = y.where(np.random.default_rng(0).random(len(y)) < 0.7)
    strategy = small(method, task="regression", **settings)
    found = simulate(strategy, tables, labels).predictions
    off = found["prediction"] - y[found.index]
    assert np.sqrt((off**2).mean()) < error * y[found.index].std()
    deviations = ["std_error"] if method is FalseVFL else []
    assert list(found.columns) == ["prediction", *deviations]
    for name in deviations:
        assert (found[name] > 0).all()
        assert (off.abs() < 2 * found[name]).mean() > 0.8


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([np.nan, np.nan], "no sample has a label"),
        ([3.0, 3.0, np.nan], "all labels are of class 3; expected two or more"),
        (np.arange(20.0) / 7, "20 different values; .* set task='regression'"),
        ([0.0, np.inf], "a label is infinite"),
        (np.linspace(0, 1, 2000), "2000 different values; .* set task='regression'"),
    ],
)
def test_labels_that_cannot_be_used(labels, match):
    with pytest.raises(DataError, match=match):
        LabelTargets.of(np.array(labels), "classification")


def test_equal_labels_of_a_regression_are_refused():
    labels = np.full(240, 0.1)  # whose deviations from their mean are rounding
    assert labels.std() > 0
    with pytest.raises(DataError, match=r"all labels are 0\.1; there is nothing to be predicted"):
        LabelTargets.of(labels, "regression")


@pytest.mark.parametrize("method", [FalseVFL, PlugVFL], ids=lambda m: m.name)
def test_images_need_their_shape(method):
    for wrong in ({"networks": "cnn"}, {"image_shape": "14x7"}):
        with pytest.raises(ConfigError, match="cnn and resnet18 are for images and need their"):
            method(**wrong)
    tables, labels, _ = make_data(n=20, held=2.0)
    shapes = "bank=1x3,court=2x2,shop=3x3"
    with pytest.raises(PartyError, match=r"'shop'.*image_shape says 1x3x3 .*its table has 2"):
        simulate(small(method, networks="cnn", image_shape=shapes), tables, labels)


# -- predicting with a kept model --------------------------------------------------------------


@each
def test_a_kept_model_predicts_what_the_fit_did(method, tmp_path):
    """The same samples again: draws of FALSE-VFL are others, networks and scales the same."""
    run = trained(method)
    result, rows = run.result, run.result.predictions.index
    own = {name: table[table.index.isin(rows)] for name, table in run.tables.items()}
    again = result.predict(own)
    found = again.predictions.loc[rows]
    if method is FalseVFL:
        change = (found["probability_1"] - result.predictions["probability_1"]).abs()
        assert change.mean() < 0.03
        assert (found["prediction"] == result.predictions["prediction"]).mean() > 0.9
    else:
        pd.testing.assert_frame_equal(found, result.predictions, atol=1e-5)
    rounds = again.ledger.to_frame().groupby("step")["round"].nunique()
    steps = ["encode", "score"] if method is FalseVFL else ["embed"]
    assert (rounds[["open_networks", *steps]] == 1).all()
    there = Result.load(result.save(tmp_path / "fit")).predict(own)
    pd.testing.assert_frame_equal(there.predictions, again.predictions, check_exact=True)


@each
def test_new_samples_are_predicted_by_whoever_is_there(method):
    run = trained(method)
    n = len(run.labels)
    tables, _, classes = make_data(n=n, seed=2, held=2.0, labelled=0.0)
    assert tables["bank"].loc[run.tables["bank"].index].equals(run.tables["bank"])
    tables, classes = {k: t.iloc[:90] for k, t in tables.items()}, classes.iloc[:90]
    full = run.result.predict(tables, classes)
    assert full.metrics["accuracy"] > 0.85  # complete samples; chance is one half
    assert list(full.predictions.columns) == list(run.result.predictions.columns)
    some = {k: tables[k] for k in ("bank", "court")}
    less = run.result.predict(some, classes)
    assert less.notes == ["parties ['shop'] of the fit take no part; their blocks are missing"]
    assert 0.7 < less.metrics["accuracy"] <= full.metrics["accuracy"] + 0.05


@pytest.mark.parametrize("method", [FalseVFL, VanillaVFL], ids=lambda m: m.name)
def test_what_a_kept_model_does_not_know_is_refused(method):
    result, tables = trained(method).result, trained(method).tables
    with pytest.raises(PartyError, match=r"'bank' has no column 'bank1', which the model uses"):
        result.predict(tables | {"bank": tables["bank"].drop(columns="bank1")})
    with pytest.raises(ConfigError, match=r"parties \['museum'\] took no part in the fit"):
        result.predict(tables | {"museum": tables["shop"]})
    with pytest.raises(ConfigError, match="no model: name the run of the fit"):
        simulate(Predict(), tables)


def test_a_node_is_asked_what_the_model_that_it_kept_needs():
    part = trained(PlugVFL).result._party_models["bank"]
    strategy = Predict().at_node(lambda: part)
    assert strategy.party is SplitParty
    assert asked_by(strategy).exchanges == ("embeddings",)
    assert asked_by(Predict().at_node(lambda: None)).exchanges == ()


@pytest.mark.parametrize("method", [LaserVFL, PlugVFL], ids=lambda m: m.name)
def test_new_rows_may_each_lie_at_one_party(method):
    """Rows are predicted one by one: which others come with them changes nothing."""
    result, tables = trained(method).result, trained(method).tables
    common = [i for i in tables["bank"].index if all(i in t.index for t in tables.values())]
    alone = {name: common[5 * k : 5 * k + 5] for k, name in enumerate(tables)}
    new = {name: tables[name].loc[ids] for name, ids in alone.items()}
    found = result.predict(new)
    assert found.notes[0].startswith("parties ['bank', 'court', 'shop'] share no sample")
    beside = {name: tables[name].loc[[*ids, *common[15:20]]] for name, ids in alone.items()}
    expected = result.predict(beside)
    assert not any("share no sample" in note for note in expected.notes)
    rows = [i for ids in alone.values() for i in ids]
    assert len(found.predictions) == 15
    pd.testing.assert_frame_equal(
        found.predictions.loc[rows], expected.predictions.loc[rows], atol=1e-5
    )


# -- consent, and what parties send ------------------------------------------------------------


@pytest.mark.parametrize("method", [FalseVFL, PlugVFL, FedHSSL], ids=lambda m: m.name)
def test_samples_that_one_party_alone_holds_need_its_consent(tmp_path, method):
    asked = dict.fromkeys(COLUMNS, "embeddings") | {"court": "embeddings,lone-embeddings"}
    here = place(tmp_path, asked, small(method, epochs=1, pretrain_epochs=1))
    if method is PlugVFL:  # sums over some of the parties tell one from the other
        with pytest.raises(PartyError, match="exchange 'lone-embeddings'"):
            here.plain()
        return
    holders = pd.DataFrame(
        {name: pd.Series(1, index=table.index) for name, table in here.tables.items()}
    )
    alone = holders[holders.sum(axis=1) == 1]
    refused = alone.index[alone["court"].isna()]
    unlabelled = here.labels.index[here.labels.isna()]
    assert len(refused.intersection(unlabelled)) > 1
    assert len(alone.index[alone["court"] == 1].intersection(unlabelled)) > 1
    result = here.plain().result
    assert set(result.predictions.index) == set(unlabelled) - set(refused)
    assert f"{len(refused)} samples that one party alone holds were left out" in result.notes[0]


@pytest.mark.parametrize("method", [FalseVFL, FedHSSL], ids=lambda m: m.name)
def test_a_masked_run_sends_nothing_of_a_party_in_the_open(method):
    """Summands are uniform words of 32 bits; beside them are consent and what FALSE-VFL drew."""
    tables, labels, _ = make_data(seed=6, held=0.7)
    transcript, words = [], []
    simulate(small(method), tables, labels, transcript=transcript)
    drawn = {"drawn", "precision"} if method is FalseVFL else set()
    for step, sums, values in answered(transcript):
        if step not in ("hello", "share_ids"):
            words += [v.ravel() for v in sums.values() if hasattr(v, "ravel")]
            assert set(values) == ({"lone", *drawn} if step == "prepare" else set())
    words = np.concatenate([w.view(np.uint32) for w in words])
    assert len(words) > (10_000 if method is FalseVFL else 500)
    # Each bit is 1 in half of the words, to five standard errors.
    bits = np.array([((words >> np.uint32(k)) & np.uint32(1)).mean() for k in range(32)])
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(len(words))


# -- hardware ----------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_asked_for_in_vain(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware.device_of("auto") == hardware.device_of("cpu") == torch.device("cpu")
    tables, labels, _ = make_data(n=30)
    with pytest.raises((ConfigError, PartyError), match=r"device='cuda', but PyTorch finds no GPU"):
        simulate(small(FalseVFL, device="cuda"), tables, labels)


def test_on_a_gpu_algorithms_are_deterministic(monkeypatch):
    """A step that is taken again must answer the same."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert hardware.device_of("cpu") == torch.device("cpu")
    assert asked == []
    assert hardware.device_of("auto") == hardware.device_of("cuda") == torch.device("cuda")
    assert asked == [True, True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


# -- weights with which a party's networks begin -----------------------------------------------

KEY = bytes(range(32))


def layers():
    return nn.Sequential(
        nn.Linear(50, 400), nn.GroupNorm(4, 400), nn.Conv2d(3, 64, 5), nn.ConvTranspose2d(8, 16, 4)
    )


def weights(nets):
    return {name: value.detach().numpy() for name, value in nets.named_parameters()}


def test_they_are_uniform_within_one_over_the_root_of_the_inputs():
    """PyTorch's own rule, by which it has drawn what is replaced."""
    torch.manual_seed(0)
    nets, own = layers(), layers()
    draw_weights(nets, KEY)
    for name, values in weights(nets).items():
        other = weights(own)[name]
        if name.startswith("1."):  # a normalisation: 1 and 0
            np.testing.assert_array_equal(values, other)
            continue
        limit = np.abs(other).max()
        assert np.abs(values).max() == pytest.approx(limit, rel=0.15)
        if values.size > 1000:
            # The mean to five standard errors, the spread of a uniform number.
            assert abs(values.mean()) < 5 * values.std() / np.sqrt(values.size)
            assert values.std() == pytest.approx(np.abs(values).max() / np.sqrt(3), rel=0.05)
    assert np.unique(weights(nets)["0.weight"]).size > 0.99 * 20_000


def test_they_follow_from_all_of_the_key_and_from_nothing_else():
    found = [layers() for _ in range(3)]
    for seed, (nets, key) in enumerate(zip(found, (KEY, KEY, KEY[:15] + b"?"), strict=True)):
        torch.manual_seed(seed)
        draw_weights(nets, key)
    one, again, other = map(weights, found)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.isclose(one["0.weight"], other["0.weight"]).mean() > 0.01


@pytest.mark.parametrize("variant", ["I", "II"])
def test_a_party_s_networks_are_drawn_in_full_and_alike_in_both_precisions(variant):
    nets = [PartyNetworks(3, NetworkSettings(h_dim=4), variant, 0, "bank") for _ in range(2)]
    before = weights(nets[0])
    before = {name: value.copy() for name, value in before.items()}
    nets[1].double()
    for one in nets:
        draw_weights(one, KEY)
    single, double = map(weights, nets)
    for name, value in single.items():
        np.testing.assert_array_equal(value, double[name])
        assert not np.array_equal(value, before[name])
