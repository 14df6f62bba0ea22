"""Mean functions as Fourier sums, whole numbers modulo 2^64, and the fit's own numerics."""

import numpy as np
import pytest
from scipy.special import expit

from flwr_vertical.errors import DataError
from flwr_vertical.products.arithmetic import Layout
from strategies.linear.families import family_named
from strategies.linear.masked_means import fourier
from strategies.linear.masked_means.fixed_point import (
    DIGIT_BITS,
    N_DIGITS,
    choose_precision,
    combine,
    from_digit_products,
    from_digits,
    server_features,
    to_digits,
)
from strategies.linear.masked_means.fourier import (
    CIRCLE,
    expand,
    expand_level,
    harmonics,
    to_circle,
)
from strategies.linear.masked_means.information import (
    Roles,
    Streams,
    handed_over,
    open_information,
    party_term,
)
from strategies.linear.masked_means.solver import (
    Expansions,
    MeanMoments,
    OutOfReachError,
    maximise,
    predicted_information,
)
from tests.kit.masked_runs import pooled, statsmodels_fit

MODULUS = 2**64


def uniform(rng, *shape):
    return rng.integers(0, MODULUS, size=shape, dtype=np.uint64)


# -- Fourier sums ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "radius", [0.5, 3.0, 12.0, 24.0, 50.0, pytest.param(112.0, marks=pytest.mark.slow)]
)
def test_logistic_functions_are_within_the_tolerance_up_to_the_radius(radius):
    functions = [lambda t: expit(t - 1.0), lambda t: expit(t - 1.0) * expit(1.0 - t)]
    found = expand(functions, radius)
    t = np.linspace(-radius, radius, 9973)
    for function, expansion in zip(functions, found, strict=True):
        assert np.abs(expansion(t) - function(t)).max() < 1.2e-6
        assert expansion.error <= 1e-6
        assert expansion.size < 1.0  # rounding of features is not made larger
    assert len({one.n_terms for one in found}) == 1
    # What is left beyond the radius is not the function: the period ends there.
    far = CIRCLE / found[0].times
    assert abs(found[0](np.array([far]))[0] - functions[0](np.array([far]))[0]) > 0.1


def test_a_logistic_function_takes_few_terms():
    assert expand([expit], 6.0)[0].n_terms <= 12
    assert expand([expit], 12.0)[0].n_terms <= 24


def test_a_decomposition_that_does_not_converge_is_made_by_another_way(monkeypatch):
    """As LAPACK's divide and conquer now and then, with several threads."""
    (expected,) = expand([expit], 12.0)

    def diverge(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", diverge)
    (found,) = expand([expit], 12.0)
    assert found.n_terms == expected.n_terms
    assert found.error <= 1e-6


@pytest.mark.parametrize(
    ("radius", "terms"), [(31.0, 72), (50.0, 112), pytest.param(112.0, 256, marks=pytest.mark.slow)]
)
def test_a_variance_far_below_its_largest_takes_terms_in_proportion_to_the_radius(radius, terms):
    def unit(t):
        return np.maximum(expit(t) * expit(-t), 0.02)

    found = expand(
        [lambda t: expit(t) * expit(-t), lambda t: np.logaddexp(0.0, t)], radius, 1e-6, unit
    )
    assert found[0].n_terms <= terms


@pytest.mark.parametrize(
    ("radius", "terms"),
    [
        (0.5, 8),
        (6.0, 12),
        (12.0, 22),
        (31.0, 42),
        (50.0, 56),
        pytest.param(112.0, 120, marks=pytest.mark.slow),
    ],
)
def test_functions_level_at_both_ends_take_few_terms_however_far_they_reach(radius, terms):
    functions = [expit, lambda t: expit(t) * expit(-t), lambda t: np.logaddexp(0.0, t) - t / 2.0]

    def unit(t):
        return np.maximum(expit(t) * expit(-t), 0.1)

    (mean,) = expand_level(functions[:1], radius, unit, 1e-6)
    assert mean.n_terms <= terms
    assert mean.size < 1.0
    t = np.linspace(-radius, radius, 9973)
    assert (np.abs(mean(t) - expit(t)) / unit(t)).max() < 1.2e-6
    others = expand_level(functions[1:], radius, unit, 1e-6)
    for function, found in zip(functions[1:], others, strict=True):
        assert (np.abs(found(t) - function(t)) / unit(t)).max() < 1.2e-6
        assert found.n_terms <= 1.2 * terms


@pytest.mark.parametrize("radius", [2.0, 6.0, 10.0])
def test_the_exponential_is_within_a_share_of_itself(radius):
    (found,) = expand([np.exp], radius, unit=lambda t: np.maximum(np.exp(t), 1.0))
    t = np.linspace(-radius, radius, 9973)
    assert (np.abs(found(t) - np.exp(t)) / np.maximum(np.exp(t), 1.0)).max() < 1.2e-6


def test_terms_end_where_rounding_is_all_that_is_left(monkeypatch):
    """Half of the error takes less than 2.5 times the terms, or no more are of use."""
    tried, once = [], fourier._fit
    monkeypatch.setattr(fourier, "_fit", lambda *a: (tried.append(a[3]), once(*a))[1])
    family = family_named("poisson")
    (found,) = expand([family.mean], 8.25, 1e-6, lambda t: np.maximum(family.variance(t), 0.1))
    assert found.n_terms == 40
    with pytest.raises(DataError, match="no Fourier sum of at most 256 terms"):
        expand([np.exp], 9.375, unit=lambda t: np.maximum(np.exp(t), 1e-3), constant=False)
    assert max(tried) < 200


def test_a_radius_beyond_the_circle_is_refused():
    with pytest.raises(DataError, match="up to 600 from their centre; standardise"):
        expand([expit], 600.0)
    with pytest.raises(DataError, match=r"at most 16 terms.*up to 12 from their centre"):
        expand([expit], 12.0, most_terms=16)
    with pytest.raises(DataError, match="must be within 1024 of 0, the largest is 1024"):
        to_circle(np.array([1.0, -1024.0]))
    with pytest.raises(DataError, match="must be within 1024"):
        to_circle(np.array([np.nan]))


def test_harmonics_are_sines_and_cosines_of_the_exact_odd_multiples():
    angle = uniform(np.random.default_rng(0), 4000)
    angle[:4] = [0, 2**62, 2**63, MODULUS - 1]
    for h, (sine, cosine) in zip(range(1, 192, 2), harmonics(angle, 5, 96), strict=True):
        # Modulo 2^64 the multiple is exact, and so is its share of a turn to double precision.
        turn = 2.0 * np.pi * (angle * np.uint64(5 * h)).view(np.int64) / 2.0**64
        assert np.abs(sine - np.sin(turn)).max() < (h + 7) * 2.0**-52
        assert np.abs(cosine - np.cos(turn)).max() < (h + 7) * 2.0**-52


def test_harmonics_have_the_same_bits_wherever_an_angle_stands():
    """Owner and helper round the same numbers; a bit of difference would be a random number."""
    angle = uniform(np.random.default_rng(1), 37)
    whole = np.array(list(harmonics(angle, 3, 12)))
    for i in range(37):
        alone = np.array(list(harmonics(angle[i : i + 1].copy(), 3, 12)))
        np.testing.assert_array_equal(alone[:, :, 0], whole[:, :, i])
    shifted = np.concatenate([uniform(np.random.default_rng(2), 3), angle])[3:]
    np.testing.assert_array_equal(np.array(list(harmonics(shifted, 3, 12))), whole)
    # Known bits, so that another machine that differed would be seen.
    fixed = np.array([1 << 60, 3 << 59, (1 << 64) - 12345678901234567], dtype=np.uint64)
    last = list(harmonics(fixed, 1, 7))[-1]
    assert [float(v).hex() for v in np.concatenate(last)] == KNOWN_BITS


KNOWN_BITS = [
    "-0x1.d906bcf328d47p-1", "0x1.f6297cff75cadp-1", "-0x1.bf9a218ef5fdfp-5",
    "0x1.87de2a6aea95bp-2", "0x1.8f8b83c69a60fp-3", "0x1.ff3c33a844666p-1",
]  # fmt: skip


# -- whole numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 9001])
def test_masked_features_give_the_value_and_the_mask_to_the_bit(n):
    rng = np.random.default_rng(n)
    functions = [lambda t: expit(t + 0.3), lambda t: expit(t) * expit(-t)]
    expansions = expand(functions, 5.0)
    first = expansions[0]
    eta = rng.uniform(-5.0, 5.0, n)
    gamma = uniform(rng, n)
    precision = choose_precision(expansions, [2.0**28, 2.0**30])
    features = server_features(
        to_circle(eta) + gamma, first.times, first.n_terms, precision.feature
    )
    mask = uniform(rng, *features.shape)
    sine = np.stack([one.sine for one in expansions])
    cosine = np.stack([one.cosine for one in expansions])
    how = gamma, first.times, sine, cosine, precision.weight
    open_values = combine(features, *how)
    np.testing.assert_array_equal(combine(features + mask, *how) - combine(mask, *how), open_values)
    for f, function in enumerate(functions):
        value = open_values[f].view(np.int64) * 2.0 ** -precision.of(f) + expansions[f].constant
        # Fourier, and rounding of features and weights.
        assert np.abs(value - function(eta)).max() < 1e-6 + 8 * 2.0 ** -min(
            precision.feature, min(precision.weight)
        )


def test_digits_are_the_number_to_their_last():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 3))
    x /= np.sqrt(np.mean(x**2, axis=0))
    x[0] = [-30.0, 30.0, 1.0]
    digits = to_digits(x)
    parts = digits.view(np.int64).reshape(500, N_DIGITS, 3)
    assert np.abs(parts[:, 1:]).max() <= 2 ** (DIGIT_BITS - 1)
    again = sum(parts[:, i] * 2.0 ** (-DIGIT_BITS * (i + 1)) for i in range(N_DIGITS))
    assert np.abs(again - x).max() <= 2.0 ** (-DIGIT_BITS * N_DIGITS - 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_at_the_limit_of_64_bits_are_right(sign):
    """Every value at its bound: the sum needs all bits that there are, and none more."""
    n, mean, digit = 4096, 7.5, 2.0**11
    expansions = expand([np.exp], 2.0)
    bound = n * mean * digit
    precision = choose_precision(expansions, [bound])
    values = np.full(n, round(mean * 2.0 ** precision.of(0)), dtype=np.int64)
    digits = np.full(n, sign * int(digit), dtype=np.int64)
    exact = sum(int(a) * int(b) for a, b in zip(values, digits, strict=True))
    assert 2**60 < abs(exact) < 2**63
    assert int((values.view(np.uint64) * digits.view(np.uint64)).sum().view(np.int64)) == exact
    # With four more bits it would not have been.
    over = (values << 4).view(np.uint64) * digits.view(np.uint64)
    assert int(over.sum().view(np.int64)) != exact << 4


def test_sums_without_room_for_digits_after_the_point_are_refused():
    with pytest.raises(DataError, match="do not fit into 64 bits"):
        choose_precision(expand([np.exp], 2.0), [2.0**62])


@pytest.mark.parametrize("k", [2, 3, 5])
def test_weighted_products_open_to_the_bit_and_in_every_block(k):
    rng = np.random.default_rng(k)
    n, names = 40, [f"p{j}" for j in range(k)]
    roles = Roles(names)
    width = {name: j % 3 + 1 for j, name in enumerate(names)}
    layout = Layout(width)
    columns = {name: uniform(rng, n, w) for name, w in width.items()}
    streams = Streams(
        {name: uniform(rng, n, w) for name, w in width.items()},
        {name: uniform(rng, n, w) for name, w in width.items()},
        {name: uniform(rng, n, w) for name, w in width.items()}
        | {f"{roles.first} itself": uniform(rng, n, width[roles.first])},
    )
    weight = uniform(rng, n)
    rho = {helper: uniform(rng, n) for helper in set(roles.helper.values())}
    values = {name: weight + rho[helper] for name, helper in roles.helper.items()}
    nothing = np.zeros(0, dtype=np.uint64)
    told, total = {}, np.zeros((layout.total, layout.total), dtype=np.uint64)
    for name in names:
        own = columns[name], values[name], rho.get(name, nothing), streams
        told[name] = handed_over(name, roles, *own)
        total += party_term(name, roles, layout, *own)
    masked = {name: columns[name] + streams.columns[name] for name in names}
    found = open_information(roles, layout, masked, rho, told, total)
    everything = np.concatenate([columns[name] for name in names], axis=1)
    np.testing.assert_array_equal(found, everything.T @ (everything * weight[:, None]))


def test_of_every_owner_and_its_helper_the_first_party_alone_has_masked_features():
    for k in range(2, 7):
        roles = Roles([f"p{j}" for j in range(k)])
        for owner, helper in roles.helper.items():
            assert (owner == roles.first) != (helper == roles.first)
        assert len(set(roles.helper.values())) == 2  # whose masked numbers the server is told


def test_digits_of_sums_come_together():
    rng = np.random.default_rng(6)
    x, y = rng.uniform(-1, 1, (2, 300, 2))
    a, b = to_digits(x), to_digits(y)
    ones = np.ones((300, 1), dtype=np.uint64)
    np.testing.assert_allclose(
        from_digits(a.T @ ones, N_DIGITS)[:, 0], x.sum(axis=0), atol=300 * 2.0**-25
    )
    np.testing.assert_allclose(from_digit_products(a.T @ b, N_DIGITS), x.T @ y, atol=300 * 2.0**-24)


# -- the fit on the server -------------------------------------------------------------------


class Pooled:
    """Sums from the pooled table, in units of the columns' standard deviations."""

    def __init__(self, family, x, y, reach=50.0):
        self.family, self.y, self.reach = family_named(family), y, reach
        self.z = (x - x.mean(axis=0)) / x.std(axis=0)
        self.informed = 0
        n = len(y)
        self.moments = MeanMoments(n, y.sum(), self.z.T @ self.z / n, self.z.T @ y)

    def evaluate(self, level, slopes):
        self.eta = level + self.z @ slopes
        if np.abs(self.eta).max() > self.reach:
            return None
        mean = self.family.mean(self.eta)
        return mean.sum(), self.z.T @ mean

    def inform(self):
        self.informed += 1
        wide = np.column_stack([np.ones(len(self.y)), self.z])
        weighted = wide * self.family.variance(self.eta)[:, None]
        return wide.T @ weighted, self.family.cumulant(self.eta).sum()


CASES = [
    ("binomial", 3000, 8, 0.5, 6),
    ("binomial", 20000, 8, 1.0, 8),
    ("binomial", 5000, 30, 0.3, 5),
    ("poisson", 5000, 9, 0.2, 8),
    ("poisson", 20000, 8, 0.2, 8),
    ("poisson", 5000, 9, 0.4, 16),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("family", "n", "p", "strength", "most"), CASES)
def test_the_maximum_is_found_in_few_evaluations(family, n, p, strength, most, seed):
    x, y = pooled(family, n, p, seed, strength)
    source = Pooled(family, x, y)
    found = maximise(source.family, source.moments, source)
    truth = statsmodels_fit(family, source.z, y)
    assert found.evaluations <= most
    assert source.informed == 1
    estimate = np.r_[found.level, found.slopes]
    assert np.abs((estimate - truth.params) / truth.bse).max() < 1e-4
    errors = np.sqrt(np.diag(np.linalg.inv(found.information)))
    np.testing.assert_allclose(errors, truth.bse, rtol=2e-4)


@pytest.mark.parametrize(("family", "unit"), [("binomial", 0.25), ("poisson", 20.0)])
def test_the_predicted_information_is_that_of_normal_columns(family, unit):
    rng = np.random.default_rng(0)
    n, p = 400_000, 3
    x = rng.standard_normal((n, p)) @ rng.uniform(-1, 1, (p, p))
    source = Pooled(family, x, (rng.random(n) < 0.5).astype(float))
    here = np.array([0.4, 0.5, -0.7, 0.3])
    means = np.r_[source.evaluate(here[0], here[1:])]
    exact, _ = source.inform()
    predicted = predicted_information(source.family, source.moments, here, means)
    assert np.abs(predicted / n - exact / n).max() < 6 * unit / np.sqrt(n)


def test_separated_labels_lead_out_of_reach():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 3))
    source = Pooled("binomial", x, (x[:, 0] + x[:, 1] > 0).astype(float))
    with pytest.raises(OutOfReachError) as caught:
        maximise(source.family, source.moments, source, max_evaluations=40)
    assert np.argsort(-np.abs(caught.value.tried[1:]))[:2].tolist() in ([0, 1], [1, 0])


def test_a_start_that_is_out_of_reach_takes_no_more_evaluations_than_are_left():
    x = np.random.default_rng(0).standard_normal((500, 3))
    source = Pooled("binomial", x, (x[:, 0] > 0).astype(float))
    source.reach, evaluate, tried = 0.0, source.evaluate, []
    source.evaluate = lambda *here: tried.append(here) or evaluate(*here)
    with pytest.raises(OutOfReachError):
        Expansions(source.family, source.moments, source).start(np.zeros(3), 0.5, most=2)
    assert len(tried) == 2
