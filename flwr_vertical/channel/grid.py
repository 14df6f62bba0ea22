"""`ChannelGrid`: Flower's grid with rounds of milliseconds."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from flwr.app import Error, Message
from flwr.serverapp import Grid

from flwr_vertical.channel.endpoint import Endpoint
from flwr_vertical.channel.handshake import Opening
from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.base import NodesGrid
from flwr_vertical.grids.poll import pauses
from flwr_vertical.grids.proxy import WrappingGrid, silent

TRANSPORTS = ("auto", "channel", "messages")
Names = Callable[[Grid, Collection[int]], Mapping[int, str]]
_UNAVAILABLE = 5  # Flower's code for a node that is not there
_NOT_TAKEN = "Flower does not take the message: the node is not connected, or it is too large"
# At most so many seconds between looks at the wrapped grid, while some nodes have no channel.
_POLL = 0.1


class ChannelGrid(WrappingGrid):
    """Wraps a grid and carries messages over live streams where nodes can open them.

    Use it as a context manager. Entering it starts the endpoint and invites the nodes that are
    connected; nodes that connect later are invited when the first message is sent to them. Leaving
    it says goodbye to all of them.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Carries the invitations, and all messages of nodes without a channel.
    transport : {"auto", "channel", "messages"}, default "auto"
        ``auto`` uses messages for nodes whose channel does not open; with ``channel`` that is an
        error; with ``messages`` nothing is opened.
    bind : str, default "127.0.0.1:0"
        Where to listen.
    address : str, optional
        Where nodes dial, if that is another address.
    timeout : float, default 60
        Seconds in which the channels must open.
    enough : int, optional
        How many nodes the run needs. Once so many have dialled on entering, the others are waited
        for as long again (at least 5 s): one that Flower lists may be dead.
    reconnect : float
        Seconds in which a node whose stream was cut may come back by another one: nothing is lost
        then. After that the node is lost.
    names : Callable, optional
        Told this grid and nodes that do not answer, returns names for some of them, by node ID: for
        messages to people.
    keep_state : bool, default True
        Whether nodes on the Simulation Runtime keep what their state became over the channel for
        ordinary messages afterwards (in a private file); not needed at the end of a run.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        transport: str = "auto",
        bind: str = "127.0.0.1:0",
        address: str = "",
        timeout: float = 60.0,
        enough: int | None = None,
        reconnect: float = 10.0,
        keep_state: bool = True,
        names: Names | None = None,
    ) -> None:
        if transport not in TRANSPORTS:
            raise ConfigError(f"unknown transport {transport!r}; expected one of {TRANSPORTS}")
        if not timeout > 0:
            raise ConfigError(f"channel-timeout = {timeout!r}; expected seconds above 0")
        super().__init__(grid)
        self._transport = transport
        self._bind, self._advertised = bind, address
        self._reconnect = reconnect
        self._timeout, self._enough = timeout, enough
        self._keep_state = keep_state
        self._names = names
        self._endpoint: Endpoint | None = None
        self._opening: Opening | None = None
        self._numbers: dict[str, int] = {}  # of messages on channels, by their ID

    # -- opening and closing ---------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._transport != "messages":
            self._endpoint = Endpoint(
                self._bind,
                self._advertised,
                reconnect=self._reconnect,
                dial_timeout=min(20.0, self._timeout),
            )
            names = None if self._names is None else partial(self._names, self)
            self._opening = Opening(
                self._grid, self._endpoint, self._timeout, self._transport, names
            )
            try:
                self._opening.open(list(self.get_node_ids()), self._enough)
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye to all nodes and stop listening; afterwards messages go Flower's way."""
        endpoint, self._endpoint, self._opening = self._endpoint, None, None
        if endpoint is not None:
            endpoint.close(keep_state=self._keep_state)

    def reopen(self, node_ids: Sequence[int]) -> list[int]:
        """Open channels to nodes that have lost theirs or have just connected, without waiting."""
        return list(node_ids) if self._opening is None else self._opening.reopen(node_ids)

    def silent(self, node_ids: Sequence[int]) -> list[int]:
        """Return the nodes that neither have a channel nor said why they have none."""
        known = silent(self._grid, node_ids)
        return known if self._opening is None else [n for n in known if n in self._opening.silent]

    @property
    def channels(self) -> set[int]:
        """Nodes whose messages go over a channel (also one that was lost)."""
        return set() if self._opening is None else set(self._opening.channels)

    @property
    def address(self) -> str | None:
        """Where nodes dial, or None while nothing listens."""
        return None if self._endpoint is None else self._endpoint.address

    # -- messages --------------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their IDs at once."""
        sent = list(messages)
        streamed, plain = self._split(sent)
        ids: dict[int, str] = {}
        for message in streamed:
            assert self._endpoint is not None
            number = self._endpoint.send(message)
            ids[id(message)] = message.metadata.message_id
            self._numbers[message.metadata.message_id] = number
        if plain:
            ids |= zip(map(id, plain), self._grid.push_messages(plain), strict=False)
        # Flower returns None, or nothing, for messages that it does not take.
        return [ids.get(id(message)) or "" for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there already; each is returned once."""
        ids = set(message_ids)
        streamed = ids & set(self._numbers)
        replies = self._collect(streamed, 0.0)
        if plain := ids - streamed:
            replies += self._grid.pull_messages(plain)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, at most ``timeout`` seconds."""
        sent = list(messages)
        if isinstance(self._grid, NodesGrid) and not self._split(sent)[0]:
            return self._grid.send_and_receive(sent, timeout=timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        numbers = list(self.push_messages(sent))
        replies = [  # to what Flower did not take, as it replies for a node that is lost
            Message(Error(code=_UNAVAILABLE, reason=_NOT_TAKEN), reply_to=message)
            for message, number in zip(sent, numbers, strict=True)
            if not number
        ]
        ids = {number for number in numbers if number}
        del sent, messages
        streamed = ids & set(self._numbers)
        plain = ids - streamed
        waits = pauses(_POLL)
        while streamed or plain:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            pause = left
            if plain:
                pause = next(waits) if left is None else min(next(waits), left)
            if streamed:
                arrived = self._collect(streamed, pause)
            else:
                time.sleep(pause or 0.0)
                arrived = []
            if plain:
                arrived += self._grid.pull_messages(plain)
            replies += arrived
            done = {reply.metadata.reply_to_message_id for reply in arrived}
            streamed -= done
            plain -= done
            if left == 0.0:
                break
        if self._endpoint is not None:
            self._endpoint.mailbox.forget(self._numbers.pop(late) for late in streamed)
        return replies

    def _split(self, messages: list[Message]) -> tuple[list[Message], list[Message]]:
        """Return messages that go over a channel, and those that go Flower's way."""
        if self._opening is None:
            return [], messages
        self._opening.open([m.metadata.dst_node_id for m in messages])
        channels = self._opening.channels
        streamed = [m for m in messages if m.metadata.dst_node_id in channels]
        return streamed, [m for m in messages if m.metadata.dst_node_id not in channels]

    def _collect(self, ids: set[str], timeout: float | None) -> list[Message]:
        if self._endpoint is None or not ids:
            return []
        numbers = {self._numbers[i] for i in ids}
        replies = self._endpoint.mailbox.wait(numbers, timeout)
        for reply in replies:
            self._numbers.pop(reply.metadata.reply_to_message_id, None)
        return replies
