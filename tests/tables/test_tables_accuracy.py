import numpy as np
import pandas as pd
import pytest

from flwr_vertical.incomplete import imputation_accuracy


def test_by_hand():
    truth = pd.DataFrame(
        {"x": [0.0, 2.0, 4.0, 6.0], "c": list("uvuv"), "b": [True, False, True, True]},
        index=list("abcd"),
    )
    before = truth.drop(index="d").astype({"b": object})
    before.loc["a", "x"] = np.nan
    before.loc["b", ["c", "b"]] = np.nan
    after = truth.copy()
    after.loc["a", "x"] = 1.0  # off by 1
    after.loc["d"] = [9.0, "v", True]  # the completed block: off by 3, right, right
    after.loc["b", "c"] = "u"  # wrong; "b" is right
    found = imputation_accuracy(before, after, truth)
    spread = np.std([0, 2, 4, 6])
    assert found["rmse-in-sd"] == pytest.approx(np.sqrt((1 + 9) / 2) / spread)
    assert found["share-right"] == pytest.approx(3 / 4)


def test_nothing_to_compare():
    table = pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"])
    assert imputation_accuracy(table, table, table) == {}
    gaps = pd.DataFrame({"x": [1.0, np.nan]}, index=["a", "b"])
    assert imputation_accuracy(gaps, table, table.loc[["a"]]) == {}


def test_filling_in_the_mean_gives_about_one():
    truth = pd.DataFrame({"x": np.random.default_rng(0).normal(5, 3, 4000)})
    hidden = np.random.default_rng(1).random((4000, 1)) < 0.5
    before = truth.mask(hidden)
    found = imputation_accuracy(before, before.fillna(before.mean()), truth)
    assert found["rmse-in-sd"] == pytest.approx(1, abs=0.05)
