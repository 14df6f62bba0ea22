import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete import split_columns

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


def test_seeds():
    first, again = (owned(split_columns(FRAME, 3, seed=4)) for _ in range(2))
    assert first == again
    others = [owned(split_columns(FRAME, 3, seed=s)) for s in range(5, 15)]
    assert any(other != first for other in others)
    together = sum("ab" in party[0:2] for o in others for party in o.values())
    assert together < 10  # random columns, not runs


def test_named_columns_and_counts():
    parts = split_columns(FRAME, {"x": ["j", "a"], "y": 5, "z": 3}, shuffle=False)
    assert owned(parts) == {"x": "ja", "y": "bcdef", "z": "ghi"}
    mixed = owned(split_columns(FRAME, {"y": 5, "x": ["j", "a"], "z": 3}, seed=2))
    assert list(mixed) == ["y", "x", "z"]
    assert sorted("".join(mixed.values())) == list("abcdefghij")
    assert (len(mixed["y"]), mixed["x"]) == (5, "ja")
    assert owned(split_columns(FRAME, {"x": ["b"], "y": ["d", "c"]})) == {"x": "b", "y": "dc"}


def test_parts_share_no_memory():
    frame = FRAME.copy()
    part = split_columns(frame, {"x": ["a"]})["x"]
    part.loc["r", "a"] = 99
    assert frame.loc["r", "a"] == 0


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
def test_refuses(parties, message):
    with pytest.raises(ConfigError, match=message):
        split_columns(FRAME, parties)
