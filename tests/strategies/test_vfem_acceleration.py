"""How VFEM's iterations go on and end: monotone, accelerated, exhausted, diverged; engines."""

import re
from itertools import pairwise

import numpy as np
import pytest
from oracles.vfem import generate
from vfem_runs import EXACT, estimates, fit, held_by_somebody, party_tables, recorded

from flwr_vertical import MemoryStorage, Table, party_app, simulate
from strategies.vfem import VFEM

BARE = {"standard_errors": None, "check_correlation": False}
GRADIENT = {"step": "gradient", "acceleration": None, **BARE}
RESOLUTION = {"plain": 2.0**-50, "masked": 2.0**-32, "ckks": 2.0**-22}


def correlated(cross=0.6, n=400, seed=1):
    return generate(n, [3, 2, 3, 2], 0.3, seed, cross=cross)[0]


def kept(history):
    """The likelihoods of what was kept: not of trials that were mended or refused."""
    found = []
    for entry, after in zip(history, [*history[1:], {"kind": "end"}], strict=True):
        mended = after["kind"] in ("taken again", "shortened", "back")
        refused = entry["kind"] == "extrapolated" and found and entry["log_likelihood"] < found[-1]
        if not mended and not refused:
            found.append(entry["log_likelihood"])
    return np.array(found)


# -- monotone --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "cross"),
    [("plain", 0.0), ("plain", 1.0), ("masked", 0.6), ("masked", 1.0), ("ckks", 1.0)],
)
def test_no_step_that_is_kept_lowers_the_likelihood(mode, cross):
    pooled = correlated(cross)
    history = fit(pooled, mode, **BARE, max_iter=40).history
    # What fixed point leaves uncertain, of 4 parties and for each sample.
    slack = 4 * 4 * RESOLUTION[mode] * len(pooled.y) + 1e-8
    assert np.diff(kept(history)).min() > -slack


def test_a_gradient_step_that_is_too_long_is_mended():
    """Accelerated, every step is watched: the server's own parameters are shortened, too."""
    pooled = correlated(0.0)
    expected = estimates(fit(pooled, **EXACT))
    settings = {**GRADIENT, "acceleration": "squarem", "learning_rate": 5.0, "max_iter": 150}
    result = fit(pooled, "masked", **settings)
    assert result.model.outcome in ("converged", "max iterations")
    assert {entry["kind"] for entry in result.history} >= {"step", "taken again", "shortened"}
    assert np.diff(kept(result.history)).min() > -1e-4
    np.testing.assert_allclose(estimates(result), expected, atol=0.01)


def test_correlated_parties_take_some_more_rounds():
    result = fit(correlated(1.0), "masked", **BARE)
    assert result.model.outcome == "converged"
    assert len(result.history) < 300


@pytest.mark.parametrize(("seed", "no_noise_left"), [(1, True), (2, False)])
def test_hardly_anything_observed(seed, no_noise_left):
    """95 to 75 % missing: no sample of 5000 is complete, and the model may explain every label."""
    pooled, _ = generate(5000, [5] * 5, [0.95, 0.9, 0.85, 0.8, 0.75], seed)
    result = fit(pooled, "masked", **BARE)
    assert result.model.outcome == "converged"
    assert len(result.history) < 500
    notes = [note for note in result.notes if "noise variance is at its lower bound" in note]
    assert bool(notes) is no_noise_left
    if notes:
        assert "too few samples are held by enough parties" in notes[0]
        assert "standard errors and intervals should not" in notes[0]
    assert np.diff(kept(result.history)).min() > -4 * 5 * 2.0**-32 * 5000


# -- acceleration ----------------------------------------------------------------------------


def rounds_to(pooled, best, **settings):
    """Rounds until the log likelihood is within 0.01 of the largest."""
    history = fit(pooled, **{**BARE, "tol": 0, "max_iter": 130, **settings}).history
    return [entry["log_likelihood"] > best - 0.01 for entry in history].index(True) + 1


def test_squarem_saves_rounds():
    pooled = correlated(0.6, n=150)
    best = fit(pooled, **EXACT).metrics["log_likelihood"]
    short = {"max_iter": 25}
    plain = rounds_to(pooled, best, acceleration=None, **short)
    accelerated = rounds_to(pooled, best, **short)
    assert accelerated <= plain
    gradient = {"step": "gradient", "learning_rate": 0.2}
    slow = rounds_to(pooled, best, **gradient, acceleration=None)
    fast = rounds_to(pooled, best, **gradient, max_iter=60)
    assert fast < slow / 2
    # And a scoring step saves the more of them.
    assert accelerated < fast / 2


def test_squarem_keeps_some_extrapolations():
    pooled = correlated(1.0, n=150)
    history = fit(pooled, **BARE).history
    gains = [
        after["log_likelihood"] - before["log_likelihood"]
        for before, after in pairwise(history)
        if after["kind"] == "extrapolated"
    ]
    assert max(gains) > 0
    without = fit(pooled, **BARE, acceleration=None).history
    assert {entry["kind"] for entry in without} <= {"step", "taken again", "shortened"}


# -- how it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["masked"])
@pytest.mark.parametrize("settings", [{}, {"standardize": False}, {"intercept": False}], ids=str)
def test_divergence_is_an_outcome_and_names_a_rate_that_would_do(mode, settings):
    pooled = held_by_somebody(generate(150, [3, 2], 0.3, 2, cross=0.5)[0])
    result = fit(pooled, mode, learning_rate=5.0, **GRADIENT, **settings)
    assert result.model.outcome == "diverged"
    assert result.metrics["converged"] == 0
    assert result.coefficients is None
    (note,) = result.notes
    assert "learning_rate = 5 is too large" in note
    rate = float(re.search(r"; ([0-9.e-]+) would do", note)[1])
    again = fit(pooled, mode, learning_rate=rate, **GRADIENT, **settings, max_iter=15)
    assert again.model.outcome in ("converged", "max iterations")
    rising = [entry["log_likelihood"] for entry in again.history]
    assert np.diff(rising).min() > -16 * RESOLUTION[mode] * 150 - 1e-8
    assert rising[-1] > rising[0]


def test_running_out_of_rounds_is_said():
    result = fit(correlated(), max_iter=2, **BARE)
    assert result.model.outcome == "max iterations"
    assert result.metrics["converged"] == 0
    assert any("not converged after 2 rounds; raise max_iter" in note for note in result.notes)
    assert result.coefficients.notna().all().all()


def test_a_tolerance_of_zero_never_stops():
    pooled, _ = generate(60, [1, 1], 0.2, 1)
    result = fit(pooled, tol=0, max_iter=40, **BARE)
    assert (result.model.outcome, len(result.history)) == ("max iterations", 40)


# -- the same numbers everywhere -------------------------------------------------------------


def assert_same(one, other):
    np.testing.assert_array_equal(one.coefficients.to_numpy(), other.coefficients.to_numpy())
    assert one.metrics == other.metrics
    assert one.history == other.history


@pytest.fixture(scope="module")
def tables_and_labels():
    pooled, _ = generate(120, [2, 1, 2], 0.3, 4, cross=0.5)
    tables, labels = party_tables(pooled)
    labels.iloc[-20:] = np.nan
    return tables, labels


@pytest.mark.parametrize(
    ("mode", "kind"), [("plain", "expected"), ("masked", "expected"), ("masked", "gram")]
)
def test_a_second_run_gives_the_same(tables_and_labels, mode, kind):
    """Masks and keys are new; ciphertexts of products have noise."""
    if kind == "gram":
        pytest.importorskip("tenseal")
    settings = {"exchange": "sums", "standard_errors": kind, "check_correlation": False}
    one, other = (
        simulate(VFEM(**settings), *tables_and_labels, mode, progress=False) for _ in range(2)
    )
    if kind == "expected":
        assert_same(one, other)
        np.testing.assert_array_equal(one.predictions.to_numpy(), other.predictions.to_numpy())
    else:
        np.testing.assert_array_equal(estimates(one), estimates(other))
        np.testing.assert_allclose(
            one.coefficients["std_error"], other.coefficients["std_error"], rtol=1e-6
        )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"step": "gradient", "max_iter": 9},
        {"initial": "complete-case", "standard_errors": "gram"},
        {"standard_errors": "sketch", "n_sketches": 1},
    ],
    ids=str,
)
def test_parties_may_forget_everything_but_their_state(tables_and_labels, settings):
    """Flower may take every message in a new process: a new app, without caches, each time."""
    if settings.get("standard_errors") == "gram":
        pytest.importorskip("tenseal")
    tables, labels = tables_and_labels
    strategy = VFEM(exchange="sums", **settings)

    def fresh(message, context):
        storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
        app = party_app(strategy.party, arbiter=strategy.arbiter, storage=storage)
        return app(message, context)

    one = recorded(tables, labels, "masked", **settings).result
    other = recorded(tables, labels, "masked", app=fresh, **settings).result
    np.testing.assert_array_equal(estimates(one), estimates(other))
    assert one.history == other.history
    if not settings.get("standard_errors"):
        np.testing.assert_array_equal(one.coefficients, other.coefficients)


def test_ray_gives_the_same(ray_in_process, tables_and_labels):
    settings = {"check_correlation": False}
    local, ray = (
        simulate(VFEM(exchange="sums", **settings), *tables_and_labels, progress=False, **engine)
        for engine in ({}, {"engine": "ray", "n_actors": 1})
    )
    assert_same(local, ray)
    np.testing.assert_array_equal(local.predictions.to_numpy(), ray.predictions.to_numpy())
