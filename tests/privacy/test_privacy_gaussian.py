"""Gaussian noise: how much there must be, and whether whole numbers have its distribution."""

import numpy as np
import pytest
from scipy import integrate, stats

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import Keystream, gaussian_delta, gaussian_integers, gaussian_sigma

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
