"""VerticalGLM with labels 0 and 1 and with counts, by masked means: statsmodels, and few rounds."""

import numpy as np
import pytest
import statsmodels.api as sm
from glm_runs import estimates, pooled, run, split
from oracles.glm import lla, weighted_lasso
from vfem_runs import recorded, rounds_of

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError
from strategies.glm import VerticalGLM
from strategies.linear.families import family_named

SM = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
FREE = 15
N = {"binomial": 1500, "poisson": 3000}


def data(family, seed=4):
    X, y, _ = pooled(family, n=N[family] + FREE, seed=seed, strength=0.7)
    full = y.copy()
    y[-FREE:] = np.nan
    return X, y, full


def statsmodels_of(family, X, y):
    return sm.GLM(y, sm.add_constant(X), SM[family]()).fit(tol=1e-12)


@pytest.fixture(scope="module")
def fits():
    """Fits without a penalty, by family."""
    made = {}

    def get(family):
        if family not in made:
            X, y, _ = data(family)
            made[family] = run(X, y, "masked", family=family, penalty=None)
        return made[family]

    return get


@pytest.mark.parametrize(("family", "within"), [("binomial", 1e-6), ("poisson", 1e-5)])
def test_without_a_penalty_it_is_statsmodels(fits, family, within):
    X, y, _ = data(family)
    result, other = fits(family), statsmodels_of(family, X[:-FREE], y[:-FREE])
    np.testing.assert_allclose(estimates(result), other.params, atol=within)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=0.05)
    assert result.metrics["deviance_explained"] == pytest.approx(
        1 - other.deviance / other.null_deviance, abs=1e-3
    )


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_rounds(fits, family):
    result = fits(family)
    found = rounds_of(result)
    evaluations = int(result.metrics["iterations"])
    assert found["place_fits"] == evaluations
    # Means once an evaluation; information and log likelihood once more, of the last.
    assert evaluations < found["open_means"] <= evaluations + 2
    assert result.ledger.rounds == 8 + found["place_fits"] + found["open_means"] <= 30
    assert result.metrics["converged"] == 1


@pytest.mark.parametrize(("family", "strength"), [("binomial", 0.05), ("poisson", 0.2)])
@pytest.mark.parametrize("penalty", ["lasso", "scad"])
def test_the_chosen_fit_is_that_of_the_penalised_likelihood(family, strength, penalty):
    X, y, _ = data(family)
    X, y = X[:-FREE], y[:-FREE]
    result = run(X, y, family=family, penalty=penalty, lambdas=strength)
    unit = X.std(axis=0)
    exact = lla(X / unit, y, family, penalty, strength, 3.7, 30 * (penalty == "scad"))
    found = estimates(result)
    np.testing.assert_allclose(found[1:] * unit, exact[1:], atol=2e-4)
    assert 0 < np.count_nonzero(exact[1:]) < 8
    eta = found[0] + X @ found[1:]
    value = family_named(family).log_likelihood(y, eta)
    assert result.metrics["log_likelihood"] == pytest.approx(value, abs=0.05)
    # Means and information once more wherever the likelihood is expanded.
    rounds = rounds_of(result)
    assert rounds["place_fits"] == result.metrics["iterations"]
    more = rounds["open_means"] - rounds["place_fits"]
    assert 2 <= more <= 8
    assert result.ledger.rounds == 8 + rounds["place_fits"] + rounds["open_means"] <= 40


def test_the_lasso_that_bic_chooses_is_as_good_as_that_of_the_exact_path():
    """Few rows: the quadratic at the maximum is far off, and its largest lambda far too small."""
    n, p = 300, 40
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n, p)) @ (np.eye(p) + 0.2 * rng.standard_normal((p, p)))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    beta = np.zeros(p)
    beta[rng.permutation(p)[:4]] = rng.choice([-1.0, 1.0], 4)
    y = (rng.random(n) < 1 / (1 + np.exp(0.3 - X @ beta))).astype(float)
    given = {"sizes": (20, 20), "family": "binomial", "penalty": "lasso"}
    largest = np.abs(X.T @ (y - y.mean())).max() / n
    assert run(X, y, **given).model.path.index[0] == pytest.approx(largest, rel=1e-6)
    lambdas = largest * np.geomspace(1.0, 0.01, 20)
    result = run(X, y, **given, lambdas=lambdas)
    fits, bic = [], []
    start = np.zeros(p + 1)
    for strength in lambdas[:12]:
        start = weighted_lasso(X, y, "binomial", np.full(p, strength), start, tol=1e-8)
        eta = start[0] + X @ start[1:]
        lost = -2.0 * family_named("binomial").log_likelihood(y, eta)
        bic.append(lost + np.log(n) * np.count_nonzero(start[1:]))
        fits.append(start)
    exact = fits[int(np.argmin(bic))][1:]
    assert bic[-1] > min(bic)
    error, least = (np.sqrt(np.mean((b - beta) ** 2)) for b in (estimates(result)[1:], exact))
    assert error < 1.02 * least


@pytest.fixture(scope="module")
def lone_level():
    """32 rows of a flag whose labels are all 0."""
    X, y, _ = data("binomial")
    X, y = X[:-FREE].copy(), y[:-FREE].copy()
    X[:, 3] = 0.0
    X[np.random.default_rng(0).permutation(len(y))[:32], 3] = 1.0
    y[X[:, 3] == 1] = 0.0
    return X, y


@pytest.mark.parametrize("penalty", ["scad", None])
def test_a_level_with_labels_of_one_kind_is_named_and_the_rest_is_statsmodels(lone_level, penalty):
    X, y = lone_level
    result = run(X, y, "masked", family="binomial", penalty=penalty)
    assert any("the label is 0 in all 32 samples with the higher value of p1:x3" in note
               for note in result.notes)  # fmt: skip
    assert result.model.ridged == ["p1:x3"]
    table = result.coefficients
    assert -10.0 < table.loc[("p1", "x3"), "estimate"] < -3.0
    assert table.loc[("p1", "x3"), ["std_error", "ci_low", "ci_high"]].isna().all()
    chosen = np.setdiff1d(np.flatnonzero(estimates(result)[1:]), [3])
    assert len(chosen) == (4 if penalty else 7)
    rest = X[:, 3] == 0
    other = statsmodels_of("binomial", X[rest][:, chosen], y[rest])
    own = np.r_[0, 1 + chosen]
    assert (np.abs(estimates(result)[own] - other.params) < 0.05 * other.bse).all()
    np.testing.assert_allclose(table["std_error"].iloc[own], other.bse, rtol=0.01)


def test_scad_by_bic_selects_as_on_the_rows():
    X, y, _ = data("binomial", seed=5)
    X, y = X[:-FREE], y[:-FREE]
    result = run(X, y, family="binomial")
    table = result.coefficients
    unit = X.std(axis=0)
    exact = lla(X / unit, y, "binomial", "scad", result.metrics["lambda"], 3.7, 30)
    chosen = np.flatnonzero(exact[1:])
    assert set(np.flatnonzero(estimates(result)[1:])) == set(chosen) == {0, 2, 4, 6}
    # Both are estimates of maximum likelihood of these columns, up to a fraction of their errors.
    other = statsmodels_of("binomial", X[:, chosen], y)
    kept = table["std_error"].notna().to_numpy()
    off = np.abs(estimates(result)[kept] - other.params)
    assert (off < 0.5 * other.bse).all()
    np.testing.assert_allclose(table["std_error"][kept], other.bse, rtol=0.05)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=1.0)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_unlabelled_samples_are_predicted(fits, family):
    X, y, _ = data(family)
    other = statsmodels_of(family, X[:-FREE], y[:-FREE])
    found = fits(family).predictions
    eta = sm.add_constant(X)[-FREE:] @ other.params
    off = np.abs(found["linear_predictor"].to_numpy() - eta)
    assert off.max() < 0.05  # three parties, each to 1 % of the working response's deviation
    np.testing.assert_allclose(found["prediction"], other.predict(sm.add_constant(X)[-FREE:]), 0.06)


def test_two_parties_without_an_intercept_in_given_units():
    X, y, _ = data("binomial", seed=6)
    X, y = X[:-FREE], y[:-FREE]
    settings = {"family": "binomial", "penalty": None, "intercept": False, "standardize": False}
    result = run(X, y, sizes=(5, 3), **settings)
    other = sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-12)
    np.testing.assert_allclose(estimates(result), other.params, atol=1e-5)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)


def test_no_message_to_a_party_holds_a_label_or_a_fit():
    from test_vfem_privacy import numbers, words

    X, y, _ = pooled("binomial", n=300, seed=7, strength=0.7)
    tables, labels = split(X, y)
    strategy = VerticalGLM("binomial", penalty=None)
    run_ = recorded(tables, labels, strategy=strategy, alignment="plain", seed=1)
    table = run_.result.coefficients["estimate"]
    parts = [frame.to_numpy() @ table[name].to_numpy() for name, frame in tables.items()]
    eta = sum(parts) + table.iloc[0]
    mu = 1 / (1 + np.exp(-eta))
    secret = numbers(eta, eta - table.iloc[0], mu, mu * (1 - mu), y - mu, y - y.mean(), *parts)
    assert len(secret) > 300
    assert not any(words(message.content) & secret for message in run_.messages)


def test_separated_labels_are_refused_by_name_and_the_penalty_that_is_proposed_fits_them():
    X, y, _ = pooled("binomial", n=400, seed=3)
    y[:] = X[:, 1] > np.median(X[:, 1])
    with pytest.raises(DataError, match=r"perfect separation.*p0:x1.*or set a penalty"):
        run(X, y, family="binomial", penalty=None)
    result = run(X, y, family="binomial")
    assert result.metrics["converged"] == 1
    assert np.flatnonzero(estimates(result)[1:]).tolist() == [1]
    assert np.isfinite(estimates(result)).all()
    assert result.coefficients["std_error"][1:].isna().all()
    assert any("perfect separation), mostly p0:x1" in note for note in result.notes)
    assert result.ledger.rounds < 80


def test_labels_of_another_family_are_refused_before_the_first_round():
    X, y, _ = pooled("binomial", n=200)
    with pytest.raises(DataError, match="needs labels 0 and 1, got 2 different"):
        run(X, y + 1, family="binomial")
    with pytest.raises(DataError, match=r"needs counts 0, 1, 2, ... as labels"):
        run(X, y - 0.5, family="poisson")
    with pytest.raises(ConfigError, match="rows='all' models columns and label as jointly normal"):
        VerticalGLM("binomial", rows="all")


def test_advice_on_incomplete_rows_is_what_the_family_can_take():
    X, y, _ = pooled("binomial", n=300, seed=7, strength=0.7)
    tables, labels = split(X, y)
    tables["p1"] = tables["p1"][50:]
    result = simulate(VerticalGLM("binomial"), tables, labels, progress=False)
    (note,) = (n for n in result.notes if "are left out of the fit" in n)
    assert "rows='all'" not in note
    assert note.endswith("VerticalGBDT uses them, too, or FKNN imputes them first")
    tables["p1"] = tables["p1"][180:]
    with pytest.raises(DataError, match=r"230 more samples lack some party: rows='all' uses them"):
        simulate(VerticalGLM(), tables, labels, progress=False)
    with pytest.raises(DataError, match=r"VerticalGBDT uses.*'glm-admm' fits few rows"):
        simulate(VerticalGLM("binomial"), tables, labels, progress=False)


def test_one_party_alone_and_ciphertexts_are_refused_with_what_to_use():
    X, y, _ = pooled("binomial", n=200)
    with pytest.raises(ConfigError, match=r"family 'binomial' needs.*fit there by statsmodels or"):
        run(X, y, sizes=(8,), family="binomial")
    with pytest.raises(ConfigError, match=r"not ciphertexts.*or strategy 'glm-admm'"):
        run(X, y, "ckks", family="binomial")
