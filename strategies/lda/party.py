"""The party half of linear discriminants: own rows, then own and completed ones."""

from typing import Annotated, Any, Unpack

from flwr_vertical import Uses, step
from flwr_vertical.arrays import Array, Ring
from flwr_vertical.products.masked import OPENING, SendFields
from flwr_vertical.products.pairs import PAIRS_OPENING
from flwr_vertical.protocol.arguments import OWN, Shape, Within
from flwr_vertical.protocol.declaration import BITS, NOTHING, ROWS, Protocol, Round
from strategies.glm.party import CompletedProductSteps, GLMParty

COMPLETED = Protocol(
    PAIRS_OPENING,
    Round(
        "complete",
        "summed under the recipient's pad, terms of labelled rows that another party lacks",
        tells=(NOTHING, BITS, ROWS),
    ),
    *OPENING.parts[1:],  # once more, over own and completed rows
)


class DiscriminantFields(SendFields, total=False):
    """What `DiscriminantParty.send_masked` takes beside limbs and the group seed."""

    completing: bool
    total: Annotated[Ring, Shape("n_samples", None), OWN]
    offset: Annotated[Array, Shape(None, None), OWN]
    unit: Annotated[Array, Shape("offset", None), OWN]


class DiscriminantParty(GLMParty):
    """Completes labelled rows, and keeps its own coefficients of the discriminants."""

    products = Uses(CompletedProductSteps, purpose="lda")

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[DiscriminantFields],
    ) -> dict[str, Any]:
        """Hand over the own columns, first over all own rows, then with others' means.

        Message and return value as of `GLMParty.send_masked`.
        """
        given: dict[str, Any] = dict(keys)
        told: dict[str, Any] = super().send_masked(limbs, owner, sealed, **given)
        return told
