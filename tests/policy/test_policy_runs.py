"""Each key of a policy that is a consent: allowed and refused in runs over real messages."""

import logging
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from flwr_vertical import (
    FileStorage,
    LocalGrid,
    Party,
    RecordingGrid,
    Result,
    Strategy,
    party_app,
    step,
)
from flwr_vertical.errors import PartyError
from flwr_vertical.privacy_ledger.summary import LedgerSummary
from flwr_vertical.protocol.messages import make_message, make_request, read_envelope
from flwr_vertical.settings.toml import flat

ROOT = Path(__file__).parents[2]
DEFAULTS = flat(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
)
IDS = pd.Index([f"c{i}" for i in range(40)], name="customer")
_RNG = np.random.default_rng(0)
TABLES = {
    "bank": pd.DataFrame(_RNG.normal(size=(40, 2)), columns=["u", "y"], index=IDS),
    "court": pd.DataFrame({"debts": _RNG.normal(size=40)}, index=IDS),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    yield tmp_path
    logger = logging.getLogger("flwr_vertical")
    logger.handlers.clear()
    logger.propagate = True


def nodes_of(home, names=("bank", "court"), **keys):
    """Node configs; `keys` are those of the court."""
    nodes = []
    for name in names:
        TABLES[name].to_csv(home / f"{name}.csv")
        node = {"party": name, "data": str(home / f"{name}.csv"), "output": str(home / name)}
        nodes.append(node)
    nodes[-1] |= keys
    return nodes


def run(nodes, seen=None, **settings):
    config = DEFAULTS | {"patience": 30.0, "run-name": "test", "fknn.n-neighbors": 2}
    config["transport"] = "messages"  # which a recorder sees
    config |= {key.replace("_", "-"): value for key, value in settings.items()}
    with LocalGrid(client_app, nodes, config) as grid:
        recorder = RecordingGrid(grid)
        try:
            server_app(recorder, Context(1, 1, {}, RecordDict(), config))
        finally:
            if seen is not None:
                seen.extend(recorder.transcript)


def steps(seen):
    found = [read_envelope(record.content) for record in seen if record.direction == "down"]
    return {str(envelope["step"]) for envelope in found if envelope is not None}


# What a run asks beyond the defaults, and a policy that allows exactly that.
ASKED = {"aggregation": "plain", "alignment": "plain", "fknn.weights": "distance"}
ALLOWED = {
    "policy.strategies": "vfem,fknn",
    "policy.aggregations": "plain",
    "policy.alignments": "plain",
    "policy.exchanges": "sums,distances",
    "policy.min-parties": 2,
}
# A value of each key that forbids it, and what the refusal says was asked.
FORBIDDEN = {
    "strategies": ("vfem,glm", "strategy 'fknn'"),
    "aggregations": ("masked,ckks", "aggregation 'plain'"),
    "alignments": ("private-id", "alignment 'plain'"),
    "exchanges": ("sums", "exchange 'distances'"),
    "min-parties": (3, "a run of 2 parties"),
}


def test_a_run_whose_every_request_is_allowed_takes_place(home):
    nodes = nodes_of(home, **ALLOWED)
    nodes[0] |= ALLOWED
    run(nodes, **ASKED)
    assert (home / "court" / "test" / "court.parquet").is_file()
    needed = Result.load(home / "results" / "server" / "test").needed_keys
    assert needed["bank"] == needed["court"] == {
        "policy.aggregations": "masked,ckks,plain",
        "policy.alignments": "private-id,kkrt,blind-rsa,plain",
        "policy.exchanges": "distances",
    }  # fmt: skip


@pytest.mark.parametrize("key", FORBIDDEN)
def test_one_key_of_one_node_is_enough_to_refuse_it(home, key):
    value, asked = FORBIDDEN[key]
    nodes = nodes_of(home, **ALLOWED | {f"policy.{key}": value})
    nodes[0] |= ALLOWED
    seen = []
    with pytest.raises(PartyError) as caught:
        run(nodes, seen, **ASKED)
    told = str(caught.value)
    assert f"'court' refuses by policy.{key}: asked: {asked}; allowed: " in told
    assert f"policy.{key}=" in told.partition("its owner would have to set ")[2]
    assert steps(seen) == {"hello"}  # nothing but the greeting was asked of anybody
    assert not list(home.glob("*/test/*"))  # and nothing was written
    # The refusal is in the court's ledger, and nothing was spent.
    summary = LedgerSummary.of(home / "court" / "court.privacy-ledger.sqlite")
    assert [entry["kind"] for entry in summary.entries] == ["refused"]
    assert f"policy.{key}" in summary.entries[0]["what"]
    assert summary.runs[0]["greetings"] == 0


def test_epsilon_on_a_column_is_refused_at_the_greeting(home):
    nodes, seen = nodes_of(home, **{"policy.max-epsilon": 0.5}), []
    asked = {"strategy": "vcds", "vcds.epsilon": 1.0}
    with pytest.raises(PartyError, match=r"policy\.max-epsilon: asked: epsilon 1 on a column"):
        run(nodes, seen, **asked)
    assert steps(seen) == {"hello"}
    nodes[1]["policy.max-epsilon"] = 1.0
    assert greet(client_app, nodes[1], **asked)[0]["status"] == "ok"


def test_labels_are_the_one_column_that_the_owner_named(home):
    asked = {"label-holder": "bank", "label-column": "y", "run-name": "asked"}
    asked["strategy"] = "complete-case"
    nodes, seen = [node | {"policy.min-rows": 10} for node in nodes_of(home)], []
    refused = r"'bank' refuses by policy\.labels: asked: its column 'y'"
    with pytest.raises(PartyError, match=refused):
        run(nodes, seen, **asked)
    assert steps(seen) == {"hello"}
    nodes[0]["policy.labels"] = "u"
    with pytest.raises(PartyError, match=r"policy\.labels.* allowed: 'u'"):
        run(nodes, **asked)
    nodes[0]["policy.labels"] = "y"
    run(nodes, **asked)
    result = Result.load(home / "results" / "server" / "asked")
    assert result.needed_keys == {"bank": {"policy.labels": "y"}}


FOREIGN = """
from pathlib import Path

from flwr_vertical.alignment.plain import PlainAligner
from strategies.fknn import FKNN

Path({mark!r}).touch()


class Method(FKNN):
    name = "another"


class Aligner(PlainAligner):
    pass
"""


@pytest.fixture
def foreign(home, monkeypatch):
    """A module that leaves a mark when it is imported."""
    (home / "elsewhere").mkdir()
    text = FOREIGN.format(mark=str(home / "mark"))
    (home / "elsewhere" / "foreign_code.py").write_text(text)
    monkeypatch.syspath_prepend(home / "elsewhere")
    yield
    sys.modules.pop("foreign_code", None)


def greet(app, node, **config):
    """Greet a node; return what it answered."""
    config = DEFAULTS | {"run-name": "test", "patience": 30.0} | config
    context = Context(1, 1, dict(node), RecordDict(), config)
    envelope = {"mode": "masked", "n-parties": 2}
    reply = app(make_message(make_request("hello", 0, {}, **envelope), 1), context)
    return dict(read_envelope(reply.content)), context


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("key", ["strategy", "alignment"])
def test_no_module_is_imported_that_the_owner_has_not_named(home, key):
    (node,) = nodes_of(home, ["court"])
    name = "foreign_code:Method" if key == "strategy" else "foreign_code:Aligner"
    told, _ = greet(client_app, node, **{key: name})
    assert "refuses by policy.modules" in str(told["message"])
    assert f"policy.modules='{name}'" in str(told["message"])
    node["policy.modules"] = "foreign_code:Other"
    assert greet(client_app, node, **{key: name})[0]["status"] == "error"
    assert not (home / "mark").exists()
    node["policy.modules"] = name
    told, _ = greet(client_app, node, **{key: name})
    assert (home / "mark").exists()
    if key == "alignment":  # its steps are those of a protocol that is not allowed
        assert "refuses by policy.alignments: asked: alignment 'plain'" in str(told["message"])
        node["policy.alignments"] = "plain"
        told, _ = greet(client_app, node, **{key: name})
    assert told["status"] == "ok"


@pytest.mark.usefixtures("foreign")
def test_a_run_config_that_changes_after_the_greeting_is_asked_about_again(home):
    (node,) = nodes_of(home, ["court"])
    told, context = greet(client_app, node)
    assert told["status"] == "ok"
    context.run_config["strategy"] = "foreign_code:Method"
    request = make_request("prepare", 1, {}, mode="call", after=0)
    reply = client_app(make_message(request, 1), context)
    assert "policy.modules" in str(read_envelope(reply.content)["message"])
    assert not (home / "mark").exists()


class Counter(Party):
    """Somebody's own party, whose code the node's owner has chosen."""

    @step
    def count(self):
        return {"rows": self.table.n_samples}


class Count(Strategy):
    """Count rows."""

    name = "count"
    party = Counter
    disclosure = (("server", "how many rows each party has"),)

    def run(self, federation, alignment, result, progress):
        told = federation.call("count")
        result.metrics = {name: float(values["rows"]) for name, values in told.items()}


def count(nodes, grid=lambda inner: inner, **start):
    with LocalGrid(party_app(Counter), nodes) as inner:
        return Count().start(grid=grid(inner), retries=0, **start)


def test_a_party_of_one_s_own_needs_no_name_in_the_run_config(home):
    nodes = nodes_of(home)
    assert count(nodes).metrics == {"bank": 40.0, "court": 40.0}
    # Where the run config does not say how samples are aligned, the steps are asked one by one.
    with pytest.raises(PartyError, match=r"policy\.alignments: asked: alignment 'plain'"):
        count(nodes, alignment="plain")
    for node in nodes:
        node["policy.alignments"] = "plain"
    assert count(nodes, alignment="plain").metrics == {"bank": 40.0, "court": 40.0}


class OneParty(RecordingGrid):
    """A server that tells another number of parties, in the greeting or later, or none."""

    def __init__(self, grid, where):
        super().__init__(grid)
        self.where = where

    def _down(self, messages):
        sent = super()._down(messages)
        for message in sent:
            envelope = read_envelope(message.content)
            if self.where == "greeting":
                if envelope["step"] == "hello":
                    del envelope["n-parties"]
                continue
            for record in message.content.values():
                if "n-parties" in record and (record is not envelope) == (self.where == "keys"):
                    record["n-parties"] = 1
        return sent


@pytest.mark.parametrize("where", ["greeting", "keys", "envelope"])
def test_the_number_of_parties_is_checked_whenever_it_is_told(home, where):
    with pytest.raises(PartyError, match=r"policy\.min-parties: asked: a run of 1 part"):
        count(nodes_of(home), lambda grid: OneParty(grid, where))


def test_a_policy_that_cannot_be_read_is_said_to_the_server(home):
    (home / "court.toml").write_text("min-row = 50\n")
    nodes = nodes_of(home, policy=str(home / "court.toml"))
    with pytest.raises(PartyError, match=r"'court': .*min-row is no key of a policy.*min-rows"):
        run(nodes)
    (home / "court.toml").write_text("min-rows = 20\nmin-parties = 3\n")
    with pytest.raises(PartyError, match=r"policy\.min-parties: asked: a run of 2 parties"):
        run(nodes)


def test_a_policy_file_is_read_once_a_run(home, monkeypatch):
    (home / "court.toml").write_text("min-rows = 20\n")
    nodes, read = nodes_of(home, policy=str(home / "court.toml")), []
    own = FileStorage.policy

    def counting(self, context):
        read.append(context.node_config["party"])
        return own(self, context)

    monkeypatch.setattr(FileStorage, "policy", counting)
    run(nodes)
    # For the run, for the ledger's limits and for the page about it: not for each message.
    assert read.count("court") <= 3


def test_an_arbiter_asks_its_own_policy(home):
    arbiter = {"role": "arbiter", "policy.aggregations": "masked"}
    for more, key in (({"policy.strategies": "vfem"}, "strategies"), ({}, "aggregations")):
        with pytest.raises(PartyError, match=rf"the arbiter refuses by policy\.{key}"):
            run([*nodes_of(home), arbiter | more], aggregation="ckks")
    assert greet(client_app, arbiter)[0]["status"] == "ok"


def test_a_refusal_without_a_usable_ledger_is_a_refusal_all_the_same(home):
    nodes = nodes_of(home, **{"policy.strategies": "vfem"})
    (home / "court").mkdir()
    (home / "court" / "court.privacy-ledger.sqlite").write_bytes(b"no ledger")
    with pytest.raises(PartyError, match=r"'court' refuses by policy\.strategies"):
        run(nodes)


@pytest.mark.usefixtures("foreign")
def test_a_demonstration_agrees_to_classes_too(home):
    node = {"partition-id": 0, "num-partitions": 2}
    told, _ = greet(client_app, node, strategy="foreign_code:Method", alignment="plain")
    assert told["status"] == "ok"
    assert (home / "mark").exists()
