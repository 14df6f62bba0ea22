"""The party half of VerticalGLM: moments of its columns by default, sums of fits with consent."""

from typing import Any

from flwr_vertical import Party, Summands, Uses, step
from flwr_vertical.products import (
    EncryptedGroupSteps,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProductSteps,
)
from strategies.glm.sums.steps import SharingSteps
from strategies.linear import RegressionData
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.moments import MomentSteps
from strategies.linear.prediction import PredictionSteps


class GLMParty(Party):
    """Keeps its columns and, of a fitted model, its own coefficients."""

    data = Uses(RegressionData, penalized=True)
    pair_keys = Uses(PairKeySteps, sends="masked columns", without="exchange='sums'")
    group_key = Uses(GroupKeySteps)
    moments = Uses(MomentSteps)
    products = Uses(PrivateProductSteps, purpose="glm")
    ciphertexts = Uses(EncryptedGroupSteps, purpose="glm")
    prediction = Uses(PredictionSteps)
    means = Uses(MaskedMeanSteps)
    sharing = Uses(SharingSteps)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns of the moments, of which means are summed, too."""
        return self.moments.columns()

    @step
    def finish_moments(self, **model: Any) -> Summands:
        """Keep the own coefficients, and erase the group seed: nothing more will be opened.

        Parameters
        ----------
        **model
            See `PredictionSteps.keep_model`.

        Returns
        -------
        Summands
            As there.
        """
        self.group_key.erase_group_seed()
        return self.prediction.keep_model(**model)
