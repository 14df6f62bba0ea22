"""The party half: columns and, with rows="all", labelled rows that others complete."""

from typing import Annotated, Any, Unpack

from flwr_vertical import Uses, step
from flwr_vertical.products import OPENED_PRODUCTS
from flwr_vertical.protocol.arguments import OWN, Is, Within
from flwr_vertical.protocol.declaration import If
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.normal.labelled_party import CompletedFields, CompletingParty, LabelledProductSteps
from strategies.normal.labelled_server import COMPLETING

COMPLETES = "rows == 'all'"
"""Settings with which labelled rows are completed."""

OPENED_ROWS = If(COMPLETES, *COMPLETING, otherwise=(OPENED_PRODUCTS,))
"""What opens sums over the rows of a fit."""


class CoxFields(CompletedFields, total=False):
    """What `CoxParty.send_masked` takes beside limbs and the group seed."""

    completing: Annotated[bool, Is(COMPLETES)]


class CoxParty(CompletingParty):
    """Keeps its columns and, of a fitted model, its own coefficients."""

    products = Uses(LabelledProductSteps, purpose="survival")
    means = Uses(MaskedMeanSteps)

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[CoxFields],
    ) -> dict[str, Any]:
        """Hand over the own columns; completing, first over all own rows, then with others' means.

        Message and return value: see `CompletingParty.hand_over`.
        """
        return self.hand_over(limbs, owner, sealed, dict(keys))
