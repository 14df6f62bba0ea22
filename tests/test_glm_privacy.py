"""Audit of the transcript of VerticalGLM(exchange='sums'), with detectors of other audits."""

import numpy as np
import pytest
from glm_runs import pooled, split
from test_privacy_audit import chi_square, correlations
from test_vfem_privacy import numbers, words
from vfem_runs import recorded

from flwr_vertical.crypto import FixedPoint
from flwr_vertical.products.rotation import GROUP, rotate
from strategies.glm import VerticalGLM

NAMES = ["p0", "p1", "p2"]
N = 400
# The correlation of independent values has a standard deviation of 1/20: five of them.
CORRELATION, CHI_SQUARE = 0.27, 450.0
AGREED = {"configs": {name: {"exchanges": "sums"} for name in NAMES}}
SETTINGS = {
    "exchange": "sums",
    "family": "binomial",
    "penalty": "lasso",
    "lambdas": 0.02,
    "kkt_tol": 1e-3,
}


@pytest.fixture(scope="module")
def runs():
    made = {}

    def get(mode):
        if mode == "ckks":
            pytest.importorskip("tenseal")
        if mode not in made:
            X, y, _ = pooled("binomial", n=N + 30, seed=3)
            y[-30:] = np.nan
            tables, labels = split(X, y)
            made[mode] = recorded(tables, labels, mode, strategy=VerticalGLM(**SETTINGS), **AGREED)
        return made[mode]

    return get


def z_of(run, name):
    x = run.tables[name].to_numpy()[:N]
    return (x - x.mean(axis=0)) / x.std(axis=0)


def terms_up(run, step, summand):
    found = {name: [] for name in NAMES}
    for m in run.messages:
        if m.up and m.step == step and summand in m.sums:
            found[m.node].append(m.sums[summand])
    return found


def test_in_plain_mode_the_detectors_find_every_fit(runs):
    run = runs("plain")
    for name, fits in terms_up(run, "admm", "fit").items():
        z = z_of(run, name)
        assert len(fits) == len(run.result.history)
        for fit in fits:
            assert np.abs(fit - z @ np.linalg.lstsq(z, fit, rcond=None)[0]).max() < 1e-9
            assert chi_square(fit) > CHI_SQUARE


@pytest.mark.parametrize("summand", ["fit", "projection"])
def test_masked_terms_tell_nothing(runs, summand):
    plain, masked = (terms_up(runs(mode), "admm", summand) for mode in ("plain", "masked"))
    for name in NAMES:
        # The first rounds take the same way to the last digits that fixed point has.
        for truth, array in list(zip(plain[name], masked[name], strict=False))[:8]:
            assert array.dtype == np.uint64
            assert correlations(array.ravel(), truth.ravel()).max() < CORRELATION
            assert chi_square(array) < CHI_SQUARE
    total = sum(masked[name][0] for name in NAMES)
    expected = sum(plain[name][0] for name in NAMES)
    np.testing.assert_allclose(FixedPoint().decode(total), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_no_message_holds_a_column_or_a_fit(runs, mode):
    run = runs(mode)
    plain = terms_up(runs("plain"), "admm", "fit")
    fits = numbers(*(fit for fits in plain.values() for fit in fits))
    secret = {name: numbers(run.tables[name].to_numpy(), z_of(run, name)) for name in NAMES}
    assert all(len(found) > N for found in secret.values())
    for m in run.messages:
        seen = words(m.content)
        assert not seen & fits, (m.node, m.step)
        for name in NAMES:
            assert not seen & secret[name], (name, m.node, m.step)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_labels_travel_as_residuals(runs, mode):
    """The first shows them, as the disclosure says."""
    run = runs(mode)
    y = run.labels.to_numpy()[:N]
    for m in run.messages:
        if not m.up and m.step == "begin":
            np.testing.assert_allclose(m.arguments["residual"], y - y.mean(), atol=1e-12)
    said = " ".join(what for who, what in VerticalGLM.disclosure if who.startswith("every party"))
    assert "the first shows the labels" in said


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_the_server_gets_rotated_columns_whose_products_are_exact(runs, mode):
    run = runs(mode)
    told = {m.node: m.values for m in run.messages if m.up and m.step == "rotate_selected"}
    weight = next(
        m.arguments["weight"] for m in run.messages if m.step == "rotate_selected" and not m.up
    )
    assert ((weight > 0) & (weight <= 0.25)).all()
    table = run.result.coefficients["estimate"]
    chosen = {name: np.flatnonzero(table[name].to_numpy()) for name in NAMES}
    rows = {
        name: run.tables[name].to_numpy()[:N, chosen[name]] * np.sqrt(weight)[:, None]
        for name in NAMES
    }
    for one in NAMES:
        for other in NAMES:
            if one == other:
                continue
            mine, theirs = told[one][f"rotated:{other}"], told[other][f"rotated:{one}"]
            np.testing.assert_allclose(mine.T @ theirs, rows[one].T @ rows[other], atol=1e-9)
            for column, truth in zip(mine.T, rows[one].T, strict=True):
                assert abs(np.corrcoef(column, truth)[0, 1]) < CORRELATION
                assert abs(np.corrcoef(np.sort(column), np.sort(truth))[0, 1]) < 1
            # Another seed for every pair.
            third = next(name for name in NAMES if name not in (one, other))
            assert not np.allclose(told[one][f"rotated:{third}"], mine)
    # Nobody but the server sees them.
    sent = numbers(*(v for values in told.values() for k, v in values.items() if ":" in k))
    for m in run.messages:
        if not m.up:
            assert not words(m.content) & sent, (m.node, m.step)


def test_no_standard_errors_no_moments():
    X, y, _ = pooled("gaussian")
    tables, labels = split(X, y)
    strategy = VerticalGLM(exchange="sums", lambdas=0.1, standard_errors=None)
    run = recorded(tables, labels, strategy=strategy, **AGREED)
    assert {m.step for m in run.messages} == {
        "hello",
        "share_ids",
        "prepare",
        "begin",
        "admm",
        "finish",
    }
    public = [set(m.values) for m in run.messages if m.up and m.step == "finish"]
    assert public == [{"beta", "offset"}] * 3


# -- rotations ------------------------------------------------------------------------------


def test_a_rotation_keeps_products_and_is_the_same_for_both():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2 * GROUP + 77, 3)), rng.standard_normal((2 * GROUP + 77, 2))
    one, other = rotate(x, bytes(32)), rotate(y, bytes(32))
    np.testing.assert_allclose(one.T @ other, x.T @ y, atol=1e-9)
    np.testing.assert_allclose(rotate(np.hstack([x, y]), bytes(32)), np.hstack([one, other]))
    assert not np.allclose(rotate(x, bytes([1] * 32)), one)
    for n in (1, 2, 3):
        np.testing.assert_allclose(
            np.abs(rotate(x[:n], bytes(32)).T @ rotate(x[:n], bytes(32))), np.abs(x[:n].T @ x[:n])
        )


def test_rotations_are_uniform():
    """Moments of a Haar matrix: no direction is preferred, and both signs come up."""
    size, draws = 5, 4000
    found = np.array([rotate(np.eye(size), number.to_bytes(32, "big")) for number in range(draws)])
    np.testing.assert_allclose(found[0] @ found[0].T, np.eye(size), atol=1e-12)
    spread = 1 / np.sqrt(size * draws)
    assert np.abs(found.mean(axis=0)).max() < 5 * spread
    np.testing.assert_allclose((found**2).mean(axis=0), 1 / size, atol=5 * 0.25 / np.sqrt(draws))
    fourth = 3 / (size * (size + 2))
    np.testing.assert_allclose((found**4).mean(axis=0), fourth, atol=0.02)
    determinants = np.linalg.det(found)
    assert abs(np.mean(determinants > 0) - 0.5) < 5 * 0.5 / np.sqrt(draws)
