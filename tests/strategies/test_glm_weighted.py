"""VerticalGLM with weights, offset, robust and quasi-likelihood errors beside statsmodels."""

import functools

import numpy as np
import pandas as pd
import pytest
import scipy
import statsmodels.api as sm
from glm_runs import estimates, split
from scipy.special import expit
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from statsmodels.discrete._diagnostics_count import test_poisson_dispersion as dispersion_tests
from statsmodels.stats.outliers_influence import variance_inflation_factor

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, DataError
from strategies.glm import VerticalGLM
from strategies.linear.families import family_named
from strategies.linear.masked_means.fixed_point import ByRow, combine
from strategies.linear.masked_means.fourier import expand, to_circle
from strategies.svm import VerticalSVM

SIZES = (2, 2, 2)
SOME = ["gaussian", pytest.param("binomial", marks=pytest.mark.slow), "poisson"]
FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
}


@functools.cache
def claims(family, n=1500):
    """Columns, labels, weights and log exposures as in motor insurance, simulated."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((n, 6))
    x[:, 1] = x[:, 1] > 0.3
    x[:, 3] = x[:, 3] ** 2 / 2.0
    weights, offset = rng.uniform(0.2, 2.0, n), np.log(rng.uniform(0.1, 1.0, n))
    eta = x @ np.array([0.3, -0.4, 0.2, 0.25, 0.0, -0.3]) - 0.2 + offset
    if family == "gaussian":
        y = eta + rng.standard_normal(n) * (0.5 + np.abs(x[:, 0]))
    elif family == "binomial":
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    else:  # more than Poisson
        y = rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, n)).astype(float)
    return x, y, weights, offset


def fit(x, y, given=None, sizes=SIZES, **settings):
    tables, labels = split(x, y, sizes)
    beside = {name: pd.Series(own, labels.index) for name, own in (given or {}).items()}
    strategy = VerticalGLM(**{"penalty": "none"} | settings)
    return simulate(strategy, tables, labels, **beside)


def reference(family, x, y, given, intercept=True, **how):
    x = sm.add_constant(x) if intercept else x
    named = {"var_weights" if key == "weights" else key: v for key, v in given.items()}
    return sm.GLM(y, x, family=FAMILIES[family], **named).fit(tol=1e-14, maxiter=300, **how)


def compare(result, expected, atol=2e-6):
    np.testing.assert_allclose(estimates(result), expected.params, rtol=0, atol=atol)
    np.testing.assert_allclose(result.coefficients["std_error"], expected.bse, rtol=0, atol=atol)


# Whole numbers of 64 bits leave fewer digits where few rows have squared residuals far above most.
TOLERANCE = {"gaussian": 2e-6, "binomial": 5e-6, "poisson": 2e-5}
# Sums of a row's deviance or squared residuals: in 100 fits, each with keys of its own, relative
# errors had a standard deviation of 3e-6 and a maximum of 1.2e-5.
OF_SUMS = 4e-5


@pytest.mark.parametrize(
    ("beside", "errors"),
    [
        pytest.param("weights", "model", marks=pytest.mark.slow),
        pytest.param("offset", "model", marks=pytest.mark.slow),
        ("both", "model"),
        ("both", "robust"),
        ("both", "pearson"),
    ],
)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_weights_offset_and_errors_are_those_of_statsmodels(family, beside, errors):
    x, y, weights, offset = claims(family)
    given = {"weights": weights, "offset": offset}
    given = given if beside == "both" else {beside: given[beside]}
    settings = {"standard_errors": "robust"} if errors == "robust" else {}
    how = {"cov_type": "HC0"} if errors == "robust" else {}
    if errors == "pearson":
        settings, how = {"dispersion": "pearson"}, {"scale": "X2"}
    result = fit(x, y, given, family=family, **settings)
    expected = reference(family, x, y, given, **how)
    compare(result, expected, TOLERANCE[family])
    model = reference(family, x, y, given)
    assert result.metrics["log_likelihood"] == pytest.approx(model.llf, rel=OF_SUMS)
    assert result.metrics["deviance"] == pytest.approx(model.deviance, rel=OF_SUMS)
    assert result.metrics["dispersion"] == pytest.approx(expected.scale, rel=OF_SUMS)


@pytest.mark.parametrize(("family", "n", "p"), [("gaussian", 200, 20), ("binomial", 400, 20)])
def test_robust_errors_of_few_rows_take_what_vectors_there_are(family, n, p):
    """Products for the errors are opened once, and the information is that of a step before."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, p))
    eta = x[:, :4].sum(axis=1) / 2.0
    y = eta + rng.normal(size=n) * (1.0 + x[:, 0] ** 2)
    y = y if family == "gaussian" else (rng.random(n) < expit(eta)).astype(float)
    result = fit(x, y, sizes=(10, 10), family=family, standard_errors="robust")
    expected = reference(family, x, y, {}, cov_type="HC0")
    np.testing.assert_allclose(estimates(result), expected.params, atol=1e-5)
    np.testing.assert_allclose(result.coefficients["std_error"], expected.bse, rtol=1e-3)


@pytest.mark.parametrize("beside", ["weights", "offset"])
def test_weights_and_an_offset_are_vectors_that_the_server_knows(beside):
    """15 flags of 400 rows lie in 2^89 ways: enough for one vector of 64 bits, not for two."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.arange(400) < 15, rng.normal(size=(400, 3))]).astype(float)
    y = (rng.random(400) < 0.5).astype(float)
    given = {beside: rng.uniform(0.5, 2.0, 400)}
    settings = {"sizes": (2, 2), "family": "binomial", "penalty": "ridge"}
    alone, found = fit(x, y, **settings), fit(x, y, given, **settings)
    assert np.isnan(estimates(alone)).tolist() == [False] * 5
    assert np.isnan(estimates(found)).tolist() == [False, True, False, False, False]
    assert any("p0.x0" in note and "too rare" in note for note in found.notes)


@pytest.mark.parametrize("family", SOME)
def test_without_an_intercept(family):
    x, y, weights, offset = claims(family)
    given = {"weights": weights, "offset": offset}
    result = fit(x, y, given, family=family, intercept=False, standard_errors="robust")
    expected = reference(family, x, y, given, intercept=False, cov_type="HC0")
    compare(result, expected, TOLERANCE[family])


@pytest.mark.parametrize("family", SOME)
def test_flags_that_add_up_to_1_are_told_apart_without_an_intercept(family):
    x, y, _, offset = claims(family)
    x = np.column_stack([x, 1.0 - x[:, 1]])
    given = {"offset": offset}
    result = fit(x, y, given, sizes=(3, 2, 2), family=family, intercept=False)
    compare(result, reference(family, x, y, given, intercept=False), TOLERANCE[family])
    assert not result.notes
    twice = np.column_stack([x, np.ones(len(y))])
    settings = {"sizes": (3, 2, 3), "family": family, "intercept": False}
    if family == "gaussian":  # the last of three that span as much as two
        found = fit(twice, y, given, **settings)
        np.testing.assert_allclose(estimates(found)[:-1], estimates(result), atol=1e-9)
        assert np.isnan(estimates(found)[-1])
        assert any("['p2.x7'] follow from others" in note for note in found.notes)


@pytest.mark.parametrize("beside", [{}, {"weights": "weights"}])
@pytest.mark.parametrize("errors", ["model", "robust"])
def test_a_constant_column_stands_for_an_intercept(errors, beside):
    x, y, weights, _ = claims("gaussian")
    x = np.column_stack([x, np.full(len(y), 3.0)])
    given = {"weights": weights} if beside else {}
    settings = {"sizes": (2, 2, 3), "intercept": False, "standard_errors": errors}
    result = fit(x, y, given, **settings)
    how = {"cov_type": "HC0"} if errors == "robust" else {}
    compare(result, reference("gaussian", x, y, given, intercept=False, **how))
    assert np.isfinite(estimates(result)).all()
    assert abs(estimates(result)[-1]) > 0.0


@pytest.mark.parametrize(
    ("errors", "weighted"),
    [("robust", True)]
    + [
        pytest.param(errors, weighted, marks=pytest.mark.slow)
        for errors, weighted in (("robust", False), ("model", True), ("model", False))
    ],
)
def test_families_that_evaluate_columns_less_their_means_leave_a_constant_one_out(errors, weighted):
    x, y, weights, _ = claims("gaussian")
    x = np.column_stack([x, np.full(len(y), 3.0)])
    settings = {"sizes": (2, 2, 3), "intercept": False, "standard_errors": errors}
    y = np.round(np.exp(y / 4))
    given = {"weights": weights} if weighted else {}
    counts = fit(x, y, given, family="poisson", **settings)
    assert np.isnan(estimates(counts)[-1])
    assert any("['p2.x6'] do not vary" in note for note in counts.notes)


@pytest.mark.parametrize(
    ("family", "scale"),
    [
        ("binomial", 1e7),
        ("poisson", 1e-9),
        pytest.param("binomial", 1e-9, marks=pytest.mark.slow),
        pytest.param("poisson", 1e7, marks=pytest.mark.slow),
    ],
)
def test_weights_of_any_size_have_the_same_estimates(family, scale):
    x, y, weights, _ = claims(family)
    given = {"weights": scale * weights}
    for errors, how in (("model", {}), ("robust", {"cov_type": "HC0"})):
        result = fit(x, y, given, family=family, standard_errors=errors)
        expected = reference(family, x, y, {"weights": weights}, **how)
        np.testing.assert_allclose(estimates(result), expected.params, atol=TOLERANCE[family])
        size = 1.0 if errors == "robust" else scale**-0.5
        found = result.coefficients["std_error"]
        np.testing.assert_allclose(found, size * expected.bse, rtol=2e-4)
        assert result.metrics["deviance"] == pytest.approx(scale * expected.deviance, rel=OF_SUMS)
    # A ridge stands beside the weighted losses, and so does Pearson's chi-squared.
    shrunk = fit(x, y, given, family=family, penalty="ridge", l2=20.0 * scale)
    same = fit(x, y, {"weights": weights}, family=family, penalty="ridge", l2=20.0)
    np.testing.assert_allclose(estimates(shrunk), estimates(same), atol=TOLERANCE[family])
    result = fit(x, y, given, family=family, dispersion="pearson")
    expected = reference(family, x, y, {"weights": weights}, scale="X2")
    assert result.metrics["dispersion"] == pytest.approx(scale * expected.scale, rel=OF_SUMS)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_ridge_with_weights_is_that_of_scikit_learn(family):
    x, y, weights, _ = claims(family)
    given, settings = {"weights": 3.0 * weights}, {"family": family, "penalty": "ridge"}
    central = Ridge(alpha=80.0)
    if family == "binomial":
        central = LogisticRegression(C=1.0 / 80.0, tol=1e-10, max_iter=10_000)
    central.fit(x, y, sample_weight=given["weights"])
    result = fit(x, y, given, l2=40.0, standardize=False, **settings)
    np.testing.assert_allclose(estimates(result)[1:], np.ravel(central.coef_), atol=5e-6)
    # The strength that is chosen is the one to state for the same fit.
    chosen = fit(x, y, given, l2="gcv", **settings)
    again = fit(x, y, given, l2=chosen.metrics["lambda"], **settings)
    np.testing.assert_allclose(estimates(chosen), estimates(again), atol=5e-6)


def test_later_predictions_say_that_they_lack_the_offset(tmp_path):
    x, y, weights, offset = claims("poisson")
    tables, _ = split(x[:5], y[:5], SIZES)
    said = "the fit had an offset, which these predictions lack"
    for given in ({"weights": weights}, {"weights": weights, "offset": offset}):
        result = fit(x, y, given, family="poisson")
        assert result.settings["weights"]
        loaded = Result.load(result.save(tmp_path / str(len(given))))
        later = loaded.predict(tables)
        assert any(said in note for note in later.notes) == ("offset" in given)
    exact = result.coefficients["estimate"].to_numpy() @ np.column_stack([np.ones(5), x[:5]]).T
    np.testing.assert_allclose(later.predictions["linear_predictor"], exact, atol=0.05)


def test_robust_errors_of_visits_to_a_doctor():
    """The RAND health insurance experiment, which statsmodels contains."""
    data = sm.datasets.randhie.load_pandas().data.iloc[:5000]
    x = data.drop(columns="mdvis").to_numpy(dtype=float)
    y = np.minimum(data["mdvis"].to_numpy(dtype=float), 9.0)
    assert x.shape == (5000, 9)
    result = fit(x, y, sizes=(3, 3, 3), family="poisson", standard_errors="robust")
    compare(result, reference("poisson", x, y, {}, cov_type="HC0"))


@pytest.mark.parametrize("seed", range(3))
def test_residuals_of_large_counts_keep_their_digits(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1000, 4))
    y = rng.poisson(100.0 * np.exp(x @ np.array([0.6, -0.4, 0.4, 0.0]))).astype(float)
    result = fit(x, y, sizes=(2, 2), family="poisson", dispersion="pearson")
    expected = reference("poisson", x, y, {})
    assert result.metrics["pearson_chi2"] == pytest.approx(expected.pearson_chi2, rel=1e-3)
    z = dispersion_tests(expected).statistic[1]
    assert result.metrics["overdispersion_z"] == pytest.approx(z, abs=0.02)


def test_the_summary_has_what_statsmodels_has():
    x, y, _, offset = claims("poisson")
    result = fit(x, y, {"offset": offset}, family="poisson", dispersion="pearson")
    expected = reference("poisson", x, y, {"offset": offset})
    found = result.model.statistics
    assert found["aic"] == pytest.approx(expected.aic, rel=5e-6)
    assert found["bic"] == pytest.approx(expected.bic_llf, rel=5e-6)
    assert found["pearson_chi2"] == pytest.approx(expected.pearson_chi2, rel=OF_SUMS)
    null = sm.GLM(y, np.ones((len(y), 1)), family=FAMILIES["poisson"], offset=offset).fit()
    assert found["log_likelihood_null"] == pytest.approx(null.llf, rel=5e-6)
    assert found["lr_statistic"] == pytest.approx(2 * (expected.llf - null.llf), rel=1e-4)
    dean = dispersion_tests(expected)
    assert dean.method[1] == "Dean B"
    assert found["overdispersion_z"] == pytest.approx(dean.statistic[1], rel=1e-3)
    assert found["overdispersion_p_value"] == pytest.approx(dean.pvalue[1], abs=1e-6)
    factors = [variance_inflation_factor(sm.add_constant(x), j) for j in range(1, 7)]
    np.testing.assert_allclose(result.model.table["vif"].to_numpy()[1:], factors, rtol=1e-6)
    text = result.model.summary(stars=True)
    assert "Overdispersion z:" in text
    first = next(line for line in text.splitlines() if line.startswith("p0:x0"))
    shown = result.coefficients.loc[("p0", "x0")]
    assert f"{shown['estimate']:.4f}" in first
    assert first.endswith("***")
    assert "***" not in result.model.summary()


def test_a_lasso_with_weights_is_that_of_scikit_learn():
    x, y, weights, offset = claims("gaussian")
    strength = 0.08
    result = fit(x, y, {"weights": weights, "offset": offset}, penalty="lasso", lambdas=strength)
    mean = np.average(x, axis=0, weights=weights)
    unit = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    exact = Lasso(strength, tol=1e-12, max_iter=100_000)
    exact.fit((x - mean) / unit, y - offset, sample_weight=weights)
    np.testing.assert_allclose(estimates(result)[1:] * unit, exact.coef_, atol=1e-6)
    assert 0 < np.count_nonzero(exact.coef_) < 6


@pytest.mark.parametrize("family", [pytest.param("binomial", marks=pytest.mark.slow), "poisson"])
def test_whole_weights_are_repeated_rows(family):
    x, y, _, offset = claims(family)
    times = np.random.default_rng(0).integers(1, 4, len(y))
    given = {"weights": times.astype(float), "offset": offset}
    lambdas = (0.2, 0.1, 0.05, 0.02)
    weighted = fit(x, y, given, family=family, penalty="lasso", lambdas=lambdas)
    again = np.repeat(np.arange(len(y)), times)
    # A mean over rows: the loss of repeated rows is divided by more.
    strength = weighted.metrics["lambda"] * len(y) / len(again)
    assert weighted.metrics["lambda"] in lambdas
    how = {"family": family, "penalty": "lasso", "lambdas": strength}
    pooled = fit(x[again], y[again], {"offset": offset[again]}, **how)
    # The penalty's units are standard deviations without weights, which differ a little.
    np.testing.assert_allclose(estimates(weighted), estimates(pooled), atol=0.01)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_predictions_have_the_offset_of_their_samples(family):
    x, y, _, offset = claims(family)
    y = y.copy()
    y[-20:] = np.nan
    result = fit(x, y, {"offset": offset}, family=family)
    eta = estimates(result)[0] + x[-20:] @ estimates(result)[1:] + offset[-20:]
    expected = np.exp(eta) if family == "poisson" else eta
    np.testing.assert_allclose(result.predictions["prediction"], expected, atol=0.02)


def test_prediction_intervals_are_of_the_weights_of_their_samples():
    x, y, weights, _ = claims("gaussian")
    y, given = y.copy(), 50.0 * weights
    y[-20:] = np.nan
    given[-10:] = np.nan  # then of the mean weight
    result = fit(x, y, {"weights": given})
    told = result.predictions
    half = (told["upper"] - told["lower"]) / 2.0 / scipy.stats.norm.ppf(0.975)
    own = np.where(np.isnan(given[-20:]), given[:-20].mean(), given[-20:])
    np.testing.assert_allclose(
        half**2 - told["std_error"] ** 2, result.metrics["dispersion"] / own, rtol=1e-6
    )


def test_what_cannot_be_used_is_refused():
    x, y, weights, _ = claims("binomial")
    wrong = weights.copy()
    wrong[0] = 0.0
    with pytest.raises(DataError, match="weights: 1 are not above 0; leave these samples out"):
        fit(x, y, {"weights": wrong}, family="binomial")
    wrong[0] = np.nan
    with pytest.raises(DataError, match="weights: 1 samples with a label have no finite number"):
        fit(x, y, {"weights": wrong}, family="binomial")
    with pytest.raises(ConfigError, match="these need rows='complete' and no epsilon"):
        fit(x, y, {"weights": weights}, family="binomial", rows="all")
    with pytest.raises(ConfigError, match="need rows='complete', no ridge and no epsilon"):
        VerticalGLM(penalty="ridge", standard_errors="robust")
    tables, labels = split(x, y, SIZES)
    one = {"weights": pd.Series(weights, labels.index)}
    with pytest.raises(ConfigError, match=r"strategy 'svm': it takes no weights"):
        simulate(VerticalSVM(), tables, labels, **one)
    with pytest.raises(DataError, match=r"weights must be a .* got DataFrame .* \['0'\]: take"):
        simulate(VerticalGLM(), tables, labels, weights=one["weights"].to_frame())
    with pytest.raises(DataError, match=r"take one of them; of times and events, what `strategie"):
        simulate(VerticalGLM(), tables, labels.to_frame())
    alone = {"p0": tables["p0"]}
    with pytest.raises(ConfigError, match="a fit with weights needs columns under a key stream"):
        simulate(VerticalGLM(), alone, labels, **one)
    with pytest.raises(ConfigError, match="weights: go beside labels of the server"):
        simulate(VerticalGLM(), tables, None, **one)


def test_a_sum_of_functions_by_row_comes_from_features_of_the_server():
    rng = np.random.default_rng(0)
    n, eta = 500, rng.uniform(-3.0, 3.0, 500)
    mean = family_named("binomial").mean
    functions = [np.ones_like, mean, lambda t: mean(t) ** 2]
    factors = rng.uniform(-4.0, 9.0, (3, n))
    by_row = ByRow(expand(functions, 3.0, 1e-8, constant=False), factors)
    gamma = rng.integers(0, 2**64, n, dtype=np.uint64)
    common, bits = by_row.common, 26
    features = by_row.features(to_circle(eta) + gamma, bits)
    assert np.log2(common.cosine).tolist() == np.log2(common.cosine).round().tolist()
    values = combine(
        features, gamma, common.times, common.sine[None], common.cosine[None], [bits]
    )[0]  # fmt: skip
    found = values.view(np.int64) / 2.0 ** (2 * bits)
    expected = sum(f * g(eta) for f, g in zip(factors, functions, strict=True))
    np.testing.assert_allclose(found, expected, atol=2e-5)
