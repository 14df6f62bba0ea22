"""No attack finds a cell at default settings, whatever the strategy, view and parties."""

import numpy as np
import pytest

from flwr_vertical import load_strategy
from simulations.attacks.cases import ROWS, cases, make_case_tables, make_strategy_of, routed_cases
from simulations.attacks.distances import list_tables, lists_of, r_squared_of_lists
from simulations.attacks.labels import columns_from
from simulations.attacks.recording import record
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
from simulations.attacks.several import (
    refused_with_one_label_less,
    runs_with_one_label_less,
    scales_found,
)
from simulations.attacks.suite import LABELS, RULED, attack_run, smallest_opened
from simulations.attacks.views import SERVER, aligned_truth, views_of
from strategies import BUILTIN
from strategies.fknn import FKNN

pytestmark = pytest.mark.slow

# R squared or AUC that messages may add to a party's guesses of labels.
LABELS_WITHIN = 0.01
N = 420  # three groups of rows that may be told of
# What nodes must agree to: the share of cells that must be found, so that the attacks bite; and
# where networks stand between cells and numbers, the R squared of columns.
CONSENTED = {"glm-admm gaussian": 0.2, "vfem-iterations": 0.2, "false-vfl party_layers=1": 0.2}
ROUGHLY = {"false-vfl": 0.7, "predict false-vfl": 0.7, "predict vanilla-vfl": 0.7, "final-net": 0.9}
GRADIENTS = {"vanilla-vfl": 0.4, "final-net": 0.4}  # of the labels, at a party: what gradients tell


def distinct(all_cases):
    """One case for each party half and family: what travels is alike."""
    found = {}
    for case in all_cases:
        found.setdefault((load_strategy(BUILTIN[case.strategy]).party, case.family), case)
    return list(found.values())


def attacked(case, mode, n_parties, n=N, only=None):
    tables, labels = make_case_tables(case, max(n, ROWS.get(case.strategy, 0)), n_parties)
    strategy = make_strategy_of(case, tables, labels)
    return attack_run(record(strategy, tables, labels, mode), only)


def check(finding):
    if finding.attack == LABELS:
        assert finding.cells <= LABELS_WITHIN, finding
    elif finding.attack in RULED:
        assert finding.cells == 0.0, finding
    else:
        assert finding.beyond == 0.0, finding


def some(*names):
    return [case for case in cases() if case.name in names]


# More parties, rows and modes are in the study.
GRID = [
    *((case, 2) for case in distinct(cases())),
    *((case, 5) for case in some("vfem", "mean", "vcds")),
    *((case, 3) for case in some("fknn", "glm binomial", "glm binomial rows=all")),
]


@pytest.mark.parametrize(("case", "n_parties"), GRID, ids=[f"{c.name}-{k}" for c, k in GRID])
def test_nothing_is_found_beyond_the_outputs(case, n_parties):
    for finding in attacked(case, "masked", n_parties):
        check(finding)


@pytest.mark.parametrize("case", some("vfem", "fknn", "mean"), ids=lambda case: case.name)
def test_plain_sums_tell_parties_nothing(case):
    """The server sees every party's own terms then, and is told so."""
    for finding in attacked(case, "plain", 3):
        if finding.view != SERVER:
            check(finding)


def consented(names):
    return [case for case in cases(consented=True) if case.name in names]


@pytest.mark.parametrize("case", consented(CONSENTED), ids=lambda case: case.name)
def test_what_needs_consent_is_found_out(case):
    found = attacked(case, "masked", 2, n=200, only=("0/1 columns in the span", LABELS))
    assert max(f.beyond for f in found if f.view == SERVER) > CONSENTED[case.name]
    labels = max(f.cells for f in found if f.attack == LABELS)
    if case.strategy == "false-vfl":  # no label enters what parties are told, but columns do
        assert labels < 0.5
    else:
        assert labels > CONSENTED[case.name]


@pytest.mark.parametrize("case", consented(ROUGHLY), ids=lambda case: case.name)
def test_networks_do_not_hide_columns(case):
    tables, labels = make_case_tables(case, 240, 2)
    run = record(make_strategy_of(case, tables, labels), tables, labels)
    views = views_of(run)
    truth = aligned_truth(run, views[SERVER].positions)
    found = columns_from(views[SERVER], {"bank": truth["bank"]})
    assert (found.own, found.all > ROUGHLY[case.name]) == (0.0, True)
    gain = columns_from(views["bank"], truth).gain
    told_sums_only = case.name in ("predict vanilla-vfl", "final-net")
    assert gain == 0 if told_sums_only else gain > ROUGHLY[case.name]
    shuffled = {"bank": truth["bank"].sample(frac=1, random_state=0)}
    assert columns_from(views[SERVER], shuffled).all < 0.1


@pytest.mark.parametrize("case", consented(GRADIENTS), ids=lambda case: case.name)
def test_gradients_tell_labels(case):
    tables, labels = make_case_tables(case, 240, 2)
    found = attack_run(record(make_strategy_of(case, tables, labels), tables, labels), [LABELS])
    assert max(finding.cells for finding in found) > GRADIENTS[case.name]


def test_columns_do_not_follow_roughly_from_blinded_numbers():
    (case,) = some("vfem")
    tables, labels = make_case_tables(case, N, 2)
    run = record(make_strategy_of(case, tables, labels), tables, labels)
    views = views_of(run)
    truth = aligned_truth(run, views[SERVER].positions)
    assert columns_from(views["bank"], truth).gain < 0.05


def test_all_that_needs_consent_is_attacked_here_or_in_the_study():
    names = {case.name for case in cases(consented=True)}
    assert names >= {*CONSENTED, *ROUGHLY, *GRADIENTS}
    every = [*cases(), *cases(consented=True), *routed_cases()]
    assert {case.strategy for case in every} == {*BUILTIN}


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("n_parties", [2, 3])
def test_three_rows_of_neighbours_do_not_meet(n_parties, standardize):
    """Weights by distance, told by consent, keep their ratios: there the scales are found."""
    (case,) = (case for case in cases() if case.name == "fknn")
    tables, labels = make_case_tables(case, 40, n_parties)
    strategy = FKNN(standardize=standardize)
    assert not scales_found(strategy, tables, labels)
    told = FKNN(weights="distance", standardize=standardize)
    # Sums of logarithms meet by chance as well, and may hide a pair: of eight triples, one will do.
    assert scales_found(told, tables, labels, n_triples=8, policy={"exchanges": "distances"})


def test_sums_are_of_enough_rows():
    (case,) = (case for case in cases() if case.name == "vfem")
    tables, labels = make_case_tables(case, N, 5)
    smallest = smallest_opened(record(make_strategy_of(case, tables, labels), tables, labels))
    assert smallest >= 100


def test_rare_flags_stay_hidden():
    """Two rows of a group have it: which, one sum of labels would tell."""
    (case,) = (case for case in cases() if case.name == "complete-case")
    tables, labels = make_case_tables(case, N, 2, missing=0.0)
    rare = (tables["bank"].index.isin(["c00007", "c00300"])).astype(float)
    tables["bank"] = tables["bank"].assign(rare=rare)
    labels = labels.fillna(labels.shift(1, fill_value=0.3) * 1.1).fillna(0.7)
    run = record(make_strategy_of(case, tables, labels), tables, labels)
    for finding in attack_run(run, ["subset sums"]):
        assert finding.cells == 0.0, finding


def test_a_label_less_gives_a_row_away_over_two_runs_unless_nodes_keep_ledgers(tmp_path):
    """In memory nothing counts over runs; more of it in test_attacks_configuration."""
    (case,) = (case for case in cases() if case.name == "complete-case")
    tables, labels = make_case_tables(case, N, 2, missing=0.0)
    strategy = make_strategy_of(case, tables, labels)
    _, smallest = runs_with_one_label_less(strategy, tables, labels)
    assert smallest == 1
    refusal = refused_with_one_label_less(strategy, tables, labels, tmp_path)
    assert "refuses by policy.min-rows: asked: sums that tell of 1 of its rows alone" in refusal


FEW = {"n_trees": 16, "max_depth": 3, "min_child": 10}
N_GROWN = 240


@pytest.fixture(scope="module")
def grown():
    made = {}

    def get(name, **settings):
        if name not in made:
            (case,) = (c for c in routed_cases() if c.name == name)
            tables, labels = make_case_tables(case, N_GROWN, 2)
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
            assert possible[np.arange(N_GROWN)[: len(possible)], true[name][:, j]].all()


def test_a_party_guesses_labels_from_nodes(grown):
    trees = grown("gbdt")
    blind, known = labels_guessed(trees)
    assert 0.6 < max(blind, known) < trees.run.result.metrics["train_auc"]
    view = views_of(trees.run)["bank"]
    nodes = _last_nodes(view)
    assert len(nodes) >= len(trees.run.result.predictor.roots)  # early stopping drops the last
    rng = np.random.default_rng(0)
    order = rng.permutation(len(nodes[0]))
    labels = views_of(trees.run)[SERVER].labels
    assert guess_labels([node[order] for node in nodes], labels)[1] < 0.6


def test_the_arbiter_sees_no_sum(grown):
    sign, correlation, chance, deviation = seen_by_arbiter(grown("gbdt"))
    assert abs(sign - 0.5) < 0.04
    assert correlation < chance + 4 * deviation  # 0.74 if it saw the signs; chance is 0.17
    assert deviation < 0.02


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


def test_lists_of_donors_tell_less_where_fewer_cells_are_missing():
    found, longest = {}, {}
    for n_asked in (40, 390):
        tables = list_tables(n_asked)
        lists = lists_of(tables)
        longest[n_asked] = max(map(len, lists))
        found[n_asked] = r_squared_of_lists(lists, tables["victim"].to_numpy())
    # 2 k + 2; and 4 k + 20, although only 10 of 400 donors have the cell.
    assert longest == {40: 12, 390: 40}
    assert found[40] < 0.25
    assert 0.5 < found[390] < 0.75  # the attack finds what is there
