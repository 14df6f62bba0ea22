"""A step is taken once: a message that comes again gets the same reply, or an error.

So a retry neither repeats a change of state nor masks two different arrays with one stream.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

from flwr.app import RecordDict

from flwr_vertical.errors import ProtocolError, StateLostError
from flwr_vertical.node.rollback import SEQUENCE


def repeated_reply(
    step: str, sequence: int, asked: bytes, state: Mapping[str, Any], cache: Mapping[str, Any]
) -> RecordDict | None:
    """Return the reply that a message got before; None if it is new.

    `asked` is a digest of what it asks for, where the run keeps checkpoints.
    """
    if sequence > int(state.get(SEQUENCE, -1)):
        return None
    if cache.get("reply-sequence") != sequence:
        raise StateLostError(
            f"message {sequence} ({step!r}) was already answered and the reply is gone; "
            "start the run again"
        )
    if cache.get("reply-request", asked) != asked:
        raise ProtocolError(
            f"message {sequence} ({step!r}) was answered before, but then it asked for "
            "something else: the server's journal has lost entries; start the run again"
        )
    reply: RecordDict = cache["reply"]
    return reply


def check_follows(step: str, after: int, state: Mapping[str, Any]) -> None:
    """Refuse a step that builds on an answer which this node does not remember.

    Flower sends a reply before it keeps the state: between the two a process may die.
    """
    if int(state.get(SEQUENCE, -1)) < after and "node.name" in state:
        raise StateLostError(
            f"step {step!r} builds on message {after}, which this node answered, but what it "
            "remembered of it is lost: its process ended too early; start the run again"
        )


def keep_reply(
    sequence: int, asked: bytes, reply: RecordDict, cache: MutableMapping[str, Any]
) -> None:
    """Keep the reply of a message while the process lives."""
    cache["reply-sequence"], cache["reply"] = sequence, reply
    cache["reply-request"] = asked
