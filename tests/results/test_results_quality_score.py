"""The quality score against SDMetrics' own numbers, and at its ends."""

import numpy as np
import pandas as pd
import pytest
from oracles.sdmetrics_scores import LEVELS, NUMBERS, make_tables

from flwr_vertical.grading import quality_score

# shape, trend, score, by `python tests/oracles/sdmetrics_scores.py` with SDMetrics 0.32.0
SDMETRICS = {
    "near": (0.9626, 0.9444, 0.9535),
    "shifted": (0.8443, 0.8485, 0.8464),
    "unrelated": (0.9343, 0.8970, 0.9157),
}


def split(table, prefix):
    ids = [f"{prefix}{i}" for i in range(len(table))]
    table = table.set_axis(ids)
    return {"bank": table[list(NUMBERS)], "court": table[list(LEVELS)]}


@pytest.mark.parametrize("name", SDMETRICS)
def test_scores_are_those_of_sdmetrics(name):
    real, synthetic = make_tables()
    # A number with three values at most counts as levels; SDMetrics was told so.
    found = quality_score(split(real, "s"), split(synthetic[name], "new"))
    ours = (found.shapes.mean(), found.trends.mean(), found.score)
    assert ours == pytest.approx(SDMETRICS[name], abs=1e-4)
    assert found.trends.index[0] == ("bank", "age", "bank", "paid")


def test_a_copy_scores_one_and_nonsense_little():
    real, _ = make_tables(200)
    copy = quality_score(split(real, "s"), split(real, "new"))
    assert copy.score == pytest.approx(1.0)
    far = pd.DataFrame({"x": np.arange(50.0), "y": ["a"] * 50})
    other = pd.DataFrame({"x": -np.arange(1.0, 51.0), "y": ["b"] * 50}, index=range(100, 150))
    found = quality_score({"p": far}, {"p": other})
    assert found.shapes.tolist() == pytest.approx([0.0, 0.0])
    assert found.trends.tolist() == pytest.approx([0.0])


def test_pairs_use_samples_that_both_parties_have():
    real, _ = make_tables(200)
    tables = split(real, "s")
    tables["court"] = tables["court"].iloc[50:]
    found = quality_score(tables, split(real, "new"))
    assert found.shapes["bank"].tolist() == pytest.approx([1.0] * 3)
    assert 0.5 < found.trends["bank", "age", "court", "town"] < 1
    assert np.isnan(quality_score({}, {}).score)


def test_a_constant_column_has_a_shape_but_no_correlation():
    real = pd.DataFrame({"x": np.arange(50.0), "y": np.arange(50.0) % 7})
    made = real.assign(x=3.0).set_axis(range(100, 150))
    found = quality_score({"p": real}, {"p": made})
    assert found.trends.isna().all()
    assert np.isfinite(found.shapes).all()
