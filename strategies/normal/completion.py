"""Completion by a joint normal model: terms for others' rows, means of the own rows; both halves.

A party tells, under a key stream of the group, which rows it wants completed. Each other party that
holds such a row sends what its columns say of it, in whole numbers of the recipient's units, at
most ``BITS`` bits a number; the recipient adds a pad that only it knows, so that the private sum is
the recipient's alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Annotated, Any, TypeAlias, TypedDict, Unpack

import numpy as np
from scipy.special import ndtri

from flwr_vertical import Federation, Party, StepGroup, Summands, step
from flwr_vertical.arrays import Array, Flags, Floats32, Indices, Ring
from flwr_vertical.counted import counted
from flwr_vertical.errors import ProtocolError
from flwr_vertical.privacy_ledger.ledger import HELD_BY_ALL
from flwr_vertical.products import GroupKeySteps, HeldColumns
from flwr_vertical.products.arithmetic import Layout, own_place
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.pairs import PairProducts
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits
from strategies.normal.equations import Conditionals, Conditioner, JointModel, Shown

BITS = 8
"""Of a mean that a party is told: from -127 to 127 units."""

MOST = 2.0 ** (BITS - 1) - 1
_PAD = "pad of completed rows"
_DIRECTION = 0.01
"""Of a column's variance: less does not count among the directions that columns vary in."""

_Coefficients = TypedDict(
    "_Coefficients",
    {
        "wanted:*": Annotated[Ring, Shape("n_samples")],
        "for:*": Annotated[Floats32, OWN, Shape("n_patterns", None, None)],
    },
    total=False,
)
"""By party, which rows it wants (under a key stream), and what own columns are multiplied with."""


class CompletionSteps(StepGroup):
    """Sends terms of others' rows, and reads the means of the own ones.

    The party uses `GroupKeySteps`, and its `columns_to_multiply` are over aligned rows; its
    `own_covariance` (n_own, n_own) is of these columns over the own rows.
    """

    party: Party

    def wish(self, wanted: Flags, tag: bytes) -> dict[str, Any]:
        """Return what the server needs to have rows completed.

        Shapes: wanted (n_samples,): which rows; tag: of the columns that it sent; returns
        ``wanted`` (n_samples,), uint64, under a key stream, and ``n_alone``: how many numbers the
        party tells of a row where it alone helps.
        """
        flags = wanted.astype(np.uint64) + self._flag_stream(self.name, tag)
        return {"wanted": flags, "n_alone": self._most_alone}

    @step
    def complete(
        self,
        names: Names,
        widths: Widths,
        tags: Annotated[list[bytes], Within("names", "names")],
        holders: Annotated[Flags, Shape("n_patterns", "names")],
        n_patterns: Annotated[int, Within(1, "n_samples")],
        pattern: Annotated[Indices, Shape("n_samples"), Within(0, "n_patterns - 1")],
        **more: Unpack[_Coefficients],
    ) -> Summands:
        """Send what the own columns say of the rows that others want completed.

        Message: names, widths, tags: of all parties, as in `PairProductSteps.open_pairs`; holders
        (n_patterns, n_parties): who holds the rows of each pattern; nobody: these take no part;
        pattern (n_samples,): of each row; ``wanted:<name>``: as that party sent it; ``for:<name>``
        (n_patterns, n_own, n): what the own columns are multiplied with; returns, by party,
        (n_samples, n), uint64: whole numbers of its units; the own ones are a pad that only this
        party knows.
        """
        arguments: dict[str, Any] = dict(more)
        columns = self._columns()
        mine, held = columns.filled, np.zeros(len(pattern), dtype=bool)
        place = own_place(self.name, names, widths, mine.shape[1])
        held[columns.rows] = True
        who = np.asarray(holders, dtype=bool)[pattern]
        held &= who.any(axis=1)
        if not np.array_equal(held, who[:, place]):
            raise ProtocolError(
                f"party {self.name!r}: it holds other rows than the server's patterns say"
            )
        self.count(names, widths, who, pattern)
        answer: dict[str, Ring] = {}
        most = self._most_alone
        for name, width, tag in zip(names, widths, tags, strict=True):
            if name == self.name:
                # Another request has another pad, else two sums would open their difference.
                self.state[_PAD] = self.party.secret_bytes(_PAD)
                answer[name] = self._pad((len(pattern), width))
                continue
            if f"for:{name}" not in arguments:
                continue
            wanted = self._unmasked(name, tag, arguments.get(f"wanted:{name}"))
            by_pattern = np.asarray(arguments[f"for:{name}"], dtype=np.float64)
            check_fits(self.name, f"for:{name}", by_pattern, Shape(None, mine.shape[1], width))
            self._check_alone(name, names.index(name), place, holders, by_pattern, most)
            self.check_terms(name, names.index(name), by_pattern)
            term = np.zeros((len(pattern), width))
            rows = np.flatnonzero(wanted & held)
            self._admit(name, rows, width)
            for g in np.unique(pattern[rows]):
                of_pattern = rows[pattern[rows] == g]
                term[of_pattern] = mine[of_pattern] @ by_pattern[g]
            whole = np.rint(np.clip(term, -MOST, MOST)).astype(np.int64)
            answer[name] = whole.view(np.uint64)
        return Summands(answer, modular=tuple(answer))

    def count(self, names: Names, widths: Widths, who: Flags, pattern: Indices) -> None:
        """Count what else than numbers for parties may follow from terms; nothing by default.

        Shapes: who (n_samples, n_parties): who holds each row that takes part.
        """

    def check_terms(self, name: str, number: int, by_pattern: Array) -> None:
        """Refuse columns that a party's rows are not to be completed by; none by default.

        Shapes: by_pattern (n_patterns, n_own, n): what own columns are multiplied with.
        """

    def means(self, pattern: Indices, total: Ring, offset: Array, unit: Array) -> Array:
        """Return the means of the own columns, (n_samples, n_own), given the others'.

        Shapes: pattern (n_samples,): as in `complete`; total (n_samples, n_own): the sum of all
        terms, under the own pad; offset, unit (n_patterns, n_own): what is added to it, its unit.
        """
        n_own = self._columns().values.shape[1]
        for name, given in (("total", total), ("offset", offset), ("unit", unit)):
            check_fits(self.name, name, given, Shape(None, n_own))
        whole = (np.asarray(total) - self._pad(np.shape(total))).view(np.int64)
        return np.asarray(whole * unit[pattern] + offset[pattern])

    def forget(self) -> None:
        """Erase the pad under which the own means came."""
        self.state.pop(_PAD, None)

    def noise(self, draw: int, n_columns: int, owner: str = "") -> Array:
        """Return standard normal numbers, (n_samples, n_columns), that all parties share.

        With an owner, they are for that party's columns alone.

        They follow from the group seed, which the server does not have; in a simulation, from which
        nothing is hidden, from the seed of the run, so that draws can be had again.
        """
        services, shape = self.party.services, (self.party.n_samples, n_columns)
        seed = self.other(GroupKeySteps).seed
        if services.in_memory:
            seed = hashlib.sha256(f"noise {services.seed}".encode()).digest()
        whole = KeyStream(seed, f"noise of draw {draw} {owner}", shape).rows(0, shape[0])
        return np.asarray(ndtri(((whole >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))

    @property
    def _most_alone(self) -> int:
        """Half of how many directions the own columns vary in: as many would tell a row."""
        covariance: Array = self.party.own_covariance()  # type: ignore[attr-defined]
        varies = np.flatnonzero(np.diag(covariance) > 1e-10)  # columns are in rough units
        size = np.sqrt(np.diag(covariance)[varies])
        values = np.linalg.eigvalsh(covariance[np.ix_(varies, varies)] / np.outer(size, size))
        return int((values > _DIRECTION).sum()) // 2

    def _columns(self) -> HeldColumns:
        columns: HeldColumns = self.party.columns_to_multiply()  # type: ignore[attr-defined]
        return columns

    def _admit(self, name: str, rows: Indices, width: int) -> None:
        """Write down what a party is told of own rows, or refuse."""
        chosen = np.zeros(len(self.party.positions), dtype=bool)
        chosen[self.party.rows_of(rows)[1]] = True
        self.party.open_bits(
            chosen,
            float(BITS * width),
            content=self.party.secret_bytes(f"terms for {name}"),
            agreed=True,
            what=f"terms of means of {width} column(s) of {name!r}",
            receiver=f"party {name!r}",
            colluding=HELD_BY_ALL,
        )

    def _check_alone(
        self, name: str, other: int, place: int, holders: Flags, by_pattern: Array, most: int
    ) -> None:
        """Refuse to tell more of a row than half where nobody else helps."""
        alone = np.asarray(holders, dtype=bool).copy()
        alone[:, other] = False
        alone = alone[:, place] & (alone.sum(axis=1) == 1)
        for g in np.flatnonzero(alone):
            values = np.linalg.svd(by_pattern[g], compute_uv=False)
            if (values > 1e-4 * values.max(initial=0.0)).sum() > most:
                raise ProtocolError(
                    f"party {self.name!r}: {name!r} would be told more than {most} number(s) a row "
                    f"of rows that this party alone completes: half of how many of its "
                    f"{by_pattern.shape[1]} column(s) do not follow from the others"
                )

    def _pad(self, shape: tuple[int, ...]) -> Ring:
        return KeyStream(bytes(self.state[_PAD]), _PAD, shape).rows(0, shape[0])

    def _flag_stream(self, owner: str, tag: bytes) -> Ring:
        seed, n = self.other(GroupKeySteps).seed, self.party.n_samples
        return KeyStream(seed, f"rows that {owner} wants", (n,), tag).rows(0, n)

    def _unmasked(self, name: str, tag: bytes, wanted: Ring | None) -> Flags:
        flags = None if wanted is None else wanted - self._flag_stream(name, tag)
        if flags is None or flags.max(initial=np.uint64(0)) > 1:
            raise ProtocolError(
                f"party {self.name!r}: which rows {name!r} wants is not what that party sent"
            )
        return flags.astype(bool)


@dataclass(frozen=True)
class OfferedRows:
    """What parties offered in a run without products: numbers of columns, and tags."""

    widths: Mapping[str, int]
    tags: Sequence[bytes]


def ask_for_means(
    federation: Federation,
    products: PairProducts | OfferedRows,
    model: JointModel,
    held: Flags,
    sent: Mapping[str, Mapping[str, Any]],
    shown: Shown | None = None,
    *,
    errors: bool = False,
    draws: bool = False,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Have the parties send terms of the rows that others want completed; one round.

    Shapes: held (n_samples, n_parties): who holds each row; sent: by party, what `send_masked`
    told, with ``wanted`` and whether it lacks ``cells`` of rows that it holds; shown: what they
    show of their columns in rows with missing cells; errors, draws: whether ``sure`` and ``factor``
    of `Conditionals` are wanted, too; returns the patterns of holders, and by party what it reads
    its own sum with.
    """
    names, slices = federation.parties, slices_of(products.widths)
    holders, pattern = np.unique(held, axis=0, return_inverse=True)
    n = len(holders)
    common = {"n_patterns": n, "pattern": pattern.ravel().astype(np.int64)}
    lacks = [bool(sent[name].get("cells")) for name in names]
    parts = _by_pattern(Conditioner(model, slices, shown, draws), holders, lacks)
    total = federation.sum(
        "complete",
        {
            **common,
            "names": names,
            "widths": list(products.widths.values()),
            "tags": list(products.tags),
            "holders": holders,
            **{f"wanted:{name}": sent[name]["wanted"] for name in names},
        },
        per_party={name: _coefficients(parts, names, k, slices, n) for k, name in enumerate(names)},
    )
    own = {
        name: {"total": np.asarray(total[name]).view(np.uint64)}
        | _own(parts, k, products.widths[name], n, errors, len(model.mean) if draws else 0)
        for k, name in enumerate(names)
    }
    return common, own


def slices_of(widths: Mapping[str, int]) -> list[slice]:
    """Return where the columns of each party stand among all."""
    return list(Layout(widths).slices.values())


def pairs_apart(widths: Mapping[str, int], apart: Flags) -> list[str]:
    """Name pairs of parties of whose columns nothing is known together.

    Shapes: apart (n_columns, n_parties): `PairMoments.apart`.
    """
    parts = [apart[own] for own in slices_of(widths)]
    return [
        f"{a} and {b}"
        for (i, a), (j, b) in combinations(enumerate(widths), 2)
        if len(parts[i]) and parts[i][:, j].all() and parts[j][:, i].all()
    ]


def notes_apart(widths: Mapping[str, int], apart: Flags, what: str) -> list[str]:
    """Say which columns are not known together, and `what` follows; arguments as above."""
    pairs = pairs_apart(widths, apart)
    found = [f"{', '.join(pairs)} share too few rows: {what}"] if pairs else []
    parts = [apart[own].sum(axis=0) for own in slices_of(widths)]
    rare = [
        f"{parts[i][j]} of {counted(widths[a], 'column')} of {a} with those of {b}"
        for (i, a), (j, b) in permutations(enumerate(widths), 2)
        if parts[i][j] and not {f"{a} and {b}", f"{b} and {a}"} & set(pairs)
    ]
    if rare:
        found.append(
            f"{', '.join(rare)}: a value is too rare in the rows that both parties hold, or in "
            f"those that one of them lacks: {what}"
        )
    return found


_Parts: TypeAlias = dict[tuple[int, int], Conditionals]
"""By pattern and recipient."""


def _by_pattern(conditioner: Conditioner, holders: Flags, lacks_cells: list[bool]) -> _Parts:
    """Work out, for each pattern of holders, the conditionals of each party that may want them."""
    every: range = range(holders.shape[1])
    found: _Parts = {}
    for g, own in enumerate(holders.tolist()):
        helping = [k for k in every if own[k]]
        sets = [(helping, [k for k in every if not own[k]])]
        # Of rows that a party holds with an open cell, the others alone help.
        sets += [([j for j in helping if j != k], [k]) for k in helping if lacks_cells[k]]
        for helpers, recipients in sets:
            told = conditioner.given(helpers, recipients) if recipients else {}
            found.update({(g, k): part for k, part in told.items()})
    return found


def _coefficients(
    parts: _Parts, names: list[str], helper: int, slices: list[slice], n_patterns: int
) -> dict[str, Any]:
    """Return what a party multiplies its columns with, by recipient, in the recipient's units."""
    own = slices[helper].stop - slices[helper].start
    found = {}
    for k, name in enumerate(names):
        if k == helper:
            continue
        by_pattern = np.zeros((n_patterns, own, slices[k].stop - slices[k].start), np.float32)
        for (g, recipient), part in parts.items():
            if recipient == k and helper in part.coefficients:
                by_pattern[g] = part.coefficients[helper] / part.unit
        found[f"for:{name}"] = by_pattern
    return found


def _own(
    parts: _Parts, recipient: int, width: int, n_patterns: int, errors: bool, n_noise: int
) -> dict[str, Any]:
    """Return what a party needs to read its sum."""
    offset, unit = np.zeros((n_patterns, width)), np.ones((n_patterns, width))
    residual = np.zeros((n_patterns, width, width), dtype=np.float32)
    factor = np.zeros((n_patterns, width, n_noise), dtype=np.float32)
    sure = np.zeros((n_patterns, width), dtype=bool)
    for (g, k), part in parts.items():
        if k == recipient:
            offset[g], unit[g], residual[g] = part.offset, part.unit, part.residual
            sure[g] = part.sure
            if part.factor is not None:
                factor[g][:, part.columns] = part.factor
    more = ({"sure": sure} if errors else {}) | ({"factor": factor} if n_noise else {})
    return {"offset": offset, "unit": unit, "residual": residual, **more}
