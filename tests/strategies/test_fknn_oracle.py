"""FKNN against the paper's equations and against scikit-learn on the pooled table."""

import functools

import numpy as np
import pandas as pd
import pytest
from oracles.fknn import impute_tables
from sklearn.impute import KNNImputer

from flwr_vertical import load_demo, simulate
from flwr_vertical.incomplete import imputation_accuracy
from strategies.baselines import Mean
from strategies.fknn import FKNN
from strategies.fknn.party import FKNNParty

# Imputed values are means of donors' own values, so agreement means the same donors were chosen;
# what is left is the order of additions (and with weights the resolution of the distances).
TOLERANCE = {"plain": 1e-9, "masked": 1e-6, "ckks": 1e-6}


def make_tables(n_parties, seed, n=50, missing=0.2, blocks=0.0, text_ids=True):
    """Correlated continuous columns, 1 to 4 a party, on different scales; rows in own order."""
    rng = np.random.default_rng([seed, n_parties])
    factors = rng.normal(size=(n, 2))
    tables = {}
    for k in range(n_parties):
        width = 1 + (k + seed) % 4
        x = factors @ rng.normal(size=(2, width)) + 0.5 * rng.normal(size=(n, width))
        x = x * 10.0 ** rng.integers(-1, 2, size=width) + rng.normal(scale=5, size=width)
        x[rng.random(x.shape) < missing] = np.nan
        ids = [f"s{i:03}" for i in range(n)] if text_ids else np.arange(n) * 7 - 100
        frame = pd.DataFrame(x, index=ids, columns=[f"p{k}c{j}" for j in range(width)])
        kept = rng.permutation(n)[: n - int(blocks * n)] if blocks else np.arange(n)
        tables[f"party {k}"] = frame.iloc[kept]
    return tables


def pooled(tables):
    names = sorted(tables)
    union = pd.Index(pd.unique(np.concatenate([tables[name].index for name in names])))
    return pd.concat([tables[name].reindex(union) for name in names], axis=1)


def knn_imputer(tables, n_neighbors=5, weights="uniform", scales=None):
    table = pooled(tables)
    scales = 1.0 if scales is None else scales
    imputer = KNNImputer(n_neighbors=n_neighbors, weights=weights)
    full = imputer.fit_transform(table / scales) * scales
    return pd.DataFrame(full, index=table.index, columns=table.columns)


def run(tables, mode="plain", fitted=None, **settings):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    strategy = FKNN(**{"standardize": False, **settings})  # as the oracles, in the units given
    return simulate(strategy, tables, aggregation=mode, fitted=fitted)


def assert_tables(result, tables, expected, tolerance):
    """Own rows first and in their own order, then the completed ones; values as expected."""
    for name, given in tables.items():
        got = result.tables[name]
        assert list(got.columns) == list(given.columns)
        assert list(got.index[: len(given)]) == list(given.index)
        assert set(got.index) == set(expected[name].index)
        assert got.index.is_unique
        assert (got.dtypes == "float64").all()
        np.testing.assert_allclose(
            got, expected[name].loc[got.index], rtol=tolerance, atol=tolerance
        )
        # What was observed is untouched, to the last bit.
        own, observed = got.iloc[: len(given)].to_numpy(), given.notna().to_numpy()
        np.testing.assert_array_equal(own[observed], given.to_numpy()[observed])


def by_party(table, tables):
    return {name: table[list(frame.columns)] for name, frame in tables.items()}


# Ciphertexts take a second each.
CASES = [
    ("plain", 2, 0.1), ("masked", 2, 0.1), ("masked", 3, 0.3), ("plain", 4, 0.5),
    ("masked", 5, 0.2), ("masked", 6, 0.4), ("ckks", 3, 0.3),
]  # fmt: skip

WEIGHTED = 3e-5
"""With weights by distance, which are told to seven digits; columns spread over tens."""


@pytest.mark.parametrize(("mode", "n_parties", "missing"), CASES)
def test_party_mean_is_the_paper(n_parties, missing, mode):
    tables = make_tables(n_parties, 1, n=40, missing=missing)
    result = run(tables, mode, n_neighbors=3)
    assert_tables(result, tables, impute_tables(tables, 3), TOLERANCE[mode])


@pytest.mark.parametrize(("mode", "n_parties", "missing"), CASES)
def test_exact_is_knn_imputer_on_the_pooled_table(n_parties, missing, mode):
    tables = make_tables(n_parties, 23, n=60, missing=missing)
    expected = knn_imputer(tables)
    result = run(tables, mode, weighting="exact")
    assert_tables(result, tables, by_party(expected, tables), TOLERANCE[mode])


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("n_neighbors", [1, 4, 9])
def test_weights_by_distance_are_those_of_knn_imputer(mode, n_neighbors):
    tables = make_tables(3, 3, n=60, missing=0.25, blocks=0.1)
    expected = knn_imputer(tables, n_neighbors, "distance")
    result = run(tables, mode, weighting="exact", weights="distance", n_neighbors=n_neighbors)
    assert_tables(result, tables, by_party(expected, tables), WEIGHTED)


@pytest.mark.parametrize(
    ("mode", "text_ids"),
    [("plain", False), ("masked", True), pytest.param("ckks", True, marks=pytest.mark.slow)],
)
def test_missing_blocks_are_completed(mode, text_ids):
    # A table in which distances differ by 1e-5 of the largest at least: ciphertexts, whose noise is
    # another in each run, take those that differ by 1e-9 for equal now and then.
    tables = make_tables(3, 3, n=60, missing=0.1, blocks=0.3, text_ids=text_ids)
    expected = by_party(knn_imputer(tables), tables)
    result = run(tables, mode, weighting="exact")
    assert all(len(result.tables[name]) > len(tables[name]) for name in tables)
    assert_tables(result, tables, expected, TOLERANCE[mode])
    assert_tables(run(tables, mode), tables, impute_tables(tables, 5), TOLERANCE[mode])


def test_what_an_earlier_run_named_keeps_its_name():
    tables = make_tables(2, 3, n=40, missing=0.1, blocks=0.3, text_ids=True)
    for name, given in tables.items():  # as completed by a run with other numbers of rows
        fresh = [f"aligned-{i}" if i % 2 else i_d for i, i_d in enumerate(given.index)]
        tables[name] = given.set_axis(fresh)
    result = simulate(FKNN(), tables, alignment="private-id")
    for name, given in tables.items():
        ids = result.tables[name].index
        assert ids.is_unique
        assert list(ids[: len(given)]) == list(given.index)
        assert len(ids) > len(given)


def test_without_completing_blocks_only_own_rows_come_back():
    tables = make_tables(3, 4, n=60, missing=0.1, blocks=0.3)
    expected = by_party(knn_imputer(tables), tables)
    result = run(tables, weighting="exact", complete_blocks=False)
    for name, given in tables.items():
        assert list(result.tables[name].index) == list(given.index)
        np.testing.assert_allclose(
            result.tables[name], expected[name].loc[given.index], rtol=1e-9, atol=1e-9
        )
        assert result.party_metrics[name]["cells_imputed"] == given.isna().to_numpy().sum()


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("plain", [70 * 17]),
        ("masked", [70 * 3]),
        pytest.param("masked", [1], marks=pytest.mark.slow),
    ],
)
def test_blocks_do_not_change_the_result(mode, sizes):
    tables = make_tables(3, 5, n=70, missing=0.3, blocks=0.2)
    whole = run(tables, mode)
    for pairs in sizes:
        parts = run(tables, mode, block_pairs=pairs)
        assert parts.ledger.rounds > whole.ledger.rounds
        for name in tables:
            pd.testing.assert_frame_equal(parts.tables[name], whole.tables[name], check_exact=True)


@pytest.mark.parametrize(
    ("mode", "block_pairs"),
    [("plain", 0), ("masked", 140 * 40), pytest.param("ckks", 0, marks=pytest.mark.slow)],
)
def test_lists_end_with_the_donors_that_were_ranked(mode, block_pairs):
    """Only 20 of 140 samples have column ``rare``: lists of 8 donors, then of 32, and no more."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(140, 4))
    tables = {
        "a": pd.DataFrame({"x": x[:, 0], "rare": x[:, 1]}),
        "b": pd.DataFrame({"y": x[:, 2], "z": x[:, 3]}),
    }
    tables["a"].loc[20:, "rare"] = np.nan
    tables["b"].iloc[::7, 0] = np.nan
    result = run(tables, mode, block_pairs=block_pairs, n_neighbors=3)
    assert_tables(result, tables, impute_tables(tables, 3, 32), TOLERANCE[mode])
    without = np.isclose(result.tables["a"]["rare"].iloc[20:], x[:20, 1].mean(), rtol=1e-6)
    assert result.metrics["cells_without_neighbour"] == without.sum()
    told = result.metrics["cells_with_fewer_donors"]
    assert 0 < told < 120 - without.sum()
    assert any(f"{told:.0f} cells were imputed from fewer than 3" in note for note in result.notes)
    if block_pairs == 0 and mode == "plain":
        # hello, share_ids, keys (2), prepare, distances, finish; lists of 8, then of 32.
        assert result.ledger.rounds == 7 + 2


def test_one_party_alone_is_knn_imputer():
    tables = make_tables(1, 7, n=60, missing=0.3)
    for mode, weighting in [("plain", "exact"), ("masked", "exact"), ("plain", "party-mean")]:
        result = run(tables, mode, weighting=weighting)
        assert_tables(result, tables, by_party(knn_imputer(tables), tables), TOLERANCE[mode])


def test_standardized_columns():
    tables = make_tables(3, 8, n=60, missing=0.2)
    scales = pooled(tables).std(ddof=0).to_numpy()
    expected = by_party(knn_imputer(tables, scales=scales), tables)
    result = run(tables, weighting="exact", standardize=True)
    assert_tables(result, tables, expected, 1e-9)
    plain = run(tables, weighting="exact")
    assert any(not np.allclose(plain.tables[name], result.tables[name]) for name in tables)


@pytest.mark.parametrize("shift", [1e7, -1e5])
def test_a_large_origin_costs_no_digits(shift):
    """Distances come from inner products, which would cancel badly far from the origin."""
    tables = make_tables(2, 9, n=50)
    moved = {name: frame + shift for name, frame in tables.items()}
    for mode in ("plain", "masked"):
        one, other = run(tables, mode, weighting="exact"), run(moved, mode, weighting="exact")
        for name in tables:
            np.testing.assert_allclose(other.tables[name] - shift, one.tables[name], atol=1e-7)


@pytest.mark.parametrize(
    ("mode", "factor"), [("masked", 1e-6), ("masked", 1e6), ("ckks", 1e-6), ("ckks", 1e6)]
)
def test_raw_units_neither_overflow_nor_lose_resolution(mode, factor):
    """Squares of 10^7 are beyond a masked sum, squares of 10^-7 below its resolution."""
    tables = {name: frame * factor for name, frame in make_tables(3, 10, n=50).items()}
    result = run(tables, mode, weighting="exact")
    expected = by_party(knn_imputer(tables), tables)
    for name in tables:
        np.testing.assert_allclose(result.tables[name], expected[name], rtol=1e-6, atol=0)


def test_one_party_in_much_larger_units_than_the_other():
    """Squares 400 times as large: where it is not comparable, small distances still count."""
    tables = make_tables(2, 11, n=50)
    tables["party 1"] *= 20
    expected = by_party(knn_imputer(tables), tables)
    for mode in ("plain", "masked"):
        assert_tables(run(tables, mode, weighting="exact"), tables, expected, 1e-6)


# -- new rows, donors from an earlier run ----------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "weights"), [("plain", "uniform"), ("masked", "distance"), ("ckks", "uniform")]
)
def test_new_rows_are_imputed_from_fitted_donors(mode, weights):
    tables = make_tables(3, 12, n=80, missing=0.2)
    donors = {name: frame.iloc[:60] for name, frame in tables.items()}
    new = {name: frame.iloc[60:] for name, frame in tables.items()}
    imputer = KNNImputer(n_neighbors=4, weights=weights).fit(pooled(donors))
    expected = pooled(new)
    expected[:] = imputer.transform(expected)
    settings = {"n_neighbors": 4, "weighting": "exact", "weights": weights}
    result = run(new, mode, fitted=donors, **settings)
    assert_tables(result, new, by_party(expected, new), WEIGHTED if weights == "distance" else 1e-6)
    # Cells that donors lack are not imputed.
    assert result.metrics["rows_imputed"] == pooled(new).isna().any(axis=1).sum()
    assert result.metrics["donors"] == 60


@pytest.mark.parametrize("complete", [True, False])
def test_donors_may_lack_blocks_and_are_an_earlier_result_or_incomplete_tables(complete):
    tables = make_tables(2, 13, n=90, missing=0.2, blocks=0.2)
    early = set(tables["party 0"].index[:50]) | set(tables["party 1"].index[:30])
    donors = {name: frame[frame.index.isin(early)] for name, frame in tables.items()}
    new = {name: frame[~frame.index.isin(early)] for name, frame in tables.items()}
    fitted = run(donors, weighting="exact") if complete else donors
    imputer = KNNImputer(n_neighbors=5).fit(pooled(fitted.tables if complete else donors))
    expected = pooled(new)
    expected[:] = imputer.transform(expected)
    result = run(new, weighting="exact", fitted=fitted)
    assert_tables(result, new, by_party(expected, new), 1e-9)


# -- donors drawn from many ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "fitted"),
    [("plain", False), ("masked", True), pytest.param("ckks", False, marks=pytest.mark.slow)],
)
def test_donors_drawn_are_the_only_ones_and_the_same_at_all_parties(mode, fitted, monkeypatch):
    tables = make_tables(3, 20, n=90, missing=0.2)
    new = {name: frame.iloc[60:] if fitted else frame for name, frame in tables.items()}
    old = {name: frame.iloc[:60] for name, frame in tables.items()} if fitted else None
    drawn, finish = {}, FKNNParty.finish

    @functools.wraps(finish)  # a step, too
    def spy(self, *args, **kwargs):
        own = pd.Series(np.arange(len(self.positions)), self.positions)
        drawn[self.name] = list(self.own_ids[own[self._donors[0]]])
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(FKNNParty, "finish", spy)
    draws = []
    for _ in range(2):
        result = run(new, mode, fitted=old, n_neighbors=3, weighting="exact", max_donors=32)
        donors, *others = drawn.values()
        assert others == [donors, donors]
        assert result.metrics["donors"] == len(set(donors)) == 32
        assert any(f"with 32 of {60 if fitted else 90} donors" in note for note in result.notes)
        imputer = KNNImputer(n_neighbors=3).fit(pooled(tables).loc[donors])
        expected = pooled(new)
        expected[:] = imputer.transform(expected)
        assert_tables(result, new, by_party(expected, new), TOLERANCE[mode])
        draws.append(donors)
    assert set(draws[0]) != set(draws[1])
    if fitted:
        assert set(draws[0]) <= set(tables["party 0"].index[:60])


# -- cells without neighbour -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_cells_without_comparable_donor_get_the_column_mean(mode):
    """Sample 0 knows only ``x``, and no donor of ``y`` has an ``x``."""
    rng = np.random.default_rng(15)
    tables = {
        "a": pd.DataFrame({"x": rng.normal(size=20)}),
        "b": pd.DataFrame({"y": rng.normal(size=20), "z": rng.normal(size=20)}),
    }
    tables["a"].iloc[8:, 0] = np.nan
    tables["b"].iloc[:8] = np.nan
    expected = by_party(knn_imputer(tables, 3), tables)
    assert np.allclose(expected["b"].loc[0], tables["b"].mean())
    for weighting in ("exact", "party-mean"):
        result = run(tables, mode, n_neighbors=3, weighting=weighting)
        assert_tables(result, tables, expected, TOLERANCE[mode])
        assert result.metrics["cells_without_neighbour"] == 8 * 2 + 12
        assert result.party_metrics["a"]["cells_without_neighbour"] == 12
        assert any("28 cells got the column's mean" in note for note in result.notes)


def test_fewer_comparable_donors_than_asked_for_are_used():
    """Sample 0 knows only ``x``; of the donors of ``y`` two have an ``x``, three are wanted."""
    rng = np.random.default_rng(16)
    x, y = rng.normal(size=(2, 20))
    tables = {"a": pd.DataFrame({"x": x}), "b": pd.DataFrame({"y": y})}
    tables["a"].iloc[3:, 0] = np.nan
    tables["b"].iloc[0, 0] = np.nan
    result = run(tables, n_neighbors=3, weighting="exact")
    assert result.tables["b"].loc[0, "y"] == pytest.approx(y[1:3].mean(), abs=1e-12)
    assert_tables(result, tables, by_party(knn_imputer(tables, 3), tables), 1e-9)
    assert result.party_metrics["b"]["cells_without_neighbour"] == 0


# -- nothing to do ---------------------------------------------------------------------------


def test_complete_tables_come_back_unchanged():
    tables = make_tables(3, 17, n=30, missing=0.0)
    tables["party 1"]["text"] = pd.Categorical(["low", "high", "mid"] * 10)
    result = run(tables)
    for name, given in tables.items():
        pd.testing.assert_frame_equal(result.tables[name], given, check_exact=True)
    assert result.metrics["cells_imputed"] == result.metrics["rows_imputed"] == 0
    tables = make_tables(2, 18, n=30, blocks=0.2)
    copies = {name: frame.copy() for name, frame in tables.items()}
    run(tables)
    for name, frame in tables.items():
        pd.testing.assert_frame_equal(frame, copies[name], check_exact=True)


@pytest.mark.parametrize(
    "dataset", [pytest.param("breast-cancer", marks=pytest.mark.slow), "diabetes", "wine"]
)
def test_defaults_are_better_than_the_mean_on_every_demonstration(dataset):
    demo = load_demo(dataset, missing_cells=0.1)
    errors = {}
    for strategy in (FKNN(), Mean()):
        tables = simulate(strategy, demo.parties).tables
        errors[strategy.name] = [
            imputation_accuracy(given, tables[name].loc[given.index], demo.complete[name])[
                "rmse_in_sd"
            ]
            for name, given in demo.parties.items()
        ]
    assert np.all(np.array(errors["fknn"]) < 0.95 * np.array(errors["mean"])), errors
