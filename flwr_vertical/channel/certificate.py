"""The certificate of a run's endpoint: made afresh, handed to the parties over Flower, pinned."""

import datetime
import ipaddress
import secrets
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# Parties get this very certificate through Flower, so its dates add nothing to trust: clocks that
# are an hour apart must not end a run, nor must a party that dials again on the third day (after
# which Flower would have lost the message that opened the channel).
BACK_DATED = datetime.timedelta(hours=1)
VALID_FOR = datetime.timedelta(days=3)


def make_certificate(
    hosts: Iterable[str], now: datetime.datetime | None = None
) -> tuple[bytes, bytes]:
    """Make a self-signed certificate on P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.datetime.now(datetime.UTC)
    # A name of its own for each run: OpenSSL tells certificates apart by it.
    title = f"flwr-vertical channel {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK_DATED)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
