"""A party of a linear method on moments: its table, its keys, its products, its coefficients."""

from typing import Any

from flwr_vertical import Arbiter, Party, Summands, Uses, step
from flwr_vertical.products import (
    OPENED_PRODUCTS,
    EncryptedGroupSteps,
    GroupKeySteps,
    HeldColumns,
    PairKeySteps,
    PrivateProductSteps,
    ProductKeySteps,
)
from flwr_vertical.protocol.arguments import takes_as
from flwr_vertical.protocol.declaration import (
    BITS,
    EPSILON,
    FACTS,
    ROWS,
    If,
    Maybe,
    Part,
    Protocol,
    Repeat,
    Round,
)
from strategies.linear.masked_means.steps import MaskedMeanSteps
from strategies.linear.moments.steps import MomentSteps
from strategies.linear.prediction.steps import KeptCoefficients

NAMES_OF_COLUMNS = (
    "server",
    "names of the parties' columns, which are collinear, rows left out, and whether these differ "
    "from others",
)
BY_PATTERN = (
    "server",
    "for each missingness pattern, over no fewer rows than the parties' minimum: sums of "
    "columns, of products of two columns, and of products of a column and the label",
)
PAIRS_OF_COLUMNS = (
    "server",
    "of each party, sums of columns and of products of two of them over its rows, and over "
    "those that each other party holds, too; of two parties, sums of products of their columns "
    "over the rows that both hold",
)
ROUGH_UNITS = (
    "server",
    "a rough unit of each column (a power of two near its standard deviation) and a centre to a "
    "quarter of it",
)
TERMS_TO_A_GRID = (
    "server",
    "for each sample without a label, the sum of the parties' terms, rounded to a grid: at most "
    "``bits_per_row`` bits; of each party, how many of these lie out of its bounds",
)
WITHHELD = (
    "server",
    "in which groups of rows a column of few values has one that is too rare to be told of, or a "
    "column comes down to few rows; names of columns of levels of which no two are held by enough "
    "rows",
)
RECOGNISED = (
    (
        "server",
        "which parties keep a privacy ledger, and whether a party's rows of the fit are those of "
        "an earlier run",
    ),
    (
        "every party that keeps a privacy ledger",
        "whether the labels are those of an earlier run, where the server kept its secret; nothing "
        "else of them",
    ),
)
PRIVATE = (
    "server, with differential privacy (epsilon)",
    "names of columns; which samples a party leaves out for missing cells; all sums with noise "
    "only, by which they are (epsilon, delta)-differentially private for the values of a row. "
    "Units are those of the public bounds, no column is withheld, and no sample is predicted",
)
SEED_OF_COLUMNS = (
    "server and any one party together",
    "all parties' columns: the party has the seed that hides them from the server",
)
COLLUSION = (
    (
        "server and any one party together",
        "all parties' columns: the party has the seed that hides them from the server (in ckks "
        "mode it takes server and arbiter)",
    ),
    (
        "a party and its helper together",
        "the labels: one has these under a mask, the other the seed of the mask",
    ),
    (
        "nobody alone, with exchange 'moments'",
        "a value of another party's columns, or a fitted value; of the parties, a label",
    ),
)


class MomentArbiter(Arbiter):
    """Opens blinded products where they come from ciphertexts."""

    products = Uses(ProductKeySteps)


_MOST_EVALUATIONS = 48
EVALUATED = (
    Round("send_digits", "its columns in digits, under a key stream", tells=ROWS, again=True),
    Repeat(
        Round(
            "place_fits",
            "summed, an angle for each row under key streams; how far fits reach",
            tells=ROWS,
        ),
        Repeat(
            Round("open_means", "sums of columns times a function of the fits", tells=ROWS),
            at_most=6,
        ),
        at_most=_MOST_EVALUATIONS,
    ),
)
"""What evaluations of means exchange."""


def moments_protocol(*evaluated_if: str, opening: Part = OPENED_PRODUCTS) -> Protocol:
    """Return what a fit by moments exchanges, with evaluations of means under a condition."""
    return Protocol(
        Round("prepare_moments", "names of columns, number of rows, keys", tells=(FACTS, EPSILON)),
        opening,
        *(If(condition, Maybe(*EVALUATED)) for condition in evaluated_if),
        Round(
            "finish_moments",
            "summed, a rounded term of each sample without a label",
            tells=(FACTS, BITS),
        ),
    )


MOMENTS = moments_protocol()
"""What a fit by moments exchanges."""


class MomentParty(Party):
    """Sends its columns under the group's key stream, and keeps its coefficients in the end."""

    pair_keys = Uses(PairKeySteps, sends="masked columns")
    group_key = Uses(GroupKeySteps)
    moments = Uses(MomentSteps)
    products = Uses(PrivateProductSteps, purpose="moments")
    ciphertexts = Uses(EncryptedGroupSteps, purpose="moments")
    prediction = Uses(KeptCoefficients)

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns that enter private products."""
        return self.moments.columns

    @step
    @takes_as(KeptCoefficients.keep)
    def finish_moments(self, **model: Any) -> Summands:
        """Erase the group seed, keep the own coefficients, and send terms of unlabelled samples.

        Message: **model: see `PredictionSteps.keep_model`; returns as there.
        """
        self.group_key.erase_group_seed()
        return self.prediction.keep(**model)


class MeanParty(MomentParty):
    """Has sums of functions of linear predictors opened as well; the fit is penalised, if asked."""

    moments = Uses(MomentSteps, penalized=True)
    means = Uses(MaskedMeanSteps)
