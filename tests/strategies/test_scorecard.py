"""Scorecards of parties that lack rows, against pandas and statsmodels on the pooled table."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from ledgered import Nodes

from flwr_vertical import Result, Table, simulate
from flwr_vertical.errors import DataError, PartyError
from strategies.binning.bins import fit_column_bins
from strategies.binning.woe import merge_bins
from strategies.explore import Explore
from strategies.normal import labelled_server
from strategies.predict import Predict
from strategies.scorecard import Scorecard
from strategies.scorecard.card import LEAST_EVENTS, PointScale, merged_labels, reasons
from strategies.scorecard.opening import BinnedColumns

N = 1500
PLAIN = Scorecard(penalty="none")


def make(seed=0, missing=0.4):
    rng = np.random.default_rng(seed)
    ids = [f"s{i:04}" for i in range(N)]
    income = rng.normal(size=N)
    work = rng.choice(["none", "part", "full"], N, p=[0.2, 0.3, 0.5])
    calls = rng.poisson(2.0, N).astype(float)
    eta = -1.0 - 0.8 * income + 0.9 * (work == "none") + 0.4 * (calls - 2.0)
    lacks = rng.random(N) < missing * (0.5 + (eta > -1.0))  # missing is informative
    y = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(float)
    income[rng.random(N) < 0.1] = np.nan
    bank = pd.DataFrame({"income": income, "work": work}, index=ids)
    phone = pd.DataFrame({"calls": calls, "age": rng.normal(40, 9, N)}, index=ids)[~lacks]
    truth = pd.Series(y, index=ids, name="default")
    return {"bank": bank, "phone": phone}, truth.where(np.arange(N) >= 200), truth


@pytest.fixture(scope="module")
def data():
    return make()


@pytest.fixture(scope="module")
def fitted(data):
    return simulate(PLAIN, *data[:2])


@pytest.fixture(scope="module")
def on_disk(data, tmp_path_factory):
    """The result of nodes with files, and what they have beside it."""
    folder = tmp_path_factory.mktemp("nodes")
    result = Nodes(folder, data[0]).run(PLAIN, data[1])
    return result, lambda name: pd.read_parquet(next(folder.rglob(f"{name}.parquet")))


def pooled(tables, labels, card=PLAIN):
    """Weights of evidence of all samples, counted by pandas; of each party by itself."""
    columns = {}
    known = labels.dropna().index
    for party, frame in tables.items():
        bins = fit_column_bins(Table.of(frame), card.bins)
        numbers = pd.DataFrame(
            bins.numbers(Table.of(frame), party), index=frame.index, columns=frame.columns
        )
        own = labels.reindex(frame.index)
        for j, name in enumerate(frame):
            by = own.groupby(numbers[name])
            n, e = by.count().to_numpy(float), by.sum().to_numpy()
            merged = merge_bins(n, e, bins.n_proper[j], bins.nominal[j], 0.05, LEAST_EVENTS)
            bin_of = pd.Series(merged[numbers[name]], index=frame.index)
            good, bad = (own == 0).groupby(bin_of).sum(), (own == 1).groupby(bin_of).sum()
            woe = np.log(good / good.sum()) - np.log(bad / bad.sum())
            columns[party, name] = bin_of.map(woe).reindex(labels.index).fillna(0.0)
        held = pd.Series(labels.index.isin(frame.index), index=labels.index)
        if not held[known].all():
            good, bad = ((labels == k).groupby(held).sum() for k in (0, 1))
            columns[party, "rows held"] = held.map(
                np.log(good / good.sum()) - np.log(bad / bad.sum())
            )
    return pd.DataFrame(columns)


def test_card_and_scores_are_those_of_the_pooled_table(data, fitted):
    tables, labels, _ = data
    x = pooled(tables, labels)
    known = labels.notna()
    fit = sm.GLM(
        labels[known].to_numpy(), sm.add_constant(x[known].to_numpy()), sm.families.Binomial()
    ).fit(tol=1e-12)
    estimates = fitted.coefficients["estimate"]
    np.testing.assert_allclose(estimates, fit.params, atol=2e-5)
    np.testing.assert_allclose(fitted.coefficients["std_error"], fit.bse, rtol=1e-4)
    assert list(estimates.index[1:]) == list(x.columns)
    new = sm.add_constant(x[~known].to_numpy(), has_constant="add")
    eta = new @ fit.params
    scores = PointScale(600.0, 50.0, 20.0).score(eta)
    # Two terms, each rounded to some hundredth of the working deviation.
    np.testing.assert_allclose(fitted.predictions["score"], scores, atol=1.5)
    assert len(fitted.predictions) == 200
    table = fitted.scorecard
    for column, evidence in x.items():
        found = np.unique(evidence[known].round(9))
        own = table.loc[column]
        assert set(found) - {0.0} <= set(own["woe"].round(9))
        rates = own["events"] / own["n"]
        np.testing.assert_allclose(own["event_rate"], rates)
        assert own["n"].sum() == known[tables[column[0]].index].sum() or column[1] == "rows held"


def test_points_add_up_to_the_score(data, on_disk):
    fitted, own = on_disk
    tables = data[0]
    both = data[1].index[:200].intersection(tables["phone"].index)
    base = fitted.scorecard.loc[("model", "base", ""), "points"]
    held = fitted.scorecard.loc[("phone", "rows held", "held"), "points"]
    points = {name: own(f"{name}.points") for name in tables}
    total = base + sum(points[name].loc[both, "points"] for name in tables)
    np.testing.assert_allclose(fitted.predictions.loc[both, "score"], total, atol=1.5)
    assert (points["phone"]["rows held"] == held).all()
    alone = data[1].index[:200].difference(tables["phone"].index)
    absent = fitted.scorecard.loc[("phone", "rows held", "absent"), "points"]
    found = base + absent + points["bank"].loc[alone, "points"]
    np.testing.assert_allclose(fitted.predictions.loc[alone, "score"], found, atol=1.5)


def test_owners_know_their_limits_and_the_server_does_not(fitted, on_disk):
    found, own = on_disk
    bins = own("bank.bins")
    income = bins[bins["column"] == "income"]
    assert income["bin"].iloc[0].startswith("(-inf, ")
    assert income["bin"].iloc[-1] == "missing"
    told = found.scorecard.loc[("bank", "income")]
    np.testing.assert_allclose(told["points"], income["points"])
    pd.testing.assert_frame_equal(found.scorecard, fitted.scorecard)
    simulated = fitted.frames["bins of bank"]
    pd.testing.assert_frame_equal(simulated, bins)
    assert len(fitted.frames["points of phone"]) == len(own("phone.points"))
    assert not any("," in label for label in told.index)
    assert set(found.scorecard.loc[("bank", "work")].index) == {"none", "part", "full"}


def test_reasons_are_what_costs_most(on_disk):
    fitted, own = on_disk
    points = own("phone.points")
    best = fitted.scorecard.loc["phone"]["points"].groupby("column").max()
    lost = best[["calls", "age"]] - points[["calls", "age"]]
    expected = lost.idxmax(axis=1).where(lost.max(axis=1) > 1e-9, "")
    assert (points["reason_1"] == expected).mean() > 0.99
    found = reasons(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([3.0, 5.0]), ["a", "b"])
    assert found.to_numpy().tolist() == [["a", ""], ["", ""]]


def test_new_rows_are_scored_by_the_same_card(data, fitted, caplog):
    tables, labels, _ = data
    new = labels.index[:200]
    some = {name: frame.loc[frame.index.intersection(new)] for name, frame in tables.items()}
    found = simulate(Predict(fitted), some)
    pd.testing.assert_frame_equal(
        found.predictions.sort_index(), fitted.predictions.sort_index(), check_names=False
    )
    assert "did not know" not in caplog.text
    unlike, gap = (some | {"bank": some["bank"].assign(work=level)} for level in ("new", None))
    scores = [simulate(Predict(fitted), new).predictions for new in (unlike, gap)]
    pd.testing.assert_frame_equal(*scores)
    assert "column 'work': 200 cells have a level that the fit did not know" in caplog.text


def test_all_labelled_samples_are_in_the_fit(data, fitted):
    assert fitted.metrics["n_samples"] == data[1].notna().sum()
    assert fitted.metrics["rows_left_out"] == 0


def test_bic_leaves_out_what_tells_nothing(data):
    found = simulate(Scorecard(penalty="scad"), *data[:2])
    estimates = found.coefficients["estimate"]
    assert estimates["phone", "age"] == 0.0
    assert (found.scorecard.loc[("phone", "age"), "points"] == 0.0).all()
    assert estimates["bank", "income"] < -0.5


def test_special_values_are_bins_of_their_own(data):
    tables, labels, _ = data
    bank = tables["bank"].assign(income=tables["bank"]["income"].fillna(-99.0))
    found = simulate(Scorecard(special=(-99.0,)), {**tables, "bank": bank}, labels)
    own = found.scorecard.loc[("bank", "income")]
    assert own.loc["-99", "n"] == (bank["income"][labels.notna()] == -99.0).sum()


def test_missing_cells_without_an_event_are_named(data, fitted):
    """Half an event: their evidence is no less than that of the best range, and finite."""
    tables, labels, truth = data
    income = tables["bank"]["income"].mask((truth == 0.0) & (np.arange(N) % 5 == 0))
    income[truth == 1.0] = income[truth == 1.0].fillna(0.0)
    given = {**tables, "bank": tables["bank"].assign(income=income)}
    result = simulate(PLAIN, given, labels)
    own = result.scorecard.loc[("bank", "income")]
    assert own.loc["missing", "events"] == 0 < own.loc["missing", "n"]
    assert own["woe"].idxmax() == "missing"
    assert np.isfinite(own["points"]).all()
    [note] = [note for note in result.notes if "half an event" in note]
    assert "['bank.income: missing']" in note
    assert not any("half an event" in note for note in fitted.notes)


def test_stability_tells_which_columns_moved(data):
    tables, labels, _ = data
    phone = tables["phone"].copy()
    labels = labels.where(np.arange(N) >= 600)
    phone.loc[phone.index[labels[phone.index].isna()], "age"] += 15.0
    found = simulate(Scorecard(bins=5), {**tables, "phone": phone}, labels)
    psi = found.stability["psi"]
    assert psi["phone", "age"] > 0.25
    assert psi["phone", "calls"] < 0.1


def test_rounds(fitted):
    evaluations = fitted.metrics["iterations"]
    assert 2 + 8 + 2 * evaluations <= fitted.ledger.rounds <= 2 + 8 + 3 * evaluations


def test_a_saved_card_scores_new_rows(data, fitted, tmp_path):
    tables, labels, _ = data
    some = {name: frame.loc[frame.index.isin(labels.index[:200])] for name, frame in tables.items()}
    saved = Result.load(fitted.save(tmp_path / "card"))
    pd.testing.assert_frame_equal(saved.scorecard, fitted.scorecard)
    found = simulate(Predict(saved), some, fitted=fitted).predictions
    pd.testing.assert_frame_equal(
        found.sort_index(), fitted.predictions.sort_index(), check_names=False
    )


def test_a_server_that_says_otherwise_who_has_rows_opens_nothing(data, fitted, monkeypatch):
    tell = BinnedColumns.__call__

    def lying(self, *arguments):
        key = tell(self, *arguments)
        who = key.further["bank"]["who"].copy()
        who[:, 1] = 1
        key.further["bank"]["who"] = who
        return key

    monkeypatch.setattr(BinnedColumns, "__call__", lying)
    try:
        found = simulate(PLAIN, *data[:2]).coefficients["estimate"]
    except (DataError, PartyError, np.linalg.LinAlgError):
        return  # products of columns are uniform numbers
    assert np.abs(found - fitted.coefficients["estimate"]).max() > 1.0


def test_parties_refuse_small_sets_whatever_the_server_takes(data, monkeypatch):
    tables, labels, _ = data
    phone = make(missing=0.0)[0]["phone"].iloc[:-30]
    everyone = {"bank": tables["bank"], "phone": phone}
    assert simulate(PLAIN, everyone, labels).metrics["rows_left_out"] == 30
    large_sets = labelled_server.large_sets
    monkeypatch.setattr(labelled_server, "large_sets", lambda mask, needed: large_sets(mask, 1))
    with pytest.raises(PartyError, match="30 of its rows alone"):
        simulate(PLAIN, everyone, labels)


def test_labels_are_checked(data):
    tables, labels, _ = data
    with pytest.raises(DataError, match="0 and 1"):
        simulate(PLAIN, tables, labels + 1.0)


def test_a_column_that_tells_the_labels_has_one_bin(data, fitted):
    tables, labels, truth = data
    told = tables | {"bank": tables["bank"].assign(repaid=1.0 - truth)}
    notes = simulate(PLAIN, told, labels).notes
    assert any("['bank.repaid'] have one bin" in note for note in notes)
    assert not any("one bin" in note for note in fitted.notes)


def test_few_rows_are_refused(data):
    tables, labels, _ = data
    few = labels.where(np.arange(N) < 260)
    with pytest.raises((DataError, PartyError), match="min-rows"):
        simulate(PLAIN, tables, few)


def test_columns_that_are_not_withheld_are_not_said_to_be(data):
    tables, _, _ = data
    shared = tables["phone"].index[:240]
    few = {name: frame.loc[shared, frame.columns[:1]] for name, frame in tables.items()}
    chance = pd.Series(np.arange(240) % 2, shared, dtype=float)
    with pytest.raises(DataError, match="no column has points: 2 have one bin") as caught:
        simulate(Scorecard(), few, chance)
    assert "withheld" not in str(caught.value)


def test_merged_bins_have_names():
    merged = np.array([0, 0, 1, 2])
    assert merged_labels(["1 of 3", "2 of 3", "3 of 3", "missing"], merged, False) == [
        *("1-2 of 3", "3 of 3", "missing")
    ]
    ranges = ["(-inf, 1]", "(1, 2.5]", "(2.5, inf)", "missing"]
    assert merged_labels(ranges, merged, False) == ["(-inf, 2.5]", "(2.5, inf)", "missing"]
    assert merged_labels(["a", "b", "c", "other"], merged, True) == ["a | b", "c", "other"]
    levels = ["(0, 10]", "(10, 20]", "(20, 30]"]  # text that somebody cut
    apart = merged_labels(levels, np.array([0, 1, 0]), True)
    assert apart == ["(0, 10] | (20, 30]", "(10, 20]"]


def test_a_scorecard_after_exploring_with_labels_says_why_it_has_no_points(data, tmp_path):
    tables, labels, _ = data
    shared = tables["phone"].index.intersection(labels.dropna().index)[:280]
    few = {name: frame.loc[shared] for name, frame in tables.items()}
    nodes = Nodes(tmp_path, few)
    nodes.run(Explore(), labels[shared])
    with pytest.raises(DataError, match=r"no column has points: 4 of 4 are withheld, .*'explore'"):
        nodes.run(Scorecard(), labels[shared])
