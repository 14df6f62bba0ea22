"""The party half: columns become weights of evidence, rows that the party lacks a bin of their own.

The server works out evidence from the sums that it opened, and tells each party its own bins'. In
the fit a party's columns are over all labelled rows: those that it lacks have evidence 0, and a
last column, which tells rows held from others, has two values that the server knows. Sums over
them tell sums of other parties' columns over rows that this party lacks. So a party counts its rows
by who else has them: each such set is none or enough (`ScoredRows`). It takes who has which rows
from the server. All were told the same: what hides the columns follows from it (`AgreedKey`).
"""

import hashlib
import math
from typing import Annotated, Any, Unpack

import numpy as np
import pandas as pd

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.arrays import Array, Bytes, Flags, Indices
from flwr_vertical.errors import ProtocolError
from flwr_vertical.node.kept import kept
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps, PrivateProductSteps
from flwr_vertical.products.masked import SendFields
from flwr_vertical.products.pair_keys import Nonce
from flwr_vertical.products.row_groups import distinct_rows
from flwr_vertical.protocol.arguments import OWN, Is, Shape, Within, check_fits, takes_as
from strategies.binning.steps import BinSteps
from strategies.linear.data import Labelled, RegressionRows
from strategies.linear.design import Design
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.prediction.steps import KeptCoefficients
from strategies.normal.labelled_party import CompletedRows
from strategies.scorecard.card import HELD, merged_labels, points_of, reasons
from strategies.scorecard.part import ScorecardPart, weights

# Under a prefix that the server may not write to.
_WHO, _EVIDENCE, _BLOCK = "node.card.who", "node.card.evidence", "node.card.block"
_MERGED, _DOUBLE, _PLACE = "node.card.merged", "node.card.points", "node.card.place"
_MOST = 30.0
"""Weights of evidence are below: some 1e13 to one."""


class CardFields(SendFields):
    """What `ScorecardParty.send_masked` takes beside limbs and the group seed."""

    who: Annotated[Bytes, Shape(None, "n_parties"), Within(0, 1)]
    evidence: Annotated[Array, Shape(None), Within(-_MOST, _MOST), OWN]
    merged: Annotated[Indices, Shape("evidence"), Within(0, 255), OWN]
    block: Annotated[Array, Shape(None), Within(-_MOST, _MOST), OWN]
    points_to_double: Annotated[float, Is("points_to_double")]


class AgreedKey(GroupKeySteps):
    """The group seed, once parties were told who has which rows bound to that."""

    @property
    def seed(self) -> bytes:
        """The seed: another one where a party was told otherwise, and nothing opens."""
        seed = super().seed
        if _WHO not in self.state:
            return seed
        who = np.asarray(self.state[_WHO])
        return hashlib.sha256(seed + repr(who.shape).encode() + who.tobytes()).digest()


class EvidenceRows(RegressionRows):
    """The own columns as weights of evidence; the party also uses `BinSteps`."""

    @step(repeatable=False)  # a key pair is drawn
    def prepare_moments(
        self, nonce: Nonce, standardize: bool, intercept: bool, labelled: Labelled | None = None
    ) -> Summands:
        """Say which columns there will be, and make the key pair of this run.

        Message: see `MomentSteps.prepare_moments`; returns as there. Nothing of the columns shows
        in their centres and units, which are 0 and 1.
        """
        told = dict(self.prepare_rows(standardize, intercept, labelled).public)
        n, policy = len(self.design.columns), self.party.policy
        told |= {"center": np.zeros(n), "unit": np.ones(n)}
        told |= self.other(PairKeySteps).pair_key(nonce)
        stated = {"min_rows": policy.min_rows, "vectors": policy.vectors}
        told |= {key: value for key, value in stated.items() if value is not None}
        return Summands({}, told)

    def take(
        self, names: list[str], who: Flags, evidence: Array, merged: Indices, block: Array
    ) -> None:
        """Keep the evidence of the own bins, and who has which labelled rows."""
        bins = self.other(BinSteps).bins
        check_fits(self.name, "evidence", evidence, Shape(sum(bins.n_bins)))
        check_fits(self.name, "block", block, Shape(2 * self._has_block))
        check_fits(self.name, "who", who, Shape(self.n_labelled, None))
        found = np.asarray(who, dtype=np.uint8)
        if _WHO in self.state and not np.array_equal(self.state[_WHO], found):
            raise ProtocolError(
                f"party {self.name!r}: who has which rows was told otherwise before"
            )
        self.state[_WHO], self.state[_PLACE] = found, names.index(self.name)
        self.state[_EVIDENCE], self.state[_BLOCK] = np.asarray(evidence), np.asarray(block)
        self.state[_MERGED] = np.asarray(merged, dtype=np.int64)
        for key in ("design", "fit-rows", "card.columns"):
            self.cache.pop(key, None)

    @property
    def _has_block(self) -> bool:
        held = self._labelled[self.party.positions[self.party.positions >= 0]]
        return int(held.sum()) < self.n_labelled

    @kept("design")
    def design(self) -> Design:
        """The own rows, as weights of evidence once these are known, before as zeros."""
        rows, own = self.party.rows_of(np.arange(self.party.n_samples))
        columns = self.party.table.columns
        x = np.zeros((len(rows), len(columns) + self._has_block))
        if _EVIDENCE in self.state:
            x[:, : len(columns)] = weights(self.other(BinSteps).numbers[own], self.evidence)
            x[:, len(columns) :] = self.state[_BLOCK][:1]
        none = np.zeros(0, dtype=np.int64)
        names = columns + [HELD] * self._has_block
        return Design(names, x, rows, none)

    @property
    def table_rows(self) -> Array:
        """No row: nothing is told of the columns before their bins are."""
        return np.zeros((0, len(self.design.columns)))

    @property
    def evidence(self) -> list[Array]:
        """Of each column, the weight of evidence by bin."""
        return self._by_column(_EVIDENCE)

    @property
    def merged(self) -> list[Indices]:
        """Of each column, the merged bin of each bin."""
        return self._by_column(_MERGED)

    @property
    def held(self) -> list[float]:
        """Evidence of rows held, if the party lacks some; else nothing."""
        return [float(value) for value in self.state[_BLOCK][:1]]

    def _by_column(self, name: str) -> list[Any]:
        ends = np.cumsum(self.other(BinSteps).bins.n_bins).tolist()
        values = np.asarray(self.state[name])
        return [values[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    @kept("card.columns")
    def columns(self) -> HeldColumns:
        """The columns over the labelled rows of the fit, held or not."""
        if _WHO not in self.state:
            raise ProtocolError(f"party {self.name!r} was told no weights of evidence yet")
        who = np.asarray(self.state[_WHO], dtype=bool)
        mine, fit = who[:, self.state[_PLACE]], who.any(axis=1)
        held = np.zeros(len(who), dtype=bool)
        held[self.rows] = True
        if (mine & ~held).any():
            raise ProtocolError(
                f"party {self.name!r} lacks rows that it is said to have; align again"
            )
        values = np.zeros((len(who), len(self.design.columns)))
        own = np.full(len(who), -1, dtype=np.int64)
        if self._has_block:
            values[:, -1] = self.state[_BLOCK][1]
        counted = mine[self.rows]
        values[self.rows[counted]] = self.raw[counted]
        own[self.rows[counted]] = self.own_rows[counted]
        # Of the largest evidence, whichever rows have it.
        largest = [np.abs(part).max(initial=0.0) for part in self.evidence]
        if self._has_block:
            largest.append(np.abs(self.state[_BLOCK]).max())
        return HeldColumns(
            values[fit],
            np.flatnonzero(fit),
            len(who),
            tuple(self.design.columns),
            own[fit],
            squares=len(who) * np.square(largest),
        )

    @property
    def sets(self) -> Indices:
        """Number of each labelled row's set of parties, (n_labelled,); -1 of rows not counted."""
        who = np.asarray(self.state[_WHO], dtype=bool)
        return np.where(who[:, self.state[_PLACE]], distinct_rows(~who)[1], -1)


class ScoredRows(CompletedRows):
    """The rules on rows, for each set of own rows that the same parties have."""

    def admit(
        self, held: HeldColumns, group: Indices, n_groups: int, *more: Any, **options: Any
    ) -> Flags:
        """Decide as if sums over each set were told; a column is withheld in all or in none."""
        sets = self._party.find_group(EvidenceRows).sets
        check_fits(self._name, "group", group, Shape(*sets.shape))
        own = np.where(np.asarray(group) >= 0, sets, -1)
        numbers, at = np.unique(own[own >= 0], return_inverse=True)
        own[own >= 0] = at
        withheld = super().admit(held, own, max(len(numbers), 1), None, *more[1:], **options)
        return np.asarray(withheld.any(axis=0, keepdims=True))


class ScoredProducts(PrivateProductSteps):
    """Products over labelled rows, held or not."""

    def __init__(self, party: Party, purpose: str) -> None:
        super().__init__(party, purpose)
        self._told = ScoredRows(party, purpose)


class KeptPoints(KeptCoefficients):
    """Keeps the own coefficients with the bins that they are for."""

    def _part(self, *arguments: Any) -> ScorecardPart:
        rows, bins = self.other(EvidenceRows), self.other(BinSteps).bins
        return ScorecardPart.of(super()._part(*arguments), bins, rows.evidence, rows.held)


class ScorecardParty(Party):
    """Bins its columns, sends them as weights of evidence, keeps points and reasons."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(AgreedKey)
    bins = Uses(BinSteps, purpose="scorecard bins")
    rows = Uses(EvidenceRows, penalized=True)
    products = Uses(ScoredProducts, purpose="scorecard")
    means = Uses(MaskedMeanSteps)
    prediction = Uses(KeptPoints)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns over the labelled rows of the fit."""
        return self.rows.columns

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[CardFields],
    ) -> dict[str, Any]:
        """Hand over the own columns as weights of evidence.

        Message: as of `PrivateProductSteps.send_masked`, and who (n_labelled, n_parties): which
        parties' rows take part; evidence, merged (n_bins,): of the own bins, column by column;
        block (2,): of rows held and others, nothing where the party has all; points_to_double: the
        setting. Returns as there.
        """
        given: dict[str, Any] = dict(keys)
        self.state[_DOUBLE] = float(given.pop("points_to_double"))
        own = [given.pop(key) for key in ("who", "evidence", "merged", "block")]
        self.rows.take(given["names"], *own)
        return self.products.send_masked(limbs, owner, sealed, **given)

    @step
    @takes_as(KeptCoefficients.keep)
    def finish_moments(self, **model: Any) -> Summands:
        """Forget the seed, keep coefficients and points, send terms of unlabelled samples.

        Message and return value: see `PredictionSteps.keep_model`. The party gets files of its
        own: the ``points`` of its rows with reasons, and its ``bins``.
        """
        self.group_key.erase_group_seed()
        told = self.prediction.keep(**model)
        self._write(np.asarray(model["coefficients"])[0])
        return told

    def _write(self, beta: Array) -> None:
        """Keep the bins with the own coefficients, and write points, reasons and bins."""
        rows, bins, factor = self.rows, self.bins.bins, self.state[_DOUBLE] / math.log(2.0)
        names = rows.design.columns
        points = points_of(rows.design.x, beta, factor)
        evidence = rows.evidence
        best = [
            float(points_of(part, b, factor).max()) for part, b in zip(evidence, beta, strict=False)
        ]
        best += points[:1, -1].tolist() * (len(names) > len(best))
        frame = pd.DataFrame(points, columns=names)
        frame["points"] = points.sum(axis=1)
        frame = pd.concat([frame, reasons(points, np.array(best), names)], axis=1)
        _, own = self.rows_of(np.arange(self.n_samples))
        self.save_output(frame.set_index(self.own_ids[own]), "points")
        parts = []
        for j, (name, part, to) in enumerate(zip(bins.columns, evidence, rows.merged, strict=True)):
            labels = merged_labels(bins.labels[j], to, bins.nominal[j])
            at = [int(np.flatnonzero(to == number)[0]) for number in range(len(labels))]
            found = {"column": name, "bin": labels, "woe": part[at]}
            found["points"] = points_of(part[at], beta[j], factor)
            parts.append(pd.DataFrame(found))
        self.save_output(pd.concat(parts, ignore_index=True).rename_axis("row"), "bins")
