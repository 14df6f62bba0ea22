"""What boosting costs in rounds, what it writes into privacy ledgers, what policies refuse."""

import logging
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from scipy import stats
from tree_runs import SMALL, N, fit, make_labels, make_tables

from flwr_vertical import Table, scratch, simulate
from flwr_vertical.crypto.sealed_box import seal
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError
from flwr_vertical.products import streams
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES
from strategies.trees import VerticalGBDT, masked_store, node_sums, secret_shares
from strategies.trees.arbiter import CompareSteps, pack, place_of
from strategies.trees.blinding import Factors, coarse, from_wire, noise, opened, to_wire
from strategies.trees.boosting import Grower
from strategies.trees.gain import TIE, Derivatives, best_of, level_of, signed
from strategies.trees.model import TreePart
from strategies.trees.rounds import LevelNodes


@pytest.fixture(scope="module")
def data():
    tables = make_tables()
    return tables, make_labels(tables, unlabelled=20)


@pytest.fixture(scope="module")
def hidden(data):
    """A run whose messages are kept."""
    transcript = []
    strategy = VerticalGBDT(**SMALL)
    return simulate(strategy, *data, transcript=transcript), transcript


def with_arbiter(folder, tables):
    nodes = Nodes(folder, tables)
    nodes.configs["arbiter"] = {"role": "arbiter", "output": str(folder / "out" / "arbiter")}
    return nodes


def test_rounds(data, hidden):
    levels = SMALL["n_trees"] * SMALL["max_depth"]
    # Greeting and alignment; keys and bins, the group seed, masked slots, the end; levels in order.
    assert hidden[0].ledger.rounds == 2 + 4 + 3 + 3 * levels
    steps = hidden[0].ledger.to_frame().groupby("step")["round"].nunique()
    assert steps["share"] - 1 == steps["compare"] == steps["route"] == levels
    assert steps["send_masked"] == 2
    assert steps["rank"] == 1
    assert fit(*data, histograms="open").ledger.rounds == 2 + 4 + 2 + 2 * levels
    single = fit(*data, histograms="open", levels="single")
    assert single.ledger.rounds == 2 + 4 + 2 * levels
    classes = make_labels(data[0], "multiclass")  # which share rounds
    result = fit(data[0], classes, objective="multiclass", n_trees=1)
    assert len(result.predictor.roots) == 3
    assert result.ledger.rounds <= 2 + 4 + 3 * SMALL["max_depth"]


def test_validation_ends_boosting_and_samples_are_drawn(data):
    tables, labels = data
    shuffled = pd.Series(np.random.default_rng(9).permutation(labels.to_numpy()))
    result = fit(
        tables, shuffled, n_trees=12, max_depth=2, learning_rate=0.5, validation_share=0.3,
        early_stopping=2, subsample=0.6, colsample=0.5,
    )  # fmt: skip
    losses = [entry["validation_loss"] for entry in result.history]
    kept = int(result.metrics["iterations"])
    assert len(losses) == kept + 2 < 12
    assert kept == int(np.argmin(losses)) + 1 == len(result.predictor.roots)
    assert result.metrics["validation_loss"] == pytest.approx(min(losses), rel=1e-12)
    again = result.predict(tables, labels)
    free = shuffled.isna().to_numpy()
    np.testing.assert_array_equal(again.predictions[free].to_numpy(), result.predictions.to_numpy())


def test_nodes_count_bits_of_rows_and_can_cap_them(data, tmp_path):
    tables, labels = data
    nodes = with_arbiter(tmp_path, tables)
    strategy = VerticalGBDT(**{**SMALL, "n_trees": 1})
    nodes.run(strategy, labels)
    entries = nodes.entries("bits")
    # Each level tells which split is best, which may be of any row, and some rows their sides.
    said = [entry["what"] for entry in entries]
    assert sum("which splits of trees gain most" in what for what in said) >= 1
    assert sum("in which order levels of its columns are" in what for what in said) >= 1
    assert all("which side" in w or "gain most" in w or "in which order" in w for w in said)
    for name in tables:
        assert not nodes.entries("rows", name)  # no sum is opened
    # Twice as many trees could tell more than the node allows: nothing leaves at all.
    two = VerticalGBDT(**{**SMALL, "n_trees": 2})
    told = nodes.ledger().state["other_bits"]
    nodes.state(policy_openings=told / 2)
    said = nodes.refused("openings", two, labels)
    assert "failed in step 'prepare'" in said
    assert f"up to {told:.1f} bits of a row" in said  # all of its codes
    assert "grow fewer trees" in said
    assert f"policy.openings={math.ceil(told)}" in said
    assert nodes.entries("bits") == entries
    assert not [r for r in nodes.transcript if "masked" in decode(r.content, VALUES)]
    nodes.state(policy_openings=2 * told)
    nodes.run(two, labels)
    # More runs than that add up in the ledger, and the last one stops at the split that exceeds.
    said = nodes.refused("openings", VerticalGBDT(**SMALL), labels.shift(1))
    assert "failed in step 'share'" in said


class EnoughError(Exception):
    """The deviating server has what it wanted."""


@pytest.mark.parametrize("n_rows", [1, 3])
def test_winners_of_gradients_of_one_row_are_counted_and_few(data, tmp_path, monkeypatch, n_rows):
    """No node sees gradients, so each winner may name a code of the one row that has any."""
    tables, labels = data
    nodes, won = with_arbiter(tmp_path, tables), []

    def grow(self, g, h, inside, usable, first, routed):
        n, roots = g.shape[1], np.arange(n_rows)
        gradients = np.full((n_rows, n), 1.0 / n)
        gradients[roots, roots] -= 1.0
        every = np.ones(n, bool)
        derivatives = [Derivatives.of(own, np.ones(n), every, 0.0) for own in gradients]
        node = np.tile(roots[:, None], (1, n))
        known = level_of(node, n_rows, gradients, derivatives, roots)
        every = np.ones((n_rows, self.slots.n_columns), np.uint8)
        level = LevelNodes(node, np.full(n_rows, -1), roots, roots)
        won.extend(self._rounds.winners(level, known, derivatives, every, SMALL["min_child"]))
        raise EnoughError

    monkeypatch.setattr(Grower, "grow", grow)
    strategy = VerticalGBDT(**{**SMALL, "n_trees": 1, "max_depth": 2, "levels": "single"})
    logging.disable(logging.CRITICAL)
    try:
        with pytest.raises((EnoughError, PartyError)) as caught:
            nodes.run(strategy, labels)
    finally:
        logging.disable(logging.NOTSET)
    if n_rows == 3:  # the run agreed to one tree of two levels
        assert "asked for 3 levels of trees, and the run agreed to 2 in all" in str(caught.value)
        assert not won
        return
    assert len(won) == 1
    for name in tables:
        (entry,) = nodes.entries("bits", name)
        assert "by gradients that the server chose" in entry["what"]
        assert entry["n_rows"] == len(tables[name])
        assert entry["bits"] > 3


def test_bits_of_a_row_end_with_those_of_its_codes(tmp_path):
    """Two bins and what is missing: 1.6 bits, however many splits a row comes to."""
    tables = {name: table.iloc[:, :1] for name, table in make_tables().items()}
    nodes = with_arbiter(tmp_path, tables)
    few = {"n_trees": 3, "max_depth": 2, "n_bins": 2, "min_child": 8}
    result = nodes.run(VerticalGBDT(**few), make_labels(make_tables()))
    assert result.predictor.longest_way > 2
    for name in tables:
        assert nodes.ledger(name).state["other_bits"] <= math.log2(3) + 1e-9


def test_predictions_are_refused_that_could_tell_more_than_a_node_allows(data, hidden):
    result = hidden[0]
    model = result.predictor

    def depth(line):
        if model.party[line] < 0:
            return 0
        return 1 + max(depth(model.left[line]), depth(model.right[line]))

    assert model.longest_way == sum(depth(root) for root in model.roots)
    says = r"step 'open_trees': .*policy\.openings: asked: up to .* comes to 12 splits at most"
    with pytest.raises(PartyError, match=says):
        result.predict(data[0], policy={"bank": {"openings": 2}})


def test_open_histograms_need_every_nodes_consent(data, tmp_path):
    tables, labels = data
    nodes = Nodes(tmp_path, tables)
    strategy = VerticalGBDT(**{**SMALL, "n_trees": 1, "max_depth": 1}, histograms="open")
    assert strategy.exchanges_asked == ("histograms",)
    assert strategy.needs_arbiter is None
    nodes.refused("exchanges", strategy, labels)
    nodes.state(exchanges="histograms")
    nodes.run(strategy, labels)
    whole = [e for e in nodes.entries("bits") if "sums of gradients" in e["what"]]
    assert len(whole) == 1  # all that a row holds, once


def test_min_rows_of_a_node_bound_its_splits(data):
    tables, labels = data
    result = fit(tables, labels, policy={"bank": {"min-rows": 120}}, n_trees=2)
    model = result.predictor
    small, large = [], []
    cover = rows_of_nodes(result)
    for line in np.flatnonzero(model.party >= 0):
        sides = min(cover[model.left[line]], cover[model.right[line]])
        (large if model.party[line] == 0 else small).append(sides)
    assert min(large) >= 120 > min(small) >= SMALL["min_child"]
    # Two splits, each with 120 rows on both sides, tell of no bin of numbers with fewer.
    for name, least in (("bank", 120), ("court", 1)):
        bins = TreePart.from_bytes(result._party_models[name]).bins
        codes = bins.codes(Table.of(tables[name]), name)
        rows = [
            np.bincount(codes[:, j], minlength=n)[:n]
            for j, n in enumerate(bins.layout.n_bins)
            if not bins.levels[j]
        ]
        assert least <= min(own.min() for own in rows) < (200 if least > 1 else 120)


def test_the_note_on_few_bins_is_true():
    """A column that is 0 in most rows has all its bins, and no note; one of two values has one."""
    rng = np.random.default_rng(4)
    amounts = np.where(rng.random(400) < 0.9, 0.0, rng.lognormal(size=400))
    tables = {
        "bank": pd.DataFrame({"amount": amounts}),
        "court": pd.DataFrame({"flag": rng.integers(0, 2, 400)}),
    }
    result = fit(tables, pd.Series((amounts > 0.5).astype(float)), n_trees=1)
    assert len(TreePart.from_bytes(result._party_models["bank"]).bins.edges[0]) == 11
    assert [note for note in result.notes if "bins" in note] == [
        "party 'court': 1 column has fewer than 12 bins: there are fewer distinct values, or too "
        "few rows have some of them"
    ]


def test_trees_without_a_split_are_noted(data):
    """Half of the samples on each side is asked for, and no bin ends there."""
    tables = {name: table.iloc[:, :2] for name, table in data[0].items()}
    result = fit(tables, data[1], min_child=190, max_depth=1, n_bins=3)
    assert not result.model["splits"].any()
    assert any("no tree has a split" in note for note in result.notes)
    assert result.predictions["probability_1"].nunique() == 1


@pytest.mark.parametrize("objective", ["binary", "multiclass"])
def test_new_rows_may_have_labels_that_the_fit_did_not_know(data, objective):
    tables, labels = data[0], make_labels(data[0], objective)
    result = fit(tables, labels, objective=objective, n_trees=1)
    known = result.predict(tables, labels, progress=False)
    found = result.predict(tables, labels.where(labels.index != labels.index[0], 7), progress=False)
    assert known.metrics["loss"] == pytest.approx(known.metrics["log_loss"])
    assert "loss" not in found.metrics  # nor has it a log_loss
    assert known.metrics["accuracy"] - found.metrics["accuracy"] in (0.0, 1 / N)
    broken = result.predict(tables, labels + 0.5, progress=False)
    assert sum("are no classes" in note for note in broken.notes) == 1


def test_no_party_helps_itself(data, monkeypatch):
    """It would have a mask and what is under it."""
    monkeypatch.setattr(
        secret_shares, "helpers", lambda names: dict(zip(names, names, strict=True))
    )
    with pytest.raises(PartyError, match="cannot help itself"):
        fit(*data, n_trees=1)


def rows_of_nodes(result):
    """Rows of the fit in each node: of the first tree, whose second derivatives are all alike."""
    model = result.predictor
    first = model.cover[model.roots[0]] / (N - 20)
    alone = model.tree == 0
    out = np.full(len(model.tree), np.inf)
    out[alone] = np.rint(model.cover[alone] / first)
    return out


def test_a_federation_without_an_arbiter_is_told_what_to_add(data, tmp_path):
    tables, labels = data
    nodes = Nodes(tmp_path, tables)
    options = {"parties": list(tables), "min_nodes": 2, "progress": False, "alignment": "plain"}
    strategy = VerticalGBDT(**SMALL)
    says = "histograms='open' .* if every node agrees.* needs an arbiter: start .*role='arbiter'"
    with nodes.grid(strategy) as grid, pytest.raises(ConfigError, match=says):
        strategy.start(grid=grid, labels=labels, **options)


BANK = {"bank": {"min-rows": 250}}


@pytest.mark.parametrize(
    ("change", "settings", "error", "says"),
    [
        (lambda y: y * 0, {}, DataError, "one class only"),
        (lambda y: y + 1, {}, DataError, "labels of classes must be 0 to 1.* objective='"),
        (lambda y: y, {"objective": "poisson", "min_child": 500}, DataError, "min_child"),
        (lambda y: -y, {"objective": "poisson"}, DataError, "use 'regression'"),
        (lambda y: y * 0 + 7, {"objective": "regression"}, DataError, "nothing to fit"),
        (lambda y: y, {"policy": BANK}, PartyError, r"'bank' refuses by policy\.min-rows: asked: "
         r"splits of 380 samples .* 250 samples on each side .* policy\.min-rows=190 or less"),
    ],
)  # fmt: skip
def test_labels_and_policies_that_cannot_be_used(data, change, settings, error, says):
    with pytest.raises(error, match=says):
        fit(data[0], change(data[1]), **settings)


def test_the_arbiter_compares_a_round_once():
    node = SimpleNamespace(name="arbiter", cache={}, state={"node.trees.compared": 7})
    with pytest.raises(ProtocolError, match="compared once"):
        CompareSteps(node).compare(7, [], np.zeros((3, 0, 0, 5), np.uint8))


def test_the_arbiter_refuses_parties_that_were_told_different_things(monkeypatch):
    node = SimpleNamespace(name="arbiter", cache={}, state={})
    steps, keys = CompareSteps(node), {"bank": bytes(32), "court": bytes(range(32))}
    monkeypatch.setattr(CompareSteps, "seeds", lambda *_, **__: keys)
    marks, shares = np.zeros((1, 4), dtype=bool), np.zeros((3, 1, 4, 5), np.uint8)

    def parcels(number, *pads):
        return [
            seal(key, pack(marks, np.full(4, pad, np.uint64)), place_of(name, number))
            for (name, key), pad in zip(keys.items(), pads, strict=True)
        ]

    assert steps.compare(1, parcels(1, 5, 5), shares)["count"] == [0]
    with pytest.raises(ProtocolError, match="2 seeds of the pads of round 2"):
        steps.compare(2, parcels(2, 5, 6), shares)


def test_rows_in_blocks_and_on_disk_make_the_same_trees(data, hidden, monkeypatch):
    monkeypatch.setattr(masked_store, "SEND_BYTES", 1 << 15)
    monkeypatch.setattr(scratch, "HOLD_BYTES", 1)
    monkeypatch.setattr(secret_shares, "_HOLD_BYTES", 1)  # helpers make key streams anew
    monkeypatch.setattr(node_sums, "BLOCK_BYTES", 1 << 14)
    kept = []
    write = scratch.ScratchFile.write
    keep = lambda self, at, rows: (kept.append(rows), write(self, at, rows))  # noqa: E731
    monkeypatch.setattr(scratch.ScratchFile, "write", keep)
    made, rows_at = [], streams.KeyStream.rows_at
    few = lambda self, rows: (made.append(len(rows)), rows_at(self, rows))[1]  # noqa: E731
    monkeypatch.setattr(streams.KeyStream, "rows_at", few)
    result = fit(*data)
    assert made  # below the roots rows of the smaller siblings alone
    width = max(rows.shape[1] for rows in kept)
    assert sum(len(rows) for rows in kept) == 4 * N  # anew after levels were sorted
    assert max(len(rows) for rows in kept if rows.shape[1] == width) == (1 << 15) // (8 * width)
    np.testing.assert_array_equal(result.predictor.value, hidden[0].predictor.value)
    np.testing.assert_array_equal(result.predictor.party, hidden[0].predictor.party)


def looks_uniform(words):
    """Whether the highest four bits of numbers are spread evenly; keys are fresh in each run."""
    cells = np.bincount((np.asarray(words).ravel() >> np.uint64(60)).astype(int), minlength=16)
    return stats.chisquare(cells).pvalue > 1e-9


def test_what_passes_the_server_is_uniform_or_sealed(hidden):
    """And no party gets a gradient under a mask whose seed it has."""
    messages = {"up": [], "down": []}
    for record in hidden[1]:
        kind = VALUES if record.direction == "up" else ARGUMENTS
        messages[record.direction].append(decode(record.content, kind))
    names = {name for values in messages["up"] for name in values}
    assert {"owner", "owned_slopes", "helped_slopes", "parcel", "masked", "left"} <= names
    assert not names & {"helper", "legal"}
    blinded = [v["blinded"] for v in messages["up"] if "blinded" in v]
    messages["up"] += [{"shares under pads": from_wire(v) << np.uint64(24)} for v in blinded]
    for name in ("owner", "owned_slopes", "helped_slopes", "masked", "shares under pads"):
        words = [np.asarray(v[name]).ravel() for v in messages["up"] if name in v]
        assert looks_uniform(np.concatenate(words)), name
        if name != "shares under pads":  # of 40 bits, two may be alike
            assert np.unique(np.concatenate(words)).size == sum(map(len, words)), name
    assert not any("signs" in values for values in messages["down"])  # of monotone columns alone
    masked = [v["masked_gradients"] for v in messages["down"] if "masked_gradients" in v]
    assert masked
    assert not any("rho" in v for v in messages["down"] if "masked_gradients" in v)
    assert looks_uniform(np.concatenate([np.asarray(own).ravel() for own in masked]))
    slopes = [np.asarray(v["slopes"]).ravel() for v in messages["down"] if "slopes" in v]
    assert looks_uniform(np.concatenate(slopes))


def test_helped_slopes_travel_for_one_of_two_siblings(hidden):
    """Those of owners for each node: each has a half of a slope and a pad of its own."""
    kinds = {"down": ARGUMENTS, "up": VALUES}
    asked, told = (
        [decode(record.content, kind) for record in hidden[1] if record.direction == direction]
        for direction, kind in kinds.items()
    )
    levels = {(int((a["direct"] >= 0).sum()), len(a["active"])) for a in asked if "slopes" in a}
    sent = {(len(v["helped_slopes"]), len(v["owned_slopes"])) for v in told if "owned_slopes" in v}
    assert sent == levels
    assert any(n < m for n, m in levels)


def test_no_party_takes_gradients_under_a_mask_and_its_seed():
    """Nor the seed where it should get the gradients: halves are told by who comes first."""
    steps = secret_shares.ShareSteps(SimpleNamespace(name="bank", cache={}, state={}))
    masked, seed = np.zeros((2, 1, 3), dtype=np.uint64), bytes(32)
    for names, given in (("ab", (masked, seed)), ("ab", (None, seed)), ("ba", (masked, b""))):
        parties = ["bank", "court"] if names == "ab" else ["court", "bank"]
        with pytest.raises(ProtocolError, match="each gets one of the two"):
            steps._begin(parties, *given)
    assert steps._begin(["bank", "court"], masked, b"")
    assert not steps._begin(["bank", "court"], None, b"")


def test_the_arbiter_finds_the_best_and_no_divisor():
    """20 nodes of 200 candidates, sums of 1,000 rows; signs and sizes are in test_attacks_trees."""
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
    pads = rng.integers(0, 2**64, (3, *shape), dtype=np.uint64)
    theirs = factors.blinded(*other) + noise(bytes(range(32)), limits, 200)
    sent = from_wire(to_wire(coarse(theirs + factors.unplaced(pads))))
    passed = to_wire(factors.placed(coarse(factors.blinded(*own)) + sent))
    total = opened(from_wire(passed), pads)
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

    # No divisor is left that a gcd would find.
    found = [np.gcd.reduce(row.view(np.int64)) for row in coarse(total)[1]]
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


@pytest.mark.parametrize(
    ("direct", "parent"), [([0, -1], [1, 1]), ([-1, -1], [0, 0]), ([0, 1, -1], [0, 0, 0])]
)
def test_nodes_follow_from_parents_and_siblings_that_there_are(direct, parent):
    made = np.zeros((sum(q >= 0 for q in direct), 3), dtype=np.uint64)
    with pytest.raises(ProtocolError, match="do not follow from a level of 1 nodes"):
        secret_shares.with_siblings(
            made, np.array(direct), np.array(parent), np.zeros((1, 3), np.uint64)
        )


def test_what_follows_from_other_things_is_not_sent():
    """Of complete columns a slot less, and no candidate of missing cells; of nodes a bit a row."""
    n, rng = 4_000, np.random.default_rng(5)
    whole = {k: pd.DataFrame(rng.normal(size=(n, 2)), columns=[f"{k}0", f"{k}1"]) for k in "ab"}
    lacking = {k: table.mask(rng.random(table.shape) < 0.01) for k, table in whole.items()}
    labels = (whole["a"]["a0"] > whole["b"]["b0"]).astype(float)
    sent = {}
    for name, tables in (("whole", whole), ("lacking", lacking)):
        result = fit(tables, labels, n_trees=1, max_depth=1, validation_share=0.0)
        frame = result.ledger.to_frame().groupby("step")[["bytes_up", "bytes_down"]].sum()
        sent[name] = frame.loc[["send_masked", "share", "compare", "route"]]
    more = sent["lacking"] - sent["whole"]
    slots, candidates = 4 * 12, 4 * 23  # and of complete columns 4 * 11 of each
    assert more.loc["send_masked", "bytes_up"] == pytest.approx(8 * n * (slots - 44), abs=99)
    assert more.loc["compare", "bytes_down"] == pytest.approx(15 * (candidates - 44), abs=99)
    share = 32 * (slots - 44) + 15 * (candidates - 44)  # of sums, slopes, blinded numbers
    assert more.loc["share", "bytes_up"] == pytest.approx(share, abs=99)
    down = sent["whole"]["bytes_down"]
    assert down["share"] == pytest.approx(16 * n + 2 * n / 8, rel=0.1)
    assert down["route"] < n / 8
