"""The party half of VerticalGLM: moments of its columns by default, sums of fits with consent."""

from flwr_vertical import Party, Uses
from flwr_vertical.products import PairKeySteps
from strategies.regression import RegressionData
from strategies.regression.glm.sums.steps import SharingSteps


class GLMParty(Party):
    """Keeps its columns; what leaves depends on the exchange."""

    data = Uses(RegressionData, penalized=True)
    pair_keys = Uses(PairKeySteps, sends="rotated columns", without="standard_errors='none'")
    sharing = Uses(SharingSteps)
