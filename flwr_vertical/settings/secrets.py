"""Addresses of databases and passwords have no place in a run config.

The server keeps a run config and sends it to every node. So one that holds what looks like a
secret is refused, and the value is in no message.
"""

import re
from collections.abc import Mapping
from typing import Any

from flwr_vertical.errors import ConfigError

_DATABASE = re.compile(
    r"\b(postgres(ql)?|duckdb|sqlite|mysql|mariadb|mssql|oracle|snowflake|bigquery|redshift|"
    r"clickhouse|mongodb|odbc|jdbc:\w+)(\+\w+)?:(//|/?\w+:)",
    re.I,
)
_LOGIN = re.compile(r"://[^\s/@]*:[^\s@]+@")
_PASSWORD = re.compile(r"(?<![a-z])(pg)?(password|passwd|pwd|passphrase)(?![a-z])\s*[:=]", re.I)
_KEY = re.compile(
    r"(^|[._-])(pg)?(password|passwd|pwd|passphrase|secret|dsn|database-url)($|[._-])", re.I
)


def looks_secret(text: str) -> bool:
    """Whether a text looks like the address of a database, or like a password with its name."""
    return any(pattern.search(text) for pattern in (_DATABASE, _LOGIN, _PASSWORD))


def names_secret(key: str) -> bool:
    """Whether a key is named after a secret, as ``pgpassword`` is."""
    return _KEY.search(key) is not None


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Raise if a run config holds what looks like a secret."""
    for key, value in config.items():
        if looks_secret(str(value)) or (names_secret(key) and value not in ("", None)):
            # A key may hold it as well, if quotes are missing.
            name = "a key" if looks_secret(key) else repr(key)
            raise ConfigError(
                f"the run config has {name} with what looks like the address of a database or a "
                "password (it is not shown here): the server keeps a run config and sends it to "
                "every node. Name a database in its party's node config, as 'data', with the "
                "password in the environment or in 'secret-file'"
            )
