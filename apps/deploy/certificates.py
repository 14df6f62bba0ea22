"""Certificates and keys of a deployment: a CA, the SuperLink's certificate, SuperNodes' keys."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flwr_vertical.channel.endpoint import alternative_name

LOOPBACK = ("localhost", "127.0.0.1")

_SKEW = datetime.timedelta(hours=1)  # clocks of the nodes may be behind
_NO_USAGE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


@dataclass(frozen=True)
class ServerCertificate:
    """A server's certificate and what goes with it, all PEM."""

    ca: bytes  # Certificate of the CA, for everybody who dials the server
    certificate: bytes  # The server's own, signed by the CA
    key: bytes  # The server's private key


def make_server_certificate(names: Sequence[str] = LOOPBACK, days: int = 90) -> ServerCertificate:
    """Make a CA that signs one server certificate and is then forgotten.

    The CA's private key is not returned: whoever trusts the CA trusts this one server.
    """
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = _name("flwr-vertical trial CA")
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(names[0]), ca_name, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([*map(alternative_name, names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return ServerCertificate(
        ca.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def make_node_key() -> tuple[bytes, bytes]:
    """Return the private and public key by which a SuperNode authenticates itself.

    They are what ``ssh-keygen -t ecdsa -b 384`` writes: Flower reads OpenSSH's format only.
    """
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        public + b"\n",
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**(_NO_USAGE | dict.fromkeys(allowed, True)))
