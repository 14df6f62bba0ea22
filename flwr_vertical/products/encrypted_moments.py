"""The server's half of products by group of rows from ciphertexts: with an arbiter, or one party.

With an arbiter, columns and vectors are encrypted under its key; what it opens the server has
blinded with a uniform number each, so it learns how many rows and products there are. With one
party alone, no other one can help: the server encrypts its vectors under a key of its own, the
party multiplies them, and hands back what opens the sums alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import ConfigError
from flwr_vertical.products.column_products import rows_by_group
from flwr_vertical.products.commitment import Commitment, checked_vectors
from flwr_vertical.products.moments import Moments, assemble, checked_groups, largest_minimum
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation

_ATTEMPT_BYTES = 16


@dataclass
class EncryptedProducts:
    """As `PrivateProducts`, from ciphertexts; products err by some 1e-8 of the columns' lengths.

    The parties use `PrivateProductSteps`, an arbiter `ProductKeySteps`.

    Parameters
    ----------
    federation : Federation
        Of the run: ``ckks`` with an arbiter, or one party alone, whatever the mode.
    room, vector_unit
        As of `PrivateProducts`.
    noisy : bool, default False
        Whether parties add noise. A product of two parties' columns has that of the later one
        alone; with differential privacy the server adds as much, which hides it from that party.

    Attributes
    ----------
    commitment : Commitment
        See `PrivateProducts`.
    """

    federation: Federation
    room: int = 0
    vector_unit: float | None = None
    noisy: bool = False
    commitment: Commitment = field(init=False)
    _key: dict[str, Any] = field(default_factory=dict)
    _secret: bytes = field(default=b"", repr=False)
    _minima: dict[str, int] = field(default_factory=dict)
    _widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.federation.aggregation != "ckks" and len(self.federation.parties) > 1:
            raise ConfigError(
                "encrypted products of several parties need an arbiter, in aggregation 'ckks'; "
                f"with {self.federation.aggregation!r}, `PrivateProducts` need none"
            )
        self.commitment = Commitment(self.federation)

    @property
    def _has_arbiter(self) -> bool:
        return self.federation.aggregation == "ckks"

    def send(self, vectors: Array | None = None) -> dict[str, dict[str, Any]]:
        """Have the keys made and ask each party for its number of columns; two rounds, or one.

        Parameters and result as of `PrivateProducts.send`.
        """
        if self._has_arbiter:
            nonce = self.federation.random_bytes(32)
            told = self.federation.call("product_keys", {"nonce": nonce}, parties=[ARBITER])
            self._key = {"nonce": nonce, **told[ARBITER]}
        else:
            # A resumed run goes on under the key that it had.
            made = self.federation.keep("product keys", _make_keys)
            self._key, self._secret = {"public": made["public"]}, made["secret"]
        arguments: dict[str, Any] = {"limbs": 0, "owner": "", "sealed": b""}
        if self.room:
            arguments["room"] = self.room
        if vectors is not None:
            arguments["commitment"] = self.commitment.of(vectors)
        replies = self.federation.call("send_masked", arguments)
        self._widths = [int(replies[name]["n_columns"]) for name in self.federation.parties]
        self._minima = {n: int(r["min_rows"]) for n, r in replies.items() if "min_rows" in r}
        return replies

    def min_rows(self, n_columns: int, n_vectors: int) -> int:
        """Return the fewest rows of a group that every party tells of, as `PrivateProducts`."""
        return largest_minimum(self.federation.parties, self._minima, n_columns, n_vectors)

    def moments(
        self,
        group: Indices,
        n_groups: int,
        vectors: Array | None = None,
        missing: Flags | None = None,
    ) -> Moments:
        """Open sums over groups of rows; three rounds, one fewer if one party is alone.

        Parameters, result and errors as of `PrivateProducts.moments`.
        """
        if not self._key:
            raise ConfigError("the parties' columns have not been sent: call `send` first")
        group, names = checked_groups(group, n_groups), self.federation.parties
        common: dict[str, Any] = {"group": group, "n_groups": n_groups}
        unit = np.zeros(0)
        if vectors is not None:
            vectors = checked_vectors(vectors, len(group))
            unit = np.sqrt(np.mean(np.sort(vectors**2, axis=0), axis=0))
            if self.vector_unit is not None:
                unit = np.full(len(unit), self.vector_unit)
            unit[unit == 0.0] = 1.0
            common |= {
                "n_vectors": len(unit),
                "attempt": self.federation.random_bytes(_ATTEMPT_BYTES),
                "commitment": self.commitment.of(vectors),
            }
            if self.vector_unit is None and (mark := self._mark(vectors)):
                common["recognised"] = mark
            vectors = vectors / unit
        if self.noisy:
            common |= {"names": names, "widths": self._widths}
            if missing is not None:
                common["absent"] = np.asarray(missing, dtype=bool)
        own: dict[str, dict[str, Any]] = {name: {} for name in names}
        for k, name in enumerate(names):
            if missing is not None:
                own[name]["missing"] = np.asarray(missing, dtype=bool)[:, k]
            if k < len(names) - 1:  # the last one's columns nobody multiplies
                own[name] |= self._key
        told = self.federation.call("encrypt_groups", common, per_party=own)
        rows = rows_by_group(group, n_groups)
        products, with_vectors = self._multiplied(told, group, rows, vectors)
        scaled = {name: block * unit for name, block in with_vectors.items()}
        return Moments(**assemble(told, names, products, scaled, len(unit), unit))

    def close(self) -> None:
        """Have the arbiter forget its key; one round if there is one."""
        if self._has_arbiter and self._key:
            self.federation.call("forget_product_key", parties=[ARBITER])
        self._key, self._secret = {}, b""

    def _mark(self, vectors: Array) -> bytes:
        """Return what the parties recognise the vectors by, over runs; b"" without a secret.

        Of ciphertexts they have the server's word alone.
        """
        order = np.lexsort(vectors.T)
        content = np.ascontiguousarray(vectors[order], dtype="<f8").tobytes()
        return self.federation.label_memory.mark("labels in ciphertexts", content)

    def _multiplied(
        self,
        told: Mapping[str, Mapping[str, Any]],
        group: Indices,
        rows: list[Indices],
        vectors: Array | None,
    ) -> tuple[dict[tuple[str, str], Array], dict[str, Array]]:
        """Have columns and vectors multiplied, and open the products, of scaled columns."""
        names = self.federation.parties
        encrypted = self._encrypted(rows, vectors)
        n_vectors = 0 if vectors is None else vectors.shape[1]
        withheld = {name: np.asarray(told[name]["withheld"], dtype=bool) for name in names}
        given: dict[str, dict[str, Any]] = {}
        for k, name in enumerate(names):
            given[name] = {}
            for g in range(len(rows)):
                lists = [
                    told[peer][f"{g}:{j}"]
                    for peer in names[:k]
                    for j in np.flatnonzero(~withheld[peer][g])
                ]
                for i, blocks in enumerate(lists + encrypted[g]):
                    given[name][f"{g}:{i}"] = blocks
        # The key of one party alone is the server's own: there is no arbiter to vouch for it.
        common = {"group": group, **self._key}
        asked = [name for name in names if given[name]]
        replies: dict[str, Any] = {}
        if asked:
            replies = self.federation.call(
                "multiply_groups", common, per_party=given, parties=asked
            )
        sent = [
            (name, g, message, len(rows[g]))
            for name in asked
            for g in range(len(rows))
            for message in replies[name].get(str(g), [])
        ]
        opened = iter(self._opened([m for _, _, m, _ in sent], [n for *_, n in sent]))
        products = {
            (a, b): np.zeros((len(rows), withheld[a].shape[1], withheld[b].shape[1]))
            for k, a in enumerate(names)
            for b in names[:k]
        }
        by_vector = {
            name: np.zeros((len(rows), withheld[name].shape[1], n_vectors)) for name in names
        }
        for k, name in enumerate(names):
            for g in range(len(rows)):
                kept = np.flatnonzero(~withheld[name][g])
                if name not in asked or str(g) not in replies[name]:
                    continue
                for peer in names[:k]:
                    for j in np.flatnonzero(~withheld[peer][g]):
                        products[name, peer][g, kept, j] = [next(opened) for _ in kept]
                for t in range(n_vectors):
                    by_vector[name][g, kept, t] = [next(opened) for _ in kept]
        return products, by_vector

    def _encrypted(self, rows: list[Indices], vectors: Array | None) -> list[list[list[bytes]]]:
        """Encrypt the vectors, group by group."""
        if vectors is None:
            return [[] for _ in rows]
        from flwr_vertical.crypto.ckks_products import encrypt_columns

        def encrypt() -> dict[str, list[bytes]]:
            return {
                f"{g}:{t}": blocks
                for g, r in enumerate(rows)
                if len(r)
                for t, blocks in enumerate(
                    encrypt_columns(self._key["public"], vectors[r], "vectors", "the server")
                )
            }

        # Encryption is random, and a resumed run must send what it sent before.
        made = self.federation.keep("encrypted vectors", encrypt)
        return [
            [made[f"{g}:{t}"] for t in range(vectors.shape[1])] if len(r) else []
            for g, r in enumerate(rows)
        ]

    def _opened(self, products: list[bytes], n_rows: list[int]) -> list[float]:
        if not products:
            return []
        from flwr_vertical.crypto.ckks_products import blind, open_products, unblind

        if not self._has_arbiter:
            return [*open_products(self._secret, products, (len(products), 1))[:, 0]]
        seed = self.federation.random_bytes(SEED_BYTES)
        words = stream(seed, "blinds", (len(products), 2)).tolist()
        blinds = [(high << 64) + low for high, low in words]
        blinded, pads = blind(self._key["public"], products, blinds)
        reply = self.federation.call("open_blinded", {"products": blinded}, parties=[ARBITER])
        values = np.asarray(reply[ARBITER]["opened"])
        left: list[float] = unblind(self._key["public"], values, pads, n_rows).tolist()
        return left


def _make_keys() -> dict[str, Any]:
    from flwr_vertical.crypto.ckks_products import generate_product_keys

    keys = generate_product_keys()
    return {"public": keys.public, "secret": keys.secret}
