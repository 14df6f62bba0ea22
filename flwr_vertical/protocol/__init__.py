"""What the server and the parties share: the wire form, private sums, pinned identities."""

from flwr_vertical.protocol.codec import decode, encode

__all__ = ["decode", "encode"]
