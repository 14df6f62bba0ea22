"""VFEM: linear regression where whole blocks of covariates are missing, with standard errors.

Tang, Wang, Feng and Li, "Enterprise Profit Prediction Using Multiple Data Sources with Missing
Values through Vertical Federated Learning".

With blocks missing, the sums of [1, observed columns, label] over the rows of each missingness
pattern are sufficient for a joint normal model. So by default the server opens these sums alone
(`moments.opening`), maximises the likelihood by itself and hands each party its coefficients:

=====================  ===========================================================================
round                  what travels
=====================  ===========================================================================
prepare_moments        up: names of columns, number of rows, public keys
seal_group_seed        one party: up, the group seed, sealed for each other one
send_masked            up: columns under the group's key stream
open_products          down: groups of rows, labels under a mask; up: sums of small matrices
finish_moments         down: the own coefficients; up, summed: a rounded term for each sample
                       without a label
=====================  ===========================================================================

``exchange="sums"`` is the paper's way, which opens a number of each sample in each of many rounds;
see `iterations`.
"""

from types import MappingProxyType
from typing import ClassVar

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from flwr_vertical.settings.record import settings_of
from strategies.linear import settings as shared
from strategies.linear.moments.disclosure import COLLUSION, RECOGNISED, WITHHELD
from strategies.vfem.iterations import IterationSettings, iterate
from strategies.vfem.party import VFEMArbiter, VFEMParty
from strategies.vfem.run import fit_from_moments

COVARIANCES = ("full", "block")
EXCHANGES = ("moments", "sums")
STEPS = ("preconditioned", "gradient")
ACCELERATIONS = ("squarem",)
INITIALS = ("zeros", "complete-case", "mean-imputed")
STANDARD_ERRORS = ("expected", "gram", "sketch")
OF_ITERATIONS = (
    "step",
    "learning_rate",
    "acceleration",
    "initial",
    "standard_errors",
    "max_iter",
    "tol",
    "noise_prior",
    "standardize",
    "sketch_size",
    "n_sketches",
)
"""Settings that only ``exchange="sums"`` reads."""


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

    Sums over few rows are not opened. Where fewer rows than the parties' minimum are held by the
    same parties, they count as lacking some of these, to join others, or are left out;
    ``metrics["rows_merged"]``, ``metrics["rows_left_out"]`` and a note say how many rows that cost.

    Of two parties that hold fewer than 30 rows together nothing is known of how their columns go
    together. These count as independent given all other columns and the label (zero partial
    covariances). Coefficients that depend on that have no standard error; a note names them.
    A coefficient is NaN where a column is not in the fit, and a note says why.

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
        "parties hold together, or nothing, the paper's model (``exchange='sums'`` has this one "
        "always).",
        choices=COVARIANCES,
    )
    exchange: str = setting(
        "moments",
        "What the server works with: sums over groups of rows, from private products; or the "
        "paper's iterations, which show it the parties' summed fits of every sample, and every "
        "party the residuals. Each node must agree to ``sums`` in its node config.",
        choices=EXCHANGES,
    )
    step: str = setting(
        "preconditioned",
        "How coefficients move: Fisher scoring with each party's own Gram matrix, or the paper's "
        "gradient step (Eqs. 7 and 8).",
        choices=STEPS,
    )
    learning_rate: float = setting(0.3, "The paper's eta; only for ``gradient``.", above=0)
    acceleration: str | None = setting(
        "squarem",
        "Extrapolation of all parameters (Varadhan and Roland, 2008), where steps leave it "
        "something to gain.",
        choices=ACCELERATIONS,
    )
    initial: str = setting(
        "zeros",
        "Coefficients to start from: none, those of the complete rows (the paper's CC-VFEM), "
        "those after imputing means (Impute-VFEM), both by federated least squares.",
        choices=INITIALS,
    )
    intercept: bool = setting(True, "Whether there is one.")
    standard_errors: str | None = setting(
        "expected",
        "How products of different parties' columns enter the information matrix: by their "
        "expectation, zero under the model; exactly, from ciphertexts that the arbiter opens "
        "(needs an arbiter, and the parties' own second moments go to the server); by sketches. "
        "The last two hold when parties are correlated, too.",
        choices=STANDARD_ERRORS,
    )
    max_iter: int = setting(1000, "Most rounds of iterations.", at_least=1)
    tol: float = setting(
        1e-5,
        "Converged when a step changes the parameters by no more than this share, and the log "
        "likelihood of a sample by no more than this; 0 never stops.",
        at_least=0,
        below=1,
    )
    noise_prior: float = setting(
        0.0,
        "Weight of a prior on the noise variance, in samples for each column; its level is half "
        "of the labels' variance. 0 is maximum likelihood. Where few samples are held by enough "
        "parties, its noise variance is too small, or 0; 2 stabilises the fit there and changes "
        "little elsewhere. The prior biases the fit where the columns explain nearly all of the "
        "labels' variance.",
        at_least=0,
    )
    encoding: str = shared.encoding()
    missing_cells: str = shared.missing_cells()
    missing_labels: str = shared.missing_labels()
    standardize: bool = setting(
        True,
        "Compute with standardised labels and columns; results are in the units given. With "
        "``gradient`` it makes the learning rate independent of units.",
    )
    check_correlation: bool = setting(
        True,
        "Where the model takes columns of different parties as uncorrelated, warn if they are "
        "not: from the moments, for ``block``; from sketches of ranks, two rounds more, for "
        "``exchange='sums'``.",
    )
    sketch_size: int = setting(
        200, "The paper's m: rows of a sketch; only for ``sketch``.", at_least=1
    )
    n_sketches: int = setting(
        20, "The paper's L: how many sketches are averaged; only for ``sketch``.", at_least=1
    )

    name: ClassVar[str] = "vfem"
    needs_labels = True
    demo = MappingProxyType(
        {
            "labels": "demo",
            "demo.dataset": "blood-pressure",
            "demo.missing-cells": 0.0,
            "demo.missing-blocks": 0.3,
        }
    )
    party = VFEMParty
    arbiter = VFEMArbiter
    disclosure = (
        ("server", "names of the parties' columns, which are collinear, and rows left out"),
        (
            "server",
            "for each missingness pattern, over no fewer rows than the parties' minimum: sums of "
            "columns, of products of two columns, and of products of a column and the label",
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
            "its own coefficients, for each set of parties; which labelled samples share a "
            "missingness pattern, and which samples have a label; nothing of the labels",
        ),
        (
            "server, with exchange 'sums'",
            "for each labelled sample and each iteration, the sum of the parties' fits; for each "
            "party the variance of its fit and numbers on how it responds; the sum of the parties' "
            "log likelihoods; its coefficients and standard errors",
        ),
        (
            "every party, with exchange 'sums'",
            "for each labelled sample that it holds and each iteration, the residual over its "
            "variance: label less everybody's fit. From zeros, the first is the label itself but "
            "for location and scale",
        ),
        (
            "server, with exchange 'sums' if correlations are checked",
            "sketches of each party's rank scores: rank correlations of its own columns, and with "
            "those of others, to a few hundredths",
        ),
        (
            "server, with exchange 'sums' and standard errors 'gram' or 'sketch'",
            "each party's second moments, weighted, the direction of its fit, and the weighted "
            "sums of its centred columns by the parties that lack samples",
        ),
        (
            "server, or arbiter with 'gram' and exchange 'sums'",
            "products of different parties' columns, as sums",
        ),
        WITHHELD,
        *RECOGNISED,
        *COLLUSION,
    )

    @property
    def needs_arbiter(self) -> str | None:
        """Why an arbiter must take part, whatever the mode of the sums."""
        return "standard_errors 'gram'" if self.standard_errors == "gram" else None

    def check(self) -> None:
        """Refuse settings of the iterations where there are none."""
        if self.exchange == "sums":
            return
        changed = [
            item.name
            for item in settings_of(type(self))
            if item.name in OF_ITERATIONS and getattr(self, item.name) != item.default
        ]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} belong to the paper's iterations, and exchange 'moments' "
                "has none; leave them out, or set exchange='sums', which every node has to agree to"
            )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Fit by maximum likelihood, from moments or by iterations."""
        tables = {
            "encoding": self.encoding,
            "missing_cells": self.missing_cells,
            "missing_labels": self.missing_labels,
        }
        if self.exchange == "moments":
            fit_from_moments(
                federation,
                alignment,
                result,
                progress,
                covariance=self.covariance,
                intercept=self.intercept,
                check_correlation=self.check_correlation,
                **tables,
            )
            return
        chosen = IterationSettings(
            **{name: getattr(self, name) for name in OF_ITERATIONS},
            intercept=self.intercept,
            check_correlation=self.check_correlation,
        )
        iterate(federation, alignment, result, progress, chosen, **tables)
