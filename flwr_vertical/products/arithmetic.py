"""Arithmetic of private products, modulo 2^64: encoding, columns with columns, with vectors.

**Encoding.** A column x of mean square 1 travels as ``rint(x 2^f)``. By the inequality of Cauchy
and Schwarz a product of two such columns over n rows is at most ``n 2^(2 f)``, so with
``f <= (62 - log2 n) / 2`` no product of columns overflows, whatever the other columns are: each
party checks its own norms.

One limb gives products to ``2^-f`` times the columns' norms. Where that is too coarse, a second
limb carries what rounding left: ``x = (high + low 2^-f) 2^-f``. A product then is two numbers,
``high'high`` and ``high'low + low'high``; what is left out is of size ``2^(-2 f)``.

**Columns of different parties, by groups of rows.** Each party k sends ``U_k = X_k + R_k`` once,
``R_k`` being the key stream of the group seed, which the server does not have. Every party knows
every ``R_l``; so party k can compute ``X_k'R_l`` and one of them ``R_k'R_l``, and a private sum of
these small matrices gives the server

    C_kl = X_k'R_l + (X_l'R_k)' + R_k'R_l,    X_k'X_l = U_k'U_l - C_kl    modulo 2^64.

``U`` is uniform, and ``C`` is a function of ``U`` and of the product that is opened: the server
learns that product and nothing else, for as many groups of rows as are asked for.

All functions work on some rows at a time; their results are added over blocks of rows, so that
neither streams nor encoded columns are ever held whole.

**Vectors of the server.** No party may learn the vector v (labels, gradients). The server sends
``v + rho`` to party k and the seed of ``rho`` to a helper l, which knows ``R_k``; k and l share a
fresh stream s. They answer

    A = X_k'(v + rho) - s,    B = R_k'rho + s,    X_k'v = A + B - U_k'rho    modulo 2^64.

``A`` is uniform by s, ``v + rho`` by rho; the helper sees a seed. A rho that is not the same at
both opens ``X_k'(a - b)``, which the server could have asked for as v: nothing has to be proved.

Who must never come together: ``v + rho`` and the seed of its rho, at one node; one s and two
different rho. `helpers` chooses so; the label of s names the attempt.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from flwr_vertical.arrays import Array, Indices, Ring
from flwr_vertical.errors import ConfigError, FixedPointOverflowError, ProtocolError

_ROWS = 4096
"""Rows per pass of a product: what is transposed stays in the cache."""


def fraction_bits(n_rows: int) -> int:
    """Return the most fraction bits with which products over so many rows cannot overflow."""
    return max((62 - math.ceil(math.log2(max(n_rows, 1)))) // 2, 0)


def encode(
    x: Array, bits: int, limbs: int, names: list[str] | None = None, party: str = ""
) -> Ring:
    """Encode columns.

    Shapes: x (n_rows, n_columns): finite, each column of mean square at most 1 (to rounding) over
    the rows; returns (n_rows, limbs * n_columns): all high limbs, then all low ones.
    """
    n_rows = max(len(x), 1)
    square = np.einsum("ij,ij->j", x, x) / n_rows
    wrong = np.flatnonzero(~(square <= 1.0 + 1e-6))
    if len(wrong):
        j = int(wrong[0])
        name = repr(names[j]) if names else f"number {j}"
        raise FixedPointOverflowError(
            f"party {party!r}, column {name}: its root mean square is {math.sqrt(square[j]):.6g}, "
            f"and at most 1 fits a product over {n_rows:,} rows with {bits} fraction bits; divide "
            "the column by its root mean square first"
        )
    return encode_rows(x, bits, limbs)


def encode_rows(x: Array, bits: int, limbs: int) -> Ring:
    """Encode some rows of columns whose size has been checked; parameters as of `encode`."""
    scaled = x * 2.0**bits
    high = np.rint(scaled)
    out = np.empty((len(x), limbs * x.shape[1]), dtype=np.int64)
    out[:, : x.shape[1]] = high
    if limbs == 2:
        out[:, x.shape[1] :] = np.rint((scaled - high) * 2.0**bits)
    return out.view(np.uint64)


def product(a: Ring, b: Ring) -> Ring:
    """Return ``a' b`` (n_a, n_b) of a (n_rows, n_a) and b (n_rows, n_b), modulo 2^64."""
    total = np.zeros((a.shape[1], b.shape[1]), dtype=np.uint64)
    for start in range(0, len(a), _ROWS):
        rows = slice(start, start + _ROWS)
        total += _product(np.ascontiguousarray(a[rows].T), np.ascontiguousarray(b[rows].T))
    return total


def _product(a: Ring, b: Ring) -> Ring:
    # Sums run along memory: four times as fast as a matrix product of integers.
    return np.asarray(np.einsum("in,jn->ij", a, b))


def limbs_of(encoded: Ring, limbs: int) -> list[Ring]:
    """Return the limbs of encoded columns, transposed: copies of shape (n_columns, n_rows)."""
    width = encoded.shape[1] // limbs
    return [np.ascontiguousarray(encoded[:, i * width : (i + 1) * width].T) for i in range(limbs)]


def product_of_limbs(a: Sequence[Ring], b: Sequence[Ring]) -> Ring:
    """Return ``a' b`` of columns in limbs, modulo 2^64.

    Shapes: a, b (n_a, n_rows): of `limbs_of`, as many of both; returns (n_limbs, n_a, n_b):
    ``high'high``, and ``high'low + low'high`` where there are two limbs.
    """
    found = [_product(a[0], b[0])]
    if len(a) == 2:
        found.append(_product(a[0], b[1]) + _product(a[1], b[0]))
    return np.stack(found)


def decode(ring: Ring, bits: int) -> Array:
    """Turn (n_limbs, n_a, n_b) of `product_of_limbs` into numbers (n_a, n_b)."""
    signed = np.ascontiguousarray(ring).view(np.int64)
    total = np.zeros(ring.shape[1:])
    for i in range(len(ring)):
        total += signed[i].astype(np.float64) * 2.0 ** (-bits * (2 + i))
    return total


BLOCK_ROWS = 8192
"""Rows at a time: of 50 columns, 3 MB."""


@dataclass(frozen=True)
class Layout:
    """Where each party's columns stand in the matrix of all columns."""

    widths: Mapping[str, int]  # By party, in the order of the matrix, its number of columns
    limbs: int = 1  # Of each number, 1 or 2

    @property
    def total(self) -> int:
        """Number of columns of all parties."""
        return sum(self.widths.values())

    @property
    def slices(self) -> dict[str, slice]:
        """Columns of each party."""
        ends = accumulate(self.widths.values())
        return {
            name: slice(end - width, end)
            for (name, width), end in zip(self.widths.items(), ends, strict=True)
        }

    def slice(self, party: str) -> slice:
        """Columns of a party."""
        return self.slices[party]

    def zeros(self, n_groups: int) -> Ring:
        """Return zeros of the shape of the corrections of so many groups."""
        return np.zeros((n_groups, self.limbs, self.total, self.total), dtype=np.uint64)

    def together(self, parts: Mapping[str, Ring]) -> list[Ring]:
        """Put the encoded columns of all parties together, each limb transposed by itself."""
        n_rows = len(next(iter(parts.values())))
        out = [np.empty((self.total, n_rows), dtype=np.uint64) for _ in range(self.limbs)]
        for name, here in self.slices.items():
            width = self.widths[name]
            for i, limb in enumerate(out):
                limb[here] = parts[name][:, i * width : (i + 1) * width].T
        return out


def rows_by_group(group: Indices, n_groups: int) -> list[Indices]:
    """Return the rows of each group, ascending, of the group of each row; -1 is none."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(n_groups + 1))
    return [order[starts[g] : starts[g + 1]] for g in range(n_groups)]


def blocks_by_group(group: Indices, n_groups: int) -> Iterator[tuple[int, int, list[Indices]]]:
    """Go through the rows in blocks."""
    for start in range(0, len(group), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(group))
        yield start, stop, rows_by_group(group[start:stop], n_groups)


def corrections(
    party: str,
    own: Ring,
    streams: Mapping[str, Ring],
    layout: Layout,
    groups: Sequence[Indices],
    first: bool,
) -> Ring:
    """Return a party's term of the corrections, for every group of rows.

    Shapes: own (n_rows, limbs * n_own): its encoded columns, 0 in rows that it lacks; streams
    (n_rows, limbs * n_columns): by party, the key stream of its columns; returns (n_groups, limbs,
    n_columns, n_columns): of each pair of parties, the block in the rows of the later one; the
    rest is zero.
    """
    masks = layout.together(streams)
    mine, here = limbs_of(own, layout.limbs), layout.slices[party]
    out = layout.zeros(len(groups))
    for found, rows in zip(out, groups, strict=True):
        if not len(rows):
            continue
        theirs, own_rows = _rows(masks, rows), _rows(mine, rows)
        before = [limb[: here.start] for limb in theirs]
        after = [limb[here.stop :] for limb in theirs]
        found[:, here, : here.start] += product_of_limbs(own_rows, before)
        found[:, here.stop :, here] += product_of_limbs(after, own_rows)
        if first:
            _add_products(found, theirs, layout)
    return out


def products_of_masked(
    masked: Mapping[str, Ring], layout: Layout, groups: Sequence[Indices]
) -> Ring:
    """Return ``U_k'U_l`` of different parties; less all corrections, it is ``X_k'X_l``.

    Shapes: masked (n_rows, limbs * n_columns): what each party sent, ``U_k``; returns (n_groups,
    limbs, n_columns, n_columns): in the places of `corrections`.
    """
    everything = layout.together(masked)
    out = layout.zeros(len(groups))
    for found, rows in zip(out, groups, strict=True):
        if len(rows):
            _add_products(found, _rows(everything, rows), layout)
    return out


def _add_products(found: Ring, columns: Sequence[Ring], layout: Layout) -> None:
    """Add the products of every party's columns with those of the parties before it."""
    for here in layout.slices.values():
        if here.start:
            of_party = [limb[here] for limb in columns]
            before = [limb[: here.start] for limb in columns]
            found[:, here, : here.start] += product_of_limbs(of_party, before)


def _rows(limbs: Sequence[Ring], rows: Indices) -> list[Ring]:
    if len(rows) == limbs[0].shape[1]:  # all of them, in order: no copy is needed
        return list(limbs)
    return [np.take(limb, rows, axis=1) for limb in limbs]


def owner_share(own: Ring, masked_vectors: Ring, pad: Ring) -> Ring:
    """Return ``A``, from the owner of the columns.

    Shapes: own (n_rows, n_columns): its encoded columns; masked_vectors (n_rows, n_vectors): ``v +
    rho``; pad (n_columns, n_vectors): ``s``.
    """
    return product(own, masked_vectors) - pad


def helper_share(stream: Ring, rho: Ring, pad: Ring) -> Ring:
    """Return ``B``, from the helper, of the same shape.

    Shapes: stream (n_rows, n_columns): ``R_k``, the stream of the owner's columns; rho (n_rows,
    n_vectors): what the server masked its vectors with; pad (n_columns, n_vectors): ``s``.
    """
    return product(stream, rho) + pad


def open_vector_products(masked: Ring, rho: Ring, owner: Ring, helper: Ring) -> Ring:
    """Return ``X_k'v``, encoded, of shape (n_columns, n_vectors); the server's part.

    Shapes: masked (n_rows, n_columns): ``U_k``; rho (n_rows, n_vectors); owner, helper (n_columns,
    n_vectors): ``A`` and ``B``.
    """
    return owner + helper - product(masked, rho)


def limb_shares(columns: Ring, vectors: Ring, limbs: int) -> Ring:
    """Return what the shares are made of where columns and vectors come in limbs.

    Shapes: columns (n_rows, limbs * n_columns): ``X_k``, ``R_k`` or ``U_k``; vectors (n_rows,
    limbs * n_vectors): ``v + rho``, or ``rho``; returns (limbs, n_columns, n_vectors): to be added
    over blocks of rows, then less or plus the pad.
    """
    return product_of_limbs(limbs_of(columns, limbs), limbs_of(vectors, limbs))


def own_place(party: str, names: list[str], widths: list[int], width: int) -> int:
    """Return where a party stands among all; refuse lists in which it has other columns."""
    place = names.index(party) if party in names else -1
    if place < 0 or len(set(names)) < len(names) or widths[place] != width:
        raise ProtocolError(
            f"party {party!r}: products are of different parties, and it is one of them, with "
            f"{width} columns; got {names} with {widths} columns"
        )
    return place


def helpers(parties: Sequence[str]) -> dict[str, str]:
    """Choose, for each party, who helps with its products.

    With three parties and more, the first helps all others and the second helps the first, so two
    masks of each vector suffice. With two, each helps the other.
    """
    if len(parties) < 2:
        raise ConfigError(
            "a private product with a vector of the server needs a second party as helper, and "
            "this run has one party"
        )
    first, second = parties[0], parties[1]
    return {name: second if name == first else first for name in parties}
