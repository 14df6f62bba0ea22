"""The node's policy is asked before a run is answered, and before its code is imported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Context

from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.steps import StepGroup
from flwr_vertical.node.storage import Storage
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.requirements import for_arbiter
from flwr_vertical.policy.run_request import RunRequest, check_request
from flwr_vertical.protocol.declaration import Protocol


@dataclass(frozen=True)
class NodeTypes:
    """What a node runs."""

    party: type[Party]  # On a node with the role of a party
    arbiter: type[Arbiter] = Arbiter  # On a node with the role of the arbiter
    # Step groups that every party of the run offers: its alignment's
    groups: tuple[type[StepGroup], ...] = ()
    # What the run exchanges, its settings filled in; None if the strategy does not declare it
    protocol: Protocol | None = None
    # What the code asks of the node, as far as that is known: strategy, exchanges, epsilon
    asked: RunRequest = field(default_factory=RunRequest)

    def of(self, role: str) -> tuple[type[Party | Arbiter], tuple[type[StepGroup], ...]]:
        """Return what a node with this role runs: its class, and groups of the run."""
        return (self.arbiter, ()) if role == "arbiter" else (self.party, self.groups)


@dataclass(frozen=True)
class Admitted:
    """A run that a node takes part in."""

    run_config: dict[str, Any]  # For which this holds
    policy: Policy  # The node's
    types: NodeTypes  # What the node runs


class Guard:
    """Asks the policy what a node runs, once for each run and process."""

    def __init__(
        self,
        names: Callable[[Context], RunRequest],
        types: Callable[[Context], NodeTypes],
        storage: Storage,
    ) -> None:
        self._names, self._types, self._storage = names, types, storage

    def admit(self, context: Context, mode: str, n_parties: int | None) -> Admitted:
        """Return what the node runs, or refuse the run."""
        policy = self._storage.policy(context)
        is_arbiter = self._storage.role(context) == "arbiter"
        who = self._storage.in_words(context)
        given = RunRequest.of(
            context.run_config, "" if is_arbiter else self._storage.party_name(context), n_parties
        )
        named = self._names(context)
        request = replace(
            given, strategy=named.strategy, alignment=named.alignment, aggregation=mode
        )
        if is_arbiter:
            request = for_arbiter(request)
        check_request(who, policy, request)
        types = self._types(context)
        check_request(who, policy, _loaded(request, types, is_arbiter))
        return Admitted(dict(context.run_config), policy, types)


def check_n_parties(who: str, policy: Policy, told: Mapping[str, Any], peers: int | None) -> None:
    """Refuse to go on with fewer parties than the policy wants."""
    counts = [int(told["n-parties"])] if "n-parties" in told else []
    counts += [] if peers is None else [peers]
    if counts:
        check_request(who, policy, RunRequest(n_parties=min(counts)))


def _loaded(request: RunRequest, types: NodeTypes, is_arbiter: bool) -> RunRequest:
    """Return a request by what was loaded, whatever it was called in the run config."""
    asked = types.asked
    # A class that is allowed by its module need not be listed by its name as well.
    strategy = request.strategy if ":" in request.strategy else asked.strategy or request.strategy
    loaded = replace(request, strategy=strategy, stages=asked.stages)
    if is_arbiter:
        return loaded
    if len(types.groups) == 1:  # steps are refused one by one where the run has not said which
        name = getattr(types.groups[0], "alignment", "") or asked.alignment
        loaded = replace(loaded, alignment=name)
    return replace(loaded, exchanges=asked.exchanges, epsilon=asked.epsilon)
