"""Support vector machines and logistic ridges against scikit-learn; missing blocks; bad labels."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.svm import LinearSVC

from flwr_vertical import Result, simulate
from flwr_vertical.errors import DataError
from strategies.glm import VerticalGLM
from strategies.linear.masked_means.fixed_point import ByClass, combine
from strategies.linear.masked_means.fourier import expand, to_circle
from strategies.svm import VerticalSVM
from strategies.svm.margin_solver import hinge_curvature, hinge_slope, softplus

N, NEW = 700, 120
IDS = np.array([f"s{i:03}" for i in range(N)])


@pytest.fixture(scope="module")
def data():
    """Columns of all sizes at two parties, and classes; the first `NEW` have no label."""
    rng = np.random.default_rng(0)
    bank = pd.DataFrame(
        {
            "age": rng.normal(50, 9, N),
            "income": np.exp(rng.normal(size=N)),
            "owner": (rng.random(N) < 0.3).astype(float),
        },
        IDS,
    )
    court = pd.DataFrame(
        {"cases": rng.poisson(2, N).astype(float), "rate": rng.normal(size=N) * 1e-3}, IDS
    )
    eta = (bank["age"] - 50) / 9 + bank["owner"] - 0.5 * court["cases"] + 800 * court["rate"] + 0.3
    truth = (eta + rng.logistic(size=N) > 0).astype(float)
    return {"bank": bank, "court": court}, truth.where(np.arange(N) >= NEW), truth


def pooled(tables, labels, intercept=True):
    """Columns and labels of the fit, standardised (without an intercept not centred), and units."""
    x = pd.concat(tables, axis=1, join="inner")
    rows = x.index.intersection(labels.index[labels.notna()])
    x = x.loc[rows].to_numpy()
    center, spread = x.mean(axis=0) * intercept, x.std(axis=0)
    return (x - center) / spread, labels[rows].to_numpy(), center, spread


def estimates(model, center, spread):
    """Intercept and coefficients of a model of standardised columns, per unit of the columns."""
    beta = np.ravel(model.coef_) / spread
    return np.append(model.intercept_ - center @ beta, beta)


def found(result):
    values = result.coefficients["estimate"].to_numpy()
    return values if ("server", "intercept") in result.coefficients.index else np.append(0, values)


def scikit(kind, l2, intercept=True):
    exact = {"tol": 1e-10, "max_iter": 100_000, "fit_intercept": intercept}
    if kind == "ridge":
        return LogisticRegression(C=0.5 / l2, **exact)
    if kind == "squared":
        return RidgeClassifier(alpha=l2, fit_intercept=intercept)
    # Its penalty is on the intercept too, unless that is in large units.
    return LinearSVC(C=0.5 / l2, dual=False, intercept_scaling=100.0, **exact)


# By method: how far estimates may be from scikit-learn's, relative to the largest of a column in
# standard deviations. The smooth corner moves those of the squared hinge.
MADE = {
    "ridge": (lambda **k: VerticalGLM("binomial", "ridge", **k), 1e-4),
    "squared": (lambda **k: VerticalSVM(loss="squared", **k), 1e-6),
    "hinge": (lambda **k: VerticalSVM(**k), 0.01),
}


def assert_estimates(kind, result, tables, labels, l2, intercept=True, rtol=None):
    x, y, center, spread = pooled(tables, labels, intercept)
    model = scikit(kind, l2, intercept).fit(x, y)
    expected = estimates(model, center, spread)
    unit = np.append(1.0, 1.0 / spread)
    gap = np.abs(found(result) - expected)[1:] / unit[1:]
    assert gap.max() < (rtol or MADE[kind][1]) * np.abs(model.coef_).max()
    at_mean = found(result)[0] + center @ found(result)[1:]
    level = expected[0] + center @ expected[1:]
    assert abs(at_mean - level) < (rtol or MADE[kind][1]) * np.abs(model.coef_).max()
    return model


@pytest.fixture(scope="module")
def fits(data):
    """By method a fit with a ridge that moves the estimates."""
    tables, labels, _ = data
    return {kind: simulate(make(l2=20.0), tables, labels) for kind, (make, _) in MADE.items()}


@pytest.mark.parametrize("kind", MADE)
def test_estimates_and_predictions_are_those_of_scikit_learn(fits, data, kind):
    tables, labels, truth = data
    result = fits[kind]
    model = assert_estimates(kind, result, tables, labels, 20.0)
    free = scikit(kind, 1e-3).fit(*pooled(tables, labels)[:2])
    moved = np.abs(np.ravel(model.coef_) - np.ravel(free.coef_)).max()
    assert moved > 0.03 * np.abs(free.coef_).max()  # the ridge matters
    x = pd.concat(tables, axis=1)[:NEW].to_numpy()
    eta = found(result)[0] + x @ found(result)[1:]
    own = result.predictions.loc[IDS[:NEW]]
    sure = np.abs(eta) > 0.05  # farther from the border than the grid
    own_class = own["prediction"] > 0.5
    assert ((eta > 0) == own_class)[sure].all()
    assert (own_class == truth[:NEW]).mean() > 0.65
    if kind == "ridge":
        np.testing.assert_allclose(own["prediction"], 1 / (1 + np.exp(-eta)), atol=0.01)
    else:
        np.testing.assert_allclose(own["decision"], eta, atol=0.02)
        assert list(own) == ["prediction", "decision"]
    assert result.metrics["n_samples"] == N - NEW


def test_rounds(fits):
    """After greeting and alignment; an evaluation takes two."""
    assert fits["squared"].ledger.rounds == 2 + 5
    for kind, more in (("ridge", 2), ("hinge", 1)):
        evaluations = int(fits[kind].metrics["iterations"])
        assert evaluations <= 8
        assert fits[kind].ledger.rounds == 2 + 5 + more + 2 * evaluations


@pytest.mark.parametrize("kind", MADE)
def test_models_predict_later_what_the_fit_did(fits, data, kind, tmp_path):
    tables, _, truth = data
    fit = Result.load(fits[kind].save(tmp_path / "fit"))
    new = {name: table[:NEW] for name, table in tables.items()}
    later = fit.predict(new, truth[:NEW])
    pd.testing.assert_frame_equal(
        later.predictions.loc[IDS[:NEW]], fit.predictions.loc[IDS[:NEW]], check_names=False
    )
    if kind != "ridge":
        right = (later.predictions["prediction"] == truth[later.predictions.index]).mean()
        assert later.metrics["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("kind", MADE)
def test_columns_in_their_own_units_and_no_intercept(data, kind):
    tables, labels, _ = data
    own = {name: table.copy() for name, table in tables.items()}
    own["court"]["rate"] *= 1e3
    own["bank"]["age"] /= 9
    make, _ = MADE[kind]
    result = simulate(make(l2=5.0, intercept=False, standardize=False), own, labels)
    x = pd.concat(own, axis=1)[NEW:]
    model = scikit(kind, 5.0, intercept=False).fit(x, labels[NEW:])
    np.testing.assert_allclose(
        found(result)[1:], np.ravel(model.coef_), atol=MADE[kind][1] * np.abs(model.coef_).max()
    )
    assert ("server", "intercept") not in result.coefficients.index


def test_collinear_and_constant_columns_share_what_there_is(data):
    tables, labels, _ = data
    own = {"bank": tables["bank"].assign(twice=2 * tables["bank"]["age"], one=1.0)}
    own["court"] = tables["court"]
    varied = {**own, "bank": own["bank"].drop(columns="one")}
    for kind, (make, _) in MADE.items():
        result = simulate(make(l2=2.0), own, labels)
        assert np.isnan(result.coefficients.loc[("bank", "one"), "estimate"])
        result.coefficients = result.coefficients.drop(("bank", "one"))
        assert_estimates(kind, result, varied, labels, 2.0)


def test_collinear_columns_without_a_penalty_are_left_out(data):
    tables, labels, _ = data
    bank = tables["bank"]
    copies = {"age": 2.0 * bank["age"], "tenant": 1.0 - bank["owner"], "older": bank["age"] + 1.0}
    copied = tables | {"court": tables["court"].assign(**copies)}
    found, plain = (simulate(VerticalSVM(l2=0.0), given, labels) for given in (copied, tables))
    names = [f"court.{name}" for name in copies]
    said = f"columns {names} follow from others; they are left out and have no coefficient"
    assert said in found.notes
    assert found.coefficients["estimate"].loc["court"][list(copies)].isna().all()
    pd.testing.assert_frame_equal(found.coefficients.dropna(), plain.coefficients, rtol=1e-3)
    pd.testing.assert_frame_equal(found.predictions, plain.predictions, atol=0.02)
    # Without an intercept flags that add up to 1 are told apart.
    flags = tables | {"court": tables["court"].assign(tenant=1.0 - tables["bank"]["owner"])}
    for loss in ("squared_hinge", "squared"):
        strategy = VerticalSVM(l2=0.0, intercept=False, loss=loss)
        own = simulate(strategy, flags, labels).coefficients["estimate"]
        whole = VerticalSVM(l2=0.0, loss=loss)
        beta = simulate(whole, tables, labels).coefficients["estimate"]
        level = beta["server", "intercept"]
        assert own["court", "tenant"] == pytest.approx(level, abs=1e-2)
        assert own["bank", "owner"] == pytest.approx(level + beta["bank", "owner"], abs=1e-2)


def test_missing_blocks_are_left_out_of_the_fit_or_take_the_mean(data):
    tables, labels, truth = data
    lacking = {"bank": tables["bank"][:-130], "court": tables["court"].drop(IDS[10:240])}
    common = {name: table.loc[IDS[240:-130]] for name, table in lacking.items()}
    for kind, (make, _) in MADE.items():
        result = simulate(make(l2=2.0), lacking, labels)
        assert_estimates(kind, result, common, labels, 2.0)
        own = result.predictions
        assert len(own) == NEW  # those that a party lacks as well
        assert ((own["prediction"] > 0.5) == truth[own.index]).mean() > 0.6
    result = simulate(VerticalSVM(2.0, loss="squared", rows="mean"), lacking, labels)
    with_label = {
        name: table.loc[table.index.intersection(IDS[NEW:])] for name, table in lacking.items()
    }
    x = pd.concat(with_label, axis=1)
    assert_estimates("squared", result, {"all": x.fillna(x.mean())}, labels, 2.0)
    # Of a sample that the court lacks, its columns count with their mean.
    absent = IDS[20:40]
    means = np.tile(with_label["court"].mean(), (len(absent), 1))
    full = np.column_stack([tables["bank"].loc[absent], means])
    expected = found(result)[0] + full @ found(result)[1:]
    np.testing.assert_allclose(result.predictions.loc[absent, "decision"], expected, atol=0.02)


def test_separated_classes_have_estimates(data):
    tables, labels, _ = data
    apart = (tables["bank"]["age"] > 50).astype(float).where(labels.notna())
    result = simulate(VerticalGLM("binomial", "ridge", l2=5.0), tables, apart)
    assert_estimates("ridge", result, tables, apart, 5.0)


def test_a_corner_that_cannot_be_evaluated_is_widened(data):
    tables, labels, _ = data
    result = simulate(VerticalSVM(20.0, corner=0.02), tables, labels)
    assert result.metrics["corner"] > 0.02
    assert any("too far for a corner of 0.02" in text for text in result.notes)
    assert_estimates("hinge", result, tables, labels, 20.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y + 1, r"needs labels 0 and 1, got 1, 2; code .*: 1 as 0 and 2 as 1"),
        (lambda y: y + 1e6, r"got 1000000, 1000001; code .*: 1000000 as 0 and 1000001 as 1"),
        (lambda y: y * 2 - 1, r"got -1, 1; code the classes as 0 and 1: -1 as 0 and 1 as 1"),
        (lambda y: y.where(y != 1, np.arange(N) % 3), r"expected labels 0 and 1, got 3 different"),
        (lambda y: y * 0, r"all labels are 0; a classifier needs samples of both classes"),
        (lambda y: y * np.nan, r"needs samples with a label"),
    ],
    ids=["1 and 2", "many digits", "-1 and 1", "three", "one class", "none"],
)
def test_labels_that_are_no_two_classes_are_named(data, change, words):
    tables, labels, _ = data
    with pytest.raises(DataError, match=words):
        simulate(VerticalSVM(), tables, change(labels))


def test_one_class_among_complete_rows_is_named(data):
    tables, labels, _ = data
    ones = labels.index[labels == 1]
    lacking = {"bank": tables["bank"], "court": tables["court"].drop(ones)}
    with pytest.raises(DataError, match="that all parties hold are 0"):
        simulate(VerticalSVM(loss="squared"), lacking, labels)


# -- numerics ----------------------------------------------------------------------------------


def test_the_smooth_hinge_is_its_integral_and_near_the_hinge():
    def hinge_loss(margin, width):
        return softplus(1.0 - margin, width) ** 2

    m = np.linspace(-4, 4, 801)
    step = 1e-6
    rise = (hinge_loss(m + step, 0.1) - hinge_loss(m - step, 0.1)) / (2 * step)
    np.testing.assert_allclose(hinge_slope(m, 0.1), rise, atol=1e-7)
    turn = (hinge_slope(m + step, 0.1) - hinge_slope(m - step, 0.1)) / (2 * step)
    np.testing.assert_allclose(hinge_curvature(m, 0.1), turn, atol=1e-6)
    plain = np.maximum(0.0, 1.0 - m) ** 2
    assert np.abs(hinge_loss(m, 0.1) - plain).max() < 0.02


def test_features_of_a_class_give_its_own_function():
    rng = np.random.default_rng(3)
    t, second = rng.uniform(-3, 3, size=200), rng.random(200) < 0.4
    pair = expand([np.tanh, lambda t: 1.0 / (1.0 + t**2 / 4)], 3.0, 1e-6)
    both = ByClass(*pair, second)
    gamma = rng.integers(0, 2**64, size=200, dtype=np.uint64)
    features = both.features(to_circle(t) + gamma, 30)
    assert np.abs(features.view(np.int64)).max() <= 2**30
    told = both.common
    values = (
        combine(features, gamma, told.times, told.sine[None], told.cosine[None], [20])[0].view(
            np.int64
        )
        * 2.0**-50
    )
    found = values + told.constant + np.where(second, 1, -1) * both.half_difference
    np.testing.assert_allclose(found, np.where(second, 1 / (1 + t**2 / 4), np.tanh(t)), atol=1e-4)
