"""The server's half of private products: it masks its vectors, and opens sums by group of rows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.products import ring
from flwr_vertical.products.column_products import Layout, blocks_by_group, products_of_masked
from flwr_vertical.products.commitment import Commitment, checked_vectors
from flwr_vertical.products.group_key import GroupKey
from flwr_vertical.products.masked_vectors import BoundVectors, MaskedVectors
from flwr_vertical.products.moments import Moments, assemble, checked_groups, largest_minimum
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.products.vector_products import limb_shares
from flwr_vertical.server import Federation, Total

_ATTEMPT_BYTES = 16


@dataclass
class PrivateProducts:
    """Products of the parties' columns with each other and with vectors of the server.

    Parameters
    ----------
    federation : Federation
        Of the run; two parties or more, sums ``masked`` or ``plain``.
    group_key : GroupKey
        Hands the group seed to the parties.
    limbs : {1, 2}, default 2
        One limb gives products to some 1e-9 of a row's size, two to rounding. Sums with noise have
        one: the second would tell what the noise on the first hides.
    room : int, default 0
        Bits that columns leave free for noise (`noise.room_for`).
    vector_unit : float, optional
        What vectors are divided by (default: their root mean square), where sums are differentially
        private.

    Attributes
    ----------
    commitment : Commitment
        What the server told the parties of its vectors; its nonce opens it to an auditor.
    """

    federation: Federation
    group_key: GroupKey
    limbs: int = 2
    room: int = 0
    vector_unit: float | None = None
    commitment: Commitment = field(init=False)
    _masked: dict[str, Ring] = field(default_factory=dict)
    _n_columns: dict[str, int] = field(default_factory=dict)
    _tags: dict[str, bytes] = field(default_factory=dict)
    _minima: dict[str, int] = field(default_factory=dict)
    _bound: "BoundVectors | None" = None
    _asked_at: int = 0  # place in the course where the columns were asked for

    def __post_init__(self) -> None:
        if self.limbs not in (1, 2):
            raise ConfigError(f"limbs must be 1 or 2, got {self.limbs!r}")
        if self.federation.aggregation == "ckks":
            raise ConfigError(
                "private products add whole numbers modulo 2^64, which 'ckks' sums do not carry "
                "exactly; use aggregation='masked', or `EncryptedProducts` with an arbiter"
            )
        if len(self.federation.parties) < 2:
            raise ConfigError(
                "private products need two parties or more: one alone has no helper for products "
                "with vectors of the server; use `EncryptedProducts`"
            )
        self.commitment = Commitment(self.federation)

    def send(self, vectors: Array | None = None) -> dict[str, dict[str, Any]]:
        """Have every party hand over its columns under the group's key stream; one round.

        Parameters
        ----------
        vectors : numpy.ndarray of shape (n_samples, n_vectors), optional
            What `moments` will be asked for with. Given here, they are committed to before
            anything of the columns is opened.

        Returns
        -------
        dict[str, dict[str, Any]]
            By party, what a step that does more than `PrivateProductSteps.send_masked` told.
        """
        arguments: dict[str, Any] = {"limbs": self.limbs}
        if self.room:
            arguments["room"] = self.room
        own, bound = self.group_key.arguments(), None
        pairs = self.group_key.pairs
        if vectors is not None:
            arguments["commitment"] = self.commitment.of(vectors)
            # Noisy sums are counted by epsilon, so nobody need recognise the labels.
            if pairs is not None and pairs.remembering and self.vector_unit is None:
                vectors = checked_vectors(vectors, len(vectors))
                encoded, _ = self._encoded(vectors, ring.fraction_bits(len(vectors)))
                bound = BoundVectors(self.federation, encoded, pairs.remembering)
                arguments |= {"labels_attempt": bound.attempt, "labels_n_vectors": bound.width}
                for name, more in bound.arguments().items():
                    own[name] |= {f"labels_{key}": value for key, value in more.items()}
        self._asked_at = self.federation.course
        replies = self.federation.call(
            "send_masked",
            arguments,
            per_party=own,
            unkept=["masked", "sketch"],  # beside the group seed it would be the table
        )
        self._tags = {name: reply["tag"] for name, reply in replies.items()}
        self._n_columns = {name: int(reply["n_columns"]) for name, reply in replies.items()}
        self._minima = {n: int(r["min_rows"]) for n, r in replies.items() if "min_rows" in r}
        if bound is not None:
            bound.collect(replies)
            self._bound = bound
        if not all("masked" in reply for reply in replies.values()):
            return replies  # from the journal of a run that is resumed: asked for when needed
        sizes = {name: len(reply["masked"]) for name, reply in replies.items()}
        if len(set(sizes.values())) > 1:
            raise DataError(f"the parties sent columns of different lengths: {sizes}")
        for name, reply in replies.items():
            if reply["masked"].shape[1] != self.limbs * self._n_columns[name]:
                raise PartyError(
                    name,
                    "send_masked",
                    f"sent {reply['masked'].shape[1]} encoded columns for "
                    f"{self._n_columns[name]} in {self.limbs} limbs",
                )
            self._masked[name] = reply["masked"]
        return replies

    def min_rows(self, n_columns: int, n_vectors: int) -> int:
        """Return the fewest rows of a group that every party tells of.

        Parameters
        ----------
        n_columns : int
            Columns of all parties that are multiplied.
        n_vectors : int
            Vectors of the server that they are multiplied with.

        Returns
        -------
        int
            The largest over the parties of ``min-rows`` of their node configs, or of the default
            `row_groups.min_rows` where a party has none.
        """
        return largest_minimum(self.federation.parties, self._minima, n_columns, n_vectors)

    def moments(
        self,
        group: Indices,
        n_groups: int,
        vectors: Array | None = None,
        missing: Flags | None = None,
    ) -> Moments:
        """Open sums over groups of rows; one round.

        Parameters
        ----------
        group : numpy.ndarray of shape (n_samples,)
            Number of each row's group, -1 for rows in none. In every group a party has all rows, or
            none, or its block counts as missing.
        n_groups : int
            How many groups there are.
        vectors : numpy.ndarray of shape (n_samples, n_vectors), optional
            The server's own, finite; no party learns them.
        missing : numpy.ndarray of shape (n_groups, n_parties), bool, optional
            Where a party's block counts as missing although it has some of the rows:
            `RowGroups.mask`.

        Raises
        ------
        DataError
            If there is no group, or vectors do not fit or are not those committed to.
        PartyError
            If a party refuses: a group too small, too many vectors.
        """
        if not self._tags:
            raise ConfigError("the parties' columns have not been sent: call `send` first")
        names = self.federation.parties
        sent = next(iter(self._masked.values()), None)
        group = checked_groups(group, n_groups, None if sent is None else len(sent))
        n_samples = len(group)
        bits = ring.fraction_bits(n_samples)
        layout = Layout({name: self._n_columns[name] for name in names}, self.limbs)
        common: dict[str, Any] = {
            "limbs": self.limbs,
            "names": names,
            "widths": list(layout.widths.values()),
            "tags": [self._tags[name] for name in names],
            "group": group,
            "n_groups": n_groups,
        }
        if missing is not None:
            common["missing"] = np.asarray(missing, dtype=bool)
        own: dict[str, dict[str, Any]] = {name: {} for name in names}
        rho, unit = {}, np.zeros(0)
        if vectors is not None:
            vectors = checked_vectors(vectors, n_samples)
            common["commitment"] = self.commitment.of(vectors)
            encoded, unit = self._encoded(vectors, bits)
            rho = self._mask_vectors(encoded, common, own)
            common["n_vectors"] = len(unit)
            del encoded
        total = self.federation.sum("open_products", common, per_party=own)
        helping = {name: arguments.get("helper", "") for name, arguments in own.items()}
        del common, own
        # A resumed run has the sums, but not what they are opened with.
        while not self._masked and self.federation.next_step() in (None, "send_masked"):
            with self.federation.asking_again(self._asked_at):
                self.send()
        found = self.federation.keep(
            "moments", lambda: self._open(total, group, n_groups, layout, bits, helping, rho, unit)
        )
        return Moments(**found)

    def close(self) -> None:
        """Have the parties erase the group seed, and drop what it could be read with; one round."""
        self.group_key.close()
        self._masked.clear()
        self._tags.clear()

    def _open(
        self,
        total: Total,
        group: Indices,
        n_groups: int,
        layout: Layout,
        bits: int,
        helping: dict[str, str],
        rho: dict[str, KeyStream],
        unit: Array,
    ) -> dict[str, Array]:
        opened = np.uint64(0) - np.asarray(total["corrections"]).view(np.uint64)
        told = total.public
        shares = {
            name: told[name]["owner"] + told[helping[name]][f"helper:{name}"]
            for name in (layout.widths if rho else ())
        }
        for start, stop, groups in blocks_by_group(group, n_groups):
            masked = {name: self._masked[name][start:stop] for name in layout.widths}
            opened += products_of_masked(masked, layout, groups)
            masks = {helper: stream.rows(start, stop) for helper, stream in rho.items()}
            for name, share in shares.items():
                for g, rows in enumerate(groups):
                    mask = masks[helping[name]][rows]
                    share[g] -= limb_shares(masked[name][rows], mask, self.limbs)
        return assemble(
            told,
            list(layout.widths),
            {
                (a, b): np.stack([ring.decode(m[:, s, t], bits) for m in opened])
                for i, (a, s) in enumerate(layout.slices.items())
                for b, t in list(layout.slices.items())[:i]
            },
            {
                name: np.stack([ring.decode(part, bits) for part in share]) * unit
                for name, share in shares.items()
            },
            len(unit),
            unit,
        )

    def _encoded(self, vectors: Array, bits: int) -> tuple[Ring, Array]:
        # Sorted, so that rounding does not depend on the order of the samples: the parties shall
        # recognise the same labels in another order.
        unit = np.sqrt(np.mean(np.sort(vectors**2, axis=0), axis=0))
        if self.vector_unit is not None:
            unit = np.full(vectors.shape[1], self.vector_unit)
        unit[unit == 0.0] = 1.0
        return ring.encode(vectors / unit, bits, self.limbs, party="the server"), unit

    def _mask_vectors(
        self, encoded: Ring, common: dict[str, Any], own: dict[str, dict[str, Any]]
    ) -> dict[str, KeyStream]:
        """Fill in who gets masked vectors, and who the seed of their mask; return the masks."""
        common["attempt"] = self.federation.random_bytes(_ATTEMPT_BYTES)
        bound = self._bound
        if bound is None or not np.array_equal(bound.encoded, encoded):
            masks = MaskedVectors(self.federation, encoded)
        else:
            masks = bound.masks  # these very numbers the parties' ledgers recognise
            for name, found in bound.sketched.items():
                own[name]["sketched"] = found
        for name, more in masks.arguments().items():
            own[name] |= more
        return masks.rho
