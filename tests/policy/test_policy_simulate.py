"""`simulate`: which keys a federation would need for a run, and a run under a policy."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Result, Strategy, Summands, register_strategy, simulate, step
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.policy.record import ROW_RULES, Policy
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round
from flwr_vertical.settings import settings_of
from flwr_vertical.simulation_inputs import policies_by_node
from strategies.copula import VCDS
from strategies.fknn import FKNN
from strategies.vfem import VFEM

_RNG = np.random.default_rng(0)
TABLES = {
    name: pd.DataFrame(_RNG.normal(size=(150, 2)), columns=[f"{name} 1", f"{name} 2"])
    for name in ("bank", "court")
}
LABELS = pd.Series(
    sum(table.sum(axis=1) for table in TABLES.values()) + _RNG.normal(size=150), name="y"
)
WEIGHTED = FKNN(n_neighbors=2, weights="distance")


class Own(FKNN):
    """A strategy that is in no registry."""

    name = "own"


def run(strategy, tables=TABLES, labels=None, **options):
    return simulate(strategy, tables, labels, **options)


def both(**keys):
    found = {f"policy.{key.replace('_', '-')}": value for key, value in keys.items()}
    return {"bank": found, "court": found}


# Strategy, options of `simulate`, and the keys that a federation would need.
RUNS = {
    "nothing": (FKNN(n_neighbors=2), {}, {}),
    "exchange": (WEIGHTED, {}, both(exchanges="distances")),
    "plain sums": (
        FKNN(n_neighbors=2), {"aggregation": "plain"}, both(aggregations="masked,ckks,plain")
    ),
    "plain IDs": (
        FKNN(n_neighbors=2),
        {"alignment": "plain"},
        both(alignments="private-id,kkrt,blind-rsa,plain"),
    ),
    "own class": (Own(n_neighbors=2), {}, both(modules=f"{__name__}:Own")),
    "few rows": (VFEM(), {"min_rows": 20, "labels": LABELS}, both(min_rows=20)),
    "epsilon": (VCDS(3.0, min_joint=10), {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_keys_a_run_needs_are_told_and_are_enough(name):
    strategy, options, needed = RUNS[name]
    result = run(strategy, **options)
    assert result.needed_keys == needed
    if not needed:
        run(strategy, policy={}, **options)
        if name == "nothing":  # a policy aligns as a federation does
            assert result.settings["alignment"] == "plain"
            again = run(strategy, policy=Policy())
            assert again.settings["alignment"] == "private-id"
        return
    rule = {key for keys in needed.values() for key in keys} <= {"policy.min-rows"}
    if not rule:  # a rule on rows changes what a run finds, not whether it takes place
        (key,) = needed["bank"]
        words = key.replace(".", r"\.")
        with pytest.raises(PartyError, match=rf"'\w+' refuses by {words}: asked: .*; allowed: "):
            run(strategy, policy=Policy(), **options)
    options = {key: value for key, value in options.items() if key != "min_rows"}
    again = run(strategy, policy=needed, **options)
    assert again.needed_keys == needed


def test_one_party_needs_a_policy_that_allows_it():
    result = run(FKNN(n_neighbors=2), {"bank": TABLES["bank"]})
    assert result.needed_keys == {"bank": {"policy.min-parties": 1}}


def test_an_arbiter_has_keys_of_its_own():
    strategy = Own(n_neighbors=2)
    result = run(strategy, aggregation="ckks")
    module = {"policy.modules": f"{__name__}:Own"}
    assert result.needed_keys == {"bank": module, "court": module, "arbiter": module}
    run(strategy, aggregation="ckks", policy=result.needed_keys)
    refused = {name: keys for name, keys in result.needed_keys.items() if name != "arbiter"}
    with pytest.raises(PartyError, match=r"the arbiter refuses by policy\.modules"):
        run(strategy, aggregation="ckks", policy=refused)


def test_the_result_and_its_report_say_what_nodes_must_state(tmp_path):
    result = run(WEIGHTED)
    assert "node keys bank, court: policy.exchanges='distances'" in str(result)
    again = Result.load(result.save(tmp_path / "run"))
    assert again.needed_keys == result.needed_keys
    page = result.report(tmp_path / "page.html").read_text()
    assert "What nodes must agree to" in page
    assert "policy.exchanges=&#x27;distances&#x27;" in page
    none = run(FKNN(n_neighbors=2))
    assert "node keys" not in str(none)
    assert "What nodes must agree to" not in none.report(tmp_path / "none.html").read_text()


# Limits on what adds up, the strategy that exceeds each, and what it asks for.
@pytest.mark.parametrize(
    ("key", "value", "strategy", "words"),
    [
        ("openings", 0, FKNN(n_neighbors=2), "of its rows"),
        ("epsilon-total", 0.5, VCDS(3.0, min_joint=10), "epsilon"),
        ("foreign-ids", 0.5, FKNN(n_neighbors=2), "IDs that are not its own"),
    ],
)
def test_a_policy_bounds_what_adds_up_as_well(key, value, strategy, words):
    tables = {name: table.iloc[3 * k :] for k, (name, table) in enumerate(TABLES.items())}
    with pytest.raises(PartyError, match=rf"refuses by policy\.{key}: asked: .*{words}"):
        run(strategy, tables, policy={key: value, "min-rows": 20})


def test_rules_on_rows_hold_without_a_policy_too():
    """150 rows are fewer than 200, so that such nodes tell nothing of them."""
    assert set(ROW_RULES) <= {item.name for item in settings_of(Policy)}
    for options in ({"min_rows": 200}, {"policy": Policy(min_rows=200)}):
        with pytest.raises((PartyError, ConfigError, ValueError), match="200"):
            run(VFEM(), labels=LABELS, **options)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("strict", "policy must be a Policy, its keys as a dict"),
        ({"min-row": 3}, r"min-row is no key of a policy \(did you mean 'min-rows'"),
        ({"shop": {"min-rows": 3}}, r"policy names \['shop'\].*the nodes are \['bank', 'court'\]"),
        ({"bank": {"min-rows": 3}, "court": 5}, r"policy names \['court'\]"),
        ({"bank": {"min-rows": 0}}, r"'bank': .*min-rows must be .*at least 1"),
        (Policy(min_rows=20), r"min_rows and the policy of \['bank', 'court'\]"),  # both state it
    ],
)
def test_a_policy_that_cannot_be_used(policy, said):
    more = {"min_rows": 20} if isinstance(policy, Policy) else {}
    with pytest.raises(ConfigError, match=said):
        run(FKNN(n_neighbors=2), policy=policy, **more)


def test_who_is_not_named_has_the_safe_defaults():
    found = policies_by_node({"bank": Policy(min_rows=20)}, ["bank", "court"])
    assert found == {"bank": Policy(min_rows=20), "court": Policy()}
    assert policies_by_node({"policy.grid": 8, "min-rows": 30}, ["bank"]) == {
        "bank": Policy(grid=8, min_rows=30)
    }


class CountingParty(Party):
    @step
    def count(self):
        return Summands({"cells": np.array([float(self.table.frame.size)])})


class Undeclared(Strategy):
    """A third party's strategy that declares no protocol."""

    name = "undeclared-count"
    party = CountingParty

    def run(self, federation, alignment, result, progress):
        result.metrics["cells"] = float(federation.sum("count")["cells"][0])


class Declared(Undeclared):
    """The same, with a protocol."""

    name = "declared-count"
    protocol = Protocol(Round("count", "summed, how many cells there are", tells=FACTS))


def test_a_strategy_of_others_without_a_protocol_needs_a_consent_and_is_noted():
    for kind in (Undeclared, Declared):
        register_strategy(kind.name, f"{__name__}:{kind.__name__}")
    needed = both(exchanges="undeclared")
    with pytest.raises(PartyError, match=r"refuses by policy\.exchanges: asked: .*'undeclared'"):
        run(Undeclared(), policy={})
    result = run(Undeclared(), policy=needed)
    assert result.needed_keys == needed
    assert result.metrics["cells"] == 600
    assert any("'undeclared-count' declares no protocol" in note for note in result.notes)
    assert result.metrics == (declared := run(Declared(), policy={})).metrics
    assert declared.needed_keys == {}
    assert not any("protocol" in note for note in declared.notes)
