"""VerticalGLM: exact paths from moments, means by masked sums, statsmodels; what is refused."""

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy
import statsmodels.api as sm
from glm_runs import estimates, pooled, run, split
from oracles.glm import lla, weighted_lasso
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import Ridge, RidgeCV, lasso_path
from vfem_runs import recorded, rounds_of

from flwr_vertical import make_strategy, simulate
from flwr_vertical.errors import ConfigError, DataError
from strategies.glm import VerticalGLM
from strategies.linear.families import family_named

N, FREE = 400, 20
LAMBDAS = tuple(np.geomspace(1.5, 0.005, 25))
ROUNDS = dict.fromkeys(
    ("prepare_moments", "seal_group_seed", "send_masked", "open_products", "finish_moments"), 1
)


def made(seed=0):
    X, y, beta = pooled("gaussian", n=N + FREE, seed=seed)
    y[N:] = np.nan
    return X, y, beta


@pytest.fixture(scope="module")
def lasso_run():
    """A path of three parties with all messages; the last rows have no label."""
    X, y, _ = made()
    tables, labels = split(X, y)
    strategy = VerticalGLM(penalty="lasso", lambdas=LAMBDAS)
    return recorded(tables, labels, strategy=strategy, alignment="plain", seed=1)


@pytest.mark.parametrize("standardize", [True, False])
def test_the_path_is_that_of_scikit_learn(lasso_run, standardize):
    X, y, _ = made()
    X, y = X[:N], y[:N]
    unit = X.std(axis=0) if standardize else np.ones(X.shape[1])
    if standardize:
        model = lasso_run.result.model
    else:
        model = run(X, y, "masked", penalty="lasso", lambdas=LAMBDAS, standardize=False).model
    Z = (X - X.mean(axis=0)) / unit
    _, expected, _ = lasso_path(Z, y - y.mean(), alphas=LAMBDAS, tol=1e-13, max_iter=100_000)
    found = model.path_coefficients.to_numpy() * unit[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    levels = y.mean() - (X.mean(axis=0) / unit) @ expected
    np.testing.assert_allclose(model.path["intercept"], levels, atol=1e-6)
    assert (np.count_nonzero(expected, axis=0) == model.path["selected"]).all()


def test_five_rounds_whatever_the_path(lasso_run):
    found = rounds_of(lasso_run.result)
    assert {step: found[step] for step in ROUNDS} == ROUNDS
    assert set(found) - set(ROUNDS) == {"hello", "share_ids"}
    X, y, _ = made()
    one = run(X, y, "masked", lambdas=0.1)
    assert rounds_of(one) == found
    assert one.ledger.rounds == 7


@pytest.mark.parametrize("intercept", [True, False])
def test_without_a_penalty_it_is_least_squares(intercept):
    X, y, _ = pooled("gaussian", n=N, seed=4)
    result = run(X, y, "masked", penalty=None, intercept=intercept)
    other = sm.OLS(y, sm.add_constant(X) if intercept else X).fit()
    np.testing.assert_allclose(estimates(result), other.params, rtol=1e-7)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-7)
    assert result.metrics["deviance"] == pytest.approx(other.ssr, rel=1e-8)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=1e-5)
    assert result.metrics["deviance_explained"] == pytest.approx(other.rsquared, abs=1e-8)


def test_labels_far_from_0_are_fitted_without_an_intercept():
    X, y, _ = pooled("gaussian", n=N, seed=4)
    X[:, 0] += 10.0
    y = 2e5 * y.std() + y  # varies by 1 / 4e10 of its mean square
    result = run(X, y, "masked", penalty=None, intercept=False)
    np.testing.assert_allclose(estimates(result), sm.OLS(y, X).fit().params, rtol=1e-6)


def test_scad_by_bic_finds_the_support_with_the_errors_of_its_columns():
    X, y, beta = pooled("gaussian", n=N, seed=8)
    result = run(X, y, "masked")
    chosen = np.flatnonzero(estimates(result)[1:])
    assert set(chosen) == set(np.flatnonzero(beta))
    other = sm.OLS(y, sm.add_constant(X[:, chosen])).fit()
    errors = result.coefficients["std_error"]
    np.testing.assert_allclose(errors.dropna(), other.bse, rtol=1e-6)
    assert errors.isna().sum() == X.shape[1] - len(chosen)
    bic = result.model.path["bic"]
    assert result.metrics["lambda"] == bic.idxmin()
    assert bic.iloc[0] > bic.min()
    assert result.metrics["kkt_violation"] < 1e-8


def test_motor_is_least_squares(sources_with):
    """FATE's motor data in three parties; ADMM takes 423 rounds to come within 1e-5."""
    files = [f"motor/motor_hetero_{name}.csv" for name in ("guest", "host_1", "host_2")]
    sources = sources_with(*files)
    guest, host_1, host_2 = (pd.read_csv(sources.path(file), index_col="idx") for file in files)
    labels = guest.pop("motor_speed")
    tables = {"guest": guest, "host_1": host_1, "host_2": host_2}
    result = simulate(VerticalGLM(penalty=None), tables, labels)
    other = sm.OLS(labels, sm.add_constant(pd.concat(tables.values(), axis=1))).fit()
    assert np.abs(estimates(result) - other.params).max() < 1e-3 * other.bse.min()
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-6)
    assert sum(rounds_of(result)[step] for step in ROUNDS) == 5


# -- rows with missing blocks --------------------------------------------------------------


@pytest.fixture(scope="module")
def blocks():
    X, y, beta = pooled("gaussian", n=1500, seed=3)
    full = y.copy()
    y[-30:] = np.nan
    tables, labels = split(X, y)
    tables["p0"], tables["p1"] = tables["p0"].iloc[450:], tables["p1"].drop(labels.index[450:800])
    tables["p2"] = tables["p2"].iloc[:-10]
    return X, full, beta, tables, labels


@pytest.fixture(scope="module")
def whole_and_all(blocks):
    *_, tables, labels = blocks
    return {
        rows: simulate(VerticalGLM(rows=rows, penalty=None), tables, labels)
        for rows in ("complete", "all")
    }


def test_all_rows_tell_more_than_complete_ones(blocks, whole_and_all):
    X, y, *_ = blocks
    whole = sm.OLS(y, sm.add_constant(X)).fit()
    complete, found = whole_and_all["complete"], whole_and_all["all"]
    kept = slice(800, 1470)
    other = sm.OLS(y[kept], sm.add_constant(X[kept])).fit()
    np.testing.assert_allclose(estimates(complete), other.params, rtol=1e-6)
    assert found.metrics["n_samples"] == 1470
    assert complete.metrics["n_samples"] == 670
    spread = found.coefficients["std_error"]
    assert (spread < complete.coefficients["std_error"]).all()
    assert (spread > whole.bse).all()
    assert np.abs((estimates(found) - whole.params) / spread).max() < 4
    assert rounds_of(found) == rounds_of(complete)
    assert any("800 of 1,470 labelled samples are left out" in n for n in complete.notes)


@pytest.mark.parametrize("rows", ["complete", "all"])
def test_unlabelled_samples_are_predicted_with_what_there_is(blocks, whole_and_all, rows):
    X, y, *_ = blocks
    result = whole_and_all[rows]
    found = result.predictions
    assert list(found.index) == [f"s{i:04}" for i in range(1470, 1500)]
    fits = np.column_stack([np.ones(30), X[-30:]]) @ estimates(result)
    unit = 0.01 * np.sqrt(result.metrics["dispersion"])
    # Twenty rows are whole: their fit but for each party's rounding.
    assert np.abs(found["prediction"].to_numpy()[:20] - fits[:20]).max() < 3 * 8 * unit
    # Ten lack the last party: what the others tell of it, by a regression on all complete rows.
    kept = slice(800, 1470)
    short = sm.OLS(y[kept], sm.add_constant(X[kept, :5])).fit()
    expected = np.column_stack([np.ones(10), X[-10:, :5]]) @ short.params
    assert np.abs(found["prediction"].to_numpy()[20:] - expected).max() < 0.3
    assert (found["std_error"].to_numpy()[20:] > 5 * found["std_error"].to_numpy()[:10]).all()
    inside = (y[-30:] >= found["lower"]) & (y[-30:] <= found["upper"])
    assert inside.mean() > 0.8
    assert 0 < result.metrics["bits_per_row"] <= 36


# -- columns and bad input -------------------------------------------------------------------


def test_unpenalised_columns_stay():
    X, y, _ = pooled("gaussian", n=N, seed=9)
    result = run(X, y, penalty="lasso", lambdas=100.0, unpenalized="p1:x3, p2:x5")
    other = sm.OLS(y, sm.add_constant(X[:, [3, 5]])).fit()
    found = result.coefficients["estimate"]
    np.testing.assert_allclose(found[found != 0], other.params, rtol=1e-7)


@pytest.mark.parametrize(
    ("family", "shared", "words"),
    [
        ("binomial", 1.0, "the labels of all 240 samples of the fit are the same"),
        ("gaussian", 2.5, "the labels of all 240 samples of the fit are the same"),
        ("binomial", np.nan, r"0 labelled samples that all parties hold.* align more samples\. 60"),
    ],
)
def test_labels_of_the_rows_that_all_hold_have_to_differ(family, shared, words):
    rng = np.random.default_rng(3)
    x = pd.DataFrame(rng.normal(size=(300, 2)), columns=["a", "b"])
    labels = pd.Series(np.arange(300) % 2.0)
    labels[30:270] = shared
    tables = {"p0": x[["a"]][:270], "p1": x[["b"]][30:]}
    with pytest.raises(DataError, match=words):
        simulate(VerticalGLM(family=family), tables, labels, min_rows=5)


def test_constant_columns_and_copies():
    X, y, _ = pooled("gaussian", n=N)
    X[:, 4], X[:, 5] = 3.0, X[:, 0]
    result = run(X, y, penalty=None)
    assert any("columns ['p1.x4'] do not vary" in note for note in result.notes)
    assert any("columns ['p2.x5'] follow from others" in note for note in result.notes)
    table = result.coefficients.drop([("p1", "x4"), ("p2", "x5")])
    assert result.coefficients["estimate"].drop(table.index).isna().all()
    other = sm.OLS(y, sm.add_constant(np.delete(X, [4, 5], axis=1))).fit()
    np.testing.assert_allclose(table["estimate"], other.params, rtol=1e-7)
    np.testing.assert_allclose(table["std_error"], other.bse, rtol=1e-7)
    # A penalty chooses one of two that are the same.
    chosen = run(X, y, penalty="lasso").coefficients["estimate"]
    assert (chosen[("p0", "x0")] != 0) or (chosen[("p2", "x5")] != 0)
    assert np.isnan(chosen[("p1", "x4")])


def test_one_party_alone_opens_the_same_moments():
    pytest.importorskip("tenseal")
    X, y, _ = pooled("gaussian", n=150)
    settings = {"penalty": "lasso", "lambdas": [0.3, 0.05]}
    masked, alone = run(X, y, "masked", **settings), run(X, y, sizes=(8,), **settings)
    paths = (result.model.path_coefficients.to_numpy() for result in (alone, masked))
    np.testing.assert_allclose(*paths, atol=1e-5)
    errors = (r.coefficients["std_error"].dropna().to_numpy() for r in (alone, masked))
    np.testing.assert_allclose(*errors, rtol=1e-5)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_column_with_a_rare_value_is_left_out_and_named(family):
    X, y, _ = pooled(family, n=600, seed=6, strength=0.7)
    X[:, 4] = 0.0
    X[:4, 4] = 1.0
    result = run(X, y, family=family, penalty=None)
    said = r"columns \['p1.x4'\] \(1 of \d+\) take no part and have no coefficient"
    assert any(re.match(said, note) for note in result.notes)
    assert np.isnan(result.coefficients.loc[("p1", "x4"), "estimate"])
    kind = sm.families.Gaussian() if family == "gaussian" else sm.families.Binomial()
    other = sm.GLM(y, sm.add_constant(np.delete(X, 4, axis=1)), kind).fit(tol=1e-12)
    kept = result.coefficients.drop(("p1", "x4"))
    np.testing.assert_allclose(kept["estimate"], other.params, atol=1e-6)
    np.testing.assert_allclose(kept["std_error"], other.bse, rtol=1e-4)


@pytest.mark.parametrize("method", ["glm", "vfem"])
def test_a_column_of_rare_levels_alone_is_named_when_it_is_left_out(method):
    X, y, _ = pooled("gaussian", n=562, seed=7)
    tables, labels = split(X, y)
    tables["p1"]["street"] = [f"street {i % 281}" for i in range(len(X))]
    result = simulate(make_strategy(method, {}), tables, labels=labels, alignment="plain")
    said = r"party 'p1': columns \['street'\] are left out and have no coefficient"
    assert any(re.match(said, note) for note in result.notes)
    assert not any("street" in str(name) for name in result.coefficients.index)


def test_more_columns_than_rows_are_fitted_as_the_refusal_says():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 300))
    y = X[:, [3, 50, 160, 250]] @ np.array([1.0, -1.0, 0.8, -0.8]) + rng.standard_normal(200)
    tables, labels = split(X, y, (150, 150))
    lasso = VerticalGLM(penalty="lasso")
    with pytest.raises(DataError, match=r"fewer than 903 .*'min-rows' .* to 200 .*'glm-admm'"):
        simulate(lasso, tables, labels)
    result = simulate(lasso, tables, labels, min_rows=200)
    assert set(np.flatnonzero(estimates(result)[1:])) >= {3, 50, 160, 250}
    assert result.metrics["n_selected"] < 20


SM = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
N_FREE = 15
SIZES = {"binomial": 1500, "poisson": 3000}


def with_free(family, seed=4):
    X, y, _ = pooled(family, n=SIZES[family] + N_FREE, seed=seed, strength=0.7)
    full = y.copy()
    y[-N_FREE:] = np.nan
    return X, y, full


def statsmodels_of(family, X, y):
    return sm.GLM(y, sm.add_constant(X), SM[family]()).fit(tol=1e-12)


@pytest.mark.parametrize(("family", "within"), [("binomial", 1e-6), ("poisson", 1e-5)])
def test_without_a_penalty_it_is_statsmodels(family, within):
    X, y, _ = with_free(family)
    result = run(X, y, "masked", family=family, penalty=None)
    other = statsmodels_of(family, X[:-N_FREE], y[:-N_FREE])
    np.testing.assert_allclose(estimates(result), other.params, atol=within)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=0.05)
    assert result.metrics["deviance_explained"] == pytest.approx(
        1 - other.deviance / other.null_deviance, abs=1e-3
    )
    rounds, evaluations = rounds_of(result), int(result.metrics["iterations"])
    assert rounds["place_fits"] == evaluations
    # Means once an evaluation; information and log likelihood once more, of the last.
    assert evaluations < rounds["open_means"] <= evaluations + 2
    assert result.ledger.rounds == 8 + rounds["place_fits"] + rounds["open_means"] <= 30
    assert result.metrics["converged"] == 1


@pytest.mark.parametrize(
    ("family", "strength"),
    [("binomial", 0.05), pytest.param("poisson", 0.2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("penalty", ["lasso", pytest.param("scad", marks=pytest.mark.slow)])
def test_the_chosen_fit_is_that_of_the_penalised_likelihood(family, strength, penalty):
    X, y, _ = with_free(family)
    X, y = X[:-N_FREE], y[:-N_FREE]
    result = run(X, y, family=family, penalty=penalty, lambdas=strength)
    unit = X.std(axis=0)
    exact = lla(X / unit, y, family, penalty, strength, 3.7, 30 * (penalty == "scad"))
    found = estimates(result)
    np.testing.assert_allclose(found[1:] * unit, exact[1:], atol=2e-4)
    assert 0 < np.count_nonzero(exact[1:]) < 8
    eta = found[0] + X @ found[1:]
    value = family_named(family).log_likelihood(y, eta)
    assert result.metrics["log_likelihood"] == pytest.approx(value, abs=0.05)
    # Means wherever the likelihood is expanded, and the information once.
    rounds = rounds_of(result)
    assert rounds["place_fits"] == result.metrics["iterations"]
    assert 1 <= rounds["open_means"] - rounds["place_fits"] <= 2
    assert result.ledger.rounds == 8 + rounds["place_fits"] + rounds["open_means"] <= 30


@pytest.mark.slow
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
    # Too few vectors for an information of 40 columns: it is predicted.
    few = run(X, y, mode="masked", policy={"vectors": 25}, **given)
    assert few.model.path.index[0] == pytest.approx(largest, rel=1e-6)
    assert any("standard errors go by what normal columns would" in t for t in few.notes)
    given |= {"mode": "masked", "policy": {"vectors": 150}}
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
    error, predicted, least = (
        np.sqrt(np.mean((b - beta) ** 2))
        for b in (estimates(result)[1:], estimates(few)[1:], exact)
    )
    assert error < 1.02 * least
    assert predicted < 1.02 * least


@pytest.mark.parametrize("vectors", [15, 400])
def test_bic_chooses_the_lambda_of_the_exact_path(vectors):
    """About the fit of the best of these lambdas, the quadratic prefers one that is far worse."""
    X, y, _ = pooled("binomial", n=150, sizes=(4, 4, 4), seed=1, strength=0.7)
    policy = {"vectors": vectors, "min-rows": 50}
    given = {"family": "binomial", "penalty": "lasso"}
    result = run(X, y, "masked", (4, 4, 4), policy, **given)
    z, start, bic = (X - X.mean(axis=0)) / X.std(axis=0), np.zeros(13), []
    for strength in result.model.path.index:
        start = weighted_lasso(z, y, "binomial", np.full(12, strength), start, tol=1e-8)
        eta = start[0] + z @ start[1:]
        lost = -2.0 * family_named("binomial").log_likelihood(y, eta)
        bic.append(lost + np.log(150) * np.count_nonzero(start[1:]))
    best = result.model.path.index[int(np.argmin(bic))]
    assert result.metrics["lambda"] == pytest.approx(best, rel=1e-9)


@pytest.fixture(scope="module")
def lone_level():
    """32 rows of a flag whose labels are all 0."""
    X, y, _ = with_free("binomial")
    X, y = X[:-N_FREE].copy(), y[:-N_FREE].copy()
    X[:, 3] = 0.0
    X[np.random.default_rng(0).permutation(len(y))[:32], 3] = 1.0
    y[X[:, 3] == 1] = 0.0
    return X, y


@pytest.mark.parametrize("penalty", [pytest.param("scad", marks=pytest.mark.slow), None])
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
    X, y, _ = with_free("binomial", seed=5)
    X, y = X[:-N_FREE], y[:-N_FREE]
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


def test_two_parties_without_an_intercept_in_given_units():
    X, y, _ = with_free("binomial", seed=6)
    X, y = X[:-N_FREE], y[:-N_FREE]
    settings = {"family": "binomial", "penalty": None, "intercept": False, "standardize": False}
    result = run(X, y, sizes=(5, 3), **settings)
    other = sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-12)
    np.testing.assert_allclose(estimates(result), other.params, atol=1e-5)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)


def deviance_of(result, X, y):
    eta = estimates(result)[0] + X @ estimates(result)[1:]
    return 2.0 * float(np.sum(np.logaddexp(0.0, eta) - y * eta))


def test_separated_labels_are_refused_by_name_and_the_penalty_that_is_proposed_fits_them():
    X, y, _ = pooled("binomial", n=400, seed=3)
    y[:] = X[:, 1] > np.median(X[:, 1])
    X *= 1e3  # a ridge is in standard deviations, whatever the unit
    with pytest.raises(DataError, match=r"perfect separation.*p0:x1.*or set a penalty"):
        run(X, y, family="binomial", penalty=None)
    result = run(X, y, family="binomial")
    assert result.metrics["converged"] == 1
    assert np.flatnonzero(estimates(result)[1:]).tolist() == [1]
    assert result.metrics["deviance"] == pytest.approx(deviance_of(result, X, y), rel=1e-3)
    assert result.coefficients["std_error"][1:].isna().all()
    assert any("perfect separation), mostly p0:x1" in note for note in result.notes)
    assert result.ledger.rounds < 80
    X[:, 1] = y  # the label itself
    result = run(X, y, "masked", policy={"vectors": 80}, family="binomial")
    assert result.metrics["deviance"] == pytest.approx(deviance_of(result, X, y), rel=1e-3)


@pytest.mark.parametrize(("penalty", "vectors"), [("lasso", None), ("lasso", 200), ("scad", None)])
def test_a_penalty_fits_labels_that_the_columns_tell_apart(penalty, vectors):
    """Wisconsin's tumours: without a penalty the likelihood has no maximum."""
    X, y = load_breast_cancer(return_X_y=True)
    y = y.astype(float)
    policy = None if vectors is None else {"vectors": vectors}
    sizes = 10, 10, 10
    result = run(X, y, "masked", sizes, policy, family="binomial", penalty=penalty)
    assert result.metrics["converged"] == 1
    assert result.ledger.rounds < 80
    assert result.metrics["deviance"] == pytest.approx(deviance_of(result, X, y), rel=1e-3)
    assert not any("ridge" in note for note in result.notes)
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    beta = estimates(result)[1:] * X.std(axis=0)
    level = estimates(result)[0] + X.mean(axis=0) @ estimates(result)[1:]
    score = z.T @ (y - scipy.special.expit(level + z @ beta)) / len(y)
    if penalty == "scad":
        assert np.abs(score[beta != 0.0]).max() < 1e-3
        return
    strength = result.metrics["lambda"]
    assert np.abs(score - strength * np.sign(beta))[beta != 0.0].max() < 0.01 * strength
    assert np.abs(score[beta == 0.0]).max() < 1.01 * strength


def test_advice_on_incomplete_rows_is_what_the_family_can_take():
    X, y, _ = pooled("binomial", n=300, seed=7, strength=0.7)
    tables, labels = split(X, y)
    tables["p1"] = tables["p1"][50:]
    result = simulate(VerticalGLM("binomial", lambdas=0.1), tables, labels)
    (note,) = (n for n in result.notes if "are left out of the fit" in n)
    assert note.endswith("rows='all' uses them, too")
    result = simulate(VerticalGLM("binomial", lambdas=0.1, intercept=False), tables, labels)
    assert any(n.endswith("VerticalGBDT uses them, too, or FKNN imputes them first")
               for n in result.notes)  # fmt: skip
    tables["p1"] = tables["p1"][180:]
    with pytest.raises(DataError, match=r"230 more samples lack some party: rows='all' uses them"):
        simulate(VerticalGLM(), tables, labels)
    with pytest.raises(DataError, match=r"rows='all' uses.*'glm-admm' fits few rows"):
        simulate(VerticalGLM("binomial"), tables, labels)


def test_lr_is_named_what_it_is_now():
    with pytest.raises(ConfigError, match="'glm' with family='binomial' and penalty='ridge'"):
        make_strategy("lr", {})


def test_settings_have_a_plain_form():
    strategy = VerticalGLM(penalty=None, lambdas=np.array([0.5, 0.25]), unpenalized=["a:b", "c:d"])
    assert strategy.settings()["lambdas"] == "0.5,0.25"
    assert (strategy.penalty, strategy.unpenalized) == ("none", "a:b,c:d")
    assert VerticalGLM(lambdas="0.1").lambdas == "0.1"
    assert VerticalGLM(lambdas=0.1).lambdas == 0.1
    assert VerticalGLM(lambdas="BIC").lambdas == "bic"


@pytest.mark.parametrize(
    ("family", "labels", "said"),
    [
        ("poisson", [-1.0, 0, 2], "needs counts 0, 1, 2, ... as labels, got a label of -1"),
        ("poisson", [0.5, 0, 2], "got a label of 0.5"),
        ("binomial", [1.0, 2, 1], "got 2 different \\(1, 2\\); .*positive_label in Python"),
        ("binomial", [0.0, 1, 3], "got 3 different"),
        ("binomial", [1.0], "all 300 labels are the same"),
    ],
)
def test_labels_that_cannot_be_of_the_family(family, labels, said):
    X, y, _ = pooled("gaussian")
    y[:] = np.resize(labels, len(y))
    with pytest.raises(DataError, match=said):
        run(X, y, family=family)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_an_unpenalised_column_has_no_ridge(family):
    X, y, _ = pooled(family, n=500, seed=3)
    given = {"family": family, "penalty": "ridge", "l2": 1e5}
    bound, free = run(X, y, **given), run(X, y, **given, unpenalized="p1:x4")
    assert np.abs(estimates(bound)[1:]).max() < 0.01
    table = free.coefficients["estimate"]
    assert abs(table[("p1", "x4")]) > 0.05
    assert np.abs(table.drop([("p1", "x4"), ("server", "intercept")])).max() < 0.01
    assert "std_error" not in free.coefficients


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_predictions_by_a_ridge_have_no_standard_error(family):
    X, y, _ = pooled(family, n=300, seed=4)
    y[:50] = np.nan
    made = run(X, y, family=family, penalty="ridge").predictions
    assert made["prediction"].notna().all()
    # An interval of labels counts their noise, one of probabilities has nothing to count.
    intervals = ["lower", "upper"] if family == "gaussian" else ["linear_predictor"]
    assert list(made) == ["prediction", *intervals]
    assert family == "binomial" or (made["upper"] - made["lower"] > 0.1).all()


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def test_a_ridge_is_chosen_by_generalised_cross_validation_of_the_pooled_table():
    X, y, _ = pooled("gaussian", n=150, seed=5, strength=0.5, noise=3.0)
    result = run(X, y, penalty="ridge", l2="gcv")
    Z = np.column_stack([np.ones(150), standardised(X)])

    def score(l2):
        bound = 2 * l2 * np.diag(np.append(0.0, np.ones(8)))
        hat = Z @ np.linalg.solve(Z.T @ Z + bound, Z.T)
        return ((y - hat @ y) ** 2).mean() / (1 - np.trace(hat) / 150) ** 2

    values = np.geomspace(0.1, 1e4, 2001)
    best = values[np.argmin([score(value) for value in values])]
    chosen = result.metrics["lambda"]
    assert 1.0 < chosen < 1e3  # at no end
    assert chosen == pytest.approx(best, rel=0.01)
    expected = Ridge(alpha=2 * chosen).fit(standardised(X), y)
    np.testing.assert_allclose(estimates(result)[1:] * X.std(axis=0), expected.coef_, rtol=1e-5)
    assert result.ledger.rounds == run(X, y, penalty="ridge").ledger.rounds
    # Nearly what leaving one row out at a time prefers.
    left = RidgeCV(alphas=2 * values[::50]).fit(standardised(X), y).alpha_ / 2
    assert chosen / 3 < left < 3 * chosen


@pytest.mark.parametrize("family", ["binomial", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_ridge_is_chosen_where_the_estimated_risk_is_least(family):
    X, y, _ = pooled(family, n=400, seed=6, strength=0.2)
    result = run(X, y, family=family, penalty="ridge", l2="gcv")
    Z, chosen = standardised(X), result.metrics["lambda"]
    model = family_named(family)

    def fit(l2):
        wide, beta = np.column_stack([np.ones(400), Z]), np.zeros(9)
        bound = 2 * l2 * np.diag(np.append(0.0, np.ones(8)))
        for _ in range(30):
            eta = wide @ beta
            inner = (wide.T * model.variance(eta)) @ wide
            slope = wide.T @ (y - model.mean(eta)) - bound @ beta
            beta = beta + np.linalg.solve(inner + bound, slope)
        deviance = model.deviance(y[:, None], (wide @ beta)[:, None])[0]
        return beta, deviance + 2 * np.trace(np.linalg.solve(inner + bound, inner))

    beta, risk = fit(chosen)
    np.testing.assert_allclose(estimates(result)[1:] * X.std(axis=0), beta[1:], atol=2e-3)
    assert 0.5 < chosen < 1e4
    assert risk < min(fit(value)[1] for value in np.geomspace(0.1, 1e4, 60)) + 0.05
    assert result.metrics["converged"] == 1.0
    assert result.metrics["deviance"] == pytest.approx(
        model.deviance(y[:, None], (np.column_stack([np.ones(400), Z]) @ beta)[:, None])[0], abs=0.1
    )
    assert result.ledger.rounds < 30


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("x3", "'party:column', got 'x3'"),
        ("bank:x3", "got 'bank:x3'; the parties are"),
        ("p1:x9", "no columns \\['x9'\\] to leave unpenalised"),
    ],
)
def test_unpenalised_columns_must_be_there(names, said):
    X, y, _ = pooled("gaussian")
    with pytest.raises(ConfigError, match=said):
        run(X, y, unpenalized=names)


def offset(centers, n=600):
    """Columns with these means and deviation 1 at two parties, and labels that do not follow."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, len(centers)))
    y = pd.Series(1.0 + x @ np.linspace(1.0, 2.0, len(centers)) + rng.normal(size=n))
    table = pd.DataFrame(x + np.array(centers), columns=[f"x{j}" for j in range(len(centers))])
    tables = {"bank": table[["x0"]], "court": table.drop(columns="x0")}
    return tables, y, table.to_numpy()


@pytest.mark.parametrize("centers", [(2.9e5, 2.9e5, 1.0), (1e8, 5.0, 100.0), (2.9e5, -2.9e5, 0.0)])
def test_without_an_intercept_columns_far_from_zero_are_those_of_exact_arithmetic(centers):
    tables, y, x = offset(centers)
    fit = simulate(VerticalGLM(penalty="none", intercept=False), tables, y)
    exact = [[Fraction(v) for v in row] for row in x.tolist()]
    gram = [[sum(a[i] * a[j] for a in exact) for j in range(3)] for i in range(3)]
    right = [sum(a[i] * Fraction(v) for a, v in zip(exact, y, strict=True)) for i in range(3)]
    for i in range(3):  # Gauss and Jordan
        for k in (k for k in range(3) if k != i):
            times = gram[k][i] / gram[i][i]
            gram[k] = [a - times * b for a, b in zip(gram[k], gram[i], strict=True)]
            right[k] -= times * right[i]
    expected = np.array([float(right[i] / gram[i][i]) for i in range(3)])
    errors = fit.coefficients["std_error"].to_numpy()
    assert np.abs((fit.coefficients["estimate"].to_numpy() - expected) / errors).max() < 0.01


@pytest.mark.parametrize("penalty", ["none", "lasso"])
def test_without_an_intercept_two_columns_that_are_too_far_from_zero_are_refused(penalty):
    tables, y, _ = offset((1e6, -2e7, 1.0))
    wanted = (
        r"\['bank\.x0', 'court\.x1'\] lie more than 300,000 standard deviations from 0.*subtract"
    )
    with pytest.raises(DataError, match=wanted):
        simulate(VerticalGLM(penalty=penalty, intercept=False), tables, y)
    simulate(VerticalGLM(penalty=penalty), tables, y)


def test_a_party_reads_labels_of_rows_that_its_columns_single_out():
    """Not covered: a party chooses its columns, and gets their coefficients."""
    rng, n, read = np.random.default_rng(1), 900, 40
    z = rng.normal(size=n)
    labels = pd.Series((z + rng.normal(size=n) > 0.5).astype(float))
    mole = pd.DataFrame(np.eye(n, read)).add_prefix("m")
    parties = {"mole": mole, "ward": pd.DataFrame({"z": z})}
    policy = {"mole": {"min-rows": 1}, "ward": {}}
    found = simulate(VerticalGLM("binomial", "ridge"), parties, labels, policy=policy)
    own = found.coefficients.loc["mole", "estimate"]
    assert ((own > 0).to_numpy() == (labels[:read] > 0)).all()


@pytest.mark.parametrize(("family", "told"), [("gaussian", True), ("binomial", False)])
def test_a_line_fitted_to_labels_0_and_1_is_said(family, told):
    X, y, *_ = pooled("binomial")
    result = run(X, y, family=family, penalty="lasso", lambdas=0.05)
    assert told == any("family='binomial' is logistic" in note for note in result.notes)
