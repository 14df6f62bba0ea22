"""FALSE-VFL for parties whose columns are the pixels of an image."""

import numpy as np
import pandas as pd
import pytest
import torch
from deep_runs import make_data
from torch import nn

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError
from flwr_vertical.tables import Table
from strategies.false_vfl.networks import NetworkSettings, PartyNets
from strategies.false_vfl.strategy import FalseVFL
from strategies.neural.images import ImageShape, parse_shapes
from strategies.neural.model import fit_scales


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
    return PartyNets(n_columns, given, "I", seed=1, name="left")


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
    result = simulate(strategy, tables, labels, progress=False)
    losses = [line["loss"] for line in result.history if line["stage"] == 1]
    assert losses[-1] < losses[0] - 5
    found = result.predictions["prediction"]
    truth = pd.Series(upright.astype(float), labels.index)[found.index]
    assert (found == truth).mean() > 0.75  # chance is one half, of about 45
    result.save(tmp_path / "fit")
    again = type(result).load(tmp_path / "fit").predict({"left": tables["left"]}, progress=False)
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
