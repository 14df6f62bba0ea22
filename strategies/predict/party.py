"""The party half of `Predict`: multiply new rows by what the party kept, and by nothing else."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical import Party, Summands, step
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.steps import admit_terms, check_pattern

# Under a prefix that the server may not write to.
_DONE = "node.predict.done"


class PredictParty(Party):
    """Has its own coefficients from the run named ``fitted``; no step takes any."""

    @step
    def open_model(self, model: str) -> dict[str, Any]:
        """Look for what this party kept, and say which rows count as missing.

        Message: model: digest of the model; returns ``dropped``, the aligned numbers of rows with
        a missing cell or a level that the fit did not know.
        """
        return {"dropped": self._dropped(self._part(model))}

    @step
    def predict_kept(self, model: str, pattern: npt.NDArray[Any] | None = None) -> Summands:
        """Send the terms of the rows held into a sum; once a run.

        Message: model: digest of the model; pattern (n_held,): with several regressions, that of
        each row held and not dropped, in aligned order; returns summed: ``term`` of shape
        (n_samples,), whole numbers of the model's grid, 0 where the row is missing.
        """
        if _DONE in self.state:
            raise DataError(
                f"party {self.name!r} has predicted in this run already; each run predicts a row "
                "once"
            )
        part = self._part(model)
        term, outside = np.zeros(self.n_samples, dtype=np.int64), 0
        if part.columns:
            rows, used = self._rows(part)
            order = np.flatnonzero(used)
            order = order[np.argsort(self.positions[order], kind="stable")]
            chosen = check_pattern(pattern, len(order), len(part.present), self.name)
            told, outside = part.terms(rows[order], chosen)
            admit_terms(self, part, self.positions[order], told)
            term[self.positions[order]] = told
        self.state[_DONE] = 1
        return Summands({"term": term}, {"dropped": self._dropped(part), "outside": outside})

    def _part(self, model: str) -> LinearPart:
        part = self.load_model(LinearPart)
        if part is None:
            raise DataError(
                f"party {self.name!r} does not know which of its models to use; name the run of "
                "the fit as 'fitted' in the run config (in a simulation, predict from a result "
                "that has the parties' parts)"
            )
        if part.model != model:
            raise DataError(
                f"party {self.name!r}: the run named as 'fitted' left the model {part.model}, but "
                f"the server predicts with the model {model}; name the run of that fit"
            )
        return part

    def _rows(self, part: LinearPart) -> tuple[Array, Flags]:
        """Return the columns of the fit, and which own rows take part."""
        if "predict.rows" not in self.cache:
            self.cache["predict.rows"] = part.features(self.table, self.name)
        rows: Array = self.cache["predict.rows"]
        return rows, ~np.isnan(rows).any(axis=1) & (self.positions >= 0)

    def _dropped(self, part: LinearPart) -> npt.NDArray[np.int64]:
        rows, _ = self._rows(part)
        gaps = np.isnan(rows).any(axis=1)
        return np.flatnonzero(self.to_aligned(gaps, False))
