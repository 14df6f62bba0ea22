"""Checks of a table in memory, and of the sample IDs of several."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import DataError
from flwr_vertical.tables import DataWarning, Finding, Severity, Table, check_table
from flwr_vertical.tables.findings import lines_of
from flwr_vertical.tables.id_checks import check_ids, check_overlap_of, overlap_of
from flwr_vertical.tables.readers import label_numbers
from strategies.baselines import Mean
from strategies.trees.binning import fit_bins

N = 40
RNG = np.random.default_rng(0)


def frame_of(**columns):
    return pd.DataFrame(columns, index=[f"k{i}" for i in range(N)])


def errors_of(frame, **options):
    return [one for one in check_table(frame, **options) if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (np.full(N, np.nan), "no-values"),
        (np.array([np.inf, *range(N - 1)]), "infinite"),
        (pd.timedelta_range("1D", periods=N), "type"),
        ([1, "a"] * (N // 2), "type"),
    ],
)
def test_what_a_run_refuses_is_an_error_with_the_same_words(values, code):
    frame = frame_of(good=RNG.normal(size=N), bad=values)
    (found,) = errors_of(frame)
    assert (found.code, found.column) == (code, "bad")
    assert found.advice
    with pytest.raises(DataError) as caught:
        Table.of(frame)
    assert found.advice in str(caught.value)


def test_all_errors_are_found_at_once():
    frame = frame_of(empty=np.full(N, np.nan), big=np.full(N, np.inf), fine=np.arange(N) % 7)
    frame.index = ["k0", *frame.index[:-1]]
    assert {one.code for one in errors_of(frame)} == {"ids", "no-values", "infinite"}
    (wrong,) = errors_of(frame_of(fine=np.arange(N) % 7), kinds={"other": "count"})
    assert (wrong.code, wrong.column) == ("kinds", "other")
    (wrong,) = errors_of(frame_of(fine=np.arange(N) % 7), kinds={"fine": "binary"})
    assert "7 distinct values" in wrong.seen
    assert errors_of(pd.DataFrame(index=["a"]))[0].code == "shape"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (np.arange(N), "row-numbers"),
        (RNG.choice([1.0, 1.5, 2.0], 60)[:N], None),
        ([None] * (N - 1) + [5.0], "mostly-missing"),
        (["a"] * (N - 2) + ["b", "c"], "rare-levels"),
        ([True, False] * (N // 2), None),
        (pd.Categorical(["low", "high"] * (N // 2), ["low", "high"], ordered=True), None),
    ],
)
def test_notes(values, code):
    found = check_table(frame_of(x=values))
    assert [one.code for one in found] == ([code] if code else [])
    assert all(one.severity is Severity.NOTE for one in found)


def test_few_fractions_and_many_levels_need_enough_rows():
    index = [f"k{i}" for i in range(300)]
    frame = pd.DataFrame({"grade": np.tile([1.0, 1.5, 2.0], 100)}, index)
    frame["level"] = [f"v{i % 60}" for i in range(300)]
    assert {(one.code, one.column) for one in check_table(frame)} == {
        ("few-fractions", "grade"), ("many-levels", "level"),
    }  # fmt: skip


@pytest.mark.parametrize("start", [2**60, -(2**60), 2**63 + 2**60])
@pytest.mark.parametrize("gap", [False, True])
def test_whole_numbers_beyond_16_digits_are_named_and_not_called_constant(start, gap):
    values = pd.Series([start + i % 7 for i in range(N)], dtype="UInt64" if start > 0 else "Int64")
    frame = frame_of(x=values.mask(pd.Series(np.arange(N) == 3) & gap).array)
    [found] = check_table(Table.of(frame))
    assert found.code == "digits"
    assert "7 different ones count as 1" in found.seen
    assert not [
        one for one in check_table(frame_of(x=np.arange(N) * 2**54)) if one.code == "digits"
    ]


def test_what_looks_at_values_leaves_no_copy_of_ids_in_memory():
    """A column's cells taken with their index make pandas keep 95 bytes of each ID."""
    n_rows = 20_000
    frame = pd.DataFrame(
        np.random.default_rng(0).normal(size=(n_rows, 2)),
        pd.Index([f"id{i:09}" for i in range(n_rows)]),
        ["a", "b"],
    )
    check_table(frame.head(100))  # What is loaded once
    tracemalloc.start()
    check_table(frame)
    table = Table.of(frame)
    label_numbers(table.frame["a"], "", "labels")
    fit_bins(table, 16)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 30 * n_rows


def test_sentinels_are_far_from_the_other_values():
    far = frame_of(x=np.where(np.arange(N) % 9, RNG.uniform(18, 90, N), 9999.0))
    assert [one.code for one in check_table(far)] == ["sentinel"]
    near = frame_of(x=np.append(np.arange(N - 1) * 25.5, 999.0))
    assert not check_table(near)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        (["1", "2", "3"], "id-digits"),
        (["01", "2", "3"], "id-zeros"),
        (["1", "2", "x"], "id-mixed"),
        (["1.0", "2.0", "3.0"], "id-points"),
        (["a", " b", "c"], "id-space"),
        (["a", "A", "c"], "id-variants"),
        (["é", "e\u0301", "c"], "id-variants"),
        (["a", "a", "c"], "ids"),
        (["a", None, "c"], "ids"),
        ([1.5, 2.5, 3.5], "ids"),
        ([1, 2, 3], None),
        (["a", "b", "c"], None),
        (pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]), None),
        (pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("a", 1)]), "ids"),
    ],
)
def test_ids_of_one_table(ids, code):
    found = list(check_ids(pd.DataFrame(index=ids).index))
    assert [one.code for one in found] == ([code] if code else [])
    assert all(one.advice for one in found)


@pytest.mark.parametrize(
    ("other", "codes", "words"),
    [
        (["a1", "b2", "x9", "y9"], [], ""),
        (["A1", "B2", "C3", "D4"], ["id-forms"], "casefold"),
        ([" a1", " b2", " c3", "z"], ["id-forms"], "strip"),
        (["p", "q"], ["no-overlap"], "same kind of ID"),
        ([1, 2, 3], ["id-types"], "same way"),
    ],
)
def test_ids_of_two_tables(other, codes, words):
    indices = {"bank": pd.Index(["a1", "b2", "c3", "d4"]), "court": pd.Index(other)}
    found = list(check_overlap_of(indices))
    assert [one.code for one in found] == codes
    assert all(words in one.text() for one in found)


@pytest.mark.parametrize(("other", "codes"), [([3, 4, 5], []), ([4, 5], ["no-overlap"])])
def test_whole_numbers_as_ids_of_two_tables(other, codes):
    indices = {"bank": pd.Index([1, 2, 3]), "court": pd.Index(other)}
    assert [one.code for one in check_overlap_of(indices)] == codes


@pytest.mark.parametrize(
    ("name", "values", "index", "found"),
    [
        ("id", [7, 8, 9], None, "IDs are row numbers; state id-column='id'"),
        ("customer_id", ["a", "b", "c"], "age", "IDs are those of 'age'; state id-column="),
        ("clientID", [7, 8, 9], "age", "IDs are those of 'age'"),
        ("id", [7, 7, 9], None, ""),  # not one for each row
        ("id", [0.5, 0.25, 1.0], None, ""),
        ("account_id", [7, 8, 9], "customer_id", ""),
        ("paid", [7, 8, 9], None, ""),
    ],
)
def test_ids_that_are_a_column_by_mistake_are_told(name, values, index, found):
    frame = pd.DataFrame({name: values}, index=pd.Index([3, 4, 5], name=index))
    told = [one.text() for one in check_table(frame) if one.code == "id-name"]
    assert len(told) == bool(found)
    assert all(found in one for one in told)


def test_integers_of_one_table_are_text_with_zeros_in_another():
    found = list(
        check_overlap_of({"bank": pd.Index(["001", "002", "003"]), "court": pd.Index([1, 2, 3])})
    )
    assert [one.code for one in found] == ["id-types", "id-forms"]
    assert "3 but for leading zeros and type" in found[1].seen


def test_overlap_counts_patterns():
    found = overlap_of({"a": pd.Index([1, 2, 3, 4]), "b": pd.Index([3, 4, 5])})
    rows = {tuple(row) for row in found.itertuples(index=False)}
    assert rows == {(True, False, 2), (True, True, 2), (False, True, 1)}


def test_many_columns_alike_take_one_line():
    found = [Finding("constant", f"x{j}", "same", "drop it") for j in range(2000)]
    (line,) = lines_of(found)
    assert "2,000 columns alike ('x0', 'x1', 'x2' and 1,997 more)" in line
    assert len(lines_of(found[:3])) == 3


def test_simulate_warns_and_keeps_values_out_of_the_notes():
    frame = frame_of(since=[f"2024-01-{i % 28 + 1:02}" for i in range(N)], x=RNG.normal(size=N))
    with pytest.warns(DataWarning, match=r"party 'bank': column 'since'.*2024-01-01") as caught:
        result = simulate(Mean(), {"bank": frame})
    assert caught[0].filename == __file__
    (note,) = result.notes
    assert note.startswith("party 'bank': column 'since': dates")
    assert "2024-01" not in note
    stated = {"bank": {"since": "categorical"}}
    assert not simulate(Mean(), {"bank": frame}, kinds=stated).notes
