"""What a newcomer opens: the page that walks through VFEM, and how large party halves are."""

import importlib
import re
from pathlib import Path

import pytest

from flwr_vertical.node.steps import Uses, steps_of
from strategies import BUILTIN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "method-in-six-files.md"
MOST_STEPS, MOST_GROUPS = 14, 8
LARGER = {"fedpsg-ar": (23, 8), "glm": (15, 8), "svm": (15, 8)}
"""Steps and groups of party halves with more than one exchange: of ranks, counts and regressions;
of trees and votes; of moments and means."""


def test_the_page_quotes_code_as_it_is():
    quotes = re.findall(r"```py\n# (\S+)\n(.*?)```", PAGE.read_text(), re.S)
    assert len(quotes) >= 8
    for path, code in quotes:
        assert code.rstrip() in (ROOT / path).read_text(), (path, code)


def test_the_page_names_six_files_and_quotes_no_other():
    text = PAGE.read_text()
    named = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.M)
    assert len(named) == 6
    assert all((ROOT / path).is_file() for path in named)
    assert set(re.findall(r"^# (\S+\.py)$", text, re.M)) <= set(named)


def test_party_halves_offer_few_steps():
    pytest.importorskip("torch")
    sizes = {}
    for name, target in BUILTIN.items():
        module, _, cls = target.partition(":")
        party = getattr(importlib.import_module(module), cls).party
        groups = {
            key for base in party.__mro__ for key, v in vars(base).items() if isinstance(v, Uses)
        }
        sizes[name] = len(steps_of(party)), len(groups)
    above = {n: s for n, s in sizes.items() if s[0] > MOST_STEPS or s[1] > MOST_GROUPS}
    assert above == LARGER, "a party half grew, or became small enough to leave LARGER"
