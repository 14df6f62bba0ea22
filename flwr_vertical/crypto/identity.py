"""Identity keys: who made an ephemeral key, whoever carried it.

Keys of a run are made afresh and travel through the server. A node may also own an Ed25519 key
pair (RFC 8032) that stays the same over runs and sign its greeting with it: its name and its keys
of the run. Nodes that learned the public identity key by another way then notice a swapped key.

A private identity key is an object of the ``cryptography`` package, not bytes: the codec cannot
carry it, and its representation does not show it.
"""

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from flwr_vertical.errors import ConfigError
from flwr_vertical.log import logger
from flwr_vertical.whole_files import atomic_path

IDENTITY_BYTES = 32

_DOMAIN = b"flwr-vertical greeting v1"


def generate_identity() -> Ed25519PrivateKey:
    """Return a fresh private identity key."""
    return Ed25519PrivateKey.generate()


def write_identity(path: str | os.PathLike[str], private: Ed25519PrivateKey) -> Path:
    """Write a private identity key as PEM that its owner alone can read, whole or not at all."""
    target = Path(path)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        with atomic_path(target, 0o600, fresh=True) as temporary:
            temporary.write_bytes(pem)
    except FileExistsError as error:
        raise ConfigError(
            f"{target} exists and is not overwritten: the other parties may have pinned its "
            "public key; choose another path, or delete the file if nobody pins it"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write an identity key to {target}: {error.strerror or error}"
        ) from error
    return target


def load_identity(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Read a private identity key; the log warns of a file that others can read."""
    remedy = "make an identity key with `flwr-vertical keygen PATH`"
    try:
        with open(path, "rb") as file:
            pem = file.read()
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError as error:
        raise ConfigError(f"there is no identity key at {path}; {remedy}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the identity key at {path}: {error.strerror or error}"
        ) from error
    try:
        private = load_pem_private_key(pem, password=None)
    except TypeError as error:  # so the library says that a password is needed
        raise ConfigError(
            f"the identity key at {path} is encrypted, and no node asks for a password; {remedy}"
        ) from error
    except Exception as error:  # ValueError, or UnsupportedAlgorithm, which is neither
        raise ConfigError(
            f"the file at {path} is no private key in PEM form (a public key does not sign); "
            f"{remedy}"
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        kind = type(private).__name__.removesuffix("PrivateKey").lstrip("_")
        raise ConfigError(f"the key at {path} is of type {kind}, expected Ed25519; {remedy}")
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        logger.warning("the identity key at %s can be read by others; run chmod 600 on it", path)
    return private


def public_identity(private: Ed25519PrivateKey) -> bytes:
    """Return the public identity key that belongs to a private one, 32 bytes."""
    return private.public_key().public_bytes_raw()


def identity_text(public: bytes) -> str:
    """Return a public identity key as 43 characters of URL-safe base64, fit for a node config."""
    return base64.urlsafe_b64encode(public).rstrip(b"=").decode()


def parse_identity(text: object) -> bytes:
    """Return the public identity key that a text stands for."""
    try:
        if not isinstance(text, str):
            raise TypeError
        public = base64.b64decode(text.removesuffix("=") + "=", altchars=b"-_", validate=True)
    except (TypeError, ValueError, binascii.Error):
        public = b""
    # 43 characters hold two bits more than 32 bytes: only one spelling of a key is right.
    if len(public) != IDENTITY_BYTES or identity_text(public) != str(text).removesuffix("="):
        raise ConfigError(
            f"{text!r} is no public identity key; expected the 43 characters that "
            "`flwr-vertical keygen` prints"
        )
    return public


def sign_greeting(private: Ed25519PrivateKey, name: str, payload: Mapping[str, bytes]) -> bytes:
    """Sign what a node says of itself."""
    return private.sign(_message(name, payload))


def verify_greeting(
    public: bytes, name: str, payload: Mapping[str, bytes], signature: bytes
) -> bool:
    """Return whether the owner of a public identity key signed this greeting."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes(public))
        key.verify(bytes(signature), _message(name, payload))
    except (ValueError, InvalidSignature):
        return False
    return True


def _message(name: str, payload: Mapping[str, bytes]) -> bytes:
    """Write the fields one after the other, each behind its length: no two greetings are alike."""
    fields = [_DOMAIN, name.encode()]
    for key in sorted(payload):
        fields += [key.encode(), bytes(payload[key])]
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)
