"""What parties and arbiters have in common: steps that the server can call, state, cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from flwr_vertical.errors import ProtocolError
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
        Arrays to be summed over the parties; every party sends the same names and shapes. They
        must follow from table, state and arguments alone: a step that is taken again after a
        crash masks its values with the same key stream.
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
    run_config, node_config : Mapping[str, Any]
        The run config and the node config (kebab-case keys), as Flower delivers them.
    state : State
        Survives between messages of a run.
    cache : dict
        Survives as long as the process does.
    load_table, load_fitted, load_truth, save_output : Callable
        Access to the node's own storage.
    """

    name: str
    run_config: Mapping[str, Any]
    node_config: Mapping[str, Any]
    state: State
    cache: dict[str, Any]
    load_table: Callable[[], "Table"]
    load_fitted: Callable[[], "Table | None"]
    load_truth: Callable[[], "pd.DataFrame | None"]
    save_output: Callable[[pd.DataFrame], str]


class Node:
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
