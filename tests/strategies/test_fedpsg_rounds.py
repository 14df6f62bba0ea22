"""What a run costs, what every node sees, and what a party refuses."""

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from repeating import every_sum_twice

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from simulations.attacks.recording import PRODUCTS, record
from simulations.attacks.suite import RULED, attack_run
from simulations.attacks.views import SERVER
from strategies.fedpsg import FedPSGAR, comparison, strategy
from strategies.fedpsg.run_plan import told_of_rows

STEPS = [
    "prepare",
    "seal_group_seed",
    "send_masked",
    "open_products",
    "send_masked",
    "open_products",
    "generate",
    "complete",
]


def tables(n=900, parties=2, seed=0):
    rng = np.random.default_rng(seed)
    ids = [f"s{i:04}" for i in range(n)]
    common = rng.normal(size=n)
    found = {
        name: pd.DataFrame(
            {
                f"{name}.number": (100 * (common + rng.normal(size=n))).round(3),
                f"{name}.count": rng.poisson(np.exp(0.3 * common + 0.5)).astype(float),
                f"{name}.level": np.array(list("uvw"))[np.digitize(common, [-0.5, 0.5])],
            },
            index=ids,
        )
        for name in ("bank", "court", "shop")[:parties]
    }
    return {name: t.iloc[200 * k : n - 150 * k] for k, (name, t) in enumerate(found.items())}


def rounds_of(result):
    return result.ledger.to_frame().drop_duplicates("round")["step"].tolist()


@pytest.mark.parametrize("parties", [2, 3])
def test_a_run_takes_eight_rounds(parties):
    result = simulate(FedPSGAR(n_associated=2), tables(parties=parties), progress=False)
    assert rounds_of(result) == ["hello", "share_ids", *STEPS]
    assert result.ledger.rounds == 10


def test_without_anything_to_associate_two_rounds_are_left():
    result = simulate(FedPSGAR(n_associated=0), tables(), progress=False)
    assert rounds_of(result) == ["hello", "share_ids", "prepare", "complete"]
    got = result.tables["court"]
    assert not got.isna().any().any()
    # Every completed sample is the same: the column's mean and most frequent level.
    assert len(got.iloc[-200:].drop_duplicates()) == 1


def test_eight_bytes_a_row_and_column_travel_under_the_key_stream():
    for n in (900, 1800):
        result = simulate(FedPSGAR(n_associated=1), tables(n), progress=False)
        frame = result.ledger.to_frame()
        sent = frame[frame["step"] == "send_masked"].groupby("round")["bytes_up"].sum()
        scores = 2 * 3 * 8 * n
        assert scores < sent.iloc[0] < scores + 1000
        # Two parties, two pairs, and as many groups of values as the shared rows allow.
        groups = result.model["rules"].groupby(["party"])[["source value", "value"]].max() + 1
        indicators = 8 * n * int(groups.to_numpy().sum())
        assert indicators <= sent.iloc[1] < indicators + 1000


@pytest.fixture(scope="module", params=[2, 3])
def recorded(request):
    """A run, and to which pairs the columns of both sets of products belong."""
    labels, opened = [], comparison.Comparison._opened

    def noted(self, products, of_columns):
        labels.append(of_columns)
        return opened(self, products, of_columns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison.Comparison, "_opened", noted)
        run = record(FedPSGAR(n_associated=2), tables(parties=request.param))
    return run, labels


def test_no_attack_finds_a_cell_at_the_server(recorded):
    for finding in attack_run(recorded[0]):
        if finding.view == SERVER or finding.attack in RULED:
            assert finding.cells == 0.0, finding


def moments_of(run):
    return [w.values for w in run.worked if w.step == PRODUCTS]


def test_the_server_opens_wanted_products_alone(recorded):
    """Own moments are not told, and what belongs to two pairs is random."""
    run, labels = recorded
    counted = 0
    for number, (opened, of_columns) in enumerate(zip(moments_of(run), labels, strict=True)):
        assert not np.asarray(opened["sums"]).any()
        products = np.asarray(opened["products"])
        held = products.any(axis=(0, 1))  # of a group's parties
        together = of_columns[:, None] == of_columns
        for of_group in products:
            found = of_group != 0.0
            apart = found & ~together
            counted += apart.sum()
            # Uniform modulo 2^64: no number occurs twice, none is whole.
            lower = of_group[np.tril(apart)]
            assert len(np.unique(lower)) == len(lower)
            assert (np.abs(lower - np.rint(lower)) > 1e-9).all()
            if number:  # counts
                told = of_group[found & together]
                np.testing.assert_allclose(told, np.rint(told), atol=1e-9)
        assert held.all()
    assert counted > 10


def cheating(monkeypatch, **replaced):
    for name, value in replaced.items():
        monkeypatch.setattr(comparison, name, value)


def test_a_party_refuses_other_rows_than_it_ranked(monkeypatch):
    """Ranks among few rows, told of as sums over all, would compare these few."""

    def fewer(group, mask, names, minimum):
        few = np.full_like(group, -1)
        few[np.flatnonzero(group == 0)[:2]] = 0
        return told_of_rows(few, mask, names, minimum)

    cheating(monkeypatch, told_of_rows=fewer)
    with pytest.raises(PartyError, match="over other rows than those"):
        simulate(FedPSGAR(n_associated=2), tables(), progress=False)


def test_a_party_refuses_wrong_labels_of_its_columns(monkeypatch):
    original = comparison.Comparison._opened

    def joined(self, products, labels):
        return original(self, products, np.zeros_like(labels))

    monkeypatch.setattr(comparison.Comparison, "_opened", joined)
    with pytest.raises(PartyError, match="belong to others than they do"):
        simulate(FedPSGAR(n_associated=2), tables(parties=3), progress=False)


def test_different_labels_open_noise(monkeypatch):
    """A party that is told others' columns belong elsewhere spoils the sum for the server."""
    honest = record(FedPSGAR(n_associated=2), tables())
    tell = comparison.Comparison._tell

    def differently(self, values):
        tell(self, values)
        if comparison.LABELS in values:
            labels = values[comparison.LABELS].copy()
            labels[-1] = 99  # of the last party's columns, as the first one is told
            self.federation.update(self.names[0], {comparison.LABELS: labels})

    monkeypatch.setattr(comparison.Comparison, "_tell", differently)
    spoilt = record(FedPSGAR(n_associated=2), tables())
    right, wrong = (np.asarray(moments_of(run)[0]["products"]) for run in (honest, spoilt))
    other = right[right != 0.0] - wrong[right != 0.0]
    assert (np.abs(other) > 1e-3).all()


def test_a_party_tells_nothing_of_samples_that_the_other_has(monkeypatch):
    def all_rows(pairs, names, mask):
        return [np.flatnonzero(~mask.any(axis=1))[:50] for _ in pairs]

    monkeypatch.setattr(strategy, "rows_of_pairs", all_rows)
    with pytest.raises(PartyError, match="only those that it lacks"):
        simulate(FedPSGAR(n_associated=2), tables(), progress=False)


def written(folder):
    """Nodes on disk, which agree to tell of samples that others lack."""
    given = {name: t.rename_axis("id") for name, t in tables().items()}
    return given, Nodes(folder, given)


def test_what_is_told_of_single_samples_is_in_the_ledger(tmp_path):
    given, nodes = written(tmp_path)
    nodes.state(policy_exchanges="generated")
    strategy = FedPSGAR(n_associated=2)
    result = nodes.run(strategy)
    (entry,) = nodes.entries("bits")
    assert entry["n_rows"] == len(given["bank"]) - len(given["court"])
    # One of so many groups of values or none, of each attribute.
    groups = result.model["rules"].groupby("attribute")["value"].max() + 1
    assert entry["bits"] == pytest.approx(np.log2(groups + 1).sum())
    assert entry["receiver"] == "court"
    assert nodes.entries("bits", "court") == []
    # A sample less at the court: the difference of both runs' counts would be of it alone.
    nodes.write(given | {"court": given["court"].iloc[1:]})
    nodes.refused("min-rows", strategy)


def test_nodes_that_have_not_agreed_tell_of_no_single_sample(tmp_path):
    _, nodes = written(tmp_path)
    nodes.state(policy_exchanges="generated", policy_openings=1.0)
    nodes.refused("openings", FedPSGAR(n_associated=2))
    nodes.state(policy_exchanges=None, policy_openings=None)
    nodes.refused("exchanges", FedPSGAR(n_associated=2))


def test_every_sum_can_be_asked_for_twice():
    with every_sum_twice() as repetition:
        simulate(FedPSGAR(n_associated=2), tables(), progress=False)
    assert "open_products" in repetition.steps
    assert not repetition.differences


# -- bad input ---------------------------------------------------------------------------------


def test_one_party_alone_is_refused():
    with pytest.raises(DataError, match="'bank' is alone"):
        simulate(FedPSGAR(), {"bank": tables()["bank"]}, progress=False)


@pytest.mark.parametrize("variant", ["ar", "ag", "cag"])
def test_parties_with_fewer_attributes_than_rules_may_generate(variant):
    given = {name: table.iloc[:, :2] for name, table in tables().items()}
    result = simulate(FedPSGAR(variant=variant), given, progress=False)
    exact = simulate(FedPSGAR(n_associated=2, variant=variant), given, progress=False)
    told = "n_associated is 5, but of the parties that lack samples 'court' has 2 attr"
    assert result.notes[0].startswith(told)
    assert not any("n_associated" in note for note in exact.notes)
    for name, table in exact.tables.items():
        pd.testing.assert_frame_equal(result.tables[name], table)


def test_no_shared_samples():
    given = tables()
    given = {"bank": given["bank"].iloc[:240], "court": given["court"].iloc[:350]}
    with pytest.raises(DataError, match=r"shares too few samples .* 40, .* fewer than 100"):
        simulate(FedPSGAR(n_associated=1), given, progress=False)


def test_counts_all_below_the_minimum():
    ids = [f"s{i}" for i in range(150)]
    level = np.random.default_rng(0).choice(["x", "y"], size=150)
    given = {"a": pd.DataFrame({"a": level}, index=ids), "b": pd.DataFrame({"b": level}, index=ids)}
    given["b"] = given["b"].iloc[:110]
    with pytest.raises(DataError, match="every count of a pair of values is below 100"):
        simulate(FedPSGAR(n_associated=1), given, progress=False)


def test_a_party_of_constants_has_no_rules():
    given = tables()
    for name in given["court"].columns:
        given["court"][name] = given["court"][name].iloc[0]
    result = simulate(FedPSGAR(n_associated=2), given, progress=False)
    assert any("largest absolute rank correlation" in note for note in result.notes)
    rows = result.tables["court"]
    assert (rows["court.level"] == given["court"]["court.level"].iloc[0]).all()
    np.testing.assert_allclose(rows["court.number"], given["court"]["court.number"].iloc[0])


def test_a_column_without_a_value_in_the_samples_that_take_part():
    given = {name: table.copy() for name, table in tables().items()}
    given["bank"].loc[given["court"].index, "bank.count"] = np.nan
    with pytest.raises(PartyError, match=r"column 'bank\.count': no row that takes part"):
        simulate(FedPSGAR(n_associated=1), given, progress=False, align_rows="intersection")


def test_levels_that_are_new_fall_back_to_the_column_and_are_counted():
    rng = np.random.default_rng(0)
    level = rng.choice(["x", "y"], size=600)
    level[500:] = "new"
    ids = [f"s{i}" for i in range(600)]
    a = pd.DataFrame({"level": level}, index=ids)
    b = pd.DataFrame({"value": (level == "x") * 2.0 + rng.random(600)}, index=ids)[:400]
    result = simulate(FedPSGAR(n_associated=1), {"a": a, "b": b}, progress=False, min_rows=20)
    assert result.metrics["cells-without-rule"] == 100.0
    assert result.metrics["cells-by-rules"] == 100.0
    found = result.tables["b"]["value"].loc[ids[500:]]
    np.testing.assert_allclose(found, b["value"].mean())
    assert any("100 cells were to be generated" in note for note in result.notes)


def test_settings_are_checked():
    for wrong in ({"rule": "best"}, {"bins": 1}, {"n_associated": -1}, {"threshold": 1.0}):
        with pytest.raises(ConfigError):
            FedPSGAR(**wrong)
