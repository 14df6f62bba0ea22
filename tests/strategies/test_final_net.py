"""FinalNet: what it computes is what one central graph does, and what is refused."""

import numpy as np
import pytest
import torch
from deep_runs import make_data
from test_split_vfl import assert_equal, central_of, steps_of

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError
from strategies.split import FinalNet
from strategies.split.final import FinalHead, interact
from strategies.split.methods import SplitNetworks

SMALL = {"latent_dim": 3, "width": 6, "batch_size": 9, "learning_rate": 1e-2, "iterations": 25}


@pytest.fixture(scope="module")
def run():
    """A run in float64, its messages, and what it was given."""
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = FinalNet(precision="float64", **SMALL)
    transcript = []
    result = simulate(
        strategy, tables, labels, aggregation="plain", progress=False, transcript=transcript
    )
    return strategy, tables, labels, result, transcript


def test_networks_losses_and_predictions_are_those_of_one_central_graph(run):
    strategy, tables, labels, result, _ = run
    model, rows, y, ids = central_of(strategy, tables, labels)
    before = model.parties["bank"].encoder.embed.weight.detach().clone()
    model.fit(rows, y)
    assert_equal(result, model, atol=1e-6)
    moved = model.parties["bank"].encoder
    assert (moved.embed.weight - before).abs().max() > 1e-2  # what is compared has been trained
    assert (moved.gate.weight.abs() > 1e-3).any()
    losses = [line["loss"] for line in result.history]
    np.testing.assert_allclose(losses, model.losses, rtol=1e-6)
    places = torch.tensor([ids.index(i) for i in result.predictions.index])
    expected = model.predict(model.blocks, places).probabilities
    found = result.predictions[["probability_0", "probability_1"]]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    assert (found.sum(axis=1) - 1.0).abs().max() < 1e-9


def test_gradients_that_parties_get_are_those_of_one_central_graph(run):
    strategy, tables, labels, _, transcript = run
    told = steps_of(transcript, "embed")
    model, rows, y, _ = central_of(strategy, tables, labels)
    batch = torch.from_numpy(np.array(told[0][0]["batch"]))
    held = model._held(model.blocks, batch)
    assert not held.all()  # rows that a party lacks are trained on
    sent = {}
    for name in tables:
        model.parties[name].register_forward_hook(
            lambda net, given, made, name=name: made.retain_grad() or sent.update({name: made})
        )
    classes = dict(zip(rows.tolist(), y.tolist(), strict=True))
    of_batch = torch.tensor([classes[int(i)] for i in batch])
    model._loss(batch, of_batch, held[None], np.ones((1, len(batch)))).backward()
    for made, messages in zip(sent.values(), told, strict=True):
        assert made.grad.abs().max() > 1e-3
        np.testing.assert_allclose(messages[1]["gradient"], made.grad, atol=1e-5, rtol=1e-5)


def test_it_takes_as_many_rounds_as_steps_and_samples_ask_for(run):
    strategy, _, _, result, _ = run
    # Greeting, alignment, settings, steps, one round of predictions, the end.
    assert result.ledger.rounds == 2 + 1 + strategy.iterations + 1 + 1


def test_a_layer_multiplies_the_halves_of_its_units():
    given = torch.tensor([[1.0, 2.0, 3.0, 5.0]])
    assert interact(given).tolist() == [[1.0, 2.0, 3.0, 10.0]]


def test_blocks_learn_from_their_mean():
    head = FinalHead(SplitNetworks("final", width=4, layers=1), None, 2, 0).double()
    sums, y = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    one, two = head._of_blocks(sums)
    mean = (one + two)[:, 0] / 2.0
    parts = [(mean - y) ** 2, (one[:, 0] - mean) ** 2, (two[:, 0] - mean) ** 2]
    torch.testing.assert_close(head.losses(sums, torch.ones(5), y), sum(parts) / 2.0)


def test_it_learns_products_of_columns_of_two_parties_and_predicts_later(tmp_path):
    rng = np.random.default_rng(0)
    tables, labels, _ = make_data(n=400, seed=1, held=0.9)
    first = {name: table.iloc[:, 0] for name, table in tables.items()}
    product = (first["bank"] - first["bank"].mean()) * (first["shop"] - first["shop"].mean())
    truth = (
        product.reindex(labels.index)
        .gt(0)
        .astype(float)
        .where(product.reindex(labels.index).notna(), 0.0)
    )
    hidden = truth.where(rng.random(len(truth)) < 0.7)
    settings = SMALL | {"iterations": 150, "batch_size": 48, "width": 16, "learning_rate": 2e-2}
    tables = {name: tables[name] for name in ("bank", "shop")}
    result = simulate(FinalNet(**settings), tables, hidden, progress=False)
    both = product.reindex(result.predictions.index).notna()
    found = result.predictions["prediction"][both]
    assert (found == truth[found.index]).mean() > 0.85
    later = Result.load(result.save(tmp_path / "fit")).predict(tables, progress=False).predictions
    own = later.loc[result.predictions.index, "probability_1"]
    np.testing.assert_allclose(own, result.predictions["probability_1"], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"width": 7}, "width must be even"), ({"precision": "mixed"}, "float32")],
)
def test_settings_that_do_not_go_together_are_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        FinalNet(**settings)
