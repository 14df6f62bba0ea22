"""Hausman's test of VFEM: as often as it says where blocks miss at random, and often where not."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from strategies.linear.moments.covariances import FullCovariance
from strategies.linear.moments.fit import fit_normal
from strategies.linear.moments.patterns import Patterns
from strategies.normal import JointNormal
from strategies.vfem import VFEM
from strategies.vfem.missingness import compare


def rows_of(seed, how, n=1500):
    """Two columns at each of two parties, a label; the second party lacks some rows."""
    rng = np.random.default_rng([7, seed])
    factor = rng.normal(size=n)
    x = 0.7 * factor[:, None] + rng.normal(size=(n, 4))
    y = x @ [1.0, -0.5, 0.8, 0.3] + rng.normal(size=n)
    score = {"random": np.zeros(n), "other": x[:, 0], "own": x[:, 2], "label": y}[how]
    chance = 1 / (1 + np.exp(-2.0 * (score - np.quantile(score, 0.6)))) if how != "random" else 0.4
    gone = rng.random(n) < chance
    rows = np.column_stack([x, y])
    rows[gone, 2:4] = np.nan
    return rows, rng


def p_value_of(seed, how):
    rows, _ = rows_of(seed, how)
    patterns = Patterns.of(rows)
    fit = fit_normal(patterns, FullCovariance(np.ones((5, 5), dtype=bool)))
    (complete,) = [p for p in patterns.patterns if len(p.observed) == 5]
    return compare(complete, fit.beta, fit.vcov[1:, 1:], np.ones(4, dtype=bool))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["random", "other"])
def test_it_rejects_as_often_as_it_says(how):
    p = np.array([p_value_of(seed, how).p_value for seed in range(200)])
    # Three standard errors of a share of 200.
    assert abs((p < 0.05).mean() - 0.05) < 0.046
    assert abs((p < 0.5).mean() - 0.5) < 0.106


@pytest.mark.parametrize("how", ["own", "label"])
def test_it_sees_blocks_that_miss_by_their_values_or_the_label(how):
    found = [p_value_of(seed, how) for seed in range(20)]
    assert np.mean([one.p_value < 0.01 for one in found]) > 0.9


def test_complete_rows_alone_are_not_compared():
    rows, _ = rows_of(0, "random")
    patterns = Patterns.of(rows[:12])
    (complete,) = [p for p in patterns.patterns if len(p.observed) == 5]
    everything = np.ones(4, dtype=bool)
    assert compare(complete, np.zeros(4), np.eye(4), everything) is None
    assert compare(complete, np.zeros(4), np.eye(4), ~everything) is None


@pytest.mark.parametrize(("how", "noted"), [("random", False), ("label", True)])
def test_a_run_says_whether_blocks_look_missing_at_random(how, noted):
    rows, _ = rows_of(3, how)
    ids = [f"s{i:04}" for i in range(len(rows))]
    bank = pd.DataFrame(rows[:, :2], index=ids, columns=["a", "b"])
    court = pd.DataFrame(rows[:, 2:4], index=ids, columns=["c", "d"]).dropna()
    y = pd.Series(rows[:, 4], index=ids)
    result = simulate(VFEM(), {"bank": bank, "court": court}, y)
    p = result.metrics["missingness_p_value"]
    assert (p < 0.01) is noted
    found = [text for text in result.notes if "Hausman" in text]
    assert len(found) == noted
    if noted:
        assert "`complete-case` is unbiased" in found[0]
    # With all rows complete there is nothing to compare.
    whole = simulate(VFEM(), {"bank": bank, "court": bank.add_suffix("2") ** 2}, y)
    assert "missingness_p_value" not in whole.metrics


@pytest.mark.parametrize("by", ["chance", "the own other column"])
def test_cells_that_are_missing_by_the_partys_other_columns_bias_and_a_note_says_so(by):
    """Such a row counts as lacking, though its columns are not distributed as those of others."""
    rng = np.random.default_rng(0)
    n, slopes = 4000, [1.0, -0.8, 0.6, 0.5]
    x = rng.normal(size=(n, 4)) + 0.7 * rng.normal(size=(n, 1))
    y = pd.Series(x @ slopes + rng.normal(size=n))
    chance = 0.4 if by == "chance" else 1.0 / (1.0 + np.exp(-2.0 * x[:, 0]))
    bank = pd.DataFrame(x[:, :2], columns=["income", "debt"])
    bank["debt"] = bank["debt"].mask(rng.random(n) < chance)
    parties = {"bank": bank, "clinic": pd.DataFrame(x[:, 2:], columns=["age", "weight"])}

    def off(tables):
        result = simulate(VFEM(), tables, y)
        found, errors = result.coefficients["estimate"], result.coefficients["std_error"]
        return float((np.abs(found - [0.0, *slopes]) / errors).max()), " ".join(result.notes)

    furthest, notes = off(parties)
    assert "rows with missing cells left out" in notes
    assert ("is biased then, and 'joint-normal'" in notes) == (by != "chance")
    assert (furthest > 5.0) == (by != "chance")
    assert off(simulate(JointNormal(), parties).tables)[0] < 3.5
