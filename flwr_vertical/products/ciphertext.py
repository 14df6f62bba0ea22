"""Products by group of rows from ciphertexts: with an arbiter, or of one party alone.

========================  ========================================================================
round                     what travels
========================  ========================================================================
(product_keys, arbiter)   up: its public key
count_columns             up: number of columns
encrypt_groups            down: the group of each row; up: each party's own moments, and its
                          columns, encrypted group by group
multiply_groups           down: the columns of the parties before, and the server's vectors,
                          encrypted; up: one ciphertext for each product of two columns
(open_blinded, arbiter)   products less what the server blinded them with
========================  ========================================================================

The rules on rows, levels and vectors are those of `masked`. What ciphertexts show is in
`crypto.ckks_products`.

With an arbiter, columns and vectors are encrypted under its key; what it opens the server has
blinded with a uniform number each, so it learns how many rows and products there are. With one
party alone, no other one can help: the server encrypts its vectors under a key of its own, the
party multiplies them, and hands back what opens the sums alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.node import Party, StepGroup, step
from flwr_vertical.products.arbiter import SIGNED_FOR
from flwr_vertical.products.arithmetic import Layout, blocks_by_group, own_place, rows_by_group
from flwr_vertical.products.columns import EncodedColumns, HeldColumns, own_moments
from flwr_vertical.products.labels import Commitment, checked_vectors
from flwr_vertical.products.moments import Moments, assemble, checked_groups, largest_minimum
from flwr_vertical.products.noise import MOST_ROOM
from flwr_vertical.products.noisy_sums import ROOM, NoisySums, fix_room, noise_on_products
from flwr_vertical.products.pair_keys import MODE, Widths, check_key, key_payload
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.products.told_rows import COMMITMENT_BYTES, ToldRows
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within
from flwr_vertical.protocol.declaration import ARBITER as THE_ARBITER
from flwr_vertical.protocol.declaration import EPSILON, FACTS, ROWS, SOME, If, Protocol, Round
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation

_ATTEMPT_BYTES = 16
_ADMITTED, _WITHHELD = "node.products.admitted", "node.products.withheld"
_N_GIVEN, _MULTIPLIED = "node.products.n-given", "node.products.multiplied"
_WITHOUT = "aggregation='masked'"


ENCRYPTED_OPENING = Protocol(
    If(
        "aggregation == 'ckks'",
        Round("product_keys", "a key of this run's products", tells=FACTS, ask=THE_ARBITER),
    ),
    Round("count_columns", "the number of its columns", tells=FACTS),
    Round(
        "encrypt_groups", "own sums over groups of rows; columns, encrypted", tells=(ROWS, EPSILON)
    ),
    Round("multiply_groups", "products, encrypted and blinded", ask=SOME),
    Round("open_blinded", "blinded products, decrypted", ask=THE_ARBITER),
    Round("forget_product_key", ask=THE_ARBITER),
)
"""What private products exchange where columns travel encrypted."""


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
    def count_columns(
        self,
        commitment: Annotated[bytes, Within(0, COMMITMENT_BYTES)] = b"",
        room: Annotated[int, Within(0, MOST_ROOM)] = 0,
    ) -> dict[str, Any]:
        """Tell ``n_columns`` and ``min_rows``; keep what the server commits to."""
        fix_room(self.party, room)
        if commitment:
            self._told.commit(commitment)
        return {"n_columns": self._columns().values.shape[1], **self._told.stated_minimum}

    @step
    def encrypt_groups(
        self,
        group: Annotated[Indices, Within(-1, "n_groups - 1")],
        n_groups: Annotated[int, Within(1, "n_samples")],
        missing: Annotated[Flags | None, Shape("n_groups"), OWN] = None,
        n_vectors: Annotated[int, Within(0, "n_samples")] = 0,
        n_others: Annotated[int, Within(0, "n_samples"), OWN] = 0,
        attempt: Annotated[bytes, Within(0, _ATTEMPT_BYTES)] = b"",
        commitment: Annotated[bytes, Within(0, COMMITMENT_BYTES)] = b"",
        recognised: bytes = b"",
        public: Annotated[bytes, OWN] = b"",
        nonce: Annotated[bytes, OWN] = b"",
        identity: Annotated[bytes, OWN] = b"",
        signature: Annotated[bytes, OWN] = b"",
        names: Annotated[list[str] | None, Within(1, "n_parties"), DISTINCT] = None,
        widths: Widths | None = None,
        absent: Annotated[Flags | None, Shape("n_groups", "n_parties")] = None,
    ) -> dict[str, Any]:
        """Tell the own moments by group, and encrypt the own columns for the other parties.

        Message: group, n_groups, n_vectors, attempt, commitment: see
        `PrivateProductSteps.open_products`; missing (n_groups,): where the own block counts as
        missing; n_others: how many columns of other parties the own ones are multiplied with;
        recognised: by what the privacy ledger shall recognise the vectors in another run:
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
        names, widths = names or [self.name], widths or [len(scale)]
        own_place(self.name, names, widths, len(scale))
        group = np.asarray(group, dtype=np.int64)
        said = b"said " + recognised if recognised else b""
        if public:
            self._check(public, nonce, identity, signature)
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
            n_others=n_others,
        )
        self.state[_ADMITTED], self.state[_WITHHELD] = _digest(group), withheld
        self.state[_N_GIVEN] = n_others + n_vectors
        self.state.pop(_MULTIPLIED, None)
        layout = Layout(dict(zip(names, widths, strict=True)))
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
        group: Annotated[Indices, Within(-1, "n_samples")],
        public: bytes,
        nonce: bytes = b"",
        identity: bytes = b"",
        signature: bytes = b"",
        **columns: Annotated[list[bytes], OWN],
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
        self._check(public, nonce, identity, signature)
        withheld: Flags = np.asarray(self.state[_WITHHELD], dtype=bool)
        counts = self._counts_given(columns, len(withheld))
        from flwr_vertical.crypto.ckks_products import add_noise, cross_products, product_unit

        held = self._columns()
        scale = EncodedColumns(held, 1, self.name, int(self.state.get(ROOM, 0))).scale
        out = {}
        for g, own in enumerate(self._by_group(held, group, scale, withheld)):
            count = counts[g]
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

    def _counts_given(self, columns: Mapping[str, list[bytes]], n_groups: int) -> list[int]:
        """Return how many ciphertexts there are for each group; more than were counted: refuse."""
        counts = [sum(key.startswith(f"{g}:") for key in columns) for g in range(n_groups)]
        expected = {f"{g}:{i}" for g, count in enumerate(counts) for i in range(count)}
        most = int(self.state[_N_GIVEN])
        if set(columns) != expected or max(counts, default=0) > most:
            raise ProtocolError(
                f"party {self.name!r}: {len(columns)} encrypted columns and vectors came for "
                f"{n_groups} group(s) of rows, and at most {most} for a group are counted in its "
                "privacy ledger; who runs the server?"
            )
        asked = self.party.services.asked()
        if bytes(self.state.setdefault(_MULTIPLIED, asked)) != asked:
            raise ProtocolError(
                f"party {self.name!r}: it has multiplied the columns that were counted with "
                "others; 'encrypt_groups' comes before each 'multiply_groups'"
            )
        return counts

    def _check(self, public: bytes, nonce: bytes, identity: bytes, signature: bytes) -> None:
        """Refuse a key that is not the arbiter's; the server's own serves one party alone."""
        state = self.state
        peers = list(state.get(private_sum.PEERS, []))
        n_parties = max(len(peers), int(state.get("n-parties", 1)), self.party.policy.min_parties)
        is_encrypted = state.get(private_sum.MODE) == "ckks"
        if not is_encrypted and n_parties > 1:
            raise ProtocolError(
                f"party {self.name!r}: products from ciphertexts are for runs in aggregation "
                f"'ckks' or of one party alone, and this one is {state.get(private_sum.MODE)!r} "
                f"with {n_parties} parties; who runs the server?"
            )
        if not nonce and not is_encrypted:
            return
        if not nonce:
            raise ProtocolError(
                f"party {self.name!r}: columns are encrypted under the key of the run's arbiter, "
                "and this one has no nonce, so nobody vouches for it; who runs the server?"
            )
        node, payload = self.party.identity(MODE), key_payload(SIGNED_FOR, public, nonce)
        about = {"sends": "encrypted columns", "without": _WITHOUT}
        check_key(node, ARBITER, payload, identity, signature, **about)


def _digest(group: Indices) -> bytes:
    return hashlib.sha256(group.tobytes()).digest()


@dataclass
class EncryptedProducts:
    """As `PrivateProducts`, from ciphertexts; products err by some 1e-8 of the columns' lengths.

    The parties use `EncryptedGroupSteps`, an arbiter `ProductKeySteps`. The federation has ``ckks``
    with an arbiter, or one party alone, whatever the mode. Where parties add noise (`noisy`), a
    product of two parties' columns has that of the later one alone; with differential privacy the
    server adds as much, which hides it from that party.
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
        """Have keys made and columns counted; one or two rounds, as `PrivateProducts.send`."""
        if self._has_arbiter:
            nonce = self.federation.random_bytes(32)
            told = self.federation.call("product_keys", {"nonce": nonce}, parties=[ARBITER])
            self._key = {"nonce": nonce, **told[ARBITER]}
        else:
            # A resumed run goes on under the key that it had.
            made = self.federation.keep("product keys", _make_keys)
            self._key, self._secret = {"public": made["public"]}, made["secret"]
        arguments: dict[str, Any] = {}
        if self.room:
            arguments["room"] = self.room
        if vectors is not None:
            arguments["commitment"] = self.commitment.of(vectors)
        replies = self.federation.call("count_columns", arguments)
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
        missing: Annotated[Flags | None, OWN] = None,
    ) -> Moments:
        """Open sums over groups of rows; two or three rounds, as `PrivateProducts.moments`."""
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
            if n_others := sum(self._widths[:k]):
                own[name]["n_others"] = n_others
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
        """Return the server's word for the vectors, over runs; b"" without a secret."""
        memory, order = self.federation.label_memory, np.lexsort(vectors.T)
        content = np.ascontiguousarray(vectors[order], dtype="<f8").tobytes()
        # A resumed run may ask again, and has to say the same.
        return memory.mark("labels in ciphertexts", content) if memory.lasts else b""

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
