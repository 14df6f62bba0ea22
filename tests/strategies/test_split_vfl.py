"""The methods over a federation: what they compute is what one central graph does."""

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import COLUMNS, LEARNING, SMALL_SPLIT, SPLIT, asked, make_data, place, small

from flwr_vertical import simulate
from flwr_vertical.errors import DataError, PartyError
from flwr_vertical.node.steps import bytes_in_memory
from strategies.neural.party import PartyBlock
from strategies.split import FedHSSL, FinalNet, LaserVFL, PlugVFL, VanillaVFL
from strategies.split.central import CentralSplit
from strategies.split.methods import draw_tasks
from strategies.split.networks import SplitPart
from strategies.split.party import PRETRAINING, WEIGHTS

F64 = torch.float64


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
        blocks[name] = PartyBlock(own, torch.ones_like(own), row)
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


@pytest.mark.parametrize("method", [*SPLIT, FinalNet], ids=lambda m: m.name)
def test_networks_and_losses_are_those_of_one_central_graph(method):
    """Pretraining, all steps and the predictions, in float64."""
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = small(method, precision="float64")
    result = simulate(strategy, tables, labels)
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
    strategy = method(precision="float64", **SMALL_SPLIT | pixels)
    result = simulate(strategy, tables, labels)
    model, rows, y, _ = central_of(strategy, tables, labels)
    model.fit(rows, y)
    for name in tables:
        expected = model.parties[name].state_dict()
        for key, value in weights_of(result, name).items():
            np.testing.assert_allclose(value, expected[key].numpy(), atol=1e-6)


def embed_messages(transcript):
    """Arguments of every message of the step, by node, in order."""
    found = {}
    for node, step, values in asked(transcript):
        if step == "embed":
            found.setdefault(node, []).append(values)
    return [found[node] for node in sorted(found)]


@pytest.mark.parametrize("method", [*SPLIT, FinalNet], ids=lambda m: m.name)
def test_gradients_that_parties_get_are_those_of_one_central_graph(method):
    """Read from the second message; an optimiser's step would hide the size of a gradient.

    A party gets those of rows that it holds, and is told of no other row.
    """
    tables, labels, _ = make_data(seed=3, held=0.8)
    without = {} if method is FinalNet else {"pretrain": "none"}
    strategy, transcript = small(method, precision="float64", **without), []
    simulate(strategy, tables, labels, aggregation="plain", transcript=transcript)
    told = embed_messages(transcript)
    model, rows, y, ids = central_of(strategy, tables, labels)
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
        rows_held = np.isin(ids, tables[name].index)
        for before, message in zip([None, *messages], messages, strict=False):
            if "gradient" in message:
                assert len(message["gradient"]) == rows_held[before["batch"]].sum()
            if "takes" in message:
                assert message["takes"].shape[1] == rows_held[message["batch"]].sum()


# -- learning ----------------------------------------------------------------------------------


def test_validation_ends_training_and_both_sides_keep_the_best_networks():
    """What is kept is what a run has that ends with the best epoch."""
    tables, labels, _ = make_data(n=80, seed=2, held=0.8)
    fast = LEARNING | {"pretrain": "none", "learning_rate": 0.1, "precision": "float64"}
    fast |= {"validation_share": 0.3, "validate_every": 2, "patience": 6}
    result = simulate(PlugVFL(**fast | {"epochs": 200}), tables, labels)
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
    short = simulate(PlugVFL(**fast | {"epochs": best}), tables, labels)
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
        strategy = method(precision="float64", **SMALL_SPLIT)
        result = simulate(strategy, own, labels, aggregation="plain")
        model, rows, y, _ = central_of(strategy, own, labels)
        model.fit(rows, y)
        for key, value in weights_of(result, "bank").items():
            expected = model.parties["bank"].state_dict()[key]
            np.testing.assert_allclose(value, expected, atol=1e-7)
    with pytest.raises(DataError, match=r"there are 1 parties and 80 such samples.*pretrain='none"):
        simulate(FedHSSL(**SMALL_SPLIT), own, labels)
    result = simulate(FedHSSL(pretrain="none", **SMALL_SPLIT), own, labels)
    assert len(result.predictions) == labels.isna().sum()


def test_too_few_samples_are_named():
    tables, labels, _ = make_data(seed=3, held=0.8)
    aligned = sorted(set.intersection(*(set(table.index) for table in tables.values())))
    unlabelled = labels.copy()
    unlabelled[aligned] = np.nan
    with pytest.raises(DataError, match="0 samples that take part have a label and are held by al"):
        simulate(VanillaVFL(**SMALL_SPLIT), tables, unlabelled)
    with pytest.raises(DataError, match="no sample has a label"):
        simulate(PlugVFL(**SMALL_SPLIT), tables, labels * np.nan)
    one = tables | {"shop": tables["shop"].iloc[[5]]}
    with pytest.raises(PartyError, match=r"'shop' has 1 row to pretrain on.*pretrain='none'"):
        simulate(PlugVFL(**SMALL_SPLIT), one, labels)


@pytest.mark.parametrize("method", [FinalNet, PlugVFL])
def test_a_batch_may_have_no_row_of_a_party(method):
    tables, labels, _ = make_data(seed=3, held=0.8)
    few = tables | {"shop": tables["shop"].iloc[[5]]}
    pretrained = {} if method is FinalNet else {"pretrain": "none"}
    result = simulate(small(method, **pretrained), few, labels, progress=False)
    assert result.predictions.notna().all(axis=None)


def test_a_class_that_is_not_trained_on_is_named():
    tables, labels, _ = make_data(seed=3, held=0.8)
    aligned = set.intersection(*(set(table.index) for table in tables.values()))
    labels = labels.copy()
    labels[next(i for i in labels.dropna().index if i not in aligned)] = 7.0
    result = simulate(VanillaVFL(**SMALL_SPLIT | {"pretrain": "none"}), tables, labels)
    assert "no sample that is trained on is of class 7" in result.notes[0]
    assert "probability_7" in result.predictions


def test_a_training_that_diverges_stops_and_says_so():
    tables, labels, _ = make_data(seed=3, held=0.8)
    wild = SMALL_SPLIT | {
        "learning_rate": 1e12, "epochs": 20, "pretrain": "none", "activation": "relu",
    }  # fmt: skip
    with pytest.raises((PartyError, DataError), match=r"learning_rate|largest|limit"):
        simulate(PlugVFL(**wild), tables, labels)


# -- what parties are told, and consent --------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "says"),
    [(PlugVFL.protocol, "'subsets' is 'False'"), (None, "exchange 'lone-embeddings'")],
)
def test_a_party_that_did_not_agree_answers_no_sum_over_some_parties(tmp_path, declared, says):
    """Whatever the server asks: here it says that it will not ask for such sums, and does."""

    class Sly(PlugVFL):
        protocol = declared

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
    here = place(tmp_path, asked, Sly(**SMALL_SPLIT | {"pretrain": "none", "epochs": 1}))
    with pytest.raises(PartyError, match=says):
        here.plain()
