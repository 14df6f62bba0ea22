"""Reading what a recorded run sent."""

from flwr.app import ArrayRecord

from flwr_vertical.protocol import decode


def arrays_of(transcript):
    """Every array in every message and reply of a transcript."""
    for record in transcript:
        for name, found in record.content.items():
            if isinstance(found, ArrayRecord):
                values = decode(record.content, name.removesuffix(".arrays")).values()
                yield from (value for value in values if hasattr(value, "shape"))
