"""Attacks on a synthetic table: what somebody who has it finds out about known people.

Both compare samples that the table was made from (members) with others of the same population, for
whom anything that is found out is knowledge about the population and no leak.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.neighbors import NearestNeighbors

from flwr_vertical.errors import DataError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Advantage:
    """How an attack did.

    Parameters
    ----------
    success : float
        Share of right answers.
    chance : float
        What answers are right by chance, or about people whose data was not used.
    """

    success: float
    chance: float

    @property
    def points(self) -> float:
        """Percentage points above chance."""
        return 100 * (self.success - self.chance)


def membership_inference(
    members: pd.DataFrame, others: pd.DataFrame, synthetic: pd.DataFrame
) -> Advantage:
    """Guess who was in the data: whose nearest synthetic row is nearer than the median.

    Parameters
    ----------
    members, others : pandas.DataFrame of shape (n, n_columns)
        As many of each; complete rows.
    synthetic : pandas.DataFrame of shape (n_synthetic, n_columns)
        What was made from the members' rows.

    Returns
    -------
    Advantage
        Success over both groups; chance is 1/2.
    """
    if len(members) != len(others):
        raise DataError(
            f"as many members as others are needed, so that chance is 1/2; got {len(members)} and "
            f"{len(others)}"
        )
    targets, rows = _as_numbers(pd.concat([members, others]), synthetic)
    nearest = NearestNeighbors(n_neighbors=1).fit(rows).kneighbors(targets)[0][:, 0]
    guess = nearest < np.median(nearest)
    truth = np.arange(len(targets)) < len(members)
    return Advantage(float((guess == truth).mean()), 0.5)


def attribute_inference(
    members: pd.DataFrame,
    others: pd.DataFrame,
    synthetic: pd.DataFrame,
    target: str,
    tolerance: float = 0.1,
) -> Advantage:
    """Guess one column of people whose other columns are known, from the nearest synthetic row.

    Parameters
    ----------
    members, others, synthetic : pandas.DataFrame
        As in `membership_inference`, of any numbers of rows.
    target : str
        The column to guess.
    tolerance : float, default 0.1
        A number counts as guessed if it is as near as this, in standard deviations.

    Returns
    -------
    Advantage
        Success for members; chance is the success for others.
    """
    both = pd.concat([members, others])
    targets, rows = _as_numbers(both.drop(columns=target), synthetic.drop(columns=target))
    index = NearestNeighbors(n_neighbors=1).fit(rows).kneighbors(targets)[1][:, 0]
    guess, truth = synthetic[target].to_numpy()[index], both[target].to_numpy()
    if pd.api.types.is_numeric_dtype(both[target]) and both[target].nunique() > 2:
        right = np.abs(guess - truth) <= tolerance * both[target].std()
    else:
        right = guess == truth
    return Advantage(float(right[: len(members)].mean()), float(right[len(members) :].mean()))


def _as_numbers(real: pd.DataFrame, synthetic: pd.DataFrame) -> tuple[Array, Array]:
    """Standardise numbers, and turn levels into indicators, of both tables alike."""
    both = pd.concat([real, synthetic[list(real.columns)]], ignore_index=True)
    numeric = [c for c in both if pd.api.types.is_numeric_dtype(both[c])]
    frame = pd.get_dummies(both, columns=[c for c in both if c not in numeric], dtype=float)
    values = frame.to_numpy(dtype=np.float64)
    spread = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return values[: len(real)], values[len(real) :]
