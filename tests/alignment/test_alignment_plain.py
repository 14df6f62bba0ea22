"""Plain alignment against pandas, labels in the aligned order, and `flwr-vertical align`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.cli.align import AlignOnly
from apps.cli.main import main
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
from flwr_vertical.alignment import plain
from flwr_vertical.alignment.base import Aligner, check_overlap
from flwr_vertical.alignment.plain import PlainAligner
from flwr_vertical.alignment.registry import _ALIGNERS, make_aligner, register_aligner
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.state import State
from flwr_vertical.tables.ids import index_of
from strategies.fknn import FKNN


class Bystander(Party):
    @step
    def nothing(self):
        return {}


class LabelsOnly(Strategy):
    """Keeps the labels that the federation has."""

    uses_labels = True
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


def aligned(tables, normalise=""):
    """Align over a local grid; return the alignment and each party's state."""
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    app = party_app(Bystander, storage=storage)
    with LocalGrid(app, [{"party": name} for name in tables]) as grid:
        federation = Federation(grid, aggregation="plain", retries=0, timeout=30)
        federation.open()
        alignment = PlainAligner(normalise=normalise).align(federation)
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


@settings(max_examples=30, deadline=None)
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
            assert list(index_of(state["ids"])) == list(union)


def test_a_character_of_an_id_travels_as_one_byte():
    def bytes_up(width):
        tables = frames([[f"{i:0{width}d}x" for i in range(100)]] * 2)
        result = simulate(AlignOnly(), tables, alignment="plain")
        return result.ledger.to_frame().query("step == 'share_ids'")["bytes_up"]

    assert (bytes_up(18) - bytes_up(8) == 10 * 100).all()


@pytest.mark.parametrize(
    ("sent", "error", "why"),
    [
        (np.array(["a", "b"]), PartyError, "neither whole numbers nor UTF-8 text"),
        (np.array([[1], [2]]), PartyError, "neither whole numbers nor UTF-8 text"),
        (np.array([0.5, 1.5]), PartyError, "neither whole numbers nor UTF-8 text"),
        (np.array([b"a", b"\xff"]), DataError, "no UTF-8 text"),
    ],
)
def test_ids_that_no_node_of_ours_would_send_are_refused(monkeypatch, sent, error, why):
    monkeypatch.setattr(plain, "normal_ids", lambda *_: sent)
    with pytest.raises(error, match=why):
        aligned(frames([["a", "b"], ["a", "b"]]))


def test_one_party_alone_is_aligned_with_itself():
    alignment, states = aligned(frames([["b", "a"]]))
    assert list(alignment.ids) == ["b", "a"]
    assert not alignment.mask.any()
    np.testing.assert_array_equal(states["a"]["positions"], [0, 1])


@pytest.mark.parametrize(("own", "normalise"), [(["a", "a\0"], ""), (["c", "a\0 "], "strip")])
def test_ids_that_only_differ_in_trailing_nulls_are_not_confused(own, normalise):
    tables = frames([own, ["a", "b"]])
    with pytest.raises(PartyError, match=r"'a'.*'share_ids'.*NUL"):
        aligned(tables, normalise)


def test_narrow_integer_ids_keep_their_type_in_completed_rows():
    left = pd.DataFrame({"x": np.arange(9.0)}, index=np.arange(9, dtype=np.int32))
    right = pd.DataFrame({"y": np.arange(9.0) ** 2}, index=np.arange(1, 10, dtype=np.int64))
    result = simulate(FKNN(n_neighbors=2), {"l": left, "r": right})
    assert result.tables["l"].index.dtype == np.int32
    assert result.tables["r"].index.dtype == np.int64
    assert sorted(result.tables["l"].index) == sorted(result.tables["r"].index) == list(range(10))


def run_labels(tables, labels, run_config=None, label_holder=None, alignment="plain", **kwargs):
    kwargs["alignment"] = alignment
    if run_config is None:
        return simulate(LabelsOnly(), tables, labels, **kwargs).model
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    app = party_app(Bystander, storage=storage)
    with LocalGrid(app, [{"party": name} for name in tables], run_config) as grid:
        result = LabelsOnly().start(
            grid=grid, labels=labels, label_holder=label_holder, retries=0, **kwargs
        )
    return result.model


TABLES = frames([["u", "v", "w"], ["w", "x", "u"]])


def test_labels_that_cannot_be_used():
    assert run_labels(TABLES, None)[1] is None
    for labels, why in (
        (pd.Series([1.0, 2.0, 3.0], ["u", "u", "v"]), "has 1 row whose sample ID repeats"),
        (pd.Series({"U": 1.0}), "no label belongs to a sample of any party"),
        (pd.Series({1: 1.0}), r"different types.*labels.*integer"),
    ):
        with pytest.raises(DataError, match=why):
            run_labels(TABLES, labels)


LABEL_TABLES = {
    "a": pd.DataFrame({"x": [1.0, 2.0, 3.0], "speed": [10, 20, 30]}, index=["u", "v", "w"]),
    "b": pd.DataFrame({"y": [1.0, 2.0], "speed": [0.1, 0.2]}, index=["x", "u"]),
}


def test_labels_of_a_party_stay_there_if_a_strategy_uses_none():
    fknn = FKNN(n_neighbors=1)
    with pytest.raises(ConfigError, match=r"uses no labels: take out label-holder.*of 'a'"):
        simulate(fknn, LABEL_TABLES, label_holder="a", label_column="speed")
    some = pd.Series({"u": 1.0, "q": 0.0, "r": np.nan})
    noted = simulate(fknn, LABEL_TABLES, some)
    assert any("1 of 3 labels belong to no sample of the run" in note for note in noted.notes)
    assert "fknn made no use of the server's labels" in noted.notes


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


@pytest.fixture
def files(tmp_path):
    left = pd.DataFrame({"first": ["Ann", "Bo", "Cy"], "last": ["x", "y", "z"], "u": [1, 2, 3]})
    right = pd.DataFrame({"first": ["ann", "Cy"], "last": ["x", "z"], "v": [1.5, 2.5]})
    for name, frame in (("bank", left), ("court", right)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return [str(tmp_path / "bank.csv"), str(tmp_path / "court.csv")]


@pytest.mark.parametrize(
    "alignment", ["private-id", pytest.param("kkrt", marks=pytest.mark.slow), "plain"]
)
def test_it_counts_patterns(files, capsys, alignment):
    arguments = ["--id-column", "first,last", "--alignment", alignment]
    assert main(["align", *files, *arguments]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[:4]] in (
        [["bank", "court", "samples"], ["yes", "-", "2"], ["yes", "yes", "1"], ["-", "yes", "1"]],
        [["bank", "court", "samples"], ["yes", "-", "2"], ["-", "yes", "1"], ["yes", "yes", "1"]],
    )
    assert "node keys" not in shown  # of the trial, which no federation runs
    assert "protocol" not in shown
    assert main(["align", *files, *arguments, "--normalise", "casefold"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[-1] for line in lines[1:3]) == ["1", "2"]
    assert main(["align", *files, *arguments, "--rows", "intersection"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["yes", "yes", "1"]


def test_errors_are_short_and_exit_with_two(files, capsys):
    for arguments, why in (
        ([*files, "--id-column", "nope"], "no column 'nope'"),
        ([files[0]], "at least two files"),
        ([files[0], files[0]], "names must differ"),
    ):
        assert main(["align", *arguments]) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("error: ")
        assert why in shown


@pytest.mark.parametrize(
    ("arguments", "why"), [(["--alignment", "magic"], "private-id"), (["--rows", "all"], "union")]
)
def test_values_that_there_are_not_are_one_line_and_exit_with_two(files, capsys, arguments, why):
    with pytest.raises(SystemExit) as caught:
        main(["align", *files, *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert why in shown
    assert shown.count("\n") == 1


def test_a_short_file_beside_a_long_one(tmp_path, capsys):
    """On one machine nobody guesses IDs, however many more the other file has."""
    for name, count in (("few", 2), ("many", 150)):
        frame = pd.DataFrame({"id": [f"c{i}" for i in range(count)], name: 1.0})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    assert main(["align", str(tmp_path / "few.csv"), str(tmp_path / "many.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["-", "yes", "148"]
