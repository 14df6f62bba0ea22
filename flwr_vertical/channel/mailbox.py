"""Which messages wait for a reply, and the replies that nobody has fetched yet."""

import itertools
import threading
from collections.abc import Iterable

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message

RAISED, LOST = 2, 8  # Flower's codes for a failed ClientApp and for one whose process died


class Mailbox:
    """Settles every message once: with its node's reply, or with an error reply."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count(1)
        self._pending: dict[int, Message] = {}  # requests without their content
        self._settled: dict[int, Message] = {}
        self._forgotten: set[int] = set()
        self._waiters: list[set[int]] = []

    def post(self, message: Message) -> int:
        """Give a message its number and expect a reply to it."""
        with self._changed:
            number = next(self._numbers)
            message.metadata.__dict__["_message_id"] = f"channel-{number}"
            self._pending[number] = make_message(message.metadata, RecordDict())
        return number

    def deliver(self, node_id: int, number: int, reply: Message) -> str:
        """Take a node's reply; return what is wrong with it, or nothing."""
        with self._changed:
            request = self._pending.get(number)
            if request is None or request.metadata.dst_node_id != node_id:
                return f"it answered message {number}, which it was not asked or had answered"
            told, asked = reply.metadata, request.metadata
            if (told.src_node_id, told.reply_to_message_id) != (node_id, asked.message_id):
                return f"its answer to message {number} names another node or message"
            self._settle(number, reply)
        return ""

    def fail(self, number: int, code: int, reason: str) -> None:
        """Settle a message with an error reply, unless it is settled already."""
        with self._changed:
            if number in self._pending:
                error = Error(code, reason)
                self._settle(number, Message(error, reply_to=self._pending[number]))

    def fail_all(self, node_id: int, reason: str) -> None:
        """Settle all messages to a node with error replies."""
        with self._changed:
            for number, request in list(self._pending.items()):
                if request.metadata.dst_node_id == node_id:
                    self.fail(number, LOST, reason)

    def wait(self, numbers: Iterable[int], timeout: float | None) -> list[Message]:
        """Wait for replies, at most some time; return those that are there, each once."""
        wanted = list(numbers)
        with self._changed:
            waiter = {n for n in wanted if n in self._pending}
            self._waiters.append(waiter)
            self._changed.wait_for(lambda: not waiter, timeout)
            # By identity: two waiters for nothing are equal.
            self._waiters = [other for other in self._waiters if other is not waiter]
            return [self._settled.pop(n) for n in wanted if n in self._settled]

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop replies that nobody waits for any more, whether they have come or will."""
        with self._changed:
            for number in numbers:
                self._settled.pop(number, None)
                if number in self._pending:
                    self._forgotten.add(number)

    def _settle(self, number: int, reply: Message) -> None:
        del self._pending[number]
        if number in self._forgotten:
            self._forgotten.discard(number)
        else:
            reply.metadata.__dict__["_message_id"] = f"channel-reply-{number}"
            self._settled[number] = reply
        complete = False
        for waiter in self._waiters:
            waiter.discard(number)
            complete = complete or not waiter
        if complete:
            self._changed.notify_all()
