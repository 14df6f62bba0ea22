"""Scores of new rows: each party adds up its points, see `predict.linear`."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array, Flags
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.server import Predictor
from strategies.predict.linear import LinearPredictions, PredictParty
from strategies.scorecard.card import PointScale
from strategies.scorecard.part import ScorecardPart


@dataclass
class ScorecardPredictor(Predictor):
    """What the server needs to turn sums of terms into scores."""

    strategy = "scorecard"
    version = 1

    base_score: float  # See `PointScale`
    base_odds: float
    points_to_double: float

    @classmethod
    def of(cls, predictor: Predictor, scale: PointScale) -> "ScorecardPredictor":
        """Add the scale of points."""
        return cls(**vars(predictor), **vars(scale))

    def table(
        self, held: Flags, term: npt.NDArray[Any], shift: Array | float = 0.0
    ) -> pd.DataFrame:
        """Turn sums of terms into probabilities of the event, and scores; see `Predictor`."""
        found = super().table(held, term, shift)
        scale = PointScale(self.base_score, self.base_odds, self.points_to_double)
        score = scale.score(found["linear_predictor"].to_numpy(dtype=np.float64))
        return pd.DataFrame({"prediction": found["prediction"], "score": score})


class ScorecardPredictParty(PredictParty):
    """Has its bins and coefficients from the run named ``fitted``."""

    kept: ClassVar[type[LinearPart]] = ScorecardPart


class ScorecardPredictions(LinearPredictions):
    """As with linear models, of weights of evidence."""

    party = ScorecardPredictParty
