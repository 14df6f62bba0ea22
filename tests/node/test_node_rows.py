"""Own rows and aligned rows: scattering values, and the rows of a batch that a party holds."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, Summands, simulate, step
from flwr_vertical.errors import PartyError, ProtocolError
from flwr_vertical.node.row_index import own_rows, rows_of, to_aligned

POSITIONS = np.array([4, -1, 0, 2])


@pytest.mark.parametrize(
    ("values", "fill", "expected"),
    [
        ([1.5, 9.0, 2.5, 3.5], np.nan, [2.5, np.nan, 3.5, np.nan, 1.5]),
        ([1, 9, 2, 3], -1, [2, -1, 3, -1, 1]),
        ([True, True, False, True], False, [False, False, True, False, True]),
        (np.array(["a", "x", "b", "c"]), "", ["b", "", "c", "", "a"]),
    ],
)
def test_values_are_scattered_and_keep_their_dtype(values, fill, expected):
    found = to_aligned(values, POSITIONS, 5, fill)
    assert found.dtype == np.asarray(values).dtype
    np.testing.assert_array_equal(found, expected)


def test_further_axes_and_a_fill_that_the_dtype_cannot_hold():
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = to_aligned(values, POSITIONS, 5, 0.0)
    assert found.shape == (5, 2)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[4, 5], [0, 0], [6, 7], [0, 0], [0, 1]])
    counts = to_aligned(np.array([1, 2, 3, 4]), POSITIONS, 5, np.nan)
    np.testing.assert_array_equal(counts, [3, np.nan, 4, np.nan, 1])


@pytest.mark.parametrize("values", [3.0, [1.0, 2.0], np.zeros((2, 4))])
def test_one_value_for_each_own_row(values):
    with pytest.raises(ProtocolError, match="each of 4 own rows"):
        to_aligned(values, POSITIONS, 5, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_batch_are_those_that_searching_finds(seed):
    rng = np.random.default_rng(seed)
    positions = np.where(rng.random(60) < 0.3, -1, rng.permutation(100)[:60])
    values = rng.normal(size=(60, 3))
    batch = rng.integers(0, 100, size=40)
    places, rows = rows_of(batch, own_rows(positions, 100))
    expected = [
        (place, own)
        for place, number in enumerate(batch)
        for own in np.flatnonzero(positions == number)
    ]
    assert list(zip(places, rows, strict=True)) == expected
    aligned = to_aligned(values, positions, 100, np.nan)
    np.testing.assert_array_equal(aligned[batch[places]], values[rows])
    assert np.isnan(np.delete(aligned[batch], places, axis=0)).all()


def test_a_batch_may_be_empty_or_foreign_to_the_party():
    own = own_rows(POSITIONS, 5)
    for batch in ([], np.array([], dtype=np.int64), [1, 3]):
        places, rows = rows_of(batch, own)
        assert places.dtype == rows.dtype == np.int64
        assert len(places) == len(rows) == 0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([0, 5], "aligned row 5, but aligned rows go from 0 to 4"),
        ([-1], "aligned row -1"),
        ([0.0, 1.0], "float64"),
        ([[0, 1]], r"shape \(1, 2\)"),
    ],
)
def test_a_batch_that_is_none_is_refused(batch, message):
    with pytest.raises(ProtocolError, match=message):
        rows_of(batch, own_rows(POSITIONS, 5))


class BatchParty(Party):
    @step
    def batch(self, rows):
        places, own = self.rows_of(rows)
        values = np.zeros(len(rows))
        values[places] = self.table.frame["x"].to_numpy()[own]
        return Summands({"x": values, "all": self.to_aligned(self.table.frame["x"], 0.0)})


class Batches(Strategy):
    """Sums a column batch by batch and at once; the samples come in an order of the batch's own."""

    name = "batches"
    party = BatchParty

    def __init__(self, offset=0):
        self.offset = offset

    def run(self, federation, alignment, result, progress):
        order = federation.rng.permutation(alignment.n_samples)
        found = np.zeros(alignment.n_samples)
        for rows in np.array_split(order, 4):
            total = federation.sum("batch", {"rows": rows + self.offset})
            found[rows] = total["x"]
        result.model = (found, total["all"])


@pytest.mark.parametrize("alignment", ["plain", "private-id"])
@pytest.mark.parametrize("rows", ["union", "intersection"])
def test_batches_of_a_run_add_up_to_the_whole(alignment, rows):
    rng = np.random.default_rng(3)
    ids = [f"s{i}" for i in range(40)]
    frame = pd.DataFrame({"x": rng.integers(1, 1000, 40).astype(float)}, index=ids)
    given = {"a": frame.sample(30, random_state=1), "b": frame.sample(25, random_state=2)}
    result = simulate(Batches(), given, alignment=alignment, align_rows=rows)
    by_batch, whole = result.model
    np.testing.assert_array_equal(by_batch, whole)
    both = given["a"].add(given["b"], fill_value=0)["x"]
    if rows == "intersection":
        both = both[given["a"].index.intersection(given["b"].index)]
    assert sorted(whole) == sorted(both)


def test_a_batch_outside_the_table_names_party_and_step():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(PartyError, match=r"'a' failed in step 'batch'.*aligned rows go from 0"):
        simulate(Batches(offset=9), {"a": frame, "b": frame})
