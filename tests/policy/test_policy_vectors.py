"""A party that allows few vectors of the server: a fit stops in time, or does not begin."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate
from flwr_vertical.errors import DataError
from strategies.cox import Cox, survival_labels
from strategies.glm import VerticalGLM
from strategies.linear.moments.groups import MinimumRows
from strategies.scorecard import Scorecard
from strategies.svm import VerticalSVM

N = 400
GLM = VerticalGLM(family="binomial", penalty="none")
ROBUST = VerticalGLM(family="binomial", penalty="none", standard_errors="robust")
LASSO = VerticalGLM(family="binomial", penalty="lasso")
SHARED = {"exchanges": "sums", "openings": 10**6, "predictions": 10**4}


def fit(strategy, **stated):
    rng = np.random.default_rng(2)
    bank, court = (pd.DataFrame(rng.normal(size=(N, 2)), columns=[c, c + "2"]) for c in "bc")
    reach = 2.0 * bank["b"] - court["c"]
    labels = (rng.random(N) < 1.0 / (1.0 + np.exp(-reach))).astype(float)
    if isinstance(strategy, Cox):
        time = pd.Series(rng.exponential(np.exp(-reach)))
        labels = survival_labels(time, pd.Series(rng.random(N) < 0.8))
    policy = {"bank": {**SHARED, **stated}, "court": SHARED}
    return simulate(strategy, {"bank": bank, "court": court}, labels, policy=policy)


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [
        (GLM, 7),
        pytest.param(LASSO, 6, marks=pytest.mark.slow),
        (ROBUST, 11),
        pytest.param(Scorecard(), 6, marks=pytest.mark.slow),
        (VerticalSVM(), 3),
    ],
)
def test_a_fit_takes_as_many_vectors_as_one_party_states_and_says_so(strategy, allowed):
    assert fit(strategy).metrics["converged"] == 1.0
    result = fit(strategy, vectors=allowed)
    assert result.metrics["converged"] == 0.0
    assert any("not converged" in text for text in result.notes)


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [(GLM, 6), (LASSO, 3), (ROBUST, 10), (Scorecard(), 3), (VerticalSVM(), 2), (Cox(), 9)],
)
def test_a_fit_for_which_they_are_too_few_does_not_begin(strategy, allowed):
    with pytest.raises(DataError, match=f"parties allow {allowed} .*'vectors'"):
        fit(strategy, vectors=allowed)


def test_a_set_of_rows_has_what_its_size_allows_or_less_where_that_is_stated():
    assert [MinimumRows().vectors_for(n) for n in (5, 30, 2000)] == [1, 3, 200]
    one = MinimumRows(vectors=12)
    assert [one.vectors_for(n) for n in (5, 30, 2000)] == [1, 3, 12]
    everyone = MinimumRows(vectors=12, by_size=False)
    assert [everyone.vectors_for(n) for n in (5, 30, 2000)] == [12, 12, 12]
    assert [found.rows_for(16) for found in (MinimumRows(), one, everyone)] == [160, 120, 1]
