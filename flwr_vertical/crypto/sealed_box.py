"""Secrets that one party sends to another through the server, sealed under a seed of the two.

Authenticated encryption (ChaCha20-Poly1305, RFC 8439): whoever lacks the seed reads nothing, and a
sealed secret that was changed, or put in another place, is refused.
"""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flwr_vertical.errors import ProtocolError

_NONCE_BYTES = 12


def seal(seed: bytes, secret: bytes, place: bytes) -> bytes:
    """Seal a secret."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(seed).encrypt(nonce, secret, place)


def open_sealed(seed: bytes, sealed: bytes, place: bytes, sender: str) -> bytes:
    """Return a sealed secret."""
    try:
        return ChaCha20Poly1305(seed).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError(
            f"what came as a secret of party {sender!r} was not sealed by it for this run: it was "
            "changed or exchanged on the way; find out who runs the server before you start again"
        ) from error
