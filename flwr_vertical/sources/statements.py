"""What is read of a database: a table by its name, or the rows of one query."""

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_vertical.errors import ConfigError


@dataclass(frozen=True)
class Wanted:
    """A table or a query; exactly one of the two."""

    table: str | None = None  # Name of a table or view, with its schema before a dot if need be
    query: str | None = None  # One statement that only reads

    @classmethod
    def of(cls, table: str | None, query: str | None, where: str) -> "Wanted":
        """Return it, or say that exactly one must be given."""
        if (table is None) == (query is None):
            came = "neither" if table is None else "both"
            raise ConfigError(
                f"{where} is a database: name what to read by 'table' or by 'query', got {came}"
            )
        text = (table or query or "").strip().rstrip(";").rstrip()
        if not text:
            raise ConfigError(f"{where}: 'table' or 'query' is empty")
        if table is not None:
            table_parts(text)
            return cls(table=text)
        return cls(query=text)

    def statement(self, columns: Sequence[str] | None = None) -> str:
        """Return the query, of some columns only if these are named."""
        chosen = "*" if columns is None else ", ".join(map(quoted, columns))
        if self.query is None:
            return f"SELECT {chosen} FROM {quoted_table(str(self.table))}"
        if columns is None:
            return f"{self.query}\n"
        # A line break ends a comment at the end of the query.
        return f"SELECT {chosen} FROM (\n{self.query}\n) AS wanted"

    @property
    def what(self) -> str:
        """What messages call it; the text of a query may hold data and is not shown."""
        return "the query" if self.table is None else f"the table {self.table!r}"


def table_parts(name: str) -> list[str]:
    """Return the schema, if there is one, and the name of a table."""
    parts = name.split(".")
    if len(parts) > 3 or not all(part.strip() for part in parts):
        raise ConfigError(f"{name!r} is no name of a table; expected 'name' or 'schema.name'")
    return parts


def quoted_table(name: str) -> str:
    """Return the name of a table as SQL takes it literally, upper and lower case included."""
    return ".".join(map(quoted, table_parts(name)))


def quoted(name: str) -> str:
    """Return a name as SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'
