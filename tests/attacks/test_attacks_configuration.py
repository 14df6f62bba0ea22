"""What a server asks for by its run config, by repetition or by greetings: nodes refuse it by key.

`SCRIPTS` says for each script of the audit that goes this way which tests rebuild it. The other
tests are what a server would try next.
"""

import ast
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from site_of_nodes import (
    NOTHING,
    PARTIES,
    ROOT,
    Site,
    ask,
    make_tables,
    refused,
    steps_answered,
)

from flwr_vertical.alignment import make_aligner
from flwr_vertical.errors import PartyError, VerticalError
from flwr_vertical.server.record import journaled
from strategies.glm import VerticalGLM
from strategies.vfem import VFEM, CompleteCase, MeanImpute, Single

N = 260

SCRIPTS = {
    "c_labels": [
        "test_a_run_config_does_not_decide",
        "test_labels_are_refused_at_the_step_as_well",
        "test_another_alignment_is_refused_after_the_greeting",
    ],
    "m_reset": [
        "test_a_second_greeting_resets_no_epsilon",
        "test_epsilon_is_counted_over_runs_columns_and_rows",
    ],
    "u2_maxeps": ["test_no_argument_spends_more_than_the_node_allows"],
    "r_enumerate": [
        "test_guessed_ids_are_bounded",
        "test_guessed_ids_are_bounded_over_messages_and_greetings",
    ],
    "g_module": ["test_a_module_is_not_imported"],
    "f_runs": [
        "test_runs_with_other_labels_are_bounded",
        "test_nine_label_vectors_on_sixty_rows_are_refused",
        "test_one_label_less_is_refused_in_a_second_run",
    ],
    "h2_idle": [
        "tests/channel/test_channel_admission.py::test_who_connects_and_says_nothing_is_cut_off"
    ],
    "i_codec": [
        "tests/protocol/test_protocol_codec.py::"
        "test_hostile_dtypes_and_shapes_are_refused_before_memory_is_taken",
        "tests/channel/test_channel_admission.py::"
        "test_frames_against_the_rules_close_the_stream_and_name_the_reason",
    ],
    "t_misc": [
        "tests/protocol/test_protocol_identity.py::test_a_name_handed_on_twice_is_refused",
        "tests/protocol/test_protocol_app.py::"
        "test_errors_of_other_libraries_do_not_quote_cells_to_the_server",
        "tests/protocol/test_protocol_app.py::test_labels_that_are_no_numbers_are_not_quoted",
        "tests/apps/test_apps_inprocess.py::test_demonstration_runs_and_keeps_tables_at_the_parties",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    return make_tables(N)


@pytest.fixture
def site(tmp_path, tables):
    """Make nodes with pins and a shared secret, as the audit's scripts have where they can."""
    return lambda **policies: Site(tmp_path, tables, **({"pinned": True} | policies))


@pytest.fixture(scope="module")
def labels(tables):
    ids = tables["bank"].index
    return lambda seed=0, fewer=0: pd.Series(
        np.random.default_rng([7, seed]).normal(size=N), ids, name="y"
    ).where(np.arange(N) >= fewer)


def align(federation, how="private-id", label_ids=None, holder=None):
    return make_aligner(how, "union", ()).align(federation, label_ids, holder)


# -- labels, IDs, modes, modules: what the run config names ----------------------------------------

INCOME = {"label_holder": "bank", "label_column": "income"}
DEMANDS = {
    "labels": ("policy.labels", INCOME),
    "labels for another method": ("policy.labels", {"strategy": "vcds"} | INCOME),
    "labels for an imputation": ("policy.labels", {"strategy": "fknn"} | INCOME),
    "IDs": ("policy.alignments", {"alignment": "plain"}),
    "terms": ("policy.aggregations", {"aggregation": "plain"}),
    "a method": ("policy.strategies", {"strategy": "fknn"}),
}
OWN = {"all": {"policy.strategies": "complete-case,vcds"}}


@pytest.mark.parametrize("what", DEMANDS)
def test_a_run_config_does_not_decide(site, what):
    """The bank allows its column ``age`` as labels, and is asked for ``income``."""
    key, demand = DEMANDS[what]
    allowed = OWN if what == "a method" else {}
    nodes = site(bank={"policy.labels": "age"}, **allowed)
    with nodes.attacked(**demand) as federation:
        with refused(key, "bank" if demand is INCOME else None):
            federation.open()
        # Whoever goes on all the same gets nothing either.
        assert ask(federation.grid, "labels", 1)[0]["status"] == "error"
        assert ask(federation.grid, "share_ids", 2, normalise=[])[0]["status"] == "error"
        assert steps_answered(federation.grid) == []
    assert nodes.left() == NOTHING
    assert "refused" in nodes.kinds("bank", refused=True) or nodes.ledger("bank") is None


def test_the_mode_of_a_greeting_counts_and_not_that_of_the_run_config(site):
    nodes = site(pinned=False)
    with nodes.attacked(aggregation="plain") as federation, refused("policy.aggregations"):
        federation.open()
    assert nodes.left() == NOTHING


def test_labels_are_refused_at_the_step_as_well(site):
    """The run config changes after the greeting, as a SuperLink of the server's could have it."""
    nodes = site(bank={"policy.labels": "age"})
    with nodes.attacked() as federation:
        federation.open()
        align(federation)
        for context in federation.grid._grid.contexts.values():
            context.run_config |= {"label-holder": "bank", "label-column": "income"}
        with pytest.raises(PartyError, match=r"policy\.labels|run config"):
            federation.call("labels", parties=["bank"])
        assert "labels" not in steps_answered(federation.grid)


def test_the_one_column_that_is_named_is_handed_over(site, tables):
    """Else the tests before would pass where nothing works."""
    nodes = site(bank={"policy.labels": "age"})
    found = nodes.run(CompleteCase(), label_holder="bank", **{"label-column": "age"})
    assert ("bank", "income") in found.coefficients.index
    assert ("bank", "age") not in found.coefficients.index


@pytest.mark.parametrize("without", [(), ("alignment",)])
def test_another_alignment_is_refused_after_the_greeting(site, without):
    """Without a key ``alignment`` in the run config a node offers the steps of all protocols."""
    nodes = site()

    def ask(federation):
        federation.open()
        align(federation, "plain")

    with nodes.attacked(without=without) as federation:
        with pytest.raises(PartyError, match=r"policy\.alignments|step 'share_ids'"):
            ask(federation)
        assert "share_ids" not in steps_answered(federation.grid)


def test_another_mode_is_refused_after_the_greeting(site, labels):
    nodes = site(pinned=False)
    with nodes.attacked() as federation:
        federation.open()
        align(federation)
        # The first private sum of the method, in the mode in which terms travel as they are.
        more = {"n-parties": 2, "fraction-bits": 32}
        told, _ = ask(
            federation.grid, "prepare_moments", 9, "plain", more=more,
            updates=federation._updates.pop("bank"),
            encoding="none", missing_cells="error", nonce=b"n" * 32, labelled=np.ones(N, np.uint8),
            standardize=True, intercept=True,
        )  # fmt: skip
        assert told["status"] == "error"
        assert "sums of this run are 'masked'" in told["message"]


@pytest.mark.parametrize("key", ["strategy", "alignment"])
def test_a_module_is_not_imported(site, tmp_path, monkeypatch, key):
    """Not at the greeting, and not by a run config that changes afterwards."""
    (tmp_path / "victim_of_runs.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('flag').touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    nodes = site()
    name = "victim_of_runs:X"
    with nodes.attacked(**{key: name}) as federation, refused("policy.modules"):
        federation.open()
    with nodes.attacked(run_id=2) as federation:
        federation.open()
        for context in federation.grid._grid.contexts.values():
            context.run_config[key] = name
        with pytest.raises(PartyError):
            federation.call("labels")
    assert not (tmp_path / "flag").exists()
    assert "victim_of_runs" not in sys.modules
    assert nodes.left() == NOTHING


def test_a_resumed_run_asks_for_no_more(site, tmp_path):
    """A run that goes on greets nobody; its run config may be another one."""
    nodes = site(bank={"policy.labels": "age"})

    def go(grid, resume, *, ask):
        with journaled(tmp_path / "journal", resume, {}) as journal:
            federation = nodes.federation(grid, journal=journal, patience=2.0)
            federation.open()
            align(federation)
            if not ask:
                raise ConnectionError("the server is gone")
            federation.call("labels", parties=["bank"])

    with nodes.served(run_name="study") as grid, pytest.raises(ConnectionError):
        go(grid, resume=False, ask=False)
    with nodes.served(run_id=2, run_name="study", **INCOME) as grid:
        with pytest.raises(VerticalError, match=r"policy\.labels|run config"):
            go(grid, resume=True, ask=True)
        assert "labels" not in steps_answered(grid)


def test_a_node_is_not_left_alone(site, labels):
    """The run config names nobody, so that only the keys of the run tell how many there are."""
    nodes = site(pinned=False)
    del nodes.nodes[1]
    nodes.tables = {"bank": nodes.tables["bank"]}
    with refused("policy.min-parties", "bank"):
        nodes.run(CompleteCase(), labels())
    assert nodes.left() == {"bank": []}


def test_an_arbiter_decides_as_well(site, labels):
    """It opens encrypted sums for the methods that its owner names."""
    pytest.importorskip("tenseal")
    nodes = site(pinned=False)
    nodes.nodes.append({"role": "arbiter", "policy.strategies": "fknn"})
    with refused("policy.strategies", "arbiter"):
        nodes.run(CompleteCase(), labels(), aggregation="ckks")
    assert nodes.left() == NOTHING


# -- epsilon --------------------------------------------------------------------------------------

RELEASE = {
    "epsilon": 0.1, "budget": "per-variable", "rank_share": 0.5, "margin_noise": "increments",
    "bounds": "", "impute": False,
}  # fmt: skip
VARIABLES = {"strategy": "vcds", "vcds.epsilon": 0.1}


def release(federation, **changes):
    """Greet, align and have ranks released; a federation greets once."""
    federation.open()
    align(federation)
    return federation.call("perturb", RELEASE | changes)


def test_a_second_greeting_resets_no_epsilon(site):
    """The script averaged sixty releases of one run."""
    nodes = site(all={"policy.max-epsilon": 0.1})
    with nodes.attacked(**VARIABLES) as federation:
        release(federation)
        with refused("policy.epsilon-total"):
            release(nodes.federation(federation.grid))
    with nodes.attacked(run_id=2, **VARIABLES) as federation, refused("policy.epsilon-total"):
        release(federation)
    for name in PARTIES:
        assert nodes.kinds(name).count("epsilon") == 1
        assert nodes.ledger(name).state["releases"] == 1


def test_epsilon_is_counted_over_runs_columns_and_rows(site):
    """Two releases of all rows fit, and a third, of half of them, does not.

    Replacing a value may turn all comparisons of its column: 259 of each of two at 0.05.
    """
    each = 2 * ((N - 1) * 0.05 + 0.05)
    nodes = site(all={"policy.epsilon-total": 2.2 * each})
    for run_id, rows in enumerate([None, np.arange(N), np.arange(N // 2)], start=1):
        with nodes.attacked(run_id=run_id, **VARIABLES) as federation:
            changes = {} if rows is None else {"rows": rows}
            if run_id == 3:
                with refused("policy.epsilon-total"):
                    release(federation, **changes)
            else:
                release(federation, **changes)
    for name in PARTIES:
        assert nodes.ledger(name).state["epsilon"] == pytest.approx(2 * each, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.2},
        {"rank_share": 2.0},
        {"rank_share": 100.0},
        {"rank_share": -1.0},
        {"budget": "total", "epsilon": 1.0},
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
    ],
    ids=str,
)
def test_no_argument_spends_more_than_the_node_allows(site, changes):
    nodes = site(all={"policy.max-epsilon": 0.1, "policy.epsilon-total": 100.0})
    with nodes.attacked(**VARIABLES) as federation:
        with pytest.raises(PartyError, match=r"policy\.max-epsilon|rank_share|epsilon"):
            release(federation, **changes)
        assert "perturb" not in steps_answered(federation.grid)
    for name in PARTIES:
        assert "epsilon" not in nodes.kinds(name)


def test_a_share_of_nearly_all_is_within_the_whole(site):
    """Ranks and margin together spend what is counted, however it is split."""
    nodes = site(all={"policy.max-epsilon": 0.1, "policy.epsilon-total": 0.2 * N})
    with nodes.attacked(**VARIABLES) as federation:
        told = release(federation, rank_share=0.9999)["bank"]
    assert min(told["flips"]) >= 2**16 / (1 + np.exp(0.1)) - 1
    assert nodes.ledger("bank").state["epsilon"] == pytest.approx(0.2 * (N - 1), rel=1e-3)


# -- guessed IDs ----------------------------------------------------------------------------------


def guesses(tables, times):
    """The true IDs among ``times`` as many guesses."""
    ids = tables["bank"].index
    wrong = [f"x{i:08d}" for i in range(int(times * N) - N)]
    return pd.Index([*ids, *wrong], name="id")


def blinded(nodes, name):
    return sum(e["n_rows"] for e in nodes.ledger(name).entries if e["kind"] == "ids")


def test_guessed_ids_are_bounded(site, tables):
    """The nodes have no shared secret here: with one a guess is never met."""
    nodes = site(pinned=False, all={"policy.foreign-ids": 4.0})
    asked = pd.Series(0.0, guesses(tables, 6.0), name="y")
    with refused("policy.foreign-ids"):
        nodes.run(CompleteCase(), labels=asked)
    for name in PARTIES:
        assert blinded(nodes, name) <= 4.0 * N


def test_guessed_ids_are_bounded_over_messages_and_greetings(site, tables):
    nodes = site(pinned=False, all={"policy.foreign-ids": 4.0})
    asked = guesses(tables, 1.5)

    def greet_and_ask(grid):
        for _ in range(8):
            federation = nodes.federation(grid)
            federation.open()
            align(federation, label_ids=asked)

    with nodes.served() as grid, refused("policy.foreign-ids"):
        greet_and_ask(grid)
    for name in PARTIES:
        assert N <= blinded(nodes, name) <= 4.0 * N


# -- other labels, fewer labels -------------------------------------------------------------------


def check_refused_at(number, nodes, given, key):
    """Run with each of some labels; a node must refuse the last of the first ``number``."""
    for run_id, labels in enumerate(given[: number - 1], start=1):
        nodes.run(CompleteCase(), labels, run_id=run_id)
    with refused(key):
        nodes.run(CompleteCase(), given[number - 1], run_id=number)


def test_runs_with_other_labels_are_bounded(site, labels):
    """Four columns: with four label vectors the script had every cell of unlabelled rows."""
    nodes = site(pinned=False, all={"policy.vectors": 3})
    given = [labels(0), labels(0), labels(1), labels(2), labels(0), labels(3), labels(1)]
    check_refused_at(6, nodes, given, "policy.vectors")
    for name in PARTIES:
        assert nodes.ledger(name).state["vectors"] == 3
    # The labels of before cost nothing, also afterwards.
    nodes.run(CompleteCase(), labels(2), run_id=99)


def test_other_labels_in_the_words_of_earlier_ones_are_noticed(site, labels, monkeypatch):
    """The server says that they are those of the run before; a party sees masked vectors only."""
    nodes = site(pinned=False, all={"policy.vectors": 2})
    monkeypatch.setattr("flwr_vertical.strategy.digest_of_labels", lambda _: b"same" * 8)
    check_refused_at(3, nodes, [labels(seed) for seed in range(3)], "policy.vectors")


def test_nine_label_vectors_on_sixty_rows_are_refused(tmp_path):
    tables = make_tables(60)
    nodes = Site(tmp_path, tables, all={"policy.min-rows": 20})
    rng = np.random.default_rng(5)
    given = [pd.Series(rng.normal(size=60), tables["bank"].index, name="y") for _ in range(9)]
    check_refused_at(7, nodes, given, "policy.vectors")
    for name in PARTIES:
        assert nodes.ledger(name).state["vectors"] == 6


@pytest.mark.parametrize("first", [0, 1])
def test_one_label_less_is_refused_in_a_second_run(site, labels, first):
    nodes = site(pinned=False)
    given = [labels(fewer=first), labels(fewer=1 - first)]
    check_refused_at(2, nodes, given, "policy.min-rows")
    for name in PARTIES:
        assert nodes.ledger(name).state["smallest_set"] >= 100


@pytest.mark.parametrize(
    "second",
    [VFEM(), MeanImpute(), Single("bank"), VerticalGLM(), VerticalGLM(family="poisson")],
    ids=lambda s: f"{s.name} {getattr(s, 'family', '')}",
)
def test_another_method_does_not_count_anew(site, labels, second):
    """What one method opened and another would open can be subtracted from each other."""
    nodes = site(pinned=False)
    whole, fewer = (labels(fewer=k).round().abs() for k in (0, 1))
    nodes.run(CompleteCase(), whole)
    with refused("policy.min-rows", "bank"):
        nodes.run(second, fewer, run_id=2)


def test_a_run_in_another_mode_does_not_count_anew(site, labels):
    pytest.importorskip("tenseal")
    nodes = site(pinned=False)
    nodes.run(CompleteCase(), labels())
    nodes.nodes.append({"role": "arbiter"})
    with refused("policy.min-rows"):
        nodes.run(CompleteCase(), labels(fewer=1), run_id=2, aggregation="ckks")


def test_another_synthesis_does_not_spend_anew(site):
    nodes = site()
    with nodes.attacked(**VARIABLES) as federation:
        release(federation)
    with (
        nodes.attacked(run_id=2, strategy="evcds") as federation,
        refused("policy.epsilon-total"),
    ):
        release(federation)


def test_predictions_of_several_models_add_up(site, labels):
    """The other half of the script: what they tell of rows without a label."""
    nodes = site(pinned=False, all={"policy.predictions": 20.0})
    given = [labels(seed, fewer=30) for seed in range(3)]
    check_refused_at(3, nodes, given, "policy.predictions")
    for name in PARTIES:
        assert 10 < nodes.ledger(name).state["prediction_bits"] <= 20


# -- the table of scripts -------------------------------------------------------------------------


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_script_of_the_audit_has_a_test():
    assert len(SCRIPTS) == 9
    for where in (place for places in SCRIPTS.values() for place in places):
        path, _, name = where.rpartition("::")
        assert name in functions_of(ROOT / path if path else Path(__file__)), where
