"""A sample of `python -m tests.faults.kills`: runs killed on the way end with the same numbers."""

import pytest

from strategies.trees import masked_store
from tests.faults.kills import OF_KEYS, OF_SHARES, WHENS, kill_everywhere, runs

pytestmark = pytest.mark.slow


def killed(name, every, whens=WHENS, first=3):
    """Return what went wrong in a run, and how many kills there were."""
    _, _, found = kill_everywhere(runs()[name](), every, whens, first)
    reached = {at: told for at, told in found.items() if told != "not reached"}
    return {at: told for at, told in reached.items() if told != "equal"}, len(reached)


def test_parties_draw_the_same_where_masked_columns_are_asked_for_again():
    # Between a journal's `send_masked` and `moments` the columns are in no journal.
    wrong, n_kills = killed("fedpsg-ar mice", 2, ["after"])
    assert wrong == {}
    assert n_kills > 8


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("glm binomial", 19), ("glm all", 9), ("fknn", 5), ("gbdt snapshots", 9),
        ("forest snapshots", 12), ("vanilla-vfl snapshots", 9), ("fedpsg-ar joint snapshots", 9),
        ("false-vfl snapshots", 19), ("fedhssl snapshots", 9), ("pipeline", 8),
    ],
)  # fmt: skip
def test_a_run_killed_on_the_way_ends_with_the_same_numbers(name, every):
    wrong, n_kills = killed(name, every)
    assert wrong == {}
    assert n_kills >= 6


def test_rows_that_are_sent_in_blocks_are_asked_for_again(monkeypatch):
    monkeypatch.setattr(masked_store, "SEND_BYTES", 1 << 11)
    wrong, n_kills = killed("gbdt", 4, ["after"], first=10)
    assert wrong == {}
    assert n_kills > 4


def test_what_the_command_names_is_there():
    assert runs().keys() >= OF_KEYS | OF_SHARES
