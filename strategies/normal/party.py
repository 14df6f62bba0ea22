"""The party half of the joint normal model: its columns, and its completed rows."""

from typing import Annotated, Any, Unpack

import numpy as np
import pandas as pd

from flwr_vertical import Uses, step
from flwr_vertical.arrays import Array, Flags, Floats32, Indices, Ring
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node.kept import kept, part_of_fit
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps
from flwr_vertical.products.masked import PrivateProductSteps
from flwr_vertical.products.pair_keys import PairKeyFields
from flwr_vertical.products.streams import content_tag
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within, check_fits, takes_as
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import fill_values, to_codes
from strategies.common.imputing_party import ImputingParty
from strategies.linear.moments.steps import rough_units
from strategies.linear.told_columns import NORMAL, beside_earlier, words_of
from strategies.normal.coding import Coding
from strategies.normal.completion import CompletionSteps
from strategies.normal.filling import (
    OwnModel,
    complete_rows,
    draw_rows,
    errors_of,
    made_again,
    own_columns,
)
from strategies.normal.part import JointNormalPart
from strategies.normal.shared import SharedProductSteps

_Z = 1.959963984540054
"""Of the normal distribution, 95 % lie within so many standard deviations."""


class JointNormalParty(ImputingParty):
    """Offers its columns for products, and completes its rows by what `CompletionSteps` reads.

    With the part that it kept of an earlier fit it completes new rows; the rows of the fit take no
    part.
    """

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    completion = Uses(CompletionSteps)
    products = Uses(SharedProductSteps, purpose="joint normal")
    made_again = staticmethod(made_again)  # See `told_columns`

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns of the model in rough units; missing cells from the own columns."""
        return self._columns

    def own_covariance(self) -> Array:
        """Return the covariance of the columns over the own rows of the fit, (n_own, n_own)."""
        return self._own.covariance

    @kept("normal.columns")
    def _columns(self) -> HeldColumns:
        rows = np.flatnonzero(self.positions_held)
        filled = self._own.fill(self._values[rows])
        squares = (filled**2).sum(axis=0)
        names, variable = self._coding.names(self.table.columns), self._coding.variable
        held = HeldColumns(
            filled, rows, self.n_samples, names, squares=squares, variable=variable,
            sources=self._coding.sources(self.table.columns),
        )  # fmt: skip
        return beside_earlier(self, held, words_of(NORMAL, self.table.columns))

    @step
    @takes_as(PrivateProductSteps.send_masked)
    def send_masked(self, **arguments: Any) -> dict[str, Any]:
        """Hand over the own columns under a key stream; and which rows it wants completed, as well.

        Message: see `PrivateProductSteps.send_masked`; returns as there and as
        `CompletionSteps.wish`, and whether it lacks ``cells`` of rows that it holds; if so, what it
        shows of its columns (`filling`): ``shown`` and ``spread`` (n_own, n_own).
        """
        if self.services.load_fitted() is not None:
            raise DataError(
                f"party {self.name!r} has what an earlier run left, and the server fits anew: give "
                "that run's result as `fitted` (in an app, the server needs its own result of it), "
                "or leave out `fitted`"
            )
        if (n := self.codes.shape[1]) and not np.isfinite(self.codes).any(axis=0).all():
            empty = int(np.argmin(np.isfinite(self.codes).any(axis=0)))
            raise DataError(
                f"party {self.name!r}, column {self.table.columns[empty]!r} of {n}: no row that "
                "takes part has a value; leave the column out, or align other rows"
            )
        told = self.products.send_masked(**arguments)
        return told | self._wishes(told["tag"])

    @step
    def send_wanted(
        self,
        model: Annotated[str, Within(1, 64)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[PairKeyFields],
    ) -> dict[str, Any]:
        """Say which new rows are to be completed by the model of an earlier fit.

        Message: model: digest of it; owner, sealed, **keys: see `GroupKeySteps.take`; returns
        ``tag`` and ``n_columns``, and else what `send_masked` tells of rows.
        """
        part = part_of_fit(self, JointNormalPart, model)
        width = len(self._coding.names(self.table.columns))
        part.check(self.table.columns, width, self.name)
        self.group_key.take(owner, sealed, dict(keys))
        tag = content_tag(self.group_key.seed, self._wanted.astype(np.uint64))
        return {"tag": tag, "n_columns": width} | self._wishes(tag)

    def _wishes(self, tag: bytes) -> dict[str, Any]:
        """Return what the server is told of rows to be completed."""
        told = self.completion.wish(self._wanted, tag) | {"cells": bool(self._open_cells.any())}
        values = self._values[self.positions_held]
        few = len(values) < (self.policy.min_rows or min_rows(values.shape[1], 0))
        own, fits = self._own, self._part is None
        if not told["cells"] or (few and fits):
            return told
        if not (few or fits):  # few rows would tell of their gaps
            own = own.over(np.isnan(values))
        return told | {"shown": own.shown, "spread": own.spread}

    @step
    def finish(
        self,
        pattern: Annotated[Indices, Shape("n_samples"), Within(0, "n_patterns - 1")],
        n_patterns: Annotated[int, Within(1, "n_samples")],
        total: Annotated[Ring, Shape("n_samples", None), OWN],
        offset: Annotated[Array, Shape("n_patterns", None), OWN],
        unit: Annotated[Array, Shape("n_patterns", None), OWN],
        residual: Annotated[Floats32, Shape("n_patterns", None, None), OWN],
        sure: Annotated[Flags, Shape("n_patterns", None), OWN],
        known: Annotated[Flags, Shape(None), OWN],
        model: Annotated[str, Within(0, 64)] = "",
        draws: Annotated[int, Is("draws")] = 0,
        factor: Annotated[Floats32 | None, Shape("n_patterns", None, None), OWN] = None,
    ) -> dict[str, Any]:
        """Complete the own table, write it with intervals and draws, and forget the seed.

        Message: pattern: as in `complete`; total (n_samples, n_own): the sum of all terms, under
        the own pad; offset, unit (n_patterns, n_own): what is added to it, and its unit; residual
        (n_patterns, n_own, n_own): covariance about the means; sure (n_patterns, n_own): whether it
        follows from what is known; known (n_own,): columns of which the server knows something, the
        others are completed from the own ones; model: digest of the model, after a fit; draws: how
        many; factor (n_patterns, n_own, n_columns): of their noise, n_columns of all parties;
        returns how many cells were imputed.
        """
        values, wanted = self._values, self._wanted
        n_own = values.shape[1]
        check_fits(self.name, "residual", residual, Shape(None, n_own, n_own))
        check_fits(self.name, "sure", sure, Shape(None, n_own))
        check_fits(self.name, "known", known, Shape(n_own))
        if factor is None and draws:
            raise ProtocolError(f"party {self.name!r}: the noise of {draws} draws was left out")
        if factor is not None:
            check_fits(self.name, "factor", factor, Shape(None, n_own, None))
        mean = self.completion.means(pattern, total, offset, unit)
        missing, unknown = np.isnan(values), ~np.asarray(known, dtype=bool)
        constant: Flags = np.asarray(np.diag(self._own.covariance) < 1e-10)
        completed, error = values.copy(), np.zeros(values.shape)
        certain = np.ones(values.shape, dtype=bool)
        noise = np.zeros((draws, *values.shape))
        roots = (
            {}
            if factor is None
            else {
                g: self._root(factor[g], residual[g]) for g in np.unique(pattern[wanted]).tolist()
            }
        )
        for number in range(draws if roots else 0):
            shared = self.completion.noise(number, next(iter(roots.values())).shape[1])
            for g, root in roots.items():
                rows = np.flatnonzero(wanted & (pattern == g))
                noise[number, rows] = (shared[rows] @ root.T) * ~constant
        drawn = np.repeat(values[None], draws, axis=0)
        for g in np.unique(pattern[wanted]):
            rows = np.flatnonzero(wanted & (pattern == g))
            left = np.asarray(residual[g], dtype=np.float64)
            completed[rows] = complete_rows(values[rows], mean[rows], left)
            drawn[:, rows] = draw_rows(values[rows], mean[rows], left, noise[:, rows])
            error[rows] = errors_of(missing[rows], left)
            # What own cells tell depends on all of the covariance.
            of_cells = np.full(n_own, sure[g][~unknown].all()) & ~unknown
            whole = missing[rows].all(axis=1, keepdims=True)
            certain[rows] = np.where(whole, sure[g], of_cells) | constant
        if unknown.any():
            own, start = self._own, np.broadcast_to(self._own.mean, values.shape)
            gone, own_root = missing & unknown, np.linalg.cholesky(own.covariance)
            completed = own.fill(np.where(gone, np.nan, completed))
            error = np.where(gone, errors_of(gone, own.covariance), error)
            for number, one in enumerate(drawn):
                moved = self.completion.noise(number, n_own, self.name) @ own_root.T
                given = np.where(gone, np.nan, one)
                drawn[number] = draw_rows(given, start, own.covariance, moved[None])[0]
        self.group_key.erase_group_seed()
        return self._write(completed, error * ~constant, certain, drawn, model)

    def _root(self, factor: Array, left: Array) -> Array:
        """Refuse noise of another covariance than what is left of the own columns."""
        root, left = np.asarray(factor, dtype=np.float64), np.asarray(left, dtype=np.float64)
        if not np.allclose(root @ root.T, left, rtol=1e-3, atol=1e-4 * np.abs(left).max()):
            raise ProtocolError(
                f"party {self.name!r}: the noise of draws has another covariance than what is left "
                "of its columns"
            )
        return root

    def _write(
        self, completed: Array, error: Array, certain: Flags, drawn: Array, model: str
    ) -> dict[str, Any]:
        """Write draws, intervals, the part of the model if there is one, and the table."""
        center, scale = self._units
        mean, missing = completed * scale + center, self.missing_cells(True)
        for number, values in enumerate(drawn, 1):
            noise = (values - completed) * scale
            codes = self._coding.decode_drawn(mean, noise, error * scale)
            frame = self.frame_of(np.where(missing, codes, self.codes), True)
            self.save_output(frame, f"draw-{number}")
        codes = np.where(missing, self._coding.decode(mean), self.codes)
        frame = self.frame_of(codes, True)
        spread = self._coding.own(np.where(certain, error * scale, np.nan))
        intervals = self._intervals(frame, codes, spread, missing)
        self.save_output(intervals, "intervals")
        if model:
            own = self._own
            part = JointNormalPart(
                model, list(self.table.columns), center, scale, own.mean, own.covariance,
                own.shown, own.spread,
            )  # fmt: skip
            self.save_model(part)
        self.save_output(frame)
        told = {"cells_imputed": int(missing.sum())} | self.accuracy(frame, intervals)
        numbers = [is_numeric(kind) for kind in self.table.kinds.values()]
        without = int((np.isnan(spread) & missing)[:, numbers].sum())
        return told | ({"cells_without_interval": without} if without else {})

    def _intervals(
        self, frame: pd.DataFrame, codes: Array, error: Array, missing: Flags
    ) -> pd.DataFrame:
        """Return the intervals of completed numbers; see `Result.intervals`."""
        places, found = self.places(True), {}
        for j, (name, kind) in enumerate(self.table.kinds.items()):
            if is_numeric(kind):
                completed = (places >= 0) & missing[places, j]
                value, spread = codes[places, j], np.where(completed, error[places, j], np.nan)
                ends = {"lower": value - _Z * spread, "upper": value + _Z * spread}
                for what, values in ({"std_error": spread} | ends).items():
                    found[f"{name} {what}"] = values
        return pd.DataFrame(found, index=frame.index)

    @property
    def positions_held(self) -> Flags:
        """Which aligned rows this party has, array of shape (n_samples,)."""
        return np.asarray(self.to_aligned(np.ones(len(self.positions), dtype=bool), False))

    @property
    def _open_cells(self) -> Flags:
        """Rows that this party holds with a missing cell."""
        return np.asarray(np.isnan(self.codes).any(axis=1) & self.positions_held)

    @property
    def _wanted(self) -> Flags:
        """Rows to be completed: those that this party lacks, and those with a missing cell."""
        return self._open_cells | ~self.positions_held

    @property
    def fitted(self) -> None:
        """None: the rows of an earlier fit take no part."""
        return None

    @kept("normal.donors")
    def donors(self) -> Table:
        """The table whose levels are known: that of the fit, where new rows are completed."""
        return self.services.load_fitted() or self.table

    @kept("normal.part")
    def _part(self) -> JointNormalPart | None:
        """What this party kept of the fit, where new rows are completed."""
        return self.load_model(JointNormalPart)

    @kept("normal.own")
    def _own(self) -> OwnModel:
        """The normal model of the own columns alone.

        Of all rows of the table, whichever take part: cells that are filled otherwise in another
        run would tell of their rows.
        """
        if self._part is not None:
            return self._part.own
        center, unit = self._units
        model = own_columns((self._coding.encode(self._table_codes) - center) / unit)
        return model.over(np.isnan(self._values[self.positions_held]))

    @property
    def _coding(self) -> Coding:
        kinds: list[Kind] = list(self.table.kinds.values())
        return Coding(kinds, self.level_counts)

    @kept("normal.units")
    def _units(self) -> tuple[Array, Array]:
        """Centre and unit of each column of the model, over the own table."""
        if self._part is not None:
            return self._part.center, self._part.unit
        codes = self._table_codes
        filled = np.where(np.isnan(codes), fill_values(codes, self.table.kinds), codes)
        raw = self._coding.encode(filled)
        few = np.array([len(np.unique(raw[:, j])) <= 20 for j in range(raw.shape[1])])
        return rough_units(raw, few)

    @property
    def _table_codes(self) -> Array:
        return np.asarray(to_codes(self.table, self.levels, self.name))

    @kept("normal.values")
    def _values(self) -> Array:
        """All aligned rows in rough units, (n_samples, n_columns), NaN = missing."""
        center, unit = self._units
        return (self._coding.encode(self.codes) - center) / unit
