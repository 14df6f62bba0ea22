"""Arithmetic and cryptography of private sums and alignment: bytes, keys and arrays, nothing else.

A party's term of a sum over parties travels in one of three ways.

* plain: as it is.
* masked: encoded in a ring (`FixedPoint`, `encode_integers`), hidden by `PairwiseMasker`, added
  with `unmask_sum`. To half a `FixedPoint.resolution` per party, and exact for integers.
* ckks: encrypted with `CkksEncryptor` under the key of an arbiter, added with `add_ciphertexts`,
  opened with `CkksDecryptor`. To about 1e-8, and 3e-8 more for rounding on release.

Sample IDs are aligned without showing them in one of three ways, each a module of functions.

* `commutative`: any number of parties blind each other's hashed IDs on X25519.
* `batched_oprf`, on top of `base_ot`: one of two parties evaluates a pseudorandom function under
  keys of the other one.
* `blind_rsa`: one of two parties signs the hashed IDs of the other one blindly.

Nothing here sends, stores or names a message; the protocol does.
"""

from flwr_vertical.crypto import blind_rsa, commutative
from flwr_vertical.crypto.ckks import (
    RELEASE_BITS,
    CkksDecryptor,
    CkksEncryptor,
    add_ciphertexts,
    iter_add_ciphertexts,
    value_limit,
)
from flwr_vertical.crypto.ckks_context import SLOTS, VALUE_LIMIT, CkksKeys, generate_keys
from flwr_vertical.crypto.fixed_point import (
    DEFAULT_SCALE,
    FixedPoint,
    check_scale,
    decode_integers,
    encode_integers,
)
from flwr_vertical.crypto.masks import PairwiseMasker, generate_keypair, unmask_sum

__all__ = [
    "DEFAULT_SCALE",
    "RELEASE_BITS",
    "SLOTS",
    "VALUE_LIMIT",
    "CkksDecryptor",
    "CkksEncryptor",
    "CkksKeys",
    "FixedPoint",
    "PairwiseMasker",
    "add_ciphertexts",
    "blind_rsa",
    "check_scale",
    "commutative",
    "decode_integers",
    "encode_integers",
    "generate_keypair",
    "generate_keys",
    "iter_add_ciphertexts",
    "unmask_sum",
    "value_limit",
]
