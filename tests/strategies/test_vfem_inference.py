"""VFEM's standard errors, intervals and predictions against the oracle's information matrices."""

import numpy as np
import pytest
from oracles.vfem import (
    expected_standard_errors,
    forced_em_columns,
    generate,
    initial,
    revealed_columns,
    sem_standard_errors,
)
from scipy import stats
from vfem_runs import (
    EXACT,
    coefficients,
    estimates,
    fit,
    fit_tables,
    held_by_somebody,
    party_tables,
    recorded,
    std_errors,
    theta_of,
)

CASES = {
    "two parties": {"n": 150, "sizes": [2, 3], "rates": [0.4, 0.0], "seed": 1, "mean": 0.8},
    "four parties": {"n": 200, "sizes": [1, 2, 1, 2], "rates": 0.4, "seed": 5},
    "correlated": {"n": 200, "sizes": [2, 1, 2], "rates": 0.3, "seed": 4, "mean": -1.0,
                   "cross": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", ["expected", "gram"])
@pytest.mark.parametrize("case", CASES)
def test_standard_errors_are_those_of_the_information(case, kind, intercept):
    if kind == "gram":
        pytest.importorskip("tenseal")
    pooled, _ = generate(**CASES[case])
    settings = {**EXACT, "standard_errors": kind, "intercept": intercept}
    run = recorded(*party_tables(pooled), "plain", **settings)
    expected, covariance = expected_standard_errors(pooled, theta_of(run), kind, intercept)
    first = 0 if intercept else 1
    # Products are encrypted to about 1e-8 of the norms of columns.
    np.testing.assert_allclose(std_errors(run.result), expected[first:], rtol=1e-6)
    if kind == "gram":
        beta = slice(first, 1 + sum(pooled.sizes))
        scale = np.outer(expected[beta], expected[beta])
        np.testing.assert_allclose(
            run.result.model.covariance / scale, covariance[beta, beta] / scale, atol=1e-6
        )


def test_expected_and_gram_differ_where_parties_are_correlated():
    pytest.importorskip("tenseal")
    pooled, _ = generate(**CASES["correlated"])
    one = std_errors(fit(pooled, standard_errors="expected", **EXACT))
    other = std_errors(fit(pooled, standard_errors="gram", **EXACT))
    assert np.abs(one / other - 1).max() > 0.05


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("expected", "masked"), ("gram", "masked"), ("sketch", "masked"), ("gram", "ckks")],
)
def test_standard_errors_in_private_sums(kind, mode):
    """In masked mode, too, `simulate` adds the arbiter that 'gram' needs."""
    pytest.importorskip("tenseal")
    pooled, _ = generate(**CASES["four parties"])
    plain = fit(pooled, standard_errors=kind.replace("sketch", "gram"), **EXACT)
    result = fit(pooled, mode, standard_errors=kind, n_sketches=100, check_correlation=False)
    tolerance = 0.02 if kind == "sketch" else 1e-3
    np.testing.assert_allclose(std_errors(result), std_errors(plain), rtol=tolerance)


@pytest.mark.parametrize("case", ["four parties", "correlated"])
def test_sketches_approach_the_exact_products(case):
    """Seeds are random: errors are averaged over variables, and sizes a hundredfold apart."""
    pytest.importorskip("tenseal")
    pooled, _ = generate(**CASES[case])
    settings = {**EXACT, "standard_errors": "sketch"}
    exact = std_errors(fit(pooled, **{**settings, "standard_errors": "gram"}))
    errors = []
    for n_sketches in (1, 100):
        got = std_errors(fit(pooled, **settings, sketch_size=200, n_sketches=n_sketches))
        errors.append(np.sqrt(np.mean((got / exact - 1) ** 2)))
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.02


def test_gram_is_close_to_the_papers_equation_10():
    """That one is of the data, this one expected; the paper's needs sums that tell columns."""
    pytest.importorskip("tenseal")
    pooled, _ = generate(n=400, sizes=[1, 1], rates=[0.3, 0.2], seed=8, mean=1.0)
    run = recorded(*party_tables(pooled), "plain", **EXACT, standard_errors="gram")
    sem = sem_standard_errors(pooled, theta_of(run))
    np.testing.assert_allclose(std_errors(run.result), sem, rtol=0.1)


@pytest.mark.parametrize("h", [1e-3, 1.0])
def test_the_sums_of_the_papers_equation_10_would_tell_every_column(h):
    """Why VFEM works out no Jacobian by forced EM: the summed fits of it are the raw data.

    The server would ask for the summed fits at parameters with one coefficient moved by h. Their
    difference from the fits that it has is h times a party's column, whatever hides the terms.
    """
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.3, seed=11, mean=2.0)
    theta = initial(pooled, beta=[[0.5, -1.0], [2.0]])
    assert len(forced_em_columns(pooled, theta, h)) == 3
    for k, columns in enumerate(revealed_columns(pooled, theta, h)):
        has = ~pooled.mask[:, k]
        np.testing.assert_allclose(columns[has], pooled.X[k][has], atol=1e-6)


def test_the_table_of_coefficients():
    pooled, _ = generate(**CASES["two parties"])
    table = fit(pooled).coefficients
    assert list(table.index)[:3] == [("server", "intercept"), ("p0", "x00"), ("p0", "x01")]
    z = table["estimate"] / table["std_error"]
    np.testing.assert_allclose(table["z"], z)
    np.testing.assert_allclose(table["p_value"], 2 * stats.norm.sf(np.abs(z)))
    half = stats.norm.ppf(0.975) * table["std_error"]
    np.testing.assert_allclose(table["ci_low"], table["estimate"] - half)
    np.testing.assert_allclose(table["ci_high"], table["estimate"] + half)
    assert list(fit(pooled, standard_errors=None).coefficients.columns) == ["estimate"]
    without = fit(pooled, intercept=False).coefficients
    assert "server" not in without.index.get_level_values("party")


def test_confidence_intervals_cover_the_truth():
    """15 data sets with 5 coefficients: 75 intervals; 95 % less four standard deviations."""
    inside = []
    for seed in range(15):
        pooled, truth = generate(n=200, sizes=[2, 2], rates=0.3, seed=seed, mean=1.0, beta0=3.0)
        table = fit(pooled, check_correlation=False).coefficients
        true = coefficients(truth)
        inside.append((table["ci_low"] <= true) & (true <= table["ci_high"]))
    assert np.mean(inside) > 0.85


# -- predictions -----------------------------------------------------------------------------


def unlabelled(n, n_labelled, seed=12, **kwargs):
    """Data whose samples beyond the first have no label; the true labels of those."""
    pooled, truth = generate(n, [2, 1, 2], [0.3, 0.2, 0.4], seed, mean=1.5, beta0=-2.0, **kwargs)
    pooled = held_by_somebody(pooled)
    tables, labels = party_tables(pooled)
    rest = labels.iloc[n_labelled:].copy()
    labels.iloc[n_labelled:] = np.nan
    return pooled, truth, tables, labels, rest


def test_unlabelled_samples_do_not_move_the_estimates():
    _, _, tables, labels, _ = unlabelled(150, 100)
    known = labels.dropna()
    short = {name: table[table.index.isin(known.index)] for name, table in tables.items()}
    one = fit_tables(tables, labels, "plain", **EXACT)
    other = fit_tables(short, known, "plain", **EXACT)
    np.testing.assert_allclose(estimates(one), estimates(other), atol=1e-10)
    assert one.metrics["n_samples"] == 100
    assert other.predictions is None


def test_prediction_intervals_cover_true_labels():
    """2000 samples, two in three of them with blocks missing."""
    _, _, tables, labels, rest = unlabelled(4050, 2000, seed=13)
    found = fit_tables(tables, labels, "plain", check_correlation=False).predictions
    truth = rest.loc[found.index]
    assert len(truth) > 1800
    inside = (found["lower"] <= truth) & (truth <= found["upper"])
    assert 0.92 < inside.mean() < 0.98


@pytest.mark.parametrize("alignment", ["plain", "private-id"])
def test_a_party_may_hold_the_labels(alignment):
    _, _, tables, labels, rest = unlabelled(150, 100)
    mine = tables["p0"].index
    holder = {**tables, "p0": tables["p0"].assign(target=labels.loc[mine])}
    run = recorded(
        holder, None, "masked", alignment=alignment, label_holder="p0",
        run_config={"label-holder": "p0", "label-column": "target"}, check_correlation=False,
    )  # fmt: skip
    direct = fit_tables(tables, labels.loc[mine], "masked", check_correlation=False)
    np.testing.assert_allclose(estimates(run.result), estimates(direct), atol=1e-8)
    np.testing.assert_allclose(
        np.sort(run.result.predictions["prediction"]),
        np.sort(direct.predictions["prediction"]),
        atol=1e-8,
    )
    # Samples that the holder lacks have no label either.
    assert len(direct.predictions) > len(rest)
