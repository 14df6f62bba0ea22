"""A PostgreSQL of the tests' own, on loopback, stopped at the end; and the same table anywhere."""

import contextlib
import glob
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from deployments import free_ports

from flwr_vertical.sources.writing import Destination

USER, PASSWORD = "reader", "s3cret@/:?word"


def programs():
    """Return the folder of initdb and pg_ctl, None if PostgreSQL is not installed."""
    beside = shutil.which("initdb")
    found = [
        *([os.path.dirname(os.path.realpath(beside))] if beside else []),
        *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True),
    ]
    return next((Path(f) for f in found if (Path(f) / "pg_ctl").exists()), None)


class Postgres:
    """A server with one user, who has a password."""

    def __init__(self, folder, account):
        self.data, self.account = folder / "data", account
        self.port = free_ports(1)[0]
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if account is not None:
            for path in (folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._run(
            "initdb", "-D", self.data, "-U", USER, "-A", "scram-sha-256", "--pwfile", secret,
            "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        self.start()

    def start(self):
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' "
            "-c fsync=off"
        )
        self._run("pg_ctl", "-D", self.data, "-w", "-l", self.data / "log", "-o", options, "start")

    def stop(self):
        self._run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop")

    @property
    def place(self):
        return f"127.0.0.1:{self.port}/postgres"

    @property
    def url(self):
        """With a placeholder; the fixture sets the variable."""
        return f"postgresql://{USER}:${{READER_PASSWORD}}@{self.place}"

    def execute(self, *statements):
        from adbc_driver_postgresql import dbapi

        from flwr_vertical.sources.address import parse_address

        with dbapi.connect(parse_address(self.url).uri) as connection:
            with connection.cursor() as cursor:
                for each in statements:
                    cursor.execute(each)
                rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows

    def _run(self, program, *arguments):
        who = {} if self.account is None else {
            "user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": [],
        }  # fmt: skip
        # pg_ctl leaves a server behind that holds its output open.
        subprocess.run(
            [programs() / program, *map(str, arguments)],
            check=True, cwd="/", timeout=60, stdout=subprocess.DEVNULL, **who,
        )  # fmt: skip


@contextlib.contextmanager
def running_postgres():
    """Start a server as another user than root, which it refuses to run as."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql")
    pytest.importorskip("adbc_driver_postgresql", reason="needs flwr-vertical[postgres]")
    account = None
    if os.geteuid() == 0:
        names = [name for name in ("postgres", "nobody") if _account(name)]
        if not names:
            pytest.skip("PostgreSQL does not run as root, and there is no other user")
        account = pwd.getpwnam(names[0])
    folder = Path(tempfile.mkdtemp(prefix="flwr-vertical-postgres-"))
    server = None
    try:
        server = Postgres(folder, account)
        yield server
    finally:
        if server is not None:
            with contextlib.suppress(subprocess.SubprocessError):
                server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _account(name):
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def fill_sqlite(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


def fill_duckdb(path, *statements):
    duckdb = pytest.importorskip("duckdb", reason="needs flwr-vertical[duckdb]")
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        for each in statements:
            connection.execute(each)


def four_tables(n, seed):
    """Numbers of four parties that follow from two; cells and rows are missing."""
    rng = np.random.default_rng(seed)
    index = pd.Index(range(n), name="customer")
    latent = rng.normal(size=(n, 2))
    found = {}
    for k, name in enumerate(("bank", "court", "shop", "tax")):
        values = latent @ rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(n, 3))
        frame = pd.DataFrame(values, columns=[f"{name}_{c}" for c in "abc"], index=index)
        frame[f"{name}_n"] = rng.integers(0, 9, n).astype(float)
        frame = frame.mask(rng.random(frame.shape) < 0.1)
        found[name] = frame.drop(index=rng.choice(n, size=4 * k, replace=False))
    return found


def fill_all(home, tables, server):
    """Write bank into PostgreSQL, court into DuckDB, shop into SQLite, tax into a folder."""
    server.execute("DROP TABLE IF EXISTS bank")
    Destination.of(server.url, "bank").write(tables["bank"])
    fill_duckdb(home / "court.duckdb")
    Destination.of(home / "court.duckdb", "court").write(tables["court"])
    fill_sqlite(home / "shop.sqlite")
    Destination.of(home / "shop.sqlite", "shop").write(tables["shop"])
    for k, part in enumerate(np.array_split(np.arange(len(tables["tax"])), 3)):
        folder = home / "tax" / f"{2020 + k}"
        folder.mkdir(parents=True)
        tables["tax"].iloc[part].to_parquet(folder / "rows.parquet")
