"""The wire form of a round: what a message from the server and its reply look like.

::

    server -> node   envelope {step, sequence, mode, ...}, updates.*, arguments.*, scales
    node -> server   envelope {status, seconds, ...}, values.*, sums.*

``updates`` are values that the node puts into its state before it takes the step: public keys of
the other parties, its row positions. They ride along instead of costing a round of their own.
``scales`` say, for summands by name, which range a private sum must have.
"""

import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.supercore.task_identity import TaskIdentity

from flwr_vertical.errors import VerticalError
from flwr_vertical.protocol.codec import encode, encoded, entries, filled

MESSAGE_TYPE = "query.step"
ENVELOPE = "flwr-vertical.envelope"
UPDATES = "updates"
ARGUMENTS = "arguments"
VALUES = "values"
SUMS = "sums"
SCALES = "scales"
PROTOCOL_VERSION = 1

# Steps of the protocol itself, and the arbiter's name among the nodes of a run.
HELLO = "hello"
WHO = "tell-name"  # begins nothing; no method of a party can have this name
FAREWELL = "farewell"
SNAPSHOT = "snapshot"  # write down where you are
RESTORE = "restore"  # go back to a snapshot, with new keys
ARBITER = "(arbiter)"

# Long enough for the slowest step; a message whose time to live has passed loses its reply.
TIME_TO_LIVE = 3 * 24 * 3600.0


def make_request(
    step: str,
    sequence: int,
    arguments: Mapping[str, Any] | RecordDict,
    updates: Mapping[str, Any] | None = None,
    scales: Mapping[str, float] | None = None,
    **envelope: Any,
) -> RecordDict:
    """Compose the content of a message to a node; arguments may be encoded already."""
    if isinstance(arguments, RecordDict):  # shared between messages
        records = filled(RecordDict(), entries(arguments))
    else:
        records = encode(arguments, ARGUMENTS)
    if scales:
        records[SCALES] = ConfigRecord(dict(scales))
    if updates:
        records.update(encoded(updates, UPDATES))
    records[ENVELOPE] = ConfigRecord(
        {"version": PROTOCOL_VERSION, "step": step, "sequence": sequence, **envelope}
    )
    return records


def read_scales(request: RecordDict) -> dict[str, float]:
    """Return the scales of summands that a request asks for."""
    return {name: float(scale) for name, scale in entries(request).get(SCALES, {}).items()}


def make_reply(values: Mapping[str, Any]) -> RecordDict:
    """Compose the content of a reply; the private sum adds its records afterwards."""
    own = {ENVELOPE: ConfigRecord({"status": "ok"})}
    return filled(RecordDict(), (encoded(values, VALUES) if values else {}) | own)


def make_error_reply(error: BaseException, party: str = "", in_full: bool = True) -> RecordDict:
    """Compose the content of a reply that reports a failed step of a party, if it has a name."""
    text = str(error) or type(error).__name__
    if not (in_full or isinstance(error, VerticalError | ImportError)):
        text = f"raised in {place_of(error)}; what it says may quote data, see the party's own log"
    told = {"status": "error", "error": type(error).__name__, "message": text[:2000]}
    return RecordDict({ENVELOPE: ConfigRecord({**told, "party": party})})


def place_of(error: BaseException) -> str:
    """Return file and line where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "a step"


def renumber(content: RecordDict, sequence: int, retake: int) -> RecordDict:
    """Return a request under another number, to be taken again from the state before a message."""
    envelope: Any = content[ENVELOPE]
    other = ConfigRecord({**envelope, "sequence": sequence, "retake": retake})
    return RecordDict({**content, ENVELOPE: other})


def make_message(content: RecordDict, node_id: int, message_type: str = MESSAGE_TYPE) -> Message:
    """Address a request to a node, inside a Flower process or, as in a notebook, outside of one."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        metadata = Metadata(
            run_id=0,
            message_id="",
            src_node_id=0,
            dst_node_id=node_id,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=TIME_TO_LIVE,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)  # type: ignore[call-overload, no-any-return]
    return Message(content, node_id, message_type, ttl=TIME_TO_LIVE)


def read_envelope(content: RecordDict) -> ConfigRecord | None:
    """Return the envelope of a message, or None if it does not speak this protocol."""
    envelope = entries(content).get(ENVELOPE)
    return envelope if isinstance(envelope, ConfigRecord) else None
