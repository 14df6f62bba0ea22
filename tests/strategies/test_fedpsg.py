"""Association rules: groups, pairs and rules; against the pooled table; rounds; refusals."""

import itertools

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from oracles import fedpsg as oracle

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from simulations.attacks.recording import PRODUCTS, record
from strategies.fedpsg import FedPSGAR, comparison, run_plan, strategy
from strategies.fedpsg.association_rules import (
    NONE,
    STEPS,
    draw_groups,
    group_values,
    indicators,
    kept_counts,
    rest_values,
    shares,
    values_of_groups,
    values_of_sources,
    weights_of,
    with_rule,
)
from strategies.fedpsg.attribute_pairs import Pair, choose_pairs, rows_of_pairs
from strategies.fedpsg.run_plan import told_of_rows


def ruled(**more):
    """Rules as in the paper; the mean of the column elsewhere."""
    return FedPSGAR(**{"variant": "ar", "imputer": "mean", **more})


TWO = ruled(n_associated=2)
SHORT = ["hello", "share_ids", "prepare", "complete"]
ROUNDS = [
    *SHORT[:3], "seal_group_seed", "send_masked", "open_products", "send_masked", "open_products",
    "generate", "complete",
]  # fmt: skip


# -- groups of values, rules, pairs ------------------------------------------------------------


def rng():
    return np.random.default_rng(5)


def test_bins_are_quantiles_and_keep_equal_values_together():
    values = np.concatenate([rng().normal(size=970), np.zeros(200), [np.nan] * 30])
    groups = group_values(values, numeric=True, most=10, minimum=50)
    numbers = groups.numbers(values)
    assert (numbers[np.isnan(values)] == NONE).all()
    assert len(set(numbers[values == 0.0])) == 1
    counts = np.bincount(numbers[numbers >= 0])
    assert counts.min() >= 50
    assert len(groups) <= 10
    assert counts.sum() == 1170
    # As pandas cuts them, but for the bin that the ties make large.
    free = rng().permutation(1000).astype(float)
    expected = pd.qcut(free, 10, labels=False)
    np.testing.assert_array_equal(group_values(free, True, 10, 1).numbers(free), expected)


def test_few_numbers_have_a_bin_each_and_rare_ones_join_a_neighbour():
    values = np.repeat([1.0, 2.0, 5.0, 9.0], [40, 3, 40, 2])
    groups = group_values(values, numeric=True, most=20, minimum=10)
    assert [set(m) for m in groups.members] == [{1.0}, {2.0, 5.0, 9.0}]
    exact = group_values(values, numeric=True, most=20, minimum=1)
    numbers = exact.numbers(np.array([1.0, 2, 5, 9, 100, -3]))
    np.testing.assert_array_equal(numbers, [0, 1, 2, 3, 3, 0])
    np.testing.assert_array_equal(exact.medians, [1, 2, 5, 9])
    assert group_values(values[:3], True, 20, 10).members == ()
    for seed in range(20):
        generator, minimum = np.random.default_rng(seed), 1 + 6 * (seed % 2)
        values = np.rint(generator.exponential(3, size=generator.integers(minimum, 80)))
        groups = group_values(values, True, 6, minimum)
        counts = np.bincount(groups.numbers(values), minlength=len(groups))
        assert counts.min() >= minimum
        assert counts.sum() == len(values)
        assert [len(m) for m in groups.members] == list(counts)


def test_levels_keep_the_commonest_and_none_that_is_rare():
    codes = np.repeat([0.0, 1.0, 2.0, 3.0], [50, 5, 30, 40])
    groups = group_values(codes, numeric=False, most=2, minimum=10)
    numbers = groups.numbers(np.array([0.0, 1.0, 2.0, 3.0, 7.0, np.nan]))
    np.testing.assert_array_equal(numbers, [0, NONE, NONE, 1, NONE, NONE])
    np.testing.assert_array_equal(indicators(numbers[:4], 2), [[1, 0], [0, 0], [0, 0], [0, 1]])


def test_shares_are_those_of_a_cross_tabulation():
    a, b = rng().integers(0, 4, size=(2, 500))
    counts = pd.crosstab(a, b)
    expected = pd.crosstab(a, b, normalize="index")
    np.testing.assert_allclose(shares(counts.to_numpy()), expected, atol=1e-15)
    kept = kept_counts(counts.to_numpy(), 30)
    assert ((kept == 0) | (kept >= 30)).all()
    assert kept.max() == counts.to_numpy().max()
    assert (shares(np.zeros((2, 3), dtype=int)) == 0).all()


def test_largest_shares_are_chosen_and_ties_at_random():
    counts = np.array([[5, 9, 9, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    weights = weights_of(counts, "argmax")
    np.testing.assert_array_equal(weights, [[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    drawn = draw_groups(weights, np.repeat([0, 1, 2, NONE], 500), rng())
    first = np.bincount(drawn[:500], minlength=4)
    assert first[[0, 3]].sum() == 0
    assert 200 < first[1] < 300
    assert (drawn[500:1000] == NONE).all()
    assert (drawn[1000:1500] == 0).all()
    assert (drawn[1500:] == NONE).all()


def test_draws_follow_the_shares():
    counts = np.array([[10, 70, 20], [0, 0, 40]])
    weights = weights_of(counts, "draw")
    np.testing.assert_allclose(weights / STEPS, shares(counts), atol=0.5 / STEPS)
    drawn = draw_groups(weights, np.zeros(20_000, dtype=int), rng())
    found = np.bincount(drawn, minlength=3) / 20_000
    np.testing.assert_allclose(found, [0.1, 0.7, 0.2], atol=0.015)  # four standard deviations
    assert (draw_groups(weights, np.ones(50, dtype=int), rng()) == 2).all()
    ruled = with_rule(np.array([[1, 0], [0, 0]]), np.array([0, 1, NONE]))
    np.testing.assert_array_equal(ruled, [0, NONE, NONE])


def test_values_stand_for_groups():
    values = np.array([1.0, 2.0, 3.0, 10.0, 30.0])
    groups = group_values(values, numeric=True, most=2, minimum=2)
    assert [list(m) for m in groups.members] == [[1.0, 2.0], [3.0, 10.0, 30.0]]
    medians = values_of_groups(groups, np.array([0, 1, NONE]), False, rng())
    np.testing.assert_array_equal(medians, [1.0, 10.0, np.nan])
    drawn = values_of_groups(groups, np.ones(60, dtype=int), True, rng())
    assert set(drawn) == {3.0, 10.0, 30.0}
    weights = np.array([[1, 3], [0, 0], [2, 1]], dtype=np.uint16)
    sources = np.array([0, 1, 2, NONE])
    np.testing.assert_allclose(
        values_of_sources(groups, weights, sources, "continuous"),
        [(1.5 + 3 * 43 / 3) / 4, np.nan, (2 * 1.5 + 43 / 3) / 3, np.nan],
    )
    for kind in ("ordinal", "categorical"):
        likeliest = values_of_sources(groups, weights, sources[[0, 2]], kind)
        np.testing.assert_array_equal(likeliest, [10.0, 1.0])
    # The rest follows the column alone.
    seen = np.array([1.0, 1.0, 4.0])
    assert list(rest_values(seen, 2, True, False, rng())) == [2.0, 2.0]
    assert list(rest_values(seen, 2, False, False, rng())) == [1.0, 1.0]
    assert set(rest_values(seen, 200, True, True, rng())) == {1.0, 4.0}


def test_pairs_are_the_largest_correlations_whatever_their_sign():
    correlations = {
        ("a", "b"): np.array([[0.1, -0.9, 0.0], [0.2, 0.3, np.nan]]),
        ("a", "c"): np.array([[0.5], [0.4]]),
        ("b", "c"): np.array([[0.7], [-0.1], [0.6]]),
    }
    found = choose_pairs(correlations, ["a", "b", "c"], ["b", "c"], 2)
    assert found == [
        Pair("b", 1, "a", 0, -0.9),
        Pair("b", 1, "c", 0, -0.1),
        Pair("b", 0, "c", 0, 0.7),
        Pair("b", 0, "a", 1, 0.2),
        Pair("c", 0, "b", 0, 0.7),
        Pair("c", 0, "a", 0, 0.5),
    ]
    few = choose_pairs(correlations, ["a", "b", "c"], ["b"], 3, threshold=0.65)
    assert few == [Pair("b", 1, "a", 0, -0.9), Pair("b", 0, "c", 0, 0.7)]
    # A sample is generated by the first party that has it.
    found = [Pair("b", 0, "c", 0, 0.7), Pair("b", 0, "a", 1, 0.2), Pair("b", 1, "a", 0, 0.1)]
    mask = np.array([[0, 1, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=bool)
    rows = rows_of_pairs(found, ["a", "b", "c"], mask)
    assert [list(r) for r in rows] == [[0, 2], [1], [0, 1]]


# -- against the pooled table ------------------------------------------------------------------


def related(n=700, parties=2):
    """Numbers, counts and levels with many ties, related across parties; each lacks samples."""
    rng = np.random.default_rng(3)
    ids = [f"s{i:04}" for i in range(n)]
    common = rng.normal(size=n)
    bank = pd.DataFrame(
        {
            "income": 50 + 10 * common + 15 * rng.normal(size=n),
            "loans": rng.poisson(np.exp(0.3 + 0.5 * common)),
            "class": np.array(["low", "mid", "high"])[np.digitize(common, [-0.6, 0.7])],
            "flag": rng.random(n) < 0.3,
        },
        ids,
    )
    shop = pd.DataFrame(
        {
            "visits": rng.poisson(np.exp(0.7 - 0.4 * common)),
            "tier": np.where(common + 0.3 * rng.normal(size=n) > 0, "gold", "iron"),
            "grade": np.digitize(common + rng.normal(size=n), [-1.0, 0.0, 1.0]),
        },
        ids,
    )
    town = pd.DataFrame(
        {"age": np.rint(40 + 5 * common + 5 * rng.normal(size=n)), "kids": rng.poisson(1, n)}, ids
    )
    found = {"bank": bank.iloc[60:], "shop": shop.iloc[: n - 150], "town": town.iloc[10 : n - 90]}
    return dict(list(found.items())[:parties])


@pytest.fixture(scope="module", params=[2, 3])
def pooled(request):
    given = related(parties=request.param)
    chosen = {"n_associated": 3} if request.param == 2 else {"n_associated": 2, "bins": 200}
    return given, simulate(ruled(**chosen), given, min_rows=1)


def test_rank_correlations_are_spearmans(pooled):
    given, result = pooled
    table = result.model["correlations"].set_index(["party", "other party"])
    for a, b in itertools.combinations(given, 2):
        found = table.loc[(a, b)].pivot_table(
            index="attribute", columns="other attribute", values="correlation", sort=False
        )
        expected = oracle.spearman(given[a], given[b])
        np.testing.assert_allclose(
            found.loc[given[a].columns, given[b].columns], expected, atol=1e-6
        )


def test_pairs_counts_and_arg_max_values_are_those_of_the_pooled_table(pooled):
    """Of the paper's loop and a cross-tabulation; of attributes of few values, their own groups."""
    given, result = pooled
    rules, counted, generated = result.model["rules"], 0, 0
    for target, table in given.items():
        mine = rules[rules["party"] == target]
        if len(given) == 2:
            expected = [
                (table.columns[column], given[source].columns[at])
                for column, source, at in oracle.pairs(given, target, 3)
            ]
            found = mine[["attribute", "source attribute"]].drop_duplicates()
            assert [tuple(row) for row in found.to_numpy()] == expected
        first = {}
        by = ["attribute", "source party", "source attribute"]
        for (attribute, source, other), cells in mine.groupby(by, sort=False):
            a, b = given[source][other], table[attribute]
            first.setdefault(attribute, a)
            shared = a.index.intersection(b.index)
            if max(a[shared].nunique(), b[shared].nunique()) > 15:
                continue
            expected = pd.crosstab(a[shared], b[shared])
            found = cells.pivot_table(index="source value", columns="value", values="samples")
            np.testing.assert_array_equal(found.fillna(0), expected)
            counted += 1
        for attribute, source in first.items():
            if max(source.nunique(), table[attribute].nunique()) > 15:
                continue
            expected = oracle.generated(source, table[attribute])
            assert (result.tables[target].loc[expected.index, attribute] == expected).all()
            generated += len(expected)
    assert counted >= 2
    assert generated > 60


def test_own_samples_stay_and_completed_ones_stand_behind(pooled):
    given, result = pooled
    for name, table in given.items():
        got = result.tables[name]
        pd.testing.assert_frame_equal(got.iloc[: len(table)], table, check_dtype=False)
        assert set(got.index) == set().union(*(other.index for other in given.values()))
        assert got.index.is_unique
        assert not got.isna().any().any()
        assert list(got.dtypes) == list(table.dtypes)
    # Who lacks nothing gets no further row.
    shared = sorted(set.intersection(*(set(table.index) for table in given.values())))
    full = {name: table.loc[shared] for name, table in given.items()}
    result = simulate(ruled(n_associated=3), full, min_rows=1)
    for name, table in full.items():
        pd.testing.assert_frame_equal(result.tables[name], table, check_dtype=False)
    assert any("no party lacks a sample" in note for note in result.notes)


def test_the_mean_is_the_mean_given_the_sources_group():
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(400)]
    group = rng.integers(0, 3, size=400)
    a = pd.DataFrame({"group": np.array(["x", "y", "z"])[group]}, index=ids)
    b = pd.DataFrame({"value": group + rng.integers(0, 4, size=400) / 2.0}, index=ids)[:300]
    result = simulate(ruled(n_associated=1, rule="mean"), {"a": a, "b": b}, min_rows=1)
    means = b["value"].groupby(a["group"][:300]).mean()
    found = result.tables["b"]["value"].loc[ids[300:]]
    # Shares are rounded to 1/255 of at most 9 values that span 3.5.
    np.testing.assert_allclose(found, a["group"][300:].map(means), atol=9 * 3.5 / 255 / 2)


def test_draws_follow_the_values_given_the_source():
    rng = np.random.default_rng(1)
    ids = [f"s{i}" for i in range(4000)]
    a = pd.DataFrame({"x": rng.integers(0, 2, size=4000)}, index=ids)
    b = pd.DataFrame({"y": rng.random(4000) + 0.5 * a["x"]})[:2000]
    result = simulate(ruled(n_associated=1, rule="draw"), {"a": a, "b": b}, min_rows=1)
    found = result.tables["b"]["y"].loc[ids[2000:]]
    for value, drawn in found.groupby(a["x"][2000:]):
        expected = b["y"][a["x"][:2000] == value]
        # Four standard errors of a mean of 1,000 uniform numbers, and those of the sample.
        assert drawn.mean() == pytest.approx(expected.mean(), abs=0.06)
        assert drawn.std() == pytest.approx(expected.std(), abs=0.03)


@pytest.mark.parametrize("mode", ["plain", pytest.param("ckks", marks=pytest.mark.slow)])
def test_modes_agree(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    given = {name: table.iloc[:, [1]] for name, table in related(300).items()}
    ours, theirs = (
        simulate(ruled(n_associated=1, bins=3), given, aggregation=which, min_rows=1).model
        for which in ("masked", mode)
    )
    for name in ("correlations", "rules"):
        pd.testing.assert_frame_equal(theirs[name], ours[name], atol=1e-6, rtol=0)


# -- rounds, and what nodes see ----------------------------------------------------------------


def tables(n=900, parties=2):
    rng = np.random.default_rng(0)
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


def test_without_anything_to_associate_two_rounds_are_left():
    result = simulate(FedPSGAR(imputer="mean"), tables())
    assert rounds_of(result) == SHORT
    made = result.tables["court"]
    assert not made.isna().any().any()
    # Every completed sample is the same: the column's mean and most frequent level.
    assert len(made.iloc[-200:].drop_duplicates()) == 1


def test_eight_bytes_a_row_and_column_travel_under_the_key_stream():
    for n in (900, 1800):
        result = simulate(ruled(n_associated=1), tables(n))
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
        run = record(TWO, tables(parties=request.param))
    return run, labels


def moments_of(run):
    return [w.values for w in run.worked if w.step == PRODUCTS]


def test_the_server_opens_wanted_products_alone(recorded):
    """Own moments are not told, and what belongs to two pairs is random."""
    run, labels = recorded
    assert rounds_of(run.result) == ROUNDS
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


def test_a_party_refuses_what_a_server_may_not_ask(monkeypatch):
    """Ranks among few rows, told of as sums over all, would compare these few."""

    def fewer(group, mask, names, minimum):
        few = np.full_like(group, -1)
        few[np.flatnonzero(group == 0)[:2]] = 0
        return told_of_rows(few, mask, names, minimum)

    opened = comparison.Comparison._opened

    def joined(self, products, labels):
        return opened(self, products, np.zeros_like(labels))

    def all_rows(pairs, names, mask):
        return [np.flatnonzero(~mask.any(axis=1))[:50] for _ in pairs]

    for home, name, cheating, parties, said in (
        (comparison, "told_of_rows", fewer, 2, "over other rows than those"),
        (comparison.Comparison, "_opened", joined, 3, "belong to others than they do"),
        (strategy, "rows_of_pairs", all_rows, 2, "only those that it lacks"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(home, name, cheating)
            with pytest.raises(PartyError, match=said):
                simulate(TWO, tables(parties=parties))


def test_different_labels_open_noise(monkeypatch):
    """A party that is told others' columns belong elsewhere spoils the sum for the server."""
    honest = record(TWO, tables())
    tell = comparison.Comparison._tell

    def differently(self, values):
        tell(self, values)
        for key in {run_plan.SCORE_LABELS, run_plan.COUNT_LABELS} & set(values):
            labels = values[key].copy()
            labels[-1] = 99  # of the last party's columns, as the first one is told
            self.federation.update(self.names[0], {key: labels})

    monkeypatch.setattr(comparison.Comparison, "_tell", differently)
    spoilt = record(TWO, tables())
    right, wrong = (np.asarray(moments_of(run)[0]["products"]) for run in (honest, spoilt))
    other = right[right != 0.0] - wrong[right != 0.0]
    assert (np.abs(other) > 1e-3).all()


def test_what_is_told_of_single_samples_needs_consent_and_is_in_the_ledger(tmp_path):
    given = {name: t.rename_axis("id") for name, t in tables().items()}
    nodes = Nodes(tmp_path, given)
    nodes.refused("exchanges", TWO)
    nodes.state(policy_exchanges="generated", policy_openings=1.0)
    nodes.refused("openings", TWO)
    nodes.state(policy_openings=None)
    result = nodes.run(TWO)
    (entry,) = nodes.entries("bits")
    assert entry["n_rows"] == len(given["bank"]) - len(given["court"])
    # One of so many groups of values or none, of each attribute.
    groups = result.model["rules"].groupby("attribute")["value"].max() + 1
    assert entry["bits"] == pytest.approx(np.log2(groups + 1).sum())
    assert entry["receiver"] == "court"
    assert nodes.entries("bits", "court") == []
    # A sample less at the court: the difference of both runs' counts would be of it alone.
    nodes.write(given | {"court": given["court"].iloc[1:]})
    nodes.refused("min-rows", TWO)


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["ar", "ag", "cag"])
def test_parties_with_fewer_attributes_than_rules_may_generate(variant):
    given = {name: table.iloc[:, :2] for name, table in tables().items()}
    result = simulate(ruled(variant=variant), given)
    exact = simulate(ruled(n_associated=2, variant=variant), given)
    told = "n_associated is 5, but of the parties that lack samples 'court' has 2 attr"
    assert result.notes[0].startswith(told)
    assert not any("n_associated" in note for note in exact.notes)
    for name, table in exact.tables.items():
        pd.testing.assert_frame_equal(result.tables[name], table)


def test_tables_of_which_nothing_is_learnt_are_refused():
    given, one = tables(), ruled(n_associated=1)
    apart = {"bank": given["bank"].iloc[:240], "court": given["court"].iloc[:350]}
    level = pd.DataFrame({"a": np.random.default_rng(0).choice(["x", "y"], size=150)})
    few = {"a": level, "b": level.rename(columns={"a": "b"}).iloc[:110]}
    empty = {"bank": given["bank"].copy(), "court": given["court"]}
    empty["bank"].loc[given["court"].index, "bank.count"] = np.nan
    for parties, error, said in (
        ({"bank": given["bank"]}, DataError, "'bank' is alone"),
        (apart, DataError, r"shares too few samples .* 40, .* fewer than 100"),
        (few, DataError, "every count of a pair of values is below 100"),
        (empty, PartyError, r"column 'bank\.count': no row that takes part"),
    ):
        with pytest.raises(error, match=said):
            simulate(one, parties, align_rows="intersection" if parties is empty else "union")
    for wrong in ({"rule": "best"}, {"bins": 1}, {"n_associated": 0}, {"threshold": 1.0}):
        with pytest.raises(ConfigError):
            FedPSGAR(**wrong)


def test_a_party_of_constants_has_no_rules():
    given = tables()
    for name in given["court"].columns:
        given["court"][name] = given["court"][name].iloc[0]
    result = simulate(TWO, given)
    assert any("largest absolute rank correlation" in note for note in result.notes)
    rows = result.tables["court"]
    assert (rows["court.level"] == given["court"]["court.level"].iloc[0]).all()
    np.testing.assert_allclose(rows["court.number"], given["court"]["court.number"].iloc[0])


def test_levels_that_are_new_fall_back_to_the_column_and_are_counted():
    rng = np.random.default_rng(0)
    level = rng.choice(["x", "y"], size=600)
    level[500:] = "new"
    ids = [f"s{i}" for i in range(600)]
    a = pd.DataFrame({"level": level}, index=ids)
    b = pd.DataFrame({"value": (level == "x") * 2.0 + rng.random(600)}, index=ids)[:400]
    result = simulate(ruled(n_associated=1), {"a": a, "b": b}, min_rows=20)
    assert result.metrics["cells_without_rule"] == 100.0
    assert result.metrics["cells_by_rules"] == 100.0
    found = result.tables["b"]["value"].loc[ids[500:]]
    np.testing.assert_allclose(found, b["value"].mean())
    assert any("100 cells were to be generated" in note for note in result.notes)
