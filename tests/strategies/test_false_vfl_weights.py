"""Weights with which a party's networks begin."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from strategies.false_vfl.networks import (
    NetworkSettings,
    PartyNets,
)
from strategies.neural.networks import draw_weights  # noqa: E402

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
    nets = [PartyNets(3, NetworkSettings(h_dim=4), variant, 0, "bank") for _ in range(2)]
    before = weights(nets[0])
    before = {name: value.copy() for name, value in before.items()}
    nets[1].double()
    for one in nets:
        draw_weights(one, KEY)
    single, double = map(weights, nets)
    for name, value in single.items():
        np.testing.assert_array_equal(value, double[name])
        assert not np.array_equal(value, before[name])
