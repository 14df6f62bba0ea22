"""All columns as the server knows them, and the rank correlations of all pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import rankdata

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.errors import DataError
from strategies.copula.correlation import RankCorrelations, rank_correlations
from strategies.copula.ranks import Flip


@dataclass(frozen=True)
class Observed:
    """Perturbed ranks and noisy shares of all columns."""

    # (n_samples, d): perturbed ranks, 0 where a sample lacks the column. The labels come first,
    # if there are any. A nominal column may have one for each level, any other has one.
    ranks: npt.NDArray[np.int32]
    flips: Sequence[Flip]  # One for each of p columns: what comparisons of its values spend
    # (n_levels - 1,): noisy shares of columns of levels; of numeric columns, where point masses
    # begin and end
    cuts: Sequence[Array | None]
    owners: Sequence[str]  # Whose column it is
    widths: Sequence[int]  # How many ranks each column has

    @property
    def places(self) -> list[slice]:
        """Of each column, where its ranks are among all."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(first, after) for first, after in pairwise(ends)]

    @property
    def of_rank(self) -> Integers:
        """Number of the column that each of the d ranks is of, array of shape (d,)."""
        return np.repeat(np.arange(len(self.widths)), self.widths)

    @property
    def indicators(self) -> npt.NDArray[np.bool_]:
        """Which ranks are of the level of a nominal column, array of shape (d,)."""
        return np.repeat(np.asarray(self.widths) > 1, self.widths)

    @property
    def n(self) -> Integers:
        """How many samples have each rank, array of shape (d,)."""
        return np.asarray(np.count_nonzero(self.ranks, axis=0), dtype=np.int64)

    @property
    def rank_flips(self) -> list[Flip]:
        """The chance of a comparison to be turned round, of each of the d ranks."""
        flips = [
            f if w == 1 else f.of_indicators for f, w in zip(self.flips, self.widths, strict=True)
        ]
        return [flips[column] for column in self.of_rank]

    def shares(self, column: int) -> Array:
        """Noisy shares of the levels of a nominal column, array of shape (n_levels,)."""
        cuts = self.cuts[column]
        assert cuts is not None
        return np.diff(cuts, prepend=0.0, append=1.0)

    def level_errors(self, column: int) -> float:
        """Share of samples of which a nominal column's ranks do not tell the level, at most.

        The largest of k debiased ranks is taken. That of the right level is n / 2 above any other,
        but for the noise of both.
        """
        place = self.places[column]
        spread = 2 * float(np.sqrt(2 * self.noise[place].max())) / float(self.n[place.start])
        return min((self.widths[column] - 1) * float(ndtr(-1 / spread)), 1.0)

    @property
    def signal(self) -> Array:
        """Variance of what ranks without noise are expected to be, array of shape (d,).

        As a share of n^2 / 12, which is that of n values without ties.
        """
        found = np.ones(len(self.indicators))
        for column, place in enumerate(self.places):
            if self.widths[column] > 1:
                shares = self.shares(column)
                found[place] = 3 * shares * (1 - shares)
        return found

    @property
    def noise(self) -> Array:
        """Variance of the noise of debiased ranks, array of shape (d,)."""
        shares: list[float | None] = [None] * len(self.indicators)
        for column, place in enumerate(self.places):
            if self.widths[column] > 1:
                shares[place] = self.shares(column).tolist()
        return np.array(
            [
                f.noise_variance(n) if share is None else f.indicator_noise(n, share)
                for f, n, share in zip(self.rank_flips, self.n.tolist(), shares, strict=True)
            ]
        )


def correlate(observed: Observed) -> RankCorrelations:
    """Return the rank correlations of all pairs of columns."""
    scores = np.full(observed.ranks.shape, np.nan)
    ordered = observed.ranks.astype(np.float64)
    for j, (flip, n) in enumerate(zip(observed.rank_flips, observed.n, strict=True)):
        seen = observed.ranks[:, j] > 0
        scores[seen, j] = flip.debias(observed.ranks[seen, j], int(n))
        ordered[~seen, j] = np.nan
        if observed.indicators[j]:  # these gather around two values
            ordered[seen, j] = rankdata(ordered[seen, j])
    found = rank_correlations(scores, observed.noise, observed.indicators)
    if observed.indicators.any():
        centred = ordered - np.nanmean(ordered, axis=0)
        raw = rank_correlations(centred, np.zeros(len(observed.noise))).raw
        found = replace(found, raw=raw)
    return found


def check_joint(correlations: RankCorrelations, observed: Observed, least: int) -> int:
    """Return the smallest number of rows that two columns share, or raise if it is too small."""
    joint = correlations.n_joint
    j, k = divmod(int(joint.argmin()), len(joint))
    owners = [observed.owners[column] for column in observed.of_rank]
    if joint[j, k] < least:
        pair = f"{owners[j]!r} and {owners[k]!r}" if j != k else f"{owners[j]!r} alone"
        raise DataError(
            f"only {joint[j, k]} rows have the columns of {pair} jointly observed, but min_joint = "
            f"{least} are asked for to estimate a correlation; align other rows, leave a party "
            "out, or set min_joint lower"
        )
    return int(joint[j, k])
