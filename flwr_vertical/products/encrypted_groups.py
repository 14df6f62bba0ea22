"""The party's half of products by group of rows from ciphertexts, without a shared seed.

========================  ========================================================================
round                     what travels
========================  ========================================================================
(product_keys, arbiter)   up: its public key
send_masked, 0 limbs      up: number of columns
encrypt_groups            down: the group of each row; up: each party's own moments, and its
                          columns, encrypted group by group
multiply_groups           down: the columns of the parties before, and the server's vectors,
                          encrypted; up: one ciphertext for each product of two columns
(open_blinded, arbiter)   products less what the server blinded them with
========================  ========================================================================

The rules on rows, levels and vectors are those of `private`. What ciphertexts show is in
`crypto.ckks_products`.
"""

import hashlib
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.products.column_products import Layout, blocks_by_group, rows_by_group
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.encoded import EncodedColumns
from flwr_vertical.products.key_checks import MODE, check_key, key_payload
from flwr_vertical.products.noisy_sums import ROOM, NoisySums, noise_on_products
from flwr_vertical.products.own_moments import own_moments
from flwr_vertical.products.told_rows import ToldRows
from flwr_vertical.protocol.messages import ARBITER

SIGNED_FOR = "product key"
_ADMITTED, _WITHHELD = "node.products.admitted", "node.products.withheld"
_WITHOUT = "aggregation='masked'"


class EncryptedGroupSteps(StepGroup):
    """Encrypts and multiplies columns by group of rows, under the rules of private products."""

    party: Party

    def __init__(self, party: Party, purpose: str, **rules: Any) -> None:
        super().__init__(party)
        self._purpose = purpose
        self._told = ToldRows(party, purpose, **rules)

    def _columns(self) -> HeldColumns:
        columns: HeldColumns = self.party.columns_to_multiply()  # type: ignore[attr-defined]
        return columns

    @step
    def encrypt_groups(
        self,
        group: Indices,
        n_groups: int,
        missing: Flags | None = None,
        n_vectors: int = 0,
        attempt: bytes = b"",
        commitment: bytes = b"",
        recognised: bytes = b"",
        public: bytes = b"",
        nonce: bytes = b"",
        identity: bytes = b"",
        signature: bytes = b"",
        names: list[str] | None = None,
        widths: list[int] | None = None,
        absent: Flags | None = None,
    ) -> dict[str, Any]:
        """Tell the own moments by group, and encrypt the own columns for the other parties.

        Message: group, n_groups, n_vectors, attempt, commitment: see
        `PrivateProductSteps.open_products`; missing (n_groups,): where the own block counts as
        missing; recognised: by what the privacy ledger shall recognise the vectors in another run:
        the server's word for it, as the party cannot compare ciphertexts; public, nonce, identity,
        signature: the arbiter's key, the run's number, and who vouches for the key; empty where no
        columns are wanted; names, widths: every party's name and number of columns, where there is
        to be noise on the sums; absent (n_groups, n_parties): likewise, where each party's block
        counts as missing; returns ``sums``, ``products``, ``withheld``, ``scale`` and, if there is
        any, ``noise`` as of `open_products`; with a key ``"<group>:<column>"``, a list of
        ciphertexts, where the column is not withheld.
        """
        held = self._columns()
        if names is None and held.noise is not None:
            raise ProtocolError(
                f"party {self.name!r}: products from ciphertexts are opened without noise, and "
                "this method has promised noise on all sums; use aggregation='masked' with two "
                "parties or more"
            )
        encoded = EncodedColumns(held, 1, self.name, int(self.state.get(ROOM, 0)))
        scale = encoded.scale
        group = np.asarray(group, dtype=np.int64)
        said = b"said " + recognised if recognised else b""
        withheld = self._told.admit(
            held,
            group,
            n_groups,
            missing,
            n_vectors,
            attempt,
            commitment,
            said,
            private=held.noise is not None,
        )
        self.state[_ADMITTED], self.state[_WITHHELD] = _digest(group), withheld
        layout = Layout(dict(zip(names or [self.name], widths or [len(scale)], strict=True)))
        noisy = NoisySums.of(self.party, encoded, layout, group, n_groups, absent, n_vectors)
        if noisy is None:
            own_sums = own_moments(held, group, withheld)
        else:
            noisy.release(repr((names, widths, commitment)).encode(), attempt)
            for start, stop, groups in blocks_by_group(group, n_groups):
                noisy.add(encoded.rows(start, stop), groups)
            own_sums = noisy.own_moments(withheld, scale)
            noisy.keep_plan()
        told: dict[str, Any] = {
            **own_sums,
            "withheld": withheld,
            "scale": np.where(withheld.all(axis=0), 1.0, scale),
        }
        if public:
            self._check(public, nonce, identity, signature)
            from flwr_vertical.crypto.ckks_products import encrypt_columns

            for g, own in enumerate(self._by_group(held, group, scale, withheld)):
                kept = np.flatnonzero(~withheld[g])
                if len(kept):
                    columns = encrypt_columns(public, own[:, kept], "x", self.name)
                    told |= {f"{g}:{j}": c for j, c in zip(kept, columns, strict=True)}
        return told

    @step
    def multiply_groups(
        self,
        group: Indices,
        public: bytes,
        nonce: bytes = b"",
        identity: bytes = b"",
        signature: bytes = b"",
        **columns: list[bytes],
    ) -> dict[str, Any]:
        """Multiply encrypted columns and vectors by the own columns, group by group.

        Message: group (n_samples,): as of `encrypt_groups`, which comes first; public, nonce,
        identity, signature: the key under which the columns are encrypted; the arbiter's, if there
        is a nonce; **columns: ``"<group>:<number>"``: columns of other parties and vectors of the
        server, encrypted; returns by group, what opens the products in C order: given columns by
        own columns that are not withheld.
        """
        group = np.asarray(group, dtype=np.int64)
        if self.state.get(_ADMITTED) != _digest(group):
            raise ProtocolError(
                f"party {self.name!r}: 'multiply_groups' comes after 'encrypt_groups', for the "
                "same groups of rows"
            )
        from flwr_vertical.crypto.ckks_products import add_noise, cross_products, product_unit

        if nonce:
            self._check(public, nonce, identity, signature)
        withheld: Flags = np.asarray(self.state[_WITHHELD], dtype=bool)
        held = self._columns()
        scale = EncodedColumns(held, 1, self.name, int(self.state.get(ROOM, 0))).scale
        out = {}
        for g, own in enumerate(self._by_group(held, group, scale, withheld)):
            count = sum(key.startswith(f"{g}:") for key in columns)
            kept = np.flatnonzero(~withheld[g])
            if count and len(kept):
                given = [columns[f"{g}:{i}"] for i in range(count)]
                found = cross_products(public, given, own[:, kept], "x", self.name)
                unit = product_unit(public, len(own))
                noise = noise_on_products(self.party, g, count, len(kept), unit)
                out[str(g)] = add_noise(public, found, noise)
        return out

    def _by_group(
        self, held: HeldColumns, group: Indices, scale: Array, withheld: Flags
    ) -> list[Array]:
        """Return the scaled columns of each group's rows; none where all are withheld."""
        own = group[held.rows]
        return [
            held.values[rows] / scale if not withheld[g].all() else np.zeros((0, len(scale)))
            for g, rows in enumerate(rows_by_group(own, len(withheld)))
        ]

    def _check(self, public: bytes, nonce: bytes, identity: bytes, signature: bytes) -> None:
        node, payload = self.party.identity(MODE), key_payload(SIGNED_FOR, public, nonce)
        about = {"sends": "encrypted columns", "without": _WITHOUT}
        check_key(node, ARBITER, payload, identity, signature, **about)


def _digest(group: Indices) -> bytes:
    return hashlib.sha256(group.tobytes()).digest()
