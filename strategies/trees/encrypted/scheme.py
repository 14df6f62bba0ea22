"""Additively homomorphic encryption of gradients, by SecretFlow's HEU.

The scheme is Okamoto and Uchiyama's (1998), which adds and encrypts faster than Paillier's. A
row's two derivatives share a ciphertext: ``g 2^40 + h`` as whole numbers.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.errors import ProtocolError
from flwr_vertical.optional import require

KEY_BITS = 2048
G_BITS = 36
"""Fraction bits of first derivatives: sums over 2^26 rows fit into 63 bits."""

_H_BITS = 40  # more than any sum of second derivatives has
_WHAT = "products='encrypted'"


def _library() -> tuple[Any, Any]:
    """Return HEU's modules for arrays and for keys."""
    require("heu", _WHAT)
    return require("heu.numpy", _WHAT), require("heu.phe", _WHAT)


class Server:
    """Who has the gradients: makes keys, encrypts, decrypts sums."""

    def __init__(self) -> None:
        self._arrays, phe = _library()
        self._kit = self._arrays.setup(phe.SchemaType.OU, KEY_BITS)

    @property
    def public(self) -> bytes:
        """The public key."""
        return bytes(self._kit.public_key().serialize())

    def encrypt(self, g: Integers, h: Integers) -> bytes:
        """Return ciphertexts of rows.

        Shapes: g, h (n_rows,): sums of h must stay below 2^40.
        """
        packed = (g.astype(object) << _H_BITS) + h.astype(object)
        encoder = self._kit.bigint_encoder()
        plain = self._arrays.array(packed.reshape(-1, 1), encoder)
        return bytes(self._kit.encryptor().encrypt(plain).serialize())

    def decrypt(self, content: bytes, count: int) -> tuple[Integers, Integers]:
        """Return sums of g and of h, shape (count,) each."""
        if not count:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        found = _read(self._arrays, content, count)
        sums = self._kit.decryptor().decrypt(found).to_numpy(self._kit.bigint_encoder()).ravel()
        values = np.array([int(value) for value in sums], dtype=object)
        return (values >> _H_BITS).astype(np.int64), (values & ((1 << _H_BITS) - 1)).astype(
            np.int64
        )


class Adder:
    """Who has the columns: adds ciphertexts up, and knows neither terms nor sums."""

    def __init__(self, public: bytes, content: bytes, count: int) -> None:
        self._arrays, phe = _library()
        self._kit = self._arrays.setup(phe.PublicKey.load_from(public))
        self._rows = _read(self._arrays, content, count)

    def bin_sums(
        self, codes: npt.NDArray[np.int8], nodes: list[npt.NDArray[np.int8]], wanted: Flags
    ) -> list[bytes]:
        """Return, for each node, sums over the rows of its bins.

        The product of ciphertexts is that of their random numbers, too, which the server drew: it
        could tell which rows are in a sum. So fresh ciphertexts of 0 are added.

        Shapes: codes (n_rows, n_columns); nodes (n_rows,): 1 where a row is in the node; wanted
        (n_nodes, n_columns, n_codes): which sums are returned, in this order.
        """
        evaluator, encryptor = self._kit.evaluator(), self._kit.encryptor()
        made = evaluator.batch_feature_wise_bucket_sum(
            self._rows, nodes, np.ascontiguousarray(codes), wanted.shape[2], False
        )
        out = []
        for sums, chosen in zip(made, wanted.reshape(len(wanted), -1), strict=True):
            places = np.flatnonzero(chosen).tolist()
            if not places:
                out.append(b"")
                continue
            zeros = np.zeros((len(places), 1), dtype=object)
            fresh = encryptor.encrypt(self._arrays.array(zeros, self._kit.bigint_encoder()))
            out.append(bytes(evaluator.add(sums[places], fresh).serialize()))
        return out


def _read(arrays: Any, content: bytes, count: int) -> Any:
    """Return so many ciphertexts."""
    try:
        found = arrays.CiphertextArray.load_from(content)
    except RuntimeError as error:  # the library's own is one
        raise ProtocolError(
            f"{len(content)} bytes that came as ciphertexts are none; do all nodes run the same "
            "version of the strategy?"
        ) from error
    if found.size != count:
        raise ProtocolError(f"expected {count} ciphertexts, got {found.size}")
    return found
