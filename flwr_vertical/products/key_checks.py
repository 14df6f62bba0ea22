"""Who vouches for a key under which a party hides its columns from the server.

Such a key passes through the server. Where identities are pinned, it comes with its owner's
signature, and a party that pins others uses none of a node that it does not pin.
"""

import hashlib

from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.messages import ARBITER

MODE = "products"
"""What a node's identity has as its mode where keys of products are signed and checked."""


def key_payload(purpose: str, key: bytes, nonce: bytes) -> dict[str, bytes]:
    """Return what the owner of a key signs."""
    return {"purpose": purpose.encode(), "key": hashlib.sha256(key).digest(), "run": nonce}


def check_key(
    node: pins.NodeIdentity,
    owner: str,
    payload: dict[str, bytes],
    identity: bytes,
    signature: bytes,
    *,
    sends: str,
    without: str,
) -> None:
    """Check on behalf of a party that a key is that of the node in whose name it came."""
    pinned = pins.read_pins(node, None)
    if pinned and owner not in pinned.keys:
        who = "the arbiter" if owner == ARBITER else f"party {owner!r}"
        pin = "pin.arbiter" if owner == ARBITER else f"pin.{owner}"
        raise ProtocolError(
            f"{node} pins others, but not {who}, under whose key it was to send "
            f"{sends}: whoever runs the server could have put in a key of its own. Get the "
            f"public identity key of {who} from its people and add {pin!r}, or use {without}"
        )
    pins.check_endorsement(node, pinned, owner, payload, identity, signature)
