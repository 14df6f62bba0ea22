import math
import pickle

import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.page import human_bytes, human_seconds
from flwr_vertical.results.ledger import Ledger, Message


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    now = ledger.next_round()
    ledger.add(Message(now, "setup", "call", "a", 10, 20, 0, 0.1))
    ledger.add(Message(now, "setup", "call", "b", 10, 30, 0, 0.3))
    for _ in range(2):
        now = ledger.next_round()
        for party, up, seconds in (("a", 80, 0.5), ("b", 160, 0.25)):
            ledger.add(Message(now, "fit", "masked", party, 5, up, 10, seconds))
    return ledger


def test_totals_are_those_counted_by_hand(ledger):
    assert ledger.rounds == 3
    assert ledger.messages == 6
    assert ledger.bytes_up == 50 + 2 * 240
    assert ledger.bytes_down == 20 + 20
    assert ledger.values_up == 40
    # The messages of a round travel together: it lasts as long as the slowest.
    assert ledger.seconds == pytest.approx(0.3 + 0.5 + 0.5)


def test_empty_ledger_counts_nothing_and_prints():
    ledger = Ledger()
    assert (ledger.rounds, ledger.messages, ledger.bytes_up, ledger.seconds) == (0, 0, 0, 0.0)
    assert ledger.to_frame().empty
    assert ledger.summary().empty
    assert "total" in str(ledger)


def test_frame_has_one_row_per_message(ledger):
    frame = ledger.to_frame()
    assert list(frame.columns) == [
        "round", "step", "mode", "party", "bytes_down", "bytes_up", "values_up", "seconds",
    ]  # fmt: skip
    assert len(frame) == 6
    assert frame.iloc[-1].to_dict() == {
        "round": 3, "step": "fit", "mode": "masked", "party": "b", "bytes_down": 5,
        "bytes_up": 160, "values_up": 10, "seconds": 0.25,
    }  # fmt: skip


def test_summary_per_step(ledger):
    summary = ledger.summary()
    assert list(summary.index) == ["setup", "fit"]
    assert summary.loc["fit", "rounds"] == 2
    assert summary.loc["fit", "messages"] == 4
    assert summary.loc["fit", "bytes_up"] == 480
    assert summary.loc["fit", "bytes_per_value"] == pytest.approx(480 / 40)
    assert summary.loc["fit", "seconds"] == pytest.approx(1.0)
    assert math.isnan(summary.loc["setup", "bytes_per_value"])
    ledger.add(Message(4, "end", "call", "a", 0, 80, 10, 0))
    ledger.add(Message(4, "end", "call", "b", 0, 999, 0, 0))
    assert ledger.summary().loc["end", "bytes_per_value"] == 8  # of messages with values


def test_summary_by_party_mode_round_and_total(ledger):
    assert ledger.summary("party").loc["b", "bytes_up"] == 30 + 320
    assert ledger.summary("party").loc["b", "seconds"] == pytest.approx(0.8)
    assert ledger.summary("mode").loc["call", "messages"] == 2
    assert list(ledger.summary("round").index) == [1, 2, 3]
    assert ledger.summary("total").loc["total", "bytes_up"] == 530
    with pytest.raises(ConfigError, match="by must be"):
        ledger.summary("colour")


def test_privacy_adds_up_per_party(ledger):
    ledger.spend("a", 0.5, "ranks")
    ledger.spend("a", 0.25, "margins")
    ledger.spend("b", 1, "ranks")
    assert ledger.privacy.to_dict("list") == {
        "party": ["a", "a", "b"],
        "what": ["ranks", "margins", "ranks"],
        "epsilon": [0.5, 0.25, 1.0],
    }
    assert ledger.epsilon == {"a": 0.75, "b": 1.0}
    assert "a 0.75" in str(ledger)


def test_impossible_entries_are_refused():
    for epsilon in (-1, math.nan):
        with pytest.raises(ConfigError, match="epsilon"):
            Ledger().spend("a", epsilon, "ranks")
    with pytest.raises(ConfigError, match="'cleartext'"):
        Ledger().add(Message(1, "s", "cleartext", "a", 0, 0, 0, 0))


def test_next_round_goes_on_after_rounds_numbered_by_the_caller():
    ledger = Ledger()
    ledger.add(Message(7, "s", "call", "a", 0, 0, 0, 0))
    assert ledger.next_round() == 8
    assert ledger.rounds == 1  # an opened round counts when a message is sent


def test_frames_and_pickles_rebuild_the_ledger(ledger):
    ledger.spend("a", 0.5, "ranks")
    again = Ledger.from_frames(ledger.to_frame(), ledger.privacy)
    pd.testing.assert_frame_equal(again.to_frame(), ledger.to_frame())
    assert again.totals() == ledger.totals()
    assert again.next_round() == 4
    assert pickle.loads(pickle.dumps(ledger)).totals() == ledger.totals()


def test_printed_table_lines_up(ledger):
    lines = str(ledger).splitlines()
    assert lines[0].split() == ["step", "rounds", "messages", "up", "down", "B/value", "seconds"]
    assert len({len(line) for line in lines}) == 1
    assert lines[-1].startswith("total")
    assert "530 B" in lines[-1]


def test_bytes_and_seconds_as_people_read_them():
    for size, text in (
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345, "12.3 kB"), (999_990, "1.0 MB"),
        (3_400_000_000, "3.4 GB"), (5e15, "5000.0 TB"),
    ):  # fmt: skip
        assert human_bytes(size) == text
    for seconds, text in (
        (0, "0 ms"), (0.0032, "3.2 ms"), (0.9999, "1.0 s"), (4.52, "4.5 s"), (125, "2 min 05 s"),
        (7300, "2 h 01 min"),
    ):  # fmt: skip
        assert human_seconds(seconds) == text
