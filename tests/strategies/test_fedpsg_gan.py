"""The split networks' gradients are those of one graph; encodings come back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oracles import fedpsg_gan as oracle  # noqa: E402

from strategies.fedpsg.gan.encoding import Encoding  # noqa: E402
from strategies.fedpsg.gan.halves import PartyNets, Shape, TopNets  # noqa: E402
from strategies.fedpsg.gan.networks import (  # noqa: E402
    ALPHA,
    DIVERGENCE,
    draw_shown,
)


def batch(n=60, n_labels=0, seed=0):
    """Three parties with numbers and levels; a third of the samples lacks most of one's."""
    rng = np.random.default_rng(seed)
    data = {}
    for name, numbers, levels in (("a", 3, (2, 4)), ("b", 2, (3,)), ("c", 3, ())):
        codes = np.column_stack(
            [rng.normal(size=(n, numbers)), *(rng.integers(0, k, size=n) for k in levels)]
        )
        if name == "b":
            codes[: n // 3, 1:] = np.nan
        kinds = ["continuous"] * numbers + ["categorical"] * len(levels)
        encoding = Encoding.fit(codes, kinds, [0] * numbers + list(levels))
        x, mask = encoding.encode(codes)
        data[name] = torch.tensor(x).float(), torch.tensor(mask).float()
        data[name + " encoding"] = encoding
    one_hot = np.eye(max(n_labels, 1))[rng.integers(0, max(n_labels, 1), size=n)]
    data["labels"] = torch.tensor(one_hot[:, :n_labels]).float()
    return data


def made(shape, data):
    parties = {
        name: PartyNets(shape, name, torch.tensor(data[f"{name} encoding"].is_level))
        for name in ("a", "b", "c")
    }
    return parties, TopNets(shape, {n: data[f"{n} encoding"].width for n in parties})


def split_step(parties, top, data, seed):
    """One step as nodes take it; returns both kinds of gradients by parameter, and losses."""
    labels = data["labels"]
    joint = next(iter(parties.values())).shape.joint
    own = {n: p.embed(*data[n]) for n, p in parties.items()} if joint else {}
    whole = sum(own.values()) if joint else None
    forwards = {
        n: p.forward(*data[n], seed, labels, (whole - own[n]).detach() if joint else None)
        for n, p in parties.items()
    }
    total = sum(f.top for f in forwards.values()).detach()
    loss = sum(f.loss for f in forwards.values()).detach()
    mask = torch.cat(
        [draw_shown(seed, n, data[n][1], p.hideable, p.shape.hidden) for n, p in parties.items()],
        1,
    )
    at_top = labels if labels.shape[1] else torch.zeros(len(mask), 1)
    back, told = top.update(total, loss, mask, at_top, seed)
    by_others = (
        {n: p.gradient_of_others(forwards[n], back) for n, p in parties.items()} if joint else {}
    )
    for name, nets in parties.items():
        if joint:
            by_own = sum(by_others.values()) - by_others[name]
            nets.update(forwards[name], back, own[name], by_own)
        else:
            nets.update(forwards[name], back)
    return told


SHAPES = [
    Shape("gain", seed=3),
    Shape("gain", joint=True, seed=3),
    Shape("cgain", n_labels=3, seed=3),
    Shape("vgain", seed=3),
    Shape("gain", joint=True, seed=3, hidden=0.4),
    Shape("vgain", joint=True, n_labels=2, seed=3),
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda s: f"{s.kind}-{s.joint}-{s.n_labels}-{s.hidden}"
)
def test_gradients_are_those_of_one_graph(shape):
    data = batch(n_labels=shape.n_labels)
    parties, top = made(shape, data)
    against, for_generators = oracle.losses(parties, top, data, 17, ALPHA, DIVERGENCE)
    judges = [*top.top.parameters(), *(p for n in parties.values() for p in n.bottom.parameters())]
    makers = [
        p for n in parties.values() for p in [*n.generator.parameters(), *n.embedder.parameters()]
    ]
    expected = [
        *torch.autograd.grad(against, judges, retain_graph=True),
        *torch.autograd.grad(for_generators, makers),
    ]
    told = split_step(parties, top, data, 17)
    assert told["discriminator"] == pytest.approx(float(against.detach()), rel=1e-5)
    for parameter, grad in zip([*judges, *makers], expected, strict=True):
        scale = max(float(grad.abs().max()), 1e-3)
        assert float((parameter.grad - grad).abs().max()) < 1e-5 * scale
    moved = sum(float(g.abs().sum()) > 0 for g in expected)
    assert moved > 0.9 * len(expected)


def test_both_players_learn():
    """The discriminator tells open entries better than the share of observed ones does."""
    data = batch(n=120)
    shape = Shape("gain", seed=1, learning_rate=1e-2)
    parties, top = made(shape, data)
    history = [split_step(parties, top, data, seed) for seed in range(100)]
    first, last = history[:20], history[-20:]

    def mean(told, name):
        return np.mean([t[name] for t in told])

    assert mean(last, "reconstruction") < 0.5 * mean(first, "reconstruction")
    assert mean(last, "discriminator") < mean(first, "discriminator")


def test_the_same_seeds_give_the_same_networks_and_steps():
    data = batch()
    weights = []
    for _ in range(2):
        parties, top = made(SHAPES[1], data)
        for seed in range(3):
            split_step(parties, top, data, seed)
        weights.append(torch.cat([p.ravel() for p in parties["a"].generator.parameters()]))
    assert torch.equal(*weights)
    assert not torch.equal(
        parties["a"].bottom["bottom"][1].weight, parties["b"].bottom["bottom"][1].weight
    )


def test_encoded_values_come_back():
    rng = np.random.default_rng(0)
    codes = np.column_stack(
        [rng.normal(size=50), rng.integers(0, 3, size=50), np.full(50, 7.0), rng.poisson(2, 50)]
    )
    codes[3, 0] = codes[4, 1] = np.nan
    kinds = ["continuous", "categorical", "continuous", "count"]
    encoding = Encoding.fit(codes, kinds, [0, 3, 0, 0])
    x, mask = encoding.encode(codes)
    assert x.shape == mask.shape == (50, 6)
    assert x.min() >= 0.0
    assert x.max() <= 1.0
    assert not mask[3, 0]
    assert not mask[4, 1:4].any()
    assert not x[mask == 0].any()
    back = encoding.decode(x)
    known = ~np.isnan(codes)
    np.testing.assert_allclose(back[known], codes[known], atol=1e-12)
    assert encoding.is_level.tolist() == [False, True, True, True, False, False]


def test_generated_values_are_valid_whatever_the_network_says():
    codes = np.column_stack([np.linspace(-4, 9, 30), np.arange(30) % 3])
    encoding = Encoding.fit(codes, ["continuous", "ordinal"], [0, 3])
    wild = np.random.default_rng(0).normal(0.5, 3.0, size=(200, 4))
    back = encoding.decode(wild)
    assert back[:, 0].min() >= -4
    assert back[:, 0].max() <= 9
    assert set(back[:, 1]) <= {0.0, 1.0, 2.0}
