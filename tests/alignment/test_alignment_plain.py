"""Plain alignment against pandas, and the labels in the aligned order."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    Strategy,
    Table,
    party_app,
    simulate,
    step,
)
from flwr_vertical.alignment import (
    Aligner,
    PlainAligner,
    check_overlap,
    make_aligner,
    register_aligner,
)
from flwr_vertical.alignment.registry import _ALIGNERS
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.state import State


class Bystander(Party):
    @step
    def nothing(self):
        return {}


class LabelsOnly(Strategy):
    """Keeps the labels that the federation has."""

    name = "labels-only"
    party = Bystander

    def run(self, federation, alignment, result, progress):
        federation.call("nothing")  # takes the positions to the parties
        result.model = (alignment, federation.labels)


def frames(ids):
    """One column of numbers for each party; party ``a`` has the first IDs."""
    return {
        name: pd.DataFrame({"x": np.arange(len(own)) + 0.5}, index=list(own))
        for name, own in zip("abcdef", ids, strict=False)
    }


def aligned(tables):
    """Align over a local grid; return the alignment and each party's state."""
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    app = party_app(Bystander, storage=storage)
    with LocalGrid(app, [{"party": name} for name in tables]) as grid:
        federation = Federation(grid, aggregation="plain", retries=0, timeout=30)
        federation.open()
        alignment = PlainAligner().align(federation)
        check_overlap(alignment)
        federation.call("nothing")
        states = {c.node_config["party"]: State(c) for c in grid.contexts.values()}
        assert federation.ledger.rounds == 3  # hello, alignment, and the call above
    return alignment, states


def expected(tables):
    """What pandas says: the union in order of first appearance, and who lacks what."""
    names = sorted(tables)
    union = pd.concat([pd.Series(1, index=tables[name].index) for name in names]).index.unique()
    return union, np.column_stack([~union.isin(tables[name].index) for name in names])


def shares_a_row(tables):
    sets = {name: set(frame.index) for name, frame in tables.items()}
    return all(any(sets[name] & sets[other] for other in sets if other != name) for name in sets)


SUBSETS = st.lists(
    st.lists(st.integers(0, 14), min_size=1, max_size=12, unique=True), min_size=2, max_size=5
)


@settings(max_examples=80, deadline=None)
@given(subsets=SUBSETS, kind=st.sampled_from(["int", "negative", "str"]))
def test_index_and_mask_are_those_of_pandas(subsets, kind):
    form = {
        "int": lambda i: i,
        "negative": lambda i: (i - 7) * 10**15,
        "str": lambda i: f"Ü{'x' * i}{i}",
    }[kind]
    tables = frames([[form(i) for i in own] for own in subsets])
    if not shares_a_row(tables):
        with pytest.raises(DataError, match=r"party '[a-e]' has no common sample with any of"):
            aligned(tables)
        return
    alignment, states = aligned(tables)
    union, mask = expected(tables)
    assert alignment.parties == sorted(tables)
    assert alignment.n_samples == len(union)
    assert list(alignment.ids) == list(union)
    np.testing.assert_array_equal(alignment.mask, mask)
    for k, (name, frame) in enumerate(tables.items()):
        state = states[name]
        assert list(union[state["positions"]]) == list(frame.index)
        assert state["n_samples"] == len(union)
        # Only a party that lacks samples learns the IDs of the others.
        assert ("ids" in state) == mask[:, k].any()
        if "ids" in state:
            assert list(state["ids"]) == list(union)


def test_one_party_alone_is_aligned_with_itself():
    alignment, states = aligned(frames([["b", "a"]]))
    assert list(alignment.ids) == ["b", "a"]
    assert not alignment.mask.any()
    np.testing.assert_array_equal(states["a"]["positions"], [0, 1])


def test_mixed_types_of_ids_are_an_error():
    tables = frames([[1, 2, 3], ["1", "2", "3"]])
    with pytest.raises(DataError) as caught:
        aligned(tables)
    assert "different types: {'a': 'integer', 'b': 'text'}" in str(caught.value)
    assert "store them all as text or all as integers" in str(caught.value)


def test_parties_without_a_common_row_are_an_error():
    with pytest.raises(DataError, match=r"party 'a' has no common sample with any of \['b'\]"):
        aligned(frames([["x1", "x2"], ["x01", "x02"]]))
    with pytest.raises(DataError, match=r"party 'c' has no common sample with any of \['a', 'b'\]"):
        aligned(frames([["x", "y"], ["y", "z"], ["w"]]))


def test_ids_that_only_differ_in_trailing_nulls_are_not_confused():
    tables = frames([["a", "a\0"], ["a", "b"]])
    with pytest.raises(PartyError, match=r"'a'.*'share_ids'.*NUL"):
        aligned(tables)


def test_narrow_integer_ids_keep_their_type_in_completed_rows():
    left = pd.DataFrame({"x": np.arange(9.0)}, index=np.arange(9, dtype=np.int32))
    right = pd.DataFrame({"y": np.arange(9.0) ** 2}, index=np.arange(1, 10, dtype=np.int64))
    from strategies.fknn import FKNN

    result = simulate(FKNN(n_neighbors=2), {"l": left, "r": right}, progress=False)
    assert result.tables["l"].index.dtype == np.int32
    assert result.tables["r"].index.dtype == np.int64
    assert sorted(result.tables["l"].index) == sorted(result.tables["r"].index) == list(range(10))


# -- labels ----------------------------------------------------------------------------------


def run_labels(tables, labels, run_config=None, label_holder=None, **kwargs):
    kwargs.setdefault("alignment", "plain")
    if run_config is None:
        result = simulate(LabelsOnly(), tables, labels, progress=False, **kwargs)
        return result.model
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    app = party_app(Bystander, storage=storage)
    with LocalGrid(app, [{"party": name} for name in tables], run_config) as grid:
        result = LabelsOnly().start(
            grid=grid, labels=labels, label_holder=label_holder, retries=0, progress=False, **kwargs
        )
    return result.model


TABLES = frames([["u", "v", "w"], ["w", "x", "u"]])


def test_labels_follow_the_aligned_order():
    labels = pd.Series({"x": 4.0, "u": 1.0, "w": np.nan, "stranger": 9.0})
    alignment, got = run_labels(TABLES, labels)
    assert list(alignment.ids) == ["u", "v", "w", "x"]
    np.testing.assert_array_equal(got, [1.0, np.nan, np.nan, 4.0])


def test_no_labels_are_none():
    assert run_labels(TABLES, None)[1] is None


def test_labels_with_a_repeated_id_are_an_error():
    labels = pd.Series([1.0, 2.0, 3.0], index=["u", "u", "v"])
    with pytest.raises(DataError, match="table of labels has 1 rows whose sample ID repeats"):
        run_labels(TABLES, labels)


def test_labels_of_nobody_are_an_error():
    with pytest.raises(DataError, match="no label belongs to a sample of any party"):
        run_labels(TABLES, pd.Series({"U": 1.0}))
    with pytest.raises(DataError, match=r"different types.*labels.*integer"):
        run_labels(TABLES, pd.Series({1: 1.0}))


LABEL_TABLES = {
    "a": pd.DataFrame({"x": [1.0, 2.0, 3.0], "speed": [10, 20, 30]}, index=["u", "v", "w"]),
    "b": pd.DataFrame({"y": [1.0, 2.0], "speed": [0.1, 0.2]}, index=["x", "u"]),
}


@pytest.mark.parametrize(
    ("holder", "expected"), [("a", [10, 20, 30, np.nan]), ("b", [0.2, np.nan, np.nan, 0.1])]
)
def test_a_party_may_hold_the_labels(holder, expected):
    run_config = {"label-holder": holder, "label-column": "speed"}
    alignment, got = run_labels(LABEL_TABLES, None, run_config, holder)
    assert list(alignment.ids) == ["u", "v", "w", "x"]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("run_config", "holder", "error", "why"),
    [
        ({"label-holder": "a", "label-column": "sped"}, "a", PartyError,
         r"'a'.*'labels'.*no column 'sped'.*\['x', 'speed'\]"),
        ({}, "a", PartyError, "'a' was asked for labels, but the run config does not name it"),
        ({"label-holder": "b", "label-column": "speed"}, "a", PartyError, "was asked for labels"),
        ({"label-holder": "c", "label-column": "speed"}, "c", ConfigError,
         r"no party 'c' in this run; its parties are \['a', 'b'\]"),
    ],
)  # fmt: skip
def test_a_label_holder_that_cannot_be_used(run_config, holder, error, why):
    with pytest.raises(error, match=why):
        run_labels(LABEL_TABLES, None, run_config, holder)
    if error is ConfigError:
        with pytest.raises(error, match="no party 'c' in this run to hold the labels"):
            run_labels(LABEL_TABLES, None, run_config, holder, align_rows="labelled")


# -- aligners by name ------------------------------------------------------------------------


def test_unknown_alignments_list_the_valid_ones():
    with pytest.raises(
        ConfigError, match=r"unknown alignment 'magic'; expected one of \[.*'plain'"
    ):
        make_aligner("magic")


def test_an_aligner_of_one_s_own(monkeypatch):
    class Reversed(PlainAligner):
        def align(self, federation, label_ids=None, label_holder=None):
            federation.parties.reverse()
            return super().align(federation, label_ids, label_holder)

    monkeypatch.delitem(_ALIGNERS, "reversed", raising=False)
    register_aligner("reversed", Reversed)
    try:
        assert isinstance(make_aligner("reversed"), Aligner)
        for alignment in ("reversed", Reversed()):
            got, _ = run_labels(TABLES, None, alignment=alignment)
            assert got.parties == ["b", "a"]
            assert list(got.ids) == ["w", "x", "u", "v"]
    finally:
        del _ALIGNERS["reversed"]
