"""ChaCha20, X25519 and HKDF-SHA256 in plain Python, written from RFC 8439, RFC 7748 and RFC 5869.

Slow on purpose: nothing here shares a line with what it checks.
"""

import hashlib
import hmac

_MASK = 0xFFFFFFFF


def _quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for target, source, mixed, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[target] = (state[target] + state[source]) & _MASK
        word = state[mixed] ^ state[target]
        state[mixed] = ((word << shift) | (word >> (32 - shift))) & _MASK


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """Return one 64-byte block (RFC 8439, section 2.3): 32-byte key, 12-byte nonce."""
    words = [
        int.from_bytes(part[i : i + 4], "little")
        for part in (key, nonce)
        for i in range(0, len(part), 4)
    ]
    initial = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *words[:8], counter, *words[8:]]
    state = initial.copy()
    for _ in range(10):
        for column in range(4):
            _quarter_round(state, column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            _quarter_round(
                state,
                diagonal,
                4 + (diagonal + 1) % 4,
                8 + (diagonal + 2) % 4,
                12 + (diagonal + 3) % 4,
            )
    return b"".join(
        ((word + start) & _MASK).to_bytes(4, "little")
        for word, start in zip(state, initial, strict=True)
    )


def chacha20_stream(key: bytes, nonce: bytes, n_bytes: int) -> bytes:
    """Return the first `n_bytes` of the key stream, counting blocks from 0."""
    blocks = [chacha20_block(key, counter, nonce) for counter in range(-(-n_bytes // 64))]
    return b"".join(blocks)[:n_bytes]


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
