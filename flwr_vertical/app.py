"""`party_app`: a Flower ``ClientApp`` that serves the steps of a party."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from flwr_vertical.alignment.base import Aligner
from flwr_vertical.alignment.registry import alignment_steps, whole_protocol
from flwr_vertical.channel.app import ChannelClientApp
from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.node.memory_storage import MemoryStorage
from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.policy_check import NodeTypes
from flwr_vertical.node.service import StepServer
from flwr_vertical.node.storage import Storage
from flwr_vertical.policy.run_request import RunRequest
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.tables import Table

Halves = tuple[type[Party], type[Arbiter]]


def party_app(
    party: type[Party] | Callable[[Context], Halves | NodeTypes],
    *,
    arbiter: type[Arbiter] = Arbiter,
    alignment: str | type[Aligner] | None = None,
    storage: Storage | None = None,
    asked: RunRequest | None = None,
    protocol: Protocol | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Make a Flower ``ClientApp`` of a party.

    Parameters
    ----------
    party : type[Party] or Callable[[Context], tuple[type[Party], type[Arbiter]] or NodeTypes]
        The party half of a strategy, or a function that picks both halves by the run config. It is
        called after the node's policy has allowed the names in it: what it imports runs code.
    arbiter : type[Arbiter]
        What a node with ``role = "arbiter"`` in its node config runs.
    alignment : str or type[Aligner], optional
        Whose steps the parties offer (default: ``alignment`` of the run config; without it those
        of all built-in protocols).
    storage : Storage, optional
        Where tables are read from and written to; by default files named in the node config.
    asked : RunRequest, optional
        What the party's strategy asks of the node's policy, if `party` does not tell.
    protocol : Protocol, optional
        What the run exchanges after the alignment, if `party` does not tell.
    mods : sequence of flwr.clientapp.typing.Mod, optional
        Flower's mods of the app.

    Returns
    -------
    flwr.clientapp.ClientApp
        Answers messages of the type ``query.step``, from Flower or over a live channel.

    Examples
    --------
    >>> from flwr_vertical import Party, party_app, step
    >>> class Counter(Party):
    ...     @step
    ...     def count(self) -> dict[str, int]:
    ...         return {"rows": self.table.n_samples}
    >>> app = party_app(Counter)
    """
    kept = storage or FileStorage()

    def names(context: Context) -> RunRequest:
        config = context.run_config
        return RunRequest(
            strategy="" if isinstance(party, type) else str(config.get("strategy", "")),
            alignment="" if alignment else str(config.get("alignment", "")),
        )

    def types(context: Context) -> NodeTypes:
        found = party if isinstance(party, type) else party(context)
        if isinstance(found, type):
            found = NodeTypes(found, arbiter, protocol=protocol)
        elif not isinstance(found, NodeTypes):
            found = NodeTypes(*found)
        found = replace(found, asked=asked or found.asked)
        if kept.role(context) == "arbiter":  # which takes no part in alignment
            return found
        chosen = alignment or context.run_config.get("alignment")
        groups = alignment_steps(chosen if isinstance(chosen, str | type) else None)
        return replace(found, groups=groups, protocol=whole_protocol(groups, found.protocol))

    app = ChannelClientApp(mods=[*mods])
    server = StepServer(types, kept, names)

    @app.query("step")
    def serve(message: Message, context: Context) -> Message:
        return Message(server.answer(message.content, context), reply_to=message)

    return app


@dataclass(frozen=True)
class memory_app:  # noqa: N801 (used as a function; a class so that it can travel to an actor)
    """Makes the app of parties whose tables lie in memory, in the process that serves them.

    As `party_app` of a `MemoryStorage`. `protocol` is what the run exchanges after the alignment,
    `asked` what the strategy asks of the parties' policies, which are enforced then, with ledgers
    in a folder `ledgers`; by default in one that is removed afterwards.
    """

    party: type[Party]
    arbiter: type[Arbiter] = Arbiter
    alignment: str | type[Aligner] | None = None
    fitted_models: Mapping[str, bytes] = field(default_factory=dict)
    folder: Path | None = None
    asked: RunRequest | None = None
    ledgers: Path | None = None
    protocol: Protocol | None = None

    def __call__(
        self, tables: Mapping[str, Table], fitted: Mapping[str, Table]
    ) -> tuple[ClientApp, MemoryStorage]:
        """Return the app, and the storage in which it leaves the parties' outputs and models."""
        # A caller who says what the nodes are asked has them keep to a policy: so they count.
        counted = False if self.asked is None else self.ledgers or True
        storage = MemoryStorage(tables, fitted, self.fitted_models, self.folder, counted)
        app = party_app(
            self.party,
            arbiter=self.arbiter,
            alignment=self.alignment,
            storage=storage,
            asked=self.asked,
            protocol=self.protocol,
        )
        return app, storage
