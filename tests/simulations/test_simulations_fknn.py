import numpy as np
import pandas as pd
import pytest
from sklearn.impute import KNNImputer

from simulations.data import load_motor
from simulations.fknn import local, oracle, tables

pytestmark = pytest.mark.studies


@pytest.fixture(scope="module")
def sources(sources_with):
    return sources_with("motor/motor_hetero_guest.csv", "motor/motor_hetero_host.csv")


@pytest.fixture
def incomplete():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
    return X, np.where(rng.random(X.shape) < 0.2, np.nan, X)


def test_t_test_of_equal_vectors_is_not_a_p_value():
    left = pd.Series([0.3, 0.4, 0.5])
    assert tables._p_value(left, left + 1e-16) == "identical"
    assert 0 < tables._p_value(left, left + pd.Series([0.01, 0.02, 0.015])) < 0.05
    assert np.isnan(tables._p_value(left[:1], left[:1] + 1))


def test_oracle_equals_scikit_learn_where_one_party_holds_all(incomplete):
    _, X = incomplete
    # The mean over shared columns and scikit-learn's rescaled sum rank alike.
    values = oracle.impute(X, oracle.distances([X], "party-mean"), 5)
    np.testing.assert_allclose(values, KNNImputer(n_neighbors=5).fit_transform(X), atol=1e-12)


def test_oracle_weighs_parties_alike():
    one, two = np.array([[0.0], [2.0]]), np.array([[0.0, 0.0, 0.0], [1.0, 1.0, np.nan]])
    assert oracle.distances([one, two], "party-mean")[0, 1] == (4 + 1) / 2
    assert oracle.distances([one, two], "roots")[0, 1] == 2 + 1


def test_local_imputers_keep_what_is_known(incomplete):
    truth, X = incomplete
    names = []
    for name, values in local.local_imputations(
        pd.DataFrame(X, index=range(1, 61)),
        pd.Series(truth[:, 0], index=range(1, 61)),
        n_neighbors=5, trees=5, lr_iterations=5, rf_iterations=1, seed=0,
    ):  # fmt: skip
        names.append(name)
        known = ~np.isnan(X)
        np.testing.assert_array_equal(values[known], X[known])
        assert np.isfinite(values).all()
    assert len(names) == len(set(names)) == 1 + 3 * 3


def test_motor_data_are_those_of_the_paper(sources):
    data = load_motor(sources)
    assert {name: frame.shape for name, frame in data.parties.items()} == {
        "guest": (800, 4),
        "host": (800, 7),
    }
    assert data.labels.name == "motor_speed"
