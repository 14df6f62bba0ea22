"""What a node takes part in: one frozen record, whose defaults are safe."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol import private_sum
from flwr_vertical.settings import Settings, setting, settings_of

ANY = "any"
"""In a list of names, stands for all of them."""

PREFIX = "policy."


def _modes(value: Any) -> Any:
    """Return modes of the private sum; a misspelt one would refuse what its owner allows."""
    names = [n.strip() for n in value.split(",")] if isinstance(value, str) else list(value)
    known = [*private_sum.MODES, ANY]
    for name in names:
        if name and name not in known:
            raise ConfigError(f"aggregations names {name!r}; expected some of {known}, with commas")
    return value


class Policy(Settings):
    """What a node agrees to. Lists are names with commas: ``any`` for all, empty for none."""

    removed = MappingProxyType(
        {
            "blur": "take it out; a method's 'epsilon' makes all that it opens differentially "
            "private, and 'strategies' may name such methods alone"
        }
    )

    strategies: tuple[str, ...] = setting(
        (ANY,), "Methods, by name, that the node takes part in; classes are named in ``modules``."
    )
    modules: tuple[str, ...] = setting(
        (),
        "Strategies and alignments outside the built-in ones, as ``module:Class``, whose modules "
        "the node would import. Importing runs code.",
    )
    aggregations: tuple[str, ...] = setting(
        ("masked", "ckks"),
        "Modes of the private sum. In ``plain`` the server sees each party's term.",
        parse=_modes,
    )
    alignments: tuple[str, ...] = setting(
        ("private-id", "kkrt", "blind-rsa"),
        "How samples may be aligned. ``plain`` tells all IDs to the server.",
    )
    exchanges: tuple[str, ...] = setting(
        (), "Exchanges that tell more than a method's default one, such as ``sums``."
    )
    labels: str = setting(
        "", "The one column that may be handed to the server as labels; none by default."
    )
    min_parties: int = setting(2, "The fewest parties of a run.", at_least=1)
    min_rows: int | None = setting(
        None,
        "The fewest rows that anything opened may describe, over all runs (default: 100, or three "
        "times the columns and labels if that is more).",
        at_least=1,
    )
    vectors: int | None = setting(
        None,
        "With how many different vectors of the server (labels) rows may be multiplied, over all "
        "runs (default: one tenth of the smallest set of rows).",
        at_least=0,
    )
    openings: float | None = setting(
        None,
        "Bits of one own row that others may be told beside predictions, over all runs (default: "
        "ten times as many as a row holds, by a method's default exchange or one that "
        "``exchanges`` names; the same cells tell no more than they hold, changed ones come on "
        "top).",
        at_least=0,
    )
    grid: int = setting(
        12, "Bits of one own row that one model's prediction may tell.", at_least=2, at_most=30
    )
    predictions: float = setting(
        24.0, "Bits of one own row that predictions of all models may tell, over all runs.",
        at_least=0,
    )  # fmt: skip
    max_epsilon: float | None = setting(
        10.0,
        "The most epsilon that one run may spend on a column, with a delta of 0.001 at most.",
        above=0,
    )
    epsilon_total: float | None = setting(
        None,
        "The most epsilon in all, over columns, groups and runs (default: one release, of any "
        "epsilon that ``max-epsilon`` allows, and no second one).",
        above=0,
    )
    foreign_ids: float | None = setting(
        None,
        "How many IDs that are not its own the node blinds in a run, in multiples of its own rows "
        "(default: 10, and 100 IDs in any case).",
        above=0,
    )


FOREIGN_IDS, FEW_IDS = 10.0, 100
"""Where a policy states none: IDs of others for one own row, and so many in any case."""

ROW_RULES = ("min_rows", "vectors", "grid")
"""Keys that change numbers, so that they hold in simulations as well; the others are consents."""


def allows(names: Iterable[str], asked: str) -> bool:
    """Whether a list of the policy has a name, or all."""
    return bool({asked, ANY} & set(names))


def text_of(value: Any) -> str:
    """Write a value of a policy as it is written in a node config, with quotes around text."""
    if value is None:
        return "(default)"
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    return f"'{value}'" if isinstance(value, str) else f"{value:g}"


def stated(policy: Policy) -> dict[str, Any]:
    """Return the keys of a policy that differ from the safe defaults."""
    return {
        item.key: getattr(policy, item.name)
        for item in settings_of(Policy)
        if getattr(policy, item.name) != item.default
    }


def key_of(name: str) -> str:
    """Return how a field of the record is written in a node config."""
    return PREFIX + name.replace("_", "-")
