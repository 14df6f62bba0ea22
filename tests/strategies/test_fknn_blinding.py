"""FKNN's blinding: it changes no imputed value, and what the server sees gives nothing away."""

import numpy as np
import pandas as pd
import pytest
from oracles.fknn_unblinded import impute

from flwr_vertical import simulate
from strategies.fknn import FKNN

IDS = np.array([f"s{i:03}" for i in range(90)])


def continuous(rng, n):
    return {name: pd.DataFrame(rng.normal(size=(n, 3))).add_prefix(name) for name in "abc"}


def whole_numbers(rng, n):
    """Few values: many donors are at the same distance, and some rows are duplicates."""
    made = {name: pd.DataFrame(rng.integers(0, 3, (n, 2)) * 1.0).add_prefix(name) for name in "ab"}
    for table in made.values():
        table.iloc[n // 2 : n // 2 + 20] = table.iloc[:20].to_numpy()
    return made


def tenths(rng, n):
    """Sums of the same tenths in another order differ by rounding errors."""
    return {
        name: pd.DataFrame(rng.integers(0, 4, (n, 3)) / 10).add_prefix(name) for name in "abcde"
    }


def all_kinds(rng, n):
    size = pd.CategoricalDtype(["small", "mid", "large"], ordered=True)
    bank = pd.DataFrame(
        {
            "income": rng.normal(5e4, 1e4, n),
            "rating": pd.Categorical(rng.choice(list("ABC"), n)),
            "size": pd.Categorical(rng.choice(size.categories, n), dtype=size),
        }
    )
    court = pd.DataFrame({"cases": rng.poisson(1, n) * 1.0, "town": rng.choice(list("uvw"), n)})
    return {"bank": bank, "court": court}


def one_party(rng, n):
    return {"alone": pd.DataFrame(rng.normal(size=(n, 4))).add_prefix("x")}


def heavy_tails(rng, n):
    return {name: pd.DataFrame(rng.standard_t(2, (n, 3))).add_prefix(name) for name in "ab"}


KINDS = [continuous, whole_numbers, tenths, all_kinds, one_party, heavy_tails]


def make(kind, missing=0.15, blocks=0.15):
    """A party misses cells at random, and whole rows."""
    rng = np.random.default_rng(KINDS.index(kind))
    n, tables = len(IDS), {}
    for name, table in kind(rng, n).items():
        table = table.set_axis(IDS, axis=0)
        table = table.mask(rng.random(table.shape) < missing)
        kept = rng.random(n) >= (blocks if kind is not one_party else 0.0)
        tables[name] = table[kept]
    return tables


@pytest.mark.parametrize("weighting", ["party-mean", "exact"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_imputed_values_are_those_of_an_unblinded_run_to_the_bit(kind, weighting):
    tables = make(kind)
    standardize = kind is all_kinds
    expected = impute(tables, 4, weighting, standardize)
    strategy = FKNN(n_neighbors=4, weighting=weighting, standardize=standardize)
    for mode in ("plain", "masked"):
        got = simulate(strategy, tables, aggregation=mode, progress=False).tables
        for name, table in got.items():
            pd.testing.assert_frame_equal(
                table, expected[name].loc[table.index], check_exact=True, check_names=False
            )


@pytest.mark.parametrize("kind", [continuous, whole_numbers], ids=lambda kind: kind.__name__)
def test_under_ciphertexts_too(kind):
    pytest.importorskip("tenseal")
    tables = make(kind)
    expected = impute(tables, 4)
    got = simulate(FKNN(n_neighbors=4), tables, aggregation="ckks", progress=False).tables
    for name, table in got.items():
        pd.testing.assert_frame_equal(
            table, expected[name].loc[table.index], check_exact=True, check_names=False
        )
