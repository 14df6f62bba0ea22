"""What a party does where products of different parties' columns are wanted.

Two ways lead to them, and neither shows a row: sketches by a seed that two parties share and the
server does not have, and ciphertexts under the key of the arbiter. The keys of both pass through
the server; where identities are pinned, they come with their owner's signature.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Arbiter, step
from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol import pins
from flwr_vertical.protocol.opening import ARBITER
from strategies.least_squares.party import LeastSquaresParty
from strategies.regression.design import Array
from strategies.regression.pairs import PairKeyParty, key_payload
from strategies.vfem.sketches import rank_scores, sketch

# Under a prefix that the server may not write to (`pins.check_updates`).
_SECRET = "node.products.secret-key"


class CrossProductParty(PairKeyParty, LeastSquaresParty):
    """A party that takes part in products across parties."""

    without_pairs = "check_correlation=False and standard_errors='expected'"

    def centred_rows(self) -> Array:
        """Rows held less their mean under the model, shape (n_observed, n_columns)."""
        raise ProtocolError(f"{type(self).__name__} has no rows to multiply")

    # -- sketches --------------------------------------------------------------------------

    @step
    def sketch_ranks(
        self,
        nonce: bytes,
        names: list[str],
        publics: list[bytes],
        identities: list[bytes],
        signatures: list[bytes],
        size: int,
    ) -> dict[str, Any]:
        """Sketch the rank scores of the own columns, once for each other party.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        names, publics, identities, signatures : list
            Every party's name, public key, and who vouches for it.
        size : int
            Rows of a sketch.

        Returns
        -------
        dict[str, numpy.ndarray of shape (size, n_columns)]
            By the other party's name. For the server only: the peer could solve for the rows.
        """
        self.keep_keys(nonce, names, publics, identities, signatures)
        scores = rank_scores(self.x)
        return self._sketches(scores, nonce, "vfem rank check", size)

    @step
    def sketch_rows(self, nonce: bytes, weight: Array, size: int) -> dict[str, Any]:
        """Sketch the centred rows, each times the root of its weight.

        Parameters
        ----------
        nonce : bytes
            Of this run.
        weight : numpy.ndarray of shape (n_observed,)
            ``1 / d_i`` of the rows held.
        size : int
            Rows of a sketch.
        """
        rows = self.centred_rows() * np.sqrt(weight)[:, None]
        return self._sketches(rows, nonce, "vfem information", size)

    def _sketches(self, rows: Array, nonce: bytes, purpose: str, size: int) -> dict[str, Array]:
        return {
            name: sketch(rows, self.rows, self.n_labelled, seed, size)
            for name, seed in self.pair_seeds(nonce, purpose).items()
        }

    # -- ciphertexts -----------------------------------------------------------------------

    @step
    def encrypt_rows(
        self, public: bytes, nonce: bytes, identity: bytes = b"", signature: bytes = b""
    ) -> dict[str, Any]:
        """Encrypt the centred rows under the arbiter's key, column by column.

        Returns
        -------
        dict[str, list of bytes]
            By number of the column.
        """
        from flwr_vertical.crypto.ckks_products import encrypt_columns

        self._keep_product_key(public, nonce, identity, signature)
        columns = encrypt_columns(public, self._filled(self.centred_rows()), "x", self.name)
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
        public, nonce, identity, signature
            The arbiter's key, and who vouches for it.
        weight : numpy.ndarray of shape (n_observed,)
            Of the rows held; relative.
        peers : list of str
            Whose columns they are, for errors.
        **columns : list of bytes
            ``"<number of the peer>:<column>"``, as `encrypt_rows` made them.

        Returns
        -------
        dict[str, list of bytes]
            By number of the peer, the encrypted products in C order; for the arbiter.
        """
        from flwr_vertical.crypto.ckks_products import cross_products

        self._keep_product_key(public, nonce, identity, signature)
        own = self._filled(self.centred_rows() * weight[:, None])
        products = {}
        for k, _ in enumerate(peers):
            count = sum(key.startswith(f"{k}:") for key in columns)
            theirs = [columns[f"{k}:{j}"] for j in range(count)]
            products[str(k)] = cross_products(public, theirs, own, "x", self.name)
        return products

    def _filled(self, rows: Array) -> Array:
        filled = np.zeros((self.n_labelled, rows.shape[1]))
        filled[self.rows] = rows
        return filled

    def _keep_product_key(
        self, public: bytes, nonce: bytes, identity: bytes, signature: bytes
    ) -> None:
        node = self._as_pinned
        pinned = pins.read_pins(node, None)
        self.refuse_unpinned(pinned, ARBITER, "encrypted columns")
        payload = key_payload("products", public, nonce)
        pins.check_endorsement(node, pinned, ARBITER, payload, identity, signature)


class VFEMArbiter(Arbiter):
    """Opens products of different parties' columns."""

    @step
    def product_keys(self, nonce: bytes) -> dict[str, Any]:
        """Make the keys of this run; the secret one stays here."""
        from flwr_vertical.crypto.ckks_products import generate_product_keys

        keys = generate_product_keys()
        self.state[_SECRET] = keys.secret
        node = pins.Node("arbiter", "arbiter", "products", 0, self.host.node_config)
        return {
            "public": keys.public,
            **pins.endorse(node, key_payload("products", keys.public, nonce)),
        }

    @step
    def open_products(
        self, shapes: npt.NDArray[np.int64], **products: list[bytes]
    ) -> dict[str, Any]:
        """Open products and release them.

        Parameters
        ----------
        shapes : numpy.ndarray of shape (n_products, 2)
            Of each matrix.
        **products : list of bytes
            By number, what `CrossProductParty.multiply_rows` returned.

        Returns
        -------
        dict[str, numpy.ndarray]
            The matrices, by number.
        """
        from flwr_vertical.crypto.ckks_products import open_products

        if _SECRET not in self.state:
            raise ProtocolError("the arbiter has no key for products: 'product_keys' comes first")
        opened = {}
        for k, (rows, columns) in enumerate(shapes.tolist()):
            opened[str(k)] = open_products(
                self.state[_SECRET], products[str(k)], (int(rows), int(columns))
            )
        return opened
