"""What is wrong is one line that names it: in Flower's log, at the server and at a party."""

import logging
import os
import sys

import pandas as pd
import pytest
from app_runs import DEFAULTS, own_files, run_app, simulated
from flwr.app import Context, RecordDict
from flwr.common.logger import log as flower_log

from apps.cli.main import main
from flwr_vertical.errors import ConfigError, DataError, PartyError, VerticalError
from flwr_vertical.node.file_storage import FileStorage


def check_flower_line(error, caplog):
    """Flower's line on a run that failed, as its ServerApp process writes it, is one."""
    caplog.clear()
    with caplog.at_level(logging.ERROR, "flwr"):
        logger = logging.getLogger("flwr")
        logger.addHandler(caplog.handler)
        try:  # as flwr.superlink.runtime.run_serverapp does
            flower_log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)
        finally:
            logger.removeHandler(caplog.handler)
    line = caplog.handler.format(caplog.records[-1])
    assert " ".join(str(error).split()) in line
    assert "Traceback" not in line
    assert "\n" not in line


def without(key):
    return lambda home, nodes: nodes[0].pop(key)


def not_a_table(home, nodes):
    (home / "court.csv").write_bytes(b"\x00\xff\xfe\x01" * 50)


def labels_of_others(home, nodes):
    strange = pd.Series([1.0], index=pd.Index(["x"], name="customer"), name="y")
    strange.to_csv(home / "labels.csv")


NO_NAME = "checkpoint=true and resume=true need a run-name"
HELD = {"strategy": "complete-case", "label_holder": "bank", "label_column": "z"}
ALONE = {"patience": 0.5, "parties": "bank,court"}


@pytest.mark.parametrize(
    ("change", "settings", "error", "says"),
    [
        ({"max-epsilom": 1.0}, {}, PartyError,
         r"party 'bank'.*unknown key 'max-epsilom'.*did you mean 'max-epsilon'"),
        ({"data": "{home}/absent.csv"}, {}, PartyError, r"party 'bank'.*{home}/absent\.csv"),
        (not_a_table, {}, PartyError, r"party 'court'.*court\.csv"),
        ({"id-column": "nope"}, {}, PartyError, r"party 'bank'.*nope.*customer"),
        (without("party"), {}, PartyError, r"no party name.*--node-config"),
        (without("data"), {}, PartyError, r"party 'bank'.*no 'data'"),
        ({"policy.labels": "z"}, HELD, PartyError, r"party 'bank'.*no column 'z'"),
        ({}, {"fitted": "nope"}, PartyError, r"nothing from a run named 'nope'"),
        ({"party": "court"}, {}, ConfigError, r"two nodes.*'court'"),
        (lambda home, nodes: nodes.pop(), ALONE, VerticalError,
         r"1 of 2 nodes are connected.*party 'court' is absent"),
        (labels_of_others, {"labels": "{home}/labels.csv"}, DataError,
         "no label belongs to a sample"),
        ({}, {"fknn.n-neighbours": 3}, ConfigError, r"\['n_neighbours'\].*fknn\.n-neighbors"),
        ({}, {"checkpoint": True, "run_name": ""}, ConfigError, NO_NAME),
        ({}, {"resume": True, "run_name": ""}, ConfigError, NO_NAME),
        ({}, {"checkpoint": "no"}, ConfigError, "checkpoint must be true or false, got 'no'"),
        ({}, {"resume": "no"}, ConfigError, "resume must be true or false, got 'no'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(
    home, bank, court, caplog, change, settings, error, says
):
    def filled(value):
        return value.replace("{home}", str(home)) if isinstance(value, str) else value

    nodes = own_files(home, bank=bank, court=court)
    if callable(change):
        change(home, nodes)
    else:
        nodes[0] |= {key: filled(value) for key, value in change.items()}
    with pytest.raises(error, match=filled(says)) as caught:
        run_app(nodes, **{key: filled(value) for key, value in settings.items()})
    check_flower_line(caught.value, caplog)
    assert not (home / "results" / "server" / "test" / "result.json").exists()


def test_too_few_nodes_say_how_to_get_more(home):
    with pytest.raises(ConfigError, match=r"num-supernodes=3"):
        run_app(simulated(2), aggregation="ckks", patience=1.0)


def test_other_errors_keep_their_traceback():
    record = logging.LogRecord("flwr", logging.ERROR, "", 0, "m", (), (KeyError, KeyError(), None))
    for check in logging.getLogger("flwr").filters:
        check(record) if callable(check) else check.filter(record)
    assert record.exc_info is not None


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../b", "..", "a\nb"])
def test_names_of_runs_stay_in_the_folder_of_the_node(home, bank, court, name):
    nodes = own_files(home, bank=bank, court=court)
    with pytest.raises(ConfigError, match="run-name"):
        run_app(nodes, run_name=name)
    with pytest.raises(PartyError, match="fitted"):
        run_app(nodes, fitted=name)
    # A server of another mind does not get further: the party checks for itself.
    context = Context(1, 1, dict(nodes[0]), RecordDict(), DEFAULTS | {"run-name": name})
    with pytest.raises(ConfigError, match="run-name"):
        FileStorage().save(context, bank)
    left = {path.name for path in home.glob("*-out/*")}
    assert left <= {"bank.privacy-ledger.sqlite", "court.privacy-ledger.sqlite"}


def test_a_reader_that_has_enough_is_no_error(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["strategies"]) == 0
