"""The party half: columns and means, with rows="all" labelled rows that others complete."""

from typing import Annotated, Any, Unpack

from flwr_vertical import Uses, step
from flwr_vertical.products import OPENED_PRODUCTS
from flwr_vertical.protocol.arguments import OWN, Is, Within
from flwr_vertical.protocol.declaration import If
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.normal.labelled_party import CompletedFields, CompletingParty, LabelledProductSteps
from strategies.normal.labelled_server import COMPLETING

COMPLETES = "rows == 'all' and family != 'gaussian'"
"""Settings with which labelled rows are completed."""

EVALUATES = "family != 'gaussian' or rows == 'complete' and not epsilon"
"""Settings with which functions of linear predictors may be evaluated, of gaussian labels for
weights and robust errors alone."""

OPENED_ROWS = If(COMPLETES, *COMPLETING, otherwise=(OPENED_PRODUCTS,))
"""What opens sums over the rows of a fit."""

TOLD_COMPLETING = (
    (
        "server, with rows='all' and labels that are not gaussian",
        "of each party, sums of columns and of products of two of them over its rows, and over "
        "those that each other party holds, too; of two parties, sums of products of their "
        "columns over the rows that both hold; parties that share too few rows, how many numbers a "
        "party tells of a row where it alone helps, and columns with a value too rare in these, or "
        "in the rows that one of them lacks; the sums above over labelled rows that others "
        "completed for a party: of others' columns, over rows that it lacks, where enough are held "
        "by the same parties",
    ),
    (
        "every party, with rows='all' and labels that are not gaussian",
        "which parties hold each row; coefficients of its columns in the means of others', by "
        "who holds a row; of each labelled row that it lacks, the mean of its columns given "
        "the others', to a quarter of what is left of their standard deviation; where one "
        "other party alone holds the row, at most half as many numbers as that has columns which "
        "do not follow from its others",
    ),
)
"""What completing tells beyond that."""


class GLMParty(CompletingParty):
    """Keeps its columns and, of a fitted model, its own coefficients."""

    products = Uses(LabelledProductSteps, purpose="glm")
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
