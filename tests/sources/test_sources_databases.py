"""Tables of PostgreSQL, DuckDB and SQLite: types are kept, and what is wrong is said in a line."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources.address import is_database
from flwr_vertical.sources.reading import read_source
from flwr_vertical.sources.writing import Destination
from flwr_vertical.tables import Kind

TYPES = {
    "postgresql": "id bigint, amount numeric(9,2), visits integer, member boolean, "
    "region text, since date",
    "duckdb": "id bigint, amount decimal(9,2), visits integer, member boolean, "
    "region text, since date",
    "sqlite": "id integer, amount numeric, visits integer, member boolean, region text, since date",
}
ROWS = (
    "(3, 1.25, 7, true, 'north', '1970-01-03'), (1, -2.5, NULL, false, 'Süd', '1970-01-01'), "
    "(2, NULL, 0, true, '', NULL), (10, 100.75, 2, NULL, 'NA', '2020-02-29')"
)


@pytest.fixture
def customers(database):
    database.execute(
        f"CREATE TABLE customers ({TYPES[database.kind]})", f"INSERT INTO customers VALUES {ROWS}"
    )
    return database


def test_types_are_kept_and_rows_come_in_the_order_of_the_ids(customers):
    table = read_source(customers.address, table="customers", dates="days")
    frame = table.frame
    assert frame.index.tolist() == [1, 2, 3, 10]
    assert frame.index.dtype == "int64"
    assert frame.index.name == "id"
    np.testing.assert_array_equal(frame["amount"], [-2.5, np.nan, 1.25, 100.75])
    np.testing.assert_array_equal(frame["visits"], [np.nan, 0, 7, 2])
    assert frame["member"].tolist()[:3] == [False, True, True]
    assert frame["member"].isna().tolist() == [False, False, False, True]
    assert frame["region"].tolist() == ["Süd", "", "north", "NA"]  # marks of CSV are texts here
    np.testing.assert_array_equal(frame["since"], [0, np.nan, 2, 18321])
    assert table.kinds["member"] == Kind.BINARY
    assert table.kinds["visits"] == Kind.COUNT
    assert table.kinds["amount"] == Kind.CONTINUOUS


def test_dates_are_text_with_a_warning_unless_days_are_asked_for(customers):
    with pytest.warns(UserWarning, match=r"column 'since' holds dates.*csv.dates='days'"):
        table = read_source(customers.address, table="customers")
    assert table.frame["since"].tolist()[0].startswith("1970-01-01")
    assert table.kinds["since"] == Kind.CATEGORICAL


def test_a_query_chooses_rows_and_columns(customers):
    query = "SELECT region, id, visits AS n FROM customers WHERE id < 5 -- the old ones\n;"
    table = read_source(customers.address, query=query, id_column="id")
    assert table.columns == ["region", "n"]
    assert table.frame.index.tolist() == [1, 2, 3]
    some = read_source(customers.address, query=query, id_column="id", columns=["n"])
    assert some.columns == ["n"]


def test_composite_ids_are_joined(customers):
    query = "SELECT region, id, amount FROM customers WHERE region <> ''"
    table = read_source(customers.address, query=query, id_column="id,region")
    assert sorted(table.ids) == ["10|NA", "1|Süd", "3|north"]


REFUSED = [
    ({"table": "clients"}, ConfigError, "the table 'clients' names a table that is not there"),
    ({"query": "SELECT x FROM clients"}, ConfigError, "names a table that is not there"),
    ({"query": "SELECT missing FROM customers"}, ConfigError, "a column that is not there"),
    ({"query": "DELETE FROM customers"}, ConfigError, "expected (a|one) SELECT"),
    ({"query": "DROP TABLE customers"}, ConfigError, "expected (a|one) SELECT"),
    (
        {"query": "DELETE FROM customers RETURNING id, amount"},
        ConfigError,
        "expected (a|one) SELECT",
    ),
    ({"query": "SELECT 1 AS a; SELECT 2"}, ConfigError, "expected one SELECT"),
    ({"query": "SELEC 1"}, ConfigError, "expected one SELECT"),
    ({"query": " ; "}, ConfigError, "'query' is empty"),
    ({}, ConfigError, "got neither"),
    ({"query": "SELECT 1", "table": "customers"}, ConfigError, "got both"),
    ({"query": "SELECT * FROM customers WHERE id < 0"}, DataError, "has no rows"),
    (
        {"query": "SELECT id, visits FROM customers UNION ALL SELECT id, 5 FROM customers"},
        DataError,
        "4 rows whose sample ID repeats",
    ),
    ({"table": "customers", "id_column": "nr"}, DataError, "no column 'nr' for the sample IDs"),
    ({"query": "SELECT id, id, amount FROM customers"}, DataError, "several columns named"),
    ({"query": "SELECT visits, amount FROM customers"}, DataError, "1 row without a sample"),
    ({"query": "SELECT id FROM customers"}, DataError, "0 columns besides the sample ID"),
]  # fmt: skip


def test_what_cannot_be_used_is_said_in_one_line_and_changes_nothing(customers):
    for asked, error, says in REFUSED:
        with pytest.raises(error, match=says) as caught:
            read_source(customers.address, party="bank", **asked)
        text = str(caught.value)
        assert "\n" not in text
        assert "s3cret" not in text
        assert "north" not in text
    table = read_source(customers.address, query="SELECT id, visits FROM customers")
    assert table.n_samples == 4


def test_a_value_that_a_query_stumbles_over_is_not_quoted(customers):
    if customers.kind == "sqlite":
        pytest.skip("SQLite converts any text to a number")
    with pytest.raises(DataError, match="refused the query") as caught:
        read_source(customers.address, query="SELECT id, CAST(region AS integer) FROM customers")
    assert "north" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_result_is_written_whole_and_replaces_nothing_unless_asked(customers):
    frame = pd.DataFrame(
        {
            "amount": [0.5, np.nan],
            "n": [1, 2],
            "member": [True, False],
            "level": pd.Categorical(["a", None], categories=["a", "b"]),
        },
        index=pd.Index([7, 8], name="id"),
    )
    target = {"source": customers.address, "source_table": "customers"}
    output = Destination.of(customers.address, "imputed", **target)
    output.check()
    output.write(frame)
    found = read_source(customers.address, table="imputed").frame
    np.testing.assert_array_equal(found["amount"], [0.5, np.nan])
    assert found["n"].tolist() == [1, 2]
    assert found["member"].tolist() == [True, False]
    assert found["level"].tolist()[0] == "a"
    assert found["level"].isna().tolist() == [False, True]

    for attempt in (output.check, lambda: output.write(frame)):
        with pytest.raises(ConfigError, match=r"'imputed' exists.*output-replace='result'"):
            attempt()
    again = Destination.of(customers.address, "imputed", replace="result", **target)
    again.check()
    again.write(frame.iloc[:1])
    assert read_source(customers.address, table="imputed").n_samples == 1

    for replace in ("never", "result"):
        with pytest.raises(ConfigError, match="the table that was read"):
            Destination.of(customers.address, "customers", replace=replace, **target)
    Destination.of(customers.address, "customers", replace="input", **target).write(frame)
    assert read_source(customers.address, table="customers").frame["n"].tolist() == [1, 2]


def test_a_result_that_cannot_be_written_changes_nothing(customers):
    frame = pd.DataFrame({"x": [1.0]}, index=pd.Index(["a"], name="id"))
    Destination.of(customers.address, "imputed").write(frame)
    customers.execute("CREATE VIEW seen AS SELECT * FROM customers")
    blocked = Destination.of(customers.address, "seen", replace="result")
    with pytest.raises((ConfigError, DataError), match="writing the table 'seen'"):
        blocked.write(frame)  # DROP TABLE does not drop a view, after the rows were written
    found = read_source(customers.address, query="SELECT id, visits FROM seen")
    assert found.n_samples == 4
    with pytest.raises(ConfigError, match="not there"):
        read_source(customers.address, table="seen__new")


def test_mixed_values_of_sqlite_are_refused(tmp_path):
    from databases import fill_sqlite

    path = tmp_path / "mixed.db"
    fill_sqlite(path, "CREATE TABLE t (id, x)", "INSERT INTO t VALUES (1, 2), (2, 'two'), (3, 4.5)")
    assert is_database(path)
    with pytest.raises(DataError, match="column 'x' holds values of several types"):
        read_source(path, table="t")
    numbers = read_source(path, query="SELECT id, x FROM t WHERE id <> 2")
    assert numbers.frame["x"].tolist() == [2.0, 4.5]


@pytest.mark.parametrize("name", ["gone.sqlite", "gone.duckdb", "gone.db"])
def test_a_file_that_is_not_there_is_not_made(tmp_path, name):
    if name.endswith("duckdb"):
        pytest.importorskip("duckdb", reason="needs flwr-vertical[duckdb]")
    with pytest.raises(DataError, match=r"gone\.\w+ does not exist"):
        read_source(tmp_path / name, table="t")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("suffix", ["sqlite", "duckdb", "db"])
def test_a_file_of_something_else_is_refused(tmp_path, suffix):
    if suffix == "duckdb":
        pytest.importorskip("duckdb", reason="needs flwr-vertical[duckdb]")
    path = tmp_path / f"table.{suffix}"
    path.write_text("id,x\n1,2\n" * 200)
    with pytest.raises((DataError, ConfigError), match=r"not an SQLite|as a DuckDB|neither"):
        read_source(path, table="t")
