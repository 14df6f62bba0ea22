"""Addresses of databases: which kind, what is secret in them, and what may be shown.

A password is never written where others can read it: it comes from the environment
(``${BANK_PASSWORD}`` in the address, or libpq's own ``PGPASSWORD`` and ``~/.pgpass``) or from a
file. Messages show an address without its user, password and options.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

from flwr_vertical.errors import ConfigError

POSTGRESQL, DUCKDB, SQLITE = "postgresql", "duckdb", "sqlite"
_SCHEMES = {
    "postgresql": POSTGRESQL, "postgres": POSTGRESQL, "duckdb": DUCKDB, "sqlite": SQLITE,
}  # fmt: skip
_SUFFIXES = {".duckdb": DUCKDB, ".ddb": DUCKDB, ".sqlite": SQLITE, ".sqlite3": SQLITE}
_MAGIC = {DUCKDB: (8, b"DUCK"), SQLITE: (0, b"SQLite format 3\0")}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\+[A-Za-z0-9_]+)?://")
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Hosts with their ports, and the name of the database: nothing that could be a password.
_PLACE = re.compile(
    r"([^@:/?#\[\]]*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(,[^@:/?#]+(:\d{1,5})?)*(/[^@:/?#]*)?"
)
_FORMS = (
    "postgresql://user@host:5432/database, duckdb:///folder/file.duckdb, "
    "sqlite:///folder/file.sqlite, or the path of a .duckdb, .sqlite or .db file"
)
# Seconds; libpq takes each address of a host in turn.
_CONNECT_TIMEOUT = 5
# A server whose machine vanished while it sent rows is given up after half a minute.
_DEFAULTS = {
    "application_name": "flwr-vertical",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


@dataclass(frozen=True)
class Address:
    """Where a database is."""

    kind: str
    shown: str  # The address as messages may show it
    # What the driver is given, with the password; empty for a file
    uri: str = field(default="", repr=False)
    path: Path | None = None  # The file of a DuckDB or SQLite database

    def __str__(self) -> str:
        """Return what messages may show."""
        return self.shown


def is_database(text: str | os.PathLike[str]) -> bool:
    """Whether a text is the address of a database, rather than the path of a file or folder."""
    text = str(text)
    if "://" in text or _PLACEHOLDER.fullmatch(text):
        return True
    path = Path(text)
    return path.suffix.lower() in _SUFFIXES or path.suffix.lower() == ".db"


def parse_address(
    text: str | os.PathLike[str], secret_file: str | os.PathLike[str] | None = None
) -> Address:
    """Read the address of a database.

    It is ``postgresql://user@host:5432/database``, with the parameters of libpq after a ``?``;
    ``duckdb:///file.duckdb`` or ``sqlite:///file.sqlite`` (four slashes begin an absolute path), or
    the file alone. ``${NAME}`` stands for a variable of the environment. `secret_file` holds the
    password of a PostgreSQL user and is its owner's alone.

    `ConfigError` if it is no such address, a variable is not set, or the secret file cannot be
    used. Neither the password nor the value of a variable is in the message.
    """
    text = str(text)
    if _PLACEHOLDER.fullmatch(text):
        text = _expanded(text)
        if not is_database(text):
            raise ConfigError(
                "the variable of the environment that holds the address of the database does not "
                f"hold one; expected {_FORMS}"
            )
    found = _SCHEME.match(text)
    if found is None:
        address = _file(Path(_expanded(text)))
    else:
        kind = _SCHEMES.get(found.group(1).lower())
        if kind is None:
            raise ConfigError(
                f"addresses that begin with {found.group(1)}:// are not supported; expected "
                f"{_FORMS}"
            )
        rest = text[found.end() :]
        if kind == POSTGRESQL:
            return _postgresql(rest, secret_file)
        if not rest.startswith("/") or len(rest) < 2:
            raise ConfigError(
                f"{kind}:// must be followed by a slash and the path of a file, as in "
                f"{kind}:///data/table.{kind}; a fourth slash begins an absolute path"
            )
        path = Path(_expanded(rest[1:].partition("?")[0]))
        address = Address(kind, str(path), path=path)
    if secret_file is not None:
        raise ConfigError(
            f"a secret file is for the password of a PostgreSQL user, and {address} has none"
        )
    return address


def _file(path: Path) -> Address:
    """Return the address of a database in a file, by suffix or, for ``.db``, by its first bytes."""
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        try:
            with path.open("rb") as file:
                head = file.read(16)
        except OSError:
            head = _MAGIC[SQLITE][1]  # the reader says what is wrong with the file
        kind = next((k for k, (at, mark) in _MAGIC.items() if head[at:].startswith(mark)), None)
        if kind is None:
            raise ConfigError(f"{path} is neither a DuckDB nor an SQLite database")
    return Address(kind, str(path), path=path)


def _postgresql(rest: str, secret_file: str | os.PathLike[str] | None) -> Address:
    """Return an address of PostgreSQL with its password, limits of time and defaults."""
    before, _, query = rest.partition("?")
    # From the right: a password that was not quoted may hold an "@" or a "/".
    login, at, location = before.rpartition("@")
    user, colon, password = login.partition(":")
    place = _expanded(location)
    if not _PLACE.fullmatch(place) or (not at and "@" in query):
        raise ConfigError(
            "the address of the database cannot be read; expected postgresql://user@host:5432/"
            "database. Write the signs @ : / ? # % of a user or password as in %40, or take the "
            "password from ${NAME}"
        )
    name, secret = _expanded(unquote(user)), _expanded(unquote(password))
    if secret_file is not None:
        if colon:
            raise ConfigError(
                "the address of the database has a password, and a secret file is named, too; "
                "take the password out of the address"
            )
        secret = _read_secret(Path(secret_file))
    options = {key: _expanded(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        options.setdefault("connect_timeout", str(_CONNECT_TIMEOUT))
    for key, value in _DEFAULTS.items():
        options.setdefault(key, value)
    who = quote(name, safe="") + (f":{quote(secret, safe='')}" if secret else "")
    if secret and not at:
        raise ConfigError(
            "a secret file holds the password of a user, whom the address of the database must "
            "name: postgresql://user@host/database"
        )
    uri = f"postgresql://{who}{'@' if at else ''}{place}?{urlencode(options, quote_via=quote)}"
    return Address(POSTGRESQL, f"postgresql://{place}", uri)


def _expanded(text: str) -> str:
    """Put the environment's variables in the place of ``${NAME}``."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ConfigError(
                f"the address of the database needs ${{{name}}}, which is not set in the "
                "environment of this process; set it where the SuperNode is started"
            )
        return os.environ[name]

    return _PLACEHOLDER.sub(value, text)


def _read_secret(path: Path) -> str:
    """Read a password from a file that nobody else can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"the secret file {path} cannot be read: {cause}") from error
    if not stat.S_ISREG(mode) or (os.name == "posix" and mode & 0o077):
        raise ConfigError(
            f"the secret file {path} can be read by others than its owner; run chmod 600 on it"
        )
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ConfigError(
            f"the secret file {path} has {len(lines)} lines, expected one, which is the password"
        )
    return lines[0]
