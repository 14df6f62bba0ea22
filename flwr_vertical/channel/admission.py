"""Who may open a channel: one single-use token per party, and one to come back with."""

import hmac
import secrets
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

import grpc

from flwr_vertical.channel.invitation import NODE_KEY, TOKEN_KEY, VERSION_KEY
from flwr_vertical.log import logger
from flwr_vertical.version import __version__


class _TokenState(Enum):
    OPEN = "open"
    USED = "used"
    REVOKED = "revoked"


@dataclass
class _Entry:
    token: str = field(repr=False)
    state: _TokenState = _TokenState.OPEN
    back: tuple[str, ...] = field(default=(), repr=False)  # tokens to come back with


class Admission:
    """Hands out tokens and judges those who come with one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[int, _Entry] = {}
        self._shut = False

    def invite(self, node_id: int) -> str:
        """Return a fresh token for a node; an earlier one no longer counts."""
        token = secrets.token_urlsafe(32)
        with self._changed:
            self._entries[node_id] = _Entry(token)
        return token

    def revoke(self, node_id: int) -> bool:
        """Let a node no longer in; return False if it came in already."""
        with self._changed:
            entry = self._entries.get(node_id)
            if entry is not None and entry.state is _TokenState.USED:
                return False
            if entry is not None:
                entry.state = _TokenState.REVOKED
            return True

    def expect_back(self, node_id: int) -> str:
        """Return a fresh token by which a node that is inside may come back.

        The one by which it came stays good until `confirm`: if the new stream is cut before the
        node has heard of the fresh token, it has no other.
        """
        token = secrets.token_urlsafe(32)
        with self._changed:
            entry = self._entries[node_id]
            entry.back = (*entry.back, token)
        return token

    def confirm(self, node_id: int) -> None:
        """Take note that a node has its newest token; earlier ones no longer count."""
        with self._changed:
            if entry := self._entries.get(node_id):
                entry.back = entry.back[-1:]

    def bar(self, node_id: int) -> None:
        """Do not let a node come back by the token for that."""
        with self._changed:
            if entry := self._entries.get(node_id):
                entry.back = ()

    def shut(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def wait(self, nodes: Collection[int], timeout: float) -> set[int]:
        """Wait until these nodes have come in, or some time; return those that have."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside(nodes) == set(nodes), timeout)
            return self._inside(nodes)

    def _inside(self, nodes: Collection[int]) -> set[int]:
        return {
            n for n in nodes if (entry := self._entries.get(n)) and entry.state is _TokenState.USED
        }

    def judge(
        self, metadata: Iterable[tuple[str, str | bytes]]
    ) -> tuple[int, grpc.StatusCode, str]:
        """Look at what a caller presents, and use up its token."""
        given = {key: str(value) for key, value in metadata}
        token = given.get(TOKEN_KEY, "").encode()
        version = given.get(VERSION_KEY, "unknown")
        number = given.get(NODE_KEY, "")
        node_id = int(number) if number.isdecimal() else 0
        with self._changed:
            code, text = self._judge(node_id, token, version)
            if code is grpc.StatusCode.OK:
                entry = self._entries[node_id]
                entry.state = _TokenState.USED
                entry.back = tuple(b for b in entry.back if hmac.compare_digest(b.encode(), token))
                self._changed.notify_all()
        if code is not grpc.StatusCode.OK:
            logger.warning("a caller was refused a channel: %s", text)
        return node_id, code, text

    def _judge(self, node_id: int, token: bytes, version: str) -> tuple[grpc.StatusCode, str]:
        entry = self._entries.get(node_id)
        back = entry is not None and any(
            hmac.compare_digest(each.encode(), token) for each in entry.back
        )
        if entry is None or (not back and not hmac.compare_digest(entry.token.encode(), token)):
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                f"the token is not the one that this run gave to node {node_id}",
            )
        if entry.state is _TokenState.USED and not back:
            return (
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token of node {node_id} was used already; a token opens one channel",
            )
        if entry.state is _TokenState.REVOKED or self._shut:
            return (
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token of node {node_id} was revoked: it dialled too late, and the run goes "
                "on without this channel",
            )
        if version != __version__:
            return (
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the server has flwr-vertical {__version__}, node {node_id} has "
                f"{version[:40]}; install the same version on both",
            )
        return grpc.StatusCode.OK, ""
