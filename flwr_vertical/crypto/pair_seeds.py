"""Seeds that two parties share and the server cannot know.

Keys agree as for the masks (`masks`), with the same limit: secrecy holds against an
honest-but-curious server, or any server once the parties have signed their keys (`identity`).
"""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flwr_vertical.crypto.masks import KEY_BYTES, MIN_NONCE_BYTES
from flwr_vertical.errors import ProtocolError

SEED_BYTES = 32
_DOMAIN = b"flwr-vertical pair seed v1"


def pair_seed(
    private: bytes,
    own_name: str,
    peer_name: str,
    own_public: bytes,
    peer_public: bytes,
    nonce: bytes,
    purpose: str,
) -> bytes:
    """Return the seed that this party and a peer share for one purpose of one run."""
    if own_name == peer_name:
        raise ProtocolError(f"a pair seed needs two parties, got {own_name!r} twice")
    if len(nonce) < MIN_NONCE_BYTES:
        raise ProtocolError(
            f"the run nonce must be at least {MIN_NONCE_BYTES} bytes, got {len(nonce)}"
        )
    for kind, name, raw in (
        ("private", own_name, private),
        ("public", own_name, own_public),
        ("public", peer_name, peer_public),
    ):
        if len(raw) != KEY_BYTES:
            raise ProtocolError(
                f"the {kind} key of party {name!r} must be {KEY_BYTES} bytes, got {len(raw)}"
            )
    key = X25519PrivateKey.from_private_bytes(private)
    # The seed is bound to both public keys: with a wrong one the parties would silently disagree.
    if key.public_key().public_bytes_raw() != bytes(own_public):
        raise ProtocolError(
            f"the public key announced for party {own_name!r} is not that of its private key: "
            "another run's key, or somebody answered in its name"
        )
    if bytes(peer_public) == bytes(own_public):
        raise ProtocolError(f"party {peer_name!r} announced this party's own public key as its own")
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(bytes(peer_public)))
    except ValueError as error:
        # The library refuses an all-zero secret (RFC 7748, section 6.1): the key is of low order.
        raise ProtocolError(
            f"the public key of party {peer_name!r} is of low order: anybody could compute the "
            "seeds shared with it; it must make a new key pair"
        ) from error
    ends = sorted(((own_name, bytes(own_public)), (peer_name, bytes(peer_public))))
    parts = [_DOMAIN, purpose.encode()]
    for name, public in ends:
        parts += [name.encode(), public]
    # Lengths make the encoding injective: no two different inputs give the same bytes.
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=nonce, info=info).derive(secret)
