"""VCDS, EVCDS, IEVCDS: synthetic tables by a Gaussian copula on perturbed ranks and noisy margins.

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Algorithms 1 to 3.

===========  ====================================================================================
round        what travels
===========  ====================================================================================
perturb      down: settings; up: a perturbed rank for each sample and column (4 bytes), noisy shares
             of levels, a few counts
synthesise   down: a probability for each synthetic row and column (8 bytes); up: nothing
===========  ====================================================================================

So a run takes two rounds after greeting and alignment, whatever the number of samples, columns or
parties, and for all three algorithms. The paper's EVCDS sends latent scores to the parties
and makes margins of them, one exchange more; but these margins are a function of the scores, which
the server knows, of the observed margin, which the party knows (`scores`). Its IEVCDS has
the parties impute, rank and perturb again in each of T iterations, at T times the price. What they
would impute follows from what the server has, so the server iterates by itself, at no price.

Nothing is summed, so the mode of the sums does not matter.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Result
from flwr_vertical.errors import ConfigError
from strategies.copula.latent import (
    Observed,
    draw_latents,
    latent_from_scores,
    latent_matrix,
    probabilities,
    score_matrix,
    synthetic_levels,
)
from strategies.copula.scores import fit_maps, second_moments, start_scores
from strategies.copula.synthesis import CopulaSynthesis

Array = npt.NDArray[np.float64]

_SHARED = (
    (
        "server",
        "for each sample and column, a perturbed rank: where the value stands, up to noise "
        "that the privacy statement puts in numbers; and so which cells are missing",
    ),
    ("server", "noisy shares of the levels of each column of levels, and how many there are"),
    (
        "server",
        "how many columns a party has, which use their observed range, how many the given bounds "
        "name, and how many have a level that a single sample holds",
    ),
    ("every party", "the latent columns of its own synthetic variables"),
    ("every party", "with missing='complete-case', which samples all parties have"),
    ("nobody", "a value, an exact rank or a margin of another party's numeric column"),
    (
        "a reader of the synthetic tables",
        "what follows from perturbed ranks and noisy margins; and the names of levels and, "
        "without bounds, each numeric column's range",
    ),
)
_REARRANGED = (
    (
        "a reader of the synthetic tables",
        "with rearrange=True, each sample's values up to the noise of its ranks: a synthetic row "
        "then follows one real row",
    ),
)


class VCDS(CopulaSynthesis):
    """Vertical copula-based data sanitisation, for blocks missing completely at random.

    Every party ends with a synthetic table of its own columns, the server with synthetic labels;
    row i belongs together everywhere. Rows are drawn afresh, so none belongs to anybody.

    Parameters
    ----------
    epsilon : float, default 1.0
        Privacy budget; `Result.privacy` says what it means.
    budget : {"per-variable", "total"}, default "per-variable"
        Whether each column has this budget, or all columns of a party together (Theorem 1). The
        numbers printed in the paper need the first.
    rows : int, optional
        Synthetic rows to make (default, or 0: as many as there are aligned samples).
    rank_share : float, default 0.5
        Share of the budget for ranks (the paper's epsilon_1), the rest is for margins (epsilon_2).
    missing : {"pairwise", "complete-case", "impute"}, default "pairwise"
        Use all that each pair of columns has; only samples that all parties have (the paper's CC);
        or fill what is missing with means and most frequent levels first (Impute).
    min_joint : int, default 30
        Least number of rows that two columns must share.
    margin_noise : {"increments", "coefficients"}, default "increments"
        Where margins get their noise: on increments, with sensitivity 2 / n, or on the l + 1
        Bernstein coefficients, with sensitivity (l + 1) / n as in the paper. The guarantee is the
        same.
    bounds : mapping of column name to (low, high), or JSON text, optional
        Public ranges of numeric columns. Where there is none the observed range is used, which no
        guarantee covers; the privacy statement counts these columns.

    Notes
    -----
    Each column, of whatever kind, has one latent normal variable. Levels are taken in the order of
    an ordered Categorical, else sorted; equal values are ranked in random order and the
    correlation is corrected for it (see `bridge`). The labels are a column of the server: they are
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
        result.model = latent_matrix(correlations, observed.cuts)
        return probabilities(draw_latents(result.model, rows, rng))


class EVCDS(CopulaSynthesis):
    """VCDS with margins that hold if blocks are missing at random (Algorithm 2).

    Which blocks are missing may depend on labels and on what other parties observe. Margins are
    corrected by latent scores; the correlation matrix is that of VCDS.

    Parameters
    ----------
    epsilon, budget, rows, rank_share, missing, min_joint, margin_noise, bounds
        As in `VCDS`.
    rearrange : bool, default False
        Make synthetic rows follow the perturbed ranks of the real ones, as line 21 of Algorithm 2
        does. Models fitted on them are better, since each synthetic row is a blurred copy of a
        real one; so whoever knows some columns of a sample finds its row and reads the others.
        VDADP does not see this, since it counts single comparisons. By default rows are drawn
        afresh.
    """

    name: ClassVar[str] = "evcds"
    disclosure = (*_SHARED, *_REARRANGED)

    def __init__(
        self,
        epsilon: float = 1.0,
        budget: str = "per-variable",
        rows: int | None = None,
        rank_share: float = 0.5,
        missing: str = "pairwise",
        min_joint: int = 30,
        margin_noise: str = "increments",
        bounds: str | Mapping[str, Sequence[float]] | None = None,
        rearrange: bool = False,
    ) -> None:
        super().__init__(
            epsilon, budget, rows, rank_share, missing, min_joint, margin_noise, bounds
        )
        if not isinstance(rearrange, bool):  # bool("false") is True
            raise ConfigError(f"rearrange must be true or false, got {rearrange!r}")
        self.rearrange = rearrange

    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        correlations = self._correlate(observed, result)
        matrix = score_matrix(correlations)
        scores = start_scores(observed.ranks, rng)
        fit_maps(scores, matrix)
        result.model = latent_matrix(correlations, observed.cuts)
        return synthetic_levels(scores, matrix, result.model, rows, rng, self.rearrange)

    @property
    def _warnings(self) -> list[str]:
        return _rearranged(self.rearrange)


class IEVCDS(CopulaSynthesis):
    """EVCDS whose correlation matrix, too, holds if blocks are missing at random (Algorithm 3).

    Latent scores, their correlation matrix and the missing scores' expectations are computed in
    turn, by the server alone: the privacy spent is that of one release, epsilon_1 + epsilon_2,
    not T epsilon_1 + epsilon_2 as in Corollary 4.

    Parameters
    ----------
    epsilon, budget, rows, rank_share, missing, min_joint, margin_noise, bounds
        As in `VCDS`.
    rearrange : bool, default False
        As in `EVCDS`.
    iterations : int, default 10
        The paper's T.
    """

    name: ClassVar[str] = "ievcds"
    disclosure = (*_SHARED, *_REARRANGED)

    def __init__(
        self,
        epsilon: float = 1.0,
        budget: str = "per-variable",
        rows: int | None = None,
        rank_share: float = 0.5,
        missing: str = "pairwise",
        min_joint: int = 30,
        margin_noise: str = "increments",
        bounds: str | Mapping[str, Sequence[float]] | None = None,
        rearrange: bool = False,
        iterations: int = 10,
    ) -> None:
        super().__init__(
            epsilon, budget, rows, rank_share, missing, min_joint, margin_noise, bounds
        )
        if not isinstance(rearrange, bool):  # bool("false") is True
            raise ConfigError(f"rearrange must be true or false, got {rearrange!r}")
        whole = isinstance(iterations, (int, np.integer)) and not isinstance(iterations, bool)
        if not whole or iterations < 1:
            raise ConfigError(f"iterations must be an integer of at least 1, got {iterations!r}")
        self.rearrange = rearrange
        self.iterations = int(iterations)

    def _levels(
        self, observed: Observed, rows: int, rng: np.random.Generator, result: Result
    ) -> Array:
        matrix = score_matrix(self._correlate(observed, result))
        scores = start_scores(observed.ranks, rng)
        fit_maps(scores, matrix)
        for iteration in range(self.iterations):
            before, matrix = matrix, second_moments(scores, matrix)
            fit_maps(scores, matrix)
            change = float(np.abs(matrix - before).max())
            result.history.append({"iteration": iteration + 1, "largest-change": change})
        cuts = [
            None if share is None else scores.probability(j, share)
            for j, share in enumerate(observed.cuts)
        ]
        result.model = latent_from_scores(matrix, observed, cuts)
        return synthetic_levels(scores, matrix, result.model, rows, rng, self.rearrange)

    @property
    def _warnings(self) -> list[str]:
        return _rearranged(self.rearrange)


def _rearranged(rearrange: bool) -> list[str]:
    if not rearrange:
        return []
    return [
        "Each synthetic row follows the perturbed ranks of one real row (rearrange=True): whoever "
        "knows some columns of a sample can find its row and read the others. Do not give such "
        "tables to strangers."
    ]
