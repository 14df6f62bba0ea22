"""Steps: what the server can ask of a node, and how parties and arbiters declare them."""

import hashlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

import numpy as np
import pandas as pd

from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.config import NodeKey
from flwr_vertical.node.live_objects import live_of
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.run_ledger import RunLedger

if TYPE_CHECKING:
    from flwr_vertical.tables import Table

_F = TypeVar("_F", bound=Callable[..., Any])
_G = TypeVar("_G", bound="StepGroup")
_STEP = "_flwr_vertical_step"
_REPEATABLE = "_flwr_vertical_repeatable"


@overload
def step(function: _F) -> _F: ...
@overload
def step(*, repeatable: bool = True) -> Callable[[_F], _F]: ...
def step(function: _F | None = None, *, repeatable: bool = True) -> _F | Callable[[_F], _F]:
    """Mark a method of a `Party`, an `Arbiter` or a `StepGroup` as callable by the server.

    A message whose answer was lost is sent again under its number, and the number selects the mask
    of a private sum. So a step must answer the same bytes when it is taken again from the same
    state: it draws random numbers from ``self.rng``, and privacy noise from ``self.secret_bytes``.
    A step that cannot do so says it here.

    Parameters
    ----------
    repeatable : bool, default True
        False for a step whose answer does not follow from table, state and arguments (training on a
        GPU, noise of another generator). If an answer is lost, **all** parties go back to their
        state before the step and take it again under a new number.

    Examples
    --------
    >>> class Trainer(Node):
    ...     @step(repeatable=False)
    ...     def train(self) -> Summands:
    ...         return Summands({"gradient": np.random.default_rng().normal(size=3)})
    """

    def mark(method: _F) -> _F:
        setattr(method, _STEP, True)
        setattr(method, _REPEATABLE, repeatable)
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class Summands:
    """What a party answers to `Federation.sum`.

    Parameters
    ----------
    values : Mapping[str, numpy.ndarray]
        Arrays to be summed over the parties; every party sends the same names and shapes. They
        must follow from table, state and arguments alone, or the step is declared as not
        repeatable (see `step`): one that is taken again masks its values with the same key stream.
        Floating arrays are summed to the fixed-point resolution in ``masked`` mode, integer
        arrays exactly (unsigned dtypes in the ring of their own width). float32 takes half the
        bytes of float64; its range is 256, or the scale that `Federation.sum` asks for.
    public : Mapping[str, Any]
        Values that the server reads as they are, per party. Each must stand in the
        strategy's disclosure table.
    modular : tuple[str, ...]
        Names of uint64 summands whose sum is wanted modulo 2^64, as parts of private products are.
    """

    values: Mapping[str, Any]
    public: Mapping[str, Any] = field(default_factory=dict)
    modular: tuple[str, ...] = ()


def _without_storage(*_: object) -> Any:
    raise ProtocolError("this node has no storage for models")


@dataclass
class NodeServices:
    """What a node gives to a party or an arbiter for the time of one message."""

    name: str  # Name of the party
    # run_config, node_config: The run config and the node config (kebab-case keys), as Flower
    # delivers them
    run_config: Mapping[str, Any]
    node_config: Mapping[str, Any]
    state: MutableMapping[str, Any]  # Survives between messages of a run
    cache: dict[str, Any]  # Survives as long as the process does
    # load_table, load_fitted, load_truth, save_output, save_model, load_model: Access to the
    # node's own storage
    load_table: Callable[[], "Table"]
    load_fitted: Callable[[], "Table | None"]
    load_truth: Callable[[], "pd.DataFrame | None"]
    save_output: Callable[..., str]
    save_model: Callable[[bytes], str] = _without_storage
    load_model: Callable[[str], bytes | None] = _without_storage
    load_output: Callable[[str], "pd.DataFrame"] = _without_storage  # what is beside the result
    hide: Callable[["Table"], "Table"] = _without_storage  # what an imputation is given of a table
    seed: str = "0"  # Seed of the run's simulation randomness
    # Random bytes that this node drew for this run and that nobody else knows
    secret: bytes = field(default=b"", repr=False)
    # Number of the message; None where there is none, as in a release step at the server
    sequence: int | None = None
    # Its number if the run had never broken off: a step that is taken again has it again
    course: int | None = None
    asked: Callable[[], bytes] = bytes  # Digest of what the message asks for
    # Digest of what all parties of the round were asked; masks and pads are keyed by it
    binding: Callable[[], bytes] = bytes
    # What the node agrees to, whatever the run config asks for
    policy: Policy = field(default_factory=Policy)
    # Where what leaves is written down before it does, over runs; None where tables lie in
    # memory, and the rules hold within the run
    ledger: RunLedger | None = None
    # Whether the tables lie in memory of the server's own process, from which nothing is hidden
    in_memory: bool = False


class Node:
    """Shared by `Party` and `Arbiter`: steps, state, cache."""

    node_keys: ClassVar[tuple[NodeKey, ...]] = ()

    def __init__(self, services: NodeServices, groups: "tuple[type[StepGroup], ...]" = ()) -> None:
        self.services = services
        self.name = services.name
        self.state = services.state
        self.cache = services.cache
        self.live = live_of(services.cache)
        self._groups = groups
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Simulation randomness of this message: a new generator for each.

        It follows from the run's seed, the party's name and the step's place in the course of the
        strategy, so that a step that is taken again draws the same numbers, and what a resumed run
        asks for again changes none. The server knows all three: noise that shall protect something
        comes from `secret_bytes`.
        """
        if self._rng is None:
            text = f"{self.services.seed}\0{self._drawn_for(self.services.course)}"
            entropy = hashlib.blake2b(text.encode(), digest_size=32).digest()
            self._rng = np.random.default_rng(int.from_bytes(entropy, "little"))
        return self._rng

    def secret_bytes(self, purpose: str, count: int = 32) -> bytes:
        """Return bytes that only this node can know: keys of privacy noise, of one message.

        They follow from random bytes that the node drew when the run began and from the message, so
        that a step that is taken again draws the same noise (one pad never covers two different
        arrays), and one that is asked for something else draws other noise.
        """
        if not self.services.secret:
            raise ProtocolError(f"{self.name!r} has no secret of this run to draw {purpose!r} from")
        drawn_for = self._drawn_for(self.services.sequence)
        text = f"{drawn_for}\0{purpose}\0".encode() + self.services.asked()
        return hashlib.blake2b(text, key=self.services.secret, digest_size=count).digest()

    def secret_of(self, purpose: str, content: bytes, count: int = 32) -> bytes:
        """Return bytes that only this node can know, the same in each message of a run.

        Keys of noise on numbers that may be asked for again: the same numbers get the same noise,
        since the mean of many noisy answers would be the exact one.
        """
        if not self.services.secret:
            raise ProtocolError(f"{self.name!r} has no secret of this run to draw {purpose!r} from")
        text = f"{self.name}\0content\0{purpose}\0".encode() + content
        return hashlib.blake2b(text, key=self.services.secret, digest_size=count).digest()

    def own_bytes(self, purpose: str, content: bytes = b"", count: int = 32) -> bytes:
        """Return bytes from which a method's own random numbers follow, the same in each message.

        For what protects no number by itself, but is none of the server's business either, such as
        the weights with which a network begins. On a node nobody else can know them; where tables
        lie in memory they follow from the run's seed, so that a simulation can be repeated.
        """
        if self.services.in_memory:
            return bytes_in_memory(self.services.seed, self.name, purpose, content, count)
        return self.secret_of(purpose, content, count)

    def _drawn_for(self, number: int | None) -> str:
        """Name and message that random numbers are drawn for."""
        if number is None:
            raise ProtocolError(
                "random numbers are drawn in steps that answer a message; a release step at the "
                "server works on the sums alone"
            )
        return f"{self.name}\0{number}"

    def take(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Take one step by name."""
        known = step_owners(type(self), self._groups)
        if name not in known:
            raise ProtocolError(
                f"{type(self).__name__} has no step {name!r}; its steps are {sorted(known)}. "
                "Do all nodes run the same version of the strategy?"
            )
        owner = known[name]
        if owner is None:
            offered: Any = self
        elif isinstance(owner, str):
            offered = getattr(self, owner)
        else:
            offered = owner(self)
        return getattr(offered, name)(**arguments)

    def find_group(self, kind: "type[_G]") -> "_G":
        """Return the step group of a kind that the class declares."""
        for cls in type(self).__mro__:
            for name, member in vars(cls).items():
                if isinstance(member, Uses) and issubclass(member.group, kind):
                    found: _G = getattr(self, name)
                    return found
        raise ProtocolError(
            f"{type(self).__name__} uses no {kind.__name__}, which another of its step groups "
            f"needs; declare it in the class: ... = Uses({kind.__name__})"
        )


def bytes_in_memory(
    seed: str | int, name: str, purpose: str, content: bytes = b"", count: int = 32
) -> bytes:
    """Return what `Node.own_bytes` gives where tables lie in memory, from a run's seed."""
    text = f"{seed}\0{name}\0own\0{purpose}\0".encode() + content
    return hashlib.blake2b(text, digest_size=count).digest()


class StepGroup:
    """Steps that several strategies share, and what they keep in the party's state.

    A party declares the groups that it uses; the server can then ask for their steps as for the
    party's own::

        class MyParty(Party):
            design = Uses(DesignSteps)

    Parameters
    ----------
    party : Node
        The party that offers the steps. A group says by an annotation which kind it needs.
    """

    party: Any
    node_keys: ClassVar[tuple[NodeKey, ...]] = ()

    def __init__(self, party: Any) -> None:
        self.party = party
        self.name = party.name
        self.state = party.state
        self.cache = party.cache

    def other(self, kind: type[_G]) -> _G:
        """Return another group of the same party, by its class; see `Node.find_group`."""
        found: _G = self.party.find_group(kind)
        return found


class Uses(Generic[_G]):
    """Declares, in the body of a `Party` or `Arbiter` class, a step group that it offers.

    Parameters
    ----------
    group : type[StepGroup]
        The group.
    **settings
        Handed to the group with the party.
    """

    def __init__(self, group: type[_G], **settings: Any) -> None:
        self.group = group
        self._settings = settings

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, party: None, owner: type) -> Self: ...
    @overload
    def __get__(self, party: Node, owner: type) -> _G: ...
    def __get__(self, party: Node | None, owner: type) -> Self | _G:
        """Return the group of a party, one for each party object."""
        if party is None:
            return self
        if self._name not in party.__dict__:
            party.__dict__[self._name] = self.group(party, **self._settings)
        found: _G = party.__dict__[self._name]
        return found


def steps_of(cls: type, groups: "tuple[type[StepGroup], ...]" = ()) -> set[str]:
    """Return the names of the steps that a class offers (see `step_owners`)."""
    return set(step_owners(cls, groups))


_Offering = tuple[type, tuple[type[StepGroup], ...]]
# Classes do not change: what was found is found at every message.
_STEPS: dict[_Offering, dict[str, str | type[StepGroup] | None]] = {}
_UNREPEATABLE: dict[_Offering, frozenset[str]] = {}


def step_owners(
    cls: type, groups: "tuple[type[StepGroup], ...]" = ()
) -> dict[str, "str | type[StepGroup] | None"]:
    """Find the steps that a class offers; an override need not be marked again."""
    if (cls, groups) in _STEPS:
        return _STEPS[cls, groups]
    own = {
        name: None
        for base in cls.__mro__
        for name, member in vars(base).items()
        if hasattr(member, _STEP)
    }
    declared = {
        name: member.group
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, Uses)
    }
    found: dict[str, str | type[StepGroup] | None] = {}
    offered: list[tuple[str | type[StepGroup], type[StepGroup]]] = [*declared.items()]
    offered += [(group, group) for group in groups]
    for owner, group in offered:
        for name in step_owners(group):
            if name in found and name not in own:
                raise ProtocolError(
                    f"{cls.__name__} uses two step groups that have a step {name!r}; rename one"
                )
            found[name] = owner
    _STEPS[cls, groups] = found | own
    return _STEPS[cls, groups]


def _classes_of_steps(cls: type, groups: "tuple[type[StepGroup], ...]") -> dict[str, type]:
    """Return by step the class that defines it: the offering one, or a step group."""
    return {
        name: getattr(cls, owner).group if isinstance(owner, str) else owner or cls
        for name, owner in step_owners(cls, groups).items()
    }


def function_of(
    cls: type, name: str, groups: "tuple[type[StepGroup], ...]" = ()
) -> Callable[..., Any] | None:
    """Return the function of a step that a class offers; None if it does not."""
    found: Callable[..., Any] | None = None
    if (offering := _classes_of_steps(cls, groups).get(name)) is not None:
        found = getattr(offering, name)
    return found


def unrepeatable_steps(cls: type, groups: "tuple[type[StepGroup], ...]" = ()) -> frozenset[str]:
    """Names of the steps that a class offers and that are declared as not repeatable."""
    if (cls, groups) in _UNREPEATABLE:
        return _UNREPEATABLE[cls, groups]
    found = set()
    for name, offering in _classes_of_steps(cls, groups).items():
        # The mark nearest to the class counts; an override without one has its ancestor's.
        marked = (vars(base)[name] for base in offering.__mro__ if name in vars(base))
        nearest = next(member for member in marked if hasattr(member, _STEP))
        if not getattr(nearest, _REPEATABLE, True):
            found.add(name)
    _UNREPEATABLE[cls, groups] = frozenset(found)
    return _UNREPEATABLE[cls, groups]


def node_keys_of(cls: type, groups: "tuple[type[StepGroup], ...]" = ()) -> tuple[NodeKey, ...]:
    """Keys of the node config that a class, the groups it declares and further groups read."""
    declared = [m.group for b in cls.__mro__ for m in vars(b).values() if isinstance(m, Uses)]
    classes = [base for owner in (cls, *declared, *groups) for base in owner.__mro__]
    found = {key.name: key for base in classes for key in vars(base).get("node_keys", ())}
    return tuple(found.values())
