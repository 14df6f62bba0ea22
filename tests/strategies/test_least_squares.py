"""The three baselines against least squares on the pooled table."""

import logging

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Alignment, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from strategies.glm_admm import GLMADMM
from strategies.least_squares import CompleteCase, MeanImpute, Single
from strategies.linear.prediction.server import completed_labels
from strategies.vfem import VFEM

OPENING = 2  # greeting and alignment
FEDERATED = {"complete": CompleteCase, "imputed": MeanImpute}
both = pytest.mark.parametrize("rows", ["complete", "imputed"])


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def make_data(sizes=(3, 2, 4), n=600, missing=0.4, unlabelled=20, rho=0.0, seed=0, noise=1.0):
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


def run(strategy, tables, labels, mode="masked", min_rows=10, **kwargs):
    return simulate(strategy, tables, labels, aggregation=mode, min_rows=min_rows, **kwargs)


def error(result, beta, covariance):
    """Largest distance to the coefficients, in standard errors."""
    found = result.coefficients["estimate"].to_numpy()
    return np.abs((found - beta) / np.sqrt(np.diag(covariance))).max()


# -- the fit ---------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 2, 4)])
def test_equals_least_squares_on_the_pooled_table(rows, intercept, sizes):
    tables, labels = make_data(sizes, seed=len(sizes))
    result = run(FEDERATED[rows](intercept=intercept), tables, labels)
    x, y, _ = pool(tables, labels, rows)
    beta, covariance, sigma2, r2 = ols(x, y, intercept)
    assert error(result, beta, covariance) < 1e-8
    np.testing.assert_allclose(
        result.coefficients["std_error"], np.sqrt(np.diag(covariance)), rtol=1e-8
    )
    assert result.metrics["n_samples"] == len(y)
    assert result.metrics["sigma2"] == pytest.approx(sigma2, rel=1e-9)
    assert result.metrics["r2"] == pytest.approx(r2, rel=1e-9)
    p = x.shape[1]
    adjusted = 1 - (1 - r2) * (len(y) - intercept) / (len(y) - p - intercept)
    assert result.metrics["adjusted_r2"] == pytest.approx(adjusted, rel=1e-9)
    assert not any("few rows" in note for note in result.notes)


@both
def test_columns_of_different_parties_may_be_correlated(rows):
    tables, labels = make_data(rho=0.99999)
    result = run(FEDERATED[rows](), tables, labels)
    x, y, _ = pool(tables, labels, rows)
    assert error(result, *ols(x, y)[:2]) < 1e-6


@both
def test_the_unit_of_the_labels_does_not_matter(rows):
    tables, labels = make_data()
    x, y, _ = pool(tables, labels, rows)
    for factor in (1e-9, 1e12):
        result = run(FEDERATED[rows](), tables, labels * factor, "plain")
        assert error(result, *ols(x, y * factor)[:2]) < 1e-7


@both
def test_labels_that_fit_exactly(rows):
    tables, labels = make_data(noise=0.0, missing=0.3 if rows == "complete" else 0.0)
    result = run(FEDERATED[rows](), tables, labels)
    assert result.metrics["r2"] == pytest.approx(1.0, abs=1e-12)
    x, y, _ = pool(tables, labels, rows)
    design = np.column_stack([np.ones(len(x)), x])
    np.testing.assert_allclose(design @ result.coefficients["estimate"], y, rtol=1e-6)


def test_mean_impute_uses_the_means_of_rows_with_a_label():
    """The first samples have no label and other values; they must not enter the means."""
    tables, labels = make_data()
    for table in tables.values():
        table.loc[table.index.isin(labels.index[:20])] *= 100.0
    result = run(MeanImpute(), tables, labels)
    x, y, _ = pool(tables, labels, "imputed")
    assert error(result, *ols(x, y)[:2]) < 1e-8


def test_mean_impute_takes_a_block_off_rows_that_are_few():
    """The few rows that both have count with one block; nothing is opened over them alone."""
    tables, labels = make_data((2, 2), n=300, missing=0.0, unlabelled=0)
    tables["party 0"] = tables["party 0"].iloc[:160]
    tables["party 1"] = tables["party 1"].iloc[145:]
    result = run(MeanImpute(), tables, labels, min_rows=20)
    assert result.metrics["rows_merged"] == 15
    tables["party 1"] = tables["party 1"].iloc[15:]  # as if it had not had them
    x, y, _ = pool(tables, labels, "imputed")
    assert error(result, *ols(x, y)[:2]) < 1e-8


# -- rounds and messages ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), Single()])
def test_five_rounds_after_alignment(strategy):
    result = run(strategy, *make_data())
    assert result.ledger.rounds == OPENING + 5
    steps = list(dict.fromkeys(result.ledger.to_frame()["step"]))
    assert steps[-5:] == [
        "prepare_moments",
        "seal_group_seed",
        "send_masked",
        "open_products",
        "finish_moments",
    ]


# -- Single ----------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
def test_single_is_ordinary_least_squares(intercept):
    tables, labels = make_data()
    result = run(Single("party 1", intercept=intercept), tables, labels)
    x, y, _ = pool({"party 1": tables["party 1"]}, labels, "complete")
    beta, covariance, sigma2, r2 = ols(x, y, intercept)
    table = result.coefficients
    named = {"party 1", "server"} if intercept else {"party 1"}
    assert set(table.index.get_level_values("party")) == named
    np.testing.assert_allclose(table["estimate"], beta, rtol=1e-8)
    np.testing.assert_allclose(table["std_error"], np.sqrt(np.diag(covariance)), rtol=1e-8)
    assert result.metrics["sigma2"] == pytest.approx(sigma2)
    assert result.metrics["r2"] == pytest.approx(r2)
    assert result.metrics["n_samples"] == len(y)


def test_without_standard_errors():
    for strategy in (CompleteCase(standard_errors=False), Single(standard_errors=False)):
        result = run(strategy, *make_data())
        assert list(result.coefficients.columns) == ["estimate"]
        assert result.predictions["prediction"].notna().all()


# -- predictions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("intercept", "alignment"), [(True, "private-id"), (False, "plain")])
def test_predictions_take_the_mean_for_missing_blocks(intercept, alignment):
    tables, labels = make_data(missing=0.3)
    for rows, strategy in FEDERATED.items():
        result = run(strategy(intercept=intercept), tables, labels, alignment=alignment)
        x, y, imputed = pool(tables, labels, rows)
        free = [name for name in labels.index[:20] if name in set(result.predictions.index)]
        assert len(free) == len(result.predictions) > 15
        if rows == "complete":
            joined = pd.concat([tables[n].reindex(labels.index) for n in sorted(tables)], axis=1)
            imputed = joined.fillna(dict(zip(joined.columns, x.mean(axis=0), strict=True)))
        design = imputed.loc[free].to_numpy()
        if intercept:
            design = np.column_stack([np.ones(len(free)), design])
        beta, _, sigma2, _ = ols(x, y, intercept)
        found = result.predictions.loc[free]
        # Each party rounds its term to 1 % of the noise, or coarser where its terms are far apart.
        np.testing.assert_allclose(
            found["prediction"], design @ beta, atol=0.2 * np.sqrt(sigma2), rtol=0
        )
        half = (found["upper"] - found["prediction"]) / 1.959964
        lacking = np.column_stack([~pd.Index(free).isin(t.index) for t in tables.values()])
        expected = np.full(len(free), sigma2)
        if rows == "complete":  # what the missing columns would have told comes on top
            for k, table in enumerate(tables.values()):
                own = [imputed.columns.get_loc(column) for column in table]
                expected += lacking[:, k] * np.var(x[:, own] @ beta[intercept:][own])
        # Through the estimates: p coefficients over n rows, on average.
        np.testing.assert_allclose(half**2, expected, rtol=0.15)
        assert (half**2 > expected).all()


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), Single()])
def test_intervals_cover_the_labels(strategy):
    tables, labels = make_data(n=3000, unlabelled=0, missing=0.3, seed=5)
    known = labels.where(np.arange(3000) >= 1000)
    found = run(strategy, tables, known).predictions
    truth = labels[found.index]
    assert ((found["lower"] < truth) & (truth < found["upper"])).mean() == pytest.approx(
        0.95, abs=0.02
    )


def test_labels_are_completed():
    tables, labels = make_data(missing=0.2)
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
    """They are left out; the rest of the fit is as it would be without them."""
    tables, labels = make_data((3, 2), missing=0.1)
    plain = run(FEDERATED[rows](intercept=intercept), tables, labels)
    tables["party 0"]["twice"] = 2.0 * tables["party 0"]["x1"]
    if intercept:
        tables["party 1"]["one"] = 0.1
    result = run(FEDERATED[rows](intercept=intercept), tables, labels)
    table = result.coefficients
    left_out = {"twice"} | ({"one"} if intercept else set())
    unknown = table.index[table["std_error"].isna()].get_level_values("variable")
    assert set(unknown) == left_out
    assert table.loc[table["std_error"].isna(), "estimate"].isna().all()
    pd.testing.assert_frame_equal(table.loc[plain.coefficients.index], plain.coefficients)
    for name in ("r2", "sigma2", "adjusted_r2"):
        assert result.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-9)
    assert any("'twice'" in note for note in result.notes)


def test_the_same_column_at_two_parties():
    tables, labels = make_data((3, 2), missing=0.0)
    x, y, _ = pool(tables, labels, "complete")
    tables["party 1"]["again"] = tables["party 0"]["x1"]
    result = run(CompleteCase(), tables, labels)
    assert result.metrics["r2"] == pytest.approx(ols(x, y)[3], rel=1e-9)
    assert np.isnan(result.coefficients.loc[("party 1", "again"), "estimate"])
    assert any("'party 1'" in note and "['again']" in note for note in result.notes)


def test_a_column_that_is_constant_among_the_complete_rows():
    tables, labels = make_data((2, 2))
    common = tables["party 0"].index.intersection(tables["party 1"].index)
    tables["party 0"]["rare"] = (~tables["party 0"].index.isin(common)).astype(float)
    result = run(CompleteCase(), tables, labels)
    assert result.metrics["n_samples"] < len(common)
    assert np.isnan(result.coefficients.loc[("party 0", "rare"), "std_error"])
    assert any("['rare']" in note and "samples of the fit" in note for note in result.notes)
    assert np.isfinite(run(MeanImpute(), tables, labels).coefficients["std_error"]).all()


@pytest.mark.parametrize("strategy", [CompleteCase(), MeanImpute(), Single()])
def test_a_column_that_is_too_rare_is_not_said_to_be_constant(strategy):
    tables, labels = make_data((2, 2), missing=0.0)
    own = tables["party 0"]
    own["rare"] = (np.arange(len(own)) >= len(own) - 3).astype(float)
    result = run(strategy, tables, labels)
    assert np.isnan(result.coefficients.loc[("party 0", "rare"), "estimate"])
    (note,) = (note for note in result.notes if "rare'" in note)
    assert "too rare to be told of" in note


def test_levels_and_rows_with_missing_cells():
    tables, labels = make_data((2, 2), missing=0.1)
    rng = np.random.default_rng(1)
    town = pd.Series(rng.choice(["Delft", "Gent", "Ulm"], size=len(labels)), index=labels.index)
    tables["party 0"]["town"] = town.reindex(tables["party 0"].index)
    common = tables["party 1"].index.intersection(tables["party 0"].index)
    tables["party 1"].loc[common[::9], "x2"] = np.nan
    encoded, cleaned = tables["party 0"].copy(), tables["party 1"].dropna()
    for level in ("Gent", "Ulm"):
        encoded[f"town={level}"] = (encoded["town"] == level).astype(float)
    pooled = {"party 0": encoded.drop(columns="town"), "party 1": cleaned}
    for rows, strategy in FEDERATED.items():
        result = run(strategy(), tables, labels)
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
    notes = run(Single("party 1"), tables, labels).notes
    assert any("party 'party 1'" in note and "missing cells left out" in note for note in notes)


def test_single_takes_the_first_party_unless_told():
    result = run(Single(), *make_data())
    assert set(result.coefficients.index.get_level_values("party")) == {"server", "party 0"}
    assert any("party_name is not set" in note and "'party 0'" in note for note in result.notes)


# -- what cannot be fitted -------------------------------------------------------------------


def test_too_few_complete_rows():
    tables, labels = make_data((6, 6), n=60, unlabelled=0, missing=0.0)
    tables["party 0"], tables["party 1"] = tables["party 0"].iloc[:39], tables["party 1"].iloc[27:]
    with pytest.raises(DataError, match=r"12 labelled samples that all parties hold.*min-rows"):
        run(CompleteCase(), tables, labels, min_rows=20)
    with pytest.raises(DataError, match=r"12 samples.*12 columns.*at least 14"):
        run(CompleteCase(), tables, labels, min_rows=5)
    assert run(MeanImpute(), tables, labels, min_rows=5).metrics["n_samples"] == 60
    tables, labels = make_data((2, 2), n=300, unlabelled=0, missing=0.0)
    tables["party 1"].iloc[:250, 0] = np.nan
    with pytest.raises(DataError, match=r"lacking \(party 'party 1' 250\): 'fknn' or"):
        run(CompleteCase(), tables, labels, min_rows=None)


def test_missing_cells_levels_and_labels():
    tables, labels = make_data((2, 2))
    for strategy in (CompleteCase(), MeanImpute(), Single("party 0")):
        holed = {name: table.copy() for name, table in tables.items()}
        holed["party 0"].iloc[5, 1] = np.nan
        holed["party 0"]["x0"] = "ABC"
        notes = " ".join(run(strategy, holed, labels).notes)
        assert "party 'party 0': 1 row with missing cells left out" in notes
        assert "party 'party 0': columns ['x0'] are left out and have no coefficient" in notes
        holed["party 0"] = tables["party 0"].copy()
        holed["party 0"].iloc[::2, 0] = holed["party 0"].iloc[1::2, 1] = np.nan
        with pytest.raises(PartyError, match=r"no row without missing cells takes part; impute"):
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


def test_too_few_rows_and_collinear_columns_are_looked_for_unless_the_fit_is_penalised():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3))
    tables = {
        "a": pd.DataFrame({"one": x[:, 0], "two": x[:, 1], "both": x[:, 0] + x[:, 1]}),
        "b": pd.DataFrame(x[:, 2:], columns=["other"]),
    }
    labels = pd.Series(x @ [1.0, 2.0, 0.5] + 0.1 * rng.normal(size=40))
    penalized = GLMADMM(penalty="lasso", lambdas=0.1)
    free = CompleteCase()
    notes = simulate(free, tables, labels, min_rows=10).notes
    assert any("['both'] are constant or follow from others" in note for note in notes)
    notes = simulate(penalized, tables, labels).notes
    assert not any("follow from others" in note for note in notes)
    few = {name: table[:4] for name, table in tables.items()}
    with pytest.raises(PartyError, match=r"holds 4 rows of labelled samples.* at least 5"):
        simulate(free, few, labels[:4])
    assert simulate(penalized, few, labels[:4]).coefficients is not None


def test_columns_that_tell_the_labels_are_named():
    tables, labels = make_data(sizes=(2, 2), missing=0.2)
    first, second = tables.values()
    told = second.assign(net=(labels - 3.0 * first["x0"]).reindex(second.index)).dropna()
    result = simulate(CompleteCase(), {"a": first, "b": told}, labels)
    note = "columns ['a.x0', 'b.net'] tell the labels exactly: leave out what is made of them"
    assert note in result.notes
    with pytest.raises(DataError, match=r"'a\.x0', 'b\.net'.*the likelihood has no maximum"):
        simulate(VFEM(), {"a": first, "b": told}, labels)
    noisy = told.assign(net=told["net"] + np.random.default_rng(1).normal(size=len(told)))
    result = simulate(CompleteCase(), {"a": first, "b": noisy}, labels)
    assert not any("exactly" in note for note in result.notes)
