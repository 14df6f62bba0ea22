"""CompleteCase, MeanImpute and Single: least squares where blocks of columns are missing.

The three preliminary methods of Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using
Multiple Data Sources with Missing Values through Vertical Federated Learning", Section 2.2. The
server opens the sums of products of columns and labels over the rows of the fit, five rounds in
all (`moments.collect`), and solves the normal equations: estimates and standard errors are exactly
those of least squares on the pooled table.
"""

from dataclasses import replace

import numpy as np

from flwr_vertical import Federation, Result, Strategy, setting
from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.errors import ConfigError
from flwr_vertical.products.row_groups import RowGroups
from strategies.least_squares.baseline import Baseline
from strategies.linear.moment_party import (
    BY_PATTERN,
    COLLUSION,
    PRIVATE,
    RECOGNISED,
    ROUGH_UNITS,
    WITHHELD,
)
from strategies.linear.moments.collect import Grouping, OpenedMoments
from strategies.linear.moments.dp_opening import GroupNoise
from strategies.linear.moments.groups import MinimumRows, by_pattern, complete_rows
from strategies.linear.moments.linear import LinearFit
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.problem import note

_PREDICTIONS = (
    "server",
    "for each sample without a label, the sum of the parties' rounded terms: the prediction; and "
    "how many bits a party's term tells",
)
_PARTIES = (
    "every party",
    "its own coefficients; which samples have a label, and which labelled samples the fit uses; "
    "nothing of the labels",
)


class CompleteCase(Baseline):
    """Least squares over all parties' columns, on the labelled samples that every party holds.

    Notes
    -----
    Standard errors are those of ordinary least squares. Of a sample without a label that a party
    lacks, the party's mean is taken, and the variance of its fit is added to the noise.

    With ``epsilon`` all that leaves a party is differentially private (`Result.privacy` says what
    that means). Then bounds of all columns and of the label are public, estimates are those of
    AdaSSP (`dp_moments`), and standard errors include the noise, not the bias of a ridge.
    """

    name = "complete-case"
    disclosure = (
        ("server", "names of the parties' columns, which are collinear, and rows left out"),
        (
            "server",
            "over the labelled samples that all parties hold: sums of columns, of products of two "
            "columns, and of products of a column and the label",
        ),
        ROUGH_UNITS,
        _PREDICTIONS,
        _PARTIES,
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        return complete_rows, ""


class MeanImpute(Baseline):
    """Least squares over all parties' columns, a missing row being its party's mean.

    Notes
    -----
    Standard errors are those of least squares on the imputed table; they know nothing of the
    imputation. Rows whose blocks few other rows have count with fewer blocks, so that nothing is
    told of few rows; ``metrics["rows_merged"]`` says how many.
    """

    name = "mean-impute"
    disclosure = (
        ("server", "names of the parties' columns, which are collinear, and rows left out"),
        BY_PATTERN,
        ROUGH_UNITS,
        _PREDICTIONS,
        _PARTIES,
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        return by_pattern, ""

    def _noise(self, opened: OpenedMoments) -> list[GroupNoise] | None:
        rest = len(opened.patterns.patterns) > len(opened.held)
        return opened.noise if rest or opened.noise is None else opened.noise[: len(opened.held)]

    def _rows(self, opened: OpenedMoments) -> Pattern:
        """Return the sums of the imputed table: columns are zero, their mean, where missing."""
        return Patterns(opened.n_columns + 1, opened.held).total()

    def _regressions(self, opened: OpenedMoments, fit: LinearFit) -> Regressions:
        # Rows with imputed blocks are among those that the noise was measured on.
        found = super()._regressions(opened, fit)
        return replace(found, absent_variance=np.zeros(len(opened.parties)))


class _OneParty(Strategy):
    """The setting that comes first, before those of `Baseline`."""

    party_name: str = setting("", "The party; empty for the first in the order of names.")


class Single(Baseline, _OneParty):
    """Least squares on the columns of one party, and the labelled samples that it holds.

    Notes
    -----
    Standard errors are those of ordinary least squares. Another party helps, so that the one that
    is fitted learns no labels. A sample without a label that the party lacks is predicted by the
    party's mean, and the variance of its fit is added to the noise.
    """

    name = "single"
    disclosure = (
        ("server", "the names of the party's columns, which are collinear, and rows left out"),
        (
            "server",
            "over the labelled samples that the party holds: sums of its columns, of their "
            "products, and of products with the label",
        ),
        ROUGH_UNITS,
        _PREDICTIONS,
        (
            "every party",
            "which samples have a label, and which labelled samples the fit uses; the party that "
            "is fitted its coefficients; nothing of the labels",
        ),
        WITHHELD,
        *RECOGNISED,
        PRIVATE,
        *COLLUSION,
    )

    def _grouping(self, federation: Federation, result: Result) -> tuple[Grouping, str]:
        name = self.party_name or federation.parties[0]
        if name not in federation.parties:
            raise ConfigError(
                f"no party {name!r} in this run to be fitted; its parties are {federation.parties}"
            )
        if not self.party_name and len(federation.parties) > 1:
            note(result, f"party_name is not set: the first party, {name!r}, was fitted")
        k = federation.parties.index(name)

        def rows_of_one(mask: Flags, widths: Indices, minimum: MinimumRows) -> RowGroups:
            found = complete_rows(mask[:, [k]], widths[[k]], minimum)
            return replace(found, mask=np.zeros((1, mask.shape[1]), dtype=bool))

        return rows_of_one, name
