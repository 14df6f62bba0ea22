"""Where privacy noise comes from, and its distribution."""

import numpy as np
import pytest
from scipy import integrate, stats

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import (
    Keystream,
    fresh_keystream,
    gaussian_delta,
    gaussian_integers,
    gaussian_sigma,
    laplace_integers,
    noise_is_seeded,
    rational,
    seeded_noise,
)


@pytest.mark.fresh_noise
def test_streams_are_fresh_unless_a_test_asks_for_a_seed():
    def draw(label="a"):
        return fresh_keystream(label).words(np.empty(8, dtype=np.uint64)).tolist()

    assert draw() != draw()
    assert not noise_is_seeded()
    with seeded_noise(1):
        assert noise_is_seeded()
        one, again, other = draw(), draw(), draw("b")
    assert one == again != other
    with seeded_noise(2):
        assert draw() != one
    assert draw() != one


@pytest.mark.fresh_noise
def test_the_simulation_generator_has_no_say():
    np.random.seed(0)  # noqa: NPY002
    first = fresh_keystream("a").below(2**60)
    np.random.seed(0)  # noqa: NPY002
    assert fresh_keystream("a").below(2**60) != first


def test_words_are_uniform_and_one_stream():
    words = Keystream(bytes(16)).words(np.empty(100_000, dtype=np.uint64))
    ones = np.bitwise_count(words).mean()
    assert abs(ones - 32) < 5 * 4 / np.sqrt(len(words))  # a word's count has the deviation 4
    parts = Keystream(bytes(16))
    np.testing.assert_array_equal(
        words[:50], np.concatenate([parts.words(np.empty(25, dtype=np.uint64)) for _ in range(2)])
    )


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 256, 257, 10**12])
def test_below_is_uniform(bound):
    stream = Keystream(b"0123456789abcdef")
    drawn = np.array([stream.below(bound) for _ in range(3000)])
    assert drawn.min() >= 0
    assert drawn.max() < bound
    spread = bound * np.sqrt(1 / 12 / len(drawn))
    assert abs(drawn.mean() - (bound - 1) / 2) <= 5 * spread


def test_shuffled_gives_every_order():
    stream = Keystream(bytes(16))
    seen = {tuple(stream.shuffled(3).tolist()) for _ in range(200)}
    assert len(seen) == 6


@pytest.mark.parametrize(("numerator", "epsilon"), [(2, 0.5), (2, 4.0), (21, 0.5), (1, 0.9)])
def test_laplace_noise_has_the_stated_scale(numerator, epsilon):
    scale = numerator / rational(epsilon)
    drawn = laplace_integers(scale, 20_000, Keystream(bytes(16)))
    a = np.exp(-epsilon / numerator)
    variance = 2 * a / (1 - a) ** 2
    fourth = (drawn.astype(float) ** 4).mean()
    assert abs(drawn.mean()) < 5 * np.sqrt(variance / len(drawn))
    assert abs((drawn.astype(float) ** 2).mean() - variance) < 5 * np.sqrt(fourth / len(drawn))
    # Each step outwards is less likely by the factor a: this is what gives the privacy.
    counts = np.array([(np.abs(drawn) == k).sum() for k in range(4)])
    expected = (1 - a) / (1 + a) * a ** np.arange(4) * np.array([1, 2, 2, 2]) * len(drawn)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_epsilon_is_rounded_down():
    assert rational(0.1) <= 0.1
    assert rational(0.1) == pytest.approx(0.1, rel=1e-4)
    with pytest.raises(ConfigError, match="epsilon must be at least"):
        rational(1e-9)


BUDGETS = [(0.1, 1e-5), (1.0, 1e-6), (3.0, 1e-8), (20.0, 1e-6)]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_delta_is_the_divergence_of_two_normal_densities(epsilon, delta):
    """By definition: the integral of what one density has above e^epsilon times the other."""
    sigma = gaussian_sigma(epsilon, delta)

    def excess(x):
        return max(stats.norm.pdf(x, 1.0, sigma) - np.exp(epsilon) * stats.norm.pdf(x, 0, sigma), 0)

    begins = epsilon * sigma**2 + 0.5  # where the first is above
    found, _ = integrate.quad(excess, begins, begins + 12 * sigma, epsabs=0, epsrel=1e-8)
    assert found == pytest.approx(delta, rel=1e-3)
    assert found <= delta * (1 + 1e-6)
    assert gaussian_delta(1.0 / sigma, epsilon) == pytest.approx(delta, rel=1e-6)


def test_it_needs_less_than_the_classical_formula_where_that_holds():
    for epsilon, delta in BUDGETS[:2]:
        assert gaussian_sigma(epsilon, delta) < np.sqrt(2 * np.log(1.25 / delta)) / epsilon


def test_extreme_budgets():
    assert gaussian_sigma(1e-4, 1e-12) > 1e4
    assert 0 < gaussian_sigma(1e12, 1e-6) < 1e-3
    for wrong in ((0.0, 1e-6), (1.0, 0.0), (1.0, 1.0), (float("nan"), 1e-6)):
        with pytest.raises(ConfigError, match="epsilon above 0 and delta above 0 and below 1"):
            gaussian_sigma(*wrong)


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_whole_numbers_have_the_discrete_density(sigma):
    drawn = np.array(gaussian_integers(sigma, 6000, Keystream(b"0123456789abcdef")))
    support = np.arange(-8 * sigma, 8 * sigma + 1)
    density = np.exp(-(support**2) / (2 * sigma**2))
    expected = density / density.sum() * len(drawn)
    often = expected > 8
    counts = np.array([(drawn == x).sum() for x in support])
    observed = [*counts[often], counts[~often].sum()]
    against = np.append(expected[often], expected[~often].sum())
    against *= sum(observed) / against.sum()
    assert stats.chisquare(observed, against).pvalue > 1e-3


def test_large_scales_are_normal():
    drawn = np.array(gaussian_integers(2**55, 4000, Keystream(bytes(16))), dtype=float) / 2**55
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    with pytest.raises(ConfigError, match="sigma of at least 1"):
        gaussian_integers(0, 1, Keystream())
