"""Private products: the server opens sums over groups of rows, and no number of a single row.

The arithmetic is in `column_products` and `vector_products`; here a party carries it out, and the
server in `opened`.

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
levels of a column cannot be told apart in it (`told_rows`, `levels`); the server's vectors are
those that it committed to; all parties were asked the same.
"""

import hashlib
from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import Summands, step
from flwr_vertical.products.column_products import Layout, blocks_by_group, corrections
from flwr_vertical.products.encoded import EncodedColumns
from flwr_vertical.products.encrypted_groups import EncryptedGroupSteps
from flwr_vertical.products.group_key import GroupKeySteps
from flwr_vertical.products.noisy_sums import ROOM, NoisySums, fix_room
from flwr_vertical.products.own_moments import own_moments
from flwr_vertical.products.recognised import LabelSketch
from flwr_vertical.products.streams import KeyStream, stream, tag_of_blocks
from flwr_vertical.products.vector_products import limb_shares


class PrivateProductSteps(EncryptedGroupSteps):
    """A party's half of private products of what its `columns_to_multiply` returns.

    It can also give the same sums from ciphertexts (`encrypted_groups`), where there is an arbiter,
    or no second party.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    purpose : str
        What the products are for: another purpose has other key streams.
    **rules
        See `ToldRows`.
    """

    @step
    def send_masked(self, limbs: int, owner: str, sealed: bytes, **keys: Any) -> dict[str, Any]:
        """Hand over the own columns under the key stream of the group seed.

        Parameters
        ----------
        limbs : {0, 1, 2}
            See `ring`; 0 where ciphertexts take the place of masked columns.
        owner, sealed, **keys
            See `GroupKeySteps.take`; also ``commitment``, bytes of the server to the vectors that
            it will multiply with, if it knows them already; ``room``, the bits that columns leave
            free for noise; and arguments of `LabelSketch.answer` with the prefix ``labels_``, where
            a party keeps a privacy ledger.

        Returns
        -------
        dict[str, Any]
            ``masked`` of shape (n_samples, limbs * n_columns), uint64; the ``tag`` of its content;
            ``n_columns``; ``min_rows``, the fewest rows of a set that may be told of, where this
            node has its own number; and what `LabelSketch.answer` tells.
        """
        commitment, labels = keys.pop("commitment", b""), _taken(keys, "labels_")
        fix_room(self.party, int(keys.pop("room", 0)))
        if commitment:
            self._told.commit(commitment)
        minimum = {} if self._told.minimum is None else {"min_rows": self._told.minimum}
        if not limbs:
            return {"n_columns": self._columns().values.shape[1], **minimum}
        group_key = self.other(GroupKeySteps)
        group_key.take(owner, sealed, keys)
        self.cache.pop(self._key(limbs), None)  # the columns may be others now
        encoded, tag = self._encoded(limbs)
        masks = KeyStream(group_key.seed, self._label(self.name), encoded.shape, tag)
        masked, at = np.empty(encoded.shape, dtype=np.uint64), 0
        for block in encoded.blocks():
            masked[at : at + len(block)] = block + masks.rows(at, at + len(block))
            at += len(block)
        told = {"masked": masked, "tag": tag, "n_columns": len(encoded.scale), **minimum}
        if labels:
            held = encoded.held
            told |= LabelSketch(self.party).answer(
                group_key.seed, held=held, at=self._told.own_rows(held), **labels
            )
        return told

    @step
    def open_products(
        self,
        limbs: int,
        names: list[str],
        widths: list[int],
        tags: list[bytes],
        group: Indices,
        n_groups: int,
        missing: Flags | None = None,
        attempt: bytes = b"",
        commitment: bytes = b"",
        n_vectors: int = 0,
        helper: str = "",
        masked_vectors: Ring | None = None,
        helps: list[str] | None = None,
        rho_seed: bytes = b"",
        sketched: Ring | None = None,
    ) -> Summands:
        """Send what lets the server open products by group of rows, and nothing else.

        Parameters
        ----------
        limbs : {1, 2}
            See `ring`.
        names, widths, tags : list
            Every party's name, number of columns and tag, in the order of the products.
        group : numpy.ndarray of shape (n_samples,)
            Number of each row's group, -1 for rows in none.
        n_groups : int
            How many groups there are.
        missing : numpy.ndarray of shape (n_groups, n_parties), bool, optional
            Where a party's block counts as missing, whether or not it has these rows.
        attempt : bytes
            Names the pads of products with vectors; used once.
        commitment : bytes
            Of the server to its vectors.
        n_vectors : int
            How many vectors of the server there are.
        helper : str
            Who helps with the own columns.
        masked_vectors : numpy.ndarray of shape (n_samples, limbs * n_vectors), uint64, optional
            ``v + rho`` for the own columns.
        helps : list of str, optional
            Whose columns this party helps with.
        rho_seed : bytes
            Seed of the rho of those.
        sketched : numpy.ndarray of shape (limbs * n_vectors,), uint64, optional
            By what the privacy ledger recognises the vectors, see `recognised`.

        Returns
        -------
        Summands
            Summed: ``corrections`` of shape (n_groups, limbs, n_columns, n_columns), uint64.
            Publicly the ``sums`` of shape (n_groups, n_own) and ``products`` of shape (n_groups,
            n_own, n_own) of the own columns; which of them are ``withheld`` where, of shape
            (n_groups, n_own); their ``scale``; with vectors the own share, ``owner``, and
            ``helper:<name>`` for each party that this one helps.

        Where the method or the node's policy wants noise on what is opened, it is in all of this
        (`noisy_sums`), and ``noise`` has its levels.

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
        place = names.index(self.name)
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
        layout = Layout(dict(zip(names, widths, strict=True)), limbs)
        noisy = NoisySums.of(self.party, encoded, layout, group, n_groups, missing, n_vectors)
        if noisy is not None:
            noisy.release(repr((names, widths, tags, commitment)).encode(), attempt)
        streams = {
            name: KeyStream(seed, self._label(name), (len(group), limbs * width), tag)
            for name, width, tag in zip(names, widths, tags, strict=True)
        }
        rho = KeyStream(rho_seed, "rho", (len(group), limbs * n_vectors)) if helps else None
        shares = self._pads(seed, layout, n_groups, n_vectors, helper, helps or [], attempt)
        if masked_vectors is None:
            shares.pop("owner", None)
        total = layout.zeros(n_groups)
        for start, stop, groups in blocks_by_group(group, n_groups):
            own = encoded.rows(start, stop)
            masks = {name: stream.rows(start, stop) for name, stream in streams.items()}
            total += corrections(self.name, own, masks, layout, groups, place == 0)
            if noisy is not None:
                noisy.add(own, groups)
            mask = None if rho is None else rho.rows(start, stop)
            for name, share in shares.items():
                for g, rows in enumerate(groups):
                    if name == "owner":
                        vectors = np.asarray(masked_vectors)[start:stop]
                        share[g] += limb_shares(own[rows], vectors[rows], limbs)
                    elif mask is not None:
                        theirs = masks[name.removeprefix("helper:")]
                        share[g] += limb_shares(theirs[rows], mask[rows], limbs)
        if noisy is not None:  # whether it is added or subtracted makes no difference
            total += noisy.across
            if "owner" in shares:
                shares["owner"][:, 0] += noisy.vectors
        asked = repr((limbs, names, widths, tags, n_groups, attempt)).encode()
        if encoded.held.noise is not None:
            asked += encoded.held.noise.agreed
        parts = [group, np.zeros(0) if missing is None else np.asarray(missing)]
        self._blind(total, layout, withheld, seed, asked + b"".join(x.tobytes() for x in parts))
        if "owner" in shares:
            shares["owner"] *= ~withheld[:, None, :, None]
        scale = np.where(withheld.all(axis=0), 1.0, encoded.scale)
        if noisy is None:
            own_sums = own_moments(encoded.held, group, withheld)
        else:
            own_sums = noisy.own_moments(withheld, encoded.scale)
        public = {**own_sums, **shares, "withheld": withheld}
        return Summands(
            {"corrections": total}, {**public, "scale": scale}, modular=("corrections",)
        )

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

    def _pads(
        self,
        seed: bytes,
        layout: Layout,
        n_groups: int,
        n_vectors: int,
        helper: str,
        helps: list[str],
        attempt: bytes,
    ) -> dict[str, Ring]:
        """Return what the shares of products with vectors begin with: less or plus their pads."""

        def pad(owner: str, other: str) -> Ring:
            shape = n_groups, layout.limbs, layout.widths[owner], n_vectors
            return stream(seed, f"pad {owner!r} {other!r} {attempt.hex()}", shape)

        begun = {f"helper:{name}": pad(name, self.name) for name in helps}
        if helper:
            begun["owner"] = np.uint64(0) - pad(self.name, helper)
        return begun

    def _blind(
        self, total: Ring, layout: Layout, withheld: Flags, seed: bytes, asked: bytes
    ) -> None:
        """Make what is withheld random, and all of it unless every party was asked the same."""
        here = layout.slices[self.name]
        secret = self.party.secret_bytes("withheld products")
        hidden = stream(secret, "withheld", total.shape)
        for g, columns in enumerate(withheld):
            mine = np.arange(here.start, here.stop)[columns]
            total[g][:, mine] = hidden[g][:, mine]
            total[g][:, :, mine] = hidden[g][:, :, mine]
        # These cancel in the sum over the parties if all of them were asked the same.
        names = list(layout.widths)
        place = names.index(self.name)
        digest = hashlib.sha256(asked).hexdigest()
        for number, sign in ((place, 1), ((place + 1) % len(names), -1)):
            pad = stream(seed, f"asked {number} {digest}", total.shape)
            total += pad if sign > 0 else np.uint64(0) - pad

    @property
    def _own_minimum(self) -> int | None:
        """The fewest rows of a set that may be told of, where this party has its own number."""
        return self._told.minimum

    def _label(self, owner: str) -> str:
        return f"columns {self._purpose} of {owner}"

    def _key(self, limbs: int) -> str:
        return f"products.encoded {self._purpose} {limbs}"

    def _encoded(self, limbs: int) -> tuple[EncodedColumns, bytes]:
        """Return the encoded columns, and their tag."""
        key = self._key(limbs)
        if key not in self.cache:
            room = int(self.state.get(ROOM, 0))
            encoded = EncodedColumns(self._columns(), limbs, self.name, room)
            seed = self.other(GroupKeySteps).seed
            self.cache[key] = encoded, tag_of_blocks(seed, encoded.shape, encoded.blocks())
        found: tuple[EncodedColumns, bytes] = self.cache[key]
        return found


def _taken(arguments: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Take the arguments with a prefix out of others, and return them without it."""
    names = [name for name in arguments if name.startswith(prefix)]
    return {name.removeprefix(prefix): arguments.pop(name) for name in names}
