"""What a server asks for by its run config, repetition or greetings: nodes refuse it by key."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from site_of_nodes import NOTHING, PARTIES, Site, ask, make_tables, refused, steps_answered

from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.errors import PartyError, VerticalError
from flwr_vertical.server.run_record import journaled
from strategies.copula import VCDS
from strategies.glm import VerticalGLM
from strategies.vfem import VFEM, CompleteCase

N = 260


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


INCOME = {"label_holder": "bank", "label_column": "income"}
DEMANDS = {
    "labels": ("policy.labels", INCOME),
    "labels for another method": ("policy.labels", {"strategy": "vcds"} | INCOME),
    "IDs": ("policy.alignments", {"alignment": "plain"}),
}


@pytest.mark.parametrize("what", DEMANDS)
def test_a_run_config_does_not_decide(site, what):
    """The bank allows its column ``age`` as labels, and is asked for ``income``."""
    key, demand = DEMANDS[what]
    nodes = site(bank={"policy.labels": "age"})
    with nodes.attacked(**demand) as federation:
        with refused(key, "bank" if demand is INCOME else None):
            federation.open()
        # Whoever goes on all the same gets nothing either.
        assert ask(federation.grid, "labels", 1)[0]["status"] == "error"
        assert ask(federation.grid, "share_ids", 2, normalise=[])[0]["status"] == "error"
        assert steps_answered(federation.grid) == []
    assert nodes.left() == NOTHING
    assert "refused" in nodes.kinds("bank", refused=True)


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
            nonce=b"n" * 32, labelled=np.ones(N, np.uint8),
            standardize=True, intercept=True,
        )  # fmt: skip
        assert told["status"] == "error"
        assert "sums of this run are 'masked'" in told["message"]


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


RELEASE = VCDS(epsilon=0.1, rank_share=0.5)._arguments(None)
PUBLIC = {key: RELEASE[key] for key in ("bounds", "resolution", "margin")}
VARIABLES = {"strategy": "vcds", "vcds.epsilon": 0.1, "vcds.rank-share": 0.5}

OTHERS = {"strategy": "evcds", "evcds.epsilon": 0.1, "evcds.rank-share": 0.5}


def release(federation, **changes):
    """Greet, align and have ranks released; a federation greets once."""
    federation.open()
    align(federation)
    federation.call("prepare_release", PUBLIC)
    return federation.call("perturb", RELEASE | changes)


def test_epsilon_is_counted_over_runs_methods_columns_and_rows(site):
    """Two releases of all rows fit, by whichever method, and a third, of half of them, does not.

    Replacing a value may turn all comparisons of its column: 259 of each of two at 0.05.
    """
    each = 2 * ((N - 1) * 0.05 + 0.05)
    nodes = site(all={"policy.epsilon-total": 2.2 * each})
    with nodes.attacked(**VARIABLES) as federation:
        release(federation)
    with nodes.attacked(run_id=2, **OTHERS) as federation:
        release(federation)
    with nodes.attacked(run_id=3, **VARIABLES) as federation, refused("policy.epsilon-total"):
        release(federation, rows=np.arange(N // 2))
    for name in PARTIES:
        assert nodes.ledger(name).state["epsilon"] == pytest.approx(2 * each, rel=1e-3)


def test_whether_two_rows_are_equal_is_paid_for(tmp_path):
    """The server aligns two rows alone: an error about a constant column compares them."""
    tables = make_tables(N)
    tables["bank"]["mark"] = (np.arange(N) == 7).astype(float)
    allowed = {"policy.epsilon-total": 0.4, "policy.alignments": "plain"}
    nodes, told = Site(tmp_path, tables, all=allowed), []
    for run_id, rows in ((1, [0, 1]), (2, [0, 7])):
        with nodes.attacked(run_id=run_id, alignment="plain", **VARIABLES) as federation:
            federation.open()
            align(federation, "plain")
            positions = np.full(N, -1)
            positions[rows] = [0, 1]
            updates = federation._updates["bank"] | {"positions": positions, "n_samples": 2}
            ask(federation.grid, "prepare_release", 9, updates=updates, **PUBLIC)
            told.append(ask(federation.grid, "perturb", 10, updates=updates, **RELEASE)[0])
    assert "column 'mark' is constant" in told[0]["message"]
    assert "policy.epsilon-total" in told[1]["message"]
    assert nodes.kinds("bank") == ["epsilon"]


def test_runs_with_other_labels_are_bounded(site, labels):
    """Four columns: with four label vectors the script had every cell of unlabelled rows."""
    nodes = site(pinned=False, all={"policy.vectors": 2})
    for run_id, seed in enumerate((0, 0, 1), start=1):
        nodes.run(CompleteCase(), labels(seed), run_id=run_id)
    with refused("policy.vectors"):
        nodes.run(CompleteCase(), labels(2), run_id=4)
    for name in PARTIES:
        assert nodes.ledger(name).state["vectors"] == 2
    # The labels of before cost nothing, also afterwards.
    nodes.run(CompleteCase(), labels(0), run_id=99)


@pytest.mark.parametrize(
    "second",
    [pytest.param(VFEM(), marks=pytest.mark.slow), VerticalGLM(family="poisson")],
    ids=lambda strategy: strategy.name,
)
def test_another_method_does_not_count_anew(site, labels, second):
    """What one method opened and another would open can be subtracted from each other."""
    nodes = site(pinned=False)
    whole, fewer = (labels(fewer=k).round().abs() for k in (0, 1))
    nodes.run(CompleteCase(), whole)
    with refused("policy.min-rows", "bank"):
        nodes.run(second, fewer, run_id=2)
    assert min(nodes.ledger(name).state["smallest_set"] for name in PARTIES) >= 100


def test_a_run_in_another_mode_does_not_count_anew(site, labels):
    pytest.importorskip("tenseal")
    nodes = site(pinned=False)
    nodes.run(CompleteCase(), labels())
    nodes.nodes.append({"role": "arbiter"})
    with refused("policy.min-rows"):
        nodes.run(CompleteCase(), labels(fewer=1), run_id=2, aggregation="ckks")


def test_what_is_told_before_sums_does_not_depend_on_the_rows_that_are_chosen(tmp_path):
    """Constant in these rows or not, its mean there: by halves, a server finds who has a mark."""
    tables = make_tables(N)
    marked = np.isin(np.arange(N), [5, 77, 200])
    tables["bank"] = tables["bank"].assign(
        mark=marked.astype(float), level=np.where(marked, "x", "y")
    )
    nodes = Site(tmp_path, tables)
    asked = {"standardize": True, "intercept": True}
    few = np.isin(np.arange(N), range(10)).astype(np.uint8)
    told = []
    for run_id, labelled in enumerate([few, 1 - few], start=1):
        with nodes.attacked(run_id=run_id) as federation:
            federation.open()
            align(federation)
            chosen = asked | {"labelled": labelled}
            public = federation.sum("prepare_moments", chosen | {"nonce": b"n" * 32}).public["bank"]
            told.append(
                [list(np.ravel(public[k])) for k in ("columns", "collinear", "center", "unit")]
            )
    assert told[0] == told[1]
    assert "level=x" not in told[0][0]
