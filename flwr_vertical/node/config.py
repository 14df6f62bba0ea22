"""The keys of a node config: one table of what a node reads, and a refusal of all else.

A key that is misspelt would be ignored, and with it what it was to protect: ``pin_all`` or
``max_epsilon`` look right and do nothing. So a node that has a key nobody reads takes part in no
run.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.tables.cleaning import DROP, IDS, MISSING, MISSING_IN


@dataclass(frozen=True)
class NodeKey:
    """A key of the node config."""

    name: str  # As it is written; one that ends in a dot is a prefix, such as ``kind.``
    types: tuple[type, ...]  # What its value may be
    doc: str  # One sentence for users
    at_least: int | None = None  # The smallest number that it may be

    @property
    def is_prefix(self) -> bool:
        """Whether it stands for all keys that begin with it."""
        return self.name.endswith(".")

    def covers(self, key: str) -> bool:
        """Whether a key of a node config is this one."""
        return (
            len(key) > len(self.name) and key.startswith(self.name)
            if self.is_prefix
            else (key == self.name)
        )


_NUMBER = (int, float)

MIN_ROWS = "min-rows"
HOLD_OUT = "hold-out"
GRADE = "grade"

NODE_KEYS = (
    NodeKey("party", (str,), "name of the party"),
    NodeKey("role", (str,), "'party', or 'arbiter' for the node that opens encrypted sums"),
    NodeKey(
        "data",
        (str,),
        "the party's table: CSV, TSV or Parquet, a folder of Parquet files, or the address of a "
        "database; ${NAME} in an address stands for a variable of the environment",
    ),
    NodeKey("table", (str,), "table or view of the database that is read"),
    NodeKey("query", (str,), "SELECT statement whose rows are read, instead of 'table'"),
    NodeKey("secret-file", (str,), "file with the password of the database, its owner's alone"),
    NodeKey("id-column", (str, int), "column of sample IDs, several with commas"),
    NodeKey("id-secret", (str,), "file with a secret of the parties, against guessing of IDs"),
    NodeKey(
        "csv.separator", (str,), "of a CSV file: one character, or comma, semicolon, tab, pipe"
    ),
    NodeKey("csv.decimal", (str,), "decimal mark of numbers in a CSV file: '.' or ','"),
    NodeKey(
        "csv.thousands",
        (str,),
        "thousands mark of numbers in a CSV file: ',', '.', \"'\", 'space' or 'none'",
    ),
    NodeKey("csv.encoding", (str,), "of a CSV file, such as 'utf-16' or 'cp1252'"),
    NodeKey(
        "csv.dates",
        (str,),
        "'days' makes columns of dates numbers of days since 1970; 'days-day-first' or "
        "'days-month-first' where 01/02/2024 leaves a doubt (default: dates stay text)",
    ),
    NodeKey(
        MISSING,
        (str, int, float),
        "marks of missing cells in any column and any source, with commas, such as '-999, unknown'"
        "; '' is the empty text, which CSV files need not state",
    ),
    NodeKey(MISSING_IN, (str, int, float), "the same for one column: missing.age='0, 999'"),
    NodeKey(DROP, (str,), "columns that are left out, with commas"),
    NodeKey(
        IDS,
        (str,),
        "how the sample IDs are written alike, with commas: strip, casefold, nfc, unpad (without "
        "leading zeros, 12.0 as 12), pad-8 (zeros before digits, to 8 of them)",
    ),
    NodeKey(
        "output",
        (str,),
        "folder of the party's results and checkpoints; or a database or a Parquet file that the "
        "result is written to as well",
    ),
    NodeKey(
        "output-table",
        (str,),
        "table of that database (default: '{party}_{run}', which stand for their names)",
    ),
    NodeKey(
        "output-replace",
        (str,),
        "what of that name is replaced: 'never', an earlier 'result', or even the 'input'",
    ),
    NodeKey(
        "output-folder",
        (str,),
        "folder of the party's files where 'output' is none; the same for all runs, since the "
        "privacy ledger is there",
    ),
    NodeKey("kind.", (str,), "kind of a column: continuous, binary, categorical, ordinal, count"),
    NodeKey(
        HOLD_OUT,
        _NUMBER,
        "share of the known cells of each column, up to 0.5, that are hidden from an imputation, "
        "compared with what it fills in, and put back; the comparison stays on the party's page",
    ),
    NodeKey(
        GRADE,
        (bool,),
        "whether synthetic tables of the own columns are attacked and graded, on the party's own "
        "page (default: true); the grade stays there",
    ),
    NodeKey("max-epsilon", _NUMBER, "the most that a run with privacy noise may spend here"),
    NodeKey(
        "exchanges",
        (str,),
        "exchanges that tell more than a method's default one and that this node takes part in: "
        "names with commas, or 'any'",
    ),
    NodeKey(
        MIN_ROWS,
        (int,),
        "the fewest rows of a set that private products may tell of (default: 100, or three times "
        "the columns and labels if that is more)",
        at_least=1,
    ),
    NodeKey("prediction-bits", (int,), "most bits of one row that a prediction may tell, 2 to 30"),
    NodeKey("policy", (str,), "file with the node's policy, TOML; instead of the keys below"),
    NodeKey(
        "policy.",
        (str, int, float),
        "what the node agrees to, such as policy.labels; see 'flwr-vertical policy'",
    ),
    NodeKey("identity-key", (str,), "file with this node's private identity key"),
    NodeKey("pin.", (str,), "public identity key of a party, or of the arbiter"),
    NodeKey("pin-all", (bool,), "whether every node that takes part must be pinned"),
    NodeKey("partition-id", (int,), "set by Flower's Simulation Runtime"),
    NodeKey("num-partitions", (int,), "set by Flower's Simulation Runtime"),
)

_TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


# Find keys that strategies of other runs read; the registry of strategies adds one.
_ELSEWHERE: list[Callable[[], Iterable[NodeKey]]] = []


def find_keys_by(find: Callable[[], Iterable[NodeKey]]) -> None:
    """Have a function find the keys that other runs read, if one would be unknown without."""
    _ELSEWHERE.append(find)


def check_node_config(
    who: str, config: Mapping[str, Any], declared: Iterable[NodeKey] = ()
) -> None:
    """Refuse keys that nobody reads, and values of another type."""
    known = [*NODE_KEYS, *declared]
    if any(_find(key, known) is None for key in config):
        known += [key for find in _ELSEWHERE for key in find()]
    for key, value in config.items():
        found = _find(key, known)
        if found is None:
            raise ConfigError(
                f"{who}: unknown key {key!r} in its node config{_suggestion(key, known)}; nothing "
                "reads it, so what it was to set would not hold. Correct it or take it out; there "
                f"are {', '.join(sorted({k.name + '*' * k.is_prefix for k in known}))}"
            )
        # True is an int in Python.
        fits = isinstance(value, found.types) and isinstance(value, bool) == (bool in found.types)
        if not fits:
            expected = " or ".join(dict.fromkeys(_TYPES.get(t, t.__name__) for t in found.types))
            raise ConfigError(f"{who}: node config {key} = {value!r}; expected {expected}")
        if found.at_least is not None and value < found.at_least:
            raise ConfigError(
                f"{who}: node config {key} = {value!r}; expected at least {found.at_least}"
            )


def _find(key: str, known: Iterable[NodeKey]) -> NodeKey | None:
    return next((candidate for candidate in known if candidate.covers(key)), None)


def _suggestion(key: str, known: Iterable[NodeKey]) -> str:
    """Say which key may be meant; of a key with a dot the part before it is compared."""
    spelt = key.replace("_", "-").lower()
    whole = [candidate.name for candidate in known if not candidate.is_prefix]
    if near := difflib.get_close_matches(spelt, sorted(whole), n=1, cutoff=0.8):
        return f"; did you mean {near[0]!r}?"
    head, dot, tail = spelt.partition(".")
    names = {candidate.name for candidate in known if candidate.is_prefix == bool(dot)}
    near = difflib.get_close_matches(head + dot, sorted(names), n=1)
    return f"; did you mean {near[0] + tail!r}?" if near else ""
