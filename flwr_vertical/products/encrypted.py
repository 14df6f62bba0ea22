"""One party encrypts its columns, another one multiplies them by its own, an arbiter opens.

The products are exact (`crypto.ckks_products` has the numerics, and what hides the rest). The
encrypted columns pass through the server and must not come to the arbiter, who could open them. Its
key passes through the server, too (see `pair_keys`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.products.ciphertext import SIGNED_FOR
from flwr_vertical.products.columns import MultipliesColumns
from flwr_vertical.products.pair_keys import MODE, check_key, key_payload
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation


class EncryptedProductSteps(StepGroup):
    """What a party does to multiply; it has `columns_to_multiply`.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    without : str
        Which settings of the strategy do without, for errors.
    """

    party: MultipliesColumns

    def __init__(self, party: Party, without: str = "settings that need no arbiter") -> None:
        super().__init__(party)
        self._node = party.identity(MODE)
        self._without = without

    @step
    def encrypt_rows(
        self, public: bytes, nonce: bytes, identity: bytes = b"", signature: bytes = b""
    ) -> dict[str, Any]:
        """Encrypt the own columns under the arbiter's key.

        Parameters
        ----------
        public, nonce, identity, signature : bytes
            The arbiter's key, the run's number, and who vouches for the key.

        Returns
        -------
        dict[str, list of bytes]
            By number of the column.
        """
        from flwr_vertical.crypto.ckks_products import encrypt_columns

        self._check(public, nonce, identity, signature)
        columns = encrypt_columns(public, self.party.columns_to_multiply().filled, "x", self.name)
        return {str(j): blocks for j, blocks in enumerate(columns)}

    @step
    def multiply_rows(
        self,
        public: bytes,
        nonce: bytes,
        weight: Array,
        peers: list[str],
        identity: bytes = b"",
        signature: bytes = b"",
        **columns: list[bytes],
    ) -> dict[str, Any]:
        """Multiply other parties' encrypted columns by the own ones, weighted.

        Parameters
        ----------
        public, nonce, identity, signature : bytes
            As of `encrypt_rows`.
        weight : numpy.ndarray of shape (n_held,)
            Of the rows held; relative.
        peers : list of str
            Whose columns they are.
        **columns : list of bytes
            ``"<number of the peer>:<column>"``, as `encrypt_rows` made them.

        Returns
        -------
        dict[str, list of bytes]
            By number of the peer, the encrypted products in C order; for the arbiter.
        """
        from flwr_vertical.crypto.ckks_products import cross_products

        self._check(public, nonce, identity, signature)
        own = self.party.columns_to_multiply().weighted(weight).filled
        products = {}
        for k, _ in enumerate(peers):
            count = sum(key.startswith(f"{k}:") for key in columns)
            theirs = [columns[f"{k}:{j}"] for j in range(count)]
            products[str(k)] = cross_products(public, theirs, own, "x", self.name)
        return products

    def _check(self, public: bytes, nonce: bytes, identity: bytes, signature: bytes) -> None:
        payload = key_payload(SIGNED_FOR, public, nonce)
        check_key(
            self._node,
            ARBITER,
            payload,
            identity,
            signature,
            sends="encrypted columns",
            without=self._without,
        )


def encrypted_products(
    federation: Federation, weight: Mapping[str, Array], n_columns: Mapping[str, int]
) -> dict[tuple[int, int], Array]:
    """Have weighted products of different parties' columns made and opened; four rounds.

    The parties use `EncryptedProductSteps`, the arbiter `ProductKeySteps`.

    Parameters
    ----------
    federation : Federation
        Of the run.
    weight : Mapping[str, numpy.ndarray of shape (n_held,)]
        By party, of the rows that it holds, at least 0.
    n_columns : Mapping[str, int]
        By party, how many columns it multiplies.

    Returns
    -------
    dict of (j, k) with j < k to numpy.ndarray of shape (n_columns_j, n_columns_k)
        By the places of two parties in ``federation.parties``; empty if there is one party.
    """
    names = federation.parties
    if len(names) < 2:
        return {}
    nonce = federation.random_bytes(32)
    key = federation.call("product_keys", {"nonce": nonce}, parties=[ARBITER])[ARBITER]
    arguments = {"nonce": nonce, **key}
    encrypted = federation.call("encrypt_rows", arguments, parties=names[:-1])
    # Ciphertexts hold values of a limited size.
    scale = max(float(values.max(initial=0.0)) for values in weight.values())
    per_party: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names[1:], start=1):
        columns = {
            f"{j}:{column}": blocks
            for j, peer in enumerate(names[:k])
            for column, blocks in encrypted[peer].items()
        }
        per_party[name] = {"weight": weight[name] / scale, "peers": names[:k], **columns}
    products = federation.call("multiply_rows", arguments, per_party=per_party, parties=names[1:])
    pairs = [(j, k) for k in range(1, len(names)) for j in range(k)]
    sizes = [n_columns[name] for name in names]
    shapes = np.array([[sizes[j], sizes[k]] for j, k in pairs], dtype=np.int64)
    wanted = {str(i): products[names[k]][str(j)] for i, (j, k) in enumerate(pairs)}
    opened = federation.call("open_products", {"shapes": shapes, **wanted}, parties=[ARBITER])
    return {pair: opened[ARBITER][str(i)] * scale for i, pair in enumerate(pairs)}
