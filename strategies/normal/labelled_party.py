"""The party half: columns, means and, with rows="all", labelled rows that others complete.

Completed, a party's columns are over every labelled row of the fit. What its ledger counts are its
own rows of these. What it tells of rows that another party lacks shows in sums of that party's
columns: so it counts them in sets of their own, ``for <party>``, and refuses small ones.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Unpack

import numpy as np

from flwr_vertical import Summands, Uses, step
from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.policy.record import key_of
from flwr_vertical.products import HeldColumns
from flwr_vertical.products.masked import SendFields
from flwr_vertical.products.pair_keys import Names, Widths
from flwr_vertical.products.pairs import PairProductSteps
from flwr_vertical.products.told_rows import ToldRows
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits, takes_as
from strategies.linear.moment_party import MomentParty
from strategies.linear.moments.steps import MomentSteps
from strategies.linear.prediction.steps import KeptCoefficients
from strategies.normal.completion import BITS, MOST, CompletionSteps
from strategies.normal.shared import SharedProductSteps

# Under a prefix that the server may not write to.
_SHARED, _PATTERN, _HOLDERS = (
    "node.completed.shared",
    "node.completed.pattern",
    "node.completed.holders",
)
_MEANS, _UNSHOWN, _WHO = ("node.completed.means", "node.completed.unshown", "node.completed.who")
_SECRETS = (_SHARED, _PATTERN, _HOLDERS, _MEANS, _UNSHOWN, _WHO)


def _digest(who: Flags) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(who).tobytes()).digest()


class CompletedFields(SendFields, total=False):
    """What completes rows, beside what `PrivateProductSteps.send_masked` takes."""

    total: Annotated[Ring, Shape("n_samples", None), OWN]
    offset: Annotated[Array, Shape(None, None), OWN]
    unit: Annotated[Array, Shape("offset", None), OWN]


class CompletedRows(ToldRows):
    """The rules on rows where columns are over completed rows, too: they hold for the own ones."""

    def own_part(self, held: HeldColumns) -> HeldColumns:
        """Return the columns over the own rows; a completed row is number -1 of these."""
        if held.own is None or (held.own >= 0).all():
            return held
        cache, key = self._party.cache, "completed.own-part"
        if key not in cache or cache[key][0] is not held:
            mine, own = held.own >= 0, np.asarray(held.own)
            cut = replace(held, values=held.values[mine], rows=held.rows[mine], own=own[mine])
            cache[key] = held, cut
        found: HeldColumns = cache[key][1]
        return found

    def admit(
        self, held: HeldColumns, group: Indices, n_groups: int, *more: Any, **options: Any
    ) -> Flags:
        """Decide as `ToldRows.admit` does, on the own rows of each group."""
        alone, group = self.own_part(held), np.asarray(group)
        if alone is not held:
            if not np.isin(np.flatnonzero(group >= 0), held.rows).all():
                raise ProtocolError(
                    f"party {self._name!r}: rows of the fit were not completed for this party"
                )
            group = np.where(np.isin(np.arange(len(group)), alone.rows), group, -1)
            if not (group >= 0).any():  # means of others' columns, and nothing else
                self._party.privacy_ledger.note_nothing("rows")
                return np.ones((n_groups, held.values.shape[1]), dtype=bool)
        return super().admit(alone, group, n_groups, *more, **options)

    def admit_pairs(
        self, held: HeldColumns, widths: Mapping[str, int], taken: Flags, who: Flags, wanted: Flags
    ) -> tuple[Flags, Flags, Flags]:
        """Decide as `ToldRows.admit_pairs`, and count the labelled rows that another party lacks.

        Sums over these are told of. What the other party multiplies with own columns is in the
        server's hands, within the grid of what it was told: as so many bits of vectors that the
        server knows. A column with a value too rare for that does not complete that party's rows.
        """
        found = super().admit_pairs(held, widths, taken, who, wanted)
        who = np.asarray(who, dtype=bool)
        labelled = np.asarray(self._state.get("labelled", np.ones(len(who))), dtype=bool)
        unshown = np.zeros((len(widths), held.values.shape[1]), dtype=np.uint8)
        for k, (name, width) in enumerate(widths.items()):
            chosen = (labelled & who.any(axis=1) & ~who[:, k])[held.rows]
            if name != self._name and chosen.any():
                bits = width * (BITS + math.log2(int(chosen.sum()) * len(widths)))
                unshown[k] = self._judged(
                    held, np.where(chosen, 0, -1), 1, None, b"", False, width,
                    scope=f"for {name}", bits=bits,
                )[0]  # fmt: skip
        self._state[_UNSHOWN], self._state[_WHO] = unshown, _digest(who)
        return found

    def check_sets(self, sizes: Indices, n_columns: int) -> None:
        """Refuse sets of own rows, held by the same parties, that are neither none nor enough."""
        few = sizes[(sizes > 0) & (sizes < self.fewest(n_columns))]
        if len(few):
            raise PolicyError(
                f"party {self._name!r}",
                key_of("min_rows"),
                f"sums of completed columns that may tell of {few.min()} of its rows alone, which "
                "the same parties hold",
                f"sets of at least {self.fewest(n_columns):,} rows",
                "leave these rows out",
            )


class LabelledProductSteps(SharedProductSteps):
    """Products over own, shared and completed rows."""

    def __init__(self, party: Any, purpose: str, **rules: Any) -> None:
        super().__init__(party, purpose, **rules)
        self.told: CompletedRows = CompletedRows(party, purpose, **rules)
        self._told = self.told


class LabelledRowSteps(CompletionSteps):
    """Completes the labelled rows that a party lacks, and tells others' columns of its own."""

    def count(self, names: Names, widths: Widths, who: Flags, pattern: Indices) -> None:
        """Count own rows of which completed columns may tell, and keep which rows take part."""
        columns, told = self._columns(), self.other(LabelledProductSteps).told
        takes_part: Flags = np.asarray(who.any(axis=1))
        fit, own = self._labelled & takes_part, columns.rows[takes_part[columns.rows]]
        sets = np.bincount(2 * pattern[own] + fit[own])
        told.check_sets(sets, columns.values.shape[1])
        if _digest(who) != self.state.get(_WHO):
            raise ProtocolError(
                f"party {self.name!r}: rows are to be completed that other parties hold than the "
                "server said for the products of columns"
            )
        self.state[_PATTERN] = pattern.astype(np.min_scalar_type(int(pattern.max())))
        self.state[_HOLDERS] = who.sum(axis=1, dtype=np.uint16)

    def check_terms(self, name: str, number: int, by_pattern: Array) -> None:
        """Refuse columns with a value too rare for that party, as this one said of them."""
        if by_pattern[:, np.asarray(self.state[_UNSHOWN], dtype=bool)[number]].any():
            raise ProtocolError(
                f"party {self.name!r}: rows of {name!r} would be completed by a column of "
                "which this party said that a value is too rare for that"
            )

    def read(self, total: Ring, offset: Array, unit: Array) -> None:
        """Keep the means of the labelled rows that the party lacks; arguments as of `means`."""
        pattern, fit = np.asarray(self.state[_PATTERN]), self._fit
        check_fits(self.name, "offset", offset, Shape(int(pattern.max()) + 1, None))
        means, at = self.means(pattern, total, offset, unit)[fit], pattern[fit]
        check_fits(self.name, "unit", unit, Within(0, 1))  # own columns deviate by 1 at most
        most = MOST * (np.asarray(self.state[_HOLDERS])[fit, None] + 0.5) * unit[at]
        if (np.abs(means - offset[at]) > most).any():
            raise ProtocolError(
                f"party {self.name!r}: means of its columns are beyond what others can have told"
            )
        self.state[_MEANS] = means
        self.cache.pop("completed.columns", None)

    @kept("completed.columns")
    def columns(self) -> HeldColumns:
        """The columns over the labelled rows of the fit, own and completed."""
        own, fit = self.other(MomentSteps).aligned_columns(), self._fit
        numbers = np.cumsum(self._labelled) - 1
        number_of_own = np.full(len(fit), -1, dtype=np.int64)
        number_of_own[own.rows] = self.party.rows_of(own.rows)[1]
        values = np.asarray(self.state[_MEANS]).copy()
        constant = np.ptp(own.values[:], axis=0) == 0.0  # rounding would make it vary
        values[:, constant] = own.values[0, constant]
        held = number_of_own[fit] >= 0
        values[held] = own.filled[fit][held]
        n_labelled, numbers_of_own = int(self._labelled.sum()), number_of_own[fit]
        return replace(
            own, values=values, rows=numbers[fit], n_samples=n_labelled, own=numbers_of_own
        )

    def wanted(self) -> Flags:
        """Return the labelled rows that the party lacks, (n_samples,)."""
        wanted = self._labelled.copy()
        wanted[self._columns().rows] = False
        return wanted

    @property
    def _labelled(self) -> Flags:
        labelled = self.state.get("labelled")
        n = self.party.n_samples
        return np.ones(n, dtype=bool) if labelled is None else np.asarray(labelled, dtype=bool)

    @property
    def _fit(self) -> Flags:
        return np.asarray(self._labelled & (np.asarray(self.state[_HOLDERS]) > 0))


class CompletingParty(MomentParty):
    """Sends columns over own rows, then over all labelled rows of the fit; keeps coefficients."""

    moments = Uses(MomentSteps, penalized=True)
    completion = Uses(LabelledRowSteps)
    products: LabelledProductSteps

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns over labelled own rows; completing, over all own, or all labelled."""
        if _MEANS in self.state:
            return self.completion.columns
        return self._shared if _SHARED in self.state else self.moments.columns

    @kept(_SHARED)
    def _shared(self) -> HeldColumns:
        return self.moments.aligned_columns()

    def own_covariance(self) -> Array:
        """Return the covariance of the columns over the own rows, (n_own, n_own)."""
        values = self.columns_to_multiply().filled
        n = max(len(values), 1)
        mean = values.sum(axis=0) / n
        return np.asarray(values.T @ values / n - np.outer(mean, mean))  # no copy of the columns

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        completing: bool | None = None,
        **keys: Unpack[CompletedFields],
    ) -> dict[str, Any]:
        """Hand over the own columns; completing, first over all own rows, then with others' means.

        Message: that of `PrivateProductSteps.send_masked` and completing: over all own rows; total
        (n_samples, n_own), offset, unit (n_patterns, n_own): what completes labelled rows, see
        `CompletionSteps.means`; returns as there, completing also what `CompletionSteps.wish` does.
        """
        given: dict[str, Any] = dict(keys)
        means = [given.pop(name, None) for name in ("total", "offset", "unit")]
        if completing:
            self.state[_SHARED] = 1
        if any(part is not None for part in means):
            self.completion.read(*means)
        told = self.products.send_masked(limbs, owner, sealed, **given)
        if completing:
            told |= self.completion.wish(self.completion.wanted(), told["tag"])
        return told

    @step
    @takes_as(PairProductSteps.open_pairs)
    def open_pairs(self, **arguments: Any) -> Summands:
        """Send what opens pairwise moments, and say which columns complete no row of a party.

        Message: see `PairProductSteps.open_pairs`; returns as there; publicly also ``unshown``
        (n_parties, n_own): columns with a value too rare in the rows that a party lacks.
        """
        told = self.products.open_pairs(**arguments)
        unshown = np.asarray(self.state[_UNSHOWN])
        return replace(told, public={**told.public, "unshown": unshown})

    @step
    @takes_as(KeptCoefficients.keep)
    def finish_moments(self, **model: Any) -> Summands:
        """Forget completed rows, and finish as `MomentParty.finish_moments` does."""
        for name in _SECRETS:
            self.state.pop(name, None)
        self.completion.forget()
        return super().finish_moments(**model)
