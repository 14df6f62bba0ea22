"""X25519 and HKDF-SHA256 in plain Python, written from RFC 7748 and RFC 5869.

Slow on purpose: nothing here shares a line with what it checks.
"""

import hashlib
import hmac


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Return `length` bytes of key (RFC 5869, section 2)."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    block, output, index = b"", b"", 1
    while len(output) < length:
        block = hmac.new(extracted, block + info + bytes([index]), hashlib.sha256).digest()
        output, index = output + block, index + 1
    return output[:length]


def x25519(scalar: bytes, point: bytes) -> bytes:
    """Return the scalar multiple of a point (RFC 7748, section 5)."""
    p = 2**255 - 19
    k = int.from_bytes(scalar, "little") & ((1 << 254) - 8) | (1 << 254)
    x1 = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in range(254, -1, -1):
        if (k >> bit) & 1:
            x2, z2, x3, z3 = _ladder_step(x1, x3, z3, x2, z2, p, swapped=True)
        else:
            x2, z2, x3, z3 = _ladder_step(x1, x2, z2, x3, z3, p, swapped=False)
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def _ladder_step(
    x1: int, x2: int, z2: int, x3: int, z3: int, p: int, *, swapped: bool
) -> tuple[int, int, int, int]:
    a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
    aa, bb, da, cb = a * a % p, b * b % p, d * a % p, c * b % p
    e = aa - bb
    sum_x, sum_z = pow(da + cb, 2, p), x1 * pow(da - cb, 2, p) % p
    double_x, double_z = aa * bb % p, e * (aa + 121665 * e) % p
    if swapped:
        return sum_x, sum_z, double_x, double_z
    return double_x, double_z, sum_x, sum_z
