"""The party half of the joint normal model: columns, terms for others, completed rows."""

from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from flwr_vertical import Summands, Uses, step
from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.privacy_ledger.ledger import HELD_BY_ALL
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps
from flwr_vertical.products.arithmetic import own_place
from flwr_vertical.products.masked import PrivateProductSteps
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.pairs import PairProductSteps
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits, takes_as
from flwr_vertical.tables import Kind
from flwr_vertical.tables.codes import fill_values
from strategies.common.imputing_party import ImputingParty
from strategies.linear.moments.steps import rough_units
from strategies.normal.coding import Coding
from strategies.normal.equations import complete_rows, fill_own_cells

BITS = 8
"""Of a mean that a party is told: from -127 to 127 units."""

_MOST = 2.0 ** (BITS - 1) - 1
_PAD = "pad of completed rows"

_Coefficients = TypedDict(
    "_Coefficients",
    {
        "wanted:*": Annotated[Ring, Shape("n_samples")],
        "for:*": Annotated[npt.NDArray[np.float32], OWN, Shape("n_patterns", None, None)],
    },
    total=False,
)
"""By party, which rows it wants (under a key stream), and what own columns are multiplied with."""


class JointNormalParty(ImputingParty):
    """Offers its columns for products, sends terms of others' rows, and completes its own."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    products = Uses(PairProductSteps, purpose="joint normal")

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns of the model in rough units; missing cells from the own columns."""
        if "normal.columns" not in self.cache:
            rows = np.flatnonzero(self.positions_held)
            filled = fill_own_cells(self._values[rows])
            squares = (filled**2).sum(axis=0)
            names = self._coding.names(self.table.columns)
            self.cache["normal.columns"] = HeldColumns(
                filled, rows, self.n_samples, names, squares=squares
            )
        columns: HeldColumns = self.cache["normal.columns"]
        return columns

    @step
    @takes_as(PrivateProductSteps.send_masked)
    def send_masked(self, **arguments: Any) -> dict[str, Any]:
        """Hand over the own columns under a key stream; and which rows it wants completed, as well.

        Message: see `PrivateProductSteps.send_masked`; returns as there, ``wanted`` (n_samples,),
        uint64, and whether it lacks ``cells`` of rows that it holds.
        """
        if self.fitted is not None:
            raise DataError(
                f"party {self.name!r} has a fitted table, and this method completes the rows of "
                "one run; leave out `fitted`, and give old and new rows together"
            )
        if (n := self.codes.shape[1]) and not np.isfinite(self.codes).any(axis=0).all():
            empty = int(np.argmin(np.isfinite(self.codes).any(axis=0)))
            raise DataError(
                f"party {self.name!r}, column {self.table.columns[empty]!r} of {n}: no row that "
                "takes part has a value; leave the column out, or align other rows"
            )
        told = self.products.send_masked(**arguments)
        flags = self._wanted.astype(np.uint64)
        return told | {
            "wanted": flags + self._flag_stream(self.name, told["tag"]),
            "cells": bool(self._open_cells.any()),
        }

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
        (n_patterns, n_parties): who holds the rows of each pattern; pattern (n_samples,): of each
        row; ``wanted:<name>``: as that party sent it; ``for:<name>`` (n_patterns, n_own, n): what
        the own columns are multiplied with; returns, by party, (n_samples, n), uint64: whole
        numbers of its units; the own ones are a pad that only this party knows.
        """
        arguments: dict[str, Any] = dict(more)
        mine = self.columns_to_multiply().filled
        place, held = own_place(self.name, names, widths, mine.shape[1]), self.positions_held
        if not np.array_equal(held, np.asarray(holders, dtype=bool)[pattern, place]):
            raise ProtocolError(
                f"party {self.name!r}: it holds other rows than the server's patterns say"
            )
        answer: dict[str, Ring] = {}
        for name, width, tag in zip(names, widths, tags, strict=True):
            if name == self.name:
                # Another request has another pad, else two sums would open their difference.
                self.state[_PAD] = self.secret_bytes(_PAD)
                answer[name] = self._pad((self.n_samples, width))
                continue
            if f"for:{name}" not in arguments:
                continue
            wanted = self._unmasked(name, tag, arguments.get(f"wanted:{name}"))
            by_pattern = np.asarray(arguments[f"for:{name}"], dtype=np.float64)
            check_fits(self.name, f"for:{name}", by_pattern, Shape(None, mine.shape[1], width))
            self._check_alone(name, names.index(name), place, holders, by_pattern)
            term = np.zeros((self.n_samples, width))
            rows = np.flatnonzero(wanted & held)
            self._admit(name, rows, width)
            for g in np.unique(pattern[rows]):
                of_pattern = rows[pattern[rows] == g]
                term[of_pattern] = mine[of_pattern] @ by_pattern[g]
            whole = np.rint(np.clip(term, -_MOST, _MOST)).astype(np.int64)
            answer[name] = whole.view(np.uint64)
        return Summands(answer, modular=tuple(answer))

    @step
    def finish(
        self,
        pattern: Annotated[Indices, Shape("n_samples"), Within(0, "n_patterns - 1")],
        n_patterns: Annotated[int, Within(1, "n_samples")],
        total: Annotated[Ring, Shape("n_samples", None), OWN],
        offset: Annotated[Array, Shape("n_patterns", None), OWN],
        unit: Annotated[Array, Shape("n_patterns", None), OWN],
        residual: Annotated[npt.NDArray[np.float32], Shape("n_patterns", None, None), OWN],
    ) -> dict[str, Any]:
        """Complete the own table, write it, and forget the seed.

        Message: pattern: as in `complete`; total (n_samples, n_own): the sum of all terms, under
        the own pad; offset, unit (n_patterns, n_own): what is added to it, and its unit; residual
        (n_patterns, n_own, n_own): covariance given the others' columns; returns how many cells
        were imputed.
        """
        n_own = self._values.shape[1]
        for name, given in (("total", total), ("offset", offset), ("unit", unit)):
            check_fits(self.name, name, given, Shape(None, n_own))
        check_fits(self.name, "residual", residual, Shape(None, n_own, n_own))
        self.group_key.erase_group_seed()
        whole = (np.asarray(total) - self._pad(np.shape(total))).view(np.int64)
        mean = whole * unit[pattern] + offset[pattern]
        completed = self._values.copy()
        for g in np.unique(pattern[self._wanted]):
            rows = np.flatnonzero(self._wanted & (pattern == g))
            of_pattern = np.asarray(residual[g], dtype=np.float64)
            completed[rows] = complete_rows(self._values[rows], mean[rows], of_pattern)
        center, scale = self._units
        codes = self._coding.decode(completed * scale + center)
        missing = self.missing_cells(True)
        frame = self.write(np.where(missing, codes, self.codes), True)
        return {"cells-imputed": int(missing.sum())} | self.accuracy(frame)

    def _admit(self, name: str, rows: Indices, width: int) -> None:
        """Write down what a party is told of own rows, or refuse."""
        chosen = np.zeros(len(self.positions), dtype=bool)
        chosen[self.rows_of(rows)[1]] = True
        self.open_bits(
            chosen,
            float(BITS * width),
            content=self.secret_bytes(f"terms for {name}"),
            agreed=True,
            what=f"terms of means of {width} column(s) of {name!r}",
            receiver=f"party {name!r}",
            colluding=HELD_BY_ALL,
        )

    def _check_alone(
        self, name: str, other: int, place: int, holders: Flags, by_pattern: Array
    ) -> None:
        """Refuse to tell as many numbers as there are own columns where nobody else helps."""
        alone = np.asarray(holders, dtype=bool).copy()
        alone[:, other] = False
        alone = alone[:, place] & (alone.sum(axis=1) == 1)
        most = by_pattern.shape[1] // 2
        for g in np.flatnonzero(alone):
            values = np.linalg.svd(by_pattern[g], compute_uv=False)
            if (values > 1e-4 * values.max(initial=0.0)).sum() > most:
                raise ProtocolError(
                    f"party {self.name!r}: {name!r} would be told more than {most} number(s) a row "
                    f"of rows that this party alone completes; it has {by_pattern.shape[1]} "
                    "column(s)"
                )

    def _pad(self, shape: tuple[int, ...]) -> Ring:
        return KeyStream(bytes(self.state[_PAD]), _PAD, shape).rows(0, shape[0])

    def _flag_stream(self, owner: str, tag: bytes) -> Ring:
        label = f"rows that {owner} wants"
        return KeyStream(self.group_key.seed, label, (self.n_samples,), tag).rows(0, self.n_samples)

    def _unmasked(self, name: str, tag: bytes, wanted: Ring | None) -> Flags:
        flags = None if wanted is None else wanted - self._flag_stream(name, tag)
        if flags is None or flags.max(initial=np.uint64(0)) > 1:
            raise ProtocolError(
                f"party {self.name!r}: which rows {name!r} wants is not what that party sent"
            )
        return flags.astype(bool)

    @property
    def positions_held(self) -> Flags:
        """Which aligned rows this party has, array of shape (n_samples,)."""
        held: Flags = self.to_aligned(np.ones(len(self.positions), dtype=bool), False)
        return held

    @property
    def _open_cells(self) -> Flags:
        """Rows that this party holds with a missing cell."""
        open_cells: Flags = np.isnan(self.codes).any(axis=1) & self.positions_held
        return open_cells

    @property
    def _wanted(self) -> Flags:
        """Rows to be completed: those that this party lacks, and those with a missing cell."""
        return self._open_cells | ~self.positions_held

    @property
    def _coding(self) -> Coding:
        kinds: list[Kind] = list(self.table.kinds.values())
        return Coding(kinds, self.level_counts)

    @property
    def _units(self) -> tuple[Array, Array]:
        """Centre and unit of each column of the model, over the own table."""
        if "normal.units" not in self.cache:
            filled = np.where(
                np.isnan(self.codes), fill_values(self.codes, self.table.kinds), self.codes
            )
            raw = self._coding.encode(filled[self.positions_held])
            few = np.array([len(np.unique(raw[:, j])) <= 20 for j in range(raw.shape[1])])
            self.cache["normal.units"] = rough_units(raw, few)
        units: tuple[Array, Array] = self.cache["normal.units"]
        return units

    @property
    def _values(self) -> Array:
        """All aligned rows in rough units, (n_samples, n_columns), NaN = missing."""
        if "normal.values" not in self.cache:
            center, unit = self._units
            self.cache["normal.values"] = (self._coding.encode(self.codes) - center) / unit
        values: Array = self.cache["normal.values"]
        return values
