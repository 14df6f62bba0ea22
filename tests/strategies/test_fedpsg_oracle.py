"""Rank correlations, counts and generated values are those of the pooled table."""

import numpy as np
import pandas as pd
import pytest
from oracles import fedpsg as oracle

from flwr_vertical import simulate
from strategies.fedpsg import FedPSGAR


def tables(n=700, seed=3, parties=2):
    """Numbers, counts and levels with many ties, related across parties; each lacks samples."""
    rng = np.random.default_rng(seed)
    ids = [f"s{i:04}" for i in range(n)]
    common = rng.normal(size=n)
    level = pd.Series(np.array(["low", "mid", "high"])[np.digitize(common, [-0.6, 0.7])])
    bank = pd.DataFrame(
        {
            "income": 50 + 10 * common + 15 * rng.normal(size=n),
            "loans": rng.poisson(np.exp(0.3 + 0.5 * common)),
            "class": level,
            "flag": rng.random(n) < 0.3,
        }
    ).set_index(pd.Index(ids))
    shop = pd.DataFrame(
        {
            "visits": rng.poisson(np.exp(0.7 - 0.4 * common)),
            "tier": np.where(common + 0.3 * rng.normal(size=n) > 0, "gold", "iron"),
            "grade": np.digitize(common + rng.normal(size=n), [-1.0, 0.0, 1.0]),
        },
        index=ids,
    )
    town = pd.DataFrame(
        {"age": np.rint(40 + 5 * common + 5 * rng.normal(size=n)), "kids": rng.poisson(1, n)},
        index=ids,
    )
    found = {"bank": bank.iloc[60:], "shop": shop.iloc[: n - 150], "town": town.iloc[10 : n - 90]}
    return dict(list(found.items())[:parties])


def run(strategy, given, **kwargs):
    return simulate(strategy, given, **({"progress": False, "min_rows": 1} | kwargs))


def correlations(result, a, b):
    table = result.model["correlations"]
    chosen = table[(table["party"] == a) & (table["other party"] == b)]
    return chosen.pivot_table(
        index="attribute", columns="other attribute", values="correlation", sort=False
    )


@pytest.fixture(scope="module")
def two():
    given = tables()
    return given, run(FedPSGAR(n_associated=3), given)


@pytest.fixture(scope="module")
def three():
    given = tables(parties=3)
    return given, run(FedPSGAR(n_associated=2, bins=200), given)


@pytest.mark.parametrize("which", ["two", "three"])
def test_rank_correlations_are_spearmans(which, request):
    given, result = request.getfixturevalue(which)
    names = list(given)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            expected = oracle.spearman(given[a], given[b])
            found = correlations(result, a, b).loc[given[a].columns, given[b].columns]
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_papers_formula_holds_without_ties_only():
    given = tables()
    income, visits = given["bank"]["income"], given["shop"]["visits"]
    shared = income.index.intersection(visits.index)
    exact = oracle.spearman(income[shared].to_frame(), visits[shared].to_frame())[0, 0]
    assert abs(oracle.formula_2(income[shared], visits[shared]) - exact) > 0.003
    untied = visits[shared] + np.random.default_rng(0).random(len(shared))
    exact = oracle.spearman(income[shared].to_frame(), untied.to_frame())[0, 0]
    assert oracle.formula_2(income[shared], untied) == pytest.approx(exact, abs=1e-12)


def test_pairs_are_those_of_the_papers_loop(two):
    given, result = two
    rules = result.model["rules"]
    for target, table in given.items():
        expected = [
            (table.columns[column], given[source].columns[at])
            for column, source, at in oracle.pairs(given, target, 3)
        ]
        mine = rules[rules["party"] == target]
        found = mine[["attribute", "source attribute"]].drop_duplicates()
        assert [tuple(row) for row in found.to_numpy()] == expected


@pytest.mark.parametrize("which", ["two", "three"])
def test_counts_are_those_of_a_cross_tabulation(which, request):
    """Of attributes of few values, which are their own groups."""
    given, result = request.getfixturevalue(which)
    checked = 0
    grouped = result.model["rules"].groupby(
        ["party", "attribute", "source party", "source attribute"], sort=False
    )
    for (target, attribute, source, other), cells in grouped:
        a, b = given[source][other], given[target][attribute]
        shared = a.index.intersection(b.index)
        if max(a[shared].nunique(), b[shared].nunique()) > 15:
            continue
        expected = pd.crosstab(a[shared], b[shared])
        found = cells.pivot_table(index="source value", columns="value", values="samples")
        np.testing.assert_array_equal(found.fillna(0), expected)
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("which", ["two", "three"])
def test_arg_max_values_are_those_of_the_pooled_table(which, request):
    given, result = request.getfixturevalue(which)
    checked = 0
    rules = result.model["rules"]
    for target, table in given.items():
        mine = rules[rules["party"] == target]
        for attribute in mine["attribute"].unique():
            first = mine[mine["attribute"] == attribute].iloc[0]
            source = given[first["source party"]][first["source attribute"]]
            if max(source.nunique(), table[attribute].nunique()) > 15:
                continue
            expected = oracle.generated(source, table[attribute])
            found = result.tables[target].loc[expected.index, attribute]
            assert (found == expected).all()
            checked += len(expected)
    assert checked > 60


def test_own_samples_stay_and_completed_ones_stand_behind(two):
    given, result = two
    for name, table in given.items():
        got = result.tables[name]
        pd.testing.assert_frame_equal(got.iloc[: len(table)], table, check_dtype=False)
        everyone = set().union(*(other.index for other in given.values()))
        assert set(got.index) == everyone
        assert got.index.is_unique
        assert not got.isna().any().any()
        assert list(got.dtypes) == list(table.dtypes)


def test_the_mean_is_the_mean_given_the_sources_group():
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(400)]
    group = rng.integers(0, 3, size=400)
    a = pd.DataFrame({"group": np.array(["x", "y", "z"])[group]}, index=ids)
    b = pd.DataFrame({"value": group + rng.integers(0, 4, size=400) / 2.0}, index=ids)[:300]
    result = run(FedPSGAR(n_associated=1, rule="mean"), {"a": a, "b": b})
    means = b["value"].groupby(a["group"][:300]).mean()
    found = result.tables["b"]["value"].loc[ids[300:]]
    # Shares are rounded to 1/255 of at most 9 values that span 3.5.
    np.testing.assert_allclose(found, a["group"][300:].map(means), atol=9 * 3.5 / 255 / 2)


def test_draws_follow_the_values_given_the_source():
    rng = np.random.default_rng(1)
    ids = [f"s{i}" for i in range(4000)]
    a = pd.DataFrame({"x": rng.integers(0, 2, size=4000)}, index=ids)
    b = pd.DataFrame({"y": rng.random(4000) + 0.5 * a["x"]})[:2000]
    result = run(FedPSGAR(n_associated=1, rule="draw"), {"a": a, "b": b})
    found = result.tables["b"]["y"].loc[ids[2000:]]
    for value, drawn in found.groupby(a["x"][2000:]):
        expected = b["y"][a["x"][:2000] == value]
        # Four standard errors of a mean of 1,000 uniform numbers, and those of the sample.
        assert drawn.mean() == pytest.approx(expected.mean(), abs=0.06)
        assert drawn.std() == pytest.approx(expected.std(), abs=0.03)


@pytest.mark.parametrize("mode", ["plain", "ckks"])
def test_modes_agree(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    given = {name: table.iloc[:, [1]] for name, table in tables(300).items()}
    ours, theirs = (
        run(FedPSGAR(n_associated=1, bins=3), given, aggregation=which).model
        for which in ("masked", mode)
    )
    for name in ("correlations", "rules"):
        pd.testing.assert_frame_equal(theirs[name], ours[name], atol=1e-6, rtol=0)


def test_who_lacks_nothing_gets_no_further_row():
    given = tables()
    shared = given["bank"].index.intersection(given["shop"].index)
    full = {name: table.loc[shared] for name, table in given.items()}
    result = run(FedPSGAR(n_associated=3), full)
    for name, table in full.items():
        pd.testing.assert_frame_equal(result.tables[name], table, check_dtype=False)
    assert any("no party lacks a sample" in note for note in result.notes)
