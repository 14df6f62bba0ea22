"""Secrets that two parties share and the server cannot know: of masks, and of all other uses.

They get each other's public keys through the server, so secrecy holds against an honest-but-curious
server, or any server once the parties have signed their keys (`identity`).
"""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flwr_vertical.errors import ProtocolError

KEY_BYTES = SEED_BYTES = 32
MIN_NONCE_BYTES = 16
_DOMAIN = b"flwr-vertical pair seed v1"


def framed(*parts: bytes) -> bytes:
    """Join parts, each behind its length: no two different lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class OwnKey:
    """A party's private key of a run, as it was announced in the party's name."""

    def __init__(self, private: bytes, name: str, public: bytes, nonce: bytes) -> None:
        if len(nonce) < MIN_NONCE_BYTES:
            raise ProtocolError(
                f"the run nonce must be at least {MIN_NONCE_BYTES} bytes, got {len(nonce)}"
            )
        _check_size("private", name, private)
        _check_size("public", name, public)
        self._private = X25519PrivateKey.from_private_bytes(private)
        # Secrets are bound to both public keys: with a wrong one parties would silently disagree.
        if self._private.public_key().public_bytes_raw() != public:
            raise ProtocolError(
                f"the public key announced for party {name!r} is not that of its private key: "
                "another run's key, or somebody answered in its name"
            )
        self._name, self._public, self._nonce = name, bytes(public), nonce

    def agree(self, peer: str, public: bytes, *purpose: bytes) -> bytes:
        """Return what this party and a peer share for one purpose, 32 bytes.

        It is bound to the run, the purpose, both names and both public keys.
        """
        _check_size("public", peer, public)
        public = bytes(public)
        if public == self._public:
            raise ProtocolError(f"party {peer!r} announced this party's own public key as its own")
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            # The library refuses an all-zero secret (RFC 7748, section 6.1).
            raise ProtocolError(
                f"the public key of party {peer!r} is of low order: anybody could compute what is "
                "shared with it; it must make a new key pair"
            ) from error
        ends = sorted(((self._name, self._public), (peer, public)))
        info = framed(*purpose, *(part for name, key in ends for part in (name.encode(), key)))
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=self._nonce, info=info).derive(
            secret
        )


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
    own = OwnKey(private, own_name, own_public, nonce)
    return own.agree(peer_name, peer_public, _DOMAIN, purpose.encode())


def _check_size(kind: str, name: str, key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ProtocolError(
            f"the {kind} key of party {name!r} must be {KEY_BYTES} bytes, got {len(key)}"
        )
