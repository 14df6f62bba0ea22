"""AES and its counter mode in plain Python, written from FIPS 197 and NIST SP 800-38A.

Slow on purpose: nothing here shares a line with what it checks.
"""


def _times(a: int, b: int) -> int:
    """Multiply in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1 (FIPS 197, section 4.2)."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11B
        b >>= 1
    return product


def _substitute(byte: int) -> int:
    """Return the S-box value (section 5.1.1): the inverse, then an affine map."""
    inverse = next((b for b in range(256) if _times(byte, b) == 1), 0)
    value = 0
    for bit in range(8):
        sources = (bit, bit + 4, bit + 5, bit + 6, bit + 7)
        value |= (sum(inverse >> (s % 8) for s in sources) & 1) << bit
    return value ^ 0x63


_S_BOX = [_substitute(byte) for byte in range(256)]


def _round_keys(key: bytes) -> list[list[int]]:
    """Expand the key (section 5.2) to one list of 16 bytes per round and one more."""
    n_words = len(key) // 4
    words = [list(key[i : i + 4]) for i in range(0, len(key), 4)]
    constant = 1
    for i in range(n_words, 4 * (n_words + 7)):
        word = words[-1]
        if i % n_words == 0:
            word = [_S_BOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times(constant, 2)
        elif n_words > 6 and i % n_words == 4:
            word = [_S_BOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[-n_words], word, strict=True)])
    return [[b for w in words[i : i + 4] for b in w] for i in range(0, len(words), 4)]


def aes_block(key: bytes, block: bytes) -> bytes:
    """Encrypt one block of 16 bytes (section 5.1); key of 16, 24 or 32 bytes."""
    keys = _round_keys(key)
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for number, own in enumerate(keys[1:], start=1):
        state = [_S_BOX[byte] for byte in state]
        # Byte r of column c lies at 4 c + r; row r moves r columns to the left.
        state = [state[(4 * (c + r) + r) % 16] for c in range(4) for r in range(4)]
        if number < len(keys) - 1:
            mixed = []
            for c in range(0, 16, 4):
                for r in range(4):
                    a, b, d, e = (state[c + (r + k) % 4] for k in range(4))
                    mixed.append(_times(a, 2) ^ _times(b, 3) ^ d ^ e)
            state = mixed
        state = [a ^ b for a, b in zip(state, own, strict=True)]
    return bytes(state)


def aes_ctr_stream(key: bytes, counter: bytes, n_bytes: int) -> bytes:
    """Return the first `n_bytes` of the key stream (SP 800-38A, section 6.5)."""
    first = int.from_bytes(counter, "big")
    blocks = [
        aes_block(key, ((first + i) % 2**128).to_bytes(16, "big")) for i in range(-(-n_bytes // 16))
    ]
    return b"".join(blocks)[:n_bytes]
