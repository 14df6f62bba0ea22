"""Federated least squares against least squares on the pooled table; the three baselines."""

import logging

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Strategy, simulate, step
from flwr_vertical.alignment import Alignment
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.node.service import StepServer
from strategies.least_squares import (
    CompleteCase,
    LeastSquaresParty,
    MeanImpute,
    Single,
    solve,
)
from strategies.regression import open_problem
from strategies.regression.least_squares.inference import completed_labels, variance_correction

OPENING = 2  # greeting and alignment
FEDERATED = {"complete": CompleteCase, "imputed": MeanImpute}
both = pytest.mark.parametrize("rows", ["complete", "imputed"])


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def make_data(sizes=(3, 2, 4), n=300, missing=0.2, unlabelled=20, rho=0.0, seed=0, noise=1.0):
    """Columns in all kinds of units; each party lacks random samples, the first have no label."""
    rng = np.random.default_rng(seed)
    p = sum(sizes)
    x = np.sqrt(1 - rho) * rng.normal(size=(n, p)) + np.sqrt(rho) * rng.normal(size=(n, 1))
    x = (x + rng.normal(size=p)) * 10.0 ** rng.uniform(-3, 3, size=p)
    y = 40.0 + 5.0 * (x / x.std(axis=0) @ rng.normal(size=p) + noise * rng.normal(size=n))
    ids = [f"firm {i:03}" for i in range(n)]
    tables, start = {}, 0
    for k, size in enumerate(sizes):
        columns = [f"x{j}" for j in range(start, start + size)]
        table = pd.DataFrame(x[:, start : start + size], columns=columns, index=ids)
        tables[f"party {k}"] = table[rng.random(n) >= missing] if len(sizes) > 1 else table
        start += size
    return tables, pd.Series(y, index=ids, name="profit").where(np.arange(n) >= unlabelled)


def pool(tables, labels, rows):
    """Return design and labels of the rows of a fit, and all rows with means imputed."""
    joined = pd.concat([tables[name].reindex(labels.index) for name in sorted(tables)], axis=1)
    known = labels.notna() & joined.notna().any(axis=1)
    if rows == "complete":
        known &= joined.notna().all(axis=1)
    imputed = joined.fillna(joined[known].mean())
    return imputed[known].to_numpy(), labels[known].to_numpy(), imputed


def ols(x, y, intercept=True):
    """Coefficients, covariance, noise variance and R squared by their formulas."""
    if intercept:
        x = np.column_stack([np.ones(len(x)), x])
    scale = np.linalg.norm(x, axis=0)
    beta = np.linalg.lstsq(x / scale, y, rcond=None)[0] / scale
    rss = float(((y - x @ beta) ** 2).sum())
    sigma2 = rss / (len(y) - x.shape[1])
    inverse = np.linalg.inv((x / scale).T @ (x / scale)) / np.outer(scale, scale)
    tss = float(((y - intercept * y.mean()) ** 2).sum())
    return beta, sigma2 * inverse, sigma2, 1 - rss / tss


def run(strategy, tables, labels, mode="plain", **kwargs):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    return simulate(strategy, tables, labels, aggregation=mode, progress=False, **kwargs)


def error(result, beta, covariance):
    """Largest distance to the coefficients, in standard errors."""
    found = result.coefficients["estimate"].to_numpy()
    return np.abs((found - beta) / np.sqrt(np.diag(covariance))).max()


# -- the fit ---------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sizes", [(4,), (1, 1), (3, 2, 4), (2, 1, 3, 1), (1, 2, 1, 2, 1, 2)])
@pytest.mark.parametrize(("mode", "tolerance"), [("plain", 1e-10), ("masked", 1e-7)])
def test_equals_least_squares_on_the_pooled_table(rows, intercept, sizes, mode, tolerance):
    tables, labels = make_data(sizes, seed=len(sizes))
    result = run(FEDERATED[rows](intercept=intercept), tables, labels, mode)
    x, y, _ = pool(tables, labels, rows)
    beta, covariance, sigma2, r2 = ols(x, y, intercept)
    assert error(result, beta, covariance) < tolerance
    assert result.metrics["n_samples"] == len(y)
    assert result.metrics["converged"] == 1.0
    assert result.metrics["sigma2"] == pytest.approx(sigma2, rel=1e-9)
    assert result.metrics["r2"] == pytest.approx(r2, rel=1e-9)
    p = x.shape[1]
    adjusted = 1 - (1 - r2) * (len(y) - intercept) / (len(y) - p - intercept)
    assert result.metrics["adjusted_r2"] == pytest.approx(adjusted, rel=1e-9)


@both
def test_equals_it_under_encryption(rows):
    tables, labels = make_data()
    result = run(FEDERATED[rows](), tables, labels, "ckks")
    x, y, _ = pool(tables, labels, rows)
    assert error(result, *ols(x, y)[:2]) < 2e-5
    plain = run(FEDERATED[rows](), tables, labels)
    predicted, same = result.predictions, plain.predictions
    np.testing.assert_allclose(predicted["prediction"], same["prediction"], rtol=1e-5)
    np.testing.assert_allclose(predicted["std_error"], same["std_error"], rtol=1e-5)


@both
@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("intercept", [True, False])
def test_columns_of_different_parties_may_be_correlated(rows, mode, intercept):
    for rho in (0.5, 0.99, 0.99999):
        tables, labels = make_data(rho=rho, missing=0.1)
        result = run(FEDERATED[rows](intercept=intercept), tables, labels, mode)
        x, y, _ = pool(tables, labels, rows)
        assert error(result, *ols(x, y, intercept)[:2]) < 1e-6
        assert result.metrics["converged"] == 1.0
        assert result.metrics["iterations"] <= 9 + 3


@both
def test_the_unit_of_the_labels_does_not_matter(rows):
    tables, labels = make_data()
    x, y, _ = pool(tables, labels, rows)
    for factor in (1e-9, 1e12):
        for standardize in (True, False):
            strategy = FEDERATED[rows](standardize=standardize)
            result = run(strategy, tables, labels * factor, "masked")
            assert error(result, *ols(x, y * factor)[:2]) < 1e-7


@both
def test_labels_that_fit_exactly(rows):
    tables, labels = make_data(noise=0.0, missing=0.05 if rows == "complete" else 0.0)
    result = run(FEDERATED[rows](), tables, labels, "masked")
    assert result.metrics["converged"] == 1.0
    assert result.metrics["r2"] == pytest.approx(1.0, abs=1e-12)
    x, y, _ = pool(tables, labels, rows)
    design = np.column_stack([np.ones(len(x)), x])
    np.testing.assert_allclose(design @ result.coefficients["estimate"], y, rtol=1e-8)


def test_mean_impute_uses_the_means_of_rows_with_a_label():
    """The first samples have no label and other values; they must not enter the means."""
    tables, labels = make_data()
    for table in tables.values():
        table.loc[table.index.isin(labels.index[:20])] *= 100.0
    result = run(MeanImpute(), tables, labels)
    x, y, _ = pool(tables, labels, "imputed")
    assert error(result, *ols(x, y)[:2]) < 1e-10


# -- rounds ----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_an_iteration_is_one_round(rows, mode):
    tables, labels = make_data()
    result = run(FEDERATED[rows](), tables, labels, mode)
    rounds = result.metrics["iterations"] + (len(result.history) + 1 if mode == "ckks" else 0)
    assert result.ledger.rounds == OPENING + 1 + rounds + 1
    frame = result.ledger.to_frame()
    steps = list(frame[frame["party"] == "party 0"]["step"])
    assert steps.count("ls_step") == result.metrics["iterations"] == len(result.history)
    assert list(dict.fromkeys(steps))[-3:] == ["prepare", "ls_step", "ls_finish"]
    assert [entry["iteration"] for entry in result.history] == [*range(1, len(result.history) + 1)]


def test_a_party_gets_the_residual_of_the_rows_it_holds_only():
    tables, labels = make_data()
    frame = run(MeanImpute(), tables, labels).ledger.to_frame()
    labelled = labels.index[20:]
    for name, table in tables.items():
        sent = frame[(frame["step"] == "ls_step") & (frame["party"] == name)]["bytes_down"]
        assert (abs(sent - 8 * table.index.isin(labelled).sum()) < 200).all()


def test_few_iterations_if_parties_are_uncorrelated():
    tables, labels = make_data((8, 8, 8), n=20_000, missing=0.1)
    assert run(CompleteCase(), tables, labels, "masked").metrics["iterations"] <= 8
    assert run(CompleteCase(tol=1e-4), tables, labels, "masked").metrics["iterations"] <= 4
    assert run(CompleteCase(), *make_data((5,)), "masked").metrics["iterations"] == 1


def test_the_residual_shrinks_and_the_gradient_vanishes():
    history = run(MeanImpute(), *make_data(rho=0.6)).history
    rss = [entry["residual_sum_of_squares"] for entry in history]
    assert (np.diff(rss) <= 1e-9 * rss[0]).all()
    assert history[0]["gradient"] == 1.0
    assert history[-1]["gradient"] < 1e-10


def test_too_few_iterations_are_told():
    result = run(CompleteCase(max_iter=2), *make_data())
    assert result.metrics["converged"] == 0.0
    assert result.metrics["iterations"] == 2
    assert any("raise max_iter" in note for note in result.notes)


def test_nothing_hangs_on_a_process(monkeypatch):
    """Each message in a new process: no cache survives."""
    tables, labels = make_data()
    for strategy in (CompleteCase(), MeanImpute(intercept=False), Single()):
        usual = run(strategy, tables, labels, "masked")
        with monkeypatch.context() as patch:
            patch.setattr(StepServer, "_cache", lambda self, context: {})
            again = run(strategy, tables, labels, "masked")
        pd.testing.assert_frame_equal(usual.coefficients, again.coefficients, check_exact=True)
        pd.testing.assert_frame_equal(usual.predictions, again.predictions, check_exact=True)


class TellingParty(LeastSquaresParty):
    @step
    def tell(self):
        beta = self.least_squares.solution()
        return {"beta": beta, "x": self.data.x, "left": "ls.directions" in self.state}


class Twice(Strategy):
    """Solves two problems after another, as VFEM may for its initial values."""

    name = "twice"
    party = TellingParty

    def run(self, federation, alignment, result, progress):
        problem = open_problem(
            federation, alignment, result, encoding="none", missing_cells="error",
            missing_labels="drop", standardize=True, intercept=True,
        )  # fmt: skip
        result.model = []
        for rows in ("imputed", "complete"):
            fit = solve(federation, problem, rows, tol=1e-12, progress=progress)
            result.model.append((problem, fit, federation.call("tell")))


def test_parties_hold_the_solution_for_their_standardised_columns():
    tables, labels = make_data()
    for (problem, fit, told), rows in zip(
        run(Twice(), tables, labels).model, ["imputed", "complete"], strict=True
    ):
        total = np.full(len(problem.y), fit.intercept)
        for k, name in enumerate(sorted(tables)):
            assert not told[name]["left"]
            total[~problem.mask[:, k]] += told[name]["x"] @ told[name]["beta"]
        x, y, _ = pool(tables, labels, rows)
        beta, _, sigma2, _ = ols(x, y)
        chosen = ~problem.mask.any(axis=1) if rows == "complete" else slice(None)
        expected = np.column_stack([np.ones(len(x)), x]) @ beta
        np.testing.assert_allclose(
            np.sort(problem.y_center + problem.y_scale * total[chosen]), np.sort(expected)
        )
        assert fit.sigma2 * problem.y_scale**2 == pytest.approx(sigma2)
        assert fit.sigma2_ml * fit.n_samples == pytest.approx(fit.rss)
        assert fit.converged
        assert fit.iterations == len(fit.history)


# -- standard errors -------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_single_is_ordinary_least_squares(intercept, standardize):
    tables, labels = make_data()
    strategy = Single("party 1", intercept=intercept, standardize=standardize)
    result = run(strategy, tables, labels, "masked")
    x, y, _ = pool({"party 1": tables["party 1"]}, labels, "complete")
    beta, covariance, sigma2, r2 = ols(x, y, intercept)
    table = result.coefficients
    named = {"party 1", "server"} if intercept else {"party 1"}
    assert set(table.index.get_level_values("party")) == named
    np.testing.assert_allclose(table["estimate"], beta, rtol=1e-10)
    np.testing.assert_allclose(table["std_error"], np.sqrt(np.diag(covariance)), rtol=1e-10)
    assert result.metrics["sigma2"] == pytest.approx(sigma2)
    assert result.metrics["r2"] == pytest.approx(r2)
    assert result.metrics["n_samples"] == len(y)
    assert result.ledger.rounds == OPENING + 2
    frame = result.ledger.to_frame()
    assert set(frame[frame["step"] == "ls_single"]["party"]) == {"party 1"}


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), Single()])
def test_with_one_party_all_three_are_the_same(strategy):
    tables, labels = make_data((4,))
    result = run(strategy, tables, labels, "masked")
    x, y, _ = pool(tables, labels, "complete")
    beta, covariance, *_ = ols(x, y)
    np.testing.assert_allclose(result.coefficients["estimate"], beta, rtol=1e-8)
    std_error = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(result.coefficients["std_error"], std_error, rtol=1e-8)
    assert result.notes == ["20 samples have no label: not fitted, but predicted"]


@both
@pytest.mark.parametrize("intercept", [True, False])
def test_standard_errors_without_products_across_parties(rows, intercept):
    """Right on average if columns of different parties are independent, whatever their means."""
    ratios = []
    for seed in range(4):
        tables, labels = make_data((2, 3, 1), n=1500, missing=0.1, seed=seed)
        result = run(FEDERATED[rows](intercept=intercept), tables, labels)
        x, y, _ = pool(tables, labels, rows)
        exact = np.sqrt(np.diag(ols(x, y, intercept)[1]))
        ratios.append(result.coefficients["std_error"] / exact)
    ratios = np.array(ratios)
    np.testing.assert_allclose(ratios, 1.0, atol=0.05)
    assert ratios.mean() == pytest.approx(1.0, abs=0.01)


def test_the_correction_is_the_mean_over_tables():
    rng = np.random.default_rng(0)
    n, own, other = 30, 3, 8
    exact, alone = [], []
    for _ in range(4000):
        z = rng.normal(size=(n, own + other))
        z -= z.mean(axis=0)
        gram = z.T @ z
        exact.append(np.trace(np.linalg.inv(gram)[:own, :own]))
        alone.append(np.trace(np.linalg.inv(gram[:own, :own])))
    correction = variance_correction(n, own, own + other + 1, True)
    assert np.mean(exact) / np.mean(alone) == pytest.approx(correction, rel=0.02)
    assert variance_correction(n, own, own + 1, True) == 1.0


def test_without_standard_errors():
    for strategy in (CompleteCase(standard_errors=False), Single(standard_errors=False)):
        result = run(strategy, *make_data())
        assert list(result.coefficients.columns) == ["estimate"]
        assert result.predictions["prediction"].notna().all()
        assert result.predictions[["std_error", "lower", "upper"]].isna().all(axis=None)


# -- predictions -----------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alignment", ["plain", "private-id"])
def test_predictions_take_the_mean_for_missing_blocks(intercept, alignment):
    tables, labels = make_data(missing=0.3)
    for rows, strategy in FEDERATED.items():
        result = run(strategy(intercept=intercept), tables, labels, "masked", alignment=alignment)
        x, y, imputed = pool(tables, labels, rows)
        free = [name for name in labels.index[:20] if name in set(result.predictions.index)]
        assert len(free) == len(result.predictions) > 15
        design = imputed.loc[free].to_numpy()
        if intercept:
            design = np.column_stack([np.ones(len(free)), design])
        beta, covariance, sigma2, _ = ols(x, y, intercept)
        found = result.predictions.loc[free]
        np.testing.assert_allclose(found["prediction"], design @ beta, rtol=1e-7)
        lacking = pd.DataFrame({name: ~pd.Index(free).isin(t.index) for name, t in tables.items()})
        whole = ~lacking.any(axis=1).to_numpy()
        assert 0 < whole.sum() < len(free)
        spread = np.sqrt(sigma2 + ((design @ covariance) * design).sum(axis=1))
        np.testing.assert_allclose(found["std_error"][whole], spread[whole], rtol=0.02)
        if rows == "complete":  # what the missing columns would have told comes on top
            variance = spread**2
            for name, table in tables.items():
                own = [imputed.columns.get_loc(column) for column in table]
                explained = np.var(x[:, own] @ beta[intercept:][own])
                variance += lacking[name].to_numpy() * explained
            np.testing.assert_allclose(found["std_error"], np.sqrt(variance), rtol=0.02)
        half = 1.959964 * found["std_error"]
        np.testing.assert_allclose(found["upper"] - found["prediction"], half, rtol=1e-6)
        np.testing.assert_allclose(found["prediction"] - found["lower"], half, rtol=1e-6)


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), Single()])
def test_intervals_cover_the_labels(strategy):
    tables, labels = make_data(n=3000, unlabelled=0, missing=0.3, seed=5)
    known = labels.where(np.arange(3000) >= 1000)
    found = run(strategy, tables, known).predictions
    truth = labels[found.index]
    assert ((found["lower"] < truth) & (truth < found["upper"])).mean() == pytest.approx(
        0.95, abs=0.02
    )


def test_single_predicts_from_its_own_columns():
    tables, labels = make_data()
    result = run(Single("party 2"), tables, labels)
    x, y, imputed = pool({"party 2": tables["party 2"]}, labels, "complete")
    beta, covariance, sigma2, _ = ols(x, y)
    found = result.predictions
    rows = np.column_stack([np.ones(len(found)), imputed.loc[found.index]])
    np.testing.assert_allclose(found["prediction"], rows @ beta)
    held = found.index.isin(tables["party 2"].index)
    assert 0 < held.sum() < len(held)
    variance = sigma2 + ((rows @ covariance) * rows).sum(axis=1)
    variance[~held] += np.var(x @ beta[1:])
    np.testing.assert_allclose(found["std_error"], np.sqrt(variance))


def test_labels_are_completed():
    tables, labels = make_data()
    aligned = set().union(*(table.index for table in tables.values()))
    shuffled = labels.sample(frac=1.0, random_state=1).drop("firm 003")  # a party has this one
    shuffled["nobody's"] = np.nan
    before = shuffled.copy()
    result = run(CompleteCase(), tables, shuffled)
    pd.testing.assert_series_equal(shuffled, before)
    completed = result.labels
    assert list(completed.index) == [*shuffled.index, "firm 003"]
    assert completed.name == "profit"
    given = shuffled.dropna()
    pd.testing.assert_series_equal(completed[given.index], given)
    for name in [name for name in completed.index if name not in given.index and name in aligned]:
        assert completed[name] == result.predictions.loc[name, "prediction"]
    assert np.isnan(completed["nobody's"])
    everything = run(CompleteCase(), tables, labels.dropna(), align_rows="labelled")
    assert everything.predictions is None
    pd.testing.assert_series_equal(everything.labels, labels.dropna())


@pytest.mark.parametrize("alignment", ["plain", "private-id"])
def test_labels_with_composite_ids_are_completed(alignment):
    tables, labels = make_data((2, 2), missing=0.1)
    tables = {
        name: table.set_index(pd.MultiIndex.from_tuples([tuple(i.split()) for i in table.index]))
        for name, table in tables.items()
    }
    labels.index = pd.MultiIndex.from_tuples([tuple(name.split()) for name in labels.index])
    result = run(Single("party 0"), tables, labels, alignment=alignment)
    assert result.labels.index.equals(labels.index)
    assert result.predictions.index[0].startswith("firm|")
    assert result.labels.isna().sum() == 20 - len(result.predictions)


def test_labels_of_a_party_are_completed_in_aligned_order():
    alignment = Alignment(["a"], np.zeros((3, 1), dtype=bool), pd.Index(["u", "v", "w"]))
    predicted = pd.DataFrame({"prediction": [7.0]}, index=["v"])
    known = np.array([1.0, np.nan, 3.0])
    completed = completed_labels(alignment, None, known, predicted, np.array([1]))
    assert completed.to_dict() == {"u": 1.0, "v": 7.0, "w": 3.0}


# -- odd tables ------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("intercept", [True, False])
def test_constant_and_collinear_columns(rows, intercept):
    """The fit is that of least squares; coefficients that the data leave open have no error."""
    tables, labels = make_data((3, 2), missing=0.1)
    plain = run(FEDERATED[rows](intercept=intercept), tables, labels, "masked")
    tables["party 0"]["twice"] = 2.0 * tables["party 0"]["x1"]
    if intercept:
        tables["party 1"]["one"] = 0.1
    result = run(FEDERATED[rows](intercept=intercept), tables, labels, "masked")
    table = result.coefficients
    assert result.metrics["converged"] == 1.0
    assert result.metrics["r2"] == pytest.approx(plain.metrics["r2"], rel=1e-9)
    assert result.metrics["sigma2"] == pytest.approx(plain.metrics["sigma2"], rel=1e-9)
    found = result.predictions["prediction"]
    np.testing.assert_allclose(found, plain.predictions["prediction"], rtol=1e-5)
    unknown = set(table.index[table["std_error"].isna()].get_level_values("variable"))
    assert unknown == {"x1", "twice"} | ({"one"} if intercept else set())
    shared = [key for key in plain.coefficients.index if key[1] != "x1"]
    np.testing.assert_allclose(
        table.loc[shared, "std_error"], plain.coefficients.loc[shared, "std_error"], rtol=1e-3
    )
    assert any("'twice'" in note for note in result.notes)


def test_single_with_a_collinear_column():
    tables, labels = make_data((3, 2))
    plain = run(Single(), tables, labels)
    tables["party 0"]["sum"] = tables["party 0"]["x0"] + 3.0 * tables["party 0"]["x1"]
    tables["party 0"]["zero"] = 0.0
    result = run(Single(), tables, labels)
    assert result.metrics["r2"] == pytest.approx(plain.metrics["r2"], rel=1e-12)
    assert result.metrics["adjusted_r2"] == pytest.approx(plain.metrics["adjusted_r2"], rel=1e-12)
    found = result.predictions["prediction"]
    np.testing.assert_allclose(found, plain.predictions["prediction"], rtol=1e-9)
    assert result.coefficients.loc[("party 0", "zero"), "estimate"] == 0.0


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_the_same_column_at_two_parties(mode):
    tables, labels = make_data((3, 2), missing=0.0)
    x, y, _ = pool(tables, labels, "complete")
    tables["party 1"]["again"] = tables["party 0"]["x1"]
    result = run(CompleteCase(), tables, labels, mode)
    assert result.metrics["converged"] == 1.0
    assert result.metrics["r2"] == pytest.approx(ols(x, y)[3], rel=1e-9)
    assert np.isfinite(result.coefficients["estimate"]).all()


def test_a_column_that_is_constant_among_the_complete_rows():
    tables, labels = make_data((2, 2))
    common = tables["party 0"].index.intersection(tables["party 1"].index)
    tables["party 0"]["rare"] = (~tables["party 0"].index.isin(common)).astype(float)
    result = run(CompleteCase(), tables, labels, "masked")
    assert result.metrics["n_samples"] < len(common)
    assert np.isnan(result.coefficients.loc[("party 0", "rare"), "std_error"])
    assert any("['rare']" in note and "samples of the fit" in note for note in result.notes)
    assert np.isfinite(run(MeanImpute(), tables, labels).coefficients["std_error"]).all()


def test_levels_and_rows_with_missing_cells():
    tables, labels = make_data((2, 2), missing=0.1)
    rng = np.random.default_rng(1)
    town = pd.Series(rng.choice(["Delft", "Gent", "Ulm"], size=300), index=labels.index)
    tables["party 0"]["town"] = town.reindex(tables["party 0"].index)
    common = tables["party 1"].index.intersection(tables["party 0"].index)
    tables["party 1"].loc[common[::9], "x2"] = np.nan
    encoded, cleaned = tables["party 0"].copy(), tables["party 1"].dropna()
    for level in ("Gent", "Ulm"):
        encoded[f"town={level}"] = (encoded["town"] == level).astype(float)
    pooled = {"party 0": encoded.drop(columns="town"), "party 1": cleaned}
    for rows, strategy in FEDERATED.items():
        settings = {"encoding": "one-hot", "missing_cells": "drop-row"}
        result = run(strategy(**settings), tables, labels, "masked")
        x, y, _ = pool(pooled, labels, rows)
        assert error(result, *ols(x, y)[:2]) < 1e-7
        assert ("party 0", "town=Ulm") in result.coefficients.index


def test_single_does_not_look_at_the_other_parties_tables():
    tables, labels = make_data((2, 2))
    tables["party 1"].iloc[::3] = np.nan
    tables["party 1"]["text"] = "abc"
    result = run(Single("party 0"), tables, labels)
    assert result.notes == ["20 samples have no label: not fitted, but predicted"] or (
        len(result.predictions) < 20
    )
    with pytest.raises(PartyError, match="party 1"):
        run(Single("party 1"), tables, labels)


def test_single_takes_the_first_party_unless_told():
    result = run(Single(), *make_data())
    assert set(result.coefficients.index.get_level_values("party")) == {"server", "party 0"}
    assert any("party_name is not set" in note and "'party 0'" in note for note in result.notes)


# -- what cannot be fitted -------------------------------------------------------------------


def test_too_few_complete_rows():
    tables, labels = make_data((3, 3), n=60, unlabelled=0)
    first, second = labels.index[:34], labels.index[27:]  # 7 in common
    split = {"party 0": tables["party 0"], "party 1": tables["party 1"]}
    split = {
        n: t[t.index.isin(i)] for (n, t), i in zip(split.items(), (first, second), strict=True)
    }
    common = split["party 0"].index.intersection(split["party 1"].index)
    with pytest.raises(DataError, match=rf"hold {len(common)} of the \d+ .*need at least 8.*vfem"):
        run(CompleteCase(), split, labels)
    assert run(MeanImpute(), split, labels).metrics["converged"] == 1.0


def test_too_few_samples_for_all_columns_together():
    tables, labels = make_data((4, 4), n=9, unlabelled=0, missing=0.0)
    with pytest.raises(DataError, match="8 columns of all parties need at least 10"):
        run(MeanImpute(), tables, labels)


def test_missing_cells_levels_and_labels():
    tables, labels = make_data((2, 2))
    for strategy in (CompleteCase(), MeanImpute(), Single("party 0")):
        holed = {name: table.copy() for name, table in tables.items()}
        holed["party 0"].iloc[5, 1] = np.nan
        with pytest.raises(PartyError, match=r"party 0.*missing_cells='drop-row'"):
            run(strategy, holed, labels)
        holed["party 0"]["x1"] = "ABC"
        with pytest.raises(PartyError, match=r"party 0.*'x1' holds levels.*encoding='one-hot'"):
            run(strategy, holed, labels)
        with pytest.raises(DataError, match="needs labels"):
            run(strategy, tables, None)
        with pytest.raises(DataError, match="labels are the same"):
            run(strategy, tables, labels * 0.0)
    with pytest.raises(DataError, match="missing_labels is 'error'"):
        run(CompleteCase(missing_labels="error"), tables, labels)


def test_labels_that_differ_only_where_they_are_not_used():
    tables, labels = make_data((2, 2))
    labels = labels.where(~labels.index.isin(tables["party 0"].index) | labels.isna(), 3.3)
    for strategy in (CompleteCase(), Single()):
        with pytest.raises(DataError, match="are the same"):
            run(strategy, tables, labels)


def test_an_unknown_party():
    with pytest.raises(ConfigError, match=r"no party 'bank'.*\['party 0', 'party 1', 'party 2'\]"):
        run(Single("bank"), *make_data())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "two-hot"}, "encoding"),
        ({"missing_cells": "ignore"}, "missing_cells"),
        ({"missing_labels": "zero"}, "missing_labels"),
        ({"standardize": "false"}, "standardize"),
        ({"intercept": 1}, "intercept"),
        ({"standard_errors": None}, "standard_errors"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": True}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"tol": "small"}, "tol"),
        ({"tol": float("nan")}, "tol"),
    ],
)
def test_settings_are_checked(settings, message):
    for strategy in (CompleteCase, MeanImpute, Single):
        if strategy is Single and set(settings) & {"max_iter", "tol"}:
            continue
        with pytest.raises(ConfigError, match=message):
            strategy(**settings)


def test_the_name_of_the_party_is_checked():
    with pytest.raises(ConfigError, match="party_name"):
        Single(3)


def test_rows_to_fit_are_checked():
    with pytest.raises(ConfigError, match="rows"):
        solve(None, None, "some")
