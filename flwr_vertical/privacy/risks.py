"""What a synthetic table tells about the people behind it: singling out, linking, inference.

These are the three risks by which the Article 29 Working Party (Opinion 05/2014) judges anonymous
data, measured after Giomi et al. (2023), "A Unified Framework for Quantifying Privacy Risk in
Synthetic Data". Each attack is run against samples that the table was made from (members) and
against others of the same population: what succeeds against others is knowledge about the
population. It takes both kinds of samples, so it is for whoever holds these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.privacy.mixed import nearest_rows
from flwr_vertical.privacy.predicates import counts_of, random_predicates, rare_predicates

Flags = npt.NDArray[np.bool_]

TOLERANCE = 0.05
"""A number counts as guessed if it is as near as this to the guess, relative to the guess."""


@dataclass(frozen=True)
class Rate:
    """A share of successes, as a confidence interval has it.

    Parameters
    ----------
    value : float
        Centre of the interval.
    error : float
        Half its width.
    """

    value: float
    error: float


@dataclass(frozen=True)
class Risk:
    """How an attack did against members, against others, and by guessing.

    Parameters
    ----------
    attack : str
        Its name.
    members, others, guessing : Rate
        Shares of successes. ``guessing`` does without the synthetic table's rows where it can: an
        attack that does no better against members than this was too weak to tell anything.
    """

    attack: str
    members: Rate
    others: Rate
    guessing: Rate

    @property
    def excess(self) -> Rate:
        """What members risk beyond others, as a share of what could be gained (eq. 3)."""
        room = 1.0 - self.others.value
        value = (self.members.value - self.others.value) / room
        slope = (self.members.value - 1.0) / room**2
        error = np.hypot(self.members.error / room, slope * self.others.error)
        return Rate(value, float(error))

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the excess, within 0 and 1."""
        found = self.excess
        low, high = np.clip([found.value - found.error, found.value + found.error], 0.0, 1.0)
        return float(low), float(high)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Rate:
    """Return Wilson's (1927) interval of a share.

    Parameters
    ----------
    successes, n : int
        Successes among n attacks.
    confidence : float, default 0.95
        Of the interval.
    """
    z = NormalDist().inv_cdf(0.5 * (1.0 + confidence))
    spread = successes * (n - successes) / n + 0.25 * z**2
    return Rate((successes + 0.5 * z**2) / (n + z**2), float(z / (n + z**2) * np.sqrt(spread)))


def inference(
    members: pd.DataFrame,
    others: pd.DataFrame,
    synthetic: pd.DataFrame,
    target: str,
    known: Sequence[str] | None = None,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Risk:
    """Guess a column of people whose other columns are known, from the nearest synthetic row.

    Parameters
    ----------
    members, others, synthetic : pandas.DataFrame
        With the same columns.
    target : str
        The column to guess. Numbers are right within `TOLERANCE` of the guess.
    known : sequence of str, optional
        What is known of people; all other columns by default.
    n_attacks : int, default 1000
        How many people of each kind are tried at most.
    seed : int, default 0
        Of the choice of people, and of guessing.
    """
    given = [c for c in members if c != target] if known is None else list(known)
    rng = np.random.default_rng(seed)
    made = synthetic[target].to_numpy()
    numeric = pd.api.types.is_numeric_dtype(members[target])

    def right(people: pd.DataFrame, rows: npt.NDArray[np.int64]) -> Flags:
        guess, truth = made[rows], people[target].to_numpy()
        if not numeric:
            return np.asarray(guess == truth)
        guess, truth = guess.astype(float), truth.astype(float)
        return np.asarray(np.abs(guess - truth) <= TOLERANCE * np.abs(guess) + 1e-12)

    def tried(people: pd.DataFrame) -> tuple[pd.DataFrame, Flags]:
        people = _some(people, n_attacks, rng)
        return people, right(people, nearest_rows(people[given], synthetic[given])[:, 0])

    chosen, hits = tried(members)
    at_random = right(chosen, rng.integers(0, len(synthetic), len(chosen)))
    return Risk(f"inference: {target}", _rate(hits), _rate(tried(others)[1]), _rate(at_random))


def linkability(
    members: pd.DataFrame,
    others: pd.DataFrame,
    synthetic: pd.DataFrame,
    left: Sequence[str],
    right: Sequence[str],
    n_neighbors: int = 1,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Risk:
    """Link two parts of a person's columns through a synthetic row that is near to both.

    Parameters
    ----------
    members, others, synthetic : pandas.DataFrame
        With the same columns.
    left, right : sequence of str
        The two parts, such as the columns of two parties.
    n_neighbors : int, default 1
        How many of the nearest synthetic rows are looked at for each part.
    n_attacks, seed : int
        As of `inference`.
    """
    rng = np.random.default_rng(seed)

    def linked(people: pd.DataFrame) -> Flags:
        people = _some(people, n_attacks, rng)
        sides = [
            nearest_rows(people[list(side)], synthetic[list(side)], n_neighbors)
            for side in (left, right)
        ]
        return _meet(sides[0], sides[1])

    hits = linked(members)
    by_chance = [
        np.array([rng.choice(len(synthetic), n_neighbors, replace=False) for _ in hits])
        for _ in range(2)
    ]
    guessing = _rate(_meet(by_chance[0], by_chance[1]))
    return Risk("linkability", _rate(hits), _rate(linked(others)), guessing)


def singling_out(
    members: pd.DataFrame,
    others: pd.DataFrame,
    synthetic: pd.DataFrame,
    n_columns: int = 3,
    n_attacks: int = 500,
    seed: int = 0,
) -> Risk:
    """Find predicates that hold for one synthetic row, and try them on people.

    A success is a predicate that holds for exactly one person. As the chance of that depends on how
    many people there are, as many members as others are taken.

    Parameters
    ----------
    members, others, synthetic : pandas.DataFrame
        With the same columns.
    n_columns : int, default 3
        How many columns a predicate is about; with 1, rare and extreme values are taken.
    n_attacks, seed : int
        How many predicates are sought, and the seed of their choice.

    Raises
    ------
    DataError
        If no synthetic row can be singled out.
    """
    rng = np.random.default_rng(seed)
    n_people = min(len(members), len(others))
    some = [_some(people, n_people, rng) for people in (members, others)]
    rare = rare_predicates(synthetic, n_attacks, rng) if n_columns == 1 else None
    found = rare or random_predicates(synthetic, n_columns, n_attacks, rng)
    if not found:
        raise DataError(
            f"no predicate on {n_columns} columns holds for one synthetic row alone; try more "
            "columns"
        )
    guessed = random_predicates(synthetic, n_columns, len(found), rng, unique=False)
    tried = [counts_of(found, people) == 1 for people in some]
    guessing = counts_of(guessed, some[0]) == 1
    name = f"singling out, {n_columns} column{'s' * (n_columns > 1)}"
    return Risk(name, _rate(tried[0]), _rate(tried[1]), _rate(guessing))


def grade(
    members: pd.DataFrame,
    others: pd.DataFrame,
    synthetic: pd.DataFrame,
    parts: tuple[Sequence[str], Sequence[str]] | None = None,
    n_attacks: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """Run all three attacks on a synthetic table.

    Parameters
    ----------
    members : pandas.DataFrame of shape (n_members, n_columns)
        Complete rows that the table was made from.
    others : pandas.DataFrame of shape (n_others, n_columns)
        Complete rows of the same population that were not used.
    synthetic : pandas.DataFrame of shape (n_synthetic, n_columns)
        The release.
    parts : tuple of two sequences of str, optional
        Columns that are linked; by default the first and the second half.
    n_attacks : int, default 500
        Of each kind.
    seed : int, default 0
        Of all choices.

    Returns
    -------
    pandas.DataFrame
        Index ``attack``; ``members``, ``others`` and ``guessing`` are rates of success, ``risk`` is
        what members risk beyond others and ``low`` and ``high`` are its 95 % interval. Every column
        is guessed once.

    Raises
    ------
    DataError
        If tables have other columns, too few rows or missing cells.
    """
    columns = list(members.columns)
    for name, table in (("others", others), ("synthetic", synthetic), ("members", members)):
        if missing := [c for c in columns if c not in table]:
            raise DataError(f"{name} lack the columns {missing} of members")
        if len(table) < 10 or table[columns].isna().any(axis=None):
            raise DataError(
                f"{name}: 10 complete rows or more are needed, got {len(table)} rows with "
                f"{int(table[columns].isna().sum().sum())} missing cells"
            )
    own, control, release = (
        table[columns].reset_index(drop=True) for table in (members, others, synthetic)
    )
    half = max(1, len(columns) // 2)
    left, right = (columns[:half], columns[half:]) if parts is None else parts
    risks = [
        singling_out(own, control, release, k, n_attacks, seed) for k in (1, 3) if k <= len(columns)
    ]
    if left and right:
        risks.append(
            linkability(own, control, release, left, right, n_attacks=n_attacks, seed=seed)
        )
    if len(columns) > 1:
        risks += [
            inference(own, control, release, str(column), n_attacks=n_attacks, seed=seed)
            for column in columns
        ]
    rows = {
        risk.attack: {
            "members": risk.members.value,
            "others": risk.others.value,
            "guessing": risk.guessing.value,
            "risk": max(0.0, risk.excess.value),
            "low": risk.bounds[0],
            "high": risk.bounds[1],
        }
        for risk in risks
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("attack")


def _some(people: pd.DataFrame, most: int, rng: np.random.Generator) -> pd.DataFrame:
    if len(people) <= most:
        return people
    return people.iloc[np.sort(rng.choice(len(people), most, replace=False))]


def _rate(hits: Flags) -> Rate:
    return wilson(int(hits.sum()), len(hits))


def _meet(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Flags:
    return np.asarray((left[:, :, None] == right[:, None, :]).any(axis=(1, 2)))
