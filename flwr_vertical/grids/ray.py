"""`RayGrid`: parties pinned to Ray actors, on one machine or a Ray cluster."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message

from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.base import CRASHED, RAISED, NodeConfig, NodesGrid, error_reply
from flwr_vertical.protocol.app import PartyTypes, party_app
from flwr_vertical.protocol.storage import MemoryStorage
from flwr_vertical.tables import Table


class _Host:
    """The actor: holds the contexts and tables of its parties and serves their messages."""

    def __init__(
        self,
        types: PartyTypes,
        contexts: dict[int, Context],
        tables: dict[str, Table],
        fitted: dict[str, Table],
    ) -> None:
        self._contexts = contexts
        self._storage = MemoryStorage(tables, fitted)
        self._app = party_app(types[0], arbiter=types[1], storage=self._storage)

    def handle(self, message: Message) -> Message:
        """Serve one message."""
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does: the error is the reply
            return error_reply(message, RAISED, error)

    def outputs(self) -> dict[str, Any]:
        """Return what the parties saved."""
        return self._storage.outputs


class RayGrid(NodesGrid):
    """Serves nodes by Ray actors; a party stays in its actor, with its table, for the whole run.

    Parameters
    ----------
    types : tuple[type[Party], type[Arbiter]]
        What party nodes and the arbiter node run.
    nodes : Sequence[NodeConfig]
        The node config of each node; ``party`` names it.
    tables : Mapping[str, Table]
        Each party's table; it is sent once, to the party's actor.
    run_config : Mapping[str, Any], optional
        The run config.
    fitted : Mapping[str, Table], optional
        What an earlier run left at each party.
    address : str, optional
        Address of a running Ray cluster (``"auto"``, ``"ray://host:10001"``); by default the
        Ray that is initialised in this process, or a new local one, which `close` shuts down.
    n_actors : int, optional
        Number of actors over which the parties are spread (default: one per CPU that Ray has,
        at most one per party).
    """

    def __init__(
        self,
        types: PartyTypes,
        nodes: Sequence[NodeConfig],
        tables: Mapping[str, Table],
        run_config: Mapping[str, Any] | None = None,
        *,
        fitted: Mapping[str, Table] | None = None,
        address: str | None = None,
        n_actors: int | None = None,
    ) -> None:
        super().__init__(nodes, run_config)
        ray = _import_ray()
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            # Ray probes for accelerators and phones home unless told not to.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            ray.init(
                address=address,
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                configure_logging=False,
            )
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        n_actors = max(1, min(n_actors or cpus, len(nodes)))
        share = min(1.0, cpus / n_actors)
        actor = ray.remote(num_cpus=share)(_Host)
        self._actors = []
        self._actor_of: dict[int, Any] = {}
        for k in range(n_actors):
            own = {i: c for i, c in self.contexts.items() if i % n_actors == k}
            names = {str(c.node_config.get("party")) for c in own.values()}
            handle = actor.remote(
                types,
                own,
                {name: table for name, table in tables.items() if name in names},
                {name: table for name, table in (fitted or {}).items() if name in names},
            )
            self._actors.append(handle)
            self._actor_of.update(dict.fromkeys(own, handle))
        self._pending: dict[str, tuple[Any, Message]] = {}
        self._ray = ray

    def _submit(self, number: str, message: Message) -> None:
        reference = self._actor_of[message.metadata.dst_node_id].handle.remote(message)
        self._pending[number] = (reference, message)

    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        waiting = {self._pending[n][0]: n for n in numbers if n in self._pending}
        if not waiting:
            return []
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout)
        if ready:  # whatever else has arrived comes along
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        replies = []
        for reference in ready:
            _, message = self._pending.pop(waiting[reference])
            try:
                replies.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                replies.append(error_reply(message, CRASHED, error))
        return replies

    def _forget(self, numbers: list[str]) -> None:
        for number in numbers:
            self._pending.pop(number, None)

    def outputs(self) -> dict[str, Any]:
        """Fetch what each party saved as its output."""
        found: dict[str, Any] = {}
        for part in self._ray.get([actor.outputs.remote() for actor in self._actors]):
            found.update(part)
        return found

    def close(self) -> None:
        """End the actors, and Ray if this grid started it."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owns_ray and self._ray.is_initialized():
            self._ray.shutdown()
            self._owns_ray = False


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "engine 'ray' needs Ray: pip install 'flwr-vertical[ray]' (or use engine='local')"
        ) from error
    return ray
