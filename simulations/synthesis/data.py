"""Tables of real columns, and generated ones whose columns are hard to fit."""

import numpy as np
import pandas as pd

from simulations.data import Sources, load_motor

GENERATED = "generated"
ADULT = "Adult"
AGAIN = ", drawn again"
"""Ends the name of a data set whose rows are drawn with replacement, as many as asked for."""


def load(name: str, sources: Sources) -> pd.DataFrame:
    """Return a whole data set as one table; empty of generated columns, or of Adult if absent."""
    name = name.removesuffix(AGAIN)
    if name == "Bank":
        return pd.read_csv(sources.path("bank/bank_full.csv"))
    if name == "German Credit":
        return pd.read_csv(sources.path("german/german_credit.csv"))
    if name == "motor":
        motor = load_motor(sources)
        return pd.concat([*motor.parties.values(), motor.labels], axis=1).reset_index(drop=True)
    if name == ADULT and (path := sources.found("adult/adult.csv")):
        return pd.read_csv(path)
    return pd.DataFrame()


def draw(name: str, whole: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Return the table of one replication, array of shape (at most rows, n_columns)."""
    if name == GENERATED:
        return generate(rows, seed)
    if name.endswith(AGAIN):
        return whole.sample(rows, replace=True, random_state=seed).reset_index(drop=True)
    if len(whole) <= rows:
        return whole
    return whole.sample(rows, random_state=seed).reset_index(drop=True)


def generate(rows: int, seed: int) -> pd.DataFrame:
    """Draw correlated columns with heavy tails, zeros, sentinels and scales far from 1."""
    rng = np.random.default_rng(seed)
    z = (rng.normal(size=(rows, 9)) + rng.normal(size=(rows, 1))) / 2**0.5
    u = (z.argsort(axis=0).argsort(axis=0) + 0.5) / rows
    return pd.DataFrame(
        {
            "payment": np.where(u[:, 0] < 0.2, 0.0, np.round(np.exp(7 + 1.5 * z[:, 0]), 2)),
            "income": 1000 * ((1 - u[:, 1]) ** (-1 / 1.2) - 1),  # Pareto, infinite variance
            "change": np.tan(np.pi * (u[:, 2] - 0.5)),  # Cauchy
            "claims": np.where(u[:, 3] < 0.6, 0.0, -50 * np.log(1 - u[:, 3])),
            "rate": 1 - (1 - u[:, 4]) ** (1 / 200),  # Beta(1, 200)
            "days": np.where(u[:, 5] > 0.7, 999.0, np.floor(60 * u[:, 5])),
            "visits": np.floor(-4 * np.log(1 - u[:, 6])),
            "level": 1000 + 10 * z[:, 7],
            "grade": 1 + np.round(6 * u[:, 8]) / 3,
        }
    )


def split(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Give the first half of the columns to one party, the others to another."""
    half = table.shape[1] // 2
    return {"a": table.iloc[:, :half], "b": table.iloc[:, half:]}
