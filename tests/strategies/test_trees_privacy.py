"""What server, parties and arbiter see of boosting; runs that are killed and resumed."""

import logging
import math

import numpy as np
import pytest
from resuming import ServerKilled
from tree_runs import SMALL, make_labels, make_tables, splits_of

from flwr_vertical import LocalGrid, simulate
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES
from strategies.trees import VerticalGBDT
from strategies.trees.blinding import Factors, noise
from strategies.trees.gain import TIE, best_of, signed

SETTINGS = {**SMALL, "n_trees": 2, "max_depth": 3}


@pytest.fixture(scope="module")
def data():
    tables = make_tables(seed=7)
    return tables, make_labels(tables, seed=8)


@pytest.fixture(scope="module")
def run(data):
    transcript = []
    strategy = VerticalGBDT(**SETTINGS)
    result = simulate(strategy, *data, progress=False, transcript=transcript)
    return result, transcript


def looks_uniform(words):
    """Whether the 16 highest bits of numbers are spread evenly: chi square of 16 cells."""
    cells = np.bincount((np.asarray(words).ravel() >> np.uint64(60)).astype(int), minlength=16)
    expected = cells.sum() / 16
    chi2 = float(((cells - expected) ** 2 / expected).sum())
    return chi2 < 15 + 6 * math.sqrt(30)


def test_what_passes_the_server_is_uniform_or_sealed(run):
    _, transcript = run
    told = [decode(r.content, VALUES) for r in transcript if r.direction == "up"]
    names = {name for values in told for name in values}
    assert {"owner_v", "owner_h", "parcel", "masked", "left"} <= names
    assert not names & {"helper_v", "helper_h", "legal"}
    for name in ("owner_v", "owner_h", "masked"):
        words = [np.asarray(v[name]).ravel() for v in told if name in v]
        assert looks_uniform(np.concatenate(words)), name


def test_no_party_gets_a_gradient_under_a_mask_whose_seed_it_has(run):
    _, transcript = run
    checked = 0
    for record in transcript:
        told = decode(record.content, ARGUMENTS) if record.direction == "down" else {}
        for what in ("v", "h"):
            if f"masked_{what}" not in told:
                continue
            masked = np.asarray(told[f"masked_{what}"])
            assert looks_uniform(masked)
            seed = told.get(f"rho_{what}")
            if seed:
                assert looks_uniform(masked - stream(bytes(seed), "rho", masked.shape))
                checked += 1
    assert checked


def test_the_arbiter_finds_the_best_and_nothing_of_the_sums():
    """20 nodes of 200 candidates, sums of 1,000 rows; one factor per node would show all ratios."""
    rng = np.random.default_rng(0)
    shape, bits = (20, 200), 16
    limits = np.full((2, 20), 1001.0 * 2**bits)
    left = rng.integers(20 * 2**bits, 980 * 2**bits // 4, shape)
    right = 1000 * 2**bits // 4 - left // 2
    numerator = rng.normal(scale=20 * 2**bits, size=shape).astype(np.int64)
    own = [rng.integers(0, 2**64, shape, dtype=np.uint64) for _ in range(3)]
    sums = [x.astype(np.int64).view(np.uint64) for x in (numerator, left, right)]
    other = [x - y for x, y in zip(sums, own, strict=True)]

    factors = Factors.of(bytes(32), limits, 200)
    total = factors.blinded(*own) + factors.blinded(*other) + noise(bytes(range(32)), limits, 200)
    x, y_left, y_right = signed(total).astype(np.float64)
    assert np.abs(x).max() < 2**62
    assert min(y_left.min(), y_right.min()) > 0
    wins = best_of(x, y_left, y_right, np.ones(shape, dtype=bool))
    gain = numerator.astype(float) ** 2 / (left.astype(float) * right)
    placed = np.take_along_axis(gain, factors.order, axis=1)
    np.testing.assert_array_equal(placed[wins] >= 0.9999 * placed.max(axis=1), True)
    # Gains keep their ratios to noise and the truncation of factors.
    ratio = x**2 / (y_left * y_right) / placed
    large = placed > 0.01 * placed.max(axis=1, keepdims=True)
    for q in range(20):
        assert np.ptp(ratio[q][large[q]]) < 64 * TIE * ratio[q].max()

    def at_place(values):
        return np.take_along_axis(values, factors.order, axis=1)

    sign = np.mean(np.sign(x) == np.sign(at_place(numerator)))
    assert abs(sign - 0.5) < 0.04
    # Of N itself the arbiter has what the gains tell; of the sizes of H' next to nothing.
    for seen, true in ((y_left, left), (y_right, right)):
        pairs = zip(np.log(seen), np.log(at_place(true)), strict=True)
        assert np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs]) < 0.5
    # No divisor is left that a gcd would find.
    found = [np.gcd.reduce(row.view(np.int64)) for row in total[1]]
    assert max(found) < 8


def test_factors_are_the_same_wherever_they_are_made():
    """Square roots and products alone, which IEEE 754 rounds alike: a digest pins them."""
    limits = np.array([[3.0e6, 5.0e8], [1.0e6, 5.0e8]])
    factors = Factors.of(bytes(range(32)), limits, 50)
    again = Factors.of(bytes(range(32)), limits, 50)
    for name in ("numerator", "left", "right", "order"):
        np.testing.assert_array_equal(getattr(factors, name), getattr(again, name))
    assert np.unique(factors.left).size == factors.left.size
    span = np.log2(factors.left.astype(float))
    assert 5.0 < np.ptp(span[0]) <= 6.0
    assert np.log2(limits[1, :, None] * factors.left).max() <= 61.0


@pytest.mark.parametrize("at", [5, 8, 13, 15, 22])
def test_killed_within_any_tree_and_resumed_it_gives_the_same(at, run, data, monkeypatch, tmp_path):
    logging.disable(logging.CRITICAL)
    original, rounds = LocalGrid.send_and_receive, [0]

    def send_and_receive(grid, messages, *, timeout=None):
        rounds[0] += 1
        if rounds[0] == at:
            raise ServerKilled
        return original(grid, messages, timeout=timeout)

    monkeypatch.setattr(LocalGrid, "send_and_receive", send_and_receive)
    how = {"progress": False, "checkpoint": tmp_path / "run", "checkpoint_every": 1}
    try:
        with pytest.raises(ServerKilled):
            simulate(VerticalGBDT(**SETTINGS), *data, **how)
        result = simulate(VerticalGBDT(**SETTINGS), *data, resume=True, **how)
    finally:
        logging.disable(logging.NOTSET)
    assert result.history == run[0].history
    for name in ("party", "left", "right", "value", "missing_left"):
        np.testing.assert_array_equal(
            getattr(result.predictor, name), getattr(run[0].predictor, name)
        )
    for tree in range(SETTINGS["n_trees"]):
        assert splits_of(result, tree) == splits_of(run[0], tree)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("*"))
