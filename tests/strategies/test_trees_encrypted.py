"""Histograms opened as sums of ciphertexts: the trees of masked products, and what is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from ledgered import Nodes
from tree_runs import SMALL, fit, make_labels, make_tables, splits_of

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError, StateLostError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES
from strategies.trees import VerticalGBDT
from strategies.trees.binning import Layout
from strategies.trees.encrypted import scheme
from strategies.trees.encrypted.party import EncryptedSteps
from strategies.trees.encrypted.rounds import slots_of
from tests.kit.blocked import Absent

OPEN = {"histograms": "open", "products": "encrypted"}


@pytest.fixture(scope="module")
def short_keys():
    """Half as long as those that are safe; skips where the library is not installed."""
    pytest.importorskip("heu.numpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheme, "KEY_BITS", 1024)
        yield


@pytest.fixture(scope="module")
def data():
    tables = make_tables()
    return tables, make_labels(tables, unlabelled=20)


def test_trees_are_those_of_masked_products(short_keys, data):
    transcript = []
    settings = {**SMALL, "n_trees": 2, "l2": 1.0, "subsample": 0.7, "colsample": 0.6}
    labels = make_labels(data[0], "multiclass", unlabelled=20)
    strategy = VerticalGBDT(objective="multiclass", **settings, **OPEN)
    found = simulate(strategy, data[0], labels, progress=False, transcript=transcript)
    other = fit(data[0], labels, objective="multiclass", histograms="open", **settings)
    for tree in range(6):
        assert splits_of(found, tree) == splits_of(other, tree)
    assert found.metrics == pytest.approx(other.metrics, rel=1e-12)
    assert other.ledger.rounds - found.ledger.rounds == 2  # of the group seed and masked slots
    for record in transcript:  # gradients are on their way as ciphertexts alone
        told = decode(record.content, VALUES if record.direction == "up" else ARGUMENTS)
        assert not set(told) & {"masked", "masked_v", "rho_v", "owner_v"}


def test_one_party_is_enough(short_keys, data):
    alone = {"bank": data[0]["bank"]}
    result = fit(alone, data[1], n_trees=1, **OPEN)
    assert result.model.loc["bank", "splits"] > 5
    again = result.predict(alone, progress=False).predictions
    np.testing.assert_array_equal(again[:20].to_numpy(), result.predictions.to_numpy())


def test_sums_are_exact_and_cannot_be_told_by_their_random_numbers(short_keys):
    rng = np.random.default_rng(0)
    g, h = rng.integers(-(2**36), 2**36, 50), rng.integers(0, 2**20, 50)
    codes = rng.integers(0, 4, (50, 2)).astype(np.int8)
    server = scheme.Server()
    content = server.encrypt(g, h)
    adder = scheme.Adder(server.public, content, 50)
    nodes = [(np.arange(50) < 30).astype(np.int8), np.zeros(50, dtype=np.int8)]
    wanted = np.zeros((2, 2, 4), dtype=bool)
    wanted[0, :, :3] = True
    sums = adder.bin_sums(codes, nodes, wanted)
    assert sums[1] == b""
    found = np.stack(server.decrypt(sums[0], 6)).reshape(2, 2, 3)
    for j in range(2):
        for b in range(3):
            rows = (codes[:30, j] == b).nonzero()[0]
            assert found[:, j, b].tolist() == [g[rows].sum(), h[rows].sum()]
    assert adder.bin_sums(codes, nodes, wanted)[0] != sums[0]
    assert [own.tolist() for own in server.decrypt(b"", 0)] == [[], []]
    with pytest.raises(ProtocolError, match="expected 7 ciphertexts, got 6"):
        server.decrypt(sums[0], 7)
    with pytest.raises(ProtocolError, match="are none"):
        server.decrypt(b"abc", 1)


def test_slots_follow_from_bins():
    bins = np.array([[1, 2, 3, 10, 20, 30]])
    found = slots_of(bins, Layout((3, 3), (False, True)))
    np.testing.assert_array_equal(found, [[1, 3, 6, 10, 20, 30, 60]])


def test_nodes_must_agree(short_keys, data, tmp_path):
    nodes = Nodes(tmp_path, data[0])
    strategy = VerticalGBDT(**{**SMALL, "n_trees": 1, "max_depth": 1}, **OPEN)
    assert strategy.exchanges_asked == ("histograms",)
    assert strategy.needs_arbiter is None
    nodes.refused("exchanges", strategy, data[1])
    nodes.state(exchanges="histograms")
    nodes.run(strategy, data[1])
    assert len([e for e in nodes.entries("bits") if "sums of gradients" in e["what"]]) == 1


def test_what_cannot_be_asked_for(data, monkeypatch):
    with pytest.raises(ConfigError, match="set histograms='open', too"):
        fit(*data, products="encrypted")
    with pytest.raises((DataError, PartyError), match="allows 126 bins of a column, got 127"):
        fit(*data, n_bins=127, **OPEN)
    lost = SimpleNamespace(name="bank", cache={}, state={}, open_exchange=lambda *_: None)
    rows = np.zeros((1, 1), dtype=np.int64)
    with pytest.raises(StateLostError, match="ended with its process"):
        EncryptedSteps(lost).add_up(rows, 1, rows[0], rows[0], np.zeros(0, np.uint8), 1)
    for name in [name for name in sys.modules if name.split(".")[0] == "heu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(["heu"]), *sys.meta_path])
    with pytest.raises(
        ConfigError, match=r"products='encrypted' needs 'heu'.*flwr-vertical\[heu\]"
    ):
        fit(*data, **OPEN)
