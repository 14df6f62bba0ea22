"""A party of a linear method on moments: its table, its keys, its products, its coefficients."""

from typing import Any

from flwr_vertical import Arbiter, Party, Summands, Uses, step
from flwr_vertical.products import (
    EncryptedGroupSteps,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProductSteps,
    ProductKeySteps,
)
from strategies.linear.data import RegressionData
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.moments.steps import MomentSteps
from strategies.linear.prediction.steps import PredictionSteps


class MomentArbiter(Arbiter):
    """Opens blinded products where they come from ciphertexts."""

    products = Uses(ProductKeySteps)


class MomentParty(Party):
    """Sends its columns under the group's key stream, and keeps its coefficients in the end."""

    data = Uses(RegressionData)
    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    moments = Uses(MomentSteps)
    products = Uses(PrivateProductSteps, purpose="moments")
    ciphertexts = Uses(EncryptedGroupSteps, purpose="moments")
    prediction = Uses(PredictionSteps)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns that enter private products."""
        return self.moments.columns()

    @step
    def finish_moments(self, **model: Any) -> Summands:
        """Erase the group seed, keep the own coefficients, and send terms of unlabelled samples.

        Message: **model: see `PredictionSteps.keep_model`; returns as there.
        """
        self.group_key.erase_group_seed()
        return self.prediction.keep_model(**model)


class MeanParty(MomentParty):
    """Has sums of functions of linear predictors opened as well; the fit is penalised, if asked."""

    data = Uses(RegressionData, penalized=True)
    means = Uses(MaskedMeanSteps)
