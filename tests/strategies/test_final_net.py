"""FinalNet: what it computes is what one central graph does, and what is refused."""

import numpy as np
import pytest
import torch
from deep_runs import make_data, small

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError
from strategies.split import FinalNet
from strategies.split.final import FinalHead, interact
from strategies.split.methods import SplitNetworks


def test_it_takes_as_many_rounds_as_steps_and_samples_ask_for():
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = small(FinalNet, iterations=3)
    result = simulate(strategy, tables, labels, aggregation="plain", progress=False)
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
    settings = {
        "iterations": 150,
        "batch_size": 48,
        "width": 16,
        "learning_rate": 2e-2,
    }
    tables = {name: tables[name] for name in ("bank", "shop")}
    result = simulate(small(FinalNet, **settings), tables, hidden, progress=False)
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
