"""Proportional hazards over parties, against statsmodels, and row by row what it lacks."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

from flwr_vertical import Result, cross_validate, simulate
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.policy.defaults import max_vectors
from flwr_vertical.reports.report import report_html
from flwr_vertical.results.survival import concordance_index, survival_curve
from strategies.cox import Cox, survival_labels
from strategies.cox.model import concordance
from strategies.cox.risk_sets import risk_sets
from strategies.cox.unseen import Completed, UnseenHazards
from strategies.pipeline import Pipeline
from strategies.predict import Predict
from tests.oracles import cox as oracle
from tests.oracles.normal import em

EVERY_TIME = {"policy": {"min-rows": 1, "vectors": 10**6, "openings": 10**6}}
"""With which all event times are knots."""

# lifelines needs pandas 2: its numbers are those of `CoxPHFitter().fit(frame, "time", "event",
# fit_options={"precision": 1e-12, "r_precision": 1e-14})` and of `proportional_hazard_test(...,
# time_transform="rank")` in an environment of its own.
LIFELINES_COLUMNS = [
    *("coef", "exp(coef)", "se(coef)", "coef lower 95%", "coef upper 95%"),
    *("exp(coef) lower 95%", "exp(coef) upper 95%", "cmp to", "z", "p", "-log2(p)"),
]
LIFELINES = {
    "coef": [0.0311418613, 0.41071275, 0.700965874, -0.0162658617],
    "exp(coef)": [1.03163184, 1.50789215, 2.01569868, 0.983865713],
    "se(coef)": [0.00754665762, 0.13234704, 0.116549639, 0.00452422817],
    "coef lower 95%": [0.0163506842, 0.151317318, 0.47253278, -0.0251331859],
    "exp(coef) upper 95%": [1.0470043, 1.95444874, 2.53298631, 0.992628764],
    "z": [4.12657668, 3.10330136, 6.01431187, -3.59527881],
    "-log2(p)": [14.729138, 9.02938449, 29.0441362, 11.5915211],
}
LIFELINES_PH = [0.0271040815, 1.7910648193, 0.6106958059, 0.1278425513]


def cohort(n=300, seed=0, unit=None):
    """Flags, skewed and normal columns of two parties; times, censored for a third."""
    rng = np.random.default_rng(seed)
    ids = [f"s{i:05}" for i in range(n)]
    clinic = pd.DataFrame({"age": rng.normal(60, 9, n), "sex": (rng.random(n) < 0.5) * 1.0}, ids)
    laboratory = pd.DataFrame(
        {"marker": np.exp(0.5 * rng.normal(size=n)), "egfr": rng.normal(80, 15, n)}, ids
    )
    hazard = np.exp(
        0.04 * (clinic["age"] - 60)
        + 0.5 * clinic["sex"]
        + 0.6 * laboratory["marker"]
        - 0.02 * (laboratory["egfr"] - 80)
    )
    time, end = 5 * rng.exponential(size=n) / hazard, rng.uniform(1, 8, n)
    event, time = (time <= end).astype(float), np.minimum(time, end)
    if unit is not None:
        time = np.ceil(time / unit) * unit
    return {"clinic": clinic, "laboratory": laboratory}, time.rename("time"), event


def run(tables, labels, strategy=None, **options):
    return simulate(strategy or Cox(), tables, labels, **options)


def pooled(tables, time, event):
    x = pd.concat(tables, axis=1, join="inner")
    x.columns = [name for table in tables.values() for name in table]
    rows = time.index[time.notna()].intersection(x.index, sort=False)
    x = x.loc[rows]
    return x.to_numpy(), time[rows].to_numpy(), event[rows].to_numpy() == 1


def assert_like_statsmodels(result, tables, time, event, strata=None):
    x, t, d = pooled(tables, time, event)
    own = None if strata is None else strata[time.notna()].to_numpy()
    fit = PHReg(t, x, status=d, strata=own, ties="breslow").fit()
    table = result.coefficients
    assert result.metrics["exact"] == result.metrics["converged"] == 1.0
    np.testing.assert_allclose(table["estimate"], fit.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table["std_error"], fit.bse, rtol=1e-4)
    assert result.metrics["log_likelihood"] == pytest.approx(fit.llf, abs=2e-3)
    return fit


@pytest.fixture(scope="module")
def data():
    return cohort()


@pytest.fixture(scope="module")
def fitted(data):
    tables, time, event = data
    return run(tables, survival_labels(time, event), **EVERY_TIME)


def test_estimates_at_raw_times_are_those_of_statsmodels(fitted, data):
    fit = assert_like_statsmodels(fitted, *data)
    assert fitted.metrics["knots"] == fitted.metrics["n_events"] == data[2].sum()
    np.testing.assert_allclose(np.exp(fit.params), fitted.coefficients["hazard_ratio"], rtol=1e-5)
    null = fit.model.loglike(np.zeros(4))
    assert fitted.model.log_likelihood_null == pytest.approx(null)
    assert fitted.metrics["lr_chi2"] == pytest.approx(2 * (fit.llf - null), abs=5e-3)


def test_the_summary_is_that_of_lifelines(fitted):
    """Values from lifelines 0.30.3 on this cohort; it treats ties by Efron, and there are none."""
    summary = fitted.model.summary()
    assert list(summary) == LIFELINES_COLUMNS
    for name, values in LIFELINES.items():
        rtol = 1e-5 if name in ("coef", "exp(coef)") else 1e-4
        np.testing.assert_allclose(summary[name], values, rtol=rtol, atol=1e-6)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_ratios_per_unit_of_tiny_numbers_are_infinite():
    tables, time, event = cohort(1000, 9)
    tables["clinic"]["age"] *= 1e-9
    result = run(tables, survival_labels(time, event))
    age = result.coefficients.loc[("clinic", "age")]
    assert age["hazard_ratio"] == np.inf
    assert result.model.summary().loc[("clinic", "age"), "z"] == age["z"]


def test_the_baseline_is_breslow_s(fitted, data):
    x, time, event = pooled(*data)
    found = fitted.model.baseline
    beta = fitted.coefficients["estimate"].to_numpy()
    expected = oracle.baseline(beta, x, time, event, found["time"].to_numpy())
    np.testing.assert_allclose(found["cumulative_hazard"], expected, rtol=1e-4)
    row = pd.DataFrame([x.mean(axis=0), x[0]], ["mean", "first"])
    curves = fitted.model.survival(row)
    np.testing.assert_allclose(curves["mean"], np.exp(-expected), rtol=1e-4)
    ratio = np.exp((x[0] - x.mean(axis=0)) @ beta)
    np.testing.assert_allclose(curves["first"], np.exp(-expected * ratio), rtol=1e-3)


def test_proportionality_is_tested_by_rank_of_time(fitted, data):
    x, time, event = pooled(*data)
    fit = PHReg(time, x, status=event, ties="breslow").fit()
    expected = oracle.proportional(fit, time, event)
    np.testing.assert_allclose(fitted.model.proportional["chi2"], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fitted.model.proportional["chi2"], LIFELINES_PH, rtol=1e-3)


def test_a_ratio_that_changes_is_seen():
    tables, time, event = cohort(1500, 5)
    late = tables["clinic"]["sex"] == 1
    time = time.where(~late, time**3 / 20)  # few early, many late
    result = run(tables, survival_labels(time.clip(1e-9), event))
    assert result.metrics["exact"] == 0.0
    p_value = result.model.proportional["p_value"]
    assert p_value[("clinic", "sex")] < 1e-6


def test_few_times_are_exact_at_default_rules():
    tables, time, event = cohort(4000, 1, unit=2.0)
    time = time.clip(upper=6.0)
    result = run(tables, survival_labels(time, event))
    beta, error, value = oracle.halved_ties(*pooled(tables, time, event))
    assert result.metrics["exact"] == result.metrics["converged"] == 1.0
    np.testing.assert_allclose(result.coefficients["estimate"], beta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.coefficients["std_error"], error, rtol=1e-4)
    assert result.metrics["log_likelihood"] == pytest.approx(value, abs=2e-3)
    assert result.metrics["knots"] == 3


def test_ties_are_treated_nearly_as_by_efron():
    """By Breslow's method coefficients shrink where many events share a time."""
    tables, time, event = cohort(3000, 7, unit=0.25)
    result = run(tables, survival_labels(time, event))
    x, t, d = pooled(tables, time, event)
    efron, breslow = (PHReg(t, x, status=d, ties=how).fit() for how in ("efron", "breslow"))
    found = result.coefficients["estimate"]
    assert np.abs((found - efron.params) / efron.bse).max() < 0.15
    assert np.abs((breslow.params - efron.params) / efron.bse).max() > 0.5
    np.testing.assert_allclose(result.coefficients["std_error"], efron.bse, rtol=0.01)


def test_rounds_and_what_is_counted(data):
    tables, time, event = cohort(1200, 2)
    result = run(tables, survival_labels(time, event))
    frame = result.ledger.to_frame().drop_duplicates("round")
    steps, n = frame["step"].to_list(), int(result.metrics["iterations"])
    assert 3 <= n <= 5
    assert steps[steps.index("prepare_moments") :] == [
        *("prepare_moments", "seal_group_seed", "send_masked", "open_products", "send_digits"),
        *["place_fits", "open_means"] * n,
        *("open_means", "finish_moments"),
    ]
    knots = int(result.metrics["knots"])
    vectors = 3 + n * knots + 1
    assert vectors <= max_vectors(1200)
    assert 10 <= knots <= 12


def test_with_knots_the_likelihood_is_that_of_the_baseline_between_them():
    tables, time, event = cohort(500, 3)
    result = run(tables, survival_labels(time, event))
    assert result.metrics["exact"] == 0.0
    x, t, d = pooled(tables, time, event)
    risk = risk_sets(t, d, np.zeros(len(t), dtype=int), 8, 100)
    assert risk.hats.shape[1] == result.metrics["knots"] > 2
    np.testing.assert_allclose(risk.hats.sum(axis=1), 1.0)
    assert (risk.hats >= 0.0).all()
    assert ((risk.hats > 0.0).sum(axis=1) <= 2).all()
    unit = x.std(axis=0)
    beta, value = oracle.with_knots((x - x.mean(axis=0)) / unit, t, d, risk.hats)
    estimate, error = result.coefficients[["estimate", "std_error"]].to_numpy().T
    assert np.abs((estimate - beta / unit) / error).max() < 1e-3
    assert result.metrics["log_likelihood"] == pytest.approx(value, abs=5e-3)
    exact = PHReg(t, x, status=d, ties="breslow").fit().params
    assert np.abs((estimate - exact) / error).max() < 0.1


@pytest.mark.slow
def test_knots_cost_little():
    """Against Cox's likelihood at all times, 30 knots are a hundredth of a standard error off."""
    tables, time, event = cohort(3000, 4)
    result = run(tables, survival_labels(time, event))
    x, t, d = pooled(tables, time, event)
    fit = PHReg(t, x, status=d, ties="breslow").fit()
    assert 20 <= result.metrics["knots"] <= 30
    assert np.abs((result.coefficients["estimate"] - fit.params) / fit.bse).max() < 0.02


@pytest.mark.parametrize("seed", range(5))
def test_no_combination_of_sums_is_over_few_samples(seed):
    """Found by search: combinations of two and three sums that leave the fewest samples."""
    rng = np.random.default_rng(seed)
    n, fewest = 400, 40
    time = rng.exponential(size=n)
    time[rng.random(n) < 0.3] = 2.0  # as where a study ends
    event = (rng.random(n) < 0.8) & (time < 2.0)
    risk = risk_sets(time, event, np.zeros(n, dtype=int), 8, fewest)
    rows = risk.exposure.T
    assert 3 <= rows.shape[1] <= 8
    for size in (1, 2, 3):
        for start in range(rows.shape[1] - size + 1):
            columns = rows[:, start : start + size]
            for _ in range(100):
                # A combination that is 0 for as many samples as there are sums but one.
                chosen = rng.choice(n, size - 1, replace=False)
                normal = np.linalg.svd(np.vstack([columns[chosen], np.zeros(size)]))[2][-1]
                assert (np.abs(columns @ normal) > 1e-9 * np.abs(columns).max()).sum() >= fewest


@pytest.mark.slow
def test_strata_have_baselines_of_their_own():
    tables, time, event = cohort(400, 6)
    strata = pd.Series(np.arange(400) % 2, time.index)
    time = time * (1.0 + 2.0 * strata)
    labels = survival_labels(time, event, strata, stratum_span=1000.0)
    result = run(tables, labels, Cox(stratum_span=1000.0), **EVERY_TIME)
    fit = assert_like_statsmodels(result, tables, time, event, strata)
    assert result.model.baseline["stratum"].nunique() == 2
    other = run(tables, survival_labels(time, event), **EVERY_TIME)
    gap = (other.coefficients["estimate"] - fit.params) / other.coefficients["std_error"]
    assert np.abs(gap).max() > 0.5  # strata matter


# -- blocks missing ---------------------------------------------------------------------------


BETA = np.array([0.5, -0.4, 0.4, 0.3])


def normal_cohort(seed, n=4000, missing=0.4, strength=1.0):
    """Correlated normal columns of two parties, each of which lacks rows at random."""
    rng = np.random.default_rng(seed)
    ids = [f"s{i:05}" for i in range(n)]
    x = rng.normal(size=(n, 4)) @ np.linalg.cholesky(0.4 + 0.6 * np.eye(4)).T
    time = pd.Series(rng.exponential(size=n) / np.exp(strength * x @ BETA), ids)
    end = rng.uniform(0, 2, n)
    labels = survival_labels(np.minimum(time, end), (time <= end).astype(float))
    table, here = pd.DataFrame(x, ids, list("abcd")), rng.random((2, n)) >= missing
    return {"clinic": table[["a", "b"]][here[0]], "laboratory": table[["c", "d"]][here[1]]}, labels


def test_a_column_that_both_hold_counts_once_where_rows_are_completed():
    """Copies that differed by the error of completion had no maximum, or errors without end.

    The laboratory's columns are so many that it tells two numbers of a row, the copy and another.
    """
    tables, labels = normal_cohort(4, 2000, 0.2)
    ids, rng = labels.index, np.random.default_rng(0)
    age = pd.Series(rng.normal(50, 10, len(ids)), ids)
    for name in ("e", "f"):
        tables["laboratory"][name] = rng.normal(size=len(tables["laboratory"]))
    both = {name: table.assign(age=age[table.index]) for name, table in tables.items()}
    once = run({**both, "laboratory": tables["laboratory"]}, labels, Cox(rows="all"))
    twice = run(both, labels, Cox(rows="all"))
    assert any("['laboratory.age'] follow from others" in note for note in twice.notes)
    kept = twice.coefficients.drop(("laboratory", "age"))
    assert (kept["std_error"] < 1.02 * once.coefficients["std_error"]).all()


def test_completed_rows_are_fitted_with_what_is_not_known_of_them():
    """Against the same equations row by row, means by the maximum of the normal likelihood.

    The other party alone holds such a row, and tells one number: the direction of its columns that
    says most of both, in standard deviations.
    """
    tables, labels = normal_cohort(3, 3000, strength=1.5)
    result = run(tables, labels, Cox(rows="all"))
    held = pd.concat(tables, axis=1).reindex(labels.index)
    x, mask = held.to_numpy(), held.isna().to_numpy()
    some = ~mask.all(axis=1)
    x, mask, y = x[some], mask[some], labels.to_numpy()[some]
    assert result.metrics["n_samples"] == some.sum()
    assert result.metrics["samples_completed"] == mask.any(axis=1).sum()
    mean, covariance = em(x)
    unseen = np.zeros((3, 4, 4))
    pattern = np.where(mask[:, 0], 1, np.where(mask[:, 2], 2, 0))
    for k, gone in enumerate(mask):
        if gone.any():
            o = ~gone
            across, seen = covariance[np.ix_(gone, o)], covariance[np.ix_(o, o)]
            size, root = np.sqrt(np.diag(covariance)[gone])[:, None], np.linalg.cholesky(seen)
            left, values, right = np.linalg.svd(across / size @ np.linalg.inv(root.T))
            slope = size * values[0] * np.outer(left[:, 0], right[0]) @ np.linalg.inv(root)
            x[k, gone] = mean[gone] + slope @ (x[k, o] - mean[o])
            twice = slope @ across.T
            rest = covariance[np.ix_(gone, gone)] + slope @ seen @ slope.T - twice - twice.T
            unseen[pattern[k]][np.ix_(gone, gone)] = rest
    x -= x.mean(axis=0)
    by_pattern = [x[pattern == k] for k in range(3)]
    known = np.array([rows.mean(axis=0) for rows in by_pattern])
    seen = np.array([np.cov(rows.T) for rows in by_pattern])
    estimate, error = result.coefficients[["estimate", "std_error"]].to_numpy().T
    rows = x, np.abs(y), y > 0, unseen, pattern, known, seen
    found = optimize.root(lambda beta: oracle.unseen_score(beta, *rows)[0], estimate, tol=1e-4)
    assert found.success
    assert np.abs((estimate - found.x) / error).max() < 0.25  # of knots, cells and rounded means
    complete = run(tables, labels, Cox()).coefficients["std_error"].to_numpy()
    assert (error < complete).all()
    at_first = np.einsum("pij,i,j->p", unseen, estimate, estimate)[pattern] / 2
    information = oracle.step_with_offset(estimate, *rows[:3], at_first, 1)[1]
    assert (error > 0.98 * np.sqrt(np.diag(np.linalg.inv(information)))).all()
    for offset in (
        np.zeros(len(x)),
        np.einsum("pij,i,j->p", unseen, estimate, estimate)[pattern] / 2,
    ):
        other = oracle.step_with_offset(estimate, *rows[:3], offset)[0]
        assert np.abs((other - found.x) / error).max() > 0.5  # hazards at the start are another fit


def test_a_strong_effect_of_a_column_that_half_of_the_rows_lack_has_a_standard_error():
    """There the normal model takes more from the information than there is."""
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=(3000, 2)), [f"s{i:05}" for i in range(3000)]
    time = rng.exponential(size=len(x)) / np.exp(x @ [0.3, 1.25])
    end = np.quantile(time, 0.7)
    event, time, held = time <= end, np.minimum(time, end), rng.random(len(x)) < 0.5
    labels = survival_labels(pd.Series(time, ids), pd.Series(event * 1.0, ids))
    tables = {k: pd.DataFrame({k: x[:, j]}, ids) for j, k in enumerate(("age", "marker"))}
    tables["marker"] = tables["marker"][held]
    result = run(tables, labels, Cox(rows="all"))
    assert result.metrics["converged"] == 1.0
    estimate, error = result.coefficients[["estimate", "std_error"]].to_numpy().T
    x[:, 1] = np.where(held, x[:, 1] - x[held, 1].mean(), 0.0)
    x[:, 0] -= x[:, 0].mean()
    covariance = np.cov(x[held].T)
    unseen, seen = np.zeros((2, 2, 2)), np.stack([covariance, covariance])
    unseen[1, 1, 1], seen[1, 1], seen[1, :, 1] = covariance[1, 1], 0.0, 0.0
    rows = time, event, unseen, (~held).astype(int), np.zeros((2, 2)), seen
    around = [
        oracle.unseen_score(estimate + np.array([0.0, change]), x, *rows)[0]
        for change in (-0.05, 0.0, 0.05)
    ]
    information = oracle.step_with_offset(estimate, x, time, event, np.zeros(len(x)), 1)[1]
    size = np.sqrt(information[1, 1])
    assert abs(around[1][1]) < 0.2 * size  # of knots
    assert error[1] == pytest.approx(size / ((around[0] - around[2])[1] / 0.1), rel=0.3)
    complete = run(tables, labels).coefficients["std_error"].to_numpy()
    assert (np.abs(estimate - [0.3, 1.25]) < 3.0 * error).all()
    assert error[0] < 0.95 * complete[0]
    assert error[1] < 1.1 * complete[1]  # of a column of which the other rows say nothing


def test_rows_that_are_missing_by_a_column_of_another_are_completed_without_error():
    """The mean of the columns differs by who holds a row, and with it how long samples last."""
    found = []
    for seed in range(3):
        tables, labels = normal_cohort(seed, missing=0.0, strength=2.0)
        rng = np.random.default_rng(100 + seed)
        here = rng.random(len(labels)) > 1 / (1 + np.exp(0.4 - 1.5 * tables["clinic"]["a"]))
        tables["laboratory"] = tables["laboratory"][here]
        own = run(tables, labels, Cox(rows="all")).coefficients
        found.append((own["estimate"] - 2.0 * BETA) / own["std_error"])
    assert np.abs(found).max() < 3.5
    assert np.abs(np.mean(found, axis=0)).max() < 2.0  # with hazards at the start: -10


def pooled_fits(seed, strength, last, n=4000):
    """Errors, standard errors and coverage with complete rows and completed ones; share of events.

    The normal model is known here; 40 % of each party's rows are missing, and times are censored
    evenly up to `last`.
    """
    rng = np.random.default_rng(seed)
    sigma, beta = 0.4 + 0.6 * np.eye(4), strength * BETA
    x = rng.normal(size=(n, 4)) @ np.linalg.cholesky(sigma).T
    time, end = rng.exponential(size=n) / np.exp(x @ beta), rng.uniform(0, last, n)
    event, time = time <= end, np.minimum(time, end)
    lacks = rng.random((2, n)) < 0.4
    means, pattern, unseen = x.copy(), np.zeros(n, dtype=int), np.zeros((3, 4, 4))
    for k, gone in enumerate(([0, 1], [2, 3])):
        other, rows = [j for j in range(4) if j not in gone], lacks[k] & ~lacks[1 - k]
        slope = sigma[np.ix_(gone, other)] @ np.linalg.inv(sigma[np.ix_(other, other)])
        means[np.ix_(rows, gone)] = x[np.ix_(rows, other)] @ slope.T
        block = np.ix_(gone, gone)
        unseen[k + 1][block] = sigma[block] - slope @ sigma[np.ix_(other, gone)]
        pattern[rows] = k + 1
    whole, some = ~lacks.any(axis=0), ~lacks.all(axis=0)
    alone, information = oracle.step_with_offset(
        np.zeros(4), x[whole], time[whole], event[whole], np.zeros(whole.sum()), 8
    )
    fits = [(alone, np.sqrt(np.diag(np.linalg.inv(information))))]
    risk = risk_sets(time[some], event[some], np.zeros(some.sum(), dtype=int), 60, 20)
    own, centre = means[some] - means[some].mean(axis=0), -means[some].mean(axis=0)
    known = Completed(unseen, np.tile(centre, (3, 1)), sigma - unseen, pattern[some])
    hazards, levels, b = UnseenHazards(known, risk), np.ones(len(risk.exposure)), np.zeros(4)
    for _ in range(12):
        exposure, rates = hazards.exposure(b, levels)
        weight = np.exp(own @ b)
        sums = exposure @ weight, (exposure * weight) @ own
        at = hazards.of(b, *sums, rates)
        levels = at.levels
        products = (own.T * (levels @ exposure * weight)) @ own
        curvature = hazards.curvature(b, *sums, products, levels, rates)
        score = own[event[some]].sum(axis=0) - levels @ at.columns
        b = b + np.linalg.solve((curvature + curvature.T) / 2, score)
    varies = products - risk.taken_by(levels, at.columns) + hazards.spread(b, levels, rates)
    back = np.linalg.inv(curvature)
    fits.append((b, np.sqrt(np.diag(back @ varies @ back.T))))
    found = [[b - beta, error, np.abs(b - beta) < 1.96 * error] for b, error in fits]
    return np.array(found, dtype=float), event.mean()


DRAWS = 40


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("last", [0.2, 2.0, 20.0])
def test_completed_rows_over_many_draws(strength, last):
    """Prints the table of docs/methods/cox.md, there with these DRAWS."""
    runs, events = zip(*(pooled_fits(seed, strength, last) for seed in range(DRAWS)), strict=True)
    found, share = np.array(runs), np.mean(events)
    root = np.sqrt((found[:, :, 0] ** 2).mean(axis=(0, 2)))
    slope = 1 + (found[:, :, 0].mean(axis=0) / (strength * BETA)).mean(axis=1)
    covered = 100 * found[:, :, 2].mean(axis=(0, 2))
    numbers = [*root.round(3), *slope.round(2), *covered.round(1)]
    print(f"| {strength:g} | {100 * share:.0f}% | " + " | ".join(map(str, numbers)) + " |")
    assert (covered > 90).all()
    assert 0.95 < slope[1] < 1.05
    assert root[1] < (1.0 if strength < 2.0 else 1.3) * root[0]


def test_samples_that_a_party_lacks_are_left_out_and_others_predicted():
    tables, time, event = cohort(900, 7)
    tables["clinic"], tables["laboratory"] = tables["clinic"][50:], tables["laboratory"][:860]
    time = time.where(np.arange(900) < 700)
    labels = survival_labels(time, event)
    result = run(tables, labels)
    assert result.metrics["n_samples"] == 650
    pd.testing.assert_series_equal(result.labels, labels)
    found = result.predictions
    assert len(found) == 200
    x = pd.concat([tables["clinic"], tables["laboratory"]], axis=1).loc[time.index[700:860]]
    centre = result.model.means["mean"].to_numpy()
    eta = (x.to_numpy() - centre) @ result.coefficients["estimate"].to_numpy()
    both = found.loc[x.index]
    np.testing.assert_allclose(both["linear_predictor"], eta, atol=0.03)
    np.testing.assert_allclose(both["prediction"], np.exp(eta), rtol=0.03)
    later = simulate(Predict(result), tables, fitted=result).predictions
    np.testing.assert_allclose(later.loc[x.index, "prediction"], both["prediction"], rtol=1e-9)


def concordant_share(time, event, stratum, risk):
    """Pair by pair: 1 where the larger risk ends first, half where risks are equal."""
    hits = [
        1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
        for i in np.flatnonzero(event)
        for j in range(len(time))
        if stratum[i] == stratum[j] and (time[i] < time[j] or (time[i] == time[j] and not event[j]))
    ]
    return np.mean(hits)


@pytest.mark.parametrize("seed", range(3))
def test_concordance_index_is_that_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    time, risk = rng.integers(1, 20, 150) * 1.0, np.round(rng.normal(size=150), 1)
    event, stratum = rng.random(150) < 0.4, rng.integers(0, 3, 150)
    found = concordance_index(time, event, stratum, risk)
    assert found == pytest.approx(concordant_share(time, event, stratum, risk), abs=1e-12)
    at_once = np.zeros(150)
    assert np.isnan(concordance_index(at_once, np.ones(150, dtype=bool), stratum, risk))


def test_survival_curves_are_those_of_statsmodels():
    rng = np.random.default_rng(3)
    time, event = rng.integers(1, 15, 200) * 1.0, rng.random(200) < 0.5
    at, share = survival_curve(time, event)
    expected = SurvfuncRight(time, event.astype(int))
    np.testing.assert_array_equal(at, expected.surv_times)
    np.testing.assert_allclose(share, expected.surv_prob, rtol=1e-12)


@pytest.mark.parametrize("span", [None, 50.0])
def test_relative_hazards_are_compared_with_times(span):
    tables, time, event = cohort(900, 7)
    strata = pd.Series(np.arange(900) % 2, time.index)
    labels = survival_labels(time, event, *([] if span is None else [strata, span]))
    known = labels.where(np.arange(900) < 700)
    result = run(
        tables, known, Cox(stratum_span=span), test_labels=labels, beside_single_parties=True
    )
    hidden = labels.index[700:]
    stratum = np.zeros(200) if span is None else strata[hidden].to_numpy()
    hazard = result.predictions.loc[hidden, "hazard_ratio"].to_numpy()
    expected = concordant_share(
        time[hidden].to_numpy(), event[hidden].to_numpy() == 1, stratum, hazard
    )
    assert result.metrics["test_concordance"] == pytest.approx(expected, abs=1e-12)
    assert 0.6 < expected < 0.8
    table = result.evaluation.table()["concordance"]
    assert table["constant"] == 0.5 < table["laboratory alone"] < expected
    assert "In thirds by their predicted hazards" in report_html(result)
    later = result.predict({name: table[700:] for name, table in tables.items()}, labels[700:])
    assert later.metrics["concordance"] == pytest.approx(expected, abs=2e-3)
    with pytest.raises(ConfigError, match="whose labels are times"):
        result.evaluate(labels, task="numbers")
    with pytest.raises(DataError, match="a time of 0 has no sign"):
        result.evaluate(labels * 0.0)
    assert result.evaluation.table()["concordance"].equals(table)  # of what was right


def test_hazards_of_folds_and_of_a_pipeline_are_compared_with_times():
    tables, time, event = cohort(900, 7)
    labels = survival_labels(time, event)
    found = cross_validate(Cox(), tables, labels, folds=3, progress=False)
    assert found.score == "concordance"
    assert 0.6 < found.scores.loc["concordance", "mean"] < 0.8
    result = run(tables, labels, Pipeline([("fit", Cox()), ("evaluate", None)]))
    assert 0.6 < result.metrics["test_concordance"] < 0.85


def test_results_come_back_and_reports_show_survival(fitted, tmp_path, drawn):
    loaded = Result.load(fitted.save(tmp_path / "r"))
    pd.testing.assert_frame_equal(loaded.model.summary(), fitted.model.summary())
    text = report_html(loaded)
    for title in ("Survival", "Hazard ratios", "Proportional hazards"):
        assert f">{title}<" in text


def test_concordance_is_that_of_drawn_pairs():
    rng = np.random.default_rng(0)
    eta = rng.normal(scale=0.8, size=(2, 400_000))
    chance = 1 / (1 + np.exp(-np.abs(eta[0] - eta[1])))
    assert concordance(0.8) == pytest.approx(chance.mean(), abs=2e-3)
    assert concordance(0.0) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y.abs() * 0, "are the same|has no sign"),
        (lambda y: -y.abs(), "no event was observed"),
        (lambda y: y.where(y < 0, -y).mask(np.arange(300) < 5, 1.0), "5 events among the 300"),
        (lambda y: None, "cox needs labels"),
    ],
)
def test_labels_that_are_no_times_are_refused(data, change, message):
    tables, time, event = data
    with pytest.raises(DataError, match=message):
        run(tables, change(survival_labels(time, event)))


def test_labels_are_made_of_times_above_0_and_events(data):
    _, time, event = data
    with pytest.raises(DataError, match="above 0, got -"):
        survival_labels(time - 1.0, event)
    with pytest.raises(DataError, match="event must be 1"):
        survival_labels(time, event + 1)
    with pytest.raises(DataError, match="sample IDs of time"):
        survival_labels(time, event[::-1])
    with pytest.raises(DataError, match="no time reaches"):
        survival_labels(time, event, event, 1.0)
    with pytest.raises(DataError, match="and finite"):
        survival_labels(time.where(np.arange(len(time)) > 0, np.inf), event)
    for wrong in (event - 1, event + 0.5, event.where(np.arange(len(event)) > 0)):
        with pytest.raises(DataError, match="whole numbers from 0"):  # -1 would turn signs around
            survival_labels(time, event, wrong, 1e4)
    with pytest.raises(DataError, match="event must be numbers"):
        survival_labels(time, event.map({0.0: "no", 1.0: "yes"}))
    with pytest.raises(DataError, match="time must be numbers, got dtype timedelta"):
        survival_labels(pd.to_timedelta(time, unit="D"), event)


def test_strata_keep_their_numbers():
    """Those without complete rows are left out, and the others are not counted anew."""
    tables, time, event = cohort(600, 6)
    strata = pd.Series(np.arange(600) % 3 * 2, time.index)
    some = {"clinic": tables["clinic"][strata != 0], "laboratory": tables["laboratory"]}
    labels = survival_labels(time, event, strata, stratum_span=1000.0)
    model = run(some, labels, Cox(stratum_span=1000.0)).model
    assert set(model.baseline["stratum"]) == {2, 4}
    row = pd.DataFrame([model.means["mean"].to_numpy()])
    own = model.baseline.query("stratum == 4")["survival"]
    np.testing.assert_allclose(model.survival(row, stratum=4)[0], own)
    with pytest.raises(DataError, match=r"no stratum 0; its strata are \[2, 4\]"):
        model.survival(row)
    with pytest.raises(DataError, match="stratum 4 has 67 samples"):
        run(some, labels.where((strata != 4) | (np.arange(600) > 400)), Cox(stratum_span=1000.0))


def test_survival_takes_columns_by_name(fitted, data):
    tables = data[0]
    rows = pd.concat(tables.values(), axis=1).iloc[:5]
    names = fitted.model.means.index.get_level_values(1)
    expected = fitted.model.survival(rows[names].set_axis(range(len(names)), axis=1))
    turned = rows[names[::-1]].assign(more="x")
    pd.testing.assert_frame_equal(fitted.model.survival(turned), expected)
    by_party = pd.concat(tables, axis=1).iloc[:5, ::-1]
    pd.testing.assert_frame_equal(fitted.model.survival(by_party), expected)
    for wrong in (turned.drop(columns=names[0]), pd.concat([turned, turned], axis=1)):
        with pytest.raises(DataError, match="rows need the columns of the fit"):
            fitted.model.survival(wrong)


def test_a_level_without_events_is_named():
    tables, time, event = cohort(1000, 8)
    event = event.where(tables["clinic"]["sex"] == 0, 0.0)
    with pytest.raises(DataError, match=r"clinic\.sex"):
        run(tables, survival_labels(time, event))


def test_columns_that_follow_from_others_are_left_out():
    tables, time, event = cohort(1000, 9)
    labels = survival_labels(time, event)
    plain = run(tables, labels)
    tables["laboratory"]["copy"] = 2 * tables["clinic"]["age"] + 1
    found = run(tables, labels)
    copy = ("laboratory", "copy")
    assert found.coefficients.loc[copy, ["estimate", "std_error"]].isna().all()
    pd.testing.assert_frame_equal(
        found.coefficients.drop(index=[copy]), plain.coefficients, rtol=1e-3, atol=1e-5
    )
    assert found.metrics["lr_p_value"] == pytest.approx(plain.metrics["lr_p_value"], rel=1e-3)
    said = "columns ['laboratory.copy'] follow from others; they are left out"
    assert any(said in text for text in found.notes)


COPIES = {
    "time": lambda time, event: time,
    "years": lambda time, event: -np.ceil(time),
    "logarithm": lambda time, event: np.log(time),
    "event": lambda time, event: event,
}


@pytest.mark.parametrize(
    "name", ["time", "years", "event", pytest.param("logarithm", marks=pytest.mark.slow)]
)
def test_columns_that_tell_times_are_named(name):
    tables, time, event = cohort(600, 3)
    tables["laboratory"]["left"] = COPIES[name](time, event)
    said = r"\['laboratory.left'\] nearly tell the times or events"
    try:
        notes = " ".join(run(tables, survival_labels(time, event)).notes)
    except DataError as error:  # no maximum
        notes = str(error)
    assert re.search(said, notes)


@pytest.mark.parametrize("censored", [True, False])
def test_columns_of_strong_effects_do_not_tell_times(censored):
    rng, n = np.random.default_rng(0), 600
    x = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    time = pd.Series(rng.exponential(size=n) / np.exp(1.2 * x["a"] - x["b"]))
    end = time.median() if censored else np.inf
    labels = survival_labels(time.clip(upper=end), (time < end) * 1.0)
    result = run({"clinic": x[["a"]], "laboratory": x[["b"]]}, labels)
    assert not any("tell the times" in text for text in result.notes)
