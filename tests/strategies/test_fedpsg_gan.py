"""The split networks' gradients are those of one graph, a run's steps those of one process."""

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from oracles import fedpsg_gan as oracle  # noqa: E402
from resuming import Place  # noqa: E402

from flwr_vertical import simulate  # noqa: E402
from flwr_vertical.errors import ConfigError, DataError, PartyError  # noqa: E402
from simulations.attacks.recording import record  # noqa: E402
from strategies.fedpsg import FedPSGAR  # noqa: E402
from strategies.fedpsg.gan.encoding import Encoding  # noqa: E402
from strategies.fedpsg.gan.halves import GanNets, GanShape, TopNets  # noqa: E402
from strategies.fedpsg.gan.networks import ALPHA, DIVERGENCE, draw_shown  # noqa: E402

ITERATIONS = 12


def batch(n=60, n_labels=0):
    """Three parties with numbers and levels; a third of the samples lacks most of one's."""
    rng = np.random.default_rng(0)
    data = {}
    for name, numbers, levels in (("a", 3, (2, 4)), ("b", 2, (3,)), ("c", 3, ())):
        codes = np.column_stack(
            [rng.normal(size=(n, numbers)), *(rng.integers(0, k, size=n) for k in levels)]
        )
        if name == "b":
            codes[: n // 3, 1:] = np.nan
        encoding = Encoding.fit(codes, [0] * numbers + list(levels))
        x, mask = encoding.encode(codes)
        data[name] = torch.tensor(x).float(), torch.tensor(mask).float()
        data[name + " encoding"] = encoding
    one_hot = np.eye(max(n_labels, 1))[rng.integers(0, max(n_labels, 1), size=n)]
    data["labels"] = torch.tensor(one_hot[:, :n_labels]).float()
    return data


def made(shape, data):
    parties = {
        name: GanNets(shape, name, torch.tensor(data[f"{name} encoding"].is_level))
        for name in ("a", "b", "c")
    }
    return parties, TopNets(shape, {n: data[f"{n} encoding"].width for n in parties})


def split_step(parties, top, data, seed):
    """One step as nodes take it, in one process; returns the losses.

    Shapes: data: by party, values and mask; ``labels`` (n, n_labels).
    """
    labels, shape = data["labels"], top.shape
    own = {n: p.embed(*data[n]) for n, p in parties.items()} if shape.joint else {}
    others = {n: sum(e for m, e in own.items() if m != n).detach() for n in own}
    forwards = {n: p.forward(*data[n], seed, labels, others.get(n)) for n, p in parties.items()}
    shown = [draw_shown(seed, n, data[n][1], p.hideable, shape.hidden) for n, p in parties.items()]
    back, losses = top.update(
        sum(f.top for f in forwards.values()).detach(),
        sum(f.loss for f in forwards.values()).detach(),
        torch.cat(shown, 1),
        labels if labels.shape[1] else torch.zeros(len(labels), 1),
        seed,
    )
    by = {n: parties[n].gradient_of_others(forwards[n], back) for n in own}
    for n, nets in parties.items():
        nets.update(forwards[n], back, *([own[n], sum(by.values()) - by[n]] if own else []))
    return losses


SHAPES = [
    GanShape("gain", seed=3),
    GanShape("gain", joint=True, seed=3),
    GanShape("cgain", n_labels=3, seed=3),
    GanShape("vgain", seed=3),
    GanShape("gain", joint=True, seed=3, hidden=0.4),
    GanShape("vgain", joint=True, n_labels=2, seed=3),
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


@pytest.mark.slow
def test_both_players_learn_and_the_same_seeds_do_the_same():
    """The discriminator tells open entries better than the share of observed ones does."""
    data, runs = batch(n=120), []
    for count in (20, 100):
        parties, top = made(GanShape("gain", seed=1, learning_rate=1e-2), data)
        runs.append(pd.DataFrame([split_step(parties, top, data, seed) for seed in range(count)]))
    first, last = runs[1][:20].mean(), runs[1][-20:].mean()
    assert last["reconstruction"] < 0.5 * first["reconstruction"]
    assert last["discriminator"] < first["discriminator"]
    pd.testing.assert_frame_equal(runs[0], runs[1][:20], check_exact=True)
    bottoms = [parties[name].bottom["bottom"][1].weight for name in "ab"]
    assert not torch.equal(*bottoms)


def test_encoded_values_come_back():
    rng = np.random.default_rng(0)
    codes = np.column_stack(
        [rng.normal(size=50), rng.integers(0, 3, size=50), np.full(50, 7.0), rng.poisson(2, 50)]
    )
    codes[3, 0] = codes[4, 1] = np.nan
    encoding = Encoding.fit(codes, [0, 3, 0, 0])
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
    # Whatever a network says, the value is one that occurs.
    codes = np.column_stack([np.linspace(-4, 9, 30), np.arange(30) % 3])
    encoding = Encoding.fit(codes, [0, 3])
    back = encoding.decode(np.random.default_rng(0).normal(0.5, 3.0, size=(200, 4)))
    assert back[:, 0].min() >= -4
    assert back[:, 0].max() <= 9
    assert set(back[:, 1]) <= {0.0, 1.0, 2.0}


# -- runs --------------------------------------------------------------------------------------


def tables(n=160):
    rng = np.random.default_rng(0)
    ids = [f"s{i:03}" for i in range(n)]
    common = rng.normal(size=n)
    level = np.array(list("uvw"))
    a = pd.DataFrame({"x": common + rng.normal(size=n), "l": level[rng.integers(0, 3, n)]}, ids)
    b = pd.DataFrame({"y": 2 * common + rng.normal(size=n), "k": rng.poisson(1, n)}, ids)
    return {"a": a, "b": b.iloc[: n - 60]}


def settings(**more):
    return {"imputer": "gain", "iterations": ITERATIONS, "batch": 16} | more


def run(given=None, mode="masked", labels=None, **more):
    return simulate(FedPSGAR(**settings(**more)), given or tables(), labels, mode)


KINDS = [{}, {"imputer": "vgain", "generator": "joint", "hidden": 0.3}]


@pytest.fixture(scope="module", params=KINDS, ids=["gain", "vgain joint"])
def trained(request):
    return request.param, run(**request.param)


def test_every_missing_cell_is_generated_and_valid(trained):
    _, result = trained
    given, got = tables()["b"], result.tables["b"]
    assert len(got) == 160
    pd.testing.assert_frame_equal(got.iloc[:100], given)
    made = got.iloc[100:]
    assert not made.isna().any().any()
    assert given["y"].min() <= made["y"].min()
    assert made["y"].max() <= given["y"].max()
    assert set(made["k"]) <= set(range(given["k"].max() + 1))
    assert result.metrics["cells_imputed"] == 120.0


def test_two_rounds_a_step_four_with_joint_generators(trained):
    chosen, result = trained
    names = result.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    if chosen:
        step, before = ["embed", "forward", "by_others", "update"], ["seal_group_seed"]
        after = ["embed", "impute", "finish"]
    else:
        step, before, after = ["forward", "update"], [], ["impute", "finish"]
    start = ["hello", "share_ids", "prepare", *before, "receive"]
    assert names == start + step * ITERATIONS + after


@pytest.mark.parametrize("mode", ["plain", "ckks"])
def test_modes_agree(mode):
    few = {"iterations": 3} if mode == "plain" else {"iterations": 1, "batch": 4}
    if mode == "ckks":
        pytest.importorskip("tenseal")
    for ours, theirs in zip(run(**few).history, run(mode=mode, **few).history, strict=True):
        for name, value in ours.items():
            assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-4)


def test_the_server_cannot_read_embeddings():
    """Neither sum nor term is small: both are uniform modulo 2^64."""
    for mode in ("masked", "plain"):
        run = record(FedPSGAR(**settings(generator="joint", iterations=2)), tables(), None, mode)
        seen = [
            np.asarray(w.values[name]).view(np.uint64).ravel()
            for w in run.worked
            for name in ("embedded", "gradient")
            if name in w.values
        ]
        assert len(seen) >= 5
        numbers = np.concatenate(seen)
        top_bits = np.bincount((numbers >> np.uint64(60)).astype(int), minlength=16) / len(numbers)
        # Six standard deviations of some 4,000 numbers; what is not blinded has 0 or 15 alone.
        np.testing.assert_allclose(top_bits, 1 / 16, atol=0.025)


def some_labels():
    rng = np.random.default_rng(1)
    labels = pd.Series(rng.integers(0, 3, 160).astype(float), [f"s{i:03}" for i in range(160)])
    labels[::10] = np.nan
    return labels


def test_labels_are_given_to_generators_and_make_a_difference():
    ours, others = (
        run(labels=labels, imputer="cgain", iterations=3)
        for labels in (some_labels(), some_labels().fillna(0.0))
    )
    assert ours.history != others.history
    assert not ours.tables["b"].isna().any().any()


def test_networks_need_consent_classes_and_whole_numbers(tmp_path):
    place, cgain = Place(tmp_path), FedPSGAR(**settings(imputer="cgain"))
    place.strategy = lambda: FedPSGAR(**settings(batch=8))
    with pytest.raises(DataError, match="'cgain' needs labels"):
        run(imputer="cgain")
    with pytest.raises(DataError, match="takes at most 50 classes"):
        run(labels=some_labels() + np.arange(160) / 7, imputer="cgain")
    place.labels = pd.Series(1.0, place.tables["bank"].index)
    with pytest.raises(PartyError, match=r"refuses by policy\.exchanges: asked: exchange 'labels'"):
        place.run(checkpoint=False, strategy=cgain)
    place.configs["bank"], place.labels = {"exchanges": ""}, None
    with pytest.raises(PartyError, match=r"refuses by policy\.exchanges: asked: exchange 'sums'"):
        place.run(checkpoint=False)
    with pytest.raises(ConfigError, match="use aggregation='masked'"):
        run(mode="ckks", generator="joint")
