"""Attacks on a synthetic table: singling out, linking, inference, membership.

The first three are the risks by which the Article 29 Working Party (Opinion 05/2014) judges
anonymous data, measured after Giomi et al. (2023), "A Unified Framework for Quantifying Privacy
Risk in Synthetic Data". The last one is that of Yeom et al. (2018): a person whose nearest
synthetic row is near is said to have been in the data.

Each attack is run against samples that the table was made from (members), and once more where
nothing can leak, which gives the chance of success. With others of the same population at hand,
that is the same attack against these: what succeeds then is knowledge about the population. Without
others, the attacker has the rows of the other members instead of the synthetic ones: what succeeds
then is what any sample of the population tells of a person who is not in it. The second comparison
is the weaker one: a table that is less like the population than a sample of it has room to leak
before it tells more than such a sample.

All functions take real rows, so they are for whoever holds these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.grading.gower import Distances, is_number, nearest, pass_over
from flwr_vertical.grading.predicates import (
    Predicate,
    counts_of,
    random_predicates,
    rare_predicates,
    with_codes,
)
from flwr_vertical.grading.proportions import Rate, Risk

TOLERANCE = 0.05
"""A number counts as guessed if it is as near as this to the guess, relative to the guess."""


class _Trial(NamedTuple):
    """People, the rows that the attacker has, and which of these is each person's own, if any."""

    people: pd.DataFrame
    rows: pd.DataFrame
    own: Integers | None = None


def inference(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    target: str,
    known: Sequence[str] | None = None,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Risk:
    """Guess a column of people whose other columns are known, from the nearest synthetic row."""
    return inferences(members, others, synthetic, [target], known, n_attacks, seed)[0]


def inferences(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    targets: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    n_attacks: int = 1000,
    seed: int = 0,
) -> list[Risk]:
    """Guess several columns, each as `inference` does, of the same people."""
    rng = np.random.default_rng(seed)
    chosen = [str(name) for name in members] if targets is None else list(targets)
    given = [str(name) for name in members] if known is None else list(known)
    attacked, control = _trials(members, others, synthetic, n_attacks, rng)
    hits, by_chance = (_guessed(trial, chosen, given) for trial in (attacked, control))
    at_random = rng.integers(0, len(synthetic), len(attacked.people))
    return [
        Risk(
            f"inference: {target}",
            _rate(hits[target]),
            _rate(by_chance[target]),
            _rate(_right(attacked.people[target], synthetic[target], at_random)),
        )
        for target in chosen
    ]


def linkability(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    left: Sequence[str],
    right: Sequence[str],
    n_neighbors: int = 1,
    n_attacks: int = 1000,
    seed: int = 0,
) -> Risk:
    """Link two parts of a person's columns through a synthetic row that is near to both."""
    rng = np.random.default_rng(seed)

    def linked(trial: _Trial) -> Flags:
        sides = [
            nearest(
                Distances(trial.people[list(side)], trial.rows[list(side)]), n_neighbors, trial.own
            )
            for side in (left, right)
        ]
        return _meet(sides[0], sides[1])

    attacked, control = _trials(members, others, synthetic, n_attacks, rng)
    guesses = [
        np.array(
            [rng.choice(len(synthetic), n_neighbors, replace=False) for _ in attacked.people.index]
        )
        for _ in range(2)
    ]
    return Risk(
        "linkability", _rate(linked(attacked)), _rate(linked(control)), _rate(_meet(*guesses))
    )


def singling_out(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    n_columns: int = 3,
    n_attacks: int = 500,
    seed: int = 0,
) -> Risk:
    """Find predicates that hold for one synthetic row, and try them on people.

    A success is a predicate that holds for exactly one person. As the chance of that depends on how
    many people there are, as many members as others are taken. Without others, predicates of one
    half of the members are tried on the other half.
    """
    rng = np.random.default_rng(seed)

    def found(rows: pd.DataFrame) -> list[Predicate]:
        rare = rare_predicates(rows, n_attacks, rng) if n_columns == 1 else None
        predicates = rare or random_predicates(rows, n_columns, n_attacks, rng)
        if not predicates:
            raise DataError(
                f"no predicate on {n_columns} columns holds for one synthetic row alone; try more "
                "columns"
            )
        return predicates

    tables = [members, synthetic, *([] if others is None else [others])]
    members, synthetic, *beside = with_codes(tables)
    predicates = found(synthetic)
    if others is None:
        people = some_rows(members, len(synthetic), rng)
        half = rng.permutation(len(members))
        first, second = (members.iloc[np.sort(part)] for part in np.array_split(half, 2))
        by_chance = counts_of(found(first), second) == 1
    else:
        n_people = min(len(members), len(others))
        people, strangers = (some_rows(table, n_people, rng) for table in (members, beside[0]))
        by_chance = counts_of(predicates, strangers) == 1
    guesses = random_predicates(synthetic, n_columns, len(predicates), rng, unique=False)
    return Risk(
        f"singling out, {counted(n_columns, 'column')}",
        _rate(counts_of(predicates, people) == 1),
        _rate(by_chance),
        _rate(counts_of(guesses, people) == 1),
    )


def membership(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    n_attacks: int | None = None,
    seed: int = 0,
) -> Risk:
    """Guess who was in the data: whose nearest synthetic row is nearer than the median.

    Distances are Euclid's, of standardised numbers and indicators of levels. The gain is the
    advantage of Yeom et al. (2018): the share of members who are found, less that of others who are
    taken for members. Whoever guesses about as many members as others is right in 1/2 and half of
    the gain. Without others, a member's distance to the nearest synthetic row stands beside that to
    the nearest row of another member.
    """
    rng = np.random.default_rng(seed)
    most = min(len(members), len(members if others is None else others))
    most = most if n_attacks is None else min(most, n_attacks)
    attacked, control = _trials(members, others, synthetic, most, rng)
    tables = [attacked.people, control.people, synthetic, *([members] if others is None else [])]
    people, strangers, rows, *real = _as_numbers(tables)
    beside = real[0] if real else rows
    apart = [_nearest_apart(people, rows), _nearest_apart(strangers, beside, control.own)]
    median = np.median(np.concatenate(apart))
    found = [_rate(distance < median) for distance in apart]
    return Risk("membership", found[0], found[1])


def _trials(
    members: pd.DataFrame,
    others: pd.DataFrame | None,
    synthetic: pd.DataFrame,
    most: int,
    rng: np.random.Generator,
) -> tuple[_Trial, _Trial]:
    """Return the attack on members, and the one that gives the chance."""
    chosen = some_rows(pd.DataFrame(index=np.arange(len(members))), most, rng).index.to_numpy()
    people = members.iloc[chosen]
    attacked = _Trial(people, synthetic)
    if others is None:
        return attacked, _Trial(people, members, chosen)
    return attacked, _Trial(some_rows(others, most, rng), synthetic)


def _guessed(trial: _Trial, targets: list[str], known: list[str]) -> dict[str, Flags]:
    """Guess each target from the row that is nearest in the known columns but itself."""
    distances = Distances(trial.people[known], trial.rows[known])
    rows = {target: np.empty(len(trial.people), dtype=np.int64) for target in targets}
    for block in distances.blocks:
        total = distances.of_all(block)
        for target in targets:
            # Exact, see `Distances`: the sum over the other columns, at the price of one.
            apart = (
                total - distances.of_column(block, known.index(target))
                if target in known
                else total.copy()
            )
            rows[target][block] = pass_over(apart, block, trial.own).argmin(axis=1)
    return {
        target: _right(trial.people[target], trial.rows[target], rows[target]) for target in targets
    }


def _right(truth: pd.Series, column: pd.Series, rows: Integers) -> Flags:
    """Return which of the guesses, a column's values in these rows, are right."""
    guess, true = column.to_numpy()[rows], truth.to_numpy()
    if not is_number(truth):
        return np.asarray(guess == true)
    guess, true = guess.astype(float), true.astype(float)
    rounding = 1e-12 * np.abs(true).max(initial=0.0)
    return np.asarray(np.abs(guess - true) <= TOLERANCE * np.abs(guess) + rounding)


def _nearest_apart(people: Array, rows: Array, own: Integers | None = None) -> Array:
    """Return each person's distance to the nearest row, but the own one."""
    from sklearn.neighbors import NearestNeighbors  # parties import this package with every message

    index = NearestNeighbors(n_neighbors=1 if own is None else 2).fit(rows)
    apart, places = index.kneighbors(people)
    if own is None:
        return np.asarray(apart[:, 0])
    return np.asarray(np.where(places[:, 0] == own, apart[:, 1], apart[:, 0]))


def _as_numbers(tables: Sequence[pd.DataFrame]) -> list[Array]:
    """Standardise numbers, and turn levels into indicators, of all tables alike."""
    columns = list(tables[0].columns)
    both = pd.concat([table[columns] for table in tables], ignore_index=True)
    numeric = [c for c in both if pd.api.types.is_numeric_dtype(both[c])]
    frame = pd.get_dummies(both, columns=[c for c in both if c not in numeric], dtype=float)
    values = frame.to_numpy(dtype=np.float64)
    spread = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.split(values, np.cumsum([len(table) for table in tables])[:-1])


def some_rows(people: pd.DataFrame, most: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return so many rows at most, in their order."""
    if len(people) <= most:
        return people
    return people.iloc[np.sort(rng.choice(len(people), most, replace=False))]


def _rate(hits: Flags) -> Rate:
    return Rate(int(hits.sum()), len(hits))


def _meet(left: Integers, right: Integers) -> Flags:
    return np.asarray((left[:, :, None] == right[:, None, :]).any(axis=(1, 2)))
