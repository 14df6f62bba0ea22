"""Each mechanism against its own definition."""

import itertools

import numpy as np
import pandas as pd
import pytest
from oracles.missingness import (
    mar_1_pattern,
    mar_2_pattern,
    mar_complex_pattern_probability,
    mar_simple_probability,
    mnar_probability,
    pattern_probabilities,
)

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.incomplete import (
    COPULA_MCAR_RATES,
    FALSE_VFL_REGIMES,
    MECHANISMS,
    draw_blocks,
    mar_blocks_1,
    mar_blocks_2,
    mar_complex,
    mar_simple,
    mcar_blocks,
    mcar_cells,
    mnar_blocks,
    sample_missing,
)

N = 20_000


def assert_count(count, probabilities):
    """A sum of independent Bernoulli draws lies within 4.5 standard deviations of its mean."""
    p = np.asarray(probabilities, dtype=float)
    assert abs(count - p.sum()) <= 4.5 * np.sqrt((p * (1 - p)).sum()) + 1e-9


def assert_same_count(count, n, p):
    assert_count(count, np.full(n, p))


def blocks_of(tables):
    """The blocks of each sample, one for each party."""
    return list(zip(*(frame.to_numpy() for frame in tables.values()), strict=True))


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(5)
    shared = rng.normal(size=(N, 1))
    return {
        name: pd.DataFrame(
            rng.normal(size=(N, width)) * scale + 0.6 * shared + shift,
            columns=[f"{name}{a}" for a in range(width)],
        )
        for name, width, scale, shift in [("a", 3, 1.0, 0.2), ("b", 1, 0.7, 0), ("c", 4, 1.5, -0.3)]
    }


@pytest.fixture(scope="module")
def labels(tables):
    return pd.Series(np.random.default_rng(6).normal(size=N) + tables["a"]["a0"])


# --- MCAR ---------------------------------------------------------------------------------------


def test_mcar_rates_per_party():
    mask = mcar_blocks(N, COPULA_MCAR_RATES, seed=1)
    assert mask.shape == (N, 5)
    for k, rate in enumerate((0.95, 0.9, 0.85, 0.8, 0.75)):
        assert_same_count(mask[:, k].sum(), N, rate)


def test_mcar_blocks_are_independent_across_parties():
    mask = mcar_blocks(N, [0.5, 0.3, 0.2], seed=2)
    for pattern in itertools.product([False, True], repeat=3):
        chance = np.prod([r if m else 1 - r for m, r in zip(pattern, [0.5, 0.3, 0.2], strict=True)])
        assert_same_count((mask == pattern).all(axis=1).sum(), N, chance)


def test_masks_do_not_depend_on_data_drawn_from_the_same_seed():
    data = np.random.default_rng(0).random((N, 2))
    mask = mcar_blocks(N, 0.5, n_parties=2, seed=0)
    assert_same_count(mask[data < 0.5].sum(), int((data < 0.5).sum()), 0.5)
    gone = sample_missing(2 * N, 0.5, seed=0)
    assert_same_count((mask.ravel() & gone).sum(), int(mask.sum()), 0.5)


def test_mcar_refuses():
    for rates, n_parties in (
        (1.2, 2), (-0.1, 2), (float("nan"), 2), (0.5, None), ([0.1, 0.2], 3), ([], None), (0.5, 0),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            mcar_blocks(10, rates, n_parties=n_parties)
    for seed in (-1, 1.5, "0", None, True):
        with pytest.raises(ConfigError, match="seed must be"):
            mcar_blocks(5, 0.5, n_parties=2, seed=seed)


def test_mcar_cells_rate_in_every_column_and_independence(tables):
    mask = mcar_cells(tables["c"], 0.3, seed=1)
    for column in mask.T:
        assert_same_count(column.sum(), N, 0.3)
    for i, j in itertools.combinations(range(4), 2):
        assert_same_count((mask[:, i] & mask[:, j]).sum(), N, 0.09)


def test_mcar_cells_of_several_parties_and_of_some_columns(tables):
    masks = mcar_cells(tables, 0.4, columns=["a1", "c0", "c3"], seed=1)
    assert list(masks) == ["a", "b", "c"]
    assert not masks["a"][:, [0, 2]].any()
    assert not masks["b"].any()
    assert not masks["c"][:, [1, 2]].any()
    for hit in (masks["a"][:, 1], masks["c"][:, 0], masks["c"][:, 3]):
        assert_same_count(hit.sum(), N, 0.4)
    assert_same_count((masks["a"][:, 1] & masks["c"][:, 0]).sum(), N, 0.16)


def test_mcar_cells_never_empties_a_column_unless_told():
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan], "y": [1.0, np.nan, np.nan]})
    mask = mcar_cells(frame, 1.0, seed=0)
    left = frame.notna().to_numpy() & ~mask
    assert left.sum(axis=0).tolist() == [1, 1]
    assert mcar_cells(frame, 1.0, keep_columns=False, seed=0).all()
    kept = {int(np.flatnonzero(~mcar_cells(frame[["x"]], 1.0, seed=s)[:, 0])[0]) for s in range(30)}
    assert kept == {0, 1}
    lone = pd.DataFrame({"x": [np.nan, 1.0, np.nan, np.nan]})
    assert not any(mcar_cells(lone, 0.5, seed=s)[1, 0] for s in range(30))


def test_mcar_cells_refuses(tables):
    with pytest.raises(ConfigError, match="rate must be a probability"):
        mcar_cells(tables["a"], 30)
    with pytest.raises(ConfigError, match=r"'zz'.*there are a0"):
        mcar_cells(tables, 0.3, columns=["a0", "zz"])


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_sample_missing_is_exact(ratio):
    missing = sample_missing(1000, ratio, seed=3)
    assert missing.shape == (1000,)
    assert missing.sum() == round(1000 * ratio)
    assert sample_missing(100, 0.29).sum() == 29  # 0.29 * 100 is below 29 in floating point


def test_sample_missing_is_uniform_over_samples():
    times = sum(sample_missing(10, 0.3, seed=s).astype(int) for s in range(4000))
    for count in times:
        assert_same_count(count, 4000, 0.3)


# --- FALSE-VFL ----------------------------------------------------------------------------------

# Within-sample variances of the blocks of three parties with two columns each. None meets a
# threshold or a budget exactly, where rounding would decide.
PROFILES = [
    (0.21, 0.32, 0.13),  # never informative
    (1.51, 0.33, 0.22),  # one highly informative party
    (1.02, 1.23, 0.31),  # 1.02 exceeds the threshold only after one decrement
    (0.91, 0.86, 0.83),  # after two
    (0.62, 0.71, 0.93),  # moderately informative, for MAR 2
    (2.03, 2.04, 2.06),
    (0.53, 1.04, 1.36),
]


def profile_tables(repeats):
    spread = np.sqrt(np.repeat(np.array(PROFILES), repeats, axis=0))
    return {
        f"party{k}": pd.DataFrame({"x": 3 + spread[:, k], "y": 3 - spread[:, k]}) for k in range(3)
    }


@pytest.mark.parametrize(
    ("draw", "algorithm", "settings"),
    [
        (mar_blocks_1, mar_1_pattern, {}),
        (mar_blocks_1, mar_1_pattern, {"threshold": 0.95, "decrement": 0.3}),
        (mar_blocks_2, mar_2_pattern, {}),
        (mar_blocks_2, mar_2_pattern, {"budget": 0.5}),
        (mar_blocks_2, mar_2_pattern, {"threshold": 0.8, "budget": 0.26, "decrement": 0.05}),
    ],
)
def test_mar_patterns_have_the_probabilities_of_the_papers_algorithm(draw, algorithm, settings):
    repeats = 3000
    mask = draw(profile_tables(repeats), standardize=False, seed=11, **settings)
    seen = set()
    for i, variances in enumerate(PROFILES):
        rows = mask[i * repeats : (i + 1) * repeats]
        chances = pattern_probabilities(algorithm, variances, **settings)
        seen.update(chances)
        for pattern in itertools.product([False, True], repeat=3):
            count = (rows == pattern).all(axis=1).sum()
            assert_same_count(count, repeats, chances.get(pattern, 0.0))
    assert len(seen) >= 4  # the profiles tell the algorithms' branches apart


@pytest.mark.parametrize("draw", [mar_blocks_1, mar_blocks_2])
def test_mar_depends_only_on_what_is_observed(draw, tables):
    mask = draw(tables, standardize=False, seed=3)
    assert 0.1 < mask.mean() < 0.9
    altered = {
        party: frame.where(pd.Series(~mask[:, k]), frame * 7 - 4, axis=0)
        for k, (party, frame) in enumerate(tables.items())
    }
    np.testing.assert_array_equal(draw(altered, standardize=False, seed=3), mask)


@pytest.mark.parametrize("draw", [mar_blocks_1, mar_blocks_2])
def test_mar_leaves_every_sample_a_block_and_visits_parties_alike(draw, tables):
    mask = draw(tables, seed=4)
    assert not mask.all(axis=1).any()
    same = {name: tables["a"].set_axis(list("xyz"), axis=1) for name in "abc"}
    rates = draw(same, seed=4).mean(axis=0)
    assert rates.min() > 0.05
    assert np.ptp(rates) < 5 * np.sqrt(2 * 0.25 / N)


def standardized(frame):
    return (frame - frame.mean()) / frame.std(ddof=0)


@pytest.mark.parametrize("draw", [mar_blocks_1, mar_blocks_2, mnar_blocks])
def test_false_vfl_mechanisms_normalise_each_column(draw, tables):
    by_hand = {party: standardized(frame) for party, frame in tables.items()}
    expected = draw(by_hand, standardize=False, seed=8)
    np.testing.assert_array_equal(draw(tables, seed=8), expected)
    assert (draw(tables, standardize=False, seed=8) != expected).any()


@pytest.mark.parametrize("p", [0.7, 0.9])
def test_mnar_rates_given_the_sign_of_the_own_mean(p, tables):
    mask = mnar_blocks(tables, p, seed=5)
    for k, frame in enumerate(tables.values()):
        chances = np.array([mnar_probability(row, p) for row in standardized(frame).to_numpy()])
        assert set(chances) == {p, 1 - p}
        for chance in (p, 1 - p):
            rows = np.isclose(chances, chance)
            assert_same_count(mask[rows, k].sum(), int(rows.sum()), chance)


def test_mnar_keep_one_and_p(tables):
    assert mnar_blocks(tables, 0.9, seed=7).all(axis=1).any()
    assert not mnar_blocks(tables, 0.9, seed=7, keep_one=True).all(axis=1).any()
    with pytest.raises(ConfigError, match="p must be a probability"):
        mnar_blocks(tables, 7)


# --- copula paper -------------------------------------------------------------------------------


def test_mar_simple_follows_its_logistic_model(tables):
    mask = mar_simple(tables, may_miss=[False, True, True], seed=5)
    chances = np.array([mar_simple_probability(row, {2, 3}) for row in blocks_of(tables)])
    assert np.ptp(chances) > 0.8
    assert not mask[:, 0].any()
    for part in np.array_split(np.argsort(chances), 10):
        for k in (1, 2):
            assert_count(mask[part, k].sum(), chances[part])
        # Given the observed party, the others' gaps are independent.
        assert_count((mask[part, 1] & mask[part, 2]).sum(), chances[part] ** 2)


def test_mar_complex_joint_pattern_probabilities(tables, labels):
    mask = mar_complex(tables, labels, may_miss=[True, False, True], seed=5)
    parts = np.array_split(np.argsort(labels.to_numpy()), 5)
    for pattern in itertools.product([False, True], repeat=3):
        samples = zip(blocks_of(tables), labels, strict=True)
        chances = np.array(
            [mar_complex_pattern_probability(row, y, [1, 3], pattern) for row, y in samples]
        )
        hits = (mask == pattern).all(axis=1)
        for part in parts:
            assert_count(hits[part].sum(), chances[part])


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["mar-simple", "mar-complex"])
def test_each_party_may_miss_with_probability_one_half(mechanism):
    small = {name: pd.DataFrame({name: np.zeros(40)}) for name in "abcd"}
    drawn = [draw_blocks(mechanism, small, labels=np.zeros(40), seed=s) for s in range(1500)]
    # At zero covariates a block of Δ_mis is missing with probability above 1/4: one in 40 is.
    touched = np.array([mask.any(axis=0) for mask in drawn])
    for k in range(4):
        assert_same_count(touched[:, k].sum(), 1500, 0.5)
    for k, other in itertools.combinations(range(4), 2):
        assert_same_count((touched[:, k] & touched[:, other]).sum(), 1500, 0.25)


def test_copula_mechanisms_refuse(tables, labels):
    for may_miss, why in (([True, False], r"2 values.*3 parties"), ([0.5, 0, 1], "true or false")):
        with pytest.raises(ConfigError, match=why):
            mar_simple(tables, may_miss=may_miss)
    for wrong, why in (
        (labels[::-1], "same order"), (labels.where(labels.index != 3), "1 missing"),
        (np.zeros(5), r"shape \(5,\)"), (["yes"] * N, "must be numbers"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=why):
            mar_complex(tables, wrong)


# --- what all share -----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *FALSE_VFL_REGIMES])
def test_reproducible_per_seed(mechanism, tables, labels):
    settings = {"rates": [0.3, 0.4, 0.5]} if mechanism == "mcar" else {}
    if mechanism in ("mar-simple", "mar-complex"):
        settings = {"may_miss": [True, True, False]}
    first, again, other = (
        draw_blocks(mechanism, tables, labels=labels, seed=s, **settings) for s in (1, 1, 2)
    )
    assert first.shape == (N, 3)
    assert first.dtype == np.bool_
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() or mechanism == "MCAR 0"
    rng = np.random.default_rng(1)
    one = draw_blocks(mechanism, tables, labels=labels, seed=rng, **settings)
    two = draw_blocks(mechanism, tables, labels=labels, seed=rng, **settings)
    assert (one != two).any() or mechanism == "MCAR 0"


def test_regimes_are_the_mechanisms_with_their_settings(tables):
    expected = mnar_blocks(tables, 0.9, keep_one=True, seed=3)
    np.testing.assert_array_equal(draw_blocks("MNAR 9", tables, seed=3), expected)
    overridden = draw_blocks("MNAR 9", tables, seed=3, keep_one=False)
    np.testing.assert_array_equal(overridden, mnar_blocks(tables, 0.9, seed=3))
    assert not draw_blocks("MCAR 0", tables).any()


def test_draw_blocks_refuses(tables):
    for name, settings, why in (
        ("nmar", {}, "unknown missingness mechanism 'nmar'; there are mcar"),
        ("mnar", {"q": 0.3}, "no settings q; it has p, keep_one, standardize"),
        ("mcar", {}, "needs the settings rates"), ("mar-complex", {}, "depends on the labels"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            draw_blocks(name, tables, **settings)


def test_mechanisms_start_from_complete_tables_with_one_index():
    whole = pd.DataFrame({"x": [1.0, 2.0]}, index=[7, 8])
    times = pd.DataFrame({"x": pd.to_datetime(["2020-01-01", "2021-01-01"])})
    for draw, tables, why in (
        (mnar_blocks, {"a": whole, "b": whole.where(whole > 1)}, "'b' has missing cells in x"),
        (mar_blocks_1, {"a": whole, "b": whole[::-1]}, "'b' does not hold the same samples"),
        (mar_blocks_2, {}, "no party"), (mar_simple, {"a": whole[[]]}, "without a cell"),
        (mnar_blocks, {"a": times}, "'x' of party 'a' holds datetime64"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=why):
            draw(tables)


def test_labels_and_booleans_count_as_codes():
    words = pd.DataFrame(
        {
            "w": ["b", "a", "c", "a"],
            "o": pd.Categorical(list("zxyz"), categories=list("zyx"), ordered=True),
            "t": [True, False, True, True],
        }
    )
    codes = pd.DataFrame({"w": [1, 0, 2, 0], "o": [0, 2, 1, 0], "t": [1, 0, 1, 1]})
    many = [pd.concat([frame] * 200, ignore_index=True) for frame in (words, codes)]
    masks = [mar_blocks_1({"p": frame, "q": frame}, seed=1) for frame in many]
    assert 0 < masks[0].mean() < 1
    np.testing.assert_array_equal(*masks)
    # A constant column normalises to zeros, not to NaN.
    flat = pd.DataFrame({"x": np.ones(500)})
    assert_same_count(mnar_blocks({"p": flat}, 0.9, seed=1).sum(), 500, 0.1)
