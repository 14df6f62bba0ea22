"""The methods over a federation: what they compute is what one central graph does."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import COLUMNS, make_data
from repeating import every_sum_twice
from training import TrainingPlace

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.steps import bytes_in_memory
from flwr_vertical.policy.requirements import asked_by
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, VALUES, read_envelope
from strategies.false_vfl import hardware
from strategies.false_vfl.central import Block
from strategies.predict import Predict
from strategies.split import FedHSSL, LaserVFL, PlugVFL, VanillaVFL
from strategies.split.central import CentralSplit
from strategies.split.model import SplitPart
from strategies.split.party import SplitParty
from strategies.split.party_networks import PRETRAINING, WEIGHTS
from strategies.split.tasks import draw_tasks

F64 = torch.float64
METHODS = [VanillaVFL, LaserVFL, PlugVFL, FedHSSL]
SMALL = {
    "latent_dim": 4,
    "width": 5,
    "activation": "tanh",
    "epochs": 3,
    "batch_size": 9,
    "learning_rate": 1e-2,
    "pretrain_epochs": 2,
    "pretrain_batch_size": 20,
}


def central_of(strategy, tables, labels, seed=0):
    """The same method in one graph, from the numbers that parties draw; with rows and classes.

    Pixels have one mean and one deviation, columns of tables one each.
    """
    axis = 0 if getattr(strategy, "networks", "mlp") == "mlp" else None
    ids = list(dict.fromkeys(i for table in tables.values() for i in table.index))
    blocks = {}
    for name, table in tables.items():
        x = table.to_numpy()
        own = torch.tensor((x - x.mean(axis)) / x.std(axis))
        row = torch.tensor(table.index.get_indexer(ids))
        blocks[name] = Block(own, torch.ones_like(own), row)
    how = strategy.training, strategy.network_settings, F64
    model = CentralSplit(blocks, strategy.kind, 2, seed, *how)
    for name in tables:
        model.parties[name].draw_own(bytes_in_memory(seed, name, WEIGHTS))
        own = bytes_in_memory(seed, name, PRETRAINING)[:8]
        model.seeds[name] = int.from_bytes(own, "little") >> 1
    y = labels.reindex(ids).to_numpy()
    rows = np.flatnonzero(~np.isnan(y))
    return model, torch.from_numpy(rows), torch.from_numpy(y[rows].astype(int)), ids


def weights_of(result, name):
    return SplitPart.from_bytes(result._party_models[name]).weights


def assert_equal(result, model, atol):
    nets = {name: weights_of(result, name) for name in COLUMNS}
    nets["server"] = result.predictor.head
    for name, weights in nets.items():
        own = model.head if name == "server" else model.parties[name]
        state = own.state_dict()
        assert set(weights) == set(state)
        for key, value in weights.items():
            np.testing.assert_allclose(
                value, state[key].numpy(), atol=atol, err_msg=f"{name} {key}"
            )


@pytest.mark.parametrize(
    ("method", "mode"), [*((method, "masked") for method in METHODS), (LaserVFL, "plain")]
)
def test_networks_and_losses_are_those_of_one_central_graph(method, mode):
    """Pretraining, all steps and the predictions, in float64."""
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = method(precision="float64", **SMALL)
    result = simulate(strategy, tables, labels, aggregation=mode, progress=False)
    model, rows, y, ids = central_of(strategy, tables, labels)
    before = {n: v.clone() for n, v in model.parties["bank"].state_dict().items()}
    model.fit(rows, y)
    assert_equal(result, model, atol=1e-6)
    moved = max(
        float((v - before[n]).abs().max()) for n, v in model.parties["bank"].state_dict().items()
    )
    assert moved > 1e-2  # what is compared has been trained
    losses = [line["loss"] for line in result.history if line["stage"] == 2]
    np.testing.assert_allclose(losses, model.losses, rtol=1e-6)
    places = torch.tensor([ids.index(i) for i in result.predictions.index])
    expected = model.predict(model.blocks, places)
    np.testing.assert_allclose(
        result.predictions["probability_1"], expected.probabilities[:, 1].numpy(), atol=1e-6
    )


def pictures(n=40):
    """Two parties with images of 4 x 5 pixels, brighter where the class is 1, and noise."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, size=n)
    labels = pd.Series(classes, [f"i{k:02}" for k in range(n)], dtype=float)
    tables = {}
    for k, name in enumerate(("left", "right")):
        x = rng.normal(size=(n, 20)) + classes[:, None]
        held = slice(0, n - 6) if k else slice(4, n)
        tables[name] = pd.DataFrame(x, labels.index)[held].rename(columns=str)
    return tables, labels.where(rng.random(n) < 0.8)


@pytest.mark.parametrize("method", [LaserVFL, FedHSSL], ids=lambda m: m.name)
def test_images_are_trained_on_as_in_one_central_graph(method):
    tables, labels = pictures()
    pixels = {"networks": "cnn", "image_shape": "4x5", "image_channels": 4}
    strategy = method(precision="float64", **SMALL | pixels)
    result = simulate(strategy, tables, labels, progress=False)
    model, rows, y, _ = central_of(strategy, tables, labels)
    model.fit(rows, y)
    for name in tables:
        expected = model.parties[name].state_dict()
        for key, value in weights_of(result, name).items():
            np.testing.assert_allclose(value, expected[key].numpy(), atol=1e-6)


def test_images_of_another_size_are_named():
    tables, labels = pictures()
    with pytest.raises(PartyError, match=r"'left': image_shape says 1x5x5 .* its table has 20"):
        simulate(
            PlugVFL(networks="cnn", image_shape="5x5", **SMALL), tables, labels, progress=False
        )
    with pytest.raises(ConfigError, match="are for images and need their shape"):
        VanillaVFL(networks="resnet18")


def steps_of(transcript, name):
    """Arguments of every message of a step, by node, in order."""
    found = {}
    for record in transcript:
        if record.direction == "down" and read_envelope(record.content)["step"] == name:
            found.setdefault(record.node_id, []).append(decode(record.content, ARGUMENTS))
    return [found[node] for node in sorted(found)]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_gradients_that_parties_get_are_those_of_one_central_graph(method):
    """Read from the second message; an optimiser's step would hide the size of a gradient."""
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = method(precision="float64", pretrain="none", **SMALL)
    transcript = []
    simulate(strategy, tables, labels, aggregation="plain", progress=False, transcript=transcript)
    told = steps_of(transcript, "embed")
    model, rows, y, _ids = central_of(strategy, tables, labels)
    batch = torch.from_numpy(np.array(told[0][0]["batch"]))
    held = model._held(model.blocks, batch)
    takes = held[None].copy()
    for k, messages in enumerate(told):
        if "takes" in messages[0]:
            if len(takes) == 1 and messages[0]["takes"].shape[0] > 1:
                takes = np.repeat(takes, messages[0]["takes"].shape[0], axis=0)
            takes[:, held[:, k], k] = messages[0]["takes"]
    tasks = strategy.method.tasks
    # The weights of subsets follow from their sizes, whatever is drawn.
    weights = draw_tasks(tasks, held, 0.5, np.random.default_rng(0)).weights
    sent = {}
    for name in tables:
        model.parties[name].register_forward_hook(
            lambda net, given, made, name=name: made.retain_grad() or sent.update({name: made})
        )
    classes = dict(zip(rows.tolist(), y.tolist(), strict=True))
    of_batch = torch.tensor([classes[int(i)] for i in batch])
    model._loss(batch, of_batch, takes, weights).backward()
    for (name, made), messages in zip(sent.items(), told, strict=True):
        assert made.grad.abs().max() > 1e-3
        np.testing.assert_allclose(messages[1]["gradient"], made.grad, atol=1e-5, rtol=1e-5)
        assert name in COLUMNS


# -- learning ----------------------------------------------------------------------------------

LEARNING = SMALL | {
    "width": 8,
    "epochs": 15,
    "batch_size": 24,
    "learning_rate": 2e-2,
    "latent_dim": 6,
}


@pytest.fixture(scope="module")
def trained():
    """By method a run that learns, in float32, and what is true of the samples it predicts."""
    tables, labels, classes = make_data(n=120, seed=2, held=0.8)
    runs = {}
    for method in METHODS:
        runs[method.name] = simulate(method(**LEARNING), tables, labels, progress=False)
    return runs, tables, labels, classes


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_it_learns_and_predicts(trained, method):
    runs, _, labels, classes = trained
    result = runs[method.name]
    found = result.predictions
    assert list(found.columns) == ["prediction", "probability_0", "probability_1"]
    assert set(found.index) == set(labels.index[labels.isna()])
    np.testing.assert_allclose(found[["probability_0", "probability_1"]].sum(axis=1), 1, rtol=1e-6)
    # Chance is one half, a standard error 0.07.
    assert (found["prediction"] == classes[found.index]).mean() > 0.75
    losses = [line["loss"] for line in result.history if line["stage"] == 2]
    assert losses[-1] < 0.6 * losses[0]
    assert result.metrics == {"epochs": 15.0, "loss": losses[-1]}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_rounds_and_bytes(trained, method):
    """One round a step, and nothing for SimSiam; one for predictions, one before, one after."""
    runs, tables, labels, _ = trained
    ledger = runs[method.name].ledger.to_frame()
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


def test_masked_sums_train_as_plain_ones(trained):
    runs, tables, labels, _ = trained
    plain = simulate(LaserVFL(**LEARNING), tables, labels, aggregation="plain", progress=False)
    masked = runs["laser-vfl"]
    losses = [[line["loss"] for line in result.history] for result in (plain, masked)]
    np.testing.assert_allclose(*losses, rtol=1e-2)


def test_mixed_precision_trains_nearly_alike_and_repeats(monkeypatch):
    """Products in bfloat16, also where the processor would compute them slowly."""
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)
    tables, labels, _ = make_data(n=60, seed=3, held=0.8)
    runs = [
        simulate(FedHSSL(precision=kind, **SMALL), tables, labels, progress=False)
        for kind in ("mixed", "mixed", "float32")
    ]
    losses = [[line["loss"] for line in run.history] for run in runs]
    assert losses[0] == losses[1] != losses[2]
    np.testing.assert_allclose(losses[0], losses[2], atol=0.05)


def test_a_regression_predicts_numbers():
    tables, _, _ = make_data(n=150, seed=4, held=0.8)
    ids = sorted(set().union(*(table.index for table in tables.values())))
    wide = pd.concat(tables.values(), axis=1).reindex(ids)
    y = 100 + 20 * (wide - wide.mean()).fillna(0.0).mean(axis=1)
    labels = y.where(np.random.default_rng(0).random(len(y)) < 0.7)
    settings = LEARNING | {"task": "regression", "pretrain": "none", "epochs": 20}
    result = simulate(PlugVFL(**settings), tables, labels, progress=False)
    found = result.predictions
    assert list(found.columns) == ["prediction"]
    error = found["prediction"] - y[found.index]
    assert np.sqrt((error**2).mean()) < 0.6 * y[found.index].std()


def test_validation_ends_training_and_both_sides_keep_the_best_networks():
    """What is kept is what a run has that ends with the best epoch."""
    tables, labels, _ = make_data(n=80, seed=2, held=0.8)
    fast = LEARNING | {"pretrain": "none", "learning_rate": 0.1, "precision": "float64"}
    fast |= {"validation_share": 0.3, "validate_every": 2, "patience": 6}
    result = simulate(PlugVFL(**fast | {"epochs": 200}), tables, labels, progress=False)
    found = {x["epoch"]: x["validation"] for x in result.history if "validation" in x}
    best = min(found, key=found.get)
    last = result.history[-1]["epoch"]
    assert sorted(found) == [*range(2, last + 1, 2)]
    assert last == best + 6 < 200
    assert result.metrics["epochs"] == last
    held_out = result.evaluation
    assert held_out.metrics()["log_loss"] == pytest.approx(found[best], rel=1e-9)
    known = labels[held_out.samples.index]
    np.testing.assert_array_equal(held_out.labels, known)
    short = simulate(PlugVFL(**fast | {"epochs": best}), tables, labels, progress=False)
    for name in COLUMNS:
        for key, value in weights_of(result, name).items():
            np.testing.assert_allclose(value, weights_of(short, name)[key], atol=1e-12)
    for key, value in result.predictor.head.items():
        np.testing.assert_allclose(value, short.predictor.head[key], atol=1e-12)


# -- limits and errors -------------------------------------------------------------------------


def test_one_party_alone():
    tables, labels, _classes = make_data(n=80, seed=3, held=2.0)
    own = {"bank": tables["bank"]}
    for method in (VanillaVFL, PlugVFL, LaserVFL):
        strategy = method(precision="float64", **SMALL)
        result = simulate(strategy, own, labels, aggregation="plain", progress=False)
        model, rows, y, _ = central_of(strategy, own, labels)
        model.fit(rows, y)
        for key, value in weights_of(result, "bank").items():
            expected = model.parties["bank"].state_dict()[key]
            np.testing.assert_allclose(value, expected, atol=1e-7)
    with pytest.raises(DataError, match=r"there are 1 parties and 80 such samples.*pretrain='none"):
        simulate(FedHSSL(**SMALL), own, labels, progress=False)
    result = simulate(FedHSSL(pretrain="none", **SMALL), own, labels, progress=False)
    assert len(result.predictions) == labels.isna().sum()


def test_methods_agree_where_nothing_is_missing_and_nothing_left_out():
    """PlugVFL without dropping, and Vanilla VFL, are the same on complete samples."""
    tables, labels, _ = make_data(seed=3, held=2.0)
    same = SMALL | {"pretrain": "none", "precision": "float64", "batch_size": 20}
    runs = [
        simulate(strategy, tables, labels, aggregation="plain", progress=False)
        for strategy in (VanillaVFL(**same), PlugVFL(drop=0.0, **same))
    ]
    # PlugVFL draws whom to drop, so batches differ after the first one; all else is the same.
    firsts = [run.history[0]["loss"] for run in runs]
    assert firsts[0] == pytest.approx(firsts[1], rel=0.05)
    assert [len(run.history) for run in runs] == [3, 3]


def test_too_few_samples_are_named():
    tables, labels, _ = make_data(seed=3, held=0.8)
    aligned = sorted(set.intersection(*(set(table.index) for table in tables.values())))
    unlabelled = labels.copy()
    unlabelled[aligned] = np.nan
    with pytest.raises(DataError, match="0 samples that take part have a label and are held by al"):
        simulate(VanillaVFL(**SMALL), tables, unlabelled, progress=False)
    with pytest.raises(DataError, match="no sample has a label"):
        simulate(PlugVFL(**SMALL), tables, labels * np.nan, progress=False)
    one = tables | {"shop": tables["shop"].iloc[[5]]}
    with pytest.raises(PartyError, match=r"'shop' has 1 rows to pretrain on.*pretrain='none'"):
        simulate(PlugVFL(**SMALL), one, labels, progress=False)
    with pytest.raises(ConfigError, match="layers must be 2 or more"):
        FedHSSL(layers=1)


def test_a_class_that_is_not_trained_on_is_named():
    tables, labels, _ = make_data(seed=3, held=0.8)
    aligned = set.intersection(*(set(table.index) for table in tables.values()))
    labels = labels.copy()
    labels[next(i for i in labels.dropna().index if i not in aligned)] = 7.0
    result = simulate(VanillaVFL(**SMALL | {"pretrain": "none"}), tables, labels, progress=False)
    assert "no sample that is trained on is of class 7" in result.notes[0]
    assert "probability_7" in result.predictions


def test_a_training_that_diverges_stops_and_says_so():
    tables, labels, _ = make_data(seed=3, held=0.8)
    wild = SMALL | {"learning_rate": 1e12, "epochs": 20, "pretrain": "none", "activation": "relu"}
    with pytest.raises((PartyError, DataError), match=r"learning_rate|largest|limit"):
        simulate(PlugVFL(**wild), tables, labels, progress=False)


# -- predicting with a kept model --------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_kept_model_predicts_what_the_fit_did(trained, method, tmp_path):
    runs, tables, _, classes = trained
    result = runs[method.name]
    rows = result.predictions.index
    own = {name: table[table.index.isin(rows)] for name, table in tables.items()}
    again = result.predict(own, progress=False)
    pd.testing.assert_frame_equal(again.predictions.loc[rows], result.predictions, atol=1e-5)
    rounds = again.ledger.to_frame().groupby("step")["round"].nunique()
    assert rounds[["open_networks", "embed"]].tolist() == [1, 1]
    less = result.predict({k: tables[k] for k in ("bank", "court")}, classes, progress=False)
    assert less.notes[0] == "parties ['shop'] of the fit take no part; their blocks are missing"
    assert less.metrics["accuracy"] > 0.7
    result.save(tmp_path / "fit")
    there = simulate(Predict(tmp_path / "fit"), own, progress=False)
    pd.testing.assert_frame_equal(there.predictions, again.predictions)


def test_a_node_is_asked_what_the_model_that_it_kept_needs(trained):
    part = trained[0]["plug-vfl"]._party_models["bank"]
    strategy = Predict().at_node(lambda: part)
    assert strategy.party is SplitParty
    assert asked_by(strategy).exchanges == ("embeddings",)
    assert asked_by(Predict().at_node(lambda: None)).exchanges == ()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_new_rows_may_each_lie_at_one_party(trained, method):
    """Rows are predicted one by one: which others come with them changes nothing."""
    runs, tables, _, _ = trained
    common = [i for i in tables["bank"].index if all(i in t.index for t in tables.values())]
    alone = {name: common[5 * k : 5 * k + 5] for k, name in enumerate(tables)}
    new = {name: tables[name].loc[ids] for name, ids in alone.items()}
    found = runs[method.name].predict(new, progress=False)
    assert found.notes[0].startswith("parties ['bank', 'court', 'shop'] share no sample")
    beside = {name: tables[name].loc[[*ids, *common[15:20]]] for name, ids in alone.items()}
    expected = runs[method.name].predict(beside, progress=False)
    assert not any("share no sample" in note for note in expected.notes)
    rows = [i for ids in alone.values() for i in ids]
    assert len(found.predictions) == 15
    pd.testing.assert_frame_equal(
        found.predictions.loc[rows], expected.predictions.loc[rows], atol=1e-5
    )


def test_what_a_kept_model_does_not_know_is_refused(trained):
    runs, tables, _, _ = trained
    result = runs["vanilla-vfl"]
    with pytest.raises(PartyError, match=r"'bank' has no column 'bank1', which the model uses"):
        result.predict(tables | {"bank": tables["bank"].drop(columns="bank1")}, progress=False)
    with pytest.raises(ConfigError, match=r"parties \['museum'\] took no part in the fit"):
        result.predict(tables | {"museum": tables["shop"]}, progress=False)
    with pytest.raises(ConfigError, match="no model: name the run of the fit"):
        simulate(Predict(), tables, progress=False)


# -- what parties are told, and consent --------------------------------------------------------


def place(folder, exchanges, strategy):
    """Three nodes with node configs of their own, and disks on which a run can go on."""
    made = TrainingPlace(folder, "masked", lambda: strategy, every=4)
    made.tables, made.labels, _ = make_data(seed=6, held=0.6)
    made.configs = {name: {"exchanges": asked} for name, asked in exchanges.items()}
    return made


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_node_that_does_not_agree_takes_no_part(tmp_path, method):
    strategy = method(**SMALL | {"pretrain": "none", "epochs": 1})
    asked = dict.fromkeys(COLUMNS, "embeddings,lone-embeddings") | {"shop": "sums"}
    with pytest.raises(PartyError, match=r"'shop'.* exchange 'embeddings'"):
        place(tmp_path / "none", asked, strategy).plain()
    agreed = place(tmp_path / "sums", dict.fromkeys(COLUMNS, "embeddings"), strategy)
    if method in (LaserVFL, PlugVFL):  # sums over some of the parties tell one from the other
        with pytest.raises(PartyError, match="exchange 'lone-embeddings'"):
            agreed.plain()
        return
    result = agreed.plain().result
    holders = pd.DataFrame(
        {name: pd.Series(1, index=table.index) for name, table in agreed.tables.items()}
    )
    alone = holders.index[holders.sum(axis=1) == 1]
    unlabelled = agreed.labels.index[agreed.labels.isna()]
    assert len(alone.intersection(unlabelled)) > 1
    assert set(result.predictions.index) == set(unlabelled) - set(alone)
    assert f"{len(alone)} samples that one party alone holds were left out" in result.notes[0]


def test_a_party_that_did_not_agree_answers_no_sum_over_some_parties(tmp_path):
    """Whatever the server asks: here it says that it will not ask for such sums, and does."""

    class Sly(PlugVFL):
        def _prepare(self, rounds, seed, result):
            call = rounds.federation.call

            def other(step, arguments, **more):
                return call(step, arguments | {"subsets": False}, **more)

            rounds.federation.call = other
            try:
                return super()._prepare(rounds, seed, result)
            finally:
                rounds.federation.call = call

    asked = dict.fromkeys(COLUMNS, "embeddings")
    here = place(tmp_path, asked, Sly(**SMALL | {"pretrain": "none", "epochs": 1}))
    with pytest.raises(PartyError, match="exchange 'lone-embeddings'"):
        here.plain()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_party_is_told_of_rows_that_it_holds_and_sends_masked_words(method):
    tables, labels, _ = make_data(seed=6, held=0.7)
    ids = list(dict.fromkeys(i for table in tables.values() for i in table.index))
    transcript = []
    simulate(method(**SMALL), tables, labels, progress=False, transcript=transcript)
    for messages, table in zip(steps_of(transcript, "embed"), tables.values(), strict=True):
        held = np.isin(ids, table.index)
        for before, message in zip([None, *messages], messages, strict=False):
            if "gradient" in message:
                assert len(message["gradient"]) == held[before["batch"]].sum()
            if "takes" in message:
                assert message["takes"].shape[1] == held[message["batch"]].sum()
    words, last = [], {}
    for record in transcript:
        if record.direction == "down":
            last[record.node_id] = read_envelope(record.content)["step"]
        elif (name := last[record.node_id]) in ("prepare", "embed", "project", "keep"):
            sent = decode(record.content, SUMS).values()
            words += [v.ravel() for v in sent if hasattr(v, "ravel")]
            told = set(decode(record.content, VALUES))
            assert told == ({"lone"} if name == "prepare" else set())
    words = np.concatenate([w.view(np.uint32) for w in words])
    assert len(words) > 500
    bits = np.array([((words >> np.uint32(k)) & np.uint32(1)).mean() for k in range(32)])
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_sum_that_is_asked_for_twice_gets_the_same_bytes(method):
    tables, labels, _ = make_data(n=40, seed=3, held=0.8)
    strategy = method(validation_share=0.3, validate_every=1, **SMALL)
    with every_sum_twice() as found:
        fitted = simulate(strategy, tables, labels, progress=False)
        fitted.predict(tables, progress=False)
    assert found.steps == {"embed"} | ({"project"} if method is FedHSSL else set())
    assert not found.declared


# -- going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [PlugVFL, FedHSSL], ids=lambda m: m.name)
def test_a_run_that_is_killed_goes_on_to_the_same_numbers(tmp_path, monkeypatch, method):
    """The server dies early and late; a party in between."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    asked = dict.fromkeys(COLUMNS, "embeddings,lone-embeddings")
    settings = SMALL | {"epochs": 6, "pretrain_batch_size": 9, "pretrain_epochs": 3}
    strategy = method(validation_share=0.2, validate_every=2, **settings)
    whole = place(tmp_path / "whole", asked, strategy)
    expected = whole.run().result
    ledger = expected.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    early, late = ledger.index("project" if method is FedHSSL else "embed") + 6, len(ledger) - 5
    broken = place(tmp_path / "broken", asked, strategy)
    broken.broken(die_after=early)
    broken.broken(resume=True, run_id=2, lose={8: "before"}, die_after=late - early)
    found = broken.run(resume=True, run_id=3).result
    assert found.history == expected.history
    pd.testing.assert_frame_equal(found.predictions, expected.predictions, check_exact=True)
    assert broken.files() == []
