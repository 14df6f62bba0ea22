"""VFEM's iterations against the paper's algorithms, centralised, and against `VFEM`."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from oracles.vfem import (
    exact_em,
    expected_standard_errors,
    flatten,
    generate,
    gradient_em,
    initial,
    revealed_columns,
)
from vfem_runs import (
    coefficients,
    data,
    estimates,
    fit,
    party_tables,
    recorded,
    rounds_of,
    std_errors,
    theta_of,
)

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, PolicyError
from flwr_vertical.products import HeldColumns
from strategies.vfem import VFEM
from strategies.vfem_iterations import VFEMIterations
from strategies.vfem_iterations.sketches import sketch

# Algorithm 1 for a number of iterations, in the units of the data.
PAPER = {"learning_rate": 0.1, "tol": 0, "standardize": False}
EXACT = {"tol": 1e-13, "max_iter": 5000}
# Sums are exact to 2^-33 a party in masked, to about 1e-8 in ckks mode.
TOLERANCE = {"plain": 1e-10, "masked": 1e-8, "ckks": 1e-6}
# In each some party holds everything, or rows are held by nobody.
CASES = {
    "two parties": {"n": 60, "sizes": [2, 3], "rates": [0.4, 0.0], "seed": 1, "mean": 0.5},
    "three parties": {"n": 50, "sizes": [2, 1, 3], "rates": [0.3, 0.4, 0.5], "seed": 3},
    "four parties": {"n": 40, "sizes": [1, 2, 1, 2], "rates": 0.5, "seed": 5, "cross": 0.5},
    "six parties": {"n": 40, "sizes": [1, 2, 1, 1, 2, 1], "rates": [0, 0.2, 0.6, 0.3, 0.5, 0],
                    "seed": 7, "mean": -0.3},
}  # fmt: skip
LARGER = {
    "two parties": {"n": 150, "sizes": [2, 3], "rates": [0.4, 0.0], "seed": 1, "mean": 0.8},
    "correlated": {"n": 200, "sizes": [2, 1, 2], "rates": 0.3, "seed": 4, "mean": -1.0,
                   "cross": 0.5},
}  # fmt: skip


def algorithm_1(case, n_iter):
    pooled, _ = generate(**CASES[case])
    return pooled, gradient_em(pooled, initial(pooled), 0.1, n_iter)


@pytest.mark.parametrize("mode", ["plain", "masked"])
@pytest.mark.parametrize("case", CASES)
def test_iterations_are_those_of_algorithm_1(case, mode):
    """All parameters, also means and covariances, which stay at the parties; and the loss."""
    pooled, thetas = algorithm_1(case, 30)
    for n_iter in (1, 2, 30):
        run = recorded(*party_tables(pooled, n_iter), mode, max_iter=n_iter, **PAPER)
        theta = theta_of(run)
        np.testing.assert_allclose(
            flatten(theta), flatten(thetas[n_iter - 1]), atol=TOLERANCE[mode]
        )
        np.testing.assert_allclose(
            estimates(run.result), coefficients(thetas[n_iter - 1]), atol=TOLERANCE[mode]
        )
        assert run.result.model.outcome == "max iterations"
        loss = [entry["loss"] for entry in run.result.history]
        sigma2 = [theta.sigma2 for theta in thetas[:n_iter]]  # Algorithm 1, line 32
        np.testing.assert_allclose(loss, sigma2, atol=TOLERANCE[mode])


def test_ckks_and_private_alignment_give_the_same_iterations():
    pooled, thetas = algorithm_1("three parties", 5)
    for mode, alignment in (("ckks", "plain"), ("masked", "private-id")):
        result = fit(pooled, mode, alignment=alignment, max_iter=5, **PAPER)
        np.testing.assert_allclose(
            estimates(result), coefficients(thetas[-1]), atol=TOLERANCE[mode]
        )


def test_labels_of_samples_that_nobody_holds_count_unless_left_out():
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.5, seed=9)
    nobody = pooled.mask.all(axis=1)
    assert nobody.sum() > 5
    held, _ = data(n=60, sizes=[2, 1], rates=0.5, seed=9)
    tables, labels = party_tables(pooled)
    for used, given in ((pooled, labels), (held, labels[~nobody])):
        run = recorded(tables, given, "plain", max_iter=3, **PAPER)
        theta = gradient_em(used, initial(used), 0.1, 3)[-1]
        np.testing.assert_allclose(estimates(run.result), coefficients(theta), atol=1e-10)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_the_end_is_the_maximum_that_vfem_finds(mode):
    pooled, _ = data(n=300, sizes=[2, 1, 3], rates=[0.3, 0.4, 0.2], seed=3, mean=0.5)
    tables, labels = party_tables(pooled)
    found = fit(pooled, mode, **EXACT)
    block = simulate(
        VFEM("block", check_correlation=False), tables, labels, min_rows=1, progress=False
    )
    assert found.model.outcome == "converged"
    assert block.metrics["rows_merged"] == block.metrics["rows_left_out"] == 0
    gap = estimates(found) - estimates(block)
    assert np.abs(gap / std_errors(block)).max() < 1e-4
    # One is the expected information of the labels, the other that observed in all cells.
    np.testing.assert_allclose(std_errors(found), std_errors(block), rtol=0.05)
    for name in ("sigma2", "r2", "adjusted_r2"):
        assert found.metrics[name] == pytest.approx(block.metrics[name], rel=1e-5)
    for name in tables:
        assert found.party_metrics[name] == pytest.approx(block.party_metrics[name], rel=1e-4)


def test_it_ends_when_the_loss_changes_by_less_than_tol():
    pooled, _ = data(n=200, sizes=[2, 2], rates=0.3, seed=2)
    result = fit(pooled, tol=1e-4)
    loss = np.array([entry["loss"] for entry in result.history]) / np.var(pooled.y)
    change = np.abs(np.diff(loss))
    assert result.model.outcome == "converged"
    assert change[-1] < 1e-4 <= change[:-1].min()


# -- standard errors -------------------------------------------------------------------------


@pytest.mark.parametrize("case", LARGER)
def test_standard_errors_are_those_of_the_information(case):
    pooled, _ = generate(**LARGER[case])
    run = recorded(*party_tables(pooled), "plain", **EXACT)
    expected = expected_standard_errors(pooled, theta_of(run), "expected")
    np.testing.assert_allclose(std_errors(run.result), expected, rtol=1e-6)


def test_sketches_approach_the_exact_products():
    """Seeds are random: errors are averaged over variables, and sizes a hundredfold apart."""
    pooled, _ = generate(**LARGER["correlated"])
    tables = party_tables(pooled)
    theta = theta_of(recorded(*tables, "plain", **EXACT))
    exact = expected_standard_errors(pooled, theta, "gram")
    without = expected_standard_errors(pooled, theta, "expected")
    assert np.abs(without / exact - 1).max() > 0.05
    errors = []
    for size in (200, 20_000):
        got = std_errors(fit(pooled, sketch_size=size, **EXACT))
        errors.append(np.sqrt(np.mean((got / exact - 1) ** 2)))
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.02


def test_products_of_sketches_are_unbiased_and_as_accurate_as_stated():
    rng = np.random.default_rng(0)
    n, size = 500, 400
    rows = [np.sort(rng.choice(n, 400, replace=False)) for _ in range(2)]
    common = rng.normal(size=(n, 1))
    columns = [HeldColumns(common[r] + rng.normal(size=(400, 2)), r, n) for r in rows]
    truth = columns[0].filled.T @ columns[1].filled
    squares = [(held.values**2).sum(axis=0) for held in columns]
    spread = np.sqrt((np.outer(*squares) + truth**2) / size)
    seeds = [rng.bytes(32) for _ in range(100)]
    found = np.array(
        [sketch(columns[0], seed, size).T @ sketch(columns[1], seed, size) for seed in seeds]
    )
    assert (np.abs(found.mean(axis=0) - truth) < 5 * spread / 10).all()
    np.testing.assert_allclose(found.std(axis=0), spread, rtol=0.35)
    other = sketch(columns[0], seeds[0], size).T @ sketch(columns[1], seeds[1], size)
    assert (np.abs(other) < 5 * spread).all()  # of another seed: nothing but noise


@pytest.mark.parametrize("h", [1e-3, 1.0])
def test_the_sums_of_the_papers_equation_10_would_tell_every_column(h):
    """Why no Jacobian is worked out by forced EM: the summed fits of it are the raw data.

    The server would ask for the summed fits at parameters with one coefficient moved by h. Their
    difference from the fits that it has is h times a party's column, whatever hides the terms.
    """
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.3, seed=11, mean=2.0)
    theta = initial(pooled, beta=[np.array([0.5, -1.0]), np.array([2.0])])
    for k, columns in enumerate(revealed_columns(pooled, theta, h)):
        has = ~pooled.mask[:, k]
        np.testing.assert_allclose(columns[has], pooled.X[k][has], atol=1e-6)


def test_prediction_intervals_cover_true_labels():
    """2000 samples, two in three of them with blocks missing."""
    pooled, _ = data(4050, [2, 1, 2], [0.3, 0.2, 0.4], 13, mean=1.5, beta0=-2.0)
    tables, labels = party_tables(pooled)
    rest = labels.iloc[2000:].copy()
    labels.iloc[2000:] = np.nan
    found = simulate(VFEMIterations(), tables, labels, "plain", progress=False).predictions
    truth = rest.loc[found.index]
    assert len(truth) > 1800
    inside = (found["lower"] <= truth) & (truth <= found["upper"])
    assert 0.92 < inside.mean() < 0.98


# -- rounds ----------------------------------------------------------------------------------

OPENING = ("hello", "share_ids", "prepare", "finish", "keep_model")  # and the end


def test_a_round_an_iteration_where_the_paper_takes_four():
    pooled, _ = data(n=200, sizes=[2, 1, 3], rates=[0.3, 0.4, 0.2], seed=3)
    result = fit(pooled, "masked", max_iter=9, **PAPER)
    assert rounds_of(result) == dict.fromkeys(OPENING, 1) | {"gradient": 9}
    sketched = fit(pooled, "masked", max_iter=2, sketch_size=64, **PAPER)
    keys = {"pair_key": 1, "keep_pair_keys": 1, "sketch_rows": 1}
    assert rounds_of(sketched) == dict.fromkeys(OPENING, 1) | {"gradient": 2} | keys
    frame = result.ledger.to_frame()
    rounds = frame[frame["step"] == "gradient"]
    for name, held in zip(("p0", "p1", "p2"), (~pooled.mask).sum(axis=0), strict=True):
        own = rounds[rounds["party"] == name]
        assert (own["values_up"] == len(pooled.y)).all()  # fits; and one public number
        assert own["bytes_down"].between(8 * held, 8 * held + 250).all()


def test_one_party_has_nothing_to_sketch():
    pooled, _ = generate(100, [3], 0.0, seed=1)
    result = fit(pooled, "masked", sketch_size=10)
    assert "sketch_rows" not in rounds_of(result)
    design = np.column_stack([np.ones(100), *pooled.X])
    np.testing.assert_allclose(
        estimates(result), np.linalg.lstsq(design, pooled.y, rcond=None)[0], atol=1e-3
    )


# -- what is refused -------------------------------------------------------------------------


@pytest.fixture
def small():
    return party_tables(data(200, [2, 1, 3], [0.3, 0.4, 0.2], 3, mean=0.5)[0])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("learning_rate", 0), ("max_iter", 0), ("tol", 1.0), ("sketch_size", -1), ("standardize", 2)],
)
def test_unusable_settings_are_named(setting, value):
    with pytest.raises(ConfigError, match=setting):
        VFEMIterations(**{setting: value})


def test_a_node_that_has_not_agreed_refuses(small):
    with pytest.raises(PartyError, match="'sums' to 'exchanges' of the node config"):
        recorded(*small, configs={"p1": {"exchanges": ""}})


@pytest.mark.parametrize("step", ["prepare", "gradient", "finish", "sketch_rows"])
def test_no_step_of_the_iterations_answers_without_agreement(step):
    party = object.__new__(VFEMIterations.party)
    party.open_exchange = lambda *_: (_ for _ in ()).throw(PolicyError("p", "k", "w", "t", "n"))
    with pytest.raises(PolicyError):
        party.take(step, {})


def test_too_large_a_learning_rate_diverges_and_says_so(small):
    result = simulate(VFEMIterations(learning_rate=5.0), *small, progress=False)
    assert result.model.outcome == "diverged"
    assert result.coefficients is None
    assert any("learning_rate = 5 is too large; try 1.25" in note for note in result.notes)


def test_constant_and_repeated_columns_have_no_standard_error(small):
    tables, labels = small
    more = {**tables, "p0": tables["p0"].assign(seven=7.0, again=tables["p0"]["x00"])}
    result, one = (
        simulate(VFEMIterations(**EXACT), given, labels, "plain", progress=False)
        for given in (more, tables)
    )
    shared = result.coefficients.loc["p0", "estimate"]
    both = shared["x00"] + shared["again"]
    assert both == pytest.approx(one.coefficients.loc[("p0", "x00"), "estimate"], abs=1e-4)
    assert result.coefficients.loc["p0", "std_error"][["seven", "again"]].isna().all()
    np.testing.assert_allclose(
        result.coefficients.loc["p2", "std_error"], one.coefficients.loc["p2", "std_error"],
        rtol=1e-3,
    )  # fmt: skip


def test_unusable_tables_and_labels(small):
    tables, labels = small
    few = {**tables, "p2": tables["p2"].iloc[:4]}
    with pytest.raises(PartyError, match=r"holds 4 rows of labelled samples.* need at least 5"):
        simulate(VFEMIterations(), few, labels, progress=False)
    with pytest.raises(DataError, match="labels are the same"):
        simulate(VFEMIterations(), tables, labels * 0 + 4.0, progress=False)
    town = pd.Series("Ulm", tables["p1"].index)
    with pytest.raises(PartyError, match=r"column 'town' holds levels.*encoding='one-hot'"):
        simulate(
            VFEMIterations(), {**tables, "p1": tables["p1"].assign(town=town)}, labels,
            progress=False,
        )  # fmt: skip


def test_exact_em_ends_where_the_iterations_do():
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.3, seed=1)
    fixed = exact_em(pooled, initial(pooled), 400, tol=1e-9)[-1]
    np.testing.assert_allclose(estimates(fit(pooled, **EXACT)), coefficients(fixed), atol=1e-5)


def test_two_parties_share_a_sketch_and_no_third_has_it(small):
    run = recorded(*small, max_iter=2, sketch_size=300, tol=0)
    sketches = {m.node: m.values for m in run.messages if m.up and m.step == "sketch_rows"}
    for one, other in combinations(small[0], 2):
        assert set(sketches[one]) == set(small[0]) - {one}
        assert sketches[one][other].shape[0] == sketches[other][one].shape[0] == 300
