"""The party half of linear classifiers: moments and masked sums of its columns."""

from typing import Any

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.products import GroupKeySteps, HeldColumns, PairKeySteps, PrivateProductSteps
from strategies.linear import RegressionData
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.moments import MomentSteps
from strategies.linear.prediction import PredictionSteps


class ClassifierParty(Party):
    """Keeps its columns and, of a fitted classifier, its own coefficients."""

    data = Uses(RegressionData, penalized=True)
    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    moments = Uses(MomentSteps)
    products = Uses(PrivateProductSteps, purpose="classifier")
    prediction = Uses(PredictionSteps)
    means = Uses(MaskedMeanSteps)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns of the moments, of which derivatives are summed, too."""
        return self.moments.columns()

    @step
    def finish_moments(self, **model: Any) -> Summands:
        """Keep the own coefficients, and erase the group seed: nothing more will be opened.

        Message: **model: see `PredictionSteps.keep_model`; returns as there.
        """
        self.group_key.erase_group_seed()
        return self.prediction.keep_model(**model)
