"""RSA keys for blind signatures: made by one party, checked by the other before it uses them."""

import hashlib
import math
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import rsa

from flwr_vertical.crypto._numbers import id_hasher, inverse, power, power_secret
from flwr_vertical.errors import ConfigError, ProtocolError, VerticalError

EXPONENT = 65537
MIN_BITS, MAX_BITS = 2048, 16384

_PROOF_DOMAIN = b"fv-rsa-proof-v1"
# Each root of a random number convinces by chance but once in 65537 times.
_N_PROOFS = 8


@dataclass(frozen=True)
class RsaPublic:
    """A checked RSA public key, with exponent 65537; from `load_public`."""

    n: int  # The modulus

    @property
    def width(self) -> int:
        """Bytes of a number modulo n."""
        return (self.n.bit_length() + 7) // 8


@dataclass(frozen=True)
class RsaKey:
    """An RSA signing key with exponent 65537; use `generate`."""

    p: int = field(repr=False)  # The **secret** prime factors of the modulus
    q: int = field(repr=False)  # The **secret** prime factors of the modulus
    # The inverses of the exponent modulo p - 1 and q - 1, and that of q modulo p.
    _dp: int = field(init=False, repr=False, compare=False)
    _dq: int = field(init=False, repr=False, compare=False)
    _q_inverse: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A frozen class sets its own fields only so.
        object.__setattr__(self, "_dp", inverse(EXPONENT, self.p - 1))
        object.__setattr__(self, "_dq", inverse(EXPONENT, self.q - 1))
        object.__setattr__(self, "_q_inverse", inverse(self.q, self.p))

    @classmethod
    def generate(cls, bits: int = 3072) -> "RsaKey":
        """Return a fresh key, new for each run; 3072 bits are 128 bits of security."""
        if not MIN_BITS <= bits <= MAX_BITS or bits % 16:
            raise ConfigError(
                f"an RSA key has {MIN_BITS} to {MAX_BITS} bits, a multiple of 16, got bits={bits}"
            )
        numbers = rsa.generate_private_key(EXPONENT, bits).private_numbers()
        return cls(numbers.p, numbers.q)

    @classmethod
    def from_bytes(cls, data: bytes) -> "RsaKey":
        """Return the key that `to_bytes` wrote."""
        half = len(data) // 2
        return cls(int.from_bytes(data[:half], "big"), int.from_bytes(data[half:], "big"))

    def to_bytes(self) -> bytes:
        """Return the **secret** key as bytes, for a party that is rebuilt between its steps."""
        width = (max(self.p, self.q).bit_length() + 7) // 8
        return self.p.to_bytes(width, "big") + self.q.to_bytes(width, "big")

    @property
    def n(self) -> int:
        """The modulus."""
        return self.p * self.q

    @property
    def public(self) -> bytes:
        """What the other party gets (`load_public`): the exponent, n, and the proof, as bytes.

        The proof shows that x^65537 permutes the numbers modulo n: 65537th roots of 8 hashes of n
        (Goldberg, Reyzin, Sagga and Baldimtsi, ASIACRYPT 2019). Were 65537 to divide p - 1, each
        blinded hash would show its class modulo 65537th powers, 16 bits of the hash.
        """
        width = RsaPublic(self.n).width
        roots = (self.sign(number) for number in _proof_numbers(self.n))
        return b"".join(
            number.to_bytes(size, "big")
            for number, size in [(EXPONENT, 4), (self.n, width), *((r, width) for r in roots)]
        )

    def sign(self, number: int) -> int:
        """Return the 65537th root of `number` modulo n, checked."""
        by_p = power_secret(number % self.p, self._dp, self.p)
        by_q = power_secret(number % self.q, self._dq, self.q)
        root = by_q + (by_p - by_q) * self._q_inverse % self.p * self.q
        if power(root, EXPONENT, self.n) != number:
            raise VerticalError(
                "an RSA signature came out wrong, so the key was damaged or the machine's memory "
                "or processor is faulty; nothing was sent; run again with a new key"
            )
        return root


def load_public(data: bytes, sender: str) -> RsaPublic:
    """Return the other party's key, from the bytes of `RsaKey.public`."""

    def refuse(why: str) -> ProtocolError:
        return ProtocolError(
            f"the RSA key of party {sender!r} {why}: it runs another version, or cheats"
        )

    width, rest = divmod(len(data) - 4, 1 + _N_PROOFS)
    if width < 1 or rest:
        raise refuse(f"has {len(data)} bytes, which are not an exponent, a modulus and its proof")
    if int.from_bytes(data[:4], "big") != EXPONENT:
        raise refuse(f"has exponent {int.from_bytes(data[:4], 'big')} instead of {EXPONENT}")
    n, *roots = (
        int.from_bytes(data[start : start + width], "big") for start in range(4, len(data), width)
    )
    public = RsaPublic(n)
    if not MIN_BITS <= n.bit_length() <= MAX_BITS or public.width != width:
        raise refuse(f"has {n.bit_length()} bits, not {MIN_BITS} to {MAX_BITS}")
    if n % 2 == 0:
        raise refuse("is even")
    for root, number in zip(roots, _proof_numbers(n), strict=True):
        if math.gcd(number, n) != 1 or power(root, EXPONENT, n) != number:
            raise refuse("comes without the proof that its exponent fits it")
    return public


def full_domain(seed: bytes, n: int) -> int:
    """Stretch 64 bytes of hash to a number modulo n, biased by no more than 2^-128.

    SHAKE-256 (FIPS 202) of the seed, 128 bits longer than n, reduced modulo n.
    """
    size = RsaPublic(n).width + 16
    return int.from_bytes(hashlib.shake_256(seed).digest(size), "big") % n


def _proof_numbers(n: int) -> list[int]:
    hasher = id_hasher(_PROOF_DOMAIN, n.to_bytes(RsaPublic(n).width, "big"), None, 64)
    return [full_domain(hasher(bytes([index])), n) for index in range(_N_PROOFS)]
