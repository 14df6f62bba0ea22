"""Opening channels: one ordinary message to each node, then wait until it has dialled."""

import logging
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_vertical.channel.endpoint import Endpoint
from flwr_vertical.channel.offer import DETACHED, MESSAGE_TYPE, read_answer
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.messages import make_message

logger = logging.getLogger("flwr_vertical")

_POLLS = (0.05, 1.0)  # seconds between looks at the wrapped grid: first and longest
_TOLD_EVERY = 10.0


class Opening:
    """Invites nodes and remembers which of them have a channel.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Carries the invitations.
    endpoint : Endpoint
        Where nodes dial.
    timeout : float
        Seconds in which they must have dialled.
    transport : {"auto", "channel"}
        What happens if they have not.

    Attributes
    ----------
    channels : set[int]
        Nodes whose messages go over a channel.
    """

    def __init__(self, grid: Grid, endpoint: Endpoint, timeout: float, transport: str) -> None:
        self.channels: set[int] = set()
        self._grid = grid
        self._endpoint = endpoint
        self._timeout = timeout
        self._transport = transport
        self._plain: set[int] = set()

    def open(self, node_ids: Sequence[int], *, again: bool = False) -> None:
        """Invite those nodes that were not invited yet, and wait for them.

        Raises
        ------
        ConfigError
            If one does not dial and the transport is ``"channel"``.
        """
        if again:
            self.channels -= set(node_ids)
            self._plain -= set(node_ids)
        fresh = [n for n in dict.fromkeys(node_ids) if n not in self.channels | self._plain]
        if not fresh:
            return
        started = time.monotonic()
        messages = [
            make_message(self._endpoint.invite(n).records(), n, MESSAGE_TYPE) for n in fresh
        ]
        # Flower answers None in place of the ID of a message that it did not take.
        causes = self._wait(fresh, {i for i in self._grid.push_messages(messages) if i})
        # Revoke first: a node that dialled after its fall-back would wait on the channel for
        # messages that wait at Flower for the node.
        failed = [n for n in fresh if self._endpoint.door.revoke(n)]
        opened = [n for n in fresh if n not in failed]
        self.channels |= set(opened)
        if opened:
            seconds = time.monotonic() - started
            logger.info("%d channels are open after %.1f s", len(opened), seconds)
        if failed:
            self._give_up(failed, causes)

    def _wait(self, nodes: list[int], unanswered: set[str]) -> dict[int, str]:
        """Wait until each node has dialled or answered otherwise; return the answers' causes."""
        deadline = time.monotonic() + self._timeout
        told = time.monotonic()
        poll = _POLLS[0]
        causes: dict[int, str] = {}
        waiting = set(nodes)
        while waiting and (left := deadline - time.monotonic()) > 0:
            waiting -= self._endpoint.door.wait(waiting, min(poll, left))
            poll = min(1.5 * poll, _POLLS[1])
            if not waiting:
                break
            for reply in self._grid.pull_messages(unanswered):
                unanswered.discard(reply.metadata.reply_to_message_id)
                node_id, cause = reply.metadata.src_node_id, _cause(reply)
                if cause and node_id in waiting:
                    causes[node_id] = cause
                    waiting.discard(node_id)
            if time.monotonic() - told > _TOLD_EVERY:
                told = time.monotonic()
                logger.info(
                    "waiting for nodes to dial %s: %s", self._endpoint.address, sorted(waiting)
                )
        return causes

    def _give_up(self, failed: Iterable[int], causes: dict[int, str]) -> None:
        late = f"it has not dialled within channel-timeout = {self._timeout:g} s"
        if self._endpoint.only_local:
            advice = (
                f"the endpoint listens at {self._endpoint.address}, which only this machine can "
                "reach; if nodes are on other machines, set channel-bind='0.0.0.0:PORT' and "
                "channel-address='HOST:PORT' in the run config"
            )
        else:
            advice = (
                f"nodes must reach {self._endpoint.address}: check channel-address and "
                "channel-bind in the run config, and the firewall; channel-timeout gives them "
                "more time"
            )
        reasons = "; ".join(f"node {n}: {causes.get(n, late)}" for n in sorted(failed))
        if self._transport == "channel":
            raise ConfigError(f"no channel to {reasons}. transport='channel' needs one: {advice}")
        logger.warning(
            "rounds go by Flower's messages, seconds each, to some nodes: %s. For channels: %s",
            reasons,
            advice,
        )
        self._plain |= set(failed)


def _cause(reply: Message) -> str:
    """Return why the node that gave this ordinary reply has no channel; "" if it has."""
    if reply.has_error():
        last = (reply.error.reason or "no reason given").strip().splitlines()[-1]
        return f"Flower reports error {reply.error.code}: {last}"
    status, reason = read_answer(reply.content)
    return "" if status == DETACHED else reason or status
