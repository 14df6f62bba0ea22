"""Nominal columns: ranks of indicators, latents of levels, tables of levels without an order."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Kind, simulate
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.privacy import Keystream, seeded_noise
from strategies.copula import EVCDS, IEVCDS, VCDS
from strategies.copula.nominal import Feature, Nominal, assign_levels, fit_blocks, indicator_gap
from strategies.copula.rank_to_normal import rank_coefficients
from strategies.copula.ranks import Flip, indicator_ranks, rectangle_sums
from strategies.copula.release import ReleaseBudget, make_release

KEY = b"sixteen bytes ok"
HUGE = 1e6
N = 3000
METHODS = [VCDS, EVCDS, IEVCDS]


# -- what indicators tell ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 11.0, 50.0])
def test_one_comparison_of_all_indicators_spends_no_more_than_one_comparison(epsilon):
    """Every answer to every change of one value, by enumeration."""
    flip = Flip.of(epsilon)
    theta = flip.of_indicators.theta
    k, worst = 4, 0.0

    def chance(mine, others, answer):
        """Of answers (1 = win) of the comparisons of one pair, one for each level."""
        found = 1.0
        for level, won in enumerate(answer):
            lead = (mine == level) - (others == level)
            win = {1: 1 - theta, 0: 0.5, -1: theta}[lead]
            found *= win if won else 1 - win
        return found

    for before, after, others in product(range(k), repeat=3):
        for answer in product((0, 1), repeat=k):
            ratio = chance(before, others, answer) / chance(after, others, answer)
            worst = max(worst, float(np.log(ratio)))
    assert worst <= flip.epsilon + 1e-9
    assert worst >= 0.99 * flip.epsilon - 1e-3


@pytest.mark.parametrize("epsilon", [0.5, pytest.param(50.0, marks=pytest.mark.slow)])
def test_ranks_of_indicators_are_two_values_and_the_stated_noise(epsilon):
    rng, flip = np.random.default_rng(0), Flip.of(epsilon).of_indicators
    n, stream = 700, Keystream(KEY)
    held = rng.random(n) < 0.2
    ranks = np.array([indicator_ranks(held, flip, stream) for _ in range(200)])
    assert (ranks.sum(axis=1) == n * (n + 1) // 2).all()
    found = flip.debias(ranks, n)
    share = held.mean()
    expected = np.where(held, (1 - share) * n / 2, -share * n / 2)
    noise = flip.indicator_noise(n, share)
    np.testing.assert_allclose(found.mean(axis=0), expected, atol=5 * np.sqrt(noise / 200))
    assert found.var(axis=0, ddof=1).mean() == pytest.approx(noise, rel=0.03)
    # Two rows win with the chances that the enumeration takes.
    for two, chance in (([1, 0], 1 - flip.theta), ([1, 1], 0.5), ([0, 0], 0.5)):
        won = np.mean([indicator_ranks(two, flip, stream)[0] == 2 for _ in range(400)])
        assert won == pytest.approx(chance, abs=4 * 0.5 / 400**0.5)


@pytest.mark.parametrize("shape", [(1, 1), (63, 65), (300, 4097), (513, 64)])
def test_bits_of_a_rectangle_have_their_chance(shape):
    for numerator in (1 << 14, 3 << 12):
        rows, columns = rectangle_sums(*shape, Flip(numerator), Keystream(KEY))
        assert (len(rows), len(columns)) == shape
        assert rows.sum() == columns.sum()
        chance, size = numerator / 2**16, shape[0] * shape[1]
        assert abs(rows.sum() - chance * size) <= 4 * np.sqrt(chance * (1 - chance) * size) + 1
        assert rows.max() <= shape[1]
        assert columns.max() <= shape[0]


def test_too_small_an_epsilon_for_indicators_is_refused():
    with pytest.raises(ConfigError, match="too small"):
        Flip.of(5e-5).of_indicators  # noqa: B018
    assert Flip.of(float("inf")).of_indicators.numerator == 0


# -- latents of levels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shares", [[0.5, 0.3, 0.2], [0.9, 0.09, 0.01], [0.4, 0.0, 0.6], [1 / 12] * 12]
)
def test_offsets_give_levels_their_shares(shares):
    nominal = Nominal.of(shares)
    latents = np.random.default_rng(0).standard_normal((200_000, len(shares)))
    levels = nominal.levels_of(latents)
    made = np.bincount(levels, minlength=len(shares)) / len(levels)
    np.testing.assert_allclose(made, shares, atol=0.005)
    # Stein's lemma: the slopes are the covariances of indicators with latents.
    told = np.eye(len(shares))[levels].T @ latents / len(levels)
    np.testing.assert_allclose(nominal.slopes, told, atol=0.01)


def test_levels_are_met_exactly():
    rng, shares = np.random.default_rng(0), np.array([0.7, 0.3])
    common = rng.standard_normal((1000, 1))
    for latents in (rng.standard_normal((1000, 4)), common + rng.standard_normal((1000, 4)) ** 3):
        levels = assign_levels(latents, np.array([0.5, 0.3, 0.2, 0.0]), rng)
        assert np.bincount(levels, minlength=4).tolist() == [500, 300, 200, 0]
        larger = latents[levels == 1, 1].mean() - latents[levels == 0, 1].mean()
        assert larger > 0.5
    few = [assign_levels(rng.standard_normal((1, 2)), shares, rng) for _ in range(100)]
    assert np.mean(few) == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize("error", [0.0, 0.05, 0.4])
def test_scores_of_an_indicator_differ_as_stated(error):
    rng = np.random.default_rng(0)
    held = np.arange(100_000) < 20_000
    ranks = held / 2 + error * rng.standard_normal(len(held)) + 1e-9 * rng.random(len(held))
    above = ranks.argsort().argsort() >= 0.8 * len(held)
    found = (above[held].mean() - above[~held].mean()) / above.std()
    assert indicator_gap(0.2, error) == pytest.approx(found, abs=0.02)


def test_strong_correlations_are_found_from_what_is_observed():
    """Beyond first order: levels that all but follow a number, and each other."""
    one, other = Nominal.of([0.5, 0.3, 0.2]), Nominal.of([0.25] * 4)
    features = [
        Feature(slice(0, 3), nominal=one, scale=np.full(3, 3**0.5)),
        Feature(slice(3, 7), nominal=other, scale=np.full(4, 3**0.5)),
        Feature(slice(7, 8), series=rank_coefficients(None)),
    ]
    truth = np.eye(8)
    truth[:3, 3:7] = 0.85 * np.linalg.qr(np.random.default_rng(3).normal(size=(4, 3)))[0].T
    truth[7, :3] = 0.3, -0.6, 0.3
    truth[7, 3:7] = truth[7, :3] @ truth[:3, 3:7] * 0.9
    truth = np.triu(truth.T, 1) + np.triu(truth.T, 1).T + np.eye(8)
    drawn = np.random.default_rng(1).standard_normal((100_000, 8)) @ np.linalg.cholesky(truth).T

    def observed(latents):
        values = np.hstack([f.values(latents[:, f.at]) * f.scale for f in features])
        return values.T @ values / len(values)

    fitted = fit_blocks(np.eye(8), observed(drawn), np.full((8, 8), 1e-8), features, 1e-4)
    normal = np.random.default_rng(2).standard_normal((100_000, 8))
    redrawn = normal @ np.linalg.cholesky(fitted).T
    # Offsets, and what is observed, are those of the latents as they are now.
    features = [f.fitted(redrawn[:, f.at], fitted[f.at, f.at]) for f in features]
    wanted, made = observed(drawn), observed(redrawn)
    between = np.ones((8, 8), dtype=bool)
    for feature in features:
        between[feature.at, feature.at] = False
    assert np.abs(wanted[between]).max() > 0.3
    np.testing.assert_allclose(made[between], wanted[between], atol=0.02)


# -- tables ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    """Levels whose order says nothing: colour and drink go together, size is of the middle one."""
    n, rng = N, np.random.default_rng(0)
    colour = rng.choice(4, size=n, p=[0.35, 0.3, 0.2, 0.15])
    drink = np.where(rng.random(n) < 0.75, np.array([2, 0, 3, 1])[colour], rng.integers(4, size=n))
    size = np.array([0.0, 1.0, -1.0, 0.3])[colour] + rng.normal(size=n)
    ids = [f"s{i}" for i in range(n)]
    drinks = np.array(["beer", "juice", "tea", "water"])[drink]
    a = pd.DataFrame({"colour": np.array(["blue", "green", "red", "white"])[colour]}, ids)
    return {"a": a, "b": pd.DataFrame({"drink": drinks, "size": size}, ids)}


def variation(real, made, one, other):
    """Total variation of two tables of shares; numbers are cut at their real quartiles."""

    def levels(frame, name):
        if frame[name].dtype.kind != "f":
            return frame[name].astype(str)
        return pd.cut(frame[name], [-np.inf, *real[name].quantile([0.25, 0.5, 0.75]), np.inf])

    tables = [
        pd.crosstab(levels(t, one), levels(t, other), normalize=True).stack() for t in (real, made)
    ]
    return float(tables[0].sub(tables[1], fill_value=0).abs().sum() / 2)


def run(strategy, tables, seed=0, **more):
    with seeded_noise(seed):
        return simulate(strategy, tables, seed=seed, **more)


def pooled(tables):
    return pd.concat(tables.values(), axis=1)


@pytest.mark.parametrize("epsilon", [pytest.param(1.0, marks=pytest.mark.slow), HUGE])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_dependence_without_order_is_kept(tables, method, epsilon):
    result = run(method(epsilon), tables)
    real, made = pooled(tables), pooled(result.tables)
    for pair in (("colour", "drink"), ("colour", "size"), ("drink", "size")):
        assert variation(real, made, *pair) < (0.1 if epsilon == 1 else 0.08)
    for name in ("colour", "drink"):
        margin = made[name].value_counts(normalize=True) - real[name].value_counts(normalize=True)
        assert margin.abs().max() < (0.02 if epsilon == 1 else 0.001)
    assert result.model.shape == (9, 9)


def test_one_order_does_not_keep_it(tables):
    result = run(VCDS(HUGE, nominal="order"), tables)
    made = pooled(result.tables)
    assert variation(pooled(tables), made, "colour", "drink") > 0.5
    assert variation(pooled(tables), made, "colour", "size") > 0.2
    assert result.model.shape == (3, 3)


@pytest.mark.parametrize(
    "method", [EVCDS, pytest.param(IEVCDS, marks=pytest.mark.slow)], ids=lambda m: m.name
)
def test_rows_that_follow_real_ones_keep_it(tables, method):
    made = pooled(run(method(HUGE, rearrange=True), tables).tables)
    real = pooled(tables)
    assert variation(real, made, "colour", "drink") < 0.03
    assert variation(real, made, "colour", "size") < 0.03


@pytest.mark.slow
def test_shares_are_corrected_for_what_is_missing(tables):
    """Samples whose colour is known depend on the drink, which all have."""
    rng = np.random.default_rng(1)
    kept = rng.random(N) < np.where(tables["b"]["drink"].isin(["tea", "juice"]), 0.95, 0.3)
    known = {"a": tables["a"][kept], "b": tables["b"]}
    real = tables["a"]["colour"].value_counts(normalize=True)
    off = {
        method.name: run(method(HUGE), known).tables["a"]["colour"].value_counts(normalize=True)
        .sub(real, fill_value=0).abs().sum() / 2
        for method in METHODS
    }  # fmt: skip
    assert off["vcds"] > 0.15
    assert off["evcds"] < 0.4 * off["vcds"]
    assert off["ievcds"] < 0.4 * off["vcds"]


@pytest.mark.parametrize("missing", ["pairwise", "complete-case", "impute"])
def test_missing_cells_and_rows_are_no_obstacle(tables, missing):
    rng = np.random.default_rng(2)
    a, b = tables["a"][rng.random(N) < 0.8], tables["b"].copy()
    b.loc[rng.random(N) < 0.2, "drink"] = None
    labels = pd.Series(np.asarray(tables["b"]["size"] > 0, dtype=int), tables["b"].index)
    result = run(VCDS(HUGE, missing=missing, rows=500), {"a": a, "b": b}, labels=labels)
    made = pooled(result.tables)
    assert len(made) == 500
    assert not made.isna().any().any()
    assert variation(pooled(tables), made, "colour", "drink") < (
        0.3 if missing == "impute" else 0.12
    )


# -- what a party releases ---------------------------------------------------------------------


def release(codes, kind, n_levels, **budget):
    codes = np.asarray(codes, dtype=float)[:, None]
    return make_release(
        codes, {"x": kind}, [n_levels], {}, {}, [n_levels], ReleaseBudget(HUGE, **budget),
        Keystream(KEY), "party 'a'",
    )  # fmt: skip


def test_which_columns_have_ranks_for_each_level():
    codes, merged = np.repeat([0, 1, 2], [60, 50, 40]), np.minimum(np.arange(1400) % 14, 11)
    merged[:2] = 12, 13
    for given, kind, n_levels, settings, width in (
        (codes, Kind.CATEGORICAL, 3, {}, 3),
        (codes, Kind.CATEGORICAL, 3, {"nominal": "order"}, 1),
        (codes, Kind.ORDINAL, 3, {}, 1),
        (np.minimum(codes, 1), Kind.BINARY, 2, {}, 1),
        # What is left of rare levels counts: one level and "other" are two; 13 are too many.
        (np.repeat([0, 1, 2], [140, 5, 5]), Kind.CATEGORICAL, 3, {}, 1),
        (np.arange(1300) % 13, Kind.CATEGORICAL, 13, {}, 1),
        (merged, Kind.CATEGORICAL, 14, {"min_level": 0}, 1),
    ):
        made = release(given, kind, n_levels, **settings)
        assert made.widths == [width]
        assert made.ranks.shape == (len(given), width)
    ranks = release(np.repeat([0.0, 1.0, 2.0, np.nan], 50), Kind.CATEGORICAL, 3).ranks
    assert (ranks[150:] == 0).all()
    assert (ranks[:150] > 0).all()
    # The level that a row has is the one whose rank is highest, without noise.
    np.testing.assert_array_equal(ranks[:150].argmax(axis=1), np.repeat([0, 1, 2], 50))


def test_rare_levels_are_one_and_too_many_are_named_in_the_log(tables, caplog):
    a = tables["a"].assign(region=[f"region {i % 15:02}" for i in range(N)])
    a.iloc[:4, 0] = ["pink", "grey", "pink", "grey"]
    with caplog.at_level("INFO", logger="flwr_vertical"):
        made = run(VCDS(HUGE), {"a": a, "b": tables["b"]}).tables["a"]["colour"]
    assert set(made) <= {"blue", "green", "red", "white", "other"}
    assert (made == "other").mean() == pytest.approx(4 / N, abs=1 / N)
    (line,) = [text for text in caplog.messages if "taken in sorted order" in text]
    assert line.startswith("party 'a': more than 12 levels, taken in sorted order: ['region']")


def test_what_is_spent_is_that_of_one_order_and_what_it_tells_is_said(tables):
    each, one = (run(VCDS(1.0, nominal=way), tables).privacy for way in ("indicators", "order"))
    assert (each.record, each.vdadp) == (one.record, one.vdadp)
    (said,) = [w for w in each.warnings if "the server can tell which level" in w]
    assert said.startswith("Each level of 2 columns")
    assert not any("which level" in w for w in one.warnings)


def test_levels_that_say_nothing_or_identify_are_refused_by_name(tables):
    for column, said in (
        ({"town": "Delft"}, r"column 'town' is constant or all but empty"),
        (
            {"name": [f"name {i // 5}" for i in range(N)]},
            r"column 'name' has 600 levels in 3000 rows.*together",
        ),
    ):
        with pytest.raises(PartyError, match=said):
            run(VCDS(1.0), {"a": tables["a"].assign(**column), "b": tables["b"]})
    with pytest.raises(ConfigError, match=r"nominal.*indicators.*order"):
        VCDS(1.0, nominal="alphabet")
    with pytest.raises(ConfigError, match=r"party 'a': nominal must be one of"):
        ReleaseBudget(1.0, nominal="alphabet").check("party 'a'")
