"""Complete tables made incomplete: columns dealt, blocks and cells taken away, and compared."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.incomplete import (
    at_least_one_party,
    blank_cells,
    drop_blocks,
    imputation_accuracy,
    split_columns,
)
from flwr_vertical.tables import Table


@given(
    arrays(bool, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8)), st.integers(0, 9)
)
def test_at_least_one_party_changes_only_empty_samples(mask, seed):
    before = mask.copy()
    result = at_least_one_party(mask, seed=seed)
    np.testing.assert_array_equal(mask, before)
    empty = mask.all(axis=1)
    np.testing.assert_array_equal(result[~empty], mask[~empty])
    assert ((~result[empty]).sum(axis=1) == 1).all()


def test_at_least_one_party_draws_parties_alike():
    counts = (~at_least_one_party(np.ones((9000, 3), bool), seed=1)).sum(axis=0)
    assert abs(counts - 3000).max() < 4.5 * np.sqrt(9000 * 2 / 9)


def test_at_least_one_party_refuses():
    for mask in ([True, False], np.ones((2, 2)), np.ones((2, 0), bool)):
        with pytest.raises(DataError, match="mask must"):
            at_least_one_party(mask)


def complete():
    index = pd.Index(["p", "q", "r"], name="id")
    return {
        "bank": pd.DataFrame({"x": [1, 2, 3], "y": list("abc")}, index=index),
        "shop": pd.DataFrame({"z": [True, False, True]}, index=index),
    }


def test_drop_blocks():
    left = drop_blocks(complete(), [[True, False], [False, False], [False, True]])
    assert list(left) == ["bank", "shop"]
    pd.testing.assert_frame_equal(left["bank"], complete()["bank"].loc[["q", "r"]])
    pd.testing.assert_frame_equal(left["shop"], complete()["shop"].loc[["p", "q"]])


def test_drop_blocks_refuses():
    for mask, message in (
        ([[True, False]] * 3, "leaves no row to 'bank'"),
        ([[True, False]] * 2, r"shape \(3, 2\), got bool of shape \(2, 2\)"),
        ([[1, 0]] * 3, "must be booleans"),
    ):
        with pytest.raises(DataError, match=message):
            drop_blocks(complete(), mask)
    tables = complete()
    tables["shop"] = tables["shop"][::-1]
    with pytest.raises(DataError, match="'shop' does not hold the same samples"):
        drop_blocks(tables, np.zeros((3, 2), bool))


COLUMNS = {
    "i": (np.array([1, 2, 3], dtype=np.int32), "float64"),
    "I": (pd.array([1, 2, 3], dtype="Int64"), "Int64"),
    "f": (np.array([1.5, 2, 3], dtype=np.float32), "float32"),
    "b": (np.array([True, False, True]), "boolean"),
    "s": (pd.Series(["u", "v", "w"]), None),
    "o": (pd.Series(["u", "v", "w"], dtype=object), "object"),
    "c": (pd.Categorical(["u", "v", "w"]), "category"),
}


def test_blank_cells_of_every_dtype():
    frame = pd.DataFrame({name: values for name, (values, _) in COLUMNS.items()})
    mask = np.zeros(frame.shape, bool)
    mask[1] = True
    before = frame.copy()
    result = blank_cells(frame, mask)
    pd.testing.assert_frame_equal(frame, before)
    np.testing.assert_array_equal(result.isna(), mask)
    for name, (_, dtype) in COLUMNS.items():
        assert result[name].dtype == (dtype or frame[name].dtype)
        assert result[name].iloc[[0, 2]].tolist() == frame[name].iloc[[0, 2]].tolist()
    np.testing.assert_array_equal(Table.of(result).missing, mask)


def test_blank_cells_leaves_other_columns_and_gaps():
    frame = pd.DataFrame({"x": [1, 2], "y": [np.nan, 3.0], "z": [4, 5]}, index=[9, 8])
    result = blank_cells(frame, [[False, False, True], [False, False, False]])
    assert result["x"].dtype == "int64"
    assert result["y"].isna().tolist() == [True, False]
    assert result["z"].isna().tolist() == [True, False]
    assert result.index.tolist() == [9, 8]


def test_blank_cells_refuses():
    for mask, message in (([[True]], r"booleans of shape \(2, 1\)"), ([[0], [1]], "got int64")):
        with pytest.raises(DataError, match=message):
            blank_cells(pd.DataFrame({"x": [1, 2]}), mask)


FRAME = pd.DataFrame([range(10), range(10, 20)], columns=list("abcdefghij"), index=["r", "s"])


def owned(parts):
    return {party: "".join(frame.columns) for party, frame in parts.items()}


@given(
    n_columns=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 99), mix=st.booleans()
)
def test_even_split_is_a_partition(n_columns, k, seed, mix):
    k = min(k, n_columns)
    frame = FRAME.join(FRAME.add_suffix("2")).iloc[:, :n_columns]
    parts = split_columns(frame, k, seed=seed, shuffle=mix)
    assert list(parts) == [f"party-{i}" for i in range(k)]
    names = [name for part in parts.values() for name in part.columns]
    assert sorted(names) == sorted(frame.columns)
    sizes = [part.shape[1] for part in parts.values()]
    assert max(sizes) - min(sizes) <= 1
    for part in parts.values():
        pd.testing.assert_frame_equal(part, frame[list(part.columns)])
        assert list(part.columns) == [name for name in frame.columns if name in part.columns]


def test_without_shuffle_neighbours_stay_together():
    expected = {"x": "abcd", "y": "efg", "z": "hij"}
    assert owned(split_columns(FRAME, ["x", "y", "z"], shuffle=False)) == expected


def test_splits_follow_the_seed():
    first, again = (owned(split_columns(FRAME, 3, seed=4)) for _ in range(2))
    assert first == again
    others = [owned(split_columns(FRAME, 3, seed=s)) for s in range(5, 15)]
    assert any(other != first for other in others)
    together = sum("ab" in party[0:2] for o in others for party in o.values())
    assert together < 10  # random columns, not runs


def test_named_columns_and_counts():
    parts = split_columns(FRAME, {"x": ["j", "a"], "y": 5, "z": 3}, shuffle=False)
    assert owned(parts) == {"x": "ja", "y": "bcdef", "z": "ghi"}
    parts["x"].loc["r", "a"] = 99
    assert FRAME.loc["r", "a"] == 0  # parts share no memory
    mixed = owned(split_columns(FRAME, {"y": 5, "x": ["j", "a"], "z": 3}, seed=2))
    assert list(mixed) == ["y", "x", "z"]
    assert sorted("".join(mixed.values())) == list("abcdefghij")
    assert (len(mixed["y"]), mixed["x"]) == (5, "ja")
    assert owned(split_columns(FRAME, {"x": ["b"], "y": ["d", "c"]})) == {"x": "b", "y": "dc"}


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        (11, "11 parties cannot share 10 columns"),
        (0, "parties must be a positive integer, got 0"),
        (True, "positive integer"),
        ([], "at least one name"),
        (["x", "x"], "each once"),
        ("xy", "the string 'xy'"),
        ({}, "parties is empty"),
        ({"x": ["a", "q"]}, "party 'x' asks for the unknown columns 'q'; there are a, b"),
        ({"x": ["a", "b"], "y": ["b"]}, "column 'b' is given to party 'x' and to party 'y'"),
        ({"x": ["a", "a"]}, "column 'a' is given to party 'x' and to party 'x'"),
        ({"x": []}, "party 'x' gets no columns"),
        ({"x": ["a"], "y": 10}, "add up to 10, expected 9"),
        ({"x": 4, "y": 5}, "add up to 9, expected 10"),
        ({"x": 0, "y": 10}, "columns of party 'x' must be a positive integer"),
    ],
)
def test_split_columns_refuses(parties, message):
    with pytest.raises(ConfigError, match=message):
        split_columns(FRAME, parties)


def test_accuracy_by_hand():
    truth = pd.DataFrame(
        {"x": [0.0, 2.0, 4.0, 6.0], "c": list("uvuv"), "b": [True, False, True, True]},
        index=list("abcd"),
    )
    before = truth.drop(index="d").astype({"b": object})
    before.loc["a", "x"] = np.nan
    before.loc["b", ["c", "b"]] = np.nan
    after = truth.copy()
    after.loc["a", "x"] = 1.0  # off by 1
    after.loc["d"] = [9.0, "v", True]  # the completed block: off by 3, right, right
    after.loc["b", "c"] = "u"  # wrong; "b" is right
    found = imputation_accuracy(before, after, truth)
    spread = np.std([0, 2, 4, 6])
    assert found["rmse_in_sd"] == pytest.approx(np.sqrt((1 + 9) / 2) / spread)
    assert found["share_right"] == pytest.approx(3 / 4)


def test_accuracy_of_nothing():
    table = pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"])
    assert imputation_accuracy(table, table, table) == {}
    gaps = pd.DataFrame({"x": [1.0, np.nan]}, index=["a", "b"])
    assert imputation_accuracy(gaps, table, table.loc[["a"]]) == {}


def test_filling_in_the_mean_gives_about_one():
    truth = pd.DataFrame({"x": np.random.default_rng(0).normal(5, 3, 4000)})
    hidden = np.random.default_rng(1).random((4000, 1)) < 0.5
    before = truth.mask(hidden)
    found = imputation_accuracy(before, before.fillna(before.mean()), truth)
    assert found["rmse_in_sd"] == pytest.approx(1, abs=0.05)
