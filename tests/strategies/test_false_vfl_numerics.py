"""FALSE-VFL's bounds and predictions, on models whose likelihood is known."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import SMALL, make_data
from scipy.stats import multivariate_normal
from torch import nn

from flwr_vertical import Table, simulate
from flwr_vertical.errors import ConfigError
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.networks import NetworkSettings, PartyNetworks, bounded
from strategies.false_vfl.posterior import (
    draw_normals,
    log_bound,
    log_density,
    normalised_weights,
    row_log_density,
    shared_normals,
)
from strategies.false_vfl.strategy import FalseVFL
from strategies.neural import hardware
from strategies.neural.images import ImageShape, parse_shapes
from strategies.neural.model import fit_scales
from strategies.neural.party import PartyBlock

F64 = torch.float64
LINEAR = NetworkSettings(
    h_dim=2, z_dim=2, party_layers=1, global_layers=1, head_layers=1, indicator_layers=1
)
COLUMNS = {"bank": 3, "court": 2, "shop": 2}


def unbounded(value, bounds):
    """What `bounded` maps to a value."""
    lower, upper = bounds
    share = (value - lower) / (upper - lower)
    return (np.log(share / (1.0 - share)) - np.log(-lower / upper)) * (upper - lower) / 4.0


def make_blocks(x, observed):
    """What parties hold, from complete columns and a flag for each row."""
    blocks = {}
    for name, values in x.items():
        held = torch.nonzero(observed[name])[:, 0]
        row = torch.full((len(values),), -1)
        row[held] = torch.arange(len(held))
        blocks[name] = PartyBlock(values[held], torch.ones_like(values[held]), row)
    return blocks


def set_normal(net, weight, bias, sigmas):
    """Make a one-layer network give ``weight @ x + bias`` and constant deviations."""
    (layer,) = net.net
    raw = [unbounded(float(np.log(s)), net.bounds) for s in sigmas]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(np.vstack([weight, np.zeros_like(weight)])))
        layer.bias.copy_(torch.tensor(np.concatenate([bias, raw])))


class LinearModel:
    """A linear-Gaussian model, and everything that is known of it."""

    def __init__(self, n_classes=None, variant="I", n_rows=4):
        rng = np.random.default_rng(5)
        self.observed = {
            "bank": torch.tensor([True, True, False, True]),
            "court": torch.tensor([True, False, True, False]),
            "shop": torch.tensor([True, True, False, False]),
        }
        self.A = {name: 0.7 * rng.normal(size=(p, 2)) for name, p in COLUMNS.items()}
        self.b = {name: rng.normal(size=p) for name, p in COLUMNS.items()}
        self.s = {name: rng.uniform(0.5, 1.2, p) for name, p in COLUMNS.items()}
        self.B, self.c = rng.normal(size=(2, 2)), rng.normal(size=2)
        self.t = np.array([0.6, 0.9])
        self.w, self.w0, self.ty = np.array([[1.0, -0.6]]), np.array([0.3]), np.array([0.5])
        h = self.draw_prior(rng, n_rows)
        self.x = {
            name: torch.tensor(
                h @ self.A[name].T + self.b[name] + self.s[name] * rng.normal(size=(n_rows, p))
            )
            for name, p in COLUMNS.items()
        }
        self.blocks = make_blocks(self.x, self.observed)
        self.model = CentralModel(self.blocks, LINEAR, variant, n_classes, seed=3, dtype=F64)
        of_h = self.B @ self.B.T + np.diag(self.t**2)
        for name, nets in self.model.parties.items():
            set_normal(nets.decoder, self.A[name], self.b[name], self.s[name])
            # Each encoder gives the posterior from its own columns, too wide: not the exact one.
            of_x = self.A[name] @ of_h @ self.A[name].T + np.diag(self.s[name] ** 2)
            gain = of_h @ self.A[name].T @ np.linalg.inv(of_x)
            spread = 1.6 * np.sqrt(np.diag(of_h - gain @ self.A[name] @ of_h))
            start = self.c - gain @ (self.A[name] @ self.c + self.b[name])
            set_normal(nets.encoder, gain, start, spread)
        set_normal(self.model.server.decoder, self.B, self.c, self.t)
        gain = self.B.T @ np.linalg.inv(of_h)
        spread = 1.4 * np.sqrt(np.diag(np.eye(2) - gain @ self.B))
        set_normal(self.model.server.encoder, gain, -gain @ self.c, spread)
        if n_classes is None:
            head = SimpleNamespace(net=self.model.head.net, bounds=self.model.head.bounds)
            set_normal(head, self.w, self.w0, self.ty)

    def draw_prior(self, rng, n):
        z = rng.normal(size=(n, 2))
        return z @ self.B.T + self.c + self.t * rng.normal(size=(n, 2))

    def joint(self, row, names=None, label=False):
        """Mean and covariance of what is observed of a row, and of its label."""
        names = names or [name for name in COLUMNS if self.observed[name][row]]
        A = np.vstack([self.A[name] for name in names] + ([self.w] if label else []))
        b = np.concatenate([self.b[name] for name in names] + ([self.w0] if label else []))
        s = np.concatenate([self.s[name] for name in names] + ([self.ty] if label else []))
        of_h = self.B @ self.B.T + np.diag(self.t**2)
        return A @ self.c + b, A @ of_h @ A.T + np.diag(s**2)

    def seen(self, row):
        return np.concatenate([self.x[k][row].numpy() for k in COLUMNS if self.observed[k][row]])

    def log_likelihood(self, row):
        return multivariate_normal(*self.joint(row)).logpdf(self.seen(row))

    def log_weights(self, n_draws, seed):
        with torch.no_grad():
            return self.model.log_weights(self.blocks, torch.arange(4), n_draws, seed)


@pytest.fixture(scope="module")
def linear():
    return LinearModel()


def test_bound_rises_with_kappa_up_to_the_known_likelihood(linear):
    exact = np.array([linear.log_likelihood(row) for row in range(4)])
    _, logs = linear.log_weights(60_000, seed=1)
    means = {}
    for kappa in (1, 2, 5, 20, 200):
        values = log_bound(logs.reshape(4, -1, kappa))
        means[kappa] = values.mean(1).numpy()
        error = values.std(1).numpy() / np.sqrt(values.shape[1])
        assert (means[kappa] < exact + 4 * error).all()
    steps = list(means.values())
    assert all((later > earlier).all() for earlier, later in pairwise(steps))
    assert (exact - means[1] > 0.1).all()
    np.testing.assert_allclose(means[200], exact, atol=0.05)
    np.testing.assert_allclose(log_bound(logs).numpy(), exact, atol=0.02)


def test_variant_two_agrees_with_draws_from_the_prior():
    """Columns that are missing are drawn, in the estimate from the prior and in the bound."""
    linear = LinearModel(variant="II")
    rng = np.random.default_rng(3)
    h = linear.draw_prior(rng, 300_000)
    _, logs = linear.log_weights(60_000, seed=4)
    for row in range(4):
        weight = np.ones(len(h))
        for name, nets in linear.model.parties.items():
            (layer,) = nets.indicator
            slope, start = layer.weight.detach().numpy()[0], layer.bias.item()
            drawn = h @ linear.A[name].T + linear.b[name]
            if linear.observed[name][row]:
                own = linear.x[name][row].numpy()
                z = (own - drawn) / linear.s[name]
                weight *= np.exp(-0.5 * z**2).prod(1) / (linear.s[name] * np.sqrt(2 * np.pi)).prod()
                weight *= 1 / (1 + np.exp(own @ slope + start))
            else:
                drawn = drawn + linear.s[name] * rng.normal(size=drawn.shape)
                weight *= 1 / (1 + np.exp(-(drawn @ slope + start)))
        assert log_bound(logs[row : row + 1]).item() == pytest.approx(
            np.log(weight.mean()), abs=0.03
        )


def test_second_bound_and_prediction_of_a_regression_are_the_known_ones(linear):
    h, logs = linear.log_weights(60_000, seed=6)
    y = torch.tensor([0.4, -0.2, 1.0, 0.0], dtype=F64)
    with torch.no_grad():
        joint = log_bound(logs + linear.model.head.log_density(h, y)).numpy()
        found = linear.model.head.predict(h, normalised_weights(logs))
    for row in range(4):
        mean, cov = linear.joint(row, label=True)
        both = np.append(linear.seen(row), y[row])
        assert joint[row] == pytest.approx(multivariate_normal(mean, cov).logpdf(both), abs=0.03)
        gain = cov[-1, :-1] @ np.linalg.inv(cov[:-1, :-1])
        expected = mean[-1] + gain @ (linear.seen(row) - mean[:-1])
        assert found.value[row].item() == pytest.approx(expected, abs=0.02)
        deviation = np.sqrt(cov[-1, -1] - gain @ cov[:-1, -1])
        assert found.deviation[row].item() == pytest.approx(deviation, abs=0.02)


def test_class_probabilities_agree_with_draws_from_the_prior():
    linear = LinearModel(n_classes=3)
    h, logs = linear.log_weights(60_000, seed=6)
    with torch.no_grad():
        found = linear.model.head.predict(h, normalised_weights(logs))
        (layer,) = linear.model.head.net
        prior = torch.tensor(linear.draw_prior(np.random.default_rng(1), 400_000))
        of_classes = layer(prior).softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities.sum(1), 1.0, rtol=1e-12)
    for row in range(4):
        like = np.ones(len(prior))
        for name in COLUMNS:
            if linear.observed[name][row]:
                mean = prior.numpy() @ linear.A[name].T + linear.b[name]
                z = (linear.x[name][row].numpy() - mean) / linear.s[name]
                like *= np.exp(-0.5 * z**2).prod(1)
        expected = (like[:, None] * of_classes).sum(0) / like.sum()
        np.testing.assert_allclose(found.probabilities[row], expected, atol=0.01)


def test_a_missing_cell_counts_for_nothing():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(2, 3)))
    blocks = make_blocks({"bank": x}, {"bank": torch.ones(2, dtype=torch.bool)})
    settings = NetworkSettings(h_dim=2, z_dim=1, party_width=4)
    nets = CentralModel(blocks, settings, "I", None, 0, F64).parties["bank"]
    h, places = torch.zeros(2, 1, 2, dtype=F64), torch.arange(2)
    known = torch.ones(2, 3, dtype=F64)
    known[0, 1] = 0.0
    with torch.no_grad():
        full = nets.log_terms(x, torch.ones_like(x), places, h)
        part = nets.log_terms(x, known, places, h)
        mean, log_sigma = nets.decoder(h[0, 0])
    lost = log_density(x[0, 1], mean[1], log_sigma[1])
    torch.testing.assert_close(full - part, torch.tensor([[lost.item()], [0.0]], dtype=F64))


def test_bounded_keeps_to_its_bounds_and_is_undone():
    raw = torch.tensor([-1e4, -50.0, -1.0, 0.0, 2.0, 50.0, 1e4], dtype=F64)
    found = bounded(raw, (-3.0, 1.0))
    assert found.min() >= -3.0
    assert found.max() <= 1.0
    assert found[3].abs() < 1e-15
    assert (found.diff() >= 0).all()
    assert unbounded(bounded(torch.tensor(0.4, dtype=F64), (-3.0, 1.0)).item(), (-3.0, 1.0)) == (
        pytest.approx(0.4)
    )


BOUNDS = (-2.0, 1.5)


def numbers(*shape):
    return torch.tensor(np.random.default_rng(len(shape)).normal(size=shape) * 1.5)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("one_x", [False, True])
def test_the_density_in_one_operation_is_the_composed_one(one_x, holes):
    given = numbers(4, 3, 10).requires_grad_()
    x = numbers(4, 1 if one_x else 3, 5).requires_grad_()
    known = (numbers(4, 5) > 0).to(F64) if holes else torch.ones(4, 5, dtype=F64)
    found = row_log_density(given, x, BOUNDS, known if holes else None)
    mean, raw = given.chunk(2, -1)
    expected = (log_density(x, mean, bounded(raw, BOUNDS)) * known[:, None]).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    weights = numbers(4, 3)
    own = torch.autograd.grad((weights * found).sum(), (given, x))
    composed = torch.autograd.grad((weights * expected).sum(), (given, x))
    for one, other in zip(own, composed, strict=True):
        assert other.abs().max() > 0.1
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_density_of_extreme_numbers_stays_finite():
    given = torch.tensor([[[0.0, 0.0, -1e6, 1e6]]], requires_grad=True)
    found = row_log_density(given, torch.tensor([[[1.0, 1.0]]]), BOUNDS)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    assert torch.isfinite(found).all()
    assert torch.isfinite(gradient).all()


def party_nets(mixed):
    settings = NetworkSettings(h_dim=6, party_width=16, mixed=mixed)
    return PartyNetworks(5, settings, "II", seed=1, name="bank")


def terms_and_gradients(nets):
    x, places = numbers(3, 5).float(), torch.tensor([0, 2, 3])
    h, noise = numbers(4, 8, 6).float(), numbers(4, 8, 5).float()
    terms = nets.log_terms(x, torch.ones_like(x), places, h, noise)
    parameters = [*nets.decoder.parameters(), *nets.indicator.parameters()]
    return terms, torch.autograd.grad(terms.sum(), parameters)


def test_mixed_precision_rounds_matrix_products_and_nothing_else(monkeypatch):
    """PyTorch computes in bfloat16 on any processor; only its speed depends on it."""
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)
    (exact, of_exact), (found, of_found) = (
        terms_and_gradients(party_nets(mixed)) for mixed in (False, True)
    )
    assert not torch.equal(exact, found)
    assert found.dtype == torch.float32
    # bfloat16 has 8 bits: one part in 256, of numbers of about 10 and of sums of 24 terms.
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.05)
    for one, other in zip(of_found, of_exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.05 * other.norm()
    again, of_again = terms_and_gradients(party_nets(True))
    assert torch.equal(found, again)
    assert all(torch.equal(one, other) for one, other in zip(of_found, of_again, strict=True))


def test_without_bfloat16_mixed_is_float32(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
    exact, found = (terms_and_gradients(party_nets(mixed))[0] for mixed in (False, True))
    assert torch.equal(exact, found)


def test_draws_that_all_nodes_make_are_made_once_but_for_large_ones():
    asked = 7, "h", (5, 10), torch.float32
    first = shared_normals(*asked)
    assert torch.equal(first, draw_normals(*asked))
    assert shared_normals(*asked) is first
    assert not torch.equal(shared_normals(8, *asked[1:]), first)
    assert shared_normals(*asked[:3], F64).dtype == F64
    large = 7, "h", (2**20 + 1,), torch.float32
    assert shared_normals(*large) is not shared_normals(*large)


def test_who_lacks_bfloat16_is_named(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
    tables, labels, _ = make_data(n=30, seed=2)
    short = {"pretrain_epochs": 1, "epochs": 1, **SMALL}
    result = simulate(FalseVFL(precision="mixed", **short), tables, labels)
    (note,) = result.notes
    assert "precision='mixed', but bank, court, shop, the server computed in float32" in note


def test_shapes_are_read():
    assert parse_shapes("14x7") == {"": ImageShape(1, 14, 7)}
    assert parse_shapes("3x32x32") == {"": ImageShape(3, 32, 32)}
    assert parse_shapes("left=14x7, right=2x5x4") == {
        "left": ImageShape(1, 14, 7),
        "right": ImageShape(2, 5, 4),
    }
    assert parse_shapes("") == {}


@pytest.mark.parametrize("text", ["14", "14x", "0x7", "1x2x3x4", "left=14x7,left=14x7", "left="])
def test_a_shape_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"is no shape; expected .* '14x7'"):
        FalseVFL(networks="cnn", image_shape=text)


def nets_of(kind, shape, n_columns, **settings):
    given = NetworkSettings(h_dim=6, networks=kind, image_shape=shape, **settings)
    return PartyNetworks(n_columns, given, "I", seed=1, name="left")


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [("cnn", "14x7", 98), ("cnn", "1x1", 1), ("cnn", "3x5x16", 240), ("resnet18", "14x7", 98)],
)
def test_networks_give_what_their_images_need(kind, shape, size):
    nets = nets_of(kind, shape, size, image_channels=8)
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    mean, precision = nets.encode(x)
    assert mean.shape == precision.shape == (3, 6)
    h = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    terms = nets.log_terms(x, torch.ones_like(x), torch.arange(3), h)
    assert terms.shape == (3, 2)
    terms.sum().backward()
    assert (h.grad.abs().sum((1, 2)) > 0).all()
    weights = [p for p in nets.decoder.parameters() if p.requires_grad]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in weights)
    # Of a batch in which the party holds nothing.
    assert nets.encode(x[:0])[0].shape == (0, 6)
    assert nets.log_terms(x[:0], x[:0], torch.arange(0), h[:0]).shape == (0, 2)


def test_resnet18_is_the_one_of_its_paper():
    """He et al. (2016): 17 convolutions and a linear layer, 11.17 million parameters for CIFAR."""
    encoder = nets_of("resnet18", "3x32x32", 3072).encoder.net
    convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 17
    assert sum(m.kernel_size == (1, 1) for m in convolutions) == 3  # beside the blocks
    count = sum(p.numel() for p in encoder.parameters())
    assert count - 512 * 12 - 12 == 11_168_832  # torchvision's with a 3 x 3 stem, without its head
    sizes = []
    for module in encoder.net:
        module.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    encoder(torch.zeros(1, 3072))
    assert (64, 32, 32) in sizes
    assert (512, 4, 4) in sizes
    large = nets_of("resnet18", "3x96x96", 3 * 96 * 96).encoder.net
    assert large.net[0].kernel_size == (7, 7)
    assert large(torch.zeros(1, 3 * 96 * 96)).shape == (1, 12)


def test_an_image_s_embedding_does_not_depend_on_its_batch():
    nets = nets_of("cnn", "14x7", 98)
    x = torch.randn(5, 98, generator=torch.Generator().manual_seed(0))
    alone, together = nets.encode(x[:1])[0], nets.encode(x)[0][:1]
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def test_a_decoder_learns_where_pixels_lie():
    """An image of one bright pixel, whose place follows from h, in rows and columns."""
    nets = nets_of("cnn", "2x5x4", 40, image_channels=8)
    places = torch.tensor([0, 7, 19, 20, 33])
    h = 2 * torch.eye(5, 6)[:, None]
    x = 3.0 * torch.nn.functional.one_hot(places, 40).float()
    optimiser = torch.optim.Adam(nets.decoder.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        loss = -nets.log_terms(x, torch.ones_like(x), torch.arange(5), h).mean()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        mean, _ = nets.decoder(h)
    assert torch.equal(mean[:, 0].argmax(-1), places)
    assert (mean[:, 0] - x).abs().mean() < 0.1


@pytest.fixture(scope="module")
def images():
    """Two halves of small images, lines upright or level, and a party with a table."""
    rng = np.random.default_rng(4)
    n, ids = 120, [f"i{k:03}" for k in range(120)]
    upright, place = rng.random(n) < 0.5, rng.integers(1, 5, n)
    pictures = 0.3 * rng.normal(size=(n, 6, 6))
    for k in range(n):
        line = pictures[k, :, place[k]] if upright[k] else pictures[k, place[k]]
        line += 2.0
    halves = {"left": pictures[:, :, :3], "right": pictures[:, :, 3:]}
    tables = {
        name: pd.DataFrame(half.reshape(n, -1), ids).add_prefix("p")[rng.random(n) < 0.8]
        for name, half in halves.items()
    }
    bank = make_data(n=n)[0]["bank"]
    tables["bank"] = bank.set_axis(ids[: len(bank)])
    return tables, pd.Series(upright.astype(float), ids).where(rng.random(n) < 0.6), upright


def test_parties_with_images_and_one_with_a_table_train_together(images, tmp_path):
    tables, labels, upright = images
    strategy = FalseVFL(
        networks="cnn",
        image_shape="left=6x3, right=1x6x3",
        image_channels=8,
        pretrain_epochs=15,
        epochs=24,
        prediction_samples=20,
        pretrain_batch_size=120,
        importance_samples=4,
        h_dim=12,
        z_dim=6,
        pretrain_learning_rate=8e-3,
        learning_rate=2e-2,
    )
    result = simulate(strategy, tables, labels)
    losses = [line["loss"] for line in result.history if line["stage"] == 1]
    assert losses[-1] < losses[0] - 5
    found = result.predictions["prediction"]
    truth = pd.Series(upright.astype(float), labels.index)[found.index]
    assert (found == truth).mean() > 0.75  # chance is one half, of about 45
    result.save(tmp_path / "fit")
    again = type(result).load(tmp_path / "fit").predict({"left": tables["left"]})
    assert len(again.predictions) == len(tables["left"])


def test_pixels_of_a_channel_have_one_unit():
    """A pixel that is bright in one image of 50 is not worth hundreds of deviations."""
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(5.0, 2.0, (50, 4)), rng.normal(-1.0, 0.1, (50, 4))])
    x[:, 0], x[3, 0] = 0.0, 2.0
    table, taken = (
        Table.of(pd.DataFrame(x, [f"i{k}" for k in range(50)]).add_prefix("p")),
        np.ones(50, dtype=bool),
    )
    taken[:5] = False
    scales, found = fit_scales(table, taken, "left", "none", channels=2)
    np.testing.assert_allclose(scales.centre[:4], x[5:, :4].mean())
    np.testing.assert_allclose(scales.unit[:4], x[5:, :4].std())
    np.testing.assert_allclose(scales.unit[4:], x[5:, 4:].std())
    np.testing.assert_allclose(found, (x - scales.centre) / scales.unit)
    assert np.abs(found).max() < 5
