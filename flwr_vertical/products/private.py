"""Private products: the server opens sums over groups of rows, and no number of a single row.

The arithmetic is in `column_products` and `vector_products`; here parties and server carry it out.

=================  ================================================================================
round              what travels
=================  ================================================================================
(keys, two rounds  see `group_key`; once a run)
send_masked        up: U, the columns under the key stream of the group seed, and their scales
open_products      down: the group of each row; v + rho to the owners, the seed of rho to helpers;
                   up: a private sum of small matrices, and each party's own moments
=================  ================================================================================

Rules that a party keeps whatever the server asks for: a stream masks one content; a pad is used
once; every set of rows that opened sums can be combined to holds at least the minimum of rows.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node import Party, StepGroup, Summands, step
from flwr_vertical.node.config import MIN_ROWS
from flwr_vertical.products import ring
from flwr_vertical.products.column_products import Layout, corrections, rows_by_group
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.group_key import GroupKeySteps
from flwr_vertical.products.row_groups import max_vectors, min_rows
from flwr_vertical.products.streams import content_tag, stream
from flwr_vertical.products.vector_products import helper_share, owner_share

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_ATOMS, _ATTEMPTS, _VECTORS = "products.atoms", "node.products.attempts", "products.vectors"


class PrivateProductSteps(StepGroup):
    """A party's half of private products of what its `columns_to_multiply` returns.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    purpose : str
        What the products are for: another purpose has other key streams.
    at_least : int, optional
        Fewest own rows of a set that may be told of (default: `row_groups.min_rows`); ``min-rows``
        of the node config replaces it.
    """

    party: Party

    def __init__(self, party: Party, purpose: str, at_least: int | None = None) -> None:
        super().__init__(party)
        self._purpose = purpose
        # The owner of the data decides: the node config goes before what a strategy says.
        self._own_minimum: int | None = party.services.node_config.get(MIN_ROWS, at_least)

    @step
    def send_masked(self, limbs: int, owner: str, sealed: bytes, **keys: Any) -> dict[str, Any]:
        """Hand over the own columns under the key stream of the group seed.

        Parameters
        ----------
        limbs : {1, 2}
            See `ring`.
        owner, sealed, **keys
            See `GroupKeySteps.take`.

        Returns
        -------
        dict[str, numpy.ndarray or bytes]
            ``masked`` of shape (n_samples, limbs * n_columns), uint64; the ``tag`` of its content;
            ``scale`` of shape (n_columns,), a power of two by which each was divided; ``min_rows``,
            the fewest rows of a set that may be told of, where this node has its own number.
        """
        group_key = self.other(GroupKeySteps)
        group_key.take(owner, sealed, keys)
        encoded, scale = self._encoded(limbs)
        tag = content_tag(group_key.seed, encoded)
        mask = stream(group_key.seed, self._label(self.name), encoded.shape, tag)
        told = {} if self._own_minimum is None else {"min_rows": self._own_minimum}
        return {"masked": encoded + mask, "tag": tag, "scale": scale, **told}

    @step
    def open_products(
        self,
        limbs: int,
        names: list[str],
        widths: list[int],
        tags: list[bytes],
        group: Indices,
        n_groups: int,
        attempt: bytes = b"",
        n_vectors: int = 0,
        helper: str = "",
        masked_vectors: ring.Ring | None = None,
        helps: list[str] | None = None,
        rho_seed: bytes = b"",
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
        attempt : bytes
            Names the pads of products with vectors; used once.
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

        Returns
        -------
        Summands
            Summed: ``corrections`` of shape (n_groups, n_columns, n_columns) of all parties'
            encoded columns, uint64. Publicly the ``sums`` of shape (n_groups, n_own) and
            ``products`` of shape (n_groups, n_own, n_own) of the own columns; with vectors the own
            share, ``owner``, and ``helper:<name>`` for each party that this one helps.

        Raises
        ------
        DataError
            If a set of rows is too small to be told of.
        ProtocolError
            If the columns have changed since they were sent, or an attempt is used twice.
        """
        seed = self.other(GroupKeySteps).seed
        encoded, _ = self._encoded(limbs)
        if tags[names.index(self.name)] != content_tag(seed, encoded):
            raise ProtocolError(
                f"party {self.name!r}: its columns are no longer those that it sent for "
                f"{self._purpose!r}; a key stream hides one content only, so send them again"
            )
        self._check_rows(group, n_groups, n_vectors, attempt)
        layout = Layout({name: limbs * n for name, n in zip(names, widths, strict=True)})
        streams = {
            name: stream(seed, self._label(name), (len(group), layout.widths[name]), tag)
            for name, tag in zip(names, tags, strict=True)
        }
        groups = rows_by_group(np.asarray(group), n_groups)
        first = self.name == names[0]
        values = {"corrections": corrections(self.name, encoded, streams, layout, groups, first)}
        public = self._own_moments(groups)
        if masked_vectors is not None:
            shape = layout.widths[self.name], limbs * n_vectors
            label = _pad_label(self.name, helper, attempt)
            pads = stream(seed, label, (n_groups, *shape))
            vectors = np.asarray(masked_vectors)
            public["owner"] = np.stack(
                [
                    owner_share(encoded[r], vectors[r], pad)
                    for r, pad in zip(groups, pads, strict=True)
                ]
            )
        if helps:
            rho = stream(rho_seed, "rho", (len(group), limbs * n_vectors))
            for name in helps:
                shape = layout.widths[name], limbs * n_vectors
                pads = stream(seed, _pad_label(name, self.name, attempt), (n_groups, *shape))
                public[f"helper:{name}"] = np.stack(
                    [
                        helper_share(streams[name][r], rho[r], pad)
                        for r, pad in zip(groups, pads, strict=True)
                    ]
                )
        return Summands(values, public, modular=("corrections",))

    def allow(self, group: Indices, n_groups: int, n_vectors: int, attempt: bytes = b"") -> None:
        """Count sums over groups of rows that another step group is asked for, or refuse them.

        Parameters
        ----------
        group, n_groups
            As in `open_products`.
        n_vectors : int
            With how many vectors columns are multiplied.
        attempt : bytes
            With vectors, the name of the pads; used once.
        """
        self._check_rows(group, n_groups, n_vectors, attempt)

    def _label(self, owner: str) -> str:
        return f"columns {self._purpose} of {owner}"

    def _columns(self) -> HeldColumns:
        columns: HeldColumns = self.party.columns_to_multiply()  # type: ignore[attr-defined]
        return columns

    def _encoded(self, limbs: int) -> tuple[ring.Ring, Array]:
        """Return the encoded columns of all samples, 0 where none is held, and their scales."""
        key = f"products.encoded {self._purpose} {limbs}"
        if key not in self.cache:
            filled = self._columns().filled
            scale = np.sqrt(np.mean(filled**2, axis=0))
            scale[scale == 0.0] = 1.0
            # A power of two: the exact root mean square, less what is opened, would tell of the
            # rows that are in no group.
            scale = 2.0 ** np.ceil(np.log2(scale))
            bits = ring.fraction_bits(len(filled))
            encoded = ring.encode(filled / scale, bits, limbs, party=self.name)
            self.cache[key] = encoded, scale
        found: tuple[ring.Ring, Array] = self.cache[key]
        return found

    def _own_moments(self, groups: list[Indices]) -> dict[str, Any]:
        filled = self._columns().filled
        parts = [filled[rows] for rows in groups]
        return {
            "sums": np.stack([part.sum(axis=0) for part in parts]),
            "products": np.stack([part.T @ part for part in parts]),
        }

    def _check_rows(self, group: Indices, n_groups: int, n_vectors: int, attempt: bytes) -> None:
        """Refuse sets of rows that opened sums could be combined to if they are too small.

        Sums over sets that overlap can be subtracted from each other. What can be had from all of
        them are sums over atoms: rows that were in the same group each time.
        """
        columns = self._columns()
        own = np.asarray(group)[columns.rows]
        atoms = np.asarray(self.state.get(_ATOMS, np.zeros(len(own), dtype=np.int64)))
        told = (atoms > 0) | (own >= 0)
        _, refined = np.unique(atoms * (n_groups + 1) + own + 1, return_inverse=True)
        # What was told of before and is split now is told of in both parts.
        sizes = np.unique(refined[told], return_counts=True)[1]
        needed = self._own_minimum
        if needed is None:
            needed = min_rows(columns.values.shape[1], n_vectors)
        smallest = int(sizes.min()) if len(sizes) else needed
        if smallest < needed:
            raise DataError(
                f"party {self.name!r}: what is asked for would tell of {smallest} of its rows "
                f"alone, and of fewer than {needed} nothing is told; merge small groups of rows or "
                "leave them out"
            )
        vectors = int(self.state.get(_VECTORS, 0))
        used = list(self.state.get(_ATTEMPTS, []))
        if n_vectors:
            mark = hashlib.sha256(attempt).digest()
            if len(attempt) < 16 or mark in used:
                raise ProtocolError(
                    f"party {self.name!r}: an attempt of products with vectors has a name of its "
                    "own, at least 16 random bytes; this one was used before: its pad would open "
                    "an equation"
                )
            used.append(mark)
            vectors += n_vectors
        if vectors and vectors > max_vectors(smallest):
            raise DataError(
                f"party {self.name!r}: {vectors} vectors in all are too many for a set of "
                f"{smallest} of its rows, at most {max_vectors(smallest)} tell nothing of one row"
            )
        self.state[_ATOMS] = np.where(told, refined.astype(np.int64) + 1, 0)
        self.state[_ATTEMPTS], self.state[_VECTORS] = used, vectors


def _pad_label(owner: str, helper: str, attempt: bytes) -> str:
    return f"pad {owner!r} {helper!r} {attempt.hex()}"
