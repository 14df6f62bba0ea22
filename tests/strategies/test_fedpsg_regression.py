"""Regressions over parties: against rows put together, what they cost, what they tell."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from oracles import fedpsg as oracle
from scipy.stats import ks_2samp
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from sklearn.linear_model import LinearRegression

from flwr_vertical import Table, simulate
from flwr_vertical.errors import ConfigError, DataError
from simulations.attacks.recording import record
from simulations.attacks.suite import RULED, attack_run
from simulations.attacks.views import SERVER
from strategies.fedpsg import FedPSGAR
from strategies.fedpsg.regression import steps, targets
from strategies.fedpsg.regression.features import (
    RegressionColumns,
    balanced_noise,
    draw_codes,
    n_trees_of,
)
from strategies.fedpsg.regression.targets import PENALTIES, RowMoments, regress
from tests.kit.told import largest_share, record_told

MICE = FedPSGAR(imputer="mice")
N = 700


def numbers(n=N, parties=2):
    """Correlated numbers; the second party lacks the last 200 samples, a third the first 150."""
    rng = np.random.default_rng(0)
    ids = [f"s{i:04}" for i in range(n)]
    common = rng.normal(size=(n, 2))
    tables = {}
    for k, name in enumerate(("bank", "court", "shop")[:parties]):
        own = common @ rng.normal(size=(2, 3)) + 0.5 * rng.normal(size=(n, 3))
        columns = [f"{name}.{j}" for j in range(3)]
        tables[name] = pd.DataFrame(100.0 * k + 5.0 * own, index=ids, columns=columns)
    whole = {name: t.copy() for name, t in tables.items()}
    tables["court"] = tables["court"].iloc[: n - 200]
    if parties == 3:
        tables["shop"] = tables["shop"].iloc[150:]
    return tables, whole


def mixed(n=N, cells=0.0):
    """A count, a number and levels at each party, and a curve that no line follows."""
    rng = np.random.default_rng(1)
    ids = [f"s{i:04}" for i in range(n)]
    common = rng.normal(size=n)
    bank = pd.DataFrame(
        {"x": common, "town": rng.choice(["Ulm", "Gent", "Delft"], n), "age": rng.poisson(30, n)},
        index=ids,
    )
    court = pd.DataFrame(
        {
            "curve": common**2 + 0.3 * rng.normal(size=n),
            "sum": np.exp(common + 0.5 * rng.normal(size=n)),
            "level": np.array(list("uvw"))[np.digitize(common, [-0.5, 0.5])],
        },
        index=ids,
    )
    tables = {"bank": bank, "court": court.iloc[: n - 200]}
    if cells:
        tables["court"] = tables["court"].mask(rng.random((n - 200, 3)) < cells)
    return tables, court


def steps_of(result):
    return result.ledger.to_frame().drop_duplicates("round")["step"].tolist()[2:]


# -- numerics ----------------------------------------------------------------------------------


def test_coefficients_are_those_of_ridge_regression_on_rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 6)) @ rng.normal(size=(6, 6))
    rows = np.hstack([x, x @ rng.normal(size=(6, 2)) + rng.normal(size=(120, 2))])
    moments = RowMoments.of_sums(len(rows), rows.sum(axis=0), rows.T @ rows)
    found = regress(moments, np.arange(6), np.arange(6, 8))
    weights, offset, scores = oracle.ridge(rows[:, :6], rows[:, 6:], PENALTIES)
    assert found.penalty == PENALTIES[np.argmin(scores)]
    np.testing.assert_allclose(found.weights, weights, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.offset, offset, rtol=1e-7, atol=1e-9)
    left = rows[:, 6:] - rows[:, :6] @ weights - offset
    np.testing.assert_allclose(found.root @ found.root.T, left.T @ left / 120, rtol=1e-6)
    # Without anything known it is the mean.
    found = regress(moments, np.arange(0), np.arange(2))
    np.testing.assert_allclose(found.offset, rows[:, :2].mean(axis=0))
    cov = np.cov(rows[:, :2].T, bias=True)
    np.testing.assert_allclose(found.root @ found.root.T, cov, rtol=1e-9)


@pytest.mark.parametrize("drawn", [False, True])
def test_encoded_values_come_back(drawn):
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.normal(50, 9, 300), rng.poisson(2, 300), rng.integers(0, 3, 300)])
    features = RegressionColumns.fit(codes, [0, 0, 3], drawn)
    back = features.decode(features.encode(codes), [0, 1, 2])
    np.testing.assert_allclose(back[:, 1:], codes[:, 1:], atol=1e-9)
    # What is drawn is an observed value: one of 512 quantiles.
    np.testing.assert_allclose(back[:, 0], codes[:, 0], atol=3.0 if drawn else 1e-9)
    assert not drawn or np.isin(back, codes).all()
    far = features.decode(np.full((1, 5), 99.0), [0, 1, 2])
    assert far[0, 0] == codes[:, 0].max()


def test_leaves_say_which_leaf_a_sample_is_in_and_are_not_too_many():
    codes = np.random.default_rng(0).normal(size=(200, 2))
    features = RegressionColumns.fit(codes, [0, 0], False, n_trees=5)
    leaves = features.encode(codes)[:, features.attributes < 0]
    assert set(np.unique(leaves)) == {0.0, 1.0}
    np.testing.assert_array_equal(leaves.sum(axis=1), 5)
    assert n_trees_of(100, 10_000, 20) == 100
    assert 3 * (20 + 4 * n_trees_of(100, 300, 20)) <= 300
    assert n_trees_of(100, 30, 20) == 0


@pytest.fixture(scope="module")
def linear():
    """Linear predictions of a number and of three levels, one of them rare, and what is left."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 1))
    shares = np.array([0.75, 0.22, 0.03])
    slope = np.array([0.6, 0.08, -0.07, -0.01])
    predicted = np.append(0.0, shares) + x * slope
    codes = np.column_stack([rng.normal(size=400), rng.choice(3, size=400, p=shares)])
    features = RegressionColumns.fit(codes, [0, 3], drawn=True)
    left = np.zeros((4, 4))
    left[0, 0] = 0.6
    left[1:, 1:] = np.diag(shares) - np.outer(shares, shares)
    values, vectors = np.linalg.eigh(left)
    return features, predicted, vectors * np.sqrt(np.maximum(values, 0.0))


@pytest.mark.slow
def test_noise_is_balanced_and_levels_are_drawn_as_often_as_predicted(linear):
    features, predicted, root = linear
    noise = balanced_noise(predicted, np.random.default_rng(0))
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(noise.T @ noise / 400, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(predicted.T @ noise / 400, 0.0, atol=1e-12)
    few = balanced_noise(predicted[:12], np.random.default_rng(0))
    np.testing.assert_array_equal(few, np.random.default_rng(0).normal(size=(12, 4)))
    rng = np.random.default_rng(1)
    expected = predicted[:, 1:].mean(axis=0)
    draws = [draw_codes(features, predicted, [0, 1], root, rng) for _ in range(50)]
    levels = np.concatenate(draws)[:, 1].astype(int)
    found = np.bincount(levels, minlength=3) / len(levels)
    np.testing.assert_allclose(found, expected, atol=0.012)
    # Without offsets the rare level would hardly ever come.
    plain = np.tile(predicted, (50, 1)) + rng.normal(size=(len(levels), 4)) @ root.T
    assert (plain[:, 1:].argmax(axis=1) == 2).mean() < 0.4 * expected[2]
    # One row alone gets each level with its own probability, not always the likeliest.
    one = [draw_codes(features, predicted[:1], [0, 1], root, rng)[0, 1] for _ in range(300)]
    assert np.mean(np.array(one) == 0) == pytest.approx(predicted[0, 1], abs=0.08)
    # Nothing left over: nothing is drawn.
    sure = draw_codes(features, predicted, [0, 1], np.zeros((4, 4)), rng)
    np.testing.assert_array_equal(sure, features.decode(predicted, [0, 1]))


# -- against one table -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two():
    tables, _ = numbers()
    return tables, simulate(MICE, tables)


def test_predictions_are_where_chained_equations_end(monkeypatch):
    """scikit-learn goes through the attributes again and again; here the end is solved for."""
    monkeypatch.setattr(targets, "PENALTIES", np.array([1e-10]))
    tables, _ = numbers()
    result = simulate(MICE, tables)
    chained = IterativeImputer(LinearRegression(), max_iter=100, tol=1e-8, random_state=0)
    expected = chained.fit_transform(pd.concat(tables, axis=1))[-200:, 3:]
    expected = np.clip(expected, tables["court"].min(), tables["court"].max())
    np.testing.assert_allclose(result.tables["court"].iloc[-200:], expected, atol=1e-4)
    np.testing.assert_array_equal(result.tables["court"].iloc[:-200], tables["court"])
    # With three parties each sample is predicted from those who have it.
    tables, whole = numbers(parties=3)
    made = simulate(MICE, tables).tables
    x = pd.concat([whole["bank"], whole["shop"]], axis=1).to_numpy()
    fitted = LinearRegression().fit(x[150:500], whole["court"].iloc[150:500])
    expected = np.clip(fitted.predict(x[500:]), tables["court"].min(), tables["court"].max())
    ids = whole["court"].index
    np.testing.assert_allclose(made["court"].loc[ids[500:]], expected, atol=1e-4)
    # The shop lacks other samples: they are predicted from bank and court.
    error = (made["shop"].loc[ids[:150]] - whole["shop"].iloc[:150]).std()
    assert (error / whole["shop"].std()).mean() < 0.8


def test_the_default_is_ridge_regression_on_what_the_others_know_and_leaves(monkeypatch):
    """In one place: the other party's columns, but for leaves too rare to be told of."""
    made, fit, opened, solve = [], RegressionColumns.fit, [], targets.solve

    def kept(*arguments):
        made.append(fit(*arguments))
        return made[-1]

    def solved(job, told, sums):
        opened.append(sums)
        return solve(job, told, sums)

    monkeypatch.setattr(RegressionColumns, "fit", kept)
    monkeypatch.setattr(steps, "solve", solved)
    tables, _ = numbers()
    result = simulate(FedPSGAR(trees=20), tables)
    assert steps_of(result)[:2] == ["prepare", "take_up"]
    bank, court = tables["bank"].to_numpy(), tables["court"].to_numpy()
    of_bank = next(of for of in made if np.allclose(of.centre, bank.mean(axis=0)))
    of_court = next(of for of in made if np.allclose(of.centre, court.mean(axis=0)))
    (sums,) = opened
    withheld = sums.withheld.any(axis=0)[: len(of_bank.attributes)]
    assert 0 < withheld.sum() < 20 < len(withheld) - 3
    x = of_bank.encode(bank)[:, ~withheld]
    weights, offset, _ = oracle.ridge(x[:500], of_court.encode(court)[:, :3], PENALTIES)
    expected = of_court.decode(x[500:] @ weights + offset, [0, 1, 2])
    np.testing.assert_allclose(result.tables["court"].iloc[-200:], expected, atol=1e-3)


def test_five_rounds_more_and_modes_agree_but_for_ckks_which_cannot_carry_it(two):
    tables, masked = two
    assert steps_of(masked) == [
        "prepare", "take_up", "seal_group_seed", "send_masked", "open_products", "predict", "fill",
    ]  # fmt: skip
    plain = simulate(MICE, tables, aggregation="plain")
    pd.testing.assert_frame_equal(plain.tables["court"], masked.tables["court"], rtol=1e-6)
    with pytest.raises(ConfigError, match="'ckks' sums do not carry"):
        simulate(MICE, tables, aggregation="ckks")


def test_leaves_follow_curves_and_draws_the_distribution():
    tables, truth = mixed(1500)
    lost = truth.index[-200:]
    errors = {}
    for imputer in ("mice", "forest"):
        strategy = FedPSGAR(imputer=imputer, trees=30)
        made = simulate(strategy, tables).tables["court"].loc[lost]
        errors[imputer] = (made["curve"] - truth.loc[lost, "curve"]).std()
        assert set(made["level"]) <= set("uvw")
        assert (made["level"] == truth.loc[lost, "level"]).mean() > 0.8
    assert errors["forest"] < 0.6 * errors["mice"]
    strategy = FedPSGAR(rule="draw", trees=30)
    drawn = simulate(strategy, tables).tables["court"].loc[lost]
    for name in ("curve", "sum"):
        assert ks_2samp(drawn[name], truth.loc[lost, name]).pvalue > 0.01
    both = [t[["curve", "sum"]].corr("spearman").iloc[0, 1] for t in (drawn, truth.loc[lost])]
    assert both[0] == pytest.approx(both[1], abs=0.25)


def test_leaves_of_four_parties_keep_to_three_rows_a_column():
    """The smallest of many groups of samples bounds the leaves, not all samples together."""
    rng, ids = np.random.default_rng(0), pd.Index([f"s{i}" for i in range(700)])
    common = rng.normal(size=700)
    tables = {}
    for name in ("bank", "court", "shop", "town"):
        columns = common[:, None] + rng.normal(size=(700, 3))
        table = pd.DataFrame(columns, ids, [f"{name}{j}" for j in range(3)])
        tables[name] = table[rng.random(700) < 0.8]
    made = simulate(FedPSGAR(), tables).tables
    assert not any(table.isna().any().any() for table in made.values())
    lost = made["bank"].index.difference(tables["bank"].index)
    assert np.corrcoef(made["bank"].loc[lost, "bank0"], common[ids.get_indexer(lost)])[0, 1] > 0.5


def test_missing_cells_and_attributes_by_rules_go_together():
    tables, _ = mixed(cells=0.1)
    result = simulate(
        FedPSGAR(variant="ar", n_associated=1, rule="mean", imputer="mice"), tables, min_rows=40
    )
    made = result.tables["court"]
    assert not made.isna().any().any()
    for name, column in tables["court"].items():
        seen = column.dropna()
        assert (made.loc[seen.index, name] == seen).all()
    assert result.metrics["cells_by_rules"] + result.metrics["cells_without_rule"] == 200
    expected = int(tables["court"].isna().sum().sum()) + 2 * 200
    assert result.metrics["cells_imputed"] == expected


def test_each_party_alone_has_no_labels_or_embeddings_of_others():
    for wrong in ({"imputer": "cgain"}, {"imputer": "gain", "generator": "joint"}):
        with pytest.raises(ConfigError, match="federated=False has each party learn alone"):
            FedPSGAR(federated=False, **wrong)


def test_rare_sets_of_missing_attributes_get_what_their_column_says(monkeypatch):
    """Whole samples, which most miss, are regressed; a note says how many others are not."""
    tables, _ = mixed(cells=0.2)
    monkeypatch.setattr(targets, "MOST_JOBS", 1)
    result = simulate(MICE, tables)
    made, own = result.tables["court"], tables["court"]
    assert made.loc[made.index[-200:], "curve"].nunique() > 100
    some = own.isna().any(axis=1) & own.notna().any(axis=1)  # others are as those it lacks
    gone = own.index[own["curve"].isna() & some]
    np.testing.assert_allclose(made.loc[gone, "curve"], own["curve"].mean())
    assert any(note.startswith(f"{some.sum()} samples miss sets of") for note in result.notes)


def test_a_party_that_shares_too_few_samples_is_refused():
    tables, _ = numbers()
    apart = {"bank": tables["bank"].iloc[:500], "court": tables["court"].iloc[450:]}
    with pytest.raises(DataError, match=r"shares too few samples .* 50, .* fewer than 100"):
        simulate(FedPSGAR(), apart)


# -- what it tells -----------------------------------------------------------------------------


def test_no_attack_finds_a_cell_at_the_server(two):
    for finding in attack_run(record(MICE, two[0])):
        if finding.view == SERVER or finding.attack in RULED:
            assert finding.cells == 0.0, finding


def test_terms_of_predictions_are_in_the_ledger_and_need_consent(two, tmp_path):
    tables = {name: t.rename_axis("id") for name, t in two[0].items()}
    nodes = Nodes(tmp_path, tables)
    nodes.refused("exchanges", MICE)
    nodes.state(policy_exchanges="generated", policy_openings=10.0)
    nodes.refused("openings", MICE)
    nodes.state(policy_openings=None)
    nodes.run(MICE)
    (entry,) = nodes.entries("bits")
    assert entry["n_rows"] == 200
    assert entry["bits"] == 3 * 64.0
    assert entry["receiver"] == "court"
    assert nodes.entries("bits", "court") == []


# -- variants, and each party alone ------------------------------------------------------------


def test_ag_chooses_what_ar_does_and_generates_it_alone(two):
    tables, _ = two
    ruled = simulate(FedPSGAR(variant="ag", n_associated=2, imputer="mean"), tables)
    assert steps_of(ruled) == [
        "prepare", "seal_group_seed", "send_masked", "open_products", "complete",
    ]  # fmt: skip
    chosen = [f"court.{j}" for j, *_ in oracle.pairs(tables, "court", 2)]
    made = ruled.tables["court"].iloc[-200:]
    own = set(map(tuple, tables["court"][chosen].to_numpy()))
    assert set(map(tuple, made[chosen].to_numpy())) <= own  # they go together as in an own sample
    other = [c for c in made if c not in chosen]
    assert made[chosen].std().min() > 1.0
    assert made[other].std().max() < 1e-9
    assert ruled.metrics["cells_drawn"] == 400


def test_cag_chooses_within_the_party(two):
    tables, _ = two
    result = simulate(FedPSGAR(variant="cag", n_associated=2, imputer="mean"), tables)
    assert steps_of(result) == ["prepare", "complete"]
    correlation = tables["court"].corr("spearman").abs().to_numpy() - np.eye(3)
    chosen = tables["court"].columns[list(np.unravel_index(correlation.argmax(), (3, 3)))]
    made = result.tables["court"].iloc[-200:]
    assert set(made.columns[made.std() > 1e-9]) == set(chosen)


def test_a_party_alone_regresses_on_its_own_attributes():
    tables, _ = mixed(cells=0.1)
    strategy = FedPSGAR(imputer="mice", federated=False)
    assert strategy.exchanges_asked == ()
    result = simulate(strategy, tables)
    assert steps_of(result) == ["prepare", "complete"]
    own = tables["court"]
    whole = own.dropna()
    only = own.index[own["curve"].isna() & own.drop(columns="curve").notna().all(axis=1)]
    x = pd.concat([whole["sum"], pd.get_dummies(whole["level"])], axis=1).to_numpy(float)
    y = whole[["curve"]].to_numpy()
    spread, centre = own["sum"].std(ddof=0), own["sum"].mean()
    x[:, 0] = (x[:, 0] - centre) / spread
    weights, offset, _ = oracle.ridge(x, y, PENALTIES)
    new = pd.concat([(own["sum"] - centre) / spread, pd.get_dummies(own["level"])], axis=1)
    new = new.loc[only]
    expected = (new.to_numpy(float) @ weights + offset)[:, 0]
    expected = np.clip(expected, own["curve"].min(), own["curve"].max())
    np.testing.assert_allclose(result.tables["court"].loc[only, "curve"], expected, rtol=1e-6)


def test_a_party_alone_trains_its_networks():
    pytest.importorskip("torch")
    tables, _ = mixed(cells=0.1)
    strategy = FedPSGAR(
        variant="ar",
        n_associated=1,
        imputer="vgain",
        federated=False,
        iterations=3,
        batch=8,
        rule="mean",
    )
    first, second = (simulate(strategy, tables, seed=5, min_rows=40) for _ in range(2))
    assert steps_of(first)[-1] == "complete"
    pd.testing.assert_frame_equal(first.tables["court"], second.tables["court"])
    assert not first.tables["court"].isna().any().any()
    assert set(first.tables["court"]["level"]) <= set("uvw")


def test_levels_stated_as_numbers_have_means():
    tables, _ = numbers()
    flag = (tables["court"]["court.0"] > 100).astype(float)
    tables["court"] = Table.of(tables["court"].assign(flag=flag), {"flag": "continuous"})
    made = simulate(MICE, tables).tables["court"].iloc[-200:]["flag"]
    assert made.between(0, 1).all()
    assert made.nunique() > 100


def test_leaves_of_runs_tell_no_row_apart_together(tmp_path, monkeypatch):
    told = record_told(monkeypatch, "bank", 400)
    rng = np.random.default_rng(0)
    ids = pd.Index([f"s{i:03}" for i in range(400)], name="id")
    bank = pd.DataFrame(rng.normal(size=(400, 2)), ids, columns=["a", "b"])
    court = pd.DataFrame({"debts": rng.normal(size=400)}, ids)
    court.iloc[::5, 0] = np.nan
    nodes, strategy = Nodes(tmp_path, {"bank": bank, "court": court}), FedPSGAR()
    nodes.state(policy_exchanges="any")
    for seed in range(2):
        with nodes.grid(strategy) as grid:
            strategy.start(grid=grid, alignment="plain", retries=0, seed=seed)
    assert len(told) > 1
    assert told[0].shape[1] > 30
    leaves = [part[:, [set(column) == {0.0, 1.0} for column in part.T]] for part in told]
    assert largest_share(leaves) < 0.51  # 1 has 1 / 400 of it
    assert largest_share(told) < 0.6  # two columns of numbers beside them


def test_trees_of_parties_in_threads_leave_the_filters_of_warnings_alone():
    codes = np.random.default_rng(0).normal(size=(300, 2))

    def leaves(_):
        made = RegressionColumns.fit(codes, [0, 0], False, n_trees=30)
        return made.encode(codes)

    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(4) as threads:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        list(threads.map(leaves, range(24)))
        assert warnings.filters == before
    assert not caught
