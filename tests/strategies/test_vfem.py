"""VFEM from moments: against the pooled table, the prior on its noise, and what it must refuse."""

import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles import normal
from oracles import vfem as oracle
from vfem_runs import party_tables

from flwr_vertical import load_demo, simulate
from flwr_vertical.errors import DataError
from strategies.glm import VerticalGLM
from strategies.linear.moments.covariances import FullCovariance
from strategies.linear.moments.fit import fit_normal
from strategies.linear.moments.patterns import Patterns, _inverse
from strategies.vfem import VFEM, CompleteCase

ROOT = Path(__file__).parents[2]


def make(n=2000, widths=(2, 1, 2), missing=0.35, correlation=0.4, unlabelled=50, seed=0):
    rng = np.random.default_rng(seed)
    p = sum(widths)
    x = rng.multivariate_normal(np.zeros(p), correlation + (1 - correlation) * np.eye(p), size=n)
    x = 50.0 + x * 10.0 ** rng.uniform(-2, 2, size=p)
    y = pd.Series(3.0 + x / x.std(axis=0) @ rng.normal(size=p) + rng.normal(size=n))
    y.index = [f"s{i:04}" for i in range(n)]
    names = [f"x{j}" for j in range(p)]
    frame = pd.DataFrame(x, index=y.index, columns=names)
    cuts = np.cumsum([0, *widths])
    tables = {
        f"p{k}": frame.loc[rng.random(n) >= missing, names[a:b]]
        for k, (a, b) in enumerate(pairwise(cuts))
    }
    y.iloc[:unlabelled] = np.nan
    return tables, y, frame


def run(strategy, tables, labels, min_rows=20, **kwargs):
    return simulate(strategy, tables, labels, min_rows=min_rows, **kwargs)


def pooled(tables, labels):
    joined = pd.concat([t.reindex(labels.index) for t in tables.values()], axis=1)
    known = labels.notna()  # also where no party has the sample: they tell of the labels' variance
    return np.column_stack([joined[known], labels[known]])


@pytest.fixture(scope="module")
def data():
    return make()


@pytest.fixture(scope="module")
def full(data):
    return run(VFEM(), *data[:2])


def test_full_is_the_maximum_over_the_pooled_table(data, full):
    rows = pooled(*data[:2])
    center, unit = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    fit = fit_normal(Patterns.of((rows - center) / unit), FullCovariance(np.ones((6, 6), bool)))
    beta = unit[-1] * fit.beta / unit[:-1]
    errors = unit[-1] * fit.std_error[1:] / unit[:-1]
    table = full.coefficients.iloc[1:]
    np.testing.assert_allclose(table["estimate"], beta, rtol=1e-6)
    np.testing.assert_allclose(table["std_error"], errors, rtol=1e-6)
    np.testing.assert_allclose(table["missing_information"], fit.missing_information[1:], rtol=1e-5)
    level = center[-1] + unit[-1] * fit.intercept - center[:-1] @ beta
    assert full.coefficients["estimate"].iloc[0] == pytest.approx(level, rel=1e-6)
    mean, covariance = fit.mean * unit + center, fit.covariance * np.outer(unit, unit)
    value = normal.log_likelihood(rows, mean, covariance)
    assert full.metrics["log_likelihood"] == pytest.approx(value, rel=1e-9)
    assert full.metrics["sigma2"] == pytest.approx(fit.noise * unit[-1] ** 2, rel=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("covariance", ["full", "block"])
def test_with_nothing_missing_it_is_least_squares(covariance, intercept):
    tables, labels, _ = make(n=300, widths=(2, 2), missing=0.0, unlabelled=0)
    settings = {"covariance": covariance, "check_correlation": False}
    found = run(VFEM(intercept=intercept, **settings), tables, labels).coefficients
    exact = run(CompleteCase(intercept=intercept), tables, labels).coefficients
    if covariance == "full":
        np.testing.assert_allclose(found["estimate"], exact["estimate"], rtol=1e-6)
        # Maximum likelihood divides by n, least squares by n less the coefficients.
        ratio = np.sqrt((300 - 4 - intercept) / 300)
        np.testing.assert_allclose(found["std_error"], ratio * exact["std_error"], rtol=1e-5)
        np.testing.assert_allclose(found["missing_information"], 0.0, atol=1e-5)
    else:  # the model says that products across parties are zero, but not the estimate
        np.testing.assert_allclose(found["estimate"], exact["estimate"], rtol=1e-6)


def test_predictions_take_what_correlated_columns_tell(data, full):
    """A missing block is predicted from the others; labels of these samples were never seen."""
    tables, labels, frame = data
    rng_free = labels.index[labels.isna()]
    assert len(full.predictions) > 40
    assert full.predictions.index.isin(rng_free).all()
    complete = full.predictions.index[
        np.all([full.predictions.index.isin(t.index) for t in tables.values()], axis=0)
    ]
    beta = full.coefficients["estimate"].to_numpy()
    expected = beta[0] + frame.loc[complete].to_numpy() @ beta[1:]
    sigma = np.sqrt(full.metrics["sigma2"])
    found = full.predictions.loc[complete, "prediction"]
    assert len(complete) > 5
    np.testing.assert_allclose(found, expected, atol=0.05 * sigma)
    absent = full.predictions.index.difference(complete)
    assert full.predictions.loc[absent, "std_error"].mean() > 3 * (
        full.predictions.loc[complete, "std_error"].mean()
    )


def test_the_assumption_of_block_is_checked(data):
    tables, labels, _ = data
    result = run(VFEM("block"), tables, labels)
    assert result.metrics["correlation_rms"] == pytest.approx(0.4, abs=0.05)
    assert any(
        "covariance='block' assumes" in n and "use covariance='full'" in n for n in result.notes
    )
    independent = run(VFEM("block"), *make(n=600, correlation=0.0)[:2])
    assert not any("covariance='block' assumes" in note for note in independent.notes)


def test_columns_hardly_ever_held_together_are_named():
    tables, labels, _ = make(n=900, widths=(1, 1, 1), missing=0.0, unlabelled=0)
    tables["p0"], tables["p1"] = tables["p0"].iloc[:440], tables["p1"].iloc[440:]
    result = run(VFEM(), tables, labels)
    note = next(note for note in result.notes if "hold fewer than 30 rows together" in note)
    assert "'p0' and 'p1'" in note
    assert "'p2.x2'" in note  # given the columns of both
    assert "predictions for samples that both parties hold assume it" in note
    table = result.coefficients
    assert np.isfinite(table["estimate"]).all()
    withheld = ["std_error", "z", "p_value", "ci_low", "ci_high", "missing_information"]
    assert table[withheld].isna().all(axis=None)
    with pytest.raises(DataError, match=r"'p0' and 'p1' hold fewer than 30.*intercept=True"):
        run(VFEM(intercept=False), tables, labels)


def test_what_stands_for_an_intercept_is_named_where_there_is_none():
    tables, labels, _ = make(n=450, widths=(2, 2), missing=0.0, unlabelled=0)
    tables["p1"]["other"] = 1.0 - tables["p0"].iloc[:, 0]
    for intercept in (True, False):
        notes = run(VFEM(intercept=intercept), tables, labels).notes
        (said,) = [note for note in notes if "'p1.other'" in note]
        assert ("set intercept=True" in said) != intercept


def test_rows_that_one_party_alone_holds_are_left_out_in_plain_words():
    tables, labels, _ = make(n=450, widths=(2, 2), missing=0.0, unlabelled=0)
    tables["p0"], tables["p1"] = tables["p0"].iloc[80:], tables["p1"].iloc[:-95]
    result = run(VFEM(), tables, labels, min_rows=None)
    complete = run(CompleteCase(), tables, labels, min_rows=None)
    assert result.metrics["n_samples"] == complete.metrics["n_samples"] == 275
    note = next(note for note in result.notes if "left out" in note)
    assert note.startswith(
        "all 175 rows that one party alone holds were left out: sums over fewer than 100 rows"
    )
    assert "as complete-case is. A lower 'min-rows'" in note
    lower = run(VFEM(), tables, labels, min_rows=80)
    assert lower.metrics["n_samples"] == 450
    assert not any("left out" in note for note in lower.notes)


def test_the_demonstration_uses_rows_that_a_party_lacks():
    """The settings of `apps/vfem.toml`."""
    preset = tomllib.loads((ROOT / "apps" / "vfem.toml").read_text())["demo"]
    demo = load_demo(preset["dataset"], missing_blocks=preset["missing-blocks"])
    assert not any(table.isna().any(axis=None) for table in demo.parties.values())
    result, complete = (
        run(strategy, demo.parties, demo.labels, min_rows=None)
        for strategy in (VFEM(), CompleteCase())
    )
    held = set.union(*(set(table.index) for table in demo.parties.values()))
    assert result.metrics["n_samples"] == len(held)
    assert complete.metrics["n_samples"] < 0.6 * len(held)
    assert not any("left out" in note for note in result.notes)
    errors = result.coefficients["std_error"] / complete.coefficients["std_error"]
    assert (errors < 0.97).all()


@pytest.mark.parametrize("strategy", [VFEM(), VerticalGLM(rows="all", penalty="none")])
def test_columns_that_follow_from_others_tell_these_where_their_party_lacks_rows(data, strategy):
    """Also of samples to predict; a block may be missing by a value that another party has."""
    tables, labels, frame = data
    more = {name: table.copy() for name, table in tables.items()}
    more["p2"]["copy"] = 3.0 * frame["x0"].reindex(more["p2"].index) - 1.0
    more["p2"]["sum"] = frame["x1"] - 2.0 * frame["x2"]
    more["p1"]["one"] = 7.0
    result = run(strategy, more, labels)
    gone = result.coefficients.loc[[("p1", "one"), ("p2", "copy"), ("p2", "sum")]]
    assert gone["estimate"].isna().all()
    assert gone["std_error"].isna().all()
    assert any("'p2.copy'" in note and "other parties" in note for note in result.notes)
    assert any("one'" in note for note in result.notes)
    told = pooled(tables, labels)
    if strategy.name == "glm":  # takes no label of a sample that no party has
        known = labels.index[labels.notna()]
        told[~np.any([known.isin(t.index) for t in tables.values()], axis=0)] = np.nan
    of_copy = np.isnan(told[:, 0]) & ~np.isnan(told[:, 3])
    told[of_copy, 0] = frame.loc[labels.notna(), "x0"][of_copy]
    center, unit = np.nanmean(told, axis=0), np.nanstd(told, axis=0)
    fit = fit_normal(Patterns.of((told - center) / unit), FullCovariance(np.ones((6, 6), bool)))
    kept = result.coefficients.drop(gone.index).iloc[1:]
    np.testing.assert_allclose(kept["estimate"], unit[-1] * fit.beta / unit[:-1], rtol=1e-6)
    errors = unit[-1] * fit.std_error[1:] / unit[:-1]
    if strategy.name == "glm":  # divides by the rows less the coefficients
        n = result.metrics["n_samples"]
        errors *= np.sqrt(n / (n - 6))
    np.testing.assert_allclose(kept["std_error"], errors, rtol=1e-6)
    # Of samples that p2 alone has, the label's expectation given all that its columns tell.
    level, covariance = fit.mean * unit + center, fit.covariance * np.outer(unit, unit)
    alone = result.predictions.index.intersection(tables["p2"].index)
    alone = alone.difference(tables["p0"].index).difference(tables["p1"].index)
    seen = np.eye(6)[[0, 3, 4]]
    seen = np.vstack([seen, [0.0, 1.0, -2.0, 0.0, 0.0, 0.0]])
    slopes = np.linalg.solve(seen @ covariance @ seen.T, seen @ covariance[:, -1])
    own = frame.loc[alone].assign(y=0.0).to_numpy() @ seen.T
    expected = level[-1] + (own - seen @ level) @ slopes
    assert len(alone) > 2
    found, tolerance = result.predictions.loc[alone], 0.05 * np.sqrt(fit.noise) * unit[-1]
    np.testing.assert_allclose(found["prediction"], expected, atol=tolerance)
    left = covariance[-1, -1] - slopes @ seen @ covariance[:, -1] - fit.noise * unit[-1] ** 2
    np.testing.assert_allclose(found["std_error"], np.sqrt(left), rtol=0.05)


@pytest.mark.parametrize("order", ["123", "132", "213", "231", "312", "321"])
def test_a_copy_of_a_copy_is_one_where_no_row_has_the_first(order):
    """Whichever comes first: no row has p1 and p3, whose columns only p2's show to be the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2400, 4))
    y = pd.Series(x @ [2.0, 1.0, 0.5, 0.7] + 0.5 * rng.normal(size=2400))
    who = rng.integers(4, size=2400)
    tables = [
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1]})[who == 0],
        pd.DataFrame({"twice": 2.0 * x[:, 0], "c": x[:, 2]})[who < 3],
        pd.DataFrame({"less": 1.0 - x[:, 0], "d": x[:, 3]})[(who == 1) | (who == 3)],
    ]
    named = {f"p{k}": table for k, table in zip(order, tables, strict=True)}
    found = run(VFEM(), named, y.mask(y.index % 3 == 0))
    assert found.coefficients["estimate"].isna().sum() == 2
    alone = found.predictions.index[who[found.predictions.index] == 3]
    error = found.predictions.loc[alone, "prediction"] - y[alone]
    # What b and c explain is unseen, not what a does.
    assert np.sqrt((error**2).mean()) == pytest.approx(np.sqrt(1.0 + 0.25 + 0.25), abs=0.15)


def test_copies_in_other_units_are_found_in_large_tables():
    """With one limb copies are equal to some 1e-9: a0 had 1.0 with a standard error of 82."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120_000, 20))
    slopes = np.full(20, 0.5)
    y = pd.Series(x @ slopes + rng.normal(size=len(x)))
    first = pd.DataFrame(x[:, :10]).add_prefix("a")[rng.random(len(x)) < 0.7]
    second = pd.DataFrame(x[:, 10:]).add_prefix("b").assign(copy=42.0 * x[:, 0] - 1234.0)
    second = second[rng.random(len(x)) < 0.7]
    found = run(VFEM(), {"p1": first, "p2": second}, y.mask(rng.random(len(x)) < 0.02))
    assert np.isnan(found.coefficients.loc[("p2", "copy"), "estimate"])
    np.testing.assert_allclose(found.coefficients["estimate"].iloc[1:11], 0.5, atol=0.02)
    own = found.predictions.index.intersection(second.index).difference(first.index)
    error = found.predictions.loc[own, "prediction"] - y[own]
    assert np.sqrt((error**2).mean()) == pytest.approx(np.sqrt(1.0 + 9 * 0.25), rel=0.1)


def test_with_block_no_column_of_a_party_stands_for_one_of_another(data):
    """The model takes a column and its copy at another party as two that have nothing in common."""
    tables, labels, frame = data
    strategy = VFEM(covariance="block", check_correlation=False)
    again = {**tables, "p2": tables["p2"].assign(copy=frame["x0"])}
    once = run(strategy, again, labels)
    found = run(strategy, {**again, "p2": again["p2"].assign(twice=2.0 * frame["x0"])}, labels)
    assert np.isnan(found.coefficients.loc[("p2", "twice"), "estimate"])
    pd.testing.assert_frame_equal(found.predictions, once.predictions, rtol=1e-6)


# -- many columns ----------------------------------------------------------------------------


def test_em_alone_ends_where_newton_s_method_does(monkeypatch, data):
    """What a fit of more columns does, where both can be had."""
    tables, labels, _ = data
    for covariance in ("full", "block"):
        settings = {"covariance": covariance, "check_correlation": False, "noise_prior": 0.5}
        exact = run(VFEM(**settings), tables, labels)
        monkeypatch.setattr("strategies.vfem.maximum_likelihood.MOST_COLUMNS", 3)
        result = run(VFEM(**settings), tables, labels)
        monkeypatch.undo()
        assert result.metrics["converged"] == 1.0
        one, other = result.coefficients, exact.coefficients
        gap = (one["estimate"] - other["estimate"]) / other["std_error"]
        assert gap.abs().max() < 1e-3
        # Mean and covariance of the columns count as known.
        ratio = one["std_error"] / other["std_error"]
        assert ratio.max() < 1.001
        assert ratio.min() > 0.9
        both = result.predictions.join(exact.predictions.add_suffix("_exact"))
        step = 0.05 * np.sqrt(exact.metrics["sigma2"])  # of the grid to which terms are rounded
        np.testing.assert_allclose(both["prediction"], both["prediction_exact"], atol=step)
        np.testing.assert_allclose(both["std_error"], both["std_error_exact"], rtol=0.1)
        assert any("fitted by EM alone" in note for note in result.notes)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "block"])
def test_105_columns_are_fitted_as_by_plain_em(covariance):
    tables, labels, _ = make(
        n=800, widths=(40, 35, 30), missing=0.15, correlation=0.0, unlabelled=0
    )
    result = run(VFEM(covariance, check_correlation=False), tables, labels, min_rows=1)
    rows = pooled(tables, labels)
    center, unit = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    owner = None if covariance == "full" else np.repeat([0, 1, 2], [40, 35, 30])
    mean, found = normal.em((rows - center) / unit, owner)
    beta = np.linalg.solve(found[:-1, :-1], found[:-1, -1])
    table = result.coefficients.iloc[1:]
    gap = (table["estimate"] - unit[-1] * beta / unit[:-1]) / table["std_error"]
    assert result.metrics["rows_merged"] == result.metrics["rows_left_out"] == 0
    assert gap.abs().max() < 1e-3
    value = normal.log_likelihood(rows, mean * unit + center, found * np.outer(unit, unit))
    assert result.metrics["log_likelihood"] == pytest.approx(value, rel=1e-6)
    says = any("105 columns are too many for Newton's method" in note for note in result.notes)
    assert says == (covariance == "block")  # else errors are by the whole information
    with pytest.raises(DataError, match="at most 100; set intercept=True"):
        run(VFEM(covariance, intercept=False), tables, labels)


def test_columns_without_noise_between_them_are_named_as_the_cause():
    with pytest.raises(DataError, match="linear functions of each other, or the label is one"):
        _inverse(np.ones((2, 2)))


def run_prior(given, weight, covariance="block"):
    parties, labels = party_tables(given)
    strategy = VFEM(covariance, noise_prior=weight, check_correlation=False)
    return simulate(strategy, parties, labels, min_rows=1)


def penalised(given, weight):
    level = 0.5 * np.var(given.y)

    def objective(theta):
        prior = -0.5 * weight * (np.log(theta.sigma2) + level / theta.sigma2)
        return oracle.loglik(given, theta) + prior

    return objective


def test_the_fit_ends_where_likelihood_and_prior_are_largest():
    given, _ = oracle.generate(80, [2, 1, 2], 0.3, seed=5, mean=0.5)
    result = run_prior(given, 2.0)
    assert result.metrics["rows_merged"] == result.metrics["rows_left_out"] == 0
    theta = oracle.exact_em_step(given, oracle.initial(given))
    found = result.coefficients["estimate"].to_numpy()
    beta = np.split(found[1:], np.cumsum(given.sizes)[:-1])
    objective = penalised(given, 2.0 * sum(given.sizes))
    theta = oracle.Theta(found[0], beta, theta.mu, theta.sigma, result.metrics["sigma2"])
    # The parties' moments do not leave them: they follow from the rest by exact EM.
    for _ in range(500):
        after = oracle.exact_em_step(given, theta)
        moved = max(
            np.abs(one - other).max()
            for one, other in zip([*after.mu, *after.sigma], [*theta.mu, *theta.sigma], strict=True)
        )
        theta = oracle.Theta(found[0], beta, after.mu, after.sigma, result.metrics["sigma2"])
        if moved < 1e-9:
            break
    vector = oracle.flatten(theta)
    sizes = given.sizes

    def at(v):
        return objective(oracle.unflatten(v, sizes))

    for place in [*range(1 + sum(sizes)), len(vector) - 1]:
        step_size = 1e-4 * max(1.0, abs(vector[place]))
        up, down = vector.copy(), vector.copy()
        up[place] += step_size
        down[place] -= step_size
        slope = (at(up) - at(down)) / (2 * step_size) / len(given.y)
        assert abs(slope) < 1e-4


@pytest.mark.parametrize("covariance", ["block", "full"])
def test_zero_is_maximum_likelihood_and_more_pulls_up_the_noise(covariance):
    given, _ = oracle.generate(600, [2, 2, 2], [0.5, 0.6, 0.4], seed=2)
    fits = [run_prior(given, weight, covariance) for weight in (0.0, 2.0, 20.0)]
    noise = [fit.metrics["sigma2"] for fit in fits]
    assert noise[0] < noise[1] < noise[2]
    assert fits[0].metrics["log_likelihood"] > fits[1].metrics["log_likelihood"]
    assert all(fit.metrics["converged"] for fit in fits)
    errors = [fit.coefficients["std_error"].iloc[1:].mean() for fit in fits]
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_noise_variance_that_is_too_small_is_steadied(seed):
    """Where nine of ten blocks are missing, maximum likelihood takes noise for missing blocks."""
    given, truth = oracle.generate(1000, [5] * 5, [0, 0.9, 0.9, 0.9, 0.9], seed=seed, noise=3.0)
    bare, steady = run_prior(given, 0.0), run_prior(given, 2.0)
    wanted = np.concatenate(truth.beta)

    def error(result):
        found = result.coefficients["estimate"].to_numpy()[1:]
        return float(np.sqrt(np.mean((found - wanted) ** 2)))

    assert bare.metrics["sigma2"] < steady.metrics["sigma2"] < 2 * 9
    assert bare.metrics["sigma2"] < 0.9 * 9
    assert error(steady) < error(bare)


def test_a_fit_without_noise_has_no_standard_errors_and_says_why():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 9))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(9)])
    y = pd.Series(x.sum(axis=1) + rng.normal(size=240) * 2)
    held = [rng.random(240) < 0.1 for _ in range(2)]
    tables = {"a": frame.iloc[:, :1], "b": frame.iloc[held[0], 1:5], "c": frame.iloc[held[1], 5:]}
    how = {"min_rows": 1, "progress": False}
    for prior, told in ((0.0, True), (2.0, False)):
        strategy = VFEM(covariance="block", check_correlation=False, noise_prior=prior)
        result = simulate(strategy, tables, y, **how)
        assert any("noise_prior=2 stabilises" in text for text in result.notes) == told
        assert result.coefficients["std_error"].isna().all() == told
        assert (result.metrics["sigma2"] < 1e-6) == told
