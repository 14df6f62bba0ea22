"""Nodes whose data are databases and folders: the app's own code, driven over a LocalGrid."""

import time

import app_runs
import pandas as pd
import pytest
from app_runs import ROOT
from databases import PASSWORD, USER, fill_all, four_tables
from flwr.common.config import parse_config_args

from apps.client_app import pick
from flwr_vertical import party_app
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.grids.proxy import WrappingGrid
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.settings.toml import read_items
from flwr_vertical.sources.reading import read_source


class OneProcessPerMessage:
    """A ClientApp as the Deployment Runtime starts it without channels: nothing is remembered."""

    def __call__(self, message, context):
        return party_app(pick, storage=FileStorage())(message, context)


class Watched(WrappingGrid):
    """A grid that calls a function before the messages of a round go out."""

    def __init__(self, grid, number, before):
        super().__init__(grid)
        self.number, self.before, self.rounds = number, before, 0

    def _count(self):
        self.rounds += 1
        if self.rounds == self.number:
            self.before()

    def push_messages(self, messages):
        self._count()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages, *, timeout=None):
        self._count()
        return self._grid.send_and_receive(messages, timeout=timeout)


def run_app(nodes, **settings):
    return app_runs.run_app(
        nodes,
        app=OneProcessPerMessage(),
        **{"transport": "messages", "strategy": "mean"} | settings,
    )


@pytest.fixture(scope="module")
def tables():
    return four_tables(60, 5)


AGREED = {"policy.alignments": "plain,private-id"}


def in_files(home, tables):
    nodes = []
    for name, frame in tables.items():
        frame.to_csv(home / f"{name}.csv")
        nodes.append({"party": name, "data": str(home / f"{name}.csv"), **AGREED})
    return nodes


def in_sources(home, tables, server):
    """Node configs, read from text as a SuperNode reads its own."""
    fill_all(home, tables, server)
    nodes = [
        {"party": "bank", "data": server.url, "table": "bank", **AGREED},
        {
            "party": "court",
            "data": f"duckdb:///{home / 'court.duckdb'}",
            "query": "SELECT * FROM court",
            **AGREED,
        },
        {"party": "shop", "data": str(home / "shop.sqlite"), "table": "shop", **AGREED},
        {"party": "tax", "data": str(home / "tax"), **AGREED},
    ]
    texts = (" ".join(f"{key}={value!r}" for key, value in node.items()) for node in nodes)
    return [parse_config_args([text]) for text in texts]


def results(home, run, names):
    folder = home / "results" / "parties" / run
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in names}


def test_every_source_gives_the_numbers_of_csv_even_if_the_databases_go_away(
    home, tables, postgres
):
    run_app(in_files(home, tables), run_name="csv", strategy="fknn")
    nodes = in_sources(home, tables, postgres)
    stopped = []

    def stop():
        stopped.append(postgres.stop())
        (home / "court.duckdb").unlink()
        (home / "shop.sqlite").write_text("something else")

    try:
        grid = run_app(
            nodes, wrap=lambda g: Watched(g, 3, stop), run_name="sources", strategy="fknn"
        )
    finally:
        if stopped:
            postgres.start()
    assert stopped
    assert grid.rounds > 6  # each of them read the tables anew, in a process of its own
    expected, found = results(home, "csv", tables), results(home, "sources", tables)
    for name in tables:
        pd.testing.assert_frame_equal(found[name], expected[name].loc[found[name].index])
        assert len(found[name]) == len(expected[name])


def test_copies_are_their_owners_alone_and_go_with_the_next_run(home, tables, postgres):
    nodes = in_sources(home, tables, postgres)[:3]
    run_app(nodes, run_name="one")
    copies = home / "results" / "parties" / ".sources"
    assert sorted(str(p.relative_to(copies)) for p in copies.rglob("*.parquet")) == [
        f"{name}/one.parquet" for name in ("bank", "court", "shop")
    ]
    assert {p.stat().st_mode & 0o777 for p in copies.rglob("*.parquet")} == {0o600}
    run_app(nodes, run_name="two", checkpoint=True)  # such a run says when it is over
    assert list(copies.rglob("*.parquet")) == []


def test_a_run_reads_the_database_as_it_is_when_the_run_begins(home, tables, postgres):
    nodes = in_sources(home, tables, postgres)[:2]
    run_app(nodes, run_name="one")
    postgres.execute("UPDATE bank SET bank_a = 1000 WHERE customer = 0")
    run_app(nodes, run_name="two")
    found = {run: results(home, run, ["bank"])["bank"] for run in ("one", "two")}
    assert found["one"].loc[0, "bank_a"] != 1000
    assert found["two"].loc[0, "bank_a"] == 1000


WRONG = [
    ({"data": "postgresql://{user}:wrong@{place}"}, "refuses the password"),
    ({"data": "postgresql://{user}@{place}"}, "refuses the password"),
    ({"data": "postgresql://{user}:${{NO_SUCH_VARIABLE}}@{place}"}, "not set in the env"),
    ({"data": "postgresql://{user}:x@127.0.0.1:9/db"}, "nothing listens there"),
    ({"data": "postgresql://{user}:x@no-such-host.invalid/db"}, "unknown host"),
    ({"data": "{url}x"}, "has no such database"),
    ({"data": "mysql://{place}"}, "mysql:// are not supported"),
    ({"table": "no_such_table"}, "names a table that is not there"),
    ({"query": "SELECT 1"}, "got both"),
    ({"id-column": "nr"}, "no column 'nr' for the sample IDs"),
    ({"secret-file": "/no/such/file"}, "has a password, and a secret file is named"),
]


def test_a_wrong_database_is_named_at_once_and_by_its_party(home, tables, postgres, caplog):
    bank, court, *_ = in_sources(home, {name: tables[name] for name in tables}, postgres)
    fill = {"user": USER, "place": postgres.place, "url": postgres.url}
    for change, says in WRONG:
        wrong = {key: own if key == "query" else own.format(**fill) for key, own in change.items()}
        started = time.monotonic()
        with pytest.raises(PartyError, match=says) as caught:
            run_app([bank | wrong, court])
        assert time.monotonic() - started < 10
        assert caught.value.party == "bank"
        assert "\n" not in str(caught.value)
        for text in (str(caught.value), caplog.text):
            assert PASSWORD not in text
            assert "wrong@" not in text


def test_the_password_may_be_in_a_file_of_its_owner(home, tables, postgres):
    nodes = in_sources(home, tables, postgres)[:2]
    secret = home / "secret"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o644)
    nodes[0] |= {"data": f"postgresql://{USER}@{postgres.place}", "secret-file": str(secret)}
    with pytest.raises(PartyError, match="can be read by others"):
        run_app(nodes)
    secret.chmod(0o600)
    run_app(nodes)
    nodes[1]["secret-file"] = str(secret)
    with pytest.raises(PartyError, match="neither 'data' nor 'output' is such a database"):
        run_app(nodes, run_name="second")


def test_results_are_written_back_where_the_owner_asks(home, tables, postgres, capfd):
    nodes = in_sources(home, tables, postgres)
    postgres.execute("DROP TABLE IF EXISTS bank_one")
    outputs = (postgres.url, str(home / "new.duckdb"), str(home / "shop.sqlite"))
    for node, output in zip(nodes[:3], outputs, strict=True):
        node |= {"output": output, "output-folder": str(home / "own")}
    nodes[3] |= {"output": str(home / "{run}-{party}.parquet"), "output-folder": str(home / "own")}
    run_app(nodes, run_name="one", transport="channel")
    said = "".join(capfd.readouterr())
    assert "4 channels are open" in said
    assert PASSWORD not in said
    written = {
        name: read_source(output, table=f"{name}_one").frame
        for name, output in zip(tables, outputs, strict=False)
    }
    written["tax"] = pd.read_parquet(home / "one-tax.parquet")
    for name, frame in written.items():
        own = pd.read_parquet(home / "own" / "one" / f"{name}.parquet")
        pd.testing.assert_frame_equal(frame.loc[own.index], own, check_names=False)
    # A second run of the name would replace them: known before anything is computed.
    for path in (home / "own" / "one").glob("*.parquet"):
        path.unlink()
    for path in (home / "results" / "server").iterdir():
        path.rename(home / path.name)
    with pytest.raises(PartyError, match="exists, and the result would replace it"):
        run_app(nodes, run_name="one")


def test_a_result_over_the_input_is_refused_before_anything_is_read(home, tables, postgres):
    nodes = in_sources(home, tables, postgres)[:2]
    nodes[0] |= {"output": postgres.url, "output-table": "bank", "output-replace": "result"}
    with pytest.raises(PartyError, match=r"the table that was read.*output-replace='input'"):
        run_app(nodes)
    nodes[0] |= {"output": str(home / "folder")}
    with pytest.raises(PartyError, match="output-table is set, but 'output' is no database"):
        run_app(nodes)


@pytest.mark.parametrize(
    "given",
    [
        {"labels": "postgresql://bank:hunter2@db/crm"},
        {"output": "postgres://db/hunter2"},
        {"data": "https://bank:hunter2@db/crm"},
        {"settings": "host=db password=hunter2"},
        {"database.password": "hunter2"},
        {"pgpassword": "hunter2"},
        {"secret": "hunter2"},
    ],
)
def test_a_secret_in_a_run_config_is_refused_and_not_shown(home, tables, given, capsys):
    from apps.cli.main import main

    with pytest.raises(ConfigError, match="the run config has") as caught:
        run_app(in_files(home, tables), **given)
    assert "hunter2" not in str(caught.value)
    ((key, value),) = given.items()
    for text in (f'{key}="{value}"', f"{key}={value}"):
        assert main(["run", str(ROOT), "--run-config", text]) in (1, 2)
        said = capsys.readouterr()
        assert "hunter2" not in said.out + said.err
        assert "error: " in said.err


def test_settings_with_a_secret_that_are_no_toml_are_not_shown():
    with pytest.raises(ConfigError, match="not shown here") as caught:
        read_items(["data=postgresql://bank:hunter2@db/crm"])
    assert "hunter2" not in str(caught.value)
