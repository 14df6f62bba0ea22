"""Reading what a recorded run sent."""

from types import SimpleNamespace

from flwr.app import ArrayRecord

from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, UPDATES, VALUES, read_envelope


def decoded(transcript, who):
    """Every message and reply with its node's name, its step and what it holds."""
    found, asked = [], {}
    for record in transcript:
        if record.direction == "down":
            asked[record.node_id] = str(read_envelope(record.content)["step"])
        found.append(
            SimpleNamespace(
                up=record.direction == "up",
                node=who[record.node_id],
                step=asked[record.node_id],
                content=record.content,
                arguments=decode(record.content, ARGUMENTS),
                updates=decode(record.content, UPDATES),
                values=decode(record.content, VALUES),
                sums=decode(record.content, SUMS),
            )
        )
    return found


def arrays_of(transcript):
    """Every array in every message and reply of a transcript."""
    for record in transcript:
        for name, found in record.content.items():
            if isinstance(found, ArrayRecord):
                values = decode(record.content, name.removesuffix(".arrays")).values()
                yield from (value for value in values if hasattr(value, "shape"))
