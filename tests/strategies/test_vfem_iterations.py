"""VFEM's iterations against the paper's algorithms and `VFEM`; audit of what travels."""

import numpy as np
import pandas as pd
import pytest
from oracles.vfem import expected_standard_errors, flatten, generate, gradient_em, initial
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
from flwr_vertical.crypto.fixed_point import FixedPoint
from flwr_vertical.errors import PolicyError
from flwr_vertical.products import HeldColumns
from strategies.vfem import VFEM
from strategies.vfem_iterations import VFEMIterations
from strategies.vfem_iterations.sketches import sketch

# Algorithm 1 for a number of iterations, in the units of the data.
PAPER = {"learning_rate": 0.1, "tol": 0, "standardize": False}
EXACT = {"tol": 1e-11, "max_iter": 5000}
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


@pytest.mark.parametrize(
    "case", [*list(CASES)[:3], pytest.param("six parties", marks=pytest.mark.slow)]
)
def test_iterations_are_those_of_algorithm_1(case):
    """All parameters, also means and covariances, which stay at the parties; and the loss."""
    pooled, _ = generate(**CASES[case])
    thetas = gradient_em(pooled, initial(pooled), 0.1, 30)
    runs = [("plain", n_iter, 1e-10, {}) for n_iter in (1, 2, 30)]
    if case == "three parties":  # sums are exact to 2^-33 a party
        runs.append(("masked", 5, 1e-8, {"alignment": "private-id"}))
    for mode, n_iter, close, how in runs:
        run = recorded(*party_tables(pooled, n_iter), mode, max_iter=n_iter, **PAPER, **how)
        end = thetas[n_iter - 1]
        np.testing.assert_allclose(flatten(theta_of(run)), flatten(end), atol=close)
        np.testing.assert_allclose(estimates(run.result), coefficients(end), atol=close)
        assert run.result.model.outcome == "max iterations"
        loss = [entry["loss"] for entry in run.result.history]
        sigma2 = [theta.sigma2 for theta in thetas[:n_iter]]  # Algorithm 1, line 32
        np.testing.assert_allclose(loss, sigma2, atol=close)


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


def test_the_end_is_the_maximum_that_vfem_finds():
    pooled, _ = data(n=300, sizes=[2, 1, 3], rates=[0.3, 0.4, 0.2], seed=3, mean=0.5)
    tables, labels = party_tables(pooled)
    found = fit(pooled, "masked", **EXACT)
    block = simulate(VFEM("block", check_correlation=False), tables, labels, min_rows=1)
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


@pytest.mark.slow
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
        assert own["bytes_down"].between(8 * held, 8 * held + 350).all()


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


@pytest.mark.parametrize("step", ["prepare", "gradient", "finish", "sketch_rows"])
def test_no_step_of_the_iterations_answers_without_agreement(step):
    party = object.__new__(VFEMIterations.party)
    party.open_exchange = lambda *_: (_ for _ in ()).throw(PolicyError("p", "k", "w", "t", "n"))
    with pytest.raises(PolicyError):
        party.take(step, {})


def test_too_large_a_learning_rate_diverges_and_says_so(small):
    result = simulate(VFEMIterations(learning_rate=5.0), *small)
    assert result.model.outcome == "diverged"
    assert result.coefficients is None
    assert any("learning_rate = 5 is too large; try 1.25" in note for note in result.notes)


@pytest.mark.parametrize("sketch_size", [0, 64])
def test_constant_and_repeated_columns_are_left_out(small, sketch_size):
    tables, labels = small[0], small[1].where(np.arange(len(small[1])) >= 40)
    unlabelled = tables["p0"].index.isin(labels.index[labels.isna()])
    own = tables["p0"].assign(seven=7.0, again=tables["p0"]["x00"], there=1.0 * unlabelled)
    how = {**EXACT, "sketch_size": sketch_size}
    if sketch_size:  # it never ends by its tolerance
        how["max_iter"] = 200
    result, one = (
        simulate(VFEMIterations(**how), given, labels, "plain")
        for given in ({**tables, "p0": own}, tables)
    )
    left_out = [("p0", name) for name in ("seven", "again", "there")]
    assert result.coefficients.loc[left_out].isna().all(axis=None)
    rest = result.coefficients.drop(left_out)
    assert rest["std_error"].between(0.05, 0.3).all()
    if sketch_size:  # of random projections
        rest, one.coefficients = rest[["estimate"]], one.coefficients[["estimate"]]
    else:
        pd.testing.assert_frame_equal(result.predictions, one.predictions, rtol=1e-9)
    pd.testing.assert_frame_equal(rest, one.coefficients, rtol=1e-9)
    assert result.metrics == pytest.approx(one.metrics)
    said = " ".join(result.notes)
    assert "columns ['seven', 'again'] are constant or follow from others of its columns; " in said
    assert "columns ['there'] are constant or follow from others of its columns in the" in said


def test_a_party_of_constants_alone_leaves_the_others_their_standard_errors(small):
    tables, labels = small
    flat = {**tables, "p1": tables["p1"] * 0.0 + 3.0}
    result, one = (
        simulate(VFEMIterations(**EXACT), given, labels, "plain")
        for given in (flat, {name: tables[name] for name in ("p0", "p2")})
    )
    assert result.coefficients.loc["p1"].isna().all(axis=None)
    pd.testing.assert_frame_equal(
        result.coefficients.sort_index().drop("p1"), one.coefficients.sort_index(), rtol=1e-6
    )


NAMES = ["p0", "p1", "p2"]
N_ROWS = 400


def test_standard_errors_do_not_depend_on_where_columns_lie(small):
    parties, labels = small
    far = {name: table + 2.0**40 for name, table in parties.items()}
    here, there = (simulate(VFEMIterations(), tables, labels) for tables in (parties, far))
    errors, moved = (one.coefficients["std_error"].to_numpy()[1:] for one in (here, there))
    np.testing.assert_allclose(moved, errors, rtol=1e-3)
    assert there.model.level_variance == pytest.approx(here.model.level_variance, rel=1e-3)


def test_fewer_samples_than_columns_leave_no_noise_and_no_standard_errors(small):
    parties, labels = small
    whole = pd.concat(parties.values(), axis=1, join="inner")
    few = whole.index[: whole.shape[1] + 1]
    some = {name: table.loc[few] for name, table in parties.items()}
    result = simulate(VFEMIterations(), some, labels[few])
    assert "leaves (almost) no noise" in " ".join(result.notes)
    assert result.coefficients["std_error"].isna().all()


def make_tables():
    pooled, _ = generate(N_ROWS + 40, [2, 1, 3], [0.3, 0.2, 0.25], 3, mean=0.5, cross=0.7)
    held = ~pooled.mask.all(axis=1)
    pooled.X[:], pooled.y, pooled.mask = (
        [x[held][:N_ROWS] for x in pooled.X], pooled.y[held][:N_ROWS], pooled.mask[held][:N_ROWS],
    )  # fmt: skip
    tables, labels = party_tables(pooled)
    labels.iloc[-30:] = np.nan
    return tables, labels


@pytest.fixture(scope="module")
def traced():
    return recorded(*make_tables(), "masked", sketch_size=200, max_iter=12, tol=0)


def words(content):
    """All numbers of 8 bytes in the arrays of a message, as they are."""
    found = set()
    for record in content.values():
        for value in record.values():
            data = getattr(value, "data", None)
            if isinstance(data, bytes) and len(data) % 8 == 0:
                found.update(np.frombuffer(data, np.uint64).tolist())
            elif isinstance(value, float):
                found.add(int(np.float64(value).view(np.uint64)))
    return found


def numbers(*arrays):
    """The same of arrays, as float64 and as fixed point, but for round numbers."""
    values = np.unique(np.concatenate([np.asarray(a, dtype=float).ravel() for a in arrays]))
    values = values[np.isfinite(values) & (np.abs(values) < 1e6) & (np.abs(values) > 1e-9)]
    both = np.concatenate([values.view(np.uint64), FixedPoint().encode(values, 3)])
    return {number for number in both.tolist() if len(set(number.to_bytes(8, "little"))) > 3}


def labelled(run):
    """IDs of the samples with a label, in the aligned order, and their standardised labels."""
    ids = np.empty(len(run.labels), dtype=object)
    for name, table in run.tables.items():
        ids[np.asarray(run.states[name]["positions"])] = table.index
    known = run.labels.loc[list(ids)].dropna()
    return known.index, ((known - known.mean()) / known.std(ddof=0)).to_numpy()


# -- the transcript --------------------------------------------------------------------------


def test_labels_travel_as_residuals_only(traced):
    """From zeros, the first residuals are the standardised labels, as the disclosure says."""
    run = traced
    samples, y = labelled(run)
    given = numbers(run.labels)
    for m in run.messages:
        assert not words(m.content) & given, (m.node, m.step)
    for name in NAMES:
        held = samples.isin(run.tables[name].index)
        told = [m.arguments["r"] for m in run.messages if m.node == name and "r" in m.arguments]
        np.testing.assert_allclose(told[0], y[held], atol=1e-9)
        for r in told[1:]:
            assert r.shape == told[0].shape
            assert np.abs(r - told[0]).max() > 0.1
    said = " ".join(
        what for who, what in VFEMIterations.disclosure if who.startswith("every party")
    )
    assert "The first is the label itself but for location and scale" in said


def test_sketches_go_to_the_server_and_to_no_party(traced):
    run = traced
    sketches = [m for m in run.messages if m.up and m.step == "sketch_rows"]
    assert len(sketches) == len(NAMES)
    for m in sketches:
        assert set(m.values) == set(NAMES) - {m.node}
        one, other = m.values.values()
        assert one.shape == other.shape
        assert np.mean(one == other) < 0.05  # a seed for each pair
    seen = numbers(*(array for m in sketches for array in m.values.values()))
    assert len(seen) > 1000
    for m in run.messages:
        if not m.up:
            assert not words(m.content) & seen, (m.node, m.step)
