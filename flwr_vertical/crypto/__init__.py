"""Arithmetic and cryptography of the private sum: bytes, keys and arrays, nothing else.

A party's term of a sum over parties travels in one of three ways.

* plain: as it is.
* masked: encoded in a ring (`FixedPoint`, `encode_integers`), hidden by `PairwiseMasker`, added
  with `unmask_sum`. To half a `FixedPoint.resolution` per party, and exact for integers.
* ckks: encrypted with `CkksEncryptor` under the key of an arbiter, added with `add_ciphertexts`,
  opened with `CkksDecryptor`. To about 1e-8, and 3e-8 more for rounding on release.

Nothing here sends, stores or names a message; the protocol does.
"""

from flwr_vertical.crypto.ckks import (
    CkksDecryptor,
    CkksEncryptor,
    add_ciphertexts,
    iter_add_ciphertexts,
    value_limit,
)
from flwr_vertical.crypto.ckks_context import SLOTS, VALUE_LIMIT, CkksKeys, generate_keys
from flwr_vertical.crypto.fixed_point import FixedPoint, decode_integers, encode_integers
from flwr_vertical.crypto.masks import PairwiseMasker, generate_keypair, unmask_sum

__all__ = [
    "SLOTS",
    "VALUE_LIMIT",
    "CkksDecryptor",
    "CkksEncryptor",
    "CkksKeys",
    "FixedPoint",
    "PairwiseMasker",
    "add_ciphertexts",
    "decode_integers",
    "encode_integers",
    "generate_keypair",
    "generate_keys",
    "iter_add_ciphertexts",
    "unmask_sum",
    "value_limit",
]
