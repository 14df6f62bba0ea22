"""The methods' networks and losses against loops, concatenations and cosines written out."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from deep_runs import make_data, small
from oracles import split as oracle

from flwr_vertical import Result, simulate
from flwr_vertical.errors import DataError
from strategies.neural.images import ImageEncoder, ImageShape
from strategies.neural.party import PartyBlock
from strategies.split import FinalNet
from strategies.split.central import CentralSplit
from strategies.split.final import FinalHead, interact
from strategies.split.methods import ISOLET, METHODS, SplitNetworks, draw_tasks
from strategies.split.networks import Extractor
from strategies.split.pretraining import (
    HybridPretraining,
    ImageViews,
    SimSiamHeads,
    TableViews,
    pretrain,
)

F64 = torch.float64
SIZES = SplitNetworks(latent_dim=4, width=5, projected=6, predictor_width=3, activation="tanh")
COLUMNS = {"bank": 3, "court": 4, "shop": 2}


def make(method, n=12, seed=0):
    """A model in float64, all columns, who holds which row, and classes."""
    rng = np.random.default_rng(seed)
    x = {name: torch.from_numpy(rng.normal(size=(n, p))) for name, p in COLUMNS.items()}
    enters = {name: torch.from_numpy(rng.random(n) < 0.6) for name in COLUMNS}
    enters["court"] |= ~(enters["bank"] | enters["shop"])
    blocks = {}
    for name, held in enters.items():
        row = torch.full((n,), -1)
        row[held] = torch.arange(int(held.sum()))
        blocks[name] = PartyBlock(x[name][held], torch.ones_like(x[name][held]), row)
    training = dataclasses.replace(ISOLET[method], pretrain="none")
    model = CentralSplit(blocks, method, 3, seed, training, SIZES, F64)
    return model, x, enters, torch.from_numpy(rng.integers(3, size=n))


def gradients(model, loss):
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    assert all(g is not None and g.abs().max() > 0 for g in found)
    return torch.cat([g.ravel() for g in found])


@pytest.mark.parametrize("method", ["vanilla", "plug", "fedhssl"])
def test_a_sum_of_layers_is_one_layer_on_the_concatenation(method):
    model, x, enters, y = make(method)
    rows, held = torch.arange(12), np.stack([enters[name].numpy() for name in COLUMNS], axis=1)
    rng = np.random.default_rng(3)
    takes, weights = draw_tasks(METHODS[method].tasks, held, 0.5, rng)
    assert (takes[0] != held).any() == (method == "plug")
    entering = {name: torch.from_numpy(takes[0][:, k]) for k, name in enumerate(COLUMNS)}
    odds = oracle.concatenated(model, x, entering, "tanh")
    expected = torch.nn.functional.cross_entropy(odds, y)
    found = model._loss(rows, y, takes, weights)
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-12)
    np.testing.assert_allclose(
        gradients(model, found), gradients(model, expected), rtol=1e-9, atol=1e-12
    )


def test_the_loss_of_laser_vfl_is_the_mean_over_all_subsets():
    """A batch in which each row stands many times: its draws' mean is the mean over subsets."""
    model, x, enters, y = make("laser")
    rows, held = torch.arange(12), np.stack([enters[name].numpy() for name in COLUMNS], axis=1)
    expected = oracle.of_all_subsets(model, x, enters, y, "tanh").item()
    rng, found = np.random.default_rng(1), []
    with torch.no_grad():
        for _ in range(400):
            tasks = draw_tasks("subsets", held, 0.0, rng)
            found.append(model._loss(rows, y, tasks.takes, tasks.weights).item())
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / np.sqrt(400)
    # Rows of three parties have more than one subset of a size, so that draws differ.
    assert np.std(found) > 1e-4


# FinalNet has no perceptrons; its own tests are below.
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"final"}))
def test_predictions_are_of_whoever_is_there(method):
    model, x, enters, _ = make(method)
    rows = torch.arange(12)
    blocks = {name: model.blocks[name] for name in ("shop", "court")}  # in another order, too
    found = model.predict(blocks, rows)
    gone = enters | {"bank": torch.zeros(12, dtype=torch.bool)}
    if method == "laser":
        embeddings = [
            torch.where(
                gone[name][:, None],
                oracle.perceptron(model.parties[name].encoder, x[name], "tanh"),
                torch.zeros(1, dtype=F64),
            )
            for name in COLUMNS
        ]
        counts = sum(flags.double() for flags in gone.values()).clamp(min=1)
        fused = sum(embeddings) / counts[:, None]
        odds = oracle.perceptron(model.head.net, fused, "tanh")
    else:
        odds = oracle.concatenated(model, x, gone, "tanh")
    np.testing.assert_allclose(
        found.probabilities.numpy(), odds.softmax(-1).detach().numpy(), rtol=1e-10
    )
    assert found.value.tolist() == odds.argmax(-1).tolist()


# -- SimSiam -----------------------------------------------------------------------------------


def test_second_views_differ_in_a_share_of_columns_and_stay_in_their_range():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(200, 10)))
    first, view = TableViews(x, 0.3).pair(x[:50], rng)
    assert torch.equal(first, x[:50])
    changed = (view != x[:50]).sum(dim=1)
    assert (changed == 3).all()
    assert (view >= x.amin(0)).all()
    assert (view <= x.amax(0)).all()
    per_column = (view != x[:50]).double().mean(0)
    assert per_column.min() > 0.05  # other columns in each row


def test_views_of_images_are_moved_and_mirrored_images():
    """Each view is one of the 3 x 5 moves of the image, mirrored or not, the rest zero."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.normal(size=(30, 2, 8, 16)))
    x = pixels.reshape(30, -1)
    one, other = ImageViews(ImageShape(2, 8, 16)).pair(x, rng)
    assert not torch.equal(one, other)
    padded = torch.nn.functional.pad(pixels, (2, 2, 1, 1))
    seen = set()
    for i, view in enumerate(one.reshape(30, 2, 8, 16)):
        found = [
            (dy, dx, turned)
            for dy in range(3)
            for dx in range(5)
            for turned in (False, True)
            if torch.equal(
                view.flip(-1) if turned else view, padded[i, :, dy : dy + 8, dx : dx + 16]
            )
        ]
        assert len(found) == 1
        seen.update(found)
    assert {dy for dy, _, _ in seen} == {0, 1, 2}
    assert {dx for _, dx, _ in seen} == {0, 1, 2, 3, 4}
    assert {turned for _, _, turned in seen} == {False, True}


@pytest.mark.parametrize("kind", ["cnn", "resnet18"])
def test_images_have_convolutions_and_fedhssl_s_are_split_in_two(kind):
    """The local encoder is a whole one, cut in two: its parts after the stem are shared."""
    sizes = dataclasses.replace(
        SIZES, networks=kind, image_shape="6x5", image_channels=4, hybrid=True
    )
    encoder = Extractor(30, sizes, 2, 0, "bank").encoder
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 30))).float()
    assert encoder(x).shape == (3, 4)
    assert isinstance(encoder.cross, ImageEncoder)
    shapes = [p.shape for part in (encoder.bottom, encoder.top) for p in part.parameters()]
    assert shapes == [p.shape for p in encoder.cross.parameters()]
    if kind == "cnn":
        tops = encoder.top, Extractor(30, sizes, 2, 0, "court").encoder.top
        weights = [list(top.parameters()) for top in tops]
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    convolutions = [m for m in encoder.bottom.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == (1 if kind == "cnn" else 5)
    with pytest.raises(DataError, match=r"'bank': image_shape says 1x6x5 .* its table has 31"):
        Extractor(31, sizes, 2, 0, "bank")


def test_projector_and_predictor_are_those_of_the_table():
    heads = SimSiamHeads(SIZES, torch.Generator().manual_seed(0)).double()
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(9, 4)))
    z = heads.projector(x)
    np.testing.assert_allclose(
        z.detach(), oracle.normalised(heads.projector, x).detach(), rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        heads.predictor(z).detach(),
        oracle.normalised(heads.predictor, z).detach(),
        rtol=1e-10,
        atol=1e-12,
    )
    layers = [m for m in heads.projector if isinstance(m, torch.nn.Linear)]
    assert len(layers) == 3
    assert len([m for m in heads.predictor if isinstance(m, torch.nn.Linear)]) == 2


def test_pretraining_brings_views_together_and_does_not_collapse():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(150, 2))
    x = torch.from_numpy(z @ rng.normal(size=(2, 8)) + 0.1 * rng.normal(size=(150, 8)))
    sizes = dataclasses.replace(SIZES, latent_dim=8, width=16, projected=8, predictor_width=4)
    encoder = Extractor(8, sizes, 2, 0, "bank").encoder.double()
    training = dataclasses.replace(
        ISOLET["plug"], pretrain_epochs=30, pretrain_batch_size=50, pretrain_learning_rate=0.05
    )
    losses = pretrain(encoder, x, sizes, training, 0, "bank")
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 0.2
    embedded = encoder(x).detach()
    # Collapse would be one direction for all rows: the mean cosine of two rows would be 1.
    units = torch.nn.functional.normalize(embedded, dim=1)
    assert (units @ units.T).mean() < 0.7


# -- FedHSSL -----------------------------------------------------------------------------------


def hybrids(training, n=20, seed=0):
    rng, networks = np.random.default_rng(seed), dataclasses.replace(SIZES, hybrid=True)
    x = {name: torch.from_numpy(rng.normal(size=(n, p))) for name, p in COLUMNS.items()}
    own = {}
    for k, name in enumerate(COLUMNS):
        encoder = Extractor(COLUMNS[name], networks, 3, seed, name).encoder.double()
        own[name] = HybridPretraining(encoder, x[name], networks, training, seed, k, name)
    return own, x


def test_a_sum_of_projections_gives_the_mean_loss_over_the_other_parties():
    training = dataclasses.replace(ISOLET["fedhssl"], pretrain_epochs=10, pretrain_weight_decay=0.0)
    own, x = hybrids(training)
    total = sum(one.project(x[name]) for name, one in own.items())
    z = {n: one.cross.projector(one._encoder.cross(x[n])) for n, one in own.items()}
    for name, one in own.items():
        nets = [one._encoder.cross, one.cross.projector, one.cross.predictor]
        parameters = [p for net in nets for p in net.parameters()]
        before = [p.detach().clone() for p in parameters]
        prediction = oracle.normalised(one.cross.predictor, z[name])
        others = [z[other] for other in COLUMNS if other != name]
        expected = oracle.across(prediction, others)
        slopes = torch.autograd.grad(expected, parameters, retain_graph=True)
        loss = one.learn_across(x[name], total, 3, 0)
        assert loss == pytest.approx(expected.item(), rel=1e-10)
        for p, start, slope in zip(parameters, before, slopes, strict=True):
            # The first step of gradient descent with momentum is the gradient's own.
            np.testing.assert_allclose(
                (start - p.detach()) / training.pretrain_learning_rate, slope, atol=1e-9
            )


def test_what_parties_share_begins_alike_and_only_that():
    training = dataclasses.replace(ISOLET["fedhssl"], pretrain_epochs=3)
    own, _ = hybrids(training)
    shared = [one.shared.numpy().copy() for one in own.values()]
    np.testing.assert_array_equal(shared[0], shared[1])
    across = [next(one.cross.projector.parameters()).detach() for one in own.values()]
    assert not torch.equal(across[0], across[1])
    for one in own.values():
        one.learn_within(0)
    later = [one.shared.numpy().copy() for one in own.values()]
    assert not np.allclose(later[0], later[1])
    own["bank"].shared = torch.from_numpy(later[1])
    np.testing.assert_array_equal(own["bank"].shared, later[1])


HELD = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0]], dtype=bool)


@pytest.mark.parametrize("drop", [0.0, 0.5, 1.0])
def test_parties_are_left_out_at_random_but_for_the_last_one(drop):
    held = np.tile(HELD, (3000, 1))
    takes = draw_tasks("dropped", held, drop, np.random.default_rng(1)).takes[0]
    assert not (takes & ~held).any()
    assert takes.any(axis=1).all()
    # A row with n parties keeps each with 1 - p, or one of them where all would go.
    n = HELD.sum(axis=1)
    expected = (1 - drop) + drop**n / n
    found = (takes.sum(axis=1) / held.sum(axis=1)).reshape(3000, 4).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / np.sqrt(3000))


def test_subsets_have_the_mean_of_all_subsets():
    """Any function of a subset: the weighted mean over draws is its mean over all subsets."""
    rng = np.random.default_rng(2)
    value = {s: rng.normal() for n in range(1, 5) for s in itertools.combinations(range(4), n)}
    held = np.tile(HELD, (4000, 1))
    tasks = draw_tasks("subsets", held, 0.5, rng)
    assert tasks.takes.shape == (4, len(held), 4)
    np.testing.assert_allclose(tasks.weights.sum(axis=0), 1.0, rtol=1e-12)
    assert not (tasks.takes & ~held).any()
    sizes = tasks.takes.sum(axis=-1)
    assert set(np.unique(sizes[tasks.weights > 0])) == {1, 2, 3, 4}
    assert (sizes[tasks.weights == 0] == 0).all()
    found = np.zeros(len(held))
    for t, i in zip(*np.nonzero(tasks.weights), strict=True):
        found[i] += tasks.weights[t, i] * value[tuple(np.flatnonzero(tasks.takes[t, i]))]
    found = found.reshape(4000, 4)
    for row, mean, error in zip(
        HELD, found.mean(axis=0), found.std(axis=0) / np.sqrt(4000), strict=True
    ):
        own = [v for s, v in value.items() if row[list(s)].all()]
        assert len(own) == 2 ** row.sum() - 1
        assert abs(mean - np.mean(own)) <= 4 * error + 1e-12


def test_it_takes_as_many_rounds_as_steps_and_samples_ask_for():
    tables, labels, _ = make_data(seed=3, held=0.8)
    strategy = small(FinalNet, iterations=3)
    result = simulate(strategy, tables, labels, aggregation="plain")
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


@pytest.mark.slow
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
    settings = {"iterations": 150, "batch_size": 48, "width": 16, "learning_rate": 2e-2}
    tables = {name: tables[name] for name in ("bank", "shop")}
    result = simulate(small(FinalNet, **settings), tables, hidden)
    both = product.reindex(result.predictions.index).notna()
    found = result.predictions["prediction"][both]
    assert (found == truth[found.index]).mean() > 0.85
    later = Result.load(result.save(tmp_path / "fit")).predict(tables).predictions
    own = later.loc[result.predictions.index, "probability_1"]
    np.testing.assert_allclose(own, result.predictions["probability_1"], atol=1e-5)
