"""The party half: columns and means, with rows="all" labelled rows that others complete."""

from typing import Annotated, Any, Unpack

from flwr_vertical import Summands, Uses, step
from flwr_vertical.products import OPENED_PRODUCTS
from flwr_vertical.protocol.arguments import OWN, Is, Within
from flwr_vertical.protocol.declaration import If
from strategies.linear.data import FORMULA, Labelled, RowSettings
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.moments.steps import MomentSteps
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
        "of each party, sums of columns and of products of two of them over its rows; of two "
        "parties, sums of products of their columns over the rows that both hold; parties that "
        "share too few rows, how many numbers a party tells of a row where it alone helps, and "
        "columns with a value too rare in these, or in the rows that "
        "one of them lacks; the sums above over labelled rows that others completed for a "
        "party: of others' columns, over rows that it lacks, where enough are held by the same "
        "parties",
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


class GLMFields(CompletedFields, total=False):
    """What `GLMParty.send_masked` takes beside limbs and the group seed."""

    completing: Annotated[bool, Is(COMPLETES)]


class FormulaSteps(MomentSteps):
    """Offers what a formula makes of the columns of its party."""

    @step(repeatable=False)  # a key pair is drawn
    def prepare_moments(  # type: ignore[override]  # the formula may not be absent
        self,
        nonce: bytes,
        formula: Annotated[str, Is("formula")],
        labelled: Labelled | None = None,
        epsilon: Annotated[float, Is("epsilon or 0.0")] = 0.0,
        delta: Annotated[float, Within(0.0, 1.0)] = 0.0,
        row_norm: Annotated[float | None, Is("row_norm")] = None,
        bounds: str = "",
        **settings: Unpack[RowSettings],
    ) -> Summands:
        """Prepare the table, and make the key pair of this run.

        Message: formula: by party, what takes the place of its columns (`read_formulas`); others,
        and what is returned: see `MomentSteps.prepare_moments`.
        """
        self.state[FORMULA] = formula
        return super().prepare_moments(
            nonce, "", labelled, epsilon, delta, row_norm, bounds, **settings
        )


class GLMParty(CompletingParty):
    """Keeps its columns and, of a fitted model, its own coefficients."""

    moments = Uses(FormulaSteps, penalized=True)
    products = Uses(LabelledProductSteps, purpose="glm")
    means = Uses(MaskedMeanSteps)

    @step
    def send_masked(
        self,
        limbs: Annotated[int, Within(1, 2)],
        owner: str,
        sealed: Annotated[bytes, OWN],
        **keys: Unpack[GLMFields],
    ) -> dict[str, Any]:
        """Hand over the own columns; completing, first over all own rows, then with others' means.

        Message and return value: see `CompletingParty.hand_over`.
        """
        return self.hand_over(limbs, owner, sealed, dict(keys))
