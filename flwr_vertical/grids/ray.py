"""`RayGrid`: parties pinned to Ray actors, on one machine or a Ray cluster."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.base import CRASHED, RAISED, NodeConfig, NodesGrid, Outputs, error_reply
from flwr_vertical.optional import require

_STARTS = 3

# Makes, in an actor, the app of the parties whose tables it is given: own ones, then fitted ones.
MakeApp = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[ClientApp, Outputs]]


def start_ray(address: str | None = None, num_cpus: int | None = None, **options: Any) -> None:
    """Start Ray, or join the cluster at an address, by default the one that ``RAY_ADDRESS`` names.

    Where Ray's own start times out on a busy machine, try again. A cluster has CPUs of its own.
    """
    ray: Any = require("ray", "engine 'ray'")
    # Ray probes for accelerators and phones home unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Without an address Ray would wait for a cluster that is gone, if one that was killed has left
    # its file 'ray_current_cluster'.
    options["address"] = address or os.environ.get("RAY_ADDRESS") or "local"
    if options["address"] == "local":
        options |= {"num_cpus": num_cpus, "include_dashboard": False}
    for left in reversed(range(_STARTS)):
        try:
            ray.init(log_to_driver=False, configure_logging=False, **options)
            return
        except Exception as error:
            ray.shutdown()
            if not left or "timed out" not in str(error).lower():
                raise


class _PartyActor:
    """Holds the contexts and tables of its parties and serves their messages."""

    def __init__(
        self,
        make_app: MakeApp,
        contexts: dict[int, Context],
        tables: dict[str, Any],
        fitted: dict[str, Any],
    ) -> None:
        self._contexts = contexts
        self._app, self._storage = make_app(tables, fitted)

    def handle(self, messages: list[Message]) -> list[Message]:
        """Serve messages; one call for all, since Ray's calls cost more than most messages."""
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does: the error is the reply
            return error_reply(message, RAISED, error)

    def saved(self, what: str) -> dict[str, Any]:
        """Return what the parties saved: ``outputs`` or ``models``."""
        found: dict[str, Any] = getattr(self._storage, what)
        return found


class RayGrid(NodesGrid):
    """Serves nodes by Ray actors; a party stays in its actor, with its table, for the whole run.

    Parameters
    ----------
    make_app : Callable
        Makes, in an actor, the app of its parties from their tables (`memory_app`).
    nodes, run_config
        As of `LocalGrid`; ``party`` names a node.
    tables, fitted : Mapping[str, Table]
        Each party's table, and what an earlier run left there; sent once, to the party's actor.
    address : str, optional
        Address of a running Ray cluster (``"auto"``, ``"ray://host:10001"``); by default the
        Ray that is initialised in this process, or the one that the environment variable
        ``RAY_ADDRESS`` names, or a new local one, which `close` shuts down.
    n_actors : int, optional
        Number of actors over which the parties are spread (default: one per CPU that Ray has,
        at most one per party).
    num_gpus : float, default 0
        GPUs that each actor reserves, whole or a share of one.

    Raises
    ------
    ConfigError
        If Ray is not installed, or has fewer GPUs than the actors need.
    """

    def __init__(
        self,
        make_app: MakeApp,
        nodes: Sequence[NodeConfig],
        tables: Mapping[str, Any],
        run_config: Mapping[str, Any] | None = None,
        *,
        fitted: Mapping[str, Any] | None = None,
        address: str | None = None,
        n_actors: int | None = None,
        num_gpus: float = 0.0,
    ) -> None:
        super().__init__(nodes, run_config)
        ray: Any = require("ray", "engine 'ray'")
        if num_gpus < 0:
            raise ConfigError(f"num_gpus must be 0 or more, got {num_gpus:g}")
        self._ray = ray
        self._actors: list[Any] = []
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(address)
        resources = ray.cluster_resources()
        cpus = max(1, int(resources.get("CPU", 1)))
        n_actors = max(1, min(n_actors or cpus, len(nodes)))
        if num_gpus * n_actors > resources.get("GPU", 0.0):
            self.close()
            raise ConfigError(
                f"{n_actors} Ray actors with {num_gpus:g} GPUs each were asked for, but Ray has "
                f"{resources.get('GPU', 0.0):g}; lower num_gpus (a share of one will do) or "
                "n_actors, or give the address of a cluster that has them"
            )
        share = min(1.0, cpus / n_actors)
        actor = ray.remote(num_cpus=share, num_gpus=num_gpus)(_PartyActor)
        self._actor_of: dict[int, Any] = {}
        for k in range(n_actors):
            own = {i: c for i, c in self.contexts.items() if i % n_actors == k}
            names = {str(c.node_config.get("party")) for c in own.values()}
            handle = actor.remote(
                make_app,
                own,
                {name: table for name, table in tables.items() if name in names},
                {name: table for name, table in (fitted or {}).items() if name in names},
            )
            self._actors.append(handle)
            self._actor_of.update(dict.fromkeys(own, handle))
        # Of each call, by number; None where nobody waits for the reply any more.
        self._pending: dict[Any, dict[str, Message | None]] = {}
        self._replies: dict[str, Message] = {}

    def _submit(self, messages: Mapping[str, Message]) -> None:
        calls: dict[Any, dict[str, Message]] = {}
        for number, message in messages.items():
            actor = self._actor_of[message.metadata.dst_node_id]
            calls.setdefault(actor, {})[number] = message
        for actor, own in calls.items():
            self._pending[actor.handle.remote(list(own.values()))] = dict(own)

    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        wanted = set(numbers)
        waiting = [call for call, own in self._pending.items() if wanted & own.keys()]
        if waiting and not wanted & self._replies.keys():
            ready, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout)
            if ready:  # whatever else has arrived comes along
                ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
            for call in ready:
                self._take(call)
        return [self._replies.pop(number) for number in numbers if number in self._replies]

    def _take(self, call: Any) -> None:
        """Keep the replies to a call, whoever asks for them."""
        own = self._pending.pop(call)
        try:
            replies = dict(zip(own, self._ray.get(call), strict=True))
        except self._ray.exceptions.RayError as error:
            replies = {n: error_reply(m, CRASHED, error) for n, m in own.items() if m is not None}
        self._replies |= {n: reply for n, reply in replies.items() if own[n] is not None}

    def _forget(self, numbers: list[str]) -> None:
        for number in numbers:
            self._replies.pop(number, None)
        for call, own in list(self._pending.items()):
            own |= dict.fromkeys(own.keys() & set(numbers))
            if all(message is None for message in own.values()):
                del self._pending[call]

    def outputs(self) -> dict[str, Any]:
        """Fetch what each party saved as its output."""
        return self._saved("outputs")

    def models(self) -> dict[str, bytes]:
        """Fetch what each party saved of its model."""
        return self._saved("models")

    def _saved(self, what: str) -> dict[str, Any]:
        parts = self._ray.get([actor.saved.remote(what) for actor in self._actors])
        return {name: value for part in parts for name, value in part.items()}

    def close(self) -> None:
        """End the actors, and Ray if this grid started it."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owns_ray and self._ray.is_initialized():
            self._ray.shutdown()
            self._owns_ray = False
