"""Missing completely at random: blocks by rate per party, cells, and whole samples."""

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.incomplete._inputs import Mask, Seed, checked_count, checked_rate, generator
from flwr_vertical.incomplete.apply import at_least_one_party

COPULA_MCAR_RATES = (0.95, 0.90, 0.85, 0.80, 0.75)
"""Missing probabilities of the five parties in Tang, Feng, Li and Wang, Section 5.2 (1)."""


def mcar_blocks(
    n_samples: int,
    rates: float | Sequence[float],
    *,
    n_parties: int | None = None,
    keep_one: bool = False,
    seed: Seed = 0,
) -> Mask:
    """Drop each block independently: `M[i, k] ~ Bernoulli(rates[k])`.

    Hong, Park and Hwang (FALSE-VFL), Section 5.1, with one rate p in {0, 0.2, 0.5}; Tang, Feng, Li
    and Wang (copula), Section 5.2 (1), with a rate for each party (`COPULA_MCAR_RATES`).

    Parameters
    ----------
    rates : float or sequence of float
        Missing probability of every party, or of each.
    n_parties : int, optional
        Needed if `rates` is one number.
    keep_one : bool, default False
        Whether to give samples without any block one back (see `at_least_one_party`).
    """
    n_samples = checked_count(n_samples, "n_samples")
    if isinstance(rates, int | float):
        if n_parties is None:
            raise ConfigError("rates is one number; give n_parties, or one rate for each party")
        listed = [checked_rate(rates, "rates")] * checked_count(n_parties, "n_parties")
    else:
        listed = [checked_rate(rate, f"rates[{k}]") for k, rate in enumerate(rates)]
        if not listed or n_parties not in (None, len(listed)):
            raise ConfigError(f"rates has {len(listed)} values for n_parties = {n_parties}")
    rng = generator(seed, "mcar_blocks")
    mask = rng.random((n_samples, len(listed))) < np.array(listed)
    return at_least_one_party(mask, seed=rng) if keep_one else mask


@overload
def mcar_cells(
    data: pd.DataFrame,
    rate: float,
    *,
    columns: Sequence[str] | None = ...,
    keep_columns: bool = ...,
    seed: Seed = ...,
) -> Mask: ...


@overload
def mcar_cells(
    data: Mapping[str, pd.DataFrame],
    rate: float,
    *,
    columns: Sequence[str] | None = ...,
    keep_columns: bool = ...,
    seed: Seed = ...,
) -> dict[str, Mask]: ...


def mcar_cells(
    data: pd.DataFrame | Mapping[str, pd.DataFrame],
    rate: float,
    *,
    columns: Sequence[str] | None = None,
    keep_columns: bool = True,
    seed: Seed = 0,
) -> Mask | dict[str, Mask]:
    """Blank each cell independently with the same probability.

    Du, Wang, Meng and Guo (2024, FKNN), Section 4.3, with rates 0.05 to 0.4.

    Parameters
    ----------
    data : pandas.DataFrame, or mapping of party to one, shapes (n_samples_k, p_k)
        Complete or not; pass only the parties that shall lose cells.
    rate : float
        Missing probability of a cell.
    columns : sequence of str, optional
        Only these columns lose cells; default all.
    keep_columns : bool, default True
        Whether a column about to lose all its observed cells keeps one of them, drawn uniformly,
        since a table may not hold a column without a value. At 20 rows and rate 0.4 this concerns
        one column in 90 million; the rate is otherwise untouched.

    Returns
    -------
    ndarray of bool, shape (n_samples, n_columns), or dict of party to such
        True where the cell shall be blanked (see `blank_cells`).
    """
    rate = checked_rate(rate, "rate")
    rng = generator(seed, "mcar_cells")
    frames = {"": data} if isinstance(data, pd.DataFrame) else dict(data)
    known = {str(name) for frame in frames.values() for name in frame.columns}
    if unknown := [name for name in columns or () if name not in known]:
        raise ConfigError(
            f"columns {', '.join(map(repr, unknown))} are in no table; there are "
            f"{', '.join(sorted(known))}"
        )
    masks = {}
    for party, frame in frames.items():
        mask = rng.random(frame.shape) < rate
        if columns is not None:
            mask &= frame.columns.isin(list(columns))
        if keep_columns:
            observed = frame.notna().to_numpy()
            for j in np.flatnonzero(mask.any(axis=0) & ~(observed & ~mask).any(axis=0)):
                if observed[:, j].any():
                    mask[rng.choice(np.flatnonzero(observed[:, j])), j] = False
        masks[party] = mask
    return masks[""] if isinstance(data, pd.DataFrame) else masks


def sample_missing(n_samples: int, ratio: float, *, seed: Seed = 0) -> Mask:
    """Drop an exact share of the samples from one party: the sample-missing ratio.

    Liu, He, Tan et al. (FedPSG-AR), Experiments, MisR-B in {0.2, 0.5, 0.8}: at ratio 0.2, 80 % of
    the samples of party A can be aligned with party B and the rest are missing there. The paper
    does not say how they are chosen; here uniformly without replacement, `round(ratio * n_samples)`
    of them.

    Parameters
    ----------
    n_samples : int
        Samples of the party that has them all.
    ratio : float
        Share that the other party lacks.

    Returns
    -------
    ndarray of bool, shape (n_samples,)
        True where the sample is missing. As a mask of two parties:
        `np.column_stack([np.zeros(n_samples, bool), missing])`.
    """
    n_samples = checked_count(n_samples, "n_samples")
    n_missing = round(checked_rate(ratio, "ratio") * n_samples)
    chosen = generator(seed, "sample_missing").permutation(n_samples)[:n_missing]
    missing = np.zeros(n_samples, dtype=np.bool_)
    missing[chosen] = True
    return missing
