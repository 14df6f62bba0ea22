"""Quality of synthetic tables: margins, pairs, models, and a score beside SDMetrics' own."""

import numpy as np
import pandas as pd
import pytest
from oracles.sdmetrics_scores import LEVELS, NUMBERS, make_tables

from flwr_vertical import Result
from flwr_vertical.errors import DataError
from flwr_vertical.grading.quality import (
    correlation_quality,
    downstream_fit,
    downstream_quality,
    margin_quality,
)
from flwr_vertical.grading.quality_score import quality_score
from flwr_vertical.grading.risks import inference
from flwr_vertical.reports.report import report_html


def make(n, rng, shift=0.0, prefix="s"):
    z = rng.normal(size=(n, 3)) @ np.array([[1, 0.8, 0.5], [0, 0.6, 0], [0, 0, 0.9]])
    ids = [f"{prefix}{i}" for i in range(n)]
    bank = pd.DataFrame({"a": z[:, 0] + shift, "town": np.where(z[:, 1] > 0, "Ulm", "Gent")}, ids)
    court = pd.DataFrame({"b": z[:, 2]}, ids)
    return {"bank": bank, "court": court}


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    return make(800, rng), make(800, rng, prefix="new"), make(800, rng, 2.0, "off")


def test_margins(tables):
    real, good, bad = tables
    near, far = margin_quality(real, good)["distance"], margin_quality(real, bad)["distance"]
    assert near.index.names == ["party", "column"]
    assert near.max() < 0.1
    assert far["bank", "a"] > 0.5
    same = margin_quality(real, {"court": real["court"].set_axis(range(800))})
    assert same.loc[("court", "b"), "distance"] == 0
    towns = real["bank"].assign(town="Ulm").set_axis(range(800))
    share = (real["bank"]["town"] == "Gent").mean()
    found = margin_quality(real, {"bank": towns}).loc[("bank", "town"), "distance"]
    assert found == pytest.approx(share)
    assert margin_quality(real, real).empty  # imputed tables are not synthetic


def test_margins_are_of_the_values_that_are_not_missing(tables):
    """As `mst` makes tables of columns with gaps."""
    real, good, _ = tables
    gaps = {}
    for name, table in good.items():
        gaps[name] = table.astype({"town": object} if "town" in table else {})
        gaps[name].iloc[::5] = np.nan
    some = {name: table.dropna() for name, table in gaps.items()}
    pd.testing.assert_frame_equal(margin_quality(real, gaps), margin_quality(real, some))
    assert np.isfinite(margin_quality(real, gaps)["distance"]).all()
    gone = {"court": good["court"].assign(b=np.nan)}
    assert margin_quality(real, gone).loc[("court", "b"), "distance"] == 1.0
    found, expected = quality_score(real, gaps), quality_score(real, some)
    pd.testing.assert_series_equal(found.shapes, expected.shapes)
    pd.testing.assert_series_equal(found.trends, expected.trends)
    assert found.trends.notna().all()
    assert quality_score(real, gone).shapes["court", "b"] == 0.0


def test_one_and_one_point_zero_are_one_level():
    """A column of two or three numbers counts as levels, and its type may be another one."""
    real = pd.DataFrame({"cards": [1, 1, 2, 3], "known": [True, False, True, True]})
    made = pd.DataFrame({"cards": [1.0, 2.0, 2.0, 3.0], "known": [True, True, True, True]})
    found = margin_quality({"bank": real}, {"bank": made.set_axis(list("abcd"))})["distance"]
    assert found["bank", "cards"] == pytest.approx(0.25)
    assert found["bank", "known"] == pytest.approx(0.25)


def test_correlations(tables):
    real, good, _ = tables
    found = correlation_quality(real, good)
    assert found.names == [("bank", "a"), ("bank", "town"), ("court", "b")]
    assert np.abs(found.differences).max() < 0.1
    pooled = pd.concat([real["bank"]["a"], real["court"]["b"]], axis=1)
    assert found.real[0, 2] == pytest.approx(pooled.corr(method="spearman").iloc[0, 1])


def test_downstream_fit(tables):
    real, good, _ = (pd.concat(list(t.values()), axis=1) for t in tables)
    for target in ("b", "town"):
        scores = downstream_fit(real, good, target)
        assert scores["synthetic"] == pytest.approx(scores["real"], abs=0.05)
        assert scores["real"] > 0.1
    noise = good.assign(b=np.random.default_rng(1).permutation(good["b"]))
    assert downstream_fit(real, noise, "b")["synthetic"] < 0.05
    with pytest.raises(DataError, match="no column 'c'"):
        downstream_fit(real, good, "c")
    with pytest.raises(DataError, match="one value of 'town' only"):
        downstream_fit(real, good.assign(town="Ulm"), "town")


def test_every_column_is_predicted_from_the_others(tables):
    real, good, bad = tables
    real["bank"] = real["bank"].iloc[100:]
    found = downstream_quality(real, good)
    assert list(found.index) == [("bank", "a"), ("bank", "town"), ("court", "b")]
    assert (found["real"] - found["synthetic"]).abs().max() < 0.1
    worse = downstream_quality(real, bad)["synthetic"]
    assert worse["bank", "a"] < found.loc[("bank", "a"), "synthetic"] - 0.5
    assert downstream_quality({"court": real["court"]}, {"court": good["court"]}).empty
    few = {name: table.tail(50) for name, table in real.items()}
    assert downstream_quality(few, good).empty
    # As `mst` makes them of columns with gaps.
    gaps = {name: table.copy() for name, table in good.items()}
    gaps["court"].loc[gaps["court"].index[::5], "b"] = np.nan
    some = downstream_quality(real, gaps)
    assert (some["synthetic"] - found["synthetic"]).abs().max() < 0.1
    assert "Each column predicted" in report_html(Result("mst", originals=real, tables=gaps))
    assert downstream_quality(real, {**gaps, "court": gaps["court"].assign(b=np.nan)}).empty


def test_the_report_shows_synthetic_tables_beside_the_observed(tables, drawing):
    real, good, _ = tables
    with drawing():
        page = report_html(Result("vcds", originals=real, tables=good))
    assert "Synthetic and observed values" in page
    assert "Imputed and observed values" not in page
    assert "as secret as the real tables" in page
    assert "Each column predicted from all others" in page
    holes = {"court": real["court"].mask(np.arange(800)[:, None] < 20)}
    page = report_html(Result("mean", originals=holes, tables={"court": real["court"]}))
    assert "Synthetic and observed values" not in page
    assert "Imputed and observed values" in page


# -- the score ------------------------------------------------------------------------------

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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("same", [3.0, np.arange(50) % 2 * 5e-324])
def test_a_constant_column_has_a_shape_but_no_correlation(same):
    real = pd.DataFrame({"x": np.arange(50.0), "y": np.arange(50.0) % 7})
    made = real.assign(x=same).set_axis(range(100, 150))
    found = quality_score({"p": real}, {"p": made})
    assert found.trends.isna().all()
    assert np.isfinite(found.shapes).all()


def test_values_too_close_together_for_ten_parts_are_compared_and_drawn(drawn):
    rng = np.random.default_rng(0)
    real, made = (
        pd.DataFrame({"x": 2.0**60 + 256 * rng.integers(0, 4, 60), "g": rng.choice(["u", "v"], 60)})
        for _ in range(2)
    )
    made = made.set_axis(range(100, 160)).mask(rng.random((60, 2)) < 0.1)
    assert 0.5 < quality_score({"p": real}, {"p": made}).score < 1.0
    assert "pair trends 0." in report_html(
        Result("vcds", originals={"p": real}, tables={"p": made})
    )
    filled = real.mask(rng.random((60, 2)) < 0.2)
    assert "Imputed and" in report_html(Result("mean", originals={"p": filled}, tables={"p": real}))


def test_inference_of_tiny_numbers_is_no_easier():
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame({"x": rng.normal(size=200), "y": rng.normal(size=200)}) for _ in "ab"]
    people, made = tables
    shares = [inference(u * people, None, u * made, "x").members.share for u in (1.0, 1e-12)]
    assert shares[0] == shares[1] < 0.5
