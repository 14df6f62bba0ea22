"""VFEM: linear regression where whole blocks of covariates are missing, with standard errors.

Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using Multiple Data Sources with Missing
Values through Vertical Federated Learning".

With blocks missing, the sums of [1, observed columns, label] over the rows of each missingness
pattern are sufficient for a joint normal model. So by default the server opens these sums alone
(`moments.collect`), maximises the likelihood by itself and hands each party its coefficients.

Where patterns are small, these sums would lose rows. Then all complete the rows together, and the
server opens one matrix of sums over all rows, with noise, for each of three steps of Fisher scoring
at most (`completion`, `completed_rounds`, `scoring`): `open_completed`, up to four times, stands in
the place of `open_products`.

The paper's own Algorithm 1, which opens a number of each sample in each of many rounds, is
`strategies.vfem_iterations`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, Uses, setting
from flwr_vertical.arrays import Flags
from flwr_vertical.errors import DataError
from flwr_vertical.products.ciphertext import ENCRYPTED_OPENING
from flwr_vertical.products.masked import OPENING
from flwr_vertical.protocol.declaration import ROWS, Either, If, Protocol, Repeat, Round
from strategies.linear import settings as shared
from strategies.linear.moment_party import (
    BY_PATTERN,
    COLLUSION,
    NAMES_OF_COLUMNS,
    RECOGNISED,
    WITHHELD,
    MomentArbiter,
    MomentParty,
    moments_protocol,
)
from strategies.linear.moments.collect import FitColumns, Prepared, open_prepared, prepare
from strategies.linear.moments.groups import by_pattern
from strategies.linear.prediction.server import keep_and_predict
from strategies.vfem.completed_rounds import rows_to_complete
from strategies.vfem.completed_steps import STEPS, CompletedRowSteps
from strategies.vfem.maximum_likelihood import check_correlations, maximise
from strategies.vfem.missingness import check_missingness
from strategies.vfem.outcome import fill_in, note_fit, regressions_of
from strategies.vfem.scoring import fit_by_scoring

COVARIANCES = ("full", "block")

NOISE = 6.0
"""Noise on what is opened costs, of p columns, what ``NOISE p`` rows tell: with 6 columns of 231
rows as much, with 20 of 2,000 half of it."""

_seal, _send, _open = OPENING.parts
_COMPLETED = Round(
    "open_completed", "summed, products of rows that all complete, with noise", tells=ROWS
)
_VFEM_OPENING = Protocol(
    If(
        "aggregation == 'ckks' or n_parties == 1",
        ENCRYPTED_OPENING,
        otherwise=(
            _seal,
            _send,
            If(
                "covariance == 'full' and intercept and noise_prior == 0",
                Either(_open, Repeat(_COMPLETED, at_most=1 + STEPS)),
                otherwise=(_open,),
            ),
        ),
    )
)


class VFEMParty(MomentParty):
    """A party of a linear method on moments that also completes rows."""

    products = Uses(CompletedRowSteps, purpose="moments")


class VFEM(Strategy):
    """Linear regression over parties that lack whole blocks of covariates.

    ``label = intercept + sum over parties of x_k' beta_k + noise``, columns jointly normal; the
    estimates are those of maximum likelihood, given that blocks are missing at random (also
    depending on labels and on what is observed). Columns of different parties may be correlated;
    ``covariance="block"`` is the paper's model, in which they are not.

    Notes
    -----
    `Result.coefficients` is indexed by (party, variable), the intercept under ``server``; its
    column ``missing_information`` is the share of the information on a coefficient that is lost
    with the missing blocks. Standard errors come from the observed information. Samples without a
    label are in `Result.predictions`: conditional mean given the columns at hand, standard error,
    and a 95 % prediction interval.

    Sums over few rows are not opened. Where that would cost more than a hundredth of the rows,
    since few rows are held by the same parties, rows are completed from a mean and a covariance
    that all parties are told, and one matrix of sums over all rows is opened, at most four times:
    pairs of columns, then three steps of Fisher scoring. Numbers that are opened have noise of the
    size of one row, which standard errors count. They are by the expected information. If the last
    step moved coefficients by more than a tenth of their standard error, a note says that they
    take blocks as missing completely at random; if the covariance is not positive definite there
    are none. Without an intercept, with ``covariance="block"``, ``noise_prior`` or encrypted sums,
    and where two parties share too few rows, small patterns are merged instead, or left out:
    ``metrics["rows_merged"]``, ``metrics["rows_left_out"]`` and a note say how many rows that cost.

    Of two parties that hold fewer than 30 rows together nothing is known of how their columns go
    together. These count as independent given all other columns and the label (zero partial
    covariances). Coefficients that depend on that have no standard error; a note names them.
    A coefficient is NaN where a column is not in the fit, and a note says why.

    Where sums are opened by pattern and complete rows give other coefficients than all rows
    together, by more than chance, a note says that blocks are hardly missing at random;
    ``metrics["missingness_p_value"]`` is the test's.

    There is no ``epsilon``: noise does not shrink with a pattern's rows, and each pattern would
    have its own, so that small patterns would upset the likelihood of all. `MeanImpute` and
    `CompleteCase` have one.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"a": rng.normal(size=500)})
    >>> court = pd.DataFrame({"b": rng.normal(size=500)})
    >>> y = 1 + 2 * bank["a"] - court["b"] + rng.normal(scale=0.1, size=500)
    >>> result = simulate(VFEM(), {"bank": bank[:400], "court": court[100:]}, y, progress=False)
    >>> result.coefficients["estimate"].round(1).to_list()
    [1.0, 2.0, -1.0]
    """

    covariance: str = setting(
        "full",
        "What columns of different parties have in common: whatever the rows show that two "
        "parties hold together, or nothing, the paper's model.",
        choices=COVARIANCES,
    )
    intercept: bool = setting(True, "Whether there is one.")
    noise_prior: float = setting(
        0.0,
        "Weight of a prior on the noise variance, in samples for each column; its level is half "
        "of the labels' variance. 0 is maximum likelihood. Where few samples are held by enough "
        "parties, its noise variance is too small, or 0; 2 stabilises the fit there and changes "
        "little elsewhere. The prior biases the fit where the columns explain nearly all of the "
        "labels' variance.",
        at_least=0,
    )
    missing_labels: str = shared.missing_labels()
    check_correlation: bool = setting(
        True,
        "With ``block``: warn where the moments show that columns of different parties are "
        "correlated, which this model takes as zero.",
    )

    removed: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(
            (
                "exchange",
                "step",
                "learning_rate",
                "acceleration",
                "initial",
                "standard_errors",
                "max_iter",
                "tol",
                "standardize",
                "sketch_size",
                "n_sketches",
            ),
            "strategy 'vfem-iterations' has the paper's iterations and its sketches; vfem works on "
            "moments alone, which need none of its settings",
        )
    )
    name: ClassVar[str] = "vfem"
    protocol = moments_protocol(opening=_VFEM_OPENING)
    needs_labels = True
    demo = shared.demo(0.3)
    party = VFEMParty
    arbiter = MomentArbiter
    disclosure = (
        NAMES_OF_COLUMNS,
        BY_PATTERN,
        (
            "server, instead where patterns are small",
            "sums of rows that are completed from what the parties hold of them, of their products "
            "and of products with the label, over all rows, with noise of the size of a row; once "
            "with nothing completed, and at most three times by other means and covariances",
        ),
        (
            "every party, where patterns are small",
            "which parties hold each labelled sample; means, standard deviations and correlations "
            "of all columns and the label, to the size of their errors, at most three times",
        ),
        (
            "server",
            "a rough unit of each column (a power of two near its standard deviation) and a centre "
            "to a quarter of it, and how many bits the party's predictions tell",
        ),
        (
            "server",
            "for each sample without a label, the sum of the parties' rounded terms: the "
            "prediction",
        ),
        (
            "every party",
            "its own coefficients, for each set of parties, and what these tell of labels; which "
            "labelled samples share a missingness pattern, and which samples have a label",
        ),
        WITHHELD,
        *RECOGNISED,
        *COLLUSION,
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Open moments, fit at the server, hand coefficients back; five rounds, or eight."""
        progress.total = 3
        prepared = prepare(
            federation, alignment, result,
            missing_labels=self.missing_labels, intercept=self.intercept,
            with_unheld=True,
        )  # fmt: skip
        taken = self._completed_rows(prepared)
        if taken is None:
            by_groups = open_prepared(prepared, self.intercept)
            progress.step("moments")
            found = maximise(by_groups, self.covariance, self.intercept, self.noise_prior)
            opened: FitColumns = by_groups
            if self.check_correlation and self.covariance == "block" and len(prepared.widths) > 1:
                check_correlations(by_groups, result)
        else:
            opened, found = fit_by_scoring(prepared, taken)
            progress.step("moments")
        progress.step("fit")
        unknown = note_fit(result, opened, found, self.intercept)
        fill_in(result, opened, found, self.intercept, unknown)
        names = opened.names(found.kept)
        check_missingness(result, found, names, unknown[1 + found.kept], self.intercept)
        regressions = regressions_of(opened, found)
        keep_and_predict(federation, alignment, result, regressions, opened.problem)
        progress.step("finish")

    def _completed_rows(self, prepared: Prepared) -> Flags | None:
        """Return the rows that all complete together; None where sums are opened by pattern."""
        mask = prepared.problem.mask
        masked = prepared.federation.aggregation != "ckks" and len(prepared.widths) > 1
        if not (masked and self.covariance == "full" and self.intercept and not self.noise_prior):
            return None
        widths = np.array(list(prepared.widths.values()))

        def told(lacks: Flags) -> float:
            """Count rows by the square of the share of columns that they have."""
            return float(((~lacks @ widths / widths.sum()) ** 2).sum())

        try:
            groups = prepared.groups(by_pattern)
            by_groups = told(groups.mask[groups.group[groups.group >= 0]])
        except DataError:  # no pattern is large enough
            by_groups = 0.0
        if by_groups >= told(mask):
            return None
        taken = rows_to_complete(prepared)
        if taken is None:
            return None
        noise = NOISE * float(widths.sum()) / max(int(taken.sum()), 1)
        return taken if told(mask[taken]) > by_groups * (1.0 + noise) else None
