import hashlib
import time

import numpy as np
import pytest
from scipy.stats import spearmanr

from flwr_vertical.crypto.pair_seeds import random_signs
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.products.sketches import (
    MAX_NOISE,
    estimate_products,
    rank_correlation_noise,
    rank_correlations,
    rank_scores,
    sketch,
    standard_error_of_products,
)
from strategies.vfem.rank_check import summarise_rank_correlations


def seed(number):
    return hashlib.sha256(str(number).encode()).digest()


def held(rng, n, share):
    return np.flatnonzero(rng.random(n) < share)


def pairs_of(table, columns, rows, size, number=0):
    """Rank correlations and their noise between all pairs of parties, each with its own seed."""
    names = list(columns)
    start = np.cumsum([0, *(len(columns[name]) for name in names)])
    own = {name: table[rows[name], start[i] : start[i + 1]] for i, name in enumerate(names)}
    by_pair, noise = {}, {}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            number += 1
            one, other = (
                sketch(rank_scores(own[name]), rows[name], len(table), seed(number), size)
                for name in (a, b)
            )
            shared = len(np.intersect1d(rows[a], rows[b]))
            by_pair[a, b] = rank_correlations(one, other, shared)
            noise[a, b] = rank_correlation_noise(len(rows[a]), len(rows[b]), shared, size)
    return by_pair, noise


def test_a_sketch_is_the_product_with_the_signs():
    rng = np.random.default_rng(0)
    n, size = 5000, 403
    rows = rng.permutation(n)[:1234]
    matrix = rng.normal(size=(1234, 3))
    signs = np.concatenate(list(random_signs(seed(1), n, size))).T
    got = sketch(matrix, rows, n, seed(1), size)
    np.testing.assert_allclose(got, signs[:, rows] @ matrix / np.sqrt(size), rtol=1e-10, atol=1e-12)
    order = np.argsort(rows)
    np.testing.assert_array_equal(got, sketch(matrix[order], rows[order], n, seed(1), size))
    assert not np.allclose(got, sketch(matrix, rows, n, seed(2), size))


def test_a_sketch_of_nothing():
    assert not sketch(np.zeros((0, 2)), np.zeros(0, int), 9, seed(0), 5).any()
    assert sketch(np.zeros((4, 0)), np.arange(4), 9, seed(0), 5).shape == (5, 0)


def test_sketches_of_parts_add_up():
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(3000, 2))
    whole = sketch(matrix, np.arange(3000), 3000, seed(0), 64)
    parts = [
        sketch(matrix[part], part, 3000, seed(0), 64)
        for part in (np.arange(0, 3000, 2), np.arange(1, 3000, 2))
    ]
    np.testing.assert_allclose(parts[0] + parts[1], whole, atol=1e-10)


def test_products_are_unbiased_with_the_stated_error():
    rng = np.random.default_rng(2)
    n, size, repeats = 60, 16, 4000
    rows_a, rows_b = held(rng, n, 0.8), held(rng, n, 0.7)
    # A common factor gives products their size, heavy tails make the diagonal term matter.
    factor = rng.standard_t(3, size=(n, 1))
    x, y = np.zeros((n, 2)), np.zeros((n, 3))
    x[rows_a] = (factor + rng.normal(size=(n, 2)))[rows_a]
    y[rows_b] = (factor * [1, -1, 0] + rng.normal(size=(n, 3)))[rows_b]
    estimates = np.array(
        [
            estimate_products(
                sketch(x[rows_a], rows_a, n, seed(i), size),
                sketch(y[rows_b], rows_b, n, seed(i), size),
            )
            for i in range(repeats)
        ]
    )
    products = x.T @ y
    diagonal = (x**2).T @ (y**2)
    squares = (x**2).sum(axis=0), (y**2).sum(axis=0)
    stated = standard_error_of_products(*squares, products, size, diagonal)
    # Means within 4 standard errors; standard deviations within 6 % (theirs is about 1.3 %).
    assert np.all(np.abs(estimates.mean(axis=0) - products) < 4 * stated / np.sqrt(repeats))
    np.testing.assert_allclose(estimates.std(axis=0), stated, rtol=0.06)
    bound = standard_error_of_products(*squares, products, size)
    assert np.all(bound > stated)
    assert np.all(diagonal / np.outer(*squares) > 0.01)


def test_parties_without_shared_rows_share_nothing():
    rng = np.random.default_rng(3)
    n, size = 4000, 200
    x = rng.normal(size=(n, 2))
    one = sketch(x[: n // 2], np.arange(n // 2), n, seed(0), size)
    other = sketch(x[n // 2 :], np.arange(n // 2, n), n, seed(0), size)
    noise = standard_error_of_products(np.full(2, n / 2), np.full(2, n / 2), np.zeros((2, 2)), size)
    assert np.all(np.abs(estimate_products(one, other)) < 5 * noise)
    assert np.isnan(rank_correlations(one, other, 0)).all()
    assert rank_correlation_noise(n // 2, n // 2, 0, size) == np.inf


def test_rank_scores_give_spearman_correlations():
    rng = np.random.default_rng(4)
    table = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    table[:, 1] = np.round(table[:, 1])  # ties
    scores = rank_scores(table)
    np.testing.assert_allclose(scores.T @ scores / 300, spearmanr(table).statistic, atol=1e-12)
    # Scores themselves in place of sketches: the product is exact.
    got = rank_correlations(scores[:, :2], scores[:, 2:], 300)
    np.testing.assert_allclose(got, spearmanr(table).statistic[:2, 2:], atol=1e-12)


def test_rank_scores_of_awkward_columns():
    nan = np.nan
    table = np.array(
        [[3, 7, nan, nan, 1], [nan, 7, nan, 2, 1], [1, 7, nan, nan, 1], [3, 7, nan, nan, 2]]
    )
    scores = rank_scores(table)
    assert np.isfinite(scores).all()
    assert not scores[:, 1:4].any()
    np.testing.assert_allclose(scores[:, 0], np.array([1, 0, -2, 1]) / np.sqrt(2))
    np.testing.assert_allclose((scores[:, [0, 4]] ** 2).sum(axis=0), [3, 4])
    np.testing.assert_array_equal(rank_scores(1e9 * table + 5), scores)
    assert rank_scores(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    ("n", "share_a", "share_b", "size"),
    [(60, 1.0, 1.0, 100), (300, 0.5, 0.6, 64), (400, 0.9, 0.2, 64)],
)
def test_rank_correlation_noise(n, share_a, share_b, size):
    rng = np.random.default_rng(5)
    rows_a, rows_b = held(rng, n, share_a), held(rng, n, share_b)
    shared = len(np.intersect1d(rows_a, rows_b))
    values = [
        rank_correlations(
            sketch(rank_scores(rng.normal(size=(len(rows_a), 5))), rows_a, n, seed(i), size),
            sketch(rank_scores(rng.normal(size=(len(rows_b), 5))), rows_b, n, seed(i), size),
            shared,
        )
        for i in range(600)
    ]
    stated = rank_correlation_noise(len(rows_a), len(rows_b), shared, size)
    # 15 000 values, nearly independent: a relative standard error of 0.6 %.
    assert np.sqrt(np.mean(np.square(values))) == pytest.approx(stated, rel=0.03)
    assert abs(np.mean(values)) < 4 * stated / np.sqrt(15_000)


def test_noise_is_mostly_that_of_the_signs():
    assert rank_correlation_noise(77_000, 90_000, 40_000, 400) == pytest.approx(
        np.sqrt(77_000 * 90_000 / 400) / 40_000, rel=0.01
    )
    # All rows shared, no noise of signs: the variance of a Spearman correlation, 1 / (n - 1).
    assert rank_correlation_noise(50, 50, 50, 10**12) == pytest.approx(1 / 7, rel=1e-6)


COLUMNS = {name: [f"{name}{j}" for j in range(5)] for name in ("bank", "shop", "care")}


@pytest.mark.parametrize("size", [400, 1000])
@pytest.mark.parametrize("share", [1.0, 0.55])
def test_independent_parties_give_no_warning(share, size):
    rng = np.random.default_rng(6)
    n = 5000
    for number in range(5):
        # Columns of one party may be as correlated as they like.
        table = rng.lognormal(size=(n, 15)) + np.repeat(3 * rng.normal(size=(n, 3)), 5, axis=1)
        rows = {name: held(rng, n, share) for name in COLUMNS}
        by_pair, noise = pairs_of(table, COLUMNS, rows, size, 10 * number)
        check = summarise_rank_correlations(by_pair, noise, COLUMNS)
        assert check.warning is None
        assert check.root_mean_square < 0.1
        assert check.n_pairs_checked == 75


def test_heavy_missing_is_left_out_rather_than_alarming():
    rng = np.random.default_rng(7)
    n = 5000
    rows = {
        name: held(rng, n, share) for name, share in zip(COLUMNS, (0.9, 0.9, 0.04), strict=True)
    }
    by_pair, noise = pairs_of(rng.normal(size=(n, 15)), COLUMNS, rows, 400)
    check = summarise_rank_correlations(by_pair, noise, COLUMNS)
    assert np.abs(by_pair["bank", "care"]).max() > 0.3
    assert check.warning is None
    assert check.n_pairs_checked == 25
    frame = check.to_frame()
    assert list(frame) == [
        "party_a", "column_a", "party_b", "column_b", "rank_correlation", "noise"
    ]  # fmt: skip
    assert len(frame) == 75
    assert (frame["rank_correlation"].isna() == (frame["noise"] > MAX_NOISE)).all()
    assert frame["rank_correlation"].notna().sum() == 25
    row = frame[(frame["column_a"] == "bank3") & (frame["column_b"] == "shop1")].iloc[0]
    assert row["rank_correlation"] == by_pair["bank", "shop"][3, 1]

    nothing = summarise_rank_correlations(by_pair, dict.fromkeys(noise, np.inf), COLUMNS)
    assert (nothing.n_pairs_checked, nothing.largest, nothing.warning) == (0, None, None)
    assert np.isnan(nothing.root_mean_square)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_correlated_parties_give_a_warning(share):
    rng = np.random.default_rng(8)
    n = 5000
    factor = rng.normal(size=(n, 1))
    table = np.exp(0.7 * factor + rng.normal(size=(n, 15)))
    rows = {name: held(rng, n, share) for name in COLUMNS}
    check = summarise_rank_correlations(*pairs_of(table, COLUMNS, rows, 400), COLUMNS)
    exact = spearmanr(table).statistic
    between = exact[np.repeat([0, 1, 2], 5)[:, None] < np.repeat([0, 1, 2], 5)]
    assert check.root_mean_square == pytest.approx(np.sqrt(np.mean(between**2)), abs=0.05)
    assert "use 'gram'" in check.warning
    assert f"over 75 pairs of columns is {check.root_mean_square:.2f}" in check.warning


def test_one_strong_correlation_gives_a_warning_that_names_it():
    rng = np.random.default_rng(9)
    n = 5000
    table = rng.normal(size=(n, 15))
    table[:, 7] = -table[:, 11] + 0.5 * rng.normal(size=n)
    rows = {name: np.arange(n) for name in COLUMNS}
    check = summarise_rank_correlations(*pairs_of(table, COLUMNS, rows, 400), COLUMNS)
    assert check.largest[1:] == ("shop", "shop2", "care", "care1")
    exact = spearmanr(table[:, 7], table[:, 11]).statistic
    assert check.largest.value == pytest.approx(exact, abs=0.2)
    assert "'shop2' of party 'shop' with column 'care1' of party 'care' is -0." in check.warning


def test_the_sure_one_is_named_even_if_a_noisier_one_is_larger():
    columns = {"a": ["x"], "b": ["y"], "c": ["z"]}
    by_pair = {("a", "b"): np.array([[0.45]]), ("a", "c"): np.array([[-0.4]])}
    check = summarise_rank_correlations(by_pair, {("a", "b"): 0.1, ("a", "c"): 0.03}, columns)
    assert check.largest == (0.45, "a", "x", "b", "y")
    assert "'z' of party 'c' is -0.40 (noise 0.03)" in check.warning
    # Alone, a value of 2.5 standard deviations and one with too much noise say nothing.
    by_pair = {("a", "b"): np.array([[0.25]]), ("a", "c"): np.array([[0.9]])}
    check = summarise_rank_correlations(by_pair, {("a", "b"): 0.1, ("a", "c"): 0.2}, columns)
    assert check.warning is None


def test_the_root_mean_square_is_debiased():
    values = np.random.default_rng(10).normal(0, np.sqrt(0.05**2 + 0.2**2), (200, 200))
    names = [str(j) for j in range(200)]
    columns = {"a": names, "b": names}
    pair = ("a", "b")
    check = summarise_rank_correlations({pair: values}, {pair: 0.05}, columns)
    assert check.root_mean_square == pytest.approx(0.2, rel=0.02)
    quiet = summarise_rank_correlations({pair: values / 5}, {pair: 0.05}, columns)
    assert quiet.root_mean_square == 0
    assert quiet.warning is None


def test_what_does_not_fit():
    x = np.zeros((3, 2))
    for matrix, rows, match in (
        (x, np.arange(4), r"rows of shape \(4,\)"),
        (x[:, 0], np.arange(3), r"shape \(3,\)"),
        (x, np.array([0, 1, 1]), "2 different"),
        (x, np.array([0, 1, 9]), "from 0 to 8, got 3 from 0 to 9"),
        (x, np.array([-1, 1, 3]), "from -1 to 3"),
        (x + np.nan, np.arange(3), "put 0 where a cell is missing"),
    ):
        with pytest.raises(DataError, match=match):
            sketch(matrix, rows, 9, seed(0), 4)
    with pytest.raises(ProtocolError, match="same number of rows"):
        estimate_products(np.zeros((4, 1)), np.zeros((5, 1)))
    with pytest.raises(ProtocolError, match=r"'a' and 'b' must have shape \(1, 2\)"):
        summarise_rank_correlations(
            {("a", "b"): np.zeros((2, 1))}, {("a", "b"): 0.01}, {"a": ["x"], "b": ["y", "z"]}
        )


def test_a_sketch_of_many_rows_is_fast():
    rng = np.random.default_rng(11)
    rows = rng.permutation(166_207)[:77_000]
    matrix = rng.normal(size=(77_000, 12))
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        sketch(matrix, rows, 166_207, seed(0), 400)
        seconds.append(time.perf_counter() - begin)
    # About 0.04 s on two cores; the margin is for slow or busy machines.
    assert min(seconds) < 2
