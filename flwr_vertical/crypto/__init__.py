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
