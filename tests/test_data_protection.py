"""The page for a data protection officer: what it cites is there, and no statement lacks a test."""

import re
from pathlib import Path

from flwr_vertical.policy.record import Policy, key_of
from flwr_vertical.settings import settings_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data-protection.md").read_text()
STATEMENTS = re.findall(r"\n### (\d+\. .+?)\n(.*?)(?=\n##)", PAGE, re.S)


def test_every_statement_says_what_holds_it_what_attacks_it_and_what_it_leaves_open():
    for title, text in STATEMENTS:
        assert re.search(r"\* \*\*Held by\*\*\s", text), title
        assert re.search(r"\* \*\*Attacked by\*\*\s+`tests/", text), title
        assert re.search(r"\* \*\*Does\s+not\s+cover", text), title


def test_all_invariants_are_there():
    assert len(STATEMENTS) == 9
    for number in range(1, 9):
        assert f"I{number}" in PAGE


def test_keys_that_are_named_exist_and_none_that_lets_something_out_is_forgotten():
    known = {key_of(item.name) for item in settings_of(Policy)}
    named = set(re.findall(r"`(policy\.[\w-]+)", PAGE))
    assert named <= known
    assert known - named <= {"policy.min-parties"}
