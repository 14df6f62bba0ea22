"""Imputed cells beside the column's mean and the party alone, against held-out and true values."""

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.metrics import r2_score, root_mean_squared_error

from flwr_vertical import Result, Table, load_demo, simulate
from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete import hide_cells, put_back
from flwr_vertical.results.imputation import (
    imputation_metrics,
    imputation_quality,
    imputed_columns,
    worse_than_mean,
)
from strategies.baselines import Mean
from strategies.copula import VCDS
from strategies.fknn import FKNN


@pytest.fixture(scope="module")
def demo():
    return load_demo("wine", missing_blocks=0.1)


@pytest.fixture(scope="module")
def held_out(demo):
    return simulate(FKNN(), demo.parties, hold_out=0.1, beside_single_parties=True)


@pytest.fixture
def mixed():
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "n": rng.integers(0, 40, n),
            "flag": rng.random(n) < 0.5,
            "town": rng.choice(["Kiel", "Ulm", "北京"], n),
            "kind": pd.Categorical(rng.choice(["a", "b"], n)),
        },
        index=[f"s{i}" for i in range(n)],
    )
    return frame.mask(rng.random(frame.shape) < 0.05).astype({"n": "Int64"}), frame


def test_quality_by_hand():
    given = pd.DataFrame({"x": [1.0, 3.0, None, None], "c": ["u", "u", "v", None]})
    after = pd.DataFrame({"x": [1.0, 3.0, 5.0, 2.0], "c": ["u", "u", "v", "v"]})
    truth = pd.DataFrame({"x": [1.0, 3.0, 4.0, 4.0], "c": ["u", "u", "v", "v"]})
    alone = pd.DataFrame({"x": [1.0, 3.0, 4.0, 4.0], "c": ["u", "u", "v", "u"]})
    columns = imputed_columns({"p": given}, {"p": after}, {"p": truth})
    found = imputation_quality(columns, {"p": alone})
    x, c = found.loc[("p", "x")], found.loc[("p", "c")]
    assert x["rmse"] == pytest.approx(np.sqrt((1 + 4) / 2))
    assert x["rmse_mean"] == pytest.approx(2.0)  # the mean is 2, the truth is 4
    assert x["skill"] == pytest.approx(1 - 2.5 / 4)
    assert (x["rmse_alone"], x["skill_alone"]) == (0.0, 1.0)
    assert (c["accuracy"], c["accuracy_mode"], c["accuracy_alone"]) == (1.0, 0.0, 0.0)
    assert (c["skill"], c["skill_alone"]) == (1.0, 0.0)
    merits = imputation_metrics(found)
    assert merits["imputation_skill"] == pytest.approx((2 * 0.375 + 1) / 3)
    assert merits["imputation_skill_alone"] == pytest.approx(2 / 3)


def test_levels_of_many_digits_are_told_apart():
    given = pd.DataFrame({"code": [1000001.0, 1000001.0, 1000002.0, None]})
    after, truth = given.fillna(1000001.0), given.fillna(1000002.0)
    found = imputation_quality(imputed_columns({"p": given}, {"p": after}, {"p": truth}))
    assert found.loc[("p", "code"), "accuracy"] == 0.0


def test_numbers_that_are_names_of_levels_are_right_or_wrong():
    rng = np.random.default_rng(0)
    z = rng.normal(size=120)
    codes = np.array([11, 47, 93])[np.digitize(z, [-0.5, 0.5])]
    truth = pd.DataFrame({"code": codes, "u": z})
    parties = {"a": truth.mask(rng.random((120, 1)) < [0.2, 0.0]), "b": pd.DataFrame({"v": z})}
    kinds, both = {"a": {"code": "categorical"}}, {"a": truth}
    result = simulate(FKNN(), parties, kinds=kinds, truth=both, progress=False)
    gone = parties["a"]["code"].isna()
    right = (result.tables["a"]["code"] == codes)[gone].mean()
    assert result.imputation.loc[("a", "code"), "accuracy"] == pytest.approx(right)
    assert "rmse" not in result.imputation
    assert result.party_metrics["a"]["share_right"] == pytest.approx(right)
    held_out = simulate(FKNN(), parties, kinds=kinds, hold_out=0.2, progress=False)
    assert 0.5 < held_out.imputation.loc[("a", "code"), "accuracy"] <= 1.0


def test_constant_cells_have_no_skill():
    given = pd.DataFrame({"x": [0.1, 0.1, 0.1, None, None], "y": [0.0, 1.0, 2.0, None, None]})
    truth = given.fillna({"x": 0.1, "y": 3.0})
    after = truth.assign(x=truth["x"] + 1e-16)
    found = imputation_quality(imputed_columns({"p": given}, {"p": after}, {"p": truth}))
    assert np.isnan(found.loc[("p", "x"), "skill"])
    assert found.loc[("p", "y"), "skill"] == 1.0


def test_skill_is_r2_against_the_observed_mean_as_scikit_learn_has_it(demo):
    result = simulate(Mean(), demo.parties, truth=demo.complete)
    for (party, column), row in result.imputation.iterrows():
        given = demo.parties[party][[column]]
        rows = demo.complete[party].index
        filled = SimpleImputer().fit(given).transform(given.reindex(rows))[:, 0]
        gap = given.reindex(rows)[column].isna().to_numpy(copy=True)
        # Samples that no party holds are in no table.
        gap &= rows.isin(result.tables[party].index)
        true = demo.complete[party][column].to_numpy()
        assert row["cells"] == gap.sum()
        assert row["rmse"] == pytest.approx(root_mean_squared_error(true[gap], filled[gap]))
        assert row["skill"] == pytest.approx(0.0, abs=1e-9)
        assert r2_score(true[gap], filled[gap]) <= 0.0
    assert result.notes == []  # no better than the mean, and no worse


def test_held_out_cells_are_compared_and_put_back(held_out, demo):
    for party, given in demo.parties.items():
        after = held_out.tables[party]
        pd.testing.assert_frame_equal(
            after.loc[given.index].where(given.notna()), given, check_dtype=False
        )
        assert after.notna().all(axis=None)
        pd.testing.assert_frame_equal(held_out.originals[party], given)
    found = held_out.imputation
    assert len(found) == 13
    assert found["cells"].between(13, 18).all()  # a tenth of the known cells of each column
    assert held_out.metrics["imputation_skill"] > held_out.metrics["imputation_skill_alone"] > 0
    assert held_out.settings["hold_out"] == 0.1


def test_columns_that_the_mean_would_have_filled_better_are_named(held_out):
    bad = held_out.imputation[held_out.imputation["skill"] < 0]
    named = [note for note in held_out.notes if "imputed worse" in note]
    assert len(named) == (len(bad) > 0)
    for party, column in bad.index[:5]:
        assert f"{column!r} of {party!r}" in named[0]
    rows = pd.DataFrame(
        {"cells": [50, 50, 5], "skill": [-0.5, 0.5, -0.9]},
        index=pd.MultiIndex.from_tuples([("p", "a"), ("p", "b"), ("p", "few")]),
    )
    (note,) = worse_than_mean(rows)
    assert note.startswith("1 of 3 columns are imputed worse")
    assert "'a' of 'p'" in note


def test_the_report_and_a_saved_result_have_the_comparison(held_out, tmp_path):
    page = held_out.report(tmp_path / "r.html").read_text()
    for part in ("Imputed against true values", "rmse_alone", "Cells were held out", "hold_out"):
        assert part in page
    held_out.save(tmp_path / "saved")
    again = Result.load(tmp_path / "saved")
    pd.testing.assert_frame_equal(again.imputation, held_out.imputation)
    assert (again.call, again.version) == ("FKNN()", held_out.version)
    assert again.finished.endswith("UTC")


def test_hidden_cells_leave_levels_kinds_and_rows_and_come_back(mixed):
    given, _ = mixed
    table = Table.of(given)
    shown = hide_cells(table, 0.3, "7", "p")
    assert shown.kinds == table.kinds
    hidden = shown.frame.isna() & table.frame.notna()
    share = hidden.sum() / table.frame.notna().sum()
    assert share.between(0.25, 0.31).all()
    assert shown.frame.notna().any(axis=1).all()
    for name in ("town", "kind", "flag"):
        assert set(shown.frame[name].dropna()) == set(table.frame[name].dropna())
    again = hide_cells(table, 0.3, "7", "p")
    pd.testing.assert_frame_equal(again.frame, shown.frame)
    assert not hide_cells(table, 0.3, "8", "p").frame.equals(shown.frame)
    # What a run makes of it: all cells filled, and a row that others had.
    after = shown.frame.copy()
    for name in after:
        after[name] = after[name].fillna(after[name].mode().iloc[0])
    back = put_back(after, table)
    for name, known in ((n, table.frame[n].dropna()) for n in after):
        assert list(back.loc[known.index, name]) == list(known)
    assert back.notna().all(axis=None)
    assert {n: after[n].dtype for n in ("town", "x")} == {n: back[n].dtype for n in ("town", "x")}


def test_whole_numbers_are_whole_again():
    given = pd.DataFrame({"n": np.arange(50)})
    after = pd.DataFrame({"n": np.arange(50.0) + np.where(np.arange(50) % 5, 0.0, 0.25)})
    table = Table.of(given)
    assert put_back(after, table)["n"].dtype == given["n"].dtype
    more = pd.concat([after, pd.DataFrame({"n": [0.5]}, index=[77])])
    back = put_back(more, table)
    assert back["n"].iloc[-1] == 0.5
    assert (back["n"].iloc[:50] == given["n"]).all()


def test_large_whole_numbers_that_were_hidden_come_back_to_the_last_digit():
    rng = np.random.default_rng(0)
    ids = [f"c{i}" for i in range(120)]
    large = rng.integers(2**53, 2**62, size=120)
    unsigned = large.astype(np.uint64) + np.uint64(2**63)
    gaps = pd.Series(large, ids).astype("Int64").where(rng.random(120) > 0.1)
    bank = pd.DataFrame({"all": large, "unsigned": unsigned, "gaps": gaps}, ids)
    court = pd.DataFrame({"x": rng.normal(size=121)}, [*ids, "new"])  # whose sample the bank gets
    made = simulate(FKNN(), {"bank": bank, "court": court}, hold_out=0.2)
    for name in bank:
        known = bank[name].dropna()
        assert made.tables["bank"].loc[known.index, name].tolist() == known.tolist()


@pytest.mark.parametrize("share", [-0.1, 0.6, 1.0])
def test_a_share_out_of_range_is_refused(demo, share):
    with pytest.raises(ConfigError, match=r"must be in \(0, 0.5\]"):
        simulate(Mean(), demo.parties, hold_out=share)


def test_a_strategy_that_imputes_nothing_says_so():
    demo = load_demo("wine", missing_cells=0, missing_blocks=0)
    result = simulate(VCDS(), demo.parties, hold_out=0.05)
    assert result.imputation is None
    assert any("fills no cell in" in note for note in result.notes)
    whole = simulate(VCDS(), demo.parties)  # nothing is hidden for nothing
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(result.tables[name], table)
