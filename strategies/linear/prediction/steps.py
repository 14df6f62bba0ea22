"""The party half of predictions: keep the own coefficients, hand out terms on a grid."""

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import AnyArray, Array, Bytes, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.arguments import OWN, Shape, Within, check_fits, takes_as
from strategies.linear.data import RegressionRows
from strategies.linear.prediction.party_model import LinearPart, column_sources

# Under a prefix that the server may not write to.
_KEPT = "node.prediction.kept"
MOST_OUTPUTS = 200
"""Scores of a row, at most."""

FEWEST_BITS = 6
"""Of a score: fewer would hardly tell classes apart. Where policies allow fewer, they refuse."""

_BLOCK = 256  # regressions whose terms are worked out together
_LONGEST = 2.0**50  # whole numbers that float64 and sums of them hold exactly


class KeptCoefficients(StepGroup):
    """Takes the own coefficients at the end of a fit; the party also uses `RegressionRows`.

    They come from the server, which has the labels and may send others. So what they can tell is
    bounded: one model a run, and of each row one term, rounded to a grid that has at most
    ``2**prediction-bits`` steps over twice the range of the own rows' terms.
    """

    party: Party

    def __init__(self, party: Party, most_outputs: int = 1) -> None:
        super().__init__(party)
        self._most_outputs = most_outputs

    def keep(
        self,
        model: str,
        parties: list[str],
        own: Annotated[int, OWN, Within(0, "parties - 1")],
        present: Annotated[Bytes, Shape(None, "parties"), Within(0, 1)],
        coefficients: Annotated[Array, OWN, Shape("present * n_outputs", None)],
        offsets: Annotated[Array, OWN, Shape("present * n_outputs")],
        grid: Annotated[float, Within(1e-300, 1e300)],
        n_unlabelled: Annotated[int, Within(0, "n_samples")],
        pattern: Annotated[npt.NDArray[np.integer[Any]] | None, OWN, Within(0, "present - 1")]
        | None = None,
        n_outputs: Annotated[int, Within(1, MOST_OUTPUTS)] = 1,
    ) -> Summands:
        """Keep the coefficients, and return the terms of the samples without a label."""
        if _KEPT in self.state:
            raise DataError(
                f"party {self.name!r} has kept a model in this run already; each run has one, so "
                "that no row is multiplied by several sets of coefficients"
            )
        # Several scores tell more of a row than one: only a method of classes has them.
        check_fits(self.name, "n_outputs", n_outputs, Within(1, self._most_outputs))
        part = self._part(model, parties, own, present, coefficients, offsets, grid, n_outputs)
        public, values = {"outside": 0}, {}
        if n_unlabelled:
            tail = (n_outputs,) if n_outputs > 1 else ()
            term = np.zeros((n_unlabelled, *tail), dtype=np.int64)
            if part.columns:
                data = self.other(RegressionRows)
                rows, numbers, count = data.raw_unlabelled
                check_fits(self.name, "n_unlabelled", n_unlabelled, Within(count, count))
                chosen = check_pattern(pattern, len(rows), len(part.present), self.name)
                term[numbers], public["outside"] = part.terms(rows, chosen)
                public |= admit_terms(self.party, part, data.aligned_unlabelled, term[numbers])
            values["term"] = term
        self.state[_KEPT] = 1
        self.party.save_model(part)
        return Summands(values, public)

    def _part(
        self,
        model: str,
        parties: list[str],
        own: int,
        present: Bytes,
        coefficients: Array,
        offsets: Array,
        grid: float,
        n_outputs: int,
    ) -> LinearPart:
        """Check what the server sent, and bound what terms may tell."""
        used = np.asarray(present, dtype=bool)
        beta = np.asarray(coefficients, dtype=np.float64)
        shift = np.asarray(offsets, dtype=np.float64)
        if parties[own : own + 1] != [self.name] or used.shape != (
            len(beta) // n_outputs,
            len(parties),
        ):
            raise DataError(
                f"party {self.name!r}: expected coefficients of its own for each pattern of the "
                f"parties {parties}, got {beta.shape} for patterns of shape {used.shape}, as those "
                f"of party number {own}"
            )
        columns: list[str] = []
        x = np.empty((0, 0))
        if beta.shape[1]:
            data = self.other(RegressionRows)
            columns, x = data.design.columns, data.design.x
        if beta.shape[1] != len(columns) or shift.shape != (len(beta),):
            raise DataError(
                f"party {self.name!r} has the columns {columns}, but was sent {beta.shape[1]} "
                f"coefficients for each of {len(beta)} patterns, and {shift.shape} offsets"
            )
        if not (np.isfinite(beta).all() and np.isfinite(shift).all()):
            raise DataError(f"party {self.name!r} was sent coefficients that are not finite")
        if not (math.isfinite(grid) and grid > 0):
            raise DataError(f"party {self.name!r}: the grid must be a positive number, got {grid}")
        if beta[np.repeat(~used[:, own], n_outputs)].any():
            raise DataError(
                f"party {self.name!r} was sent coefficients for patterns in which it is absent"
            )
        origins = data.design.origins if columns else {}
        least, most = np.zeros(len(beta)), np.zeros(len(beta))
        for start in range(0, len(beta) if columns else 0, _BLOCK):
            block = slice(start, start + _BLOCK)
            terms = x @ beta[block].T - shift[block]
            least[block], most[block] = terms.min(axis=0), terms.max(axis=0)
        if columns and data.public_range is not None:
            # What terms there are would tell of the rows: public ranges say what there can be.
            low, high = data.public_range
            low, high = np.where(beta > 0.0, low, high), np.where(beta > 0.0, high, low)
            least, most = (low * beta).sum(axis=1) - shift, (high * beta).sum(axis=1) - shift
        # Several scores of a row tell no more, together, than predictions may.
        policy = self.party.policy
        bits = min(policy.grid, max(int(policy.predictions // n_outputs), FEWEST_BITS))
        coarser, lowest, highest, bits = bounds(least, most, grid, bits, self.name)
        return LinearPart(
            model,
            list(parties),
            used,
            columns,
            **column_sources(self.party.table, origins),
            coefficients=beta,
            offsets=shift,
            grid=grid,
            coarser=coarser,
            lowest=lowest,
            highest=highest,
            bits=bits,
            n_outputs=n_outputs,
            formula=data.design.formula if columns else "",
        )


class PredictionSteps(KeptCoefficients):
    """The same where no other step keeps them."""

    @step
    @takes_as(KeptCoefficients.keep)
    def keep_model(self, **model: Any) -> Summands:
        """Keep the coefficients, and send the terms of the samples without a label.

        Message: model: digest by which the server will name the model; parties: parties of the
        fit; own: which of them this is; present (n_patterns, n_parties): 1 where a regression uses
        a party's columns; coefficients (n_patterns, n_own_columns): per unit of the columns;
        offsets (n_patterns,): subtracted from the terms; grid: terms are rounded to this, or to a
        power of two times it; n_unlabelled: number of samples without a label; pattern
        (n_unlabelled_held,): with several regressions, that of each row held of samples without a
        label; n_outputs: how many scores a row has, so many lines of coefficients and offsets has
        each pattern; returns summed: ``term`` of shape (n_unlabelled,), or (n_unlabelled,
        n_outputs), whole numbers of `grid`, 0 where the row is missing.
        """
        return self.keep(**model)


def admit_terms(party: Party, part: LinearPart, aligned: Indices, terms: Indices) -> dict[str, int]:
    """Refuse to tell terms of rows of which too much was predicted before; or say how coarse.

    How coarse terms are follows from how far those of the fit reach, which is that of one row or
    two: whoever chooses coefficients gets it with terms that are counted, and not without any.

    Shapes: aligned (n_rows,): aligned numbers of the rows; terms (n_rows,) or (n_rows, n_outputs):
    what is to be told of them, in units of the grid. Each score counts as one model's prediction.
    """
    _, by_row = party.rows_of(aligned)
    chosen = np.zeros(len(party.positions), dtype=bool)
    chosen[by_row] = True
    told = np.zeros((len(chosen), part.n_outputs), dtype=np.int64)
    told[by_row] = terms.reshape(len(by_row), part.n_outputs)
    for j, score in enumerate(told[chosen].T):
        of = f"{part.grid!r} {part.coarser} {j or ''}".encode()
        what = "terms of predictions" + (f", score {j + 1} of {part.n_outputs}" if j else "")
        more = part.bits * (part.n_outputs - 1 - j)
        party.open_bits(
            chosen, part.bits, content=of + score.tobytes(), more=more, predictions=True, what=what
        )
    return {"bits": part.bits, "coarser": part.coarser} if len(by_row) else {}


def bounds(
    smallest: Array, largest: Array, grid: float, max_bits: int, party: str
) -> tuple[int, Indices, Indices, int]:
    """Choose how coarsely terms are rounded, and what they may be.

    Shapes: smallest, largest (n_regressions,): terms of the own rows; returns (n_regressions,): in
    units of `grid`: half a range beyond what the own rows have at either end.
    """
    low, high = smallest / grid, largest / grid
    margin = (high - low) / 2.0
    low, high = low - margin, high + margin
    longest = float(np.max(np.abs([low, high])))
    if longest > _LONGEST:
        # Only to a power of two: the message leaves the node, and a cell must not.
        raise DataError(
            f"party {party!r}: terms of up to {2.0 ** np.ceil(np.log2(longest * grid)):g} (a power "
            f"of two) cannot be counted in steps of {grid:g}; are the columns' levels large "
            "against the labels' noise? Centre them"
        )
    coarser = 0
    while True:
        unit = 2.0**coarser
        first, last = np.floor(low / unit), np.ceil(high / unit)
        bits = math.ceil(math.log2(float((last - first).max()) + 1.0))
        if bits <= max_bits:
            break
        coarser += 1
    return coarser, (first * unit).astype(np.int64), (last * unit).astype(np.int64), bits


def check_pattern(pattern: AnyArray | None, n_rows: int, n_patterns: int, party: str) -> Indices:
    """Return the regression of each row as sent by the server."""
    if pattern is None:
        if n_patterns > 1:
            raise DataError(f"party {party!r} has {n_patterns} regressions, and no row's was named")
        return np.zeros(n_rows, dtype=np.int64)
    check_fits(party, "pattern", pattern, Shape(n_rows))
    check_fits(party, "pattern", pattern, Within(0, n_patterns - 1))
    return np.asarray(pattern, dtype=np.int64)
