"""The audit of epsilon finds what a mechanism spends, and no more."""

import numpy as np
import pytest

from flwr_vertical.errors import DataError
from flwr_vertical.grading.audit import audit_epsilon
from flwr_vertical.privacy import (
    Keystream,
    gaussian_delta,
    gaussian_integers,
    laplace_integers,
    rational,
)

N = 8000


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_integer_laplace_noise_spends_what_it_states(epsilon):
    """The bound is tight: a count above its true value has a ratio of exp(epsilon)."""
    stream = Keystream(bytes(16))
    noise = laplace_integers(1 / rational(epsilon), 2 * N, stream)
    found = audit_epsilon(100 + noise[:N], 101 + noise[N:]).epsilon
    assert epsilon / 2 < found <= epsilon


@pytest.mark.parametrize(("sigma", "epsilon"), [(8, 1.0), (8, 3.0)])
def test_integer_gaussian_noise_spends_no_more_than_it_states(sigma, epsilon):
    """For a sum that changes by 10: a threshold attains the delta that goes with epsilon."""
    stream = Keystream(bytes(16))
    noise = np.array(gaussian_integers(sigma, 2 * N, stream))
    delta = gaussian_delta(10 / sigma, epsilon)
    found = audit_epsilon(noise[:N], 10 + noise[N:], delta=delta).epsilon
    assert epsilon / 2 < found <= epsilon


def test_too_little_noise_is_found():
    stream = Keystream(bytes(16))
    noise = laplace_integers(1 / rational(2.0), 2 * N, stream)
    assert audit_epsilon(noise[:N], 1 + noise[N:]).epsilon > 1.0  # the stated one
    assert audit_epsilon(noise[:N], noise[N:]).epsilon == 0.0


def test_the_bound_is_clopper_and_pearsons():
    from scipy.stats import binomtest

    one = np.repeat([0.0, 1.0], [100, 300])[np.random.default_rng(0).permutation(400)]
    two = 1 - one[::-1]
    found = audit_epsilon(one, two, confidence=0.9)
    hits, others = ((s[200:] >= 1).sum() for s in (one, two))
    if found.threshold < 0.5 and hits < 100:  # the outcome may be the other value
        hits, others = 200 - hits, 200 - others
    low, high = (
        getattr(binomtest(int(k), 200).proportion_ci(0.9, "exact"), side)
        for k, side in ((max(hits, others), "low"), (min(hits, others), "high"))
    )
    assert found.epsilon == pytest.approx(np.log(low / high), abs=0.2)
    with pytest.raises(DataError, match="100 runs on each table or more, got 99"):
        audit_epsilon(one[:99], two)
