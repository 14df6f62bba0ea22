"""The party half of linear discriminants: own rows, then own and completed ones."""

from typing import Annotated, Any, Unpack

from flwr_vertical import Uses, step
from flwr_vertical.protocol.arguments import OWN, Within
from strategies.linear.prediction.steps import MOST_OUTPUTS, KeptCoefficients
from strategies.normal.labelled_party import CompletedFields, CompletingParty, LabelledProductSteps


class DiscriminantFields(CompletedFields, total=False):
    """What `DiscriminantParty.send_masked` takes beside limbs and the group seed."""

    completing: bool


class DiscriminantParty(CompletingParty):
    """Completes labelled rows, and keeps its own coefficients of the discriminants."""

    products = Uses(LabelledProductSteps, purpose="lda")
    prediction = Uses(KeptCoefficients, most_outputs=MOST_OUTPUTS)

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[DiscriminantFields],
    ) -> dict[str, Any]:
        """Hand over the own columns, first over all own rows, then with others' means.

        Message and return value: see `CompletingParty.hand_over`.
        """
        return self.hand_over(limbs, owner, sealed, dict(keys))
