"""Networks trained by nodes are those of one process; what a step costs; runs that break off."""

import os

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from resuming import Place, ServerKilled  # noqa: E402

from flwr_vertical import simulate  # noqa: E402
from flwr_vertical.errors import ConfigError, DataError, PartyError  # noqa: E402
from simulations.attacks.recording import record  # noqa: E402
from strategies.fedpsg import FedPSGAR  # noqa: E402
from strategies.fedpsg.gan import steps, training  # noqa: E402
from strategies.fedpsg.gan.halves import PartyNets, TopNets  # noqa: E402
from strategies.fedpsg.gan.networks import draw_shown  # noqa: E402

ITERATIONS = 12


def tables(n=160, seed=0):
    rng = np.random.default_rng(seed)
    ids = [f"s{i:03}" for i in range(n)]
    common = rng.normal(size=n)
    level = np.array(list("uvw"))
    a = pd.DataFrame({"x": common + rng.normal(size=n), "l": level[rng.integers(0, 3, n)]}, ids)
    b = pd.DataFrame({"y": 2 * common + rng.normal(size=n), "k": rng.poisson(1, n)}, ids)
    return {"a": a, "b": b.iloc[: n - 60]}


def settings(**more):
    return {"n_associated": 0, "imputer": "gain", "iterations": ITERATIONS, "batch": 16} | more


KINDS = [
    settings(),
    settings(imputer="vgain", generator="joint", hidden=0.3),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda s: s["imputer"])
def trained(request):
    """A run; what each party put in, and the batches and seeds of its steps."""
    given, drawn, shapes = {}, [], []
    start, step = steps.GanSteps.start, training.Training.step

    def started(self, codes, shape, names):
        told = start(self, codes, shape, names)
        given[self.name] = codes.copy(), self._encoding
        shapes.append(shape)
        return told

    def stepped(self, rows, seed):
        drawn.append((rows, seed))
        shapes.append(self.shape)
        return step(self, rows, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps.GanSteps, "start", started)
        patch.setattr(training.Training, "step", stepped)
        result = simulate(FedPSGAR(**request.param), tables(), progress=False)
    return request.param, result, given, drawn, shapes[-1]


def central(given, drawn, shape):
    """Take the same steps in one process, without messages; returns losses of each step."""
    data, nets = {}, {}
    for name, (codes, encoding) in sorted(given.items()):
        x, mask = encoding.encode(codes)
        data[name] = torch.tensor(x).float(), torch.tensor(mask).float()
        gone = np.repeat(np.isnan(codes).any(axis=0), encoding.widths)
        nets[name] = PartyNets(
            shape, name, torch.tensor(encoding.is_level), torch.tensor(gone).float()
        )
    top = TopNets(shape, {name: given[name][1].width for name in nets})
    told = []
    for rows, seed in drawn:
        batch = {n: (x[rows], mask[rows]) for n, (x, mask) in data.items()}
        own = {n: p.embed(*batch[n]) for n, p in nets.items()} if shape.joint else {}
        forwards = {
            n: p.forward(
                *batch[n],
                seed,
                torch.zeros(len(rows), 0),
                sum(e for m, e in own.items() if m != n).detach() if shape.joint else None,
            )
            for n, p in nets.items()
        }
        shown = [
            draw_shown(seed, n, batch[n][1], p.hideable, shape.hidden) for n, p in nets.items()
        ]
        back, losses = top.update(
            sum(f.top for f in forwards.values()).detach(),
            sum(f.loss for f in forwards.values()).detach(),
            torch.cat(shown, 1),
            torch.zeros(len(rows), 1),
            seed,
        )
        told.append(losses)
        by = {n: p.gradient_of_others(forwards[n], back) for n, p in nets.items() if shape.joint}
        for n, p in nets.items():
            if shape.joint:
                p.update(forwards[n], back, own[n], sum(by.values()) - by[n])
            else:
                p.update(forwards[n], back)
    return told


def test_losses_are_those_of_one_process(trained):
    _, result, given, drawn, shape = trained
    assert len(drawn) == ITERATIONS
    expected = central(given, drawn, shape)
    noted = {row["iteration"]: row for row in result.history}
    for iteration, row in noted.items():
        for name, value in expected[iteration - 1].items():
            # float32 sums at a resolution of 2^-22; after 12 steps of Adam.
            assert row[name] == pytest.approx(value, rel=1e-3, abs=1e-4)
    assert set(noted) == {1, ITERATIONS}


def test_every_missing_cell_is_generated_and_valid(trained):
    _, result, *_ = trained
    given, got = tables()["b"], result.tables["b"]
    assert len(got) == 160
    pd.testing.assert_frame_equal(got.iloc[:100], given)
    made = got.iloc[100:]
    assert not made.isna().any().any()
    assert given["y"].min() <= made["y"].min()
    assert made["y"].max() <= given["y"].max()
    assert set(made["k"]) <= set(range(given["k"].max() + 1))
    assert result.metrics["cells-imputed"] == 120.0


def test_two_rounds_a_step_four_with_joint_generators(trained):
    chosen, result, *_ = trained
    names = result.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    if chosen.get("generator") == "joint":
        step, before = ["embed", "forward", "by_others", "update"], ["seal_group_seed"]
        after = ["embed", "impute", "finish"]
    else:
        step, before, after = ["forward", "update"], [], ["impute", "finish"]
    start = ["hello", "share_ids", "prepare", *before, "receive"]
    assert names == start + step * ITERATIONS + after


def test_modes_agree():
    histories = {
        mode: simulate(FedPSGAR(**settings(iterations=3)), tables(), None, mode, progress=False)
        for mode in ("masked", "plain")
    }
    for ours, theirs in zip(*(r.history for r in histories.values()), strict=True):
        for name, value in ours.items():
            assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-4)


def test_first_layer_from_ciphertexts():
    pytest.importorskip("tenseal")
    few = settings(iterations=1, batch=4)
    ours, theirs = (
        simulate(FedPSGAR(**few), tables(), None, mode, progress=False).history[0]
        for mode in ("masked", "ckks")
    )
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


def test_a_node_that_has_not_agreed_takes_no_part(tmp_path):
    place = GanPlace(tmp_path)
    place.configs["bank"] = {"exchanges": ""}
    with pytest.raises(PartyError, match=r"refuses by policy\.exchanges: asked: exchange 'sums'"):
        place.run(checkpoint=False)


def some_labels():
    rng = np.random.default_rng(1)
    found = pd.Series(rng.integers(0, 3, 160).astype(float), [f"s{i:03}" for i in range(160)])
    found[::10] = np.nan
    return found


def test_labels_are_given_to_generators_and_make_a_difference():
    with_labels = settings(imputer="cgain", iterations=3)
    ours = simulate(FedPSGAR(**with_labels), tables(), some_labels(), progress=False)
    others = simulate(FedPSGAR(**with_labels), tables(), some_labels().fillna(0.0), progress=False)
    assert ours.history != others.history
    assert not ours.tables["b"].isna().any().any()


def test_cgain_needs_classes_and_consent(tmp_path):
    cgain = FedPSGAR(**settings(imputer="cgain"))
    with pytest.raises(DataError, match="'cgain' needs labels"):
        simulate(cgain, tables(), progress=False)
    numbers = some_labels() + np.arange(160) / 7
    with pytest.raises(DataError, match="takes at most 50 classes"):
        simulate(cgain, tables(), numbers, progress=False)
    place = GanPlace(tmp_path)
    place.labels = pd.Series(1.0, place.tables["bank"].index)
    with pytest.raises(PartyError, match=r"refuses by policy\.exchanges: asked: exchange 'labels'"):
        place.run(checkpoint=False, strategy=cgain)


def test_joint_generators_need_sums_of_whole_numbers():
    with pytest.raises(ConfigError, match="use aggregation='masked'"):
        simulate(FedPSGAR(**settings(generator="joint")), tables(), None, "ckks", progress=False)
    with pytest.raises(ConfigError, match="is for the imputers gain, cgain, vgain"):
        FedPSGAR(generator="joint")


class GanPlace(Place):
    """Disks on which a run with networks breaks off."""

    def __init__(self, folder, **more):
        super().__init__(folder)
        self.labels = None
        self.strategy = lambda: FedPSGAR(**settings(batch=8, **more))


@pytest.fixture
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("_no_waiting_for_the_disk")
@pytest.mark.parametrize("faults", [{"die_after": 17}, {"lose": {14: "before"}}], ids=str)
def test_a_run_that_breaks_off_comes_to_the_same_numbers(tmp_path, faults):
    expected = GanPlace(tmp_path / "whole", generator="joint").run(checkpoint=False)
    place = GanPlace(tmp_path / "broken", generator="joint")
    place.start["checkpoint_every"] = 3
    try:
        found = place.run(**faults)
    except ServerKilled:
        found = place.run(resume=True, run_id=2)
    assert found.result.history == expected.result.history
    for name, table in expected.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], table)
