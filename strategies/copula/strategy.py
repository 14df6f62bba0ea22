"""VCDS, EVCDS, IEVCDS: synthetic tables by a Gaussian copula on perturbed ranks and noisy margins.

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Algorithms 1 to 3.

A run takes three rounds after greeting and alignment, whatever the number of samples, columns or
parties, and for all three algorithms. The paper's EVCDS sends latent scores to the parties
and makes margins of them, one exchange more; but these margins are a function of the scores, which
the server knows, of the observed margin, which the party knows (`scores`). Its IEVCDS has
the parties impute, rank and perturb again in each of T iterations, at T times the price. What they
would impute follows from what the server has, so the server iterates by itself, at no price.

Nothing is summed, so the mode of the sums does not matter.
"""

from typing import ClassVar

import numpy as np

from flwr_vertical import Result, setting
from flwr_vertical.arrays import Array
from strategies.copula.correlation import Observed, least_eigenvalue, nearest_correlation
from strategies.copula.latent import (
    following_levels,
    fresh_levels,
    latent_from_scores,
    latent_matrix,
    observed_scores,
)
from strategies.copula.party import REARRANGED
from strategies.copula.scores import fit_maps, second_moments
from strategies.copula.synthesis import CopulaSynthesis

_SHARED = (
    (
        "server",
        "for each sample and column, a perturbed rank: where the value stands, up to noise "
        "that the privacy statement puts in numbers; and so which cells are missing",
    ),
    (
        "server",
        "of each level of a nominal column of 3 to 12 levels, the same of having this level, and "
        "so, but at a small epsilon, which level a sample has; with nominal='order' only roughly",
    ),
    ("server", "noisy shares of the levels of each column of levels, and how many there are"),
    ("server", "noisy shares that point masses of numeric columns begin and end at"),
    (
        "server",
        "how many columns a party has, which use their observed range (Bernstein margins only), "
        "how many the given bounds and resolutions name, how many numbers are taken for levels or "
        "may be identifiers, and, with min_level=0, how many have a level that a single sample "
        "holds",
    ),
    ("every party", "the latent columns of its own synthetic variables"),
    ("every party", "with missing='complete-case', which samples all parties have"),
    ("nobody", "a value, an exact rank or a margin of another party's numeric column"),
    (
        "a reader of the synthetic tables",
        "what follows from perturbed ranks and noisy margins; the names of levels that are not "
        "rare by a noisy count; and with Bernstein margins, without bounds, each numeric column's "
        "range",
    ),
)
_REARRANGED = (
    (
        "a reader of the synthetic tables",
        "with rearrange=True, each sample's values up to the noise of its ranks: a synthetic row "
        "then follows one real row",
    ),
)

_FITS = 3  # of maps and correlations of levels, which depend on each other


class VCDS(CopulaSynthesis):
    """Synthetic tables by a copula; epsilon is per value of a column, not per person.

    Vertical copula-based data sanitisation (Algorithm 1), for blocks missing completely at random.
    Every party ends with a synthetic table of its own columns, the server with synthetic labels;
    row i belongs together everywhere. Rows are drawn afresh, so none belongs to anybody.

    Notes
    -----
    Each column has one latent normal variable, a nominal one of up to 12 levels one for each level
    (see `nominal`). Levels of an ordered Categorical are taken in its order, those of a nominal
    column with more levels, or with ``nominal="order"``, sorted; equal values, of levels or point
    masses, are ranked in random order and the correlation is corrected for it (see `bridge`).
    `Result.model` is the latents' covariance matrix. Numbers get margins by
    `tree`, which tells no range; whole numbers stay whole, and fractions of few values are taken
    for levels (`columns`). The labels are a column of the server: they are
    perturbed alike, and `Result.labels` holds synthetic ones.

    Noise comes from the operating system, never from ``seed``: two runs differ. Each run spends
    the budget again.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from flwr_vertical import simulate
    >>> rng = np.random.default_rng(0)
    >>> bank = pd.DataFrame({"income": rng.normal(50, 10, size=500)})
    >>> court = pd.DataFrame({"cases": rng.poisson(1, size=500)})
    >>> result = simulate(VCDS(epsilon=2.0), {"bank": bank, "court": court}, progress=False)
    >>> result.tables["court"].shape
    (500, 1)
    """

    name: ClassVar[str] = "vcds"
    disclosure = (*_SHARED,)

    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        correlations = self._correlate(observed, result)
        result.model = latent_matrix(correlations, observed)
        return fresh_levels(result.model, observed, rows, rng)


class _Rearrangeable(CopulaSynthesis):
    """What EVCDS and IEVCDS share."""

    rearrange: bool = setting(
        False,
        "Make synthetic rows follow the perturbed ranks of the real ones, as line 21 of Algorithm "
        "2 does. Models fitted on them are better, since each synthetic row is a blurred copy of "
        "a real one; so whoever knows some columns of a sample finds its row and reads the "
        "others. VDADP does not see this, since it counts single comparisons. By default rows "
        "are drawn afresh; nodes must agree to this (the exchange `rearranged-rows`).",
    )

    disclosure = (*_SHARED, *_REARRANGED)

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """Rows that follow real ones find every member: nodes must agree."""
        return (REARRANGED,) if self.rearrange else ()

    @property
    def _follows_rows(self) -> bool:
        return self.rearrange

    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        correlations = self._correlate(observed, result)
        scores = observed_scores(observed, rng)
        least = least_eigenvalue(len(observed.n), float(correlations.n_joint.min()))
        for _ in range(_FITS):
            matrix = nearest_correlation(scores.correlations(), least)
            fit_maps(scores, matrix)
        for iteration in range(self._updates):
            before, matrix = matrix, second_moments(scores, matrix, least)
            fit_maps(scores, matrix)
            change = float(np.abs(matrix - before).max())
            result.history.append({"iteration": iteration + 1, "largest_change": change})
        if self._updates:
            result.model = latent_from_scores(matrix, observed, scores, correlations.n_joint)
        else:
            result.model = latent_matrix(correlations, observed)
        if self.rearrange:
            return following_levels(scores, matrix, observed, rows, rng)
        return fresh_levels(result.model, observed, rows, rng, scores)

    @property
    def _updates(self) -> int:
        """How often the correlation matrix of the scores is estimated again."""
        return 0

    @property
    def _warnings(self) -> list[str]:
        if not self.rearrange:
            return []
        return [
            "Each synthetic row follows the perturbed ranks of one real row (rearrange=True): "
            "whoever knows some columns of a sample can find its row and read the others. Do not "
            "give such tables to strangers."
        ]


class EVCDS(_Rearrangeable):
    """VCDS with margins that hold if blocks are missing at random; epsilon is per value.

    Which blocks are missing may depend on labels and on what other parties observe. Margins are
    corrected by latent scores; the correlation matrix is that of VCDS.
    """

    name: ClassVar[str] = "evcds"


class IEVCDS(_Rearrangeable):
    """EVCDS with correlations that hold if blocks are missing at random; epsilon is per value.

    Latent scores, their correlation matrix and the missing scores' expectations are computed in
    turn, by the server alone: the privacy spent is that of one release, epsilon_1 + epsilon_2,
    not T epsilon_1 + epsilon_2 as in Corollary 4.
    """

    iterations: int = setting(10, "The paper's T.", at_least=1)

    name: ClassVar[str] = "ievcds"

    @property
    def _updates(self) -> int:
        return self.iterations
