import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flwr_vertical.errors import DataError
from flwr_vertical.incomplete import at_least_one_party, blank_cells, drop_blocks
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


@pytest.mark.parametrize("mask", [[True, False], np.ones((2, 2)), np.ones((2, 0), bool)])
def test_at_least_one_party_refuses(mask):
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


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[True, False]] * 3, "leaves no row to 'bank'"),
        ([[True, False]] * 2, r"shape \(3, 2\), got bool of shape \(2, 2\)"),
        ([[1, 0]] * 3, "must be booleans"),
    ],
)
def test_drop_blocks_refuses(mask, message):
    with pytest.raises(DataError, match=message):
        drop_blocks(complete(), mask)


def test_drop_blocks_needs_one_index():
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
    frame = pd.DataFrame({"x": [1, 2]})
    with pytest.raises(DataError, match=r"mask must be booleans of shape \(2, 1\)"):
        blank_cells(frame, [[True]])
    with pytest.raises(DataError, match="got int64"):
        blank_cells(frame, [[0], [1]])
