import os

import pytest
from app_runs import home  # noqa: F401
from databases import PASSWORD, fill_duckdb, fill_sqlite, running_postgres


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL whose password is in the environment."""
    with running_postgres() as server:
        os.environ["READER_PASSWORD"] = PASSWORD
        yield server
        del os.environ["READER_PASSWORD"]


class Database:
    """One kind of database, alike for all: where it is and how a test fills it."""

    def __init__(self, kind, address, execute):
        self.kind, self.address, self.execute = kind, address, execute


@pytest.fixture(params=["postgresql", "duckdb", "sqlite"])
def database(request, tmp_path):
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        schema = f"test_{os.urandom(4).hex()}"
        server.execute(f"CREATE SCHEMA {schema}")
        address = f"{server.url}?options=-csearch_path%3D{schema}"

        def execute(*statements):
            server.execute(f"SET search_path = {schema}", *statements)

        yield Database(request.param, address, execute)
        return
    path = tmp_path / f"table.{request.param}"
    fill = fill_duckdb if request.param == "duckdb" else fill_sqlite
    fill(path)
    yield Database(request.param, str(path), lambda *statements: fill(path, *statements))
