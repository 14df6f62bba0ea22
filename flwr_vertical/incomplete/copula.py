"""The MAR mechanisms of the copula paper: logistic models given always-observed parties.

Tang, Feng, Li and Wang: *Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem*, Section 5.2 (2). Parties are numbered j = 1, ..., K in the order of the tables. Each may
have missing blocks (the set Δ_mis) with probability 1/2, and else is always observed (Δ_obs). With
ζ_ja = 1/(ja) for its columns a = 1, ..., p_j, both cases start from the same linear predictor

    η_i = 1 + Σ_{j in Δ_obs} (-1)^j ζ_j' x_i^j.

The paper takes the covariates as generated, without standardising, and multinomial ones as numbers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.incomplete import _inputs


def mar_simple(
    tables: Mapping[str, pd.DataFrame],
    *,
    may_miss: Sequence[bool] | None = None,
    level: float = 1.0,
    standardize: bool = False,
    seed: _inputs.Seed = 0,
) -> _inputs.Mask:
    """Drop blocks given the always-observed parties: logit Pr(M_ik = 1) = η_i for k in Δ_mis.

    The mask is all False for parties in Δ_obs.

    Parameters
    ----------
    may_miss : sequence of bool, length n_parties, optional
        Which parties are in Δ_mis; drawn with probability 1/2 each if None. The draw may put all
        parties on one side: with Δ_mis empty nothing is missing, with Δ_obs empty η_i = 1.
    level : float, default 1
        The constant of η; more leaves fewer blocks.
    """
    rng = _inputs.generator(seed, "mar_simple")
    in_mis = _in_mis(tables, may_miss, rng)
    eta = _predictor(tables, in_mis, standardize, level)
    chance: Array = _expit(eta)[:, None] * in_mis
    return rng.random(chance.shape) < chance


def mar_complex(
    tables: Mapping[str, pd.DataFrame],
    labels: "pd.Series[float] | npt.ArrayLike",
    *,
    may_miss: Sequence[bool] | None = None,
    level: float = 1.0,
    standardize: bool = False,
    seed: _inputs.Seed = 0,
) -> _inputs.Mask:
    """Drop blocks given always-observed parties, labels and the gaps of earlier parties.

    For k in Δ_mis, in order,

        logit Pr(M_ik = 1) = η_i - y_i + Σ_{j' in Δ_mis, j' < k} (-1)^j' M_ij'.

    The mask is all False for parties in Δ_obs.

    Parameters
    ----------
    may_miss, level
        As of `mar_simple`; the labels are taken as they are.
    labels : pandas.Series or array_like of numbers, shape (n_samples,)
        The responses y; a Series must have the tables' index.
    """
    rng = _inputs.generator(seed, "mar_complex")
    in_mis = _in_mis(tables, may_miss, rng)
    eta = _predictor(tables, in_mis, standardize, level) - _responses(tables, labels)
    uniform = rng.random((len(eta), len(in_mis)))
    mask = np.zeros(uniform.shape, dtype=np.bool_)
    for k in np.flatnonzero(in_mis):
        mask[:, k] = uniform[:, k] < _expit(eta)
        # Party k is number k + 1 in the paper.
        eta = eta + (-1.0) ** (k + 1) * mask[:, k]
    return mask


def _in_mis(
    tables: Mapping[str, pd.DataFrame], may_miss: Sequence[bool] | None, rng: np.random.Generator
) -> _inputs.Mask:
    """Return which parties are in Δ_mis, shape (n_parties,)."""
    if may_miss is None:
        return rng.random(len(tables)) < 0.5
    values = _inputs.per_party(may_miss, list(tables), "may_miss")
    if any(value not in (False, True) for value in values):
        raise ConfigError(f"may_miss must hold true or false for each party, got {values!r}")
    return np.array(values, dtype=np.bool_)


def _predictor(
    tables: Mapping[str, pd.DataFrame], in_mis: _inputs.Mask, standardize: bool, level: float
) -> Array:
    """Return η, shape (n_samples,)."""
    blocks = _inputs.numeric_blocks(tables, standardize=standardize)
    eta = np.full(len(blocks[0]), float(level))
    for j, block in enumerate(blocks, start=1):
        if not in_mis[j - 1]:
            zeta = 1.0 / (j * np.arange(1, block.shape[1] + 1))
            eta += (-1.0) ** j * (block @ zeta)
    return eta


def _responses(
    tables: Mapping[str, pd.DataFrame], labels: "pd.Series[float] | npt.ArrayLike"
) -> Array:
    """Return the labels as complete numbers in the tables' order, shape (n_samples,)."""
    index = _inputs.shared_index(tables)
    if isinstance(labels, pd.Series) and not labels.index.equals(index):
        raise DataError(
            "the labels do not have the tables' samples in the same order; reindex them"
        )
    try:
        values = np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            "the labels must be numbers for this mechanism; code classes 0, 1"
        ) from None
    if values.shape != (len(index),) or np.isnan(values).any():
        raise DataError(
            f"this mechanism needs one label for each of the {len(index)} samples, got shape "
            f"{values.shape} with {int(np.isnan(values).sum())} missing"
        )
    return values


def _expit(eta: Array) -> Array:
    # Imported here: every party's process imports this module, and hardly one needs SciPy for it.
    from scipy.special import expit

    return np.asarray(expit(eta))
