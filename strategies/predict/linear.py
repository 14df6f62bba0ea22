"""Predictions with linear models: a sum of the parties' terms for each sample."""

from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Alignment, Federation, Party, Progress, Result, Summands, step
from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.node.kept import part_of_fit
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.arguments import OWN, Within
from flwr_vertical.protocol.declaration import BITS, FACTS, Maybe, Protocol, Round
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.regressions import CLASSES, HAZARD, MARGIN
from strategies.linear.prediction.server import Predictor, narrow, note_bits
from strategies.linear.prediction.steps import admit_terms, check_pattern
from strategies.linear.problem import note, sample_index

# Under a prefix that the server may not write to.
_DONE = "node.predict.done"


class PredictParty(Party):
    """Has its own coefficients from the run named ``fitted``; no step takes any."""

    kept: ClassVar[type[LinearPart]] = LinearPart

    @step
    def open_model(self, model: Annotated[str, Within(1, 200)]) -> dict[str, Any]:
        """Look for what this party kept, and say which rows count as missing.

        Message: model: digest of the model; returns ``dropped``, the aligned numbers of rows with
        a missing cell or a level that the fit did not know.
        """
        return {"dropped": self._dropped(part_of_fit(self, self.kept, model))}

    @step
    def predict_kept(
        self,
        model: Annotated[str, Within(1, 200)],
        pattern: Annotated[npt.NDArray[np.integer[Any]] | None, OWN, Within(0, 2**31)] = None,
    ) -> Summands:
        """Send the terms of the rows held into a sum; once a run.

        Message: model: digest of the model; pattern (n_held,): with several regressions, that of
        each row held and not dropped, in aligned order; returns summed: ``term`` of shape
        (n_samples,), with several scores (n_samples, n_outputs), whole numbers of the model's
        grid, 0 where the row is missing.
        """
        if _DONE in self.state:
            raise DataError(
                f"party {self.name!r} has predicted in this run already; each run predicts a row "
                "once"
            )
        part, outside = part_of_fit(self, self.kept, model), 0
        coarse: dict[str, int] = {}
        tail = (part.n_outputs,) if part.n_outputs > 1 else ()
        term = np.zeros((self.n_samples, *tail), dtype=np.int64)
        if part.columns:
            rows, used = self._rows(part)
            order = np.flatnonzero(used)
            order = order[np.argsort(self.positions[order], kind="stable")]
            chosen = check_pattern(pattern, len(order), len(part.present), self.name)
            told, outside = part.terms(rows[order], chosen)
            coarse = admit_terms(self, part, self.positions[order], told)
            term[self.positions[order]] = told
        self.state[_DONE] = 1
        public = {"dropped": self._dropped(part), "outside": outside, **coarse}
        return Summands({"term": term}, public)

    def _rows(self, part: LinearPart) -> tuple[Array, Flags]:
        """Return the columns of the fit, and which own rows take part."""
        if "predict.rows" not in self.cache:
            self.cache["predict.rows"] = part.features(self.table, self.name)
        rows: Array = self.cache["predict.rows"]
        return rows, ~np.isnan(rows).any(axis=1) & (self.positions >= 0)

    def _dropped(self, part: LinearPart) -> Integers:
        rows, _ = self._rows(part)
        gaps = np.isnan(rows).any(axis=1)
        return np.flatnonzero(self.to_aligned(gaps, False))


class LinearPredictions(Predictions):
    """Each party multiplies by its coefficients, and terms are added up; one or two rounds."""

    party = PredictParty
    protocol: ClassVar[Protocol] = Protocol(
        Maybe(Round("open_model", "which rows it cannot use", tells=FACTS)),
        Round("predict_kept", "summed, a rounded term of each sample", tells=(FACTS, BITS)),
    )
    disclosure = (
        (
            "server",
            "for each sample, the sum of the parties' terms (columns times the coefficients that "
            "each party kept), rounded to a grid: at most ``bits_per_row`` bits. Of a sample that "
            "one of the parties of this run holds alone, this is that party's own term",
        ),
        (
            "server",
            "of each party, which rows have a missing cell or a level that the fit did not know, "
            "and how many terms lie far outside those of the fit",
        ),
        (
            "every party",
            "which model is used; where coefficients depend on the parties at hand, which of its "
            "rows have the same parties",
        ),
        (
            "nobody",
            "a value of another party's columns, but for what bits of a term tell of them; another "
            "party's coefficients",
        ),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have every party multiply, and add up."""
        predictor: Predictor = self.model
        names = list(federation.parties)
        column = [predictor.parties.index(name) for name in names]
        held = np.zeros((alignment.n_samples, len(predictor.parties)), dtype=bool)
        held[:, column] = ~alignment.mask
        several = len(predictor.present) > 1
        progress.total = 1 + several
        arguments: dict[str, Any] = {"model": predictor.digest}
        per_party: dict[str, dict[str, Any]] = {}
        if several:
            told = federation.call("open_model", arguments)
            progress.step("rows")
            _drop(held, told, predictor)
            chosen = predictor.patterns_of(held)
            per_party = {
                name: {"pattern": narrow(chosen[held[:, k]])}
                for name, k in zip(names, column, strict=True)
            }
        total = federation.sum(
            "predict_kept",
            arguments,
            per_party=per_party,
            shapes={"term": (alignment.n_samples, *predictor.scores)},
        )
        progress.step("predict")
        _drop(held, total.public, predictor)
        for name, values in total.public.items():
            if n_dropped := len(values["dropped"]):
                note(
                    result,
                    f"party {name!r}: {counted(n_dropped, 'row has', 'rows have')} a missing "
                    "cell or a level that the fit "
                    "did not know; they were predicted as if the party lacked them",
                )
        predictor = predictor.told_how_coarse(total.public)
        note_bits(result, predictor, total.public)
        index = sample_index(alignment, result.labels, np.arange(alignment.n_samples))
        result.predictions = predictor.table(held, total["term"]).set_axis(index)
        result.party_metrics = {
            name: {"rows_held": float(held[:, k].sum())}
            for name, k in zip(names, column, strict=True)
        }
        result.metrics["n_samples"] = float(alignment.n_samples)
        if federation.labels is not None:
            self._compare(federation.labels, result, predictor.family)

    def _compare(self, labels: Array, result: Result, family: str) -> None:
        """Say how far predictions are from the labels that are known."""
        known = np.isfinite(labels)
        if not known.any() or result.predictions is None or family == HAZARD:
            return
        found, y = result.predictions[known], labels[known]
        if family in (MARGIN, CLASSES):
            result.metrics["accuracy"] = float(np.mean(found["prediction"].to_numpy() == y))
            return
        errors = y - found["prediction"].to_numpy()
        result.metrics["rmse"] = float(np.sqrt(np.mean(errors**2)))
        if family == "gaussian":
            inside = (y >= found["lower"].to_numpy()) & (y <= found["upper"].to_numpy())
            result.metrics["coverage"] = float(np.mean(inside))
        elif family == "binomial" and np.isin(y, (0.0, 1.0)).all():
            p = np.clip(found["prediction"].to_numpy(), 1e-15, 1 - 1e-15)
            result.metrics["log_loss"] = float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _drop(held: Flags, told: dict[str, dict[str, Any]], predictor: Predictor) -> None:
    """Take out the rows that parties do not use."""
    for name, values in told.items():
        dropped = np.asarray(values["dropped"], dtype=np.int64)
        if len(dropped) and (dropped.min() < 0 or dropped.max() >= len(held)):
            raise DataError(f"party {name!r} named rows that are not among the aligned ones")
        held[dropped, predictor.parties.index(name)] = False
