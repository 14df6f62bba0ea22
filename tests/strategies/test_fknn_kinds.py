"""FKNN with columns of all kinds: small examples worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Kind, simulate
from flwr_vertical.errors import ProtocolError
from strategies.fknn import FKNN
from strategies.fknn.arbiter import Errors, Ranked, rank_donors, relative_weights
from strategies.fknn.distances import (
    N_EXPONENTS,
    PartyTerms,
    common_units,
    magnitude,
    make_features,
    party_terms,
    squared_distances,
)
from strategies.fknn.neighbours import impute_column, listed_donors
from strategies.normal import JointNormal

MODES = ["plain", "masked", "ckks"]
SIZES = pd.CategoricalDtype(["small", "mid", "large", "huge"], ordered=True)
COLOURS = pd.CategoricalDtype(["blue", "green", "red", "never"])


def example():
    """The distance of row 0 to rows 1, 2, 3 is 1, 2, 3.5; to rows 4, 5, 6 it is far more."""
    x = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.5, 40.0, 50.0, 60.0]})
    other = pd.DataFrame(
        {
            "colour": pd.Categorical([None, "red", "blue", "blue", "red", "red", "green"],
                                     dtype=COLOURS),
            "size": pd.Categorical([None, "small", "large", "large", "mid", "huge", "mid"],
                                   dtype=SIZES),
            "member": pd.Series([None, True, False, False, True, True, True], dtype="boolean"),
            "code": [np.nan, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0],
            "word": [np.nan, "b", "a", "c", "a", "b", "b"],
            "visits": [np.nan, 1.0, 4.0, 9.0, 0.0, 0.0, 0.0],
            "euros": [np.nan, -0.5, 1.25, 3.0, 0.1, 0.2, 0.3],
        }
    )  # fmt: skip
    return {"left": x, "right": other}


def run(tables, mode="plain", kinds=None, **settings):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    strategy = FKNN(**({"standardize": False} | settings))
    return simulate(strategy, tables, aggregation=mode, kinds=kinds)


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_has_its_own_centre(mode):
    tables = example()
    got = run(tables, mode, n_neighbors=3).tables["right"]
    row = got.loc[0]
    assert row["colour"] == "blue"  # blue twice, red once
    assert row["size"] == "large"  # median of small, large, large
    assert row["member"] == False  # noqa: E712 - True, False, False
    assert row["code"] == 0.0
    assert row["word"] == "a"  # a, b and c once each: the first
    assert row["visits"] == pytest.approx((1 + 4 + 9) / 3, abs=1e-12)
    assert row["euros"] == pytest.approx((-0.5 + 1.25 + 3.0) / 3, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_weights_by_distance_count_in_every_kind(mode):
    """Weights 1, 1/2, 1/3.5: one near red outweighs two farther blues."""
    row = run(example(), mode, n_neighbors=3, weights="distance").tables["right"].loc[0]
    w = np.array([1, 1 / 2, 1 / 3.5])
    assert row["colour"] == "red"  # 1 against 0.786
    assert row["size"] == "small"  # 1 of 1.786 is more than half
    assert row["member"] == True  # noqa: E712
    assert row["visits"] == pytest.approx(w @ [1, 4, 9] / w.sum(), abs=1e-6)
    assert row["word"] == "b"


def test_an_even_number_of_ranks_takes_the_lower_median_and_one_donor_decides_alone():
    assert run(example(), n_neighbors=2).tables["right"].loc[0, "size"] == "small"
    row = run(example(), n_neighbors=1).tables["right"].loc[0]
    assert row.tolist() == ["red", "small", True, 1.0, "b", 1.0, -0.5]


def test_a_donor_at_distance_zero_takes_all_the_weight():
    tables = example()
    tables["left"].loc[2, "x"] = 0.0
    row = run(tables, "masked", n_neighbors=3, weights="distance").tables["right"].loc[0]
    assert row["euros"] == pytest.approx(1.25, abs=1e-5)
    assert row["colour"] == "blue"


def test_dtypes_columns_and_index_stay():
    tables = example()
    tables["left"].index.name = tables["right"].index.name = "sample"
    tables["left"]["whole"] = np.arange(7, dtype=np.int32)
    tables["right"] = tables["right"].iloc[[3, 0, 6, 1, 5, 2, 4]]
    got = run(tables, n_neighbors=3).tables
    assert list(got["right"].index) == [3, 0, 6, 1, 5, 2, 4]
    assert list(got["right"].columns) == list(tables["right"].columns)
    assert got["right"].index.name == got["left"].index.name == "sample"
    assert got["right"]["colour"].dtype == COLOURS
    assert got["right"]["size"].dtype == SIZES
    assert got["right"]["member"].dtype == bool
    assert got["right"]["visits"].dtype == np.float64
    assert got["right"]["word"].map(type).eq(str).all()
    assert got["left"].dtypes.to_dict() == {"x": np.float64, "whole": np.int32}
    assert not got["right"].isna().any().any()


def test_completed_blocks_have_the_dtypes_of_the_table():
    tables = example()
    right = tables["right"].iloc[1:].copy()
    right["visits"] = right["visits"].astype(np.int64)
    right["member"] = right["member"].astype(bool)
    got = run({"left": tables["left"], "right": right}, n_neighbors=3).tables["right"]
    assert list(got.index) == [1, 2, 3, 4, 5, 6, 0]
    assert got.dtypes.to_dict() == right.dtypes.to_dict()
    assert got.loc[0, "visits"] == 5  # 14/3, rounded as an integer column must be
    assert got.loc[0, "member"] == False  # noqa: E712
    assert got.loc[0, "colour"] == "blue"
    assert got.loc[0, "euros"] == pytest.approx(1.25, abs=1e-12)


def test_kinds_may_be_stated():
    """Numbers that are codes: with the kind stated, the mode and not the mean."""
    tables = {
        "left": pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0, 50.0]}),
        "right": pd.DataFrame({"region": [np.nan, 7.0, 1.0, 7.0, 3.0]}),
    }
    assert run(tables, n_neighbors=3).tables["right"].loc[0, "region"] == 5.0
    kinds = {"right": {"region": "categorical"}}
    assert run(tables, kinds=kinds, n_neighbors=3).tables["right"].loc[0, "region"] == 7.0
    kinds = {"right": {"region": Kind.ORDINAL}}
    assert run(tables, kinds=kinds, n_neighbors=3).tables["right"].loc[0, "region"] == 7.0


def test_labels_steer_the_distance_as_numbers_do():
    """Row 0 is red; its only red donor is nearest although it is last."""
    tables = {
        "left": pd.DataFrame({"y": [np.nan, 1.0, 2.0, 3.0, 4.0]}),
        "right": pd.DataFrame({"colour": ["red", "blue", "green", "blue", "red"]}),
    }
    for mode in MODES:
        assert run(tables, mode, n_neighbors=1).tables["left"].loc[0, "y"] == 4.0


# -- the pure functions ----------------------------------------------------------------------


def loop_distance(a, b, kinds, n_levels):
    """Squared distance and shared columns of two rows, as the module's docstring defines it."""
    total, shared = 0.0, 0
    for x, y, kind, levels in zip(a, b, kinds, n_levels, strict=True):
        if np.isnan(x) or np.isnan(y):
            continue
        shared += 1
        if kind in (Kind.CATEGORICAL, Kind.BINARY):
            total += float(x != y)
        elif kind is Kind.ORDINAL:
            total += ((x - y) / (levels - 1)) ** 2
        else:
            total += (x - y) ** 2
    return total, shared


def mixed_codes(n=30, seed=0, missing=0.25):
    rng = np.random.default_rng(seed)
    kinds = [Kind.CONTINUOUS, Kind.CATEGORICAL, Kind.ORDINAL, Kind.BINARY, Kind.COUNT]
    n_levels = [0, 4, 3, 2, 0]
    codes = np.column_stack(
        [
            rng.normal(loc=100, size=n),
            *(rng.integers(0, levels, size=n) for levels in n_levels[1:4]),
            rng.poisson(3, size=n),
        ]
    ).astype(float)
    codes[rng.random(codes.shape) < missing] = np.nan
    return codes, kinds, n_levels


@pytest.mark.parametrize("standardize", [False, True])
def test_distances_of_all_kinds_against_a_loop(standardize):
    codes, kinds, n_levels = mixed_codes()
    features = make_features(codes, kinds, n_levels, standardize, np.ones(30, dtype=bool))
    rows, donors = np.array([0, 5, 29]), np.array([1, 5, 7, 28])
    sums, shared = squared_distances(features, rows, features.donors(donors))
    if standardize:
        codes = codes.copy()
        codes[:, [0, 4]] /= np.nanstd(codes[:, [0, 4]], axis=0)
    for i, p in enumerate(rows):
        for j, q in enumerate(donors):
            total, count = loop_distance(codes[p], codes[q], kinds, n_levels)
            assert sums[i, j] == pytest.approx(total, rel=1e-9, abs=1e-12)
            assert shared[i, j] == count
    assert features.n_columns == 5
    everyone, _ = squared_distances(features, rows, features.donors())
    np.testing.assert_allclose(everyone[:, donors], sums, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighting", ["exact", "party-mean"])
@pytest.mark.parametrize("n_complete", [0, 1, 17, 60])
def test_terms_of_complete_donors_are_those_of_any(weighting, n_complete):
    """But for a weight that is told once; no row is a donor to itself."""
    codes, kinds, n_levels = mixed_codes(n=90, missing=0.3)
    codes[:60] = mixed_codes(seed=7, n=60, missing=0.0)[0]
    whole = np.arange(60)[::-1][:n_complete]
    codes[89] = np.nan  # shares no column with anybody
    features = make_features(codes, kinds, n_levels, True, np.ones(90, dtype=bool))
    rest = np.setdiff1d(np.arange(90), whole)
    donors, rows = np.concatenate([whole, rest[:-3]]), rest
    distance, weight = PartyTerms(features, donors, n_complete, weighting).of(rows)
    expected, weights = party_terms(
        *squared_distances(features, rows, features.donors(donors)), weighting
    )
    own = rows[:, None] == donors
    np.testing.assert_allclose(distance, np.where(own, 0.0, expected), rtol=1e-9, atol=1e-12)
    weights = np.where(own, 0, weights)
    np.testing.assert_array_equal(weight[:, 1:], weights[:, n_complete:])
    if n_complete:
        np.testing.assert_array_equal(
            np.repeat(weight[:, :1], n_complete, 1), weights[:, :n_complete]
        )


def test_donors_that_are_not_complete_and_rows_that_are_are_refused():
    codes, kinds, n_levels = mixed_codes(missing=0.3)
    features = make_features(codes, kinds, n_levels, True, np.ones(30, dtype=bool))
    whole = np.flatnonzero(~np.isnan(codes).any(axis=1))
    with pytest.raises(ProtocolError, match=r"'bank': of donors that .* some lack cells here"):
        PartyTerms(features, np.arange(30), 30, "exact", "bank")
    terms = PartyTerms(features, whole, len(whole), "exact", "bank")
    with pytest.raises(ProtocolError, match="party 'bank': rows to be imputed are among"):
        terms.of(whole[:1])


def test_equal_samples_are_at_distance_zero():
    """Not at the rounding error that the difference of their squares leaves."""
    codes, kinds, n_levels = mixed_codes(n=200, missing=0.2)
    codes[:, 0] *= 1e6
    codes[100:] = codes[:100]
    features = make_features(codes, kinds, n_levels, True, np.ones(200, dtype=bool))
    sums, _ = squared_distances(features, np.arange(100), features.donors())
    assert (sums[np.arange(100), np.arange(100, 200)] == 0).all()
    assert (sums >= 0).all()
    # Ten among millions is a difference.
    codes[100:, 0] += 10.0
    features = make_features(codes, kinds, n_levels, False, np.ones(200, dtype=bool))
    sums, _ = squared_distances(features, np.arange(100), features.donors())
    seen = np.flatnonzero(~np.isnan(codes[:100, 0]))
    np.testing.assert_allclose(sums[seen, seen + 100], 100.0, rtol=0.01)


@pytest.mark.parametrize("weighting", ["exact", "party-mean"])
@pytest.mark.parametrize("factor", [1e-140, 1e-9, 1.0, 1e9, 1e150])
@pytest.mark.parametrize("n_parties", [1, 3, 5])
def test_the_units_use_the_range_and_never_leave_it(weighting, factor, n_parties):
    codes, kinds, n_levels = mixed_codes(seed=3, missing=0.0)
    codes[:, [0, 4]] *= factor
    if factor < 1e-9:  # levels are of size 1
        codes, kinds, n_levels = codes[:, [0, 4]], [kinds[0], kinds[4]], [0, 0]
    features = make_features(codes, kinds, n_levels, False, np.ones(30, dtype=bool))
    flags = magnitude(features, weighting)
    assert flags.sum(axis=1).tolist() == [1, 1, 1]
    assert flags.shape == (3, N_EXPONENTS)
    other = np.zeros((3, N_EXPONENTS), dtype=np.int64)
    other[:, 1] = 1  # a party with tiny distances does not matter
    units = common_units(flags + other, n_parties, True)
    sums, shared = squared_distances(features, np.arange(30), features.donors())
    distance, weight = party_terms(sums, shared, weighting)
    largest = (distance + 2.0**units.shift * weight).max() * 2.0 ** (units.distance + 12)
    assert largest <= 2.0**62 / n_parties
    assert largest > 2.0**62 / n_parties / 2**8 or units.distance == 1000
    assert weight.max() * 2.0 ** (units.weight + 8) <= 2.0**49
    # Shifts reach to at least four times the mean distance.
    assert 2.0**units.shift >= 4 * (1 - 1 / 30) * (distance.sum() / weight.sum())
    assert common_units(flags, n_parties, False).shift is None


def test_constant_columns_are_at_distance_zero_exactly():
    # Of their rounded mean a little is left, which the scale must not blow up.
    codes = np.full((20, 2), [0.1, 1e15 + 0.3])
    features = make_features(codes, [Kind.CONTINUOUS] * 2, [0, 0], False, np.ones(20, dtype=bool))
    assert magnitude(features, "exact")[:2, 0].tolist() == [1, 1]
    assert not squared_distances(features, np.arange(20), features.donors())[0].any()


EXACT = Errors(0.0, 0.0, 1.0)


def rank(distance, weight, width, errors=EXACT):
    """Rank donors none of which is complete."""
    return rank_donors(distance, np.hstack([np.zeros((len(weight), 1)), weight]), width, errors)


@pytest.mark.parametrize("n_complete", [1, 200, 3000])
def test_complete_donors_are_ranked_as_others_by_one_weight(n_complete):
    """Also a row that is comparable with none of them."""
    rng = np.random.default_rng(5)
    weight = rng.integers(0, 4, size=(20, 3000)).astype(float)
    weight[:, :n_complete] = weight[:, :1]
    assert (weight[:, 0] == 0).any()
    distance = weight * rng.integers(0, 500, size=weight.shape)
    found = rank_donors(distance, weight[:, n_complete - 1 :], 30, EXACT)
    expected = rank(distance, weight, 30)
    for name in ("neighbours", "ranks", "counts", "distances"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_ranks_are_ascending_and_equal_for_equal_distances():
    distance = np.array([[0.0, 4.0, 1.0, 9.0], [8.0, 2.0, 0.0, 2.0]])
    weight = np.array([[0, 1, 1, 1], [2, 1, 0, 1]])
    ranked = rank(distance, weight, 3)
    assert ranked.counts.tolist() == [3, 3]
    assert ranked.neighbours.tolist() == [2, 1, 3, 1, 3, 0]
    assert ranked.ranks.tolist() == [0, 1, 2, 0, 0, 1]
    assert ranked.distances.tolist() == [1, 4, 9, 2, 2, 4]
    # All that are as near as the last one are listed.
    assert rank(distance, weight, 1).neighbours.tolist() == [2, 1, 3]
    assert rank(distance, weight, 9).counts.tolist() == [3, 3]
    nobody = rank(distance, 0 * weight, 2)
    assert nobody.counts.tolist() == [0, 0]
    assert len(nobody.ranks) == len(nobody.neighbours) == 0


@pytest.mark.parametrize("n_donors", [25, 3000])
@pytest.mark.parametrize("width", [1, 3, 6, 7, 20, 25])
def test_of_equal_distances_the_earlier_rows_come_first(width, n_donors):
    """Also where equal ones are only in part listed, and where rounding errors part them."""
    rng = np.random.default_rng(2)
    true = rng.integers(0, 4, size=(40, n_donors)).astype(float)
    true[:, 25:] += 4.0
    rng.permuted(true, axis=1, out=true)
    weight = rng.integers(0, 3, size=true.shape)
    off = 1 + 1e-15 * rng.normal(size=true.shape)
    noise = np.where(true == 0, -1e-15 * rng.random(true.shape), 0)  # as of CKKS, below 0
    ranked = rank((true * off + noise) * weight, weight, width)
    orders = np.broadcast_to(np.arange(n_donors, dtype=np.int32), true.shape)
    listed, _ = listed_donors(
        orders, np.arange(n_donors), ranked.neighbours, ranked.ranks, ranked.counts, width
    )
    for i in range(40):
        possible = [j for j in range(n_donors) if weight[i, j]]
        expected = sorted(possible, key=lambda j: (true[i, j], j))[:width]
        assert listed[i, : len(expected)].tolist() == expected
        assert (listed[i, len(expected) :] == -1).all()


def test_near_distances_are_told_apart():
    distance = 1.0 + np.arange(50)[::-1, None].T * 1e-9
    ranked = rank(distance, np.ones((1, 50)), 10)
    assert ranked.neighbours.tolist() == list(range(49, 39, -1))
    # Not where they may be off by as much.
    ranked = rank(distance, np.ones((1, 50)), 10, Errors(1e-9, 0.0, 1.0))
    assert set(ranked.ranks.tolist()) == {0}


def test_relative_weights_hide_the_scale():
    distances, counts = np.array([1.0, 4.0, 16.0, 0.0, 25.0]), np.array([3, 0, 2])
    ranked = Ranked(np.arange(5), np.array([0, 1, 2, 0, 1]), counts, distances)
    weights = relative_weights(ranked)
    assert weights.tolist() == [4, 2, 1, np.inf, 1]
    scaled = Ranked(ranked.neighbours, ranked.ranks, counts, 1000 * distances)
    np.testing.assert_array_equal(relative_weights(scaled), weights)


def test_donors_without_a_value_are_passed_over():
    column = np.array([np.nan, 10.0, np.nan, 30.0, 50.0, 99.0])
    neighbours = np.array([[2, 4, 0, 1, 3], [2, 0, -1, -1, -1], [5, 2, -1, -1, -1]], dtype=np.int32)
    values, used = impute_column(column, Kind.CONTINUOUS, neighbours, None, 2)
    np.testing.assert_array_equal(values, [30.0, np.nan, 99.0])  # mean of 50 and 10; none; one
    assert used.tolist() == [2, 0, 1]


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]", object])
@pytest.mark.parametrize("strategy", [FKNN(n_neighbors=3), JointNormal(draws=1)])
def test_known_whole_numbers_beyond_53_bits_stay_exact_beside_gaps(dtype, strategy):
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(120)]
    account = pd.Series([2**53 + 2 * int(i) + 1 for i in rng.integers(1, 1000, 120)], ids, dtype)
    account.iloc[:20] = None if dtype is object else pd.NA
    bank = pd.DataFrame({"account": account, "x": rng.normal(size=120)})
    court = pd.DataFrame({"z": rng.normal(size=130)}, [*ids, *map(str, range(10))])
    result = simulate(strategy, {"bank": bank, "court": court}, min_rows=20)
    for table in (result.tables["bank"], *(drawn["bank"] for drawn in result.draws)):
        found = table["account"]
        assert found.dtype.kind in "iu"  # of the rows that it lacked, too
        assert len(found) > 120
        assert found[ids[20:]].tolist() == account[ids[20:]].tolist()
        assert (abs(found - 2.0**53) < 1e5).all()


def test_a_party_s_log_says_where_whole_numbers_were_read_as_others(caplog):
    bank = pd.DataFrame({"account": [np.nan, *(2.0**53 + 2.0 * np.arange(39))], "x": range(40)})
    court = pd.DataFrame({"z": np.random.default_rng(0).normal(size=40)})
    with caplog.at_level("WARNING", "flwr_vertical"):
        simulate(FKNN(n_neighbors=3), {"bank": bank, "court": court})
    assert "column 'account': numbers beyond 2^53" in caplog.text
