"""No attack finds a cell at default settings, whatever the strategy, mode, view and parties."""

import pytest

from simulations.attacks.cases import Case, cases, make_case_tables, make_strategy_of
from simulations.attacks.recording import record
from simulations.attacks.suite import attack_run
from simulations.attacks.views import SERVER

# R squared or AUC that messages may add to a party's guesses of labels.
LABELS_WITHIN = 0.01
N = 420  # three groups of rows that may be told of

# What a view may find, by mode: who may be told what is the strategy's disclosure table.
ALLOWED: dict[str, dict[str, str]] = {
    "plain": {SERVER: "every party's own term of every sum: 'plain' hides nothing from it"},
    "masked": {},
    "ckks": {},
}

GRID = [
    *(("masked", n_parties, case) for case in cases() for n_parties in (2, 3, 5)),
    *(("plain", 3, case) for case in cases()),
]


def attacked(case: Case, mode: str, n_parties: int):
    tables, labels = make_case_tables(case, N, n_parties)
    strategy = make_strategy_of(case, tables, labels)
    return attack_run(record(strategy, tables, labels, mode))


@pytest.mark.parametrize(
    ("mode", "n_parties", "case"), GRID, ids=[f"{m}-{k}-{c.name}" for m, k, c in GRID]
)
def test_nothing_is_found_beyond_the_outputs(mode, n_parties, case):
    for finding in attacked(case, mode, n_parties):
        if finding.view in ALLOWED[mode]:
            continue
        limit = LABELS_WITHIN if finding.attack == "labels" else 0.0
        assert finding.beyond <= limit, finding


@pytest.mark.parametrize("case", cases(consented=True), ids=lambda case: case.name)
def test_exchanges_that_need_consent_are_found_out(case):
    """So they need it: the suite would see whether a default did the same."""
    found = attacked(case, "masked", 3)
    assert max(f.beyond for f in found) > 0.05
