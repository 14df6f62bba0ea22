"""A party's half of products of completed rows; see `completion`.

Rules that a party keeps, beside those of `products.masked`: its own rows, those that it shares with
each other party, and the differences of these sets are none or enough, as for pairs
(`products.told_rows`); so are the rows that it lacks, of which completed rows tell. Parties that
share too few rows share none. Coefficients are those of a mean and a covariance that all parties
were told, with a smallest eigenvalue; a column of which nothing may be told enters none. At most
three times after the first, rows are completed by another one. All that is opened has noise, and
what was asked is under the pads of the sum: whoever is asked for something else spoils it.
"""

import hashlib
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
from scipy.special import ndtri

from flwr_vertical import Summands, step
from flwr_vertical.arrays import Array, Flags, Indices, Integers, Integers32, Ring
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.record import key_of
from flwr_vertical.privacy import KEY_BYTES, fresh_keystream
from flwr_vertical.privacy.keystream import Keystream
from flwr_vertical.products import GroupKeySteps, HeldColumns, PrivateProductSteps
from flwr_vertical.products.arithmetic import Layout, own_place
from flwr_vertical.products.columns import EncodedColumns
from flwr_vertical.products.labels import ATTEMPT_BYTES, LabelSketch
from flwr_vertical.products.masked import SendFields
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.streams import SEED_BYTES, KeyStream
from flwr_vertical.products.told_rows import COMMITMENT_BYTES
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within
from strategies.vfem.completion import (
    GRID,
    LEAST_EIGENVALUE,
    LEAST_SHIFT,
    LEAST_SPREAD,
    MOST_MEAN,
    MOST_SPREAD,
    ROOM,
    Point,
    RowPatterns,
    are_those_of,
    complete,
    products_of_completed,
    unit_bits,
    whole_centres,
)

STEPS = 3
"""By so many means and covariances rows are completed, in a run."""

NEAR = 0.8
"""Share of a column's standard deviation over its party's rows that noise may count it as."""

# Under a prefix that the server may not write to.
_POINTS, _ROWS = "node.vfem.points", "node.vfem.rows"


class LabelShare(TypedDict, total=False):
    """The server's label under a mask, for the own columns, and the mask's seed for others'."""

    helper: Annotated[str, OWN]
    masked_vectors: Annotated[Ring, Shape("n_rows", 1), OWN]
    helps: Annotated[list[str], Within(0, "names"), DISTINCT, OWN]
    rho_seed: Annotated[bytes, Within(0, SEED_BYTES), OWN]
    sketched: Annotated[Ring, Shape(1), OWN]


def normal_integers(sigma: Array, stream: Keystream) -> Ring:
    """Draw rounded normal numbers modulo 2^64 with standard deviations, of their shape."""
    words = stream.words(np.empty(sigma.shape, dtype=np.uint64))
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(np.rint(sigma * ndtri(uniform)).astype(np.int64).view(np.uint64))


class CompletedRowSteps(PrivateProductSteps):
    """Private products, also of rows that all parties together complete."""

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[SendFields],
    ) -> dict[str, Any]:
        """Hand over the own columns, as `PrivateProductSteps.send_masked`.

        Message: limbs, owner, sealed, **keys: see there; returns, beside what is returned there,
        ``shifts`` (n_own,): where columns leave room, the power of two by which each is divided.
        """
        told = super().send_masked(limbs, owner, sealed, **keys)
        if keys.get("room"):
            told["shifts"] = _shifts(self._encoded(limbs)[0])
        return told

    @step
    def open_completed(
        self,
        names: Names,
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        shifts: Annotated[Integers, Shape("n_columns - 1"), Within(LEAST_SHIFT, 60)],
        n_rows: Annotated[int, Within(1, 2**40)],
        n_columns: Annotated[int, Within(2, 2**20)],
        taken: Annotated[Flags, Shape("n_rows")],
        held: Annotated[Flags, Shape("n_rows", "names")],
        mean: Annotated[Integers, Shape("n_columns"), Within(-MOST_MEAN, MOST_MEAN)],
        spread: Annotated[Integers, Shape("n_columns"), Within(LEAST_SPREAD, MOST_SPREAD)],
        correlations: Annotated[Integers, Shape("n_columns", "n_columns")],
        sizes: Annotated[Integers, Shape("n_columns"), Within(LEAST_SPREAD, MOST_SPREAD)],
        coefficients: Integers32,
        attempt: Annotated[bytes, Within(ATTEMPT_BYTES, ATTEMPT_BYTES)],
        commitment: Annotated[bytes, Within(COMMITMENT_BYTES, COMMITMENT_BYTES)],
        **label: Unpack[LabelShare],
    ) -> Summands:
        """Send what lets the server open products of completed rows, and nothing else.

        Message: names, widths, tags: as of `open_products`; shifts (n_columns - 1,): of all
        parties' columns, as they told; n_rows, n_columns: labelled samples; columns and the label;
        taken (n_rows,): the rows that take part; held (n_rows, n_parties): which parties hold each
        row; mean, spread, sizes (n_columns,), correlations (n_columns, n_columns): `Point`;
        coefficients (n_coefficients,): `completion.coefficients`; attempt, commitment, **label: as
        of `open_products`, of one vector; returns, summed, ``corrections`` (1, 1, n_columns + 1,
        n_columns + 1), uint64, with noise; publicly which of the own columns are ``withheld`` (1,
        n_own).

        Raises
        ------
        PolicyError
            If a set of rows is too small to be told of.
        ProtocolError
            If coefficients are not those of the point, a column is withheld and enters one, or
            rows were completed often enough.
        """
        seed = self.other(GroupKeySteps).seed
        encoded, tag = self._encoded(1)
        place = own_place(self.name, names, widths, len(encoded.scale))
        if tags[place] != tag or encoded.room != ROOM:
            raise ProtocolError(
                f"party {self.name!r}: the server asks for completed rows of other columns than "
                f"those that this party sent for {self._purpose!r}"
            )
        if sum(widths) + 1 != n_columns or n_rows != encoded.shape[0]:
            raise ProtocolError(
                f"party {self.name!r}: {n_columns - 1} columns of {n_rows} rows are not those of "
                f"all parties, {sum(widths)} of {encoded.shape[0]}"
            )
        self._fix_rows(taken, held)
        patterns = RowPatterns.of(taken, held, widths)
        powers = np.append(shifts, ROOM)
        layout = Layout(dict(zip(names, widths, strict=True)))
        here = layout.slices[self.name]
        if not np.array_equal(shifts[here], _shifts(encoded)):
            raise ProtocolError(f"party {self.name!r}: its columns have other shifts than these")
        point = Point(mean, spread, correlations, sizes)
        self._check_point(point, coefficients, patterns, powers)
        self._check_sizes(encoded.held, taken, sizes, here)
        own_label: dict[str, Any] = dict(label)
        helps, rho_seed = own_label.get("helps") or [], own_label.get("rho_seed", b"")
        masked, helper = own_label.get("masked_vectors"), own_label.get("helper", "")
        sketch = LabelSketch(self.party)
        sketch.check_help(helps, rho_seed)
        recognised = sketch.commitment(own_label.get("sketched"), masked, helper)
        withheld = self._admit_completed(
            encoded.held, layout, taken, held, attempt, commitment, recognised
        )
        joined = np.asarray(correlations, dtype=bool)[here].any(axis=1)
        if (joined & withheld[0]).any():
            raise ProtocolError(
                f"party {self.name!r}: rows are to be completed from a column of which nothing may "
                "be told"
            )
        parts = (shifts, taken, held, coefficients)
        content = point.digest() + b"".join(np.ascontiguousarray(p).tobytes() for p in parts)
        told_all = repr((names, widths, tags, attempt, commitment)).encode()
        asked = hashlib.sha256(self.party.services.binding() + told_all + content).digest()
        self._count(point, asked)
        # -- the terms of this party
        d = n_columns
        centre = whole_centres(point, n_rows, powers)
        masks = np.zeros((4, len(patterns.rows), d), dtype=np.uint64)  # all, own, helped ones'
        for name, width, its_tag in zip(names, widths, tags, strict=True):
            stream = KeyStream(seed, self._label(name), (n_rows, width), its_tag)
            part = stream.rows(0, n_rows)[patterns.rows]
            part = part * held[patterns.rows, names.index(name)][:, None]
            masks[0][:, layout.slices[name]] = part
            if name == self.name:
                masks[1][:, here] = part
            if name in helps:
                masks[2][:, layout.slices[name]] = part
        terms = np.zeros((3, len(patterns.rows), d), dtype=np.uint64)  # columns, label, its mask
        own = encoded.rows(0, n_rows)[patterns.rows] - centre[here]
        terms[0][:, here] = own * held[patterns.rows, place][:, None]
        if masked is not None:
            terms[1][:, -1] = np.asarray(masked)[patterns.rows, 0] - centre[-1]
        if helps:
            rho = KeyStream(rho_seed, "rho", (n_rows, 1)).rows(0, n_rows)
            terms[2][:, -1] = rho[patterns.rows, 0]
        sides = np.concatenate([masks[:3], terms])
        done = complete(sides, coefficients, patterns, powers)
        every, mine, helped, columns, of_label, of_rho = done
        total = np.zeros((d + 1, d + 1), dtype=np.uint64)
        total[:d, :d] = products_of_completed(columns, every)
        if masked is not None:
            total[:d, :d] += products_of_completed(of_label, mine)
        if helps:
            total[:d, :d] -= products_of_completed(of_rho, helped)
        if place == 0:
            total[:d, :d] += every.T @ every
            total[:d, d] += every.sum(axis=0, dtype=np.uint64) << np.uint64(unit_bits(n_rows))
            total[d, :d] = total[:d, d]
        size = np.append(sizes, GRID) / GRID
        total += self._noise(size, len(names), unit_bits(n_rows), asked, content)
        blinded = total[None, None]
        self._blind(blinded, layout, withheld, seed, asked)
        return Summands({"corrections": blinded}, {"withheld": withheld}, modular=("corrections",))

    def _check_point(
        self, point: Point, coefficients: Integers32, patterns: RowPatterns, shifts: Integers
    ) -> None:
        """Refuse coefficients by which a completed row could hang on few numbers."""
        told = point.correlations
        both = patterns.joint_rows
        sound = np.array_equal(told, told.T) and not np.diag(told).any()
        sound = sound and bool((np.abs(told) <= np.sqrt(np.maximum(both, 1.0))).all())
        least = point.least_eigenvalue(both) if sound else float("nan")
        if not least >= LEAST_EIGENVALUE:
            raise ProtocolError(
                f"party {self.name!r}: rows are to be completed by correlations whose smallest "
                f"eigenvalue is {least:.3g}, and it is to be at least {LEAST_EIGENVALUE}"
            )
        if not are_those_of(coefficients, point, patterns, shifts):
            raise ProtocolError(
                f"party {self.name!r}: the coefficients of completed rows are not those of the "
                "covariance that comes with them"
            )

    def _admit_completed(
        self,
        columns: HeldColumns,
        layout: Layout,
        taken: Flags,
        held: Flags,
        attempt: bytes,
        commitment: bytes,
        recognised: bytes,
    ) -> Flags:
        """Decide on sums over the own rows and over those that it lacks, shape (1, n_own)."""
        names = list(layout.widths)
        place, own = names.index(self.name), np.asarray(held)[:, names.index(self.name)]
        counts = np.asarray(held)[taken].astype(np.int64).T @ np.asarray(held)[taken]
        # Each of the steps tells the other party as much of the own columns as pairs do.
        widths = {name: STEPS * width for name, width in layout.widths.items()}
        wanted = counts[place] > 0
        withheld, far, apart = self._told.admit_pairs(columns, widths, taken, held, wanted)
        few = [name for name, is_few in zip(names, far & wanted, strict=True) if is_few]
        lacked = int((taken & ~own).sum())
        if 0 < lacked < self._told.fewest(columns.values.shape[1]):
            few.append(f"the {lacked} rows that it lacks")
        if few:
            raise PolicyError(
                f"party {self.name!r}",
                key_of("min_rows"),
                f"sums over rows that are told of with {few}, which are few",
                "none of them, or as many as the rule on pairs says",
                "leave these rows out",
            )
        group: Indices = np.where(taken & own, 0, -1)
        n_others = sum(widths.values()) - columns.values.shape[1]
        of_label = self._told.admit(
            columns, group, 1, None, 1, attempt, commitment, recognised, n_others=n_others
        )
        return withheld | of_label | apart[~far].any(axis=0)

    def _fix_rows(self, taken: Flags, held: Flags) -> None:
        """Refuse other rows than before."""
        rows = hashlib.sha256(taken.tobytes() + held.tobytes()).digest()
        if bytes(self.party.state.setdefault(_ROWS, rows)) != rows:
            raise ProtocolError(
                f"party {self.name!r}: other rows are to be completed than before in this run"
            )

    def _count(self, point: Point, asked: bytes) -> None:
        """Refuse more sums than a run may open; the same may be asked for again."""
        state = self.party.state
        known = [bytes(item) for item in state.get(_POINTS, [])]
        if asked in known:
            return
        if not known and point.correlations.any():
            raise ProtocolError(
                f"party {self.name!r}: rows are completed by what sums over pairs gave; these come "
                "first"
            )
        if len(known) > STEPS:
            raise ProtocolError(
                f"party {self.name!r}: rows were completed {STEPS} times in this run, which is the "
                "most; more steps would tell of small groups of rows"
            )
        state[_POINTS] = [*known, asked]

    def _check_sizes(self, held: HeldColumns, taken: Flags, sizes: Integers, here: slice) -> None:
        """Refuse noise that is smaller than the own columns' rows."""
        own = held.values[taken[held.rows]]
        spread = own.std(axis=0) if len(own) else np.zeros(held.values.shape[1])
        wrong = np.minimum(spread, MOST_SPREAD / GRID) * NEAR > (sizes[here] + 0.5) / GRID
        if wrong.any() or sizes[-1] != GRID:
            raise ProtocolError(
                f"party {self.name!r}: the noise on completed rows is to be smaller than a row"
            )

    def _noise(self, size: Array, n_parties: int, bits: int, asked: bytes, content: bytes) -> Ring:
        """Draw this party's noise: that of all others together has the size of a row.

        Shapes: size (n_numbers,): of each number of a row; returns (n_numbers, n_numbers):
        symmetric.
        """
        key = self.party.secret_of("noise of completed rows", asked, KEY_BYTES)
        label = hashlib.sha256(content).hexdigest()
        stream = fresh_keystream(f"completed rows of {self.name} {label}", key)
        upper = np.triu_indices(len(size))
        found = np.zeros((len(size), len(size)), dtype=np.uint64)
        sigma = 2.0 ** (2 * bits) / noise_parts(n_parties) * np.outer(size, size)[upper]
        drawn = normal_integers(sigma, stream)
        found[upper] = found.T[upper] = drawn
        return found


def noise_parts(n_parties: int) -> float:
    """Return the root of the number of parties whose noise adds up to a variance of 1."""
    return float(np.sqrt(max(n_parties - 1, 1)))


def noise_variance(n_parties: int) -> float:
    """Return the variance of the noise of all parties, for numbers of size 1."""
    return n_parties / noise_parts(n_parties) ** 2


def _shifts(encoded: EncodedColumns) -> Integers:
    return np.asarray(np.rint(np.log2(encoded.scale)), dtype=np.int64)
