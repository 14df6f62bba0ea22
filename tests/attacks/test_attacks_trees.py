"""What trees tell: sides of splits to the server, nodes to parties, no sum to the arbiter."""

import numpy as np
import pytest

from flwr_vertical import load_strategy
from simulations.attacks.cases import make_case_tables, routed_cases
from simulations.attacks.routing import (
    _last_nodes,
    bins_recovered,
    bits_told,
    guess_labels,
    labels_guessed,
    possible_codes,
    record_trees,
    seen_by_arbiter,
    true_codes,
)
from simulations.attacks.suite import LABELS, attack_run
from simulations.attacks.views import SERVER, views_of
from strategies import BUILTIN

FEW = {"n_trees": 16, "max_depth": 3, "min_child": 10}
N = 240


@pytest.fixture(scope="module")
def grown():
    made = {}

    def get(name, **settings):
        if name not in made:
            (case,) = (c for c in routed_cases() if c.name == name)
            tables, labels = make_case_tables(case, N, 2)
            kind = load_strategy(BUILTIN[case.strategy])
            made[name] = record_trees(kind(**case.settings | FEW | settings), tables, labels)
        return made[name]

    return get


def test_the_server_narrows_codes_down_by_sides_alone(grown):
    trees = grown("gbdt")
    told, whole, known = bits_told(trees)
    assert 0.5 < told < 0.9 * whole
    assert 0.0 < known < 0.9
    true = true_codes(trees)
    for name, columns in possible_codes(trees).items():
        for j, possible in enumerate(columns):
            assert possible[np.arange(N)[: len(possible)], true[name][:, j]].all()


def test_a_party_guesses_labels_from_nodes(grown):
    trees = grown("gbdt")
    blind, known = labels_guessed(trees)
    assert 0.6 < max(blind, known) < trees.run.result.metrics["train_auc"]
    view = views_of(trees.run)["bank"]
    nodes = _last_nodes(view)
    assert len(nodes) == len(trees.run.result.predictor.roots)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(nodes[0]))
    labels = views_of(trees.run)[SERVER].labels
    assert guess_labels([node[order] for node in nodes], labels)[1] < 0.6


def test_the_arbiter_sees_no_sum(grown):
    sign, correlation, chance = seen_by_arbiter(grown("gbdt"))
    assert abs(sign - 0.5) < 0.04
    assert correlation < chance + 0.04


def test_open_histograms_give_the_columns(grown):
    trees = grown("gbdt histograms=open", n_trees=30, max_depth=4)
    assert not trees.compared
    assert bins_recovered(trees) > 0.9


def test_no_pad_is_used_twice_and_the_arbiter_has_no_cell(grown):
    found = attack_run(grown("gbdt").run, ["pads used twice", "single vectors", LABELS])
    assert {f.view for f in found} == {SERVER, "bank", "court", "arbiter"}
    for finding in found:
        if finding.attack == "pads used twice" or finding.view == "arbiter":
            assert finding.cells == 0.0, finding
