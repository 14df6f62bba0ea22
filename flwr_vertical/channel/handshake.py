"""Opening channels: one ordinary message to each node, then wait until it has dialled."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_vertical.channel.endpoint import Endpoint
from flwr_vertical.channel.invitation import DETACHED, MESSAGE_TYPE, read_answer
from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.poll import pauses
from flwr_vertical.log import logger
from flwr_vertical.protocol.messages import make_message

_POLLS = (0.05, 1.0)  # seconds between looks at the wrapped grid: first and longest
_TOLD_EVERY = 10.0
_GRACE = 5.0  # seconds that nodes which are not needed are waited for at least
_LISTED_EVERY = 2.0  # seconds; Flower strikes a node off its list some time after its last sign
_GONE = "Flower no longer lists it: its SuperNode has ended, or the network to it is cut"
# Codes of errors that Flower's SuperLink reports without the node: no message, no reply, no node.
_FROM_SUPERLINK = (3, 4, 5)
_OFFLINE = "Flower does not take messages for it: it is not connected"


class Opening:
    """Invites nodes and remembers which of them have a channel."""

    def __init__(
        self,
        grid: Grid,
        endpoint: Endpoint,
        timeout: float,
        transport: str,
        names: Callable[[Collection[int]], Mapping[int, str]] | None = None,
    ) -> None:
        self.channels: set[int] = set()
        self._grid = grid
        self._endpoint = endpoint
        self._timeout = timeout
        self._transport = transport
        self._names = names
        self.silent: set[int] = set()
        self._listed_at = 0.0
        self._plain: set[int] = set()
        self._lost: set[int] = set()  # had a channel, and no message of theirs has come since
        self._invited: dict[int, tuple[float, str | None]] = {}  # until when; the message's ID

    def open(self, node_ids: Sequence[int], enough: int | None = None) -> None:
        """Invite those nodes that were not invited yet, and wait for them."""
        fresh = [n for n in dict.fromkeys(node_ids) if n not in self.channels | self._plain]
        if not fresh:
            return
        started = told = time.monotonic()
        self._invite([n for n in fresh if n not in self._invited], self._timeout)
        limit = math.inf
        polls = pauses(_POLLS[1], _POLLS[0])
        causes: dict[int, str] = {}
        while waiting := sorted(self._invited.keys() & set(fresh)):
            causes |= self._look(next(polls))
            now = time.monotonic()
            if enough is not None and len(self.channels) >= enough:
                limit = min(limit, now + max(_GRACE, now - started))
                if now > limit:
                    logger.warning("going on without nodes that have not dialled: %s", waiting)
                    break
            if time.monotonic() - told > _TOLD_EVERY:
                told = time.monotonic()
                logger.info("waiting for nodes to dial %s: %s", self._endpoint.address, waiting)
        if opened := self.channels & set(fresh):
            seconds = time.monotonic() - started
            logger.info("%d channels are open after %.1f s", len(opened), seconds)
        if self._transport == "channel" and enough is not None and len(self.channels) >= enough:
            if causes:
                logger.warning("going on without nodes that have no channel: %s", causes)
        elif causes:
            self._give_up(causes)

    def reopen(self, node_ids: Sequence[int]) -> list[int]:
        """Invite those nodes that have no channel, also such as have lost it, and do not wait."""
        lost = {n for n in self.channels.intersection(node_ids) if n in self._endpoint.lost}
        self.channels -= lost
        self._lost |= lost
        known = self.channels | self._plain | self._invited.keys()
        # A party whose process was killed is free only when its SuperNode has noticed.
        self._invite([n for n in node_ids if n not in known], 2 * self._timeout)
        if causes := self._look(0.0):
            # A SuperNode that was killed may come back under its ID, and dial as it did before.
            mute = causes.keys() & self.silent & self._lost
            again = set(causes) if self._transport == "channel" else mute
            if again:  # is invited again, as long as somebody asks
                logger.info("no channel yet to %s", {n: causes[n] for n in again})
            if spoken := {n: cause for n, cause in causes.items() if n not in again}:
                self._give_up(spoken)
        ready = self.channels | self._plain
        return [n for n in node_ids if n in ready]

    def _invite(self, nodes: list[int], timeout: float) -> None:
        if not nodes:
            return
        offers = [make_message(self._endpoint.invite(n).records(), n, MESSAGE_TYPE) for n in nodes]
        deadline = time.monotonic() + timeout
        # Flower answers None in place of the ID of a message that it did not take.
        ids = self._grid.push_messages(offers)
        self._invited |= {n: (deadline, i) for n, i in zip(nodes, ids, strict=True)}

    def _look(self, pause: float) -> dict[int, str]:
        """See who has dialled, at most for some time; return who will not, and why."""
        for node_id in self._endpoint.admission.wait(self._invited.keys(), pause):
            self.channels.add(node_id)
            self.silent.discard(node_id)
            self._lost.discard(node_id)
            del self._invited[node_id]
        failed = {
            n: f"it has not dialled within channel-timeout = {self._timeout:g} s"
            for n, (deadline, _) in self._invited.items()
            if time.monotonic() > deadline
        }
        self.silent |= failed.keys()
        offline = {n: _OFFLINE for n, (_, number) in self._invited.items() if not number}
        if time.monotonic() > self._listed_at + _LISTED_EVERY:
            self._listed_at = time.monotonic()
            listed = set(self._grid.get_node_ids())
            offline |= dict.fromkeys(self._invited.keys() - listed, _GONE)
        failed |= offline
        self.silent |= offline.keys()
        # By number: the SuperLink's own errors come from no node.
        asked = {number: n for n, (_, number) in self._invited.items() if number}
        for reply in self._grid.pull_messages(set(asked)) if asked else []:
            node_id, cause = asked[reply.metadata.reply_to_message_id], _cause(reply)
            if cause:
                failed[node_id] = cause
                if reply.has_error() and reply.error.code in _FROM_SUPERLINK:
                    self.silent.add(node_id)
        for node_id in list(failed):
            del self._invited[node_id]
            # Revoke first: a node that dialled after its fall-back would wait on the channel for
            # messages that wait at Flower for the node.
            if not self._endpoint.admission.revoke(node_id):
                self.channels.add(node_id)
                self.silent.discard(node_id)
                del failed[node_id]
        return failed

    def _give_up(self, causes: dict[int, str]) -> None:
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
        names = {} if self._names is None else self._names(causes)
        reasons = "; ".join(f"{names.get(n, f'node {n}')}: {causes[n]}" for n in sorted(causes))
        if self._transport == "channel":
            raise ConfigError(f"no channel to {reasons}. transport='channel' needs one: {advice}")
        logger.warning(
            "rounds go by Flower's messages, seconds each, to some nodes: %s. For channels: %s",
            reasons,
            advice,
        )
        self._plain |= set(causes)


def _cause(reply: Message) -> str:
    """Return why the node that gave this ordinary reply has no channel; "" if it has."""
    if reply.has_error():
        last = (reply.error.reason or "no reason given").strip().splitlines()[-1]
        return f"Flower reports error {reply.error.code}: {last}"
    status, reason = read_answer(reply.content)
    return "" if status == DETACHED else reason or status
