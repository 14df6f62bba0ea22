"""Addresses: what is a database, and what of it is ever shown."""

from urllib.parse import unquote

import pytest

from flwr_vertical.errors import ConfigError
from flwr_vertical.optional import require
from flwr_vertical.sources import postgres
from flwr_vertical.sources.address import is_database, parse_address
from flwr_vertical.sources.statements import Wanted, quoted_table
from flwr_vertical.sources.writing import table_name

SECRET = "p@ss/w:rd?#%"


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("duckdb:///a/b.duckdb", "duckdb", "a/b.duckdb"),
        ("duckdb:////a/b.duckdb", "duckdb", "/a/b.duckdb"),
        ("sqlite:////a/b.db", "sqlite", "/a/b.db"),
        ("sqlite+pysqlite:///b.db", "sqlite", "b.db"),
        ("/srv/b.SQLITE", "sqlite", "/srv/b.SQLITE"),
        ("b.duckdb", "duckdb", "b.duckdb"),
    ],
)
def test_files_of_databases(text, kind, path):
    assert is_database(text)
    address = parse_address(text)
    assert (address.kind, str(address.path)) == (kind, path)


@pytest.mark.parametrize("text", ["/srv/bank.csv", "folder", "bank.parquet", "a.tsv", ""])
def test_other_files_are_no_databases(text):
    assert not is_database(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader:${THE_SECRET}@db.example:6543/crm",
        "postgres://reader:p%40ss%2Fw%3Ard%3F%23%25@db.example:6543/crm?sslmode=require",
        "postgresql+psycopg://${WHO}:${THE_SECRET}@${HOST_OF_DB}:6543/crm",
        "${WHOLE}",
    ],
)
def test_a_password_is_given_to_the_driver_and_never_shown(monkeypatch, text):
    monkeypatch.setenv("THE_SECRET", SECRET)
    monkeypatch.setenv("WHO", "reader")
    monkeypatch.setenv("HOST_OF_DB", "db.example")
    monkeypatch.setenv("WHOLE", "postgresql://reader:p%40ss%2Fw%3Ard%3F%23%25@db.example:6543/crm")
    address = parse_address(text)
    assert str(address) == "postgresql://db.example:6543/crm"
    assert "reader" not in repr(address)
    assert SECRET not in repr(address)
    login = address.uri.removeprefix("postgresql://").split("@")[0]
    assert [unquote(part) for part in login.split(":")] == ["reader", SECRET]
    assert "connect_timeout=5" in address.uri


def test_options_of_the_address_and_of_libpq_count_more_than_defaults(monkeypatch):
    uri = parse_address("postgresql://db/crm?connect_timeout=2&sslmode=verify-full").uri
    assert "connect_timeout=2" in uri
    assert "sslmode=verify-full" in uri
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")
    assert "connect_timeout" not in parse_address("postgresql://db/crm").uri


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mysql://reader:hunter2@db/crm", "mysql:// are not supported"),
        ("postgresql://reader:hunter2", "cannot be read"),
        ("postgresql://reader:hunter2?@db/crm", "cannot be read"),
        ("postgresql://reader:hunter2@db:port/crm", "cannot be read"),
        ("postgresql://reader:${NOT_SET}@db/crm", "NOT_SET.*not set in the environment"),
        ("duckdb://file.duckdb", "must be followed by a slash"),
        ("${NO_ADDRESS}", "does not hold one"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(monkeypatch, text, says):
    monkeypatch.setenv("NO_ADDRESS", "hunter2")
    with pytest.raises(ConfigError, match=says) as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)


def test_a_secret_file_is_one_line_and_its_owners_alone(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    address = parse_address("postgresql://reader@db/crm", path)
    assert unquote(address.uri.split("@")[0]).endswith(f"reader:{SECRET}")
    with pytest.raises(ConfigError, match="whom the address of the database must name"):
        parse_address("postgresql://db/crm", path)
    with pytest.raises(ConfigError, match="a secret file is named, too"):
        parse_address("postgresql://reader:x@db/crm", path)
    with pytest.raises(ConfigError, match="for the password of a PostgreSQL user"):
        parse_address("a.sqlite", path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        parse_address("postgresql://reader@db/crm", path)
    path.chmod(0o600)
    path.write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match="2 lines, expected one") as caught:
        parse_address("postgresql://reader@db/crm", path)
    assert "two" not in str(caught.value)


def test_names_of_tables_are_taken_literally():
    assert quoted_table('crm.Cust"omers; DROP') == '"crm"."Cust""omers; DROP"'
    assert Wanted.of("crm.t", None, "x").statement(["a b"]) == 'SELECT "a b" FROM "crm"."t"'
    with pytest.raises(ConfigError, match="no name of a table"):
        Wanted.of("crm.", None, "x")


def test_a_runs_name_cannot_lead_out_of_a_tables_name():
    assert table_name("crm.{party}_{run}", "A & B", 'x".y; --') == "crm.A___B_x__y____"


def test_a_driver_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    def lacking(package, what):
        return require(f"{package}_of_nobody", what)

    monkeypatch.setattr(postgres, "require", lacking)
    address = parse_address("postgresql://reader@db/crm")
    with pytest.raises(ConfigError, match="needs 'adbc_driver_postgresql_of_nobody'"):
        postgres.exists(address, "t")
    from flwr_vertical.optional import how_to_install

    assert "'flwr-vertical[duckdb,postgres]'" in how_to_install(
        ["adbc_driver_postgresql", "duckdb"]
    )
