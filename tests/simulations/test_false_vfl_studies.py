"""The scripts around FALSE-VFL: Isolet as its experiments have it, the search, the attacks."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import DataError
from simulations.data import Sources
from simulations.false_vfl import attacks, search
from simulations.false_vfl.data import draw_labelled, draw_mask, load_isolet, to_blocks
from strategies.false_vfl.strategy import FalseVFL
from tests.kit.isolet_like import write_isolet


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A file like Isolet's, with 1,000 samples."""
    folder = tmp_path_factory.mktemp("data")
    write_isolet(folder, 1000)
    return Sources(folder)


def test_isolet_is_split_as_the_paper_has_it(sources):
    data = load_isolet(sources)
    assert [table.shape for table in data.train.values()] == [(800, 77)] * 8
    assert [table.shape for table in data.test.values()] == [(200, 77)] * 8
    assert set(data.train_labels) == set(range(26))
    names = [name for table in data.train.values() for name in table.columns]
    assert names == [f"f{i}" for i in range(1, 617)]  # the last column is dropped
    first = data.train["party-0"]
    np.testing.assert_allclose(first.mean(), 0, atol=1e-12)
    np.testing.assert_allclose(first.std(ddof=0), 1, rtol=1e-12)
    labelled, aligned = draw_labelled(800, seed=1)
    assert (len(set(labelled)), len(set(aligned))) == (500, 100)
    assert set(aligned) < set(labelled)
    mask = draw_mask(data.train, "MCAR 5", 0, aligned)
    assert not mask[aligned].any()
    assert not mask.all(axis=1).any()
    assert mask.mean() == pytest.approx(0.5 * 700 / 800, abs=0.02)
    block = to_blocks(data.train, mask)["party-3"]
    held = np.flatnonzero(~mask[:, 3])
    np.testing.assert_array_equal(np.flatnonzero(block.row >= 0), held)
    np.testing.assert_allclose(
        block.x[block.row[held]], data.train["party-3"].to_numpy()[held], rtol=1e-6
    )


def test_a_file_with_other_columns_is_refused(tmp_path):
    (tmp_path / "isolet").mkdir()
    pd.DataFrame({"f1": [0.0], "class": [1]}).to_csv(tmp_path / "isolet" / "isolet.csv")
    with pytest.raises(DataError, match=r"lacks the columns \['f2', 'f3'.*expected f1..f617"):
        load_isolet(Sources(tmp_path))


def test_the_search_writes_a_line_for_each_stop(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(Sources, "find", lambda data: sources)
    where = tmp_path / "search.csv"
    few = ["--only", "party layers 1", "--stops", "1", "2", "--epochs", "1"]
    search.main(["--output", str(where), *few, "--tests", "MCAR 0", "MNAR 7", "--draws", "2"])
    found = pd.read_csv(where)
    assert found["pretrain_epochs"].tolist() == [1, 2]
    assert found["loss"].diff()[1] < 0
    assert found["party_layers"].tolist() == [1, 1]
    np.testing.assert_allclose(found["mean"], found[["MCAR 0", "MNAR 7"]].mean(axis=1), atol=0.06)


def test_attacks_find_what_sums_do_not_hide_and_nothing_in_shuffled_rows():
    strategy = FalseVFL(
        pretrain_epochs=12,
        epochs=2,
        h_dim=8,
        z_dim=3,
        width=16,
        pretrain_batch_size=64,
        pretrain_learning_rate=1e-2,
    )
    found = attacks.attack(attacks.look(strategy, 360, 0), known=30, seed=0)
    server, infer, learn = found.iloc[:3], found.iloc[3], found.iloc[4]
    assert server["found"].iloc[0] > 0.6  # samples of one party alone: the sum hides nothing
    assert (server["chance"] < 0.15).all()
    assert infer["found"] > 0.7
    assert 0.3 < infer["chance"] < 0.7
    # A party's own columns tell less of another's than these with the posterior.
    assert learn["found"] > learn["own"] + 0.1
    assert learn["chance"] < 0.15
