"""Reading 500,000 rows by 20 columns of PostgreSQL: by its ADBC driver, and by SQLAlchemy.

Give it the address of a database in which a table ``reading_benchmark`` may be made; the other way
needs ``pip install sqlalchemy psycopg[binary]``::

    python -m benchmarks.databases postgresql://user@localhost/test
"""

import argparse
import re
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

from flwr_vertical.sources import Destination, parse_address, read_frame

TABLE = "reading_benchmark"
ROWS = 500_000


def table() -> pd.DataFrame:
    """Return 8 columns of floats, 6 of whole numbers with gaps, 2 of booleans, 3 of texts."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {f"f{j}": rng.normal(size=ROWS) for j in range(8)}
    for j in range(6):
        values = pd.array(rng.integers(0, 1000, ROWS), dtype="Int64")
        values[rng.random(ROWS) < 0.1] = pd.NA
        columns[f"i{j}"] = values
    columns |= {f"b{j}": rng.random(ROWS) < 0.5 for j in range(2)}
    levels = np.array(["red", "green", "blue", "none"])
    columns |= {f"t{j}": levels[rng.integers(0, 4, ROWS)] for j in range(3)}
    return pd.DataFrame(columns, index=pd.RangeIndex(ROWS, name="id"))


def adbc(address: str) -> int:
    """Read the table as a node does; returns the number of cells."""
    return read_frame(address, table=TABLE)[0].size


def sqlalchemy(address: str, rows: int | None) -> int:
    """Read the table by SQLAlchemy, whole or in blocks of rows."""
    import sqlalchemy as sql

    uri = re.sub(r"^postgresql", "postgresql+psycopg", parse_address(address).uri)
    with sql.create_engine(uri).connect() as connection:
        if rows is None:
            return pd.read_sql(sql.text(f"SELECT * FROM {TABLE}"), connection).size
        stream = connection.execution_options(stream_results=True)
        parts = pd.read_sql(sql.text(f"SELECT * FROM {TABLE}"), stream, chunksize=rows)
        return pd.concat(list(parts)).size


def write(address: str) -> int:
    """Write the table; returns the number of cells."""
    made = table()
    Destination.of(address, TABLE, replace="result").write(made)
    return made.size


WAYS = {
    "Writing": write,
    "ADBC": adbc,
    "SQLAlchemy": lambda address: sqlalchemy(address, None),
    "SQLAlchemy, blocks of 20,000": lambda address: sqlalchemy(address, 20_000),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is None:
        for way in WAYS:  # each in a process of its own, whose peak of memory is its own
            arguments = [sys.executable, "-m", "benchmarks.databases", options.address]
            subprocess.run([*arguments, "--way", way], check=False)
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = time.perf_counter(), time.process_time()
    cells = WAYS[options.way](options.address)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{options.way}: {cells:,} cells, {processor:.1f} s of processor time, {wall:.1f} s, "
        f"{peak:,.0f} MiB more memory",
        flush=True,
    )


if __name__ == "__main__":
    main()
