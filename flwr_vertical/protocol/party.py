"""Parties and their steps.

A `Party` subclass is the party half of a strategy: each method marked with `step` can be called
by the server in one message. The party's table stays where it is; what must survive from one
message to the next goes into ``self.state`` (Flower may run each message in a new process),
what can be computed again may be kept in ``self.cache``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from flwr_vertical.errors import ConfigError, DataError, ProtocolError
from flwr_vertical.protocol.state import State

if TYPE_CHECKING:
    from flwr_vertical.tables import Table

_F = TypeVar("_F", bound=Callable[..., Any])
_STEP = "_flwr_vertical_step"


def step(function: _F) -> _F:
    """Mark a method of a `Party` or an `Arbiter` as callable by the server."""
    setattr(function, _STEP, True)
    return function


@dataclass(frozen=True)
class Summands:
    """What a party answers to `Federation.sum`.

    Parameters
    ----------
    values : Mapping[str, numpy.ndarray]
        Arrays to be summed over the parties; every party sends the same names and shapes.
        Floating arrays are summed to the fixed-point resolution in ``masked`` mode, integer
        arrays exactly (unsigned dtypes in the ring of their own width).
    public : Mapping[str, Any]
        Values that the server reads as they are, per party. Each must stand in the
        strategy's disclosure table.
    """

    values: Mapping[str, Any]
    public: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Host:
    """What the node gives to a party object for the time of one message.

    Parameters
    ----------
    name : str
        Name of the party.
    run_config : Mapping[str, Any]
        The run config (kebab-case keys), as Flower delivers it.
    state : State
        Survives between messages of a run.
    cache : dict
        Survives as long as the process does.
    load_table, load_fitted, load_truth, save_output : Callable
        Access to the node's own storage.
    """

    name: str
    run_config: Mapping[str, Any]
    state: State
    cache: dict[str, Any]
    load_table: Callable[[], "Table"]
    load_fitted: Callable[[], "Table | None"]
    load_truth: Callable[[], "pd.DataFrame | None"]
    save_output: Callable[[pd.DataFrame], str]


class _Node:
    """Shared by `Party` and `Arbiter`: steps, state, cache."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name
        self.state = host.state
        self.cache = host.cache

    def take(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Take one step by name.

        Raises
        ------
        ProtocolError
            If there is no such step, or the arguments do not fit it.
        """
        known = steps_of(type(self))
        if name not in known:
            raise ProtocolError(
                f"{type(self).__name__} has no step {name!r}; its steps are {sorted(known)}. "
                "Do all nodes run the same version of the strategy?"
            )
        return getattr(self, name)(**arguments)


def steps_of(cls: type) -> set[str]:
    """Names of the steps a class declares or inherits; an override need not be marked again."""
    return {
        name
        for base in cls.__mro__
        for name, member in vars(base).items()
        if hasattr(member, _STEP)
    }


class Party(_Node):
    """One organisation's side of a strategy.

    Subclass it, mark methods with `step`; a step takes the payload as keyword arguments and
    returns a mapping of values (`Federation.call`) or `Summands` (`Federation.sum`).

    Attributes
    ----------
    name : str
        The party's name.
    table : Table
        Its own data, read from the node's own storage at first use.
    state : State
        Values that survive between messages.
    cache : dict
        Values that survive as long as the process does.
    """

    @property
    def table(self) -> "Table":
        """The party's own table, without its label column; cached while the process lives."""
        if "table" not in self.cache:
            table = self.host.load_table()
            column = self._label_column
            if column in table.frame.columns:
                kinds = {name: kind for name, kind in table.kinds.items() if name != column}
                table = replace(table, frame=table.frame.drop(columns=column), kinds=kinds)
            self.cache["table"] = table
        own: Table = self.cache["table"]
        return own

    @property
    def fitted(self) -> "Table | None":
        """The table that an earlier run left at this party, if the run names one (``fitted``)."""
        if "fitted" not in self.cache:
            self.cache["fitted"] = self.host.load_fitted()
        table: Table | None = self.cache["fitted"]
        return table

    @property
    def n_samples(self) -> int:
        """Number of aligned samples over all parties."""
        return int(self._aligned("n_samples"))

    @property
    def positions(self) -> "Any":
        """Aligned row number of each row of the own table, array of shape (n_own,)."""
        return self._aligned("positions")

    def _aligned(self, key: str) -> Any:
        if key not in self.state:
            raise ProtocolError(
                f"party {self.name!r} has no {key!r} yet: samples are aligned before other steps"
            )
        return self.state[key]

    def save_output(self, frame: pd.DataFrame) -> str:
        """Write what the party holds afterwards to its own storage; returns where."""
        return self.host.save_output(frame)

    @step
    def share_ids(self) -> dict[str, Any]:
        """Plain alignment: hand over the sample IDs (they are public in this mode)."""
        return {"ids": ids_to_array(self.table.frame.index, self.name)}

    @step
    def labels(self) -> dict[str, Any]:
        """Hand the labels to the server, if the run config names this party as their holder."""
        column = self._label_column
        if not column:
            raise ConfigError(
                f"party {self.name!r} was asked for labels, but the run config does not name it as "
                "'label-holder' together with a 'label-column'"
            )
        frame = self.host.load_table().frame
        if column not in frame.columns:
            raise DataError(
                f"party {self.name!r} has no column {column!r} for the labels; "
                f"its columns are {list(frame.columns)}"
            )
        values = pd.to_numeric(frame[column]).to_numpy(dtype=float)
        return {"labels": values, "positions": self.positions}

    @property
    def _label_column(self) -> str:
        """The label column, if the run config names this party as the labels' holder."""
        if self.host.run_config.get("label-holder") != self.name:
            return ""
        return str(self.host.run_config.get("label-column", ""))


class Arbiter(_Node):
    """The node that opens encrypted sums; it holds the secret key and no data.

    A strategy that wants something else than the sum to leave the arbiter (ranks instead of
    distances, say) subclasses it and names one of its steps as ``release`` of
    `Federation.sum`; the step receives the opened sums as ``sums``. In the modes ``plain`` and
    ``masked`` the server takes the same step itself.
    """

    @step
    def reveal(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Release the sums as they are."""
        return sums


def ids_to_array(index: pd.Index, party: str) -> Any:
    """Sample IDs as an array that can travel: int64 or fixed-width text.

    Raises
    ------
    DataError
        If the IDs are neither all integers nor all strings, or a string ends in NUL.
    """
    if pd.api.types.is_integer_dtype(index.dtype):
        return index.to_numpy(dtype="int64")
    values = index.tolist()
    if all(isinstance(value, str) for value in values):
        if any(value.endswith("\0") for value in values):  # fixed-width text drops it
            raise DataError(f"party {party!r}: a sample ID ends in a NUL character; remove it")
        return index.to_numpy().astype(str)
    raise DataError(
        f"party {party!r}: sample IDs must be all integers or all strings, got dtype {index.dtype}"
    )
