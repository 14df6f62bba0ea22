"""The server's half of private products: it masks its vectors, and opens sums by group of rows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.products import ring, row_groups
from flwr_vertical.products.column_products import Layout, open_products, rows_by_group
from flwr_vertical.products.group_key import GroupKey
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.products.vector_products import helpers, open_vector_products
from flwr_vertical.server import Federation, Total

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_ATTEMPT_BYTES = 16


@dataclass(frozen=True)
class Moments:
    """Sums over groups of rows.

    Parameters
    ----------
    sums : numpy.ndarray of shape (n_groups, n_columns)
        Of each column; columns of all parties in the order of their names.
    products : numpy.ndarray of shape (n_groups, n_columns, n_columns)
        Of products of two columns, 0 where a party lacks the row.
    with_vectors : numpy.ndarray of shape (n_groups, n_columns, n_vectors)
        Of products of a column and a vector of the server.
    """

    sums: Array
    products: Array
    with_vectors: Array


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
        One limb gives products to some 1e-9 of a row's size, two to rounding.
    """

    federation: Federation
    group_key: GroupKey
    limbs: int = 2
    _masked: dict[str, ring.Ring] = field(default_factory=dict)
    _scale: dict[str, Array] = field(default_factory=dict)
    _tags: dict[str, bytes] = field(default_factory=dict)
    _minima: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limbs not in (1, 2):
            raise ConfigError(f"limbs must be 1 or 2, got {self.limbs!r}")
        if self.federation.aggregation == "ckks":
            raise ConfigError(
                "private products add whole numbers modulo 2^64, which 'ckks' sums do not carry "
                "exactly; use aggregation='masked', or `encrypted_products` with an arbiter"
            )
        if len(self.federation.parties) < 2:
            raise ConfigError(
                "private products need two parties or more: of one alone all products are its own"
            )

    def send(self) -> dict[str, dict[str, Any]]:
        """Have every party hand over its columns under the group's key stream; one round.

        Returns
        -------
        dict[str, dict[str, Any]]
            By party, what a step that does more than `PrivateProductSteps.send_masked` told.
        """
        replies = self.federation.call(
            "send_masked",
            {"limbs": self.limbs},
            per_party=self.group_key.arguments(),
            unkept=["masked"],  # beside the group seed it would be the table
        )
        self._tags = {name: reply["tag"] for name, reply in replies.items()}
        self._scale = {name: np.asarray(reply["scale"]) for name, reply in replies.items()}
        self._minima = {n: int(r["min_rows"]) for n, r in replies.items() if "min_rows" in r}
        if not all("masked" in reply for reply in replies.values()):
            return replies  # from the journal of a run that is resumed: asked for when needed
        n_samples = {len(reply["masked"]) for reply in replies.values()}
        if len(n_samples) > 1:
            sizes = {name: len(reply["masked"]) for name, reply in replies.items()}
            raise DataError(f"the parties sent columns of different lengths: {sizes}")
        for name, reply in replies.items():
            if reply["masked"].shape[1] != self.limbs * len(self._scale[name]):
                raise PartyError(
                    name,
                    "send_masked",
                    f"sent {reply['masked'].shape[1]} encoded columns for "
                    f"{len(self._scale[name])} in {self.limbs} limbs",
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
        default = row_groups.min_rows(n_columns, n_vectors)
        return max(self._minima.get(name, default) for name in self.federation.parties)

    def moments(
        self,
        group: Indices,
        n_groups: int,
        vectors: Array | None = None,
    ) -> Moments:
        """Open sums over groups of rows; one round.

        Parameters
        ----------
        group : numpy.ndarray of shape (n_samples,)
            Number of each row's group, -1 for rows in none.
        n_groups : int
            How many groups there are.
        vectors : numpy.ndarray of shape (n_samples, n_vectors), optional
            The server's own, finite; no party learns them.

        Raises
        ------
        DataError
            If the vectors do not fit.
        PartyError
            If a party refuses: a group too small, too many vectors.
        """
        if not self._tags:
            raise ConfigError("the parties' columns have not been sent: call `send` first")
        names = self.federation.parties
        group = np.asarray(group, dtype=np.int64)
        n_samples = len(group)
        for masked in self._masked.values():
            if group.shape != (len(masked),):
                raise DataError(f"group has shape {group.shape}, expected ({len(masked)},)")
        bits = ring.fraction_bits(n_samples)
        widths = {name: len(self._scale[name]) for name in names}
        common: dict[str, Any] = {
            "limbs": self.limbs,
            "names": names,
            "widths": list(widths.values()),
            "tags": [self._tags[name] for name in names],
            "group": group,
            "n_groups": n_groups,
        }
        own: dict[str, dict[str, Any]] = {name: {} for name in names}
        rho, unit = {}, np.zeros(0)
        if vectors is not None:
            encoded, unit = self._encoded(np.asarray(vectors, dtype=float), n_samples, bits)
            rho = self._mask_vectors(encoded, common, own)
            common["n_vectors"] = len(unit)
        total = self.federation.sum("open_products", common, per_party=own)
        rows = rows_by_group(group, n_groups)
        rows = rows_by_group(group, n_groups)
        # A resumed run has the sums, but not what they are opened with.
        while not self._masked and self.federation.next_step() in (None, "send_masked"):
            self.send()
        found = self.federation.keep(
            "moments", lambda: self._open(total, rows, widths, bits, own, rho, unit)
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
        rows: list[Indices],
        widths: dict[str, int],
        bits: int,
        own: dict[str, dict[str, Any]],
        rho: dict[str, ring.Ring],
        unit: Array,
    ) -> dict[str, Array]:
        corrections = np.asarray(total["corrections"]).view(np.uint64)
        layout = Layout({name: self.limbs * width for name, width in widths.items()})
        opened = open_products(self._masked, corrections, layout, rows)
        sums, products = self._assemble(opened, total.public, layout, bits)
        with_vectors = np.zeros((len(rows), sum(widths.values()), len(unit)))
        at = 0
        for name in widths if len(unit) else []:
            helper, scale = own[name]["helper"], self._scale[name]
            owners = total.public[name]["owner"]
            helping = total.public[helper][f"helper:{name}"]
            for g, part in enumerate(rows):
                masked = self._masked[name][part]
                encoded = open_vector_products(masked, rho[helper][part], owners[g], helping[g])
                values = ring.decode(encoded, bits, self.limbs, self.limbs)
                with_vectors[g, at : at + widths[name]] = values * np.outer(scale, unit)
            at += widths[name]
        return {"sums": sums, "products": products, "with_vectors": with_vectors}

    def _encoded(self, vectors: Array, n_samples: int, bits: int) -> tuple[ring.Ring, Array]:
        if vectors.ndim != 2 or len(vectors) != n_samples:
            raise DataError(
                f"vectors have shape {vectors.shape}, expected ({n_samples}, n_vectors)"
            )
        unit = np.sqrt(np.mean(vectors**2, axis=0))
        unit[unit == 0.0] = 1.0
        return ring.encode(vectors / unit, bits, self.limbs, party="the server"), unit

    def _mask_vectors(
        self, encoded: ring.Ring, common: dict[str, Any], own: dict[str, dict[str, Any]]
    ) -> dict[str, ring.Ring]:
        """Fill in who gets masked vectors, and who the seed of their mask; return the masks."""
        chosen = helpers(self.federation.parties)
        common["attempt"] = self.federation.random_bytes(_ATTEMPT_BYTES)
        rho = {}
        for helper in dict.fromkeys(chosen.values()):
            seed = self.federation.random_bytes(SEED_BYTES)
            rho[helper] = stream(seed, "rho", encoded.shape)
            served = [name for name, other in chosen.items() if other == helper]
            own[helper] |= {"helps": served, "rho_seed": seed}
            for name in served:
                own[name] |= {"helper": helper, "masked_vectors": encoded + rho[helper]}
        return rho

    def _assemble(
        self, opened: ring.Ring, public: dict[str, Any], layout: Layout, bits: int
    ) -> tuple[Array, Array]:
        names = list(layout.widths)
        starts = np.cumsum([0, *(len(self._scale[name]) for name in names)])
        n_groups, n_columns = len(opened), int(starts[-1])
        sums = np.zeros((n_groups, n_columns))
        products = np.zeros((n_groups, n_columns, n_columns))
        for k, a in enumerate(names):
            here = slice(starts[k], starts[k + 1])
            sums[:, here] = public[a]["sums"]
            products[:, here, here] = public[a]["products"]
            for m, b in enumerate(names[:k]):
                there = slice(starts[m], starts[m + 1])
                unit = np.outer(self._scale[a], self._scale[b])
                for g in range(n_groups):
                    block = opened[g][layout.slice(a), layout.slice(b)]
                    values = ring.decode(block, bits, self.limbs, self.limbs) * unit
                    products[g, here, there] = values
                    products[g, there, here] = values.T
        return sums, products
