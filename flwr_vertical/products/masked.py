"""Private products: the server opens sums over groups of rows, and no number of a single row.

A party's half and the server's; the numbers are those of `arithmetic`.

=================  ================================================================================
round              what travels
=================  ================================================================================
(keys, two rounds  see `group_key`; once a run)
send_masked        up: U, the columns under the key stream of the group seed
open_products      down: the group of each row; v + rho to the owners, the seed of rho to helpers;
                   up: a private sum of small matrices, and each party's own moments
=================  ================================================================================

Rules that a party keeps whatever the server asks for: a stream masks one content; a pad is used
once; every set of rows that opened sums can be combined to holds at least the minimum of rows, and
levels of a column cannot be told apart in it (`told_rows`, `rare_levels`); the server's vectors are
those that it committed to; all parties were asked the same.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError
from flwr_vertical.node import Party, Summands, step
from flwr_vertical.products import arithmetic
from flwr_vertical.products.columns import EncodedColumns, HeldColumns, own_moments
from flwr_vertical.products.group_key import GroupKey, GroupKeySteps
from flwr_vertical.products.labels import (
    ATTEMPT_BYTES,
    BoundVectors,
    Commitment,
    LabelSketch,
    MaskedVectors,
    VectorShares,
    checked_vectors,
)
from flwr_vertical.products.moments import Moments, assemble, checked_groups, largest_minimum
from flwr_vertical.products.noise import MOST_ROOM
from flwr_vertical.products.noisy_sums import ROOM, NoisySums, fix_room
from flwr_vertical.products.pair_keys import PairKeyFields, Widths
from flwr_vertical.products.sent_rows import SENDING, SentRows, ask_for_rows
from flwr_vertical.products.streams import (
    SEED_BYTES,
    KeyStream,
    cancelling_pad,
    stream,
    tag_of_blocks,
)
from flwr_vertical.products.told_rows import COMMITMENT_BYTES, ToldRows
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within
from flwr_vertical.protocol.declaration import EPSILON, ONE, ROWS, Protocol, Round
from flwr_vertical.server import Federation, Total


class SendFields(PairKeyFields, total=False):
    """What `PrivateProductSteps.send_masked` takes beside limbs and the group seed."""

    commitment: Annotated[bytes, Within(COMMITMENT_BYTES, COMMITMENT_BYTES)]
    room: Annotated[int, Within(0, MOST_ROOM)]
    labels_attempt: Annotated[bytes, Within(ATTEMPT_BYTES, ATTEMPT_BYTES)]
    labels_n_vectors: Annotated[int, Within(1, "limbs * n_samples")]
    labels_helper: Annotated[str, OWN]
    labels_masked_vectors: Annotated[Ring, Shape(None, "labels_n_vectors"), OWN]
    labels_helps: Annotated[list[str], Within(1, "n_parties"), DISTINCT, OWN]
    labels_rho_seed: Annotated[bytes, Within(SEED_BYTES, SEED_BYTES), OWN]


OPENING = Protocol(
    Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE),
    SENDING,
    Round(
        "open_products", "sums over groups of rows of products of columns", tells=(ROWS, EPSILON)
    ),
)
"""What private products exchange, once the parties' public keys are known."""


class PrivateProductSteps(SentRows):
    """A party's half of private products of what its `columns_to_multiply` returns.

    Products for another `purpose` have other key streams. Further arguments are those of
    `ToldRows`.
    """

    party: Party

    def __init__(self, party: Party, purpose: str, **rules: Any) -> None:
        super().__init__(party)
        self._purpose = purpose
        self._told = ToldRows(party, purpose, **rules)

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[SendFields],
    ) -> dict[str, Any]:
        """Hand over the own columns under the key stream of the group seed.

        Message: limbs: 1 or 2, see `arithmetic`; owner, sealed, **keys: see `GroupKeySteps.take`;
        also ``commitment``, to the vectors that the server will multiply with, if it knows them
        already; ``room``, the bits that columns leave free for noise; and arguments of
        `LabelSketch.answer` with the prefix ``labels_``, where a party keeps a privacy ledger;
        returns ``masked`` (n_samples, limbs * n_columns), uint64, or the first `PART_ROWS` rows
        and ``n_rows``; the ``tag`` of all its content;
        ``n_columns``; ``min_rows``, the fewest rows of a set that may be told of, where this node
        has its own number; and what `LabelSketch.answer` tells.
        """
        given: dict[str, Any] = dict(keys)
        commitment, labels = given.pop("commitment", b""), taken_with("labels_", given)
        fix_room(self.party, int(given.pop("room", 0)))
        if commitment:
            self._told.commit(commitment)
        group_key = self.other(GroupKeySteps)
        group_key.take(owner, sealed, given)
        self.cache.pop(self._key(limbs), None)  # the columns may be others now
        encoded, tag = self._encoded(limbs)
        told = {"tag": tag, "n_columns": len(encoded.scale), **self._part(limbs)}
        told |= self._told.stated_minimum
        if labels:
            held = self._told.own_part(encoded.held)
            told |= LabelSketch(self.party).answer(
                group_key.seed, held=held, at=self._told.own_rows(held), **labels
            )
        return told

    @step
    def open_products(
        self,
        limbs: Annotated[int, Within(1, 2)],
        names: Annotated[list[str], Within(2, "n_parties"), DISTINCT],
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        group: Annotated[Indices, Within(-1, "n_groups - 1")],
        n_groups: Annotated[int, Within(1, "n_samples")],
        missing: Annotated[Flags | None, Shape("n_groups", "names")] = None,
        attempt: Annotated[bytes, Within(0, ATTEMPT_BYTES)] = b"",
        commitment: Annotated[bytes, Within(0, COMMITMENT_BYTES)] = b"",
        n_vectors: Annotated[int, Within(0, "n_samples")] = 0,
        helper: Annotated[str, OWN] = "",
        masked_vectors: Annotated[Ring | None, Shape("group", "limbs * n_vectors"), OWN] = None,
        helps: Annotated[list[str] | None, Within(0, "names"), DISTINCT, OWN] = None,
        rho_seed: Annotated[bytes, Within(0, SEED_BYTES), OWN] = b"",
        sketched: Annotated[Ring | None, Shape("limbs * n_vectors"), OWN] = None,
    ) -> Summands:
        """Send what lets the server open products by group of rows, and nothing else.

        Message: limbs: 1 or 2; names, widths, tags: every party's name, number of columns and tag,
        in the order of the products; group (n_samples,): number of each row's group, -1 for rows
        in none; missing (n_groups, n_parties): where a party's block counts as missing, whether or
        not it has these rows; attempt: names the pads of products with vectors, used once;
        commitment: of the server to its vectors; helper: who helps with the own columns;
        masked_vectors (n_samples, limbs * n_vectors): ``v + rho`` for the own columns; helps:
        whose columns this party helps with; rho_seed: of the rho of those; sketched (limbs *
        n_vectors,): by what the privacy ledger recognises the vectors; returns, summed,
        ``corrections`` (n_groups, limbs, n_columns, n_columns), uint64; publicly the ``sums``
        (n_groups, n_own) and ``products`` (n_groups, n_own, n_own) of the own columns, which of
        them are ``withheld`` where (n_groups, n_own), their ``scale``, with vectors the own share,
        ``owner``, and ``helper:<name>`` for each party that this one helps. Where the method wants
        noise on what is opened, it is in all of this (`noisy_sums`), and ``noise`` has its levels.

        Raises
        ------
        DataError
            If a set of rows is too small to be told of.
        ProtocolError
            If the columns have changed since they were sent, an attempt is used twice, or the
            vectors are not those committed to.
        """
        seed = self.other(GroupKeySteps).seed
        encoded, tag = self._encoded(limbs)
        place = arithmetic.own_place(self.name, names, widths, len(encoded.scale))
        if tags[place] != tag:
            raise ProtocolError(
                f"party {self.name!r}: its columns are no longer those that it sent for "
                f"{self._purpose!r}; a key stream hides one content only, so send them again"
            )
        group = np.asarray(group, dtype=np.int64)
        own_missing = None if missing is None else np.asarray(missing)[:, place]
        labels = LabelSketch(self.party)
        labels.check_help(helps or [], rho_seed)
        recognised = labels.commitment(sketched, masked_vectors, helper)
        withheld = self._told.admit(
            encoded.held,
            group,
            n_groups,
            own_missing,
            n_vectors,
            attempt,
            commitment,
            recognised,
            private=encoded.held.noise is not None,
        )
        layout = arithmetic.Layout(dict(zip(names, widths, strict=True)), limbs)
        noisy = NoisySums.of(self.party, encoded, layout, group, n_groups, missing, n_vectors)
        if noisy is not None:
            noisy.release(repr((names, widths, tags, commitment)).encode(), attempt)
        streams = {
            name: KeyStream(seed, self._label(name), (len(group), limbs * width), tag)
            for name, width, tag in zip(names, widths, tags, strict=True)
        }
        rho = KeyStream(rho_seed, "rho", (len(group), limbs * n_vectors)) if helps else None
        request = hashlib.sha256(
            repr((limbs, names, widths, tags, n_groups, n_vectors, attempt)).encode()
        )
        for part in (group, np.zeros(0) if missing is None else np.asarray(missing)):
            request.update(np.ascontiguousarray(part).data)
        asked = request.digest()
        # Pads of owner and helper cancel only where both were asked for the same rows, and know of
        # each other's vectors; a server that names rows as each party's own gets noise, too.
        bound = hashlib.sha256(self.party.services.binding() + asked).digest()
        shares = VectorShares(
            self.name, seed, layout, n_groups, n_vectors, bound, helper, masked_vectors,
            helps or [], rho,
        )  # fmt: skip
        total = layout.zeros(n_groups)
        for start, stop, groups in arithmetic.blocks_by_group(group, n_groups):
            own = encoded.rows(start, stop)
            masks = {name: stream.rows(start, stop) for name, stream in streams.items()}
            total += arithmetic.corrections(self.name, own, masks, layout, groups, place == 0)
            if noisy is not None:
                noisy.add(own, groups)
            shares.add(start, stop, own, masks, groups)
        if noisy is not None:  # whether it is added or subtracted makes no difference
            total += noisy.across
        if encoded.held.noise is not None:
            asked += encoded.held.noise.agreed
        self._blind(total, layout, withheld, seed, asked)
        scale = np.where(withheld.all(axis=0), 1.0, encoded.scale)
        if noisy is None:
            own_sums = own_moments(encoded.held, group, withheld)
        else:
            own_sums = noisy.own_moments(withheld, encoded.scale)
        told = shares.told(withheld, None if noisy is None else noisy.vectors)
        public = {**own_sums, **told, "withheld": withheld, "scale": scale}
        return Summands({"corrections": total}, public, modular=("corrections",))

    def allow(self, group: Indices, n_groups: int, n_vectors: int, attempt: bytes = b"") -> Flags:
        """Count sums over groups of rows that another step group is asked for, or refuse them.

        Parameters
        ----------
        group, n_groups
            As in `open_products`.
        n_vectors : int
            With how many vectors columns are multiplied; such as the server does not know, so
            nothing is committed to.
        attempt : bytes
            With vectors, the name of the pads; used once.

        Returns
        -------
        numpy.ndarray of shape (n_groups, n_columns), bool
            True where nothing of a column may be told, see `ToldRows.admit`.
        """
        return self._told.admit(self._columns(), group, n_groups, None, n_vectors, attempt, None)

    def _blind(
        self,
        total: Ring,
        layout: arithmetic.Layout,
        withheld: Flags,
        seed: bytes,
        asked: bytes,
        apart: Flags | None = None,
    ) -> None:
        """Make what is withheld random, and all of it unless every party was asked the same."""
        here = layout.slices[self.name]
        secret = self.party.secret_bytes("withheld products")
        hidden = stream(secret, "withheld", total.shape)
        for g, columns in enumerate(withheld):
            mine = np.arange(here.start, here.stop)[columns]
            total[g][:, mine] = hidden[g][:, mine]
            total[g][:, :, mine] = hidden[g][:, :, mine]
        apart = np.zeros((len(layout.slices), 0), dtype=bool) if apart is None else apart
        for columns, there in zip(apart, layout.slices.values(), strict=True):
            mine = here.start + np.flatnonzero(columns)
            total[..., mine, there] = hidden[..., mine, there]
            total[..., there, mine] = hidden[..., there, mine]
        # These cancel in the sum over the parties if all of them were asked the same.
        digest = hashlib.sha256(asked).hexdigest()
        total += cancelling_pad(seed, "asked", digest, [*layout.widths], self.name, total.shape)

    def _columns(self) -> HeldColumns:
        held: HeldColumns = self.party.columns_to_multiply()  # type: ignore[attr-defined]
        return held

    def _label(self, owner: str) -> str:
        return f"columns {self._purpose} of {owner}"

    def _key(self, limbs: int) -> str:
        return f"products.encoded {self._purpose} {limbs}"

    def _masks(self, limbs: int) -> KeyStream:
        encoded, tag = self._encoded(limbs)
        seed = self.other(GroupKeySteps).seed
        return KeyStream(seed, self._label(self.name), encoded.shape, tag)

    def _encoded(self, limbs: int) -> tuple[EncodedColumns, bytes]:
        key = self._key(limbs)
        if key not in self.cache:
            room = int(self.state.get(ROOM, 0))
            encoded = EncodedColumns(self._columns(), limbs, self.name, room)
            seed = self.other(GroupKeySteps).seed
            self.cache[key] = encoded, tag_of_blocks(seed, encoded.shape, encoded.blocks())
        found: tuple[EncodedColumns, bytes] = self.cache[key]
        return found


def taken_with(prefix: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments with a prefix out of others, and return them without it."""
    names = [name for name in arguments if name.startswith(prefix)]
    return {name.removeprefix(prefix): arguments.pop(name) for name in names}


@dataclass
class PrivateProducts:
    """Products of the parties' columns with each other and with vectors of the server."""

    federation: Federation  # Of the run; two parties or more, sums ``masked`` or ``plain``
    group_key: GroupKey  # Hands the group seed to the parties
    # One limb gives products to some 1e-9 of a row's size, two to rounding. Sums with noise have
    # one: the second would tell what the noise on the first hides.
    limbs: int = 2
    room: int = 0  # Bits that columns leave free for noise (`noise.room_for`)
    # What vectors are divided by (default: their root mean square), where sums are differentially
    # private
    vector_unit: float | None = None
    # What the server told the parties of its vectors; its nonce opens it to an auditor
    commitment: Commitment = field(init=False)
    _masked: dict[str, Ring] = field(default_factory=dict)
    _n_columns: dict[str, int] = field(default_factory=dict)
    _tags: dict[str, bytes] = field(default_factory=dict)
    _minima: dict[str, int] = field(default_factory=dict)
    _asked_at: int = 0  # place in the course where the columns were asked for
    _asked: tuple[dict[str, Any], dict[str, dict[str, Any]]] = field(
        default_factory=lambda: ({}, {})
    )

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

    def send(self, vectors: Array | None = None, **common: Any) -> dict[str, dict[str, Any]]:
        """Have every party hand over its columns under the group's key stream; one round.

        Parameters
        ----------
        vectors : numpy.ndarray of shape (n_samples, n_vectors), optional
            What `moments` will be asked for with. Given here, they are committed to before
            anything of the columns is opened.
        **common
            What a step of the strategy takes beside.

        Returns
        -------
        dict[str, dict[str, Any]]
            By party, what a step that does more than `PrivateProductSteps.send_masked` told.
        """
        arguments: dict[str, Any] = {"limbs": self.limbs, **common}
        if self.room:
            arguments["room"] = self.room
        own, bound = self.group_key.arguments(), None
        pairs = self.group_key.pairs
        if vectors is not None:
            arguments["commitment"] = self.commitment.of(vectors)
            # Noisy sums are counted by epsilon, so nobody need recognise the labels.
            known = self.vector_unit is not None or self.commitment.bound is not None
            if pairs is not None and pairs.remembering and not known:
                vectors = checked_vectors(vectors, len(vectors))
                encoded, _ = self._encoded(vectors, arithmetic.fraction_bits(len(vectors)))
                bound = BoundVectors(self.federation, encoded, pairs.remembering)
                arguments |= {"labels_attempt": bound.attempt, "labels_n_vectors": bound.width}
                for name, more in bound.arguments().items():
                    own[name] |= {f"labels_{key}": value for key, value in more.items()}
        self._asked_at, self._asked = self.federation.course, (arguments, own)
        replies = self._ask()
        if bound is not None:
            bound.collect(replies)
            self.commitment.bound = bound
        return replies

    def _ask(self) -> dict[str, dict[str, Any]]:
        """Ask for the columns; word for word as before, if it was done before."""
        arguments, own = self._asked
        replies = ask_for_rows(self.federation, arguments, own)
        self._note(replies)
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

    def _note(self, replies: Mapping[str, Mapping[str, Any]]) -> None:
        """Note what parties told of the columns that they sent."""
        self._tags = {name: reply["tag"] for name, reply in replies.items()}
        self._n_columns = {name: int(reply["n_columns"]) for name, reply in replies.items()}
        self._minima = {n: int(r["min_rows"]) for n, r in replies.items() if "min_rows" in r}

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
            `policy.defaults.min_rows` where a party has none.
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
        bits = arithmetic.fraction_bits(n_samples)
        layout = arithmetic.Layout({name: self._n_columns[name] for name in names}, self.limbs)
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
        self._ask_again_if_resumed()
        found = self.federation.keep(
            "moments", lambda: self._open(total, group, n_groups, layout, bits, helping, rho, unit)
        )
        return Moments(**found)

    def _ask_again_if_resumed(self) -> None:
        # A resumed run has the sums, but not what they are opened with.
        while not self._masked and self.federation.next_step() in (None, "send_masked"):
            with self.federation.asking_again(self._asked_at):
                self._ask()

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
        layout: arithmetic.Layout,
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
        for start, stop, groups in arithmetic.blocks_by_group(group, n_groups):
            masked = {name: self._masked[name][start:stop] for name in layout.widths}
            opened += arithmetic.products_of_masked(masked, layout, groups)
            masks = {helper: stream.rows(start, stop) for helper, stream in rho.items()}
            for name, share in shares.items():
                for g, rows in enumerate(groups):
                    mask = masks[helping[name]][rows]
                    share[g] -= arithmetic.limb_shares(masked[name][rows], mask, self.limbs)
        return assemble(
            told,
            list(layout.widths),
            {
                (a, b): np.stack([arithmetic.decode(m[:, s, t], bits) for m in opened])
                for i, (a, s) in enumerate(layout.slices.items())
                for b, t in list(layout.slices.items())[:i]
            },
            {
                name: np.stack([arithmetic.decode(part, bits) for part in share]) * unit
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
        return arithmetic.encode(vectors / unit, bits, self.limbs, party="the server"), unit

    def _mask_vectors(
        self, encoded: Ring, common: dict[str, Any], own: dict[str, dict[str, Any]]
    ) -> dict[str, KeyStream]:
        """Fill in who gets masked vectors, and who the seed of their mask; return the masks."""
        common["attempt"] = self.federation.random_bytes(ATTEMPT_BYTES)
        bound = self.commitment.bound
        if bound is None or not np.array_equal(bound.encoded, encoded):
            masks = MaskedVectors(self.federation, encoded)
        else:
            masks = bound.masks  # these very numbers the parties' ledgers recognise
            for name, found in bound.sketched.items():
                own[name]["sketched"] = found
        for name, more in masks.arguments().items():
            own[name] |= more
        return masks.rho
