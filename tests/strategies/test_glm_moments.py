"""VerticalGLM on moments: exact paths in five rounds, and labels that stay at the server."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from data_sets import sources_with
from glm_runs import estimates, pooled, run, split
from sklearn.linear_model import lasso_path
from vfem_runs import recorded, rounds_of

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.products.group_key import _SEED
from strategies.glm import VerticalGLM

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
def lasso():
    """A path of three parties with all messages; the last rows have no label."""
    X, y, _ = made()
    tables, labels = split(X, y)
    strategy = VerticalGLM(penalty="lasso", lambdas=LAMBDAS)
    return recorded(tables, labels, strategy=strategy, alignment="plain", seed=1)


@pytest.mark.parametrize("standardize", [True, False])
def test_the_path_is_that_of_scikit_learn(lasso, standardize):
    X, y, _ = made()
    X, y = X[:N], y[:N]
    unit = X.std(axis=0) if standardize else np.ones(X.shape[1])
    if standardize:
        model = lasso.result.model
    else:
        model = run(X, y, "masked", penalty="lasso", lambdas=LAMBDAS, standardize=False).model
    Z = (X - X.mean(axis=0)) / unit
    _, expected, _ = lasso_path(Z, y - y.mean(), alphas=LAMBDAS, tol=1e-13, max_iter=100_000)
    found = model.path_coefficients.to_numpy() * unit[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    levels = y.mean() - (X.mean(axis=0) / unit) @ expected
    np.testing.assert_allclose(model.path["intercept"], levels, atol=1e-6)
    assert (np.count_nonzero(expected, axis=0) == model.path["selected"]).all()


def test_five_rounds_whatever_the_path(lasso):
    found = rounds_of(lasso.result)
    assert {step: found[step] for step in ROUNDS} == ROUNDS
    assert set(found) - set(ROUNDS) == {"hello", "share_ids"}
    X, y, _ = made()
    one = run(X, y, "masked", lambdas=0.1)
    assert rounds_of(one) == found
    assert one.ledger.rounds == 7


def test_no_message_holds_a_column_and_none_to_a_party_a_label(lasso):
    from test_vfem_privacy import numbers, words

    y = lasso.labels.to_numpy()[:N]
    secret = {
        name: numbers(*(table.to_numpy()[:N] * s + t for s, t in scales(table.to_numpy()[:N])))
        for name, table in lasso.tables.items()
    }
    labels = numbers(y, y - y.mean(), (y - y.mean()) / y.std())
    fits = numbers(*(t.to_numpy() @ c for t, c in own_fits(lasso)))
    assert min(map(len, [*secret.values(), labels, fits])) > N
    for message in lasso.messages:
        seen = words(message.content)
        assert not seen & fits, (message.node, message.step)
        for name, own in secret.items():
            assert not seen & own, (name, message.node, message.step)
        if not message.up:
            assert not seen & labels, (message.node, message.step)


def test_what_parties_get_in_place_of_labels_is_random(lasso):
    y = np.nan_to_num(lasso.labels.to_numpy())[:N]
    masked = {
        message.node: message.arguments["masked_vectors"]
        for message in lasso.messages
        if not message.up and message.step == "open_products"
    }
    assert set(masked) == {"p0", "p1", "p2"}
    for sent in masked.values():
        assert sent.dtype == np.uint64
        for column in sent.T:
            shares = column.astype(np.float64) / 2.0**64
            assert abs(np.corrcoef(shares, y)[0, 1]) < 5 / np.sqrt(N)
            # Kolmogorov and Smirnov's distance from a uniform distribution, at 1e-6.
            ranks = np.arange(1, N + 1) / N
            assert np.abs(np.sort(shares) - ranks).max() < np.sqrt(-np.log(5e-7) / 2 / N) + 1 / N
    # Of whoever has the masked labels nobody is told the seed of their mask.
    for message in lasso.messages:
        if not message.up and message.step == "open_products":
            helped = message.arguments.get("helps", [])
            assert message.node not in helped


def test_the_group_seed_is_erased(lasso):
    for name in lasso.tables:
        assert _SEED not in lasso.states[name]


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


def test_two_parties_and_one_column_each():
    X, y, _ = pooled("gaussian", n=N, seed=13)
    settings = {"penalty": "lasso", "lambdas": 0.05}
    found = [run(X, y, sizes=sizes, **settings) for sizes in ((3, 2, 3), (5, 3), (1,) * 8)]
    for other in found[1:]:
        np.testing.assert_allclose(estimates(other), estimates(found[0]), atol=1e-9)
        np.testing.assert_allclose(
            other.coefficients["std_error"].to_numpy(),
            found[0].coefficients["std_error"].to_numpy(), rtol=1e-8,
        )  # fmt: skip


def test_motor_is_least_squares():
    """FATE's motor data in three parties; ADMM takes 423 rounds to come within 1e-5."""
    files = [f"motor/motor_hetero_{name}.csv" for name in ("guest", "host_1", "host_2")]
    sources = sources_with(*files)
    guest, host_1, host_2 = (pd.read_csv(sources.path(file), index_col="idx") for file in files)
    labels = guest.pop("motor_speed")
    tables = {"guest": guest, "host_1": host_1, "host_2": host_2}
    result = simulate(VerticalGLM(penalty=None), tables, labels, progress=False)
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
        rows: simulate(VerticalGLM(rows=rows, penalty=None), tables, labels, progress=False)
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


def test_all_rows_select_too(blocks):
    _, _, beta, tables, labels = blocks
    result = simulate(VerticalGLM(rows="all"), tables, labels, progress=False)
    assert ((estimates(result)[1:] != 0) == (beta != 0)).all()


def test_where_nothing_is_missing_all_rows_are_the_complete_ones():
    X, y, _ = pooled("gaussian", n=N, seed=5)
    one, other = run(X, y, rows="complete"), run(X, y, rows="all")
    np.testing.assert_allclose(estimates(other), estimates(one), rtol=1e-6)
    np.testing.assert_allclose(
        other.coefficients["std_error"], one.coefficients["std_error"], rtol=1e-6
    )
    assert other.metrics["lambda"] == pytest.approx(one.metrics["lambda"], rel=1e-6)


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
    with pytest.raises(ConfigError, match="'p1' has no columns \\['x9'\\] to leave unpenalised"):
        run(X, y, unpenalized="p1:x9")


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


def test_too_few_rows():
    X, y, _ = pooled("gaussian", n=90)
    with pytest.raises((DataError, PartyError), match=r"90 .*fewer than 100"):
        run(X, y)


def test_one_party_alone_and_encrypted_sums_open_the_same_moments():
    pytest.importorskip("tenseal")
    X, y, _ = pooled("gaussian", n=150)
    settings = {"penalty": "lasso", "lambdas": [0.3, 0.05]}
    masked = run(X, y, "masked", **settings)
    for other in (run(X, y, sizes=(8,), **settings), run(X, y, "ckks", **settings)):
        np.testing.assert_allclose(
            other.model.path_coefficients.to_numpy(),
            masked.model.path_coefficients.to_numpy(), atol=1e-5,
        )  # fmt: skip
        np.testing.assert_allclose(
            other.coefficients["std_error"].dropna().to_numpy(),
            masked.coefficients["std_error"].dropna().to_numpy(), rtol=1e-5,
        )  # fmt: skip


def test_a_joint_model_has_means():
    with pytest.raises(ConfigError, match="and intercept=True"):
        VerticalGLM(rows="all", intercept=False)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_column_with_a_rare_value_is_left_out_and_named(family):
    X, y, _ = pooled(family, n=600, seed=6, strength=0.7)
    X[:, 4] = 0.0
    X[:4, 4] = 1.0
    result = run(X, y, family=family, penalty=None)
    assert any("'p1.x4' has a value that is too rare" in note for note in result.notes)
    assert np.isnan(result.coefficients.loc[("p1", "x4"), "estimate"])
    kind = sm.families.Gaussian() if family == "gaussian" else sm.families.Binomial()
    other = sm.GLM(y, sm.add_constant(np.delete(X, 4, axis=1)), kind).fit(tol=1e-12)
    kept = result.coefficients.drop(("p1", "x4"))
    np.testing.assert_allclose(kept["estimate"], other.params, atol=1e-6)
    np.testing.assert_allclose(kept["std_error"], other.bse, rtol=1e-4)


def scales(x):
    """As given, centred, standardised."""
    center, unit = x.mean(axis=0), x.std(axis=0)
    return [(1.0, 0.0), (1.0, -center), (1 / unit, -center / unit)]


def own_fits(run):
    table = run.result.coefficients["estimate"]
    return [(frame, table[name].to_numpy()) for name, frame in run.tables.items()]
