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
        completing: Annotated[bool | None, Is(COMPLETES)] = None,
        **keys: Unpack[CompletedFields],
    ) -> dict[str, Any]:
        """Hand over the own columns; see `CompletingParty.send_masked`."""
        return super().send_masked(limbs, owner, sealed, completing, **keys)
