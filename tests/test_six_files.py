"""What a newcomer opens: the page that walks through VFEM, files of a round, steps of parties."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from flwr_vertical.node.steps import Uses, steps_of
from strategies import BUILTIN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "method-in-six-files.md"
MOST_STEPS, MOST_GROUPS = 15, 8
LARGER = {"fedpsg-ar": (24, 8), "glm": (18, 9), "svm": (16, 8), "cox": (18, 9)}
"""Steps and groups of party halves with more than one exchange: of ranks, counts and regressions;
of trees and votes; of moments and means, of pairs and completed rows."""


def test_the_page_quotes_code_as_it_is():
    quotes = re.findall(r"```py\n# (\S+)\n(.*?)```", PAGE.read_text(), re.S)
    assert len(quotes) >= 8
    for path, code in quotes:
        assert code.rstrip() in (ROOT / path).read_text(), (path, code)


def test_the_page_names_six_files_and_quotes_no_other():
    text = PAGE.read_text()
    named = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.M)
    assert len(named) == 6
    assert set(named) == set(read_it_in("vfem"))
    assert set(re.findall(r"^# (\S+\.py)$", text, re.M)) <= set(named)


# By method: its page, and what its strategy and party import that the round beside it does not run.
ROUNDS = {
    "vfem": ("vfem", "open_products", {
        "linear/settings": "settings", "linear/prediction/server": "afterwards",
        "vfem/outcome": "after it: tables",
        "vfem/missingness": "after it: a check", "vfem/scoring": "where patterns are small",
        "vfem/completed_rounds": "where patterns are small",
        "vfem/completed_steps": "where patterns are small",
    }),
    "fknn": ("fknn", "distances to donors", {}),
    "false-vfl": ("false-vfl", "one step of gradients", {
        "false_vfl/settings": "settings", "false_vfl/predict": "afterwards",
        "linear/problem": "before: labels and masks", "neural/hardware": "where it computes",
        "neural/training": "between epochs",
    }),
    "gbdt": ("trees", "splits of a level", {
        "linear/problem": "before: labels", "trees/binning": "before: tables to codes",
        "trees/masked_store": "before: keys and masked slots",
        "trees/objectives": "between trees: gradients",
        "trees/monotone": "an option", "trees/routing": "the round after it",
        "trees/model": "afterwards", "trees/predict": "afterwards",
        "trees/contributions": "afterwards",
    }),
    "glm": ("glm", "open_products", {
        "linear/settings": "settings",
        "linear/moments/dp_opening": "an option: noise",
        "linear/families": "binomial and Poisson labels",
        "normal/labelled_server": "an option: completed rows",
        "normal/labelled_party": "an option: completed rows",
        "glm/party": "an option: completed rows",
        "linear/formula": "an option: a formula",
    }),
}  # fmt: skip


def read_it_in(page):
    text = (ROOT / "docs" / "methods" / f"{page}.md").read_text()
    (line,) = re.findall(r"^Read it in: (.+?)\n\n", text, re.M | re.S)
    return re.findall(r"`([\w/]+\.py)`", line)


def home_of(module, name):
    """The file in which a name is defined that is imported from a module or a package of ours."""
    for dotted in (f"{module}.{name}", module):
        path = ROOT / (dotted.replace(".", "/") + ".py")
        if path.is_file():
            return path
    package = ROOT / module.replace(".", "/") / "__init__.py"
    for node in ast.parse(package.read_text()).body if package.is_file() else []:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return home_of(node.module, name)
    return None


def imported(path):
    """The files of strategies whose names a file imports at its top."""
    body = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
    homes = {home_of(node.module, alias.name) for node in body for alias in node.names}
    return {home for home in homes if home and home.is_relative_to(ROOT / "strategies")}


@pytest.mark.parametrize("method", ROUNDS)
def test_one_round_is_read_in_eight_files_six_of_which_the_page_names(method):
    """Counted are the files of the page, and besides, of methods and shared rooms, the strategy's
    module, its party half's, and those of which these two import a name; less `ROUNDS`'s others.
    """
    page, _, others = ROUNDS[method]
    named = {ROOT / path for path in read_it_in(page)}
    assert all(path.is_file() for path in named)
    assert len(named) <= 6
    module, _, cls = BUILTIN[method].partition(":")
    pytest.importorskip("torch")
    strategy = getattr(importlib.import_module(module), cls)
    halves = {ROOT / (of.__module__.replace(".", "/") + ".py") for of in (strategy, strategy.party)}
    reached = halves.union(*map(imported, halves))
    beside = {ROOT / "strategies" / f"{other}.py" for other in others}
    assert beside <= reached - named
    files = named | (reached - beside)
    assert len(files) <= 8, sorted(str(path.relative_to(ROOT)) for path in files)


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
